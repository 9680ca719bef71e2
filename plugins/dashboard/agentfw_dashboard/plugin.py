"""The plugin: the page, in the process that has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentfw import hookimpl
from agentfw.pool.jobs import PoolError
from agentfw.runtime import Runtime

from .config import Config
from .output import tail_of
from .page import Page
from .web.shared import Source


class Plugin:
    """See the package."""

    name = "dashboard"
    config_type = Config
    api_local = frozenset({"address"})

    def __init__(self, config: Config) -> None:
        self._config = config
        self.source: Source | None = None
        """What the page shows; None: there is no page."""
        self.page: Page | None = None

    def reconfigure(self, config: Config) -> Callable[[], None]:
        """All of it may change; the page moves after that (`reloaded`)."""
        page = self.page
        token = page.check(config) if page is not None else b""

        def commit() -> None:
            self._config = config
            if page is not None:
                page.adopt(config, token)

        return commit

    @hookimpl
    async def start(self, runtime: Runtime) -> None:
        if self.source is None or (runtime.pool is not None and runtime.pool.role == "worker"):
            return
        backend = runtime.pool.backend if runtime.pool is not None and runtime.pool.role == "router" else None
        output = None if backend is None else tail_of(backend)
        page = Page(self._config, runtime, self.source, beside=getattr(backend, "place", None), output=output)
        await page.start()
        self.page = page

    @hookimpl
    async def reloaded(self) -> None:
        if self.page is not None:
            await self.page.move()

    @hookimpl
    async def stop(self) -> None:
        page, self.page = self.page, None
        if page is not None:
            await page.close()

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        return self.page.counters() if self.page is not None else {}

    async def answer_api(self, what: str, query: Mapping[str, str]) -> Any:
        """`address`: the page's URL ("" if it has none), a token, and a URL that logs in, once."""
        if what != "address":
            raise PoolError("not_found", f"the dashboard does not tell `{what[:64]}`")
        page = self.page
        if page is None:
            raise PoolError("not_found", "this pool has no page")
        return {"url": page.url, "token": page.server.access.token, "login": page.login_url(), "trouble": page.trouble}
