"""Table [credentials] of agentfw.toml. Values may be secrets: no repr shows one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from agentfw import ConfigError
from agentfw.config import path_beside
from msgspec.structs import replace

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
PLACEHOLDER = "sk-agentfw-placeholder"

KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key", "x-auth-token", "apikey", "x-access-token")
KEY_PARAMETERS = ("key", "api_key", "apikey", "api-key", "access_token", "auth_token", "x-api-key", "client_secret")


class BasicConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """User and password of HTTP Basic authentication (RFC 7617); sources are filled in, in both."""

    user: str
    """Sources are filled in."""
    password: str
    """Sources are filled in."""

    def __repr__(self) -> str:
        return "BasicConfig(...)"


class RuleConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One [[credentials.rule]]: where (`host`, `path`, `labels`), what as (`header`, `basic` or `query`), and which secret."""

    host: str
    """Exact name, port 443; `"name:port"` for another."""
    header: str = ""
    """The header to set, or"""
    value: str = ""
    """What to set; `${env:NAME}`, `${file:PATH}`, `${command:NAME}` and `${oauth:NAME}` are filled in."""
    placeholder: str = PLACEHOLDER
    """What agents are given as their key."""
    basic: BasicConfig | None = None
    """HTTP Basic authentication, or"""
    query: str = ""
    """the parameter of the query to set."""
    path: str = ""
    """Only requests for this path and below it. Paths that servers read in different ways (`..`, `//`, `%2f`, `;`) are below
    no path."""
    labels: dict[str, str] = {}
    """Only agents with all these labels. Agents with different rules for a host share no connection to it."""
    env: str = ""
    """The variable that agents find the placeholder in, unless one is set for them otherwise."""
    require: bool = False
    """Without verified TLS, or when the secret cannot be had, the request is refused (403); `false`: it goes without."""
    cookies: bool = False
    """Cookies pass; `false`: they do not, either way. A session that a key bought is as good as the key."""

    def __repr__(self) -> str:  # the value may be literal
        return f"RuleConfig(host={self.host!r}, header={self.header!r})"


class CommandConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One [credentials.command.NAME]: a program of the operator's that prints the secret."""

    argv: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    """Program and arguments. It runs on the host and prints the secret; its error output is not looked at."""
    ttl: Seconds = 300.0
    """Seconds after which it is run again, a little earlier if the secret is in use. When it fails the last good value stays."""
    timeout: Seconds = 10.0
    """Seconds that it may take."""

    def __repr__(self) -> str:
        return "CommandConfig(...)"


class OAuthConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One [credentials.oauth.NAME]: tokens by the client credentials grant (RFC 6749, 4.4)."""

    token_url: str
    """Where tokens are asked for; `https` only."""
    client_id: str
    """Whose they are."""
    client_secret: str
    """May be one `${...}`."""
    scope: str = ""
    """What to ask for."""
    audience: str = ""
    """Whom they are for."""
    parameters: dict[str, str] = {}
    """More to ask for."""
    auth: Literal["basic", "body"] = "basic"
    """How client and secret are sent."""
    timeout: Seconds = 10.0
    """Seconds that the token server may take."""
    ttl: Seconds = 300.0
    """Seconds that a token is used that does not say how long it is good for."""
    allow_addresses: tuple[str, ...] = ()
    """Networks that are not public but that the token server may be in. What agents may do does not concern it."""

    def __repr__(self) -> str:
        return f"OAuthConfig(token_url={self.token_url!r})"


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table [credentials]: which secret goes where, and what agents have in its place."""

    rule: tuple[RuleConfig, ...] = ()
    """Which secret goes where, and as what."""
    command: dict[str, CommandConfig] = {}
    """Programs that print secrets."""
    oauth: dict[str, OAuthConfig] = {}
    """Servers that give tokens."""
    require_hosts: tuple[str, ...] = ()
    """Hosts, `"name"` or `"name:port"`, that no request goes to without a credential."""
    grace: Annotated[float, msgspec.Meta(ge=0, le=604_800)] = 3600.0
    """Seconds for which a value that was replaced is still masked and refused, the last 16 of each source at most."""
    scan_body: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 65536
    """Bytes at the beginning of each request's body that are looked through for secrets; 0: none."""
    key_headers: tuple[str, ...] = KEY_HEADERS
    """Headers in which agents' own keys are looked for where a key is set."""
    key_parameters: tuple[str, ...] = KEY_PARAMETERS
    """Likewise, query parameters."""

    def beside(self, directory: Path) -> Config:
        """Files and programs are where agentfw.toml is, wherever it is used from."""

        def text(value: str) -> str:
            return re.sub(r"\$\{file:([^}]+)\}", lambda match: f"${{file:{path(match[1])}}}", value)

        def path(given: str) -> str:
            found = path_beside(directory, given)
            if "}" in found and "}" not in given:
                raise ConfigError("", "a directory with `}` in its name cannot be that of a `${file:...}`")
            return found

        def rule(each: RuleConfig) -> RuleConfig:
            basic = each.basic and BasicConfig(text(each.basic.user), text(each.basic.password))
            return replace(each, value=text(each.value), basic=basic)

        def command(each: CommandConfig) -> CommandConfig:
            program = each.argv[0]
            return replace(each, argv=(path_beside(directory, program), *each.argv[1:])) if "/" in program else each

        return replace(
            self,
            rule=tuple(map(rule, self.rule)),
            command={name: command(each) for name, each in self.command.items()},
            oauth={name: replace(each, client_secret=text(each.client_secret)) for name, each in self.oauth.items()},
        )
