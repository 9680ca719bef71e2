"""The hooks: which rules are for a request, what is set and refused, what is masked in what comes back."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from agentfw import Agent, ConfigError, Denied, Destination, TlsInfo, hookimpl
from agentfw.agents import Operator
from agentfw.errors import PluginError

from . import shared
from .config import Config
from .oauth import OAuth
from .placeholders import SCOPE, BodyScan
from .redact import Inflate, Redactor
from .renewed import Renewed
from .rules import Rule
from .sources import File, Literal, Source
from .state import State, chosen
from .values import Secrets
from .websocket import WebSocketRedactor

if TYPE_CHECKING:
    from agentfw import RequestHead, ResponseHead
    from agentfw.runtime import Runtime

LOOK = 1.0
"""Seconds between looks at the files that secrets come from."""
MAX_ENCODINGS = 3
OPAQUE = frozenset({"tcp", "tls", "udp"})
"""Schemes of bytes that nobody looks into."""

COUNTERS = ("injected", "refused", "missing", "echoes_masked", "renewed", "failures", "rejected")

log = logging.getLogger("agentfw.credentials")


class Plugin:
    """See the package."""

    name = "credentials"
    config_type = Config

    def __init__(self, config: Config, environment: Mapping[str, str] = os.environ) -> None:
        self._secrets = Secrets(config.grace)
        self._counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self._runtime: Runtime | None = None
        self._task: asyncio.Task[None] | None = None
        self._old: set[Source] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._seen: tuple[Path | None, Mapping[str, str], Callable[[Path], bool]] | None = None
        """What agents see, as `check_guest()` was told."""
        self._state = State(config, environment, None)
        self._adopt(self._state)

    def __repr__(self) -> str:
        return f"<credentials: {len(self._state.all_rules)} rules>"

    def _adopt(self, state: State) -> None:
        for source in state.owned():
            source.changed = self._changed
            source.counters = self._counters
            self._changed(source)
        self._secrets.watch(state.placeholders)

    def _changed(self, source: Source) -> None:
        value = source.known
        self._secrets.use(source, () if value is None else (value,))
        if self._seen is not None and value is not None:
            trouble = _readable(value, self._seen[1])
            if trouble:  # it cannot be taken back
                log.error("%s: the agents' variable %s has this secret in it", source.name, trouble)

    def check_guest(self, file: Path | None, environment: Mapping[str, str], sees: Callable[[Path], bool]) -> None:
        """ConfigError if the agents could read a secret: in `file` (agentfw.toml), in a file of ours, in their environment."""
        self._check_guest(self._state, file, environment, sees)
        self._seen = (file, environment, sees)

    def _check_guest(self, state: State, file: Path | None, environment: Mapping[str, str], sees: Callable[[Path], bool]) -> None:
        hint = "write `${env:NAME}` and give agents the placeholder, or `${file:PATH}` with a file that they do not see"
        checks = [(f"rule.{rule.number}.value", rule.sources, rule.literal) for rule in state.all_rules]
        for key, source in state.sources.items():
            if isinstance(source, OAuth):
                checks.append((f"oauth.{key[1]}.client_secret", [source.secret], isinstance(source.secret, Literal)))
        for key_, sources, literal in checks:
            places = [*(source.file for source in sources if source.file), *([file] if literal and file is not None else [])]
            where = next((f"in {place}" for place in places if sees(place)), "")
            names = [name for source in sources if source.known for name in (_readable(source.known, environment),) if name]
            if where or names:
                where = where or f"as {names[0]}"
                raise ConfigError(key_, f"the agents could read this secret, {where}", hint=hint)

    # ---- life

    @hookimpl
    async def start(self, runtime: Runtime) -> None:
        self._runtime = runtime
        for key, source in self._state.sources.items():
            try:
                await source.start(runtime)
            except ConfigError as error:
                raise runtime.config.located("credentials", error) from None
            if key[0] == "command" and self._seen is not None and _readable(source.known or "", self._seen[1]):
                raise runtime.config.error(f"credentials.command.{key[1]}", "the agents have this secret in a variable")
        self._secrets.needles()  # no agent waits yet
        self._task = runtime.loop.create_task(self._look())

    @hookimpl
    async def stop(self) -> None:
        tasks = [*([self._task] if self._task else ()), *self._starting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for source in (*self._state.sources.values(), *self._old):
            await source.stop()

    async def _look(self) -> None:
        """Now and again: have files changed?"""
        while True:
            await asyncio.sleep(LOOK)
            files = [source for source in self._state.sources.values() if isinstance(source, File)]
            if files:
                try:
                    await asyncio.to_thread(_check, files)
                except Exception as error:
                    log.error("files cannot be looked at: %s", type(error).__name__)
                for source in files:
                    source.apply()

    def reconfigure(self, config: Config) -> Callable[[], None]:
        """ConfigError if it cannot be; what is returned puts it into effect."""
        before = self._state
        state = State(config, before.environment, before)
        if self._seen is not None:
            self._check_guest(state, *self._seen)

        def commit() -> None:
            self._secrets.grace = config.grace
            self._state = state
            self._adopt(state)
            kept = state.owned()
            for source in before.owned():
                if source not in kept:
                    self._secrets.forget(source)
                    source.changed = lambda source: None
                    self._old.add(source)
                    self._spawn(source.stop)
            if self._runtime is not None:
                for source in state.sources.values():
                    if source not in before.owned():
                        self._spawn(functools.partial(self._begin, source))

        return commit

    async def answer_pool(self, body: bytes) -> bytes:
        """In the router of a pool: a worker wants a secret that has a life of its own."""
        question = shared.decode_question(body)
        kind, _, name = question.source.partition(":")
        source = self._state.sources.get((kind, name))
        if not isinstance(source, Renewed):
            raise PluginError("the router has no such secret")
        value, seconds = await source.told(question.rejected)
        return shared.encode(shared.Answer(value or "", seconds))

    def _spawn(self, what: Callable[[], Coroutine[None, None, None]]) -> None:
        if self._runtime is not None:
            task = self._runtime.loop.create_task(what())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _begin(self, source: Source) -> None:
        assert self._runtime is not None
        try:
            await source.start(self._runtime)
        except ConfigError as error:
            log.error("credentials.%s: %s", error.key, error.message)

    # ---- agents

    @hookimpl
    def environment(self, agent: Agent) -> dict[str, str]:
        """Programs that insist on a key get the placeholder."""
        variables: dict[str, str] = {}
        for rule in self._state.all_rules:
            if rule.env and rule.is_for(agent):
                variables.setdefault(rule.env, rule.placeholder)
        return variables

    @hookimpl
    def tenant(self, agent: Agent, destination: Destination) -> str | None:
        """Agents that different rules are for share no connection: a server may take the second request for the first one's."""
        if isinstance(agent, Operator):
            return "operator"
        rules = self._state.rules.get((destination.host, destination.port))
        if not rules or not any(rule.labels for rule in rules):
            return None
        return ",".join(str(rule.number) for rule in rules if rule.is_for(agent))

    @hookimpl
    def allow(self, agent: Agent, destination: Destination) -> None:
        """Bytes that nobody can look into do not go where a credential is injected: they could carry an agent's own key."""
        if destination.scheme in OPAQUE:
            state = self._state
            place = (destination.host, destination.port)
            rules = state.for_agent(agent, place)
            if rules or place in state.hosts or destination.host in state.hosts:
                name = rules[0].name if rules else f"credentials.require_hosts: {destination.host}"
                self._refuse(Denied(name, f"{destination.host} is reached by HTTPS through the runtime only"))

    # ---- requests

    @hookimpl(trylast=True)
    def request(self, agent: Agent, destination: Destination, head: RequestHead, tls: TlsInfo | None) -> Awaitable[None] | None:
        state = self._state
        if not state.all_rules and not state.hosts:
            return None
        place = (destination.host, destination.port)
        candidates = state.for_agent(agent, place)
        verified = destination.scheme == "https" and tls is not None and tls.verified
        rules = chosen(candidates, head.target.partition("?")[0])
        used = rules if verified else []
        elsewhere = "may not be sent there" if verified or not candidates else "needs verified TLS"
        try:
            state.guard.check(head, used, self._secrets, elsewhere)
            for rule in rules:
                if rule.require and not verified:
                    raise Denied(rule.name, "a credential is required here, and none is sent without verified TLS")
        except Denied as error:
            self._refuse(error)
        limit = state.config.scan_body
        if limit:
            head.transforms.append(BodyScan(self._secrets, limit, self._refused_body))
        if place in state.rules:  # so that an echo can be seen, of what another agent's request carried, too
            head.headers.set("Accept-Encoding", "identity")
            head.headers.remove("sec-websocket-extensions")
            head.upgrade = head.upgrade if head.upgrade == "websocket" else None
        if not used:
            self._check_required(state, destination, [])
            return None
        if not any(rule.cookies for rule in used):
            head.headers.remove("cookie")
        if all(rule.credential() is not None for rule in used):
            self._inject(state, destination, head, used)
            return None
        return self._inject_later(state, destination, head, used)

    async def _inject_later(self, state: State, destination: Destination, head: RequestHead, rules: list[Rule]) -> None:
        for rule in rules:
            await rule.wait()
        self._inject(state, destination, head, rules)

    def _inject(self, state: State, destination: Destination, head: RequestHead, rules: list[Rule]) -> None:
        done = []
        for rule in rules:
            credential = rule.credential()
            if credential is not None:
                rule.apply(head, credential)
                done.append(rule)
                continue
            self._counters["missing"] += 1
            if rule.require:
                self._refuse(Denied(rule.name, "the credential for this route cannot be had at the moment"))
        self._check_required(state, destination, done)
        self._counters["injected"] += bool(done)

    def _check_required(self, state: State, destination: Destination, done: list[Rule]) -> None:
        if not done and (destination.host in state.hosts or (destination.host, destination.port) in state.hosts):
            name = f"credentials.require_hosts: {destination.host}"
            self._refuse(Denied(name, "no request goes there without a credential, and no rule has one for this request"))

    def _refuse(self, error: Denied) -> None:
        self._counters["refused"] += 1
        raise error

    def _refused_body(self) -> Exception:
        self._counters["refused"] += 1
        return Denied(SCOPE, "a secret may not be sent by agents")

    # ---- responses

    @hookimpl(trylast=True)
    def response(self, agent: Agent, destination: Destination, request: RequestHead, head: ResponseHead) -> None:
        state = self._state
        place = (destination.host, destination.port)
        rules = state.for_agent(agent, place)
        sent = self._sent(request)
        if not sent and place not in state.rules:
            return
        self._judge(state, sent, head.status)
        self._mask_head(head)
        used = chosen(rules, request.target.partition("?")[0])
        if (sent or used) and not any(rule.cookies for rule in used):
            head.headers.remove("set-cookie", "set-cookie2")
        if head.status == 101:
            if request.upgrade != "websocket" or "sec-websocket-extensions" in head.headers:
                raise Denied(f"credentials: {destination.host}", "what follows this switch of protocols cannot be looked into")
            head.transforms.append(WebSocketRedactor(self._secrets.needles, self._count_echoes))
            return
        encodings = head.headers.tokens("content-encoding")
        for encoding in reversed(encodings):
            if encoding in ("gzip", "x-gzip", "deflate") and len(encodings) <= MAX_ENCODINGS:
                head.transforms.append(Inflate())
            elif encoding != "identity":
                raise Denied(f"credentials: {destination.host}", f"a response in the encoding {encoding!a} cannot be looked into")
        if encodings:
            head.headers.remove("content-encoding")
        head.transforms.append(Redactor(self._secrets.needles, self._count_echoes))

    def _sent(self, request: RequestHead) -> set[str]:
        """The secrets that this request carried."""
        text = "\n".join((request.target, *(value for _, value in request.headers))).encode("latin-1", "replace")
        needles = self._secrets.needles()
        return {needles.secrets[number].decode() for _, _, number in needles.find(text)}

    def _judge(self, state: State, sent: set[str], status: int) -> None:
        """Tell the sources of what was sent how it was taken."""
        if status != 401 and not 200 <= status < 400:
            return
        for source in state.sources.values():
            if isinstance(source, Renewed) and (value := source.known) is not None and value in sent:
                if status == 401:
                    source.rejected(value)
                else:
                    source.accepted(value)

    def _mask_head(self, head: ResponseHead) -> None:
        """Reason, names and values."""
        text = "\n".join((head.reason, *chain.from_iterable(head.headers)))
        if not self._secrets.needles().find(text.encode("latin-1", "replace")):
            return
        head.reason = self._masked(head.reason)
        fields = list(head.headers)
        masked = [(self._masked(name), self._masked(value)) for name, value in fields]
        if masked != fields:
            head.headers.remove(*(name for name, _ in fields))
            for name, value in masked:
                head.headers.add(name, value)

    def _masked(self, text: str) -> str:
        data = text.encode("latin-1", "replace")
        return Redactor(self._secrets.needles, self._count_echoes)(data, True).decode("latin-1")

    # ---- what is written

    @hookimpl
    def redact(self, text: bytes) -> bytes | None:
        """Agents may write secrets that they came by (in a path, in a name) where no request of theirs is looked into."""
        needles = self._secrets.needles()
        return Redactor(self._secrets.needles, self._count_echoes)(text, True) if needles.find(text) else None

    def _count_echoes(self, number: int) -> None:
        self._counters["echoes_masked"] += number

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        return dict(self._counters)


def _check(files: list[File]) -> None:
    for source in files:
        source.check()


def _readable(secret: str, environment: Mapping[str, str]) -> str:
    """A variable that has it, "" if none does."""
    return next((name for name, value in environment.items() if secret and secret in value), "")
