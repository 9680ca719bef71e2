"""The plugin: a collector in each worker; an observatory, and the page, in the router. Without a pool all of them are here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentfw import hookimpl
from agentfw.pool.jobs import PoolError
from agentfw.runtime import Runtime
from agentfw.texts import shown

from . import machine
from .collector import Collector
from .config import Config
from .numbers import metrics_of
from .observatory import Observatory
from .output import tail_of
from .page import Page
from .web.shared import Source
from .wire import AskStory, encode, read_question

MAX_ID = 200


class Plugin(Collector):
    """See the package."""

    name = "dashboard"
    api = "1.1"
    config_type = Config
    api_local = frozenset({"address"})

    check_machine = staticmethod(machine.check)

    def __init__(self, config: Config) -> None:
        super().__init__(config.memory_bytes, config.ended)
        self._config = config
        self.observatory: Observatory | None = None
        """None in a worker, and before the start."""
        self.source: Source | None = None
        """What the page shows, if it is another than that; a test's."""
        self.page: Page | None = None

    def reconfigure(self, config: Config) -> Callable[[], None]:
        """All of it may change; the page moves after that (`reloaded`)."""
        page = self.page
        token = page.check(config) if page is not None else b""

        def commit() -> None:
            self._config = config
            self.bound(config.memory_bytes, config.ended)
            if self.observatory is not None:
                self.observatory.ended = config.ended
            if page is not None:
                page.adopt(config, token)

        return commit

    @hookimpl
    async def start(self, runtime: Runtime) -> None:
        self.runtime = runtime
        if runtime.pool is not None and runtime.pool.role == "worker":
            return
        self.observatory = Observatory(runtime, self, self._config.ended)
        await self.observatory.start()
        router = runtime.pool.backend if runtime.pool is not None else None
        page = Page(
            self._config,
            runtime,
            self.source or self.observatory,
            beside=None if router is None else router.place,
            output=None if router is None else tail_of(router),
            metrics=metrics_of(runtime),
        )
        await page.start()
        self.page = page

    @hookimpl
    async def reloaded(self) -> None:
        if self.page is not None:
            await self.page.move()

    @hookimpl
    async def stop(self) -> None:
        page, self.page = self.page, None
        try:
            if page is not None:
                await page.close()
        finally:
            if self.observatory is not None:
                await self.observatory.stop()

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        kept: dict[str, int | float] = {
            "agents": len(self.live),
            "ended": len(self.ended),
            "forgotten": self.forgotten,
            "bytes": self.size,
            "tls_agents": self._tls_agents,
        }
        return kept if self.page is None else {**kept, **self.page.counters()}

    def served_at(self, login: bool) -> str:
        """The page's URL, or one that lets in who follows it, once; "" if there is none."""
        if self.page is None:
            return ""
        return self.page.login_url() if login else self.page.url

    async def answer_router(self, body: bytes) -> bytes:
        """In a worker: an `Ask` or an `AskStory` of the router's. PluginError for nonsense."""
        question = read_question(body)
        if isinstance(question, AskStory):
            found = await self.story(question.key)
            return b"" if found is None else encode(found)
        statistics = self.runtime.plugins.statistics() if self.runtime is not None else {}
        return encode(self.answer(question, statistics))

    async def answer_api(self, what: str, query: Mapping[str, str]) -> Any:
        """`GET /v1/plugins/dashboard/{what}`. PoolError. `address`: the page's URL ("" if it has none), a token, and a URL that
        logs in, once."""
        observatory = self.observatory
        if observatory is None:
            raise PoolError("unavailable", "the dashboard has not started")
        if what == "address":
            return self._address()
        for name in query:
            if (what, name) not in (("agents", "since"), ("agent", "id")):
                raise PoolError("bad_request", f"no parameter `{shown(name, 64)}` here")
        if what == "overview":
            return await observatory.overview()
        if what == "agents":
            since = query.get("since", "0")
            if not (since.isascii() and since.isdecimal() and len(since) < 19):
                raise PoolError("bad_request", "`since` is a number that an earlier answer gave")
            return await observatory.agents(int(since))
        if what == "agent":
            found = await observatory.agent(query.get("id", "")[:MAX_ID])
            if found is None:
                raise PoolError("not_found", "no such agent: it was never there, or was forgotten")
            return found
        if what == "loaded":
            return await observatory.loaded()
        raise PoolError("not_found", f"the dashboard does not tell `{shown(what, 64)}`")

    def _address(self) -> dict[str, str]:
        page = self.page
        if page is None:
            raise PoolError("not_found", "this pool has no page")
        return {"url": page.url, "token": page.server.access.token, "login": page.login_url(), "trouble": page.trouble}
