"""`agentfw top` on a terminal, drawn by textual."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Input

from ...errors import AgentfwError
from ...pool.jobs import PoolError, PoolInfo
from ...texts import shown, why
from ...views import AgentStory, Loaded
from . import words
from .keys import PAGES, keys_page
from .pages import STRIP, Line, Span, heading, loaded_page, numbers, overview_page
from .plain import tree_seconds, workers_table
from .rows import BY_KEY, Agents
from .source import Seen, Source, Tail
from .story import SECTIONS, story_page
from .widgets import Page, Table

RETRY = 2.0
"""Seconds between two attempts to reach a pool that was lost, at least."""


class Top(App[int]):
    """All pages of a pool. `interval`: seconds between two questions."""

    ENABLE_COMMAND_PALETTE = False
    INLINE_PADDING = 0
    CSS = """
    Screen { background: ansi_default; color: ansi_default; overflow: hidden hidden; }
    #heading, #foot { height: 1; }
    #numbers { height: auto; }
    #filter { height: 1; border: none; padding: 0; background: ansi_default; color: ansi_default; }
    #table, #page, #story, #keys { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("ctrl+q", "quit", show=False, priority=True),
        Binding("space", "now", show=False),
        Binding("p", "pause", show=False),
        Binding("question_mark", "help", show=False),
    ]

    def __init__(self, source: Source, interval: float, filter: str = "", sort: str = "cores", ended: bool = False) -> None:
        super().__init__(ansi_color=True)
        self.source = source
        self.interval = interval
        self.agents = Agents()
        self.glyphs = words.glyphs(getattr(sys.__stderr__, "encoding", None), os.environ.get("TERM", ""))
        self.seen: Seen | None = None
        self.trouble = ""
        """Why nothing new comes."""
        self.paused = False
        self.cores: dict[int, float] = {}
        """Of each worker with its cells, by pid, where they are on this machine."""
        self.first = First(filter, sort, ended)
        self._cpu: dict[int, float] = {}
        self._at = 0.0
        self._wake = asyncio.Event()
        self._born = 0.0

    def on_mount(self) -> None:
        self.push_screen(self.first)
        self.run_worker(self._feed(), exclusive=True)

    async def _feed(self) -> None:
        while True:
            if not self.paused:
                await self.ask()
            self._wake.clear()
            pause = self.interval if not self.trouble else max(self.interval, RETRY)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)

    async def ask(self) -> None:
        """One question, and its answer drawn. What goes wrong is said; the pool is looked for again."""
        try:
            seen = await self.source.look(self.agents.since)
            if self.agents.since and self._born != seen.overview.started:
                # Another pool than before, whose counting of changes is not that one's: all of it is asked for.
                self.agents.forget()
                seen = await self.source.look(0)
            self._born = seen.overview.started
            self.agents.take(seen.table)
            self.seen = seen
            self.trouble = ""
            self._measure(seen.pool if seen.here else None)
        except PoolError as error:
            await self._lost(f"{error}; looking for it again" if error.code == "unavailable" else f"the pool says: {error}")
        except Exception as error:  # ours, or an answer that is none of a pool's: the screen stays, and says so
            if os.environ.get("AGENTFW_TRACEBACK"):
                raise
            await self._lost(f"internal error: {why(error)}")
        self.draw()
        screen = self.screen
        if isinstance(screen, Sheet) and not self.trouble:
            await screen.ask()

    async def _lost(self, trouble: str) -> None:
        self.trouble = trouble
        self.agents.since = 0
        with contextlib.suppress(AgentfwError, OSError):
            await self.source.reconnect()

    def _measure(self, pool: PoolInfo | None) -> None:
        now = time.monotonic()
        cpu = {} if pool is None else {worker.pid: tree_seconds(worker.pid) for worker in pool.workers}
        passed = now - self._at
        self.cores = {pid: max(spent - self._cpu[pid], 0) / passed for pid, spent in cpu.items() if pid in self._cpu and passed}
        self._cpu, self._at = cpu, now

    def draw(self) -> None:
        """All that is on the screen, as far as it changed."""
        screen = self.screen
        if isinstance(screen, Sheet):
            screen.draw()

    def foot(self, *more: str) -> Line:
        """The last line: what is missing, or which keys do what."""
        spans: list[Span] = []
        if self.paused:
            spans.append(("paused (p goes on)  ", "warn"))
        if self.seen is not None and self.seen.missing:
            spans.append((f"{self.seen.missing}  ", "warn"))
        for text in more:
            key, _, meaning = text.partition(" ")
            spans += [(key, "b"), (f" {meaning}  ", "dim")]
        return tuple(spans)

    def heading(self, trouble: str = "") -> Line:
        """`trouble`: of a screen's own question."""
        return heading(self.seen.overview if self.seen else None, self.source.where, self.trouble or trouble, self.size.width)

    def _set_pointer_shape(self, shape: str) -> None:
        """textual's, which tells it to terminals by a sequence that some take for a title. There is no mouse here."""

    def action_now(self) -> None:
        self._wake.set()

    def action_pause(self) -> None:
        self.paused = not self.paused
        self.draw()
        self._wake.set()

    def action_help(self) -> None:
        if not isinstance(self.screen, Keys):
            self.push_screen(Keys())

    def action_interrupt(self) -> None:
        self.end(130)

    def end(self, status: int) -> None:
        self.exit(return_code=status, result=status)


class Sheet(Screen[None]):
    """One of our screens."""

    @property
    def top(self) -> Top:
        assert isinstance(self.app, Top)
        return self.app

    async def ask(self) -> None:
        """What only this one wants to know."""

    def draw(self) -> None:
        """All that is on it, as far as it changed. What goes wrong is said, and the screen stays."""
        if not self.is_mounted:
            return
        try:
            self.fill()
        except Exception as error:
            if os.environ.get("AGENTFW_TRACEBACK"):
                raise
            self.top.trouble = f"internal error: {why(error)}"
            self.query_one("#heading", Page).show_lines([self.top.heading()])

    def fill(self) -> None:
        raise NotImplementedError

    def on_resize(self) -> None:
        self.draw()

    def on_screen_resume(self) -> None:
        """What came while another screen lay over it."""
        self.draw()


class First(Sheet):
    """Agents, overview, or policy and plugins."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "app.quit", show=False),
        Binding("slash", "filter", show=False),
        Binding("escape", "unfilter", show=False),
        Binding("a", "ended", show=False),
        Binding("less_than_sign", "sort(-1)", show=False),
        Binding("greater_than_sign", "sort(1)", show=False),
        *(Binding(key, f"page('{key}')", show=False) for key in PAGES),
        *(Binding(key, f"sort_by('{key}')", show=False) for key in BY_KEY),
    ]

    def __init__(self, filter: str = "", sort: str = "cores", ended: bool = False) -> None:
        super().__init__()
        self._start = filter, sort, ended
        self.page = "1"
        self.loaded: Loaded | None = None

    def compose(self) -> ComposeResult:
        yield Page("heading", focusable=False)
        yield Page("numbers", focusable=False)
        table = Table("table", self.top.agents, self.top.glyphs)
        table.filter, table.sort, table.ended = self._start
        yield table
        page = Page("page")
        page.display = False
        yield page
        line = Input(
            id="filter", compact=True, placeholder="words that agents must have; !word: must not have", value=self._start[0]
        )
        line.cursor_blink = False
        line.display = False
        yield line
        yield Page("foot", focusable=False)

    def on_mount(self) -> None:
        self.table.focus()
        self.draw()

    @property
    def table(self) -> Table:
        return self.query_one("#table", Table)

    async def ask(self) -> None:
        if self.page == "3":
            with contextlib.suppress(AgentfwError, OSError):
                self.loaded = await self.top.source.loaded()
            self.draw()

    def fill(self) -> None:
        top, wide = self.top, self.size.width
        seen = top.seen
        self.query_one("#heading", Page).show_lines([top.heading()])
        strip = self.query_one("#numbers", Page)
        # On a small screen the agents come first.
        strip.display = self.page == "1" and seen is not None and self.size.height >= 16
        if seen is not None and strip.display:
            lines = numbers(seen.overview, wide, top.glyphs)
            if strip.length != STRIP:
                strip.styles.height = STRIP
            strip.show_lines(lines)
        if self.page == "1":
            self.table.take()
            self._foot_of_agents()
            return
        page = self.query_one("#page", Page)
        if self.page == "3":
            page.show_lines(loaded_page(self.loaded, wide))
        elif seen is not None:
            workers = "" if seen.pool is None else workers_table(seen.pool, top.cores)
            page.show_lines(overview_page(seen.overview, workers, wide, top.glyphs))
        self._foot(top.foot("1 agents", "2 overview", "3 policy-and-plugins", "? keys", "q quit"))

    def _foot_of_agents(self) -> None:
        table = self.table
        spans: list[Span] = [(f"{len(table.ids)} of {self.top.agents.total} agents", "b"), (", " if table.filter else "  ", "")]
        if table.filter:
            spans.append((f"with `{shown(table.filter, 30)}`  ", "warn"))
        other = "a running" if table.ended else "a all"
        keys = self.top.foot("Enter story", "/ filter", other, "2 overview", "? keys", "q quit")
        self._foot((*spans, *keys))

    def _foot(self, line: Line) -> None:
        self.query_one("#foot", Page).show_lines([line])

    def action_page(self, key: str) -> None:
        self.page = key
        self.table.display = key == "1"
        page = self.query_one("#page", Page)
        page.display = key != "1"
        page.top = page.left = 0
        (self.table if key == "1" else page).focus()
        self.draw()
        if key == "3":
            self.run_worker(self.ask(), group="loaded", exclusive=True)

    def action_sort_by(self, key: str) -> None:
        if self.page == "1":
            self.table.sort_by(BY_KEY[key].name)

    def action_sort(self, way: int) -> None:
        if self.page == "1":
            self.table.sort_beside(way)

    def action_ended(self) -> None:
        self.table.ended = not self.table.ended
        self.draw()

    def action_filter(self) -> None:
        if self.page == "1":
            line = self.query_one("#filter", Input)
            line.display = True
            self.query_one("#foot").display = False
            line.focus()

    def action_unfilter(self) -> None:
        if self.page != "1":
            self.action_page("1")
            return
        self.query_one("#filter", Input).value = ""
        self._filtered()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.table.filter = event.value
        self.table.moved = False
        self.draw()

    def on_input_submitted(self) -> None:
        self._filtered()

    def _filtered(self) -> None:
        line = self.query_one("#filter", Input)
        self.table.filter = line.value
        line.display = False
        self.query_one("#foot").display = True
        self.table.focus()
        self.draw()

    def on_table_chosen(self, event: Table.Chosen) -> None:
        self.top.push_screen(One(event.agent_id))


class One(Sheet):
    """An agent's story."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,backspace", "back", show=False),
        *(Binding(key, f"section('{name}')", show=False) for key, name in SECTIONS.items()),
    ]

    def __init__(self, agent_id: str) -> None:
        super().__init__()
        self.agent_id = agent_id
        self.story: AgentStory | None = None
        self.tail = Tail()
        self.gone = False
        self.trouble = ""
        """Why nothing new of it comes."""
        self._starts: dict[str, int] = {}

    def compose(self) -> ComposeResult:
        yield Page("heading", focusable=False)
        yield Page("story")
        yield Page("foot", focusable=False)

    def on_mount(self) -> None:
        self.query_one("#story").focus()
        self.run_worker(self.ask(), exclusive=True)
        self.draw()

    async def ask(self) -> None:
        source = self.top.source
        try:
            story, tail = await asyncio.gather(source.agent(self.agent_id), source.output(self.agent_id))
        except (AgentfwError, OSError) as error:
            self.trouble = str(error)
        else:
            self.trouble = ""
            self.gone = story is None
            if story is not None:
                self.story = story
                self.tail = tail
        self.draw()

    def fill(self) -> None:
        top, page = self.top, self.query_one("#story", Page)
        self.query_one("#heading", Page).show_lines([top.heading(self.trouble)])
        if self.story is None:
            text = f"the pool knows no agent {self.agent_id} any more" if self.gone else f"asks for {self.agent_id}"
            page.show_lines([((shown(text, 200), "dim"),)])
        else:
            lines, self._starts = story_page(self.story, self.tail, top.agents.now, self.size.width, top.glyphs)
            page.show_lines(lines)
        keys = [f"{key} {name.replace(' ', '-')}" for key, name in SECTIONS.items()]
        self.query_one("#foot", Page).show_lines([top.foot("Esc back", *keys)])

    def action_section(self, name: str) -> None:
        self.query_one("#story", Page).go(self._starts.get(name, 0))

    def action_back(self) -> None:
        self.dismiss()


class Keys(Sheet):
    """All keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter,backspace", "back", show=False)]

    def compose(self) -> ComposeResult:
        yield Page("heading", focusable=False)
        yield Page("keys")
        yield Page("foot", focusable=False)

    def on_mount(self) -> None:
        self.query_one("#keys").focus()
        self.draw()

    def fill(self) -> None:
        self.query_one("#heading", Page).show_lines([self.top.heading()])
        self.query_one("#keys", Page).show_lines(keys_page(self.size.width))
        self.query_one("#foot", Page).show_lines([self.top.foot("Esc back")])

    def action_back(self) -> None:
        self.dismiss()


async def run(source: Source, interval: float, filter: str, sort: str, ended: bool = False) -> int:
    """Until somebody quits; -> the exit status. A signal that ends us gives the screen back first."""
    app = Top(source, interval, filter, sort, ended)
    with _signals(app):
        found = await app.run_async(mouse=False)
    return found or app.return_code or 0


@contextlib.contextmanager
def _signals(app: Top) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, app.end, 128 + number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
