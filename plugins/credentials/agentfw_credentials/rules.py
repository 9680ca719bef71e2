"""One [[credentials.rule]]: which requests it is for, and what it puts where."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Literal as OneOf
from typing import NoReturn
from urllib.parse import quote, unquote

from agentfw import ConfigError
from agentfw.agents import Agent
from agentfw.destination import parse_authority
from agentfw.http1 import HOP_BY_HOP, Headers, RequestHead

from .config import RuleConfig
from .sources import Literal, Source

SOURCE = re.compile(r"\$\{(env|file|command|oauth):([^}]*)\}")
_SLIP = re.compile(r"(?:\A|\s)\$\(?[A-Za-z_][A-Za-z0-9_]*\)?\Z|(?<!\$)\{(?:env|file|command|oauth):[^}]*\}?")
"""What people write who mean a source: $NAME, $(NAME), {env:NAME}."""
SCHEME = re.compile(r"(?:bearer|token|basic|apikey|api-key) +", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"[\x21-\x7e]{8,256}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_NOT_CREDENTIALS = HOP_BY_HOP | {
    "host", "content-length", "expect", "content-type", "accept-encoding", "cookie", "sec-websocket-extensions",
}  # fmt: skip
_UNSURE_PATH = re.compile(r"[\\;]|%2[fF]|%5[cC]|%2[eE]|%00|//|/\.{1,2}(?:/|\Z)")

MakeSource = Callable[[str, str], Source]


class Template:
    """Text with sources in it. `secret`: text without any is a secret itself."""

    def __init__(self, text: str, make: MakeSource, *, secret: bool) -> None:
        """ConfigError (key "value")."""
        if "${" in SOURCE.sub("", text):
            raise ConfigError("value", "`${` must begin ${env:NAME}, ${file:PATH}, ${command:NAME} or ${oauth:NAME}")
        if _SLIP.search(SOURCE.sub("", text)):  # sent as it stands, it would only be found out by the server's 401
            raise ConfigError("value", "a variable is written ${env:NAME} here, with dollar sign, braces and `env:`")
        self.parts: list[str | Source] = []
        done = 0
        for match in SOURCE.finditer(text):
            self.parts += (text[done : match.start()], make(match[1], match[2]))
            done = match.end()
        self.parts.append(text[done:])
        self.literal = secret and not self.sources and bool(text)
        if self.literal:
            scheme = SCHEME.match(text)
            end = scheme.end() if scheme else 0
            self.parts = [text[:end], Literal(text[end:])]
        self.parts = [part for part in self.parts if part != ""]
        fixed = "".join(part for part in self.parts if isinstance(part, str))
        if not fixed.isprintable() or not fixed.isascii():
            raise ConfigError("value", "has a line break, NUL or another character that a header cannot carry")

    def __repr__(self) -> str:
        return f"<Template {self.sources}>"

    @property
    def sources(self) -> list[Source]:
        return [part for part in self.parts if isinstance(part, Source)]

    def now(self) -> str | None:
        """Filled in with what there is at the moment; None if something is missing."""
        texts = [part if isinstance(part, str) else part.value for part in self.parts]
        return None if None in texts else "".join(text for text in texts if text is not None)

    def shown(self, placeholder: str) -> str:
        """With `placeholder` in the secrets' places: what an agent that fills it in sends."""
        return "".join(part if isinstance(part, str) else placeholder for part in self.parts)


class Rule:
    """A checked rule. `name` is what messages call it; `slot` where its secret goes: ("header", lower-case name) or
    ("query", name)."""

    def __init__(self, config: RuleConfig, make: MakeSource, number: int = 0) -> None:
        """ConfigError (key within the rule) if it cannot be used."""
        self.number = number
        self.config = config
        try:
            self.host, self.port = parse_authority(config.host, 443)
        except ValueError as error:
            raise ConfigError("host", str(error)) from None
        if sum(map(bool, (config.header, config.basic, config.query))) != 1:
            raise ConfigError("", "needs exactly one of `header`, `basic` and `query`")
        self.templates: tuple[Template, ...]
        if config.basic is not None:
            self.slot: tuple[OneOf["header", "query"], str] = ("header", "authorization")
            self.kind = "basic"
            if config.value:
                raise ConfigError("value", "goes with `header` and `query`; `basic` has its own")
            self.templates = self._basic(make)
        else:
            self.slot = ("header", _header(config.header)) if config.header else ("query", _parameter(config.query))
            self.kind = self.slot[0]
            template = Template(config.value, make, secret=True)
            if not template.sources or config.value != config.value.strip():
                raise ConfigError("value", "is empty or has blanks at its ends")
            self.templates = (template,)
        self.name = f"credentials: {config.host}{config.path} {self.kind if self.kind == 'basic' else self.slot[1]}"
        self.path = _path(config.path)
        self.labels = dict(config.labels)
        self.require = config.require
        self.cookies = config.cookies
        self.env = config.env
        if self.env and not _VARIABLE.match(self.env):
            raise ConfigError("env", "not the name of a variable")
        self.placeholder = config.placeholder
        if not _PLACEHOLDER.match(self.placeholder):
            raise ConfigError("placeholder", "must be 8 to 256 printable ASCII characters without blanks")
        self._check_placeholder()
        self.shown = {self.placeholder, *(template.shown(self.placeholder) for template in self.templates)}
        """What agents that fill in their placeholder may send."""

    def __repr__(self) -> str:
        return f"<Rule {self.name}>"

    def _basic(self, make: MakeSource) -> tuple[Template, Template]:
        config = self.config.basic
        assert config is not None
        user = _keyed("basic.user", lambda: Template(config.user, make, secret=False))
        password = _keyed("basic.password", lambda: Template(config.password, make, secret=True))
        if not user.sources and not password.sources:
            raise ConfigError("basic.password", "is empty")
        if ":" in "".join(part for part in user.parts if isinstance(part, str)):
            raise ConfigError("basic.user", "a user's name cannot have a colon in it (RFC 7617)")
        return user, password

    def _check_placeholder(self) -> None:
        for source in self.sources:
            value = source.known
            if value is not None and (self.placeholder in value or value in self.placeholder):
                raise ConfigError("placeholder", "must differ from the secret")

    @property
    def sources(self) -> list[Source]:
        return [source for template in self.templates for source in template.sources]

    @property
    def literal(self) -> bool:
        """A secret of its is written in agentfw.toml."""
        return any(template.literal for template in self.templates)

    @property
    def rank(self) -> tuple[int, int]:
        """Of rules for one slot the highest counts: the longest path, then the most labels."""
        return len(self.path), len(self.labels)

    def is_for(self, agent: Agent) -> bool:
        return all(agent.labels.get(name) == value for name, value in self.labels.items())

    def covers(self, path: str) -> bool:
        """`path`: of a request, without the query. Paths that servers read in different ways are covered by no rule that has a
        path."""
        if not self.path:
            return True
        if _UNSURE_PATH.search(path):
            return False
        plain = unquote(path, "latin-1")
        return plain == self.path or plain.startswith(self.path if self.path.endswith("/") else self.path + "/")

    def credential(self) -> str | None:
        """What goes into the slot; None: a secret is missing at the moment."""
        texts = [template.now() for template in self.templates]
        if None in texts:
            return None
        if self.kind == "basic":
            return "Basic " + base64.b64encode(":".join(text or "" for text in texts).encode("ascii")).decode("ascii")
        return texts[0]

    async def wait(self) -> None:
        """Until what can be done for the missing secrets has been done."""
        for source in self.sources:
            await source.get()

    def apply(self, head: RequestHead, credential: str) -> None:
        """Put it there."""
        where, name = self.slot
        if where == "header":
            head.headers.set(name, credential)
        else:
            path, _, query = head.target.partition("?")
            parameter = f"{quote(name, safe='')}={quote(credential, safe='')}"
            head.target = f"{path}?{query}{'&' if query else ''}{parameter}"


def _keyed(key: str, make: Callable[[], Template]) -> Template:
    try:
        return make()
    except ConfigError as error:
        if error.key == "value":
            _raise(key, error)
        raise


def _raise(key: str, error: ConfigError) -> NoReturn:
    raise ConfigError(key, error.message, hint=error.hint) from None


def header_name(text: str, key: str) -> str:
    """In lower case. ConfigError about `key`."""
    try:
        Headers([(text.lower(), "")])
    except ValueError:
        raise ConfigError(key, "not a header name") from None
    return text.lower()


def _header(text: str) -> str:
    name = header_name(text, "header")
    if name in _NOT_CREDENTIALS:
        raise ConfigError("header", f"{name} cannot carry a credential")
    return name


def _parameter(text: str) -> str:
    if not re.match(r"[A-Za-z0-9._~-]{1,64}\Z", text):
        raise ConfigError("query", "not the name of a parameter")
    return text


def _path(text: str) -> str:
    if text and (not text.startswith("/") or _UNSURE_PATH.search(text) or not re.match(r"[\x21-\x7e]+\Z", text) or "?" in text):
        raise ConfigError("path", "must begin with a slash, without dots, double slashes or a query")
    if "*" in text:
        raise ConfigError("path", "`*` is nothing special: `/v1` is also all that is below it (write `%2A` for a star)")
    return unquote(text, "latin-1")
