"""`agentfw top` over a pool that is made up, and what is on its screen as text."""

from __future__ import annotations

from agentfw.cli.top.app import Top
from agentfw.cli.top.source import MISSING, Seen, Tail
from agentfw.pool.jobs import PoolError
from agentfw.views import AgentStory, Loaded

from tests.dashboard.fake import FakeObservatory


class FakeSource:
    """A `Source`. `lost`: what every question comes to; `plain`: as of a pool without the dashboard."""

    where = "/run/x/pool.sock"

    def __init__(self, fake: FakeObservatory) -> None:
        self.fake = fake
        self.lost = ""
        self.plain = False
        self.reconnects = 0
        self.asked: list[int] = []

    def _here(self) -> None:
        if self.lost:
            raise PoolError("unavailable", self.lost)

    async def look(self, since: int) -> Seen:
        self._here()
        self.asked.append(since)
        return Seen(await self.fake.overview(), await self.fake.agents(since), MISSING if self.plain else "")

    async def agent(self, id: str) -> AgentStory | None:
        self._here()
        return await self.fake.agent(id)

    async def loaded(self) -> Loaded | None:
        self._here()
        return None if self.plain else await self.fake.loaded()

    async def output(self, id: str) -> Tail:
        self._here()
        return Tail(self.fake.output(id), 5) if any(row.id == id for row in self.fake.rows()) else Tail()

    async def reconnect(self) -> None:
        self.reconnects += 1


def screen(app: Top) -> list[str]:
    """What is on it, line by line, without styles."""
    strips = app.screen._compositor.render_strips(app.size)
    return ["".join(segment.text for segment in strip).rstrip() for strip in strips]


def page(app: Top) -> str:
    return "\n".join(screen(app))
