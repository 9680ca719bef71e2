"""`agentfw top` by its keys (textual's Pilot), at 1,500 agents, hostile ones among them; what is on the screen as text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from agentfw.cli.top import words
from agentfw.cli.top.app import First, One, Top
from agentfw.cli.top.keys import KEYS, PAGES
from agentfw.cli.top.pages import plain
from agentfw.cli.top.rows import BY_NAME, COLUMNS
from agentfw.cli.top.source import MISSING
from agentfw.cli.top.story import SECTIONS
from agentfw.cli.top.widgets import Page
from agentfw.pool.jobs import PoolError
from agentfw.texts import width
from agentfw.views import AgentStory
from textual.pilot import Pilot

from tests.dashboard.fake import FakeObservatory
from tests.hostile import TEXTS, harmful_page

from .support import FakeSource, page, screen

NOW = 1_700_000_000.0
Body = Callable[[Top, "Pilot[int]", FakeSource], Awaitable[None]]


def shown(body: Body, *, agents: int = 1500, size: tuple[int, int] = (80, 24), fake: FakeObservatory | None = None) -> None:
    source = FakeSource(fake or FakeObservatory(agents, now=NOW))

    async def run() -> None:
        app = Top(source, 3600.0)
        async with app.run_test(size=size) as pilot:
            await settled(app, pilot)
            await body(app, pilot, source)
            for line in screen(app):
                assert width(line) <= app.size.width
            assert not harmful_page(page(app).replace("\n", "\n."))

    asyncio.run(run())


async def settled(app: Top, pilot: Pilot[int]) -> None:
    while app.seen is None and not app.trouble:
        await pilot.pause()
    await pilot.pause()
    await pilot.pause()


async def press(app: Top, pilot: Pilot[int], *keys: str) -> str:
    await pilot.press(*keys)
    await pilot.pause()
    await pilot.pause()
    return page(app)


@pytest.fixture(autouse=True)
def no_thread_is_left(nothing_left: None) -> Iterator[None]:
    yield


def test_the_first_page() -> None:
    async def body(app: Top, pilot: Pilot[int], source: FakeSource) -> None:
        lines = screen(app)
        seen = app.seen.overview  # type: ignore[union-attr]
        assert lines[0].startswith(
            f"pool ready, up 40m00s, 2 workers  {seen.running} running  {seen.queued} queued  {seen.done} done"
        )
        text = "\n".join(lines[1:7])
        each = f"{seen.agents_per_session:.1f} agents each"
        for word in (
            f"warm-up  {sum(seen.warmup):,} VMs, {sum(seen.warmup[20:])} over 2s",
            f"density  {seen.agents_per_gb:,.0f} a GiB of ",
            f"DNS hits {100 * (seen.dns_hit_rate or 0):.1f} % of ", f"TLS      {seen.tls_sessions} sessions, {each}",
            f"traffic  {words.size(seen.bytes_up)} up {words.size(seen.bytes_down)} down, ", f"denials  {seen.denials}",
            "dispatch   p50 820us p95 2.1ms p99 4.7ms", "connect    p50 3.1us p95 900us p99 31ms", "first call p50 2.1ms",
            f"LLM calls  {words.number(seen.model_calls)}, {seen.model_calls_failed} failed",
            f"{words.number(seen.input_tokens)} in",
            f"cost       {seen.cost:,.2f} USD", "█",
        ):  # fmt: skip
            assert word in text, text
        assert lines[7].split() == ["NAME", "STATE", "TIME", "CORES▾", "CPU", "MEM", "CALLS", "TOKENS", "COST", "DENIED"]
        assert len(lines) == 24 and all(lines[8:24]) and " of 1500 agents  Enter story  / filter  a all" in lines[23]
        row = app.agents.known[app.first.table.ids[1]].row
        name, state, *numbers = lines[9].split()
        assert (
            (name, state) == (row.name, "running") and numbers[3] == words.size(row.memory) and numbers[4] == str(row.model_calls)
        )

    shown(body)


def test_sorting_by_keys() -> None:
    async def body(app: Top, pilot: Pilot[int], source: FakeSource) -> None:
        table = app.first.table
        await press(app, pilot, "a", "down", "down")
        for column in COLUMNS:
            assert app.screen._bindings.get_bindings_for_key(column.key)[0].action == f"sort_by('{column.key}')"
        for key, name in (("M", "memory"), ("N", "name"), ("S", "state")):
            await press(app, pilot, key)
            once = list(table.ids)
            assert table.sort == name and table.cursor == once[0] and len(once) == 1500
            await press(app, pilot, key)
            values = [BY_NAME[name].value(app.agents.known[id], app.agents.now) for id in (once[0], table.ids[0], table.ids[-1])]
            assert values[0] == values[2] != values[1], "the other way round"
        await press(app, pilot, "M")
        await press(app, pilot, "greater_than_sign")
        assert table.sort == "calls"
        await press(app, pilot, "less_than_sign")
        assert table.sort == "memory" and "MEM▾" in page(app)

    shown(body)


def test_filter() -> None:
    async def body(app: Top, pilot: Pilot[int], source: FakeSource) -> None:
        text = await press(app, pilot, "slash", *"browse")
        assert all(line.startswith("browse-") for line in text.split("\n")[8:23]) and text.split("\n")[23] == "browse"
        text = await press(app, pilot, "space", "exclamation_mark", *"-13", "enter")
        assert "with `browse !-13`" in text and "browse-13" not in text and "browse-06" in text
        text = await press(app, pilot, "slash", *"nosuch", "enter")
        assert "no agent has all of" in text and "0 of 1500 agents" in text
        assert "filter" in await press(app, pilot, "escape")
        assert "q quit" in await press(app, pilot, "slash", "q", "escape")
        assert isinstance(app.screen, First), "a letter in the filter is no key"

    shown(body)


def test_the_cursor_stays_on_its_agent() -> None:
    async def body(app: Top, pilot: Pilot[int], source: FakeSource) -> None:
        table = app.first.table
        await press(app, pilot, "N", "down", "down", "pagedown", "j", "k")
        mine = table.cursor
        assert mine == table.ids[2 + table.size.height - 2]
        source.fake.set(mine, name="zzzz")
        source.fake.revision += 1
        source.fake.set(mine, name="zzzz")
        await app.ask()
        await pilot.pause()
        assert table.cursor == mine and table.ids.index(mine) > 500 and "zzzz" in page(app), "followed to where it is now"
        at = table.ids.index(mine)
        source.fake.forget(mine)
        await app.ask()
        assert table.cursor == table.ids[at], "gone: who is in its place"
        await press(app, pilot, "G")
        assert table.cursor == table.ids[-1] and table.top == len(table.ids) - table.size.height + 1
        await press(app, pilot, "P", "G", "g")
        assert table.cursor == table.ids[0] and table.top == 0
        first = table.cursor
        source.fake.set(first, cpu_seconds=0.0)
        source.fake.set(table.ids[5], cpu_seconds=1e9)
        source.fake.step()
        await app.ask()
        assert table.cursor == table.ids[0] != first, "the first, whoever that is"

    shown(body)


def test_it_asks_for_what_changed_only() -> None:
    async def body(app: Top, pilot: Pilot[int], source: FakeSource) -> None:
        for _ in range(3):
            source.fake.step()
            await app.ask()
        assert source.asked == [0, 1, 2, 3]
        assert {id: known.row for id, known in app.agents.known.items()} == {row.id: row for row in source.fake.rows()}

    shown(body)


def test_a_story() -> None:
    async def body(app: Top, pilot: Pilot[int], source: FakeSource) -> None:
        await press(app, pilot, "slash", *"denials-none", "escape", "D")
        await press(app, pilot, "enter")
        while not isinstance(app.screen, One) or app.screen.story is None:
            await pilot.pause()
        row = app.screen.story.row
        assert row.id in page(app)
        text = await press(app, pilot, "t")
        assert "timeline (" in text and "dispatch" in text and "first_syscall" in text
        for key, title in {
            "s": "syscalls (", "f": "files (", "n": "names (", "d": "destinations (", "m": "model calls (",
            "x": "denials (", "e": "exit", "o": "output",
        }.items():  # fmt: skip
            text = await press(app, pilot, key)
            assert title in text, key
        text = await press(app, pilot, "s")
        assert text.split("\n")[1].startswith("syscalls") and "in the host" in text
        text = await press(app, pilot, "f")
        assert "ENOENT   /etc/shadow" in text and "/workspace/out.json  x3" in text
        assert "default: deny" in await press(app, pilot, "x")
        text = await press(app, pilot, "G")
        last = plain(app.screen.query_one("#story", Page).lines[-1:])
        assert last.strip() and last[:80].rstrip() == text.split("\n")[22], "its output ends"
        top = app.screen.query_one("#story").top  # type: ignore[attr-defined]
        source.fake.step()
        await app.ask()
        await pilot.pause()
        assert abs(app.screen.query_one("#story").top - top) < 30, "it stays where it was read"  # type: ignore[attr-defined]
        source.fake.forget(row.id)
        await app.ask()
        await pilot.pause()
        assert row.id in plain(app.screen.query_one("#story", Page).lines), "what was seen last stays"
        await press(app, pilot, "escape")
        assert isinstance(app.screen, First) and row.id not in app.first.table.ids

    shown(body)


def test_a_story_that_is_not_told_says_why() -> None:
    async def body(app: Top, pilot: Pilot[int], source: FakeSource) -> None:
        told = source.agent

        async def refused(id: str) -> AgentStory | None:
            raise PoolError("internal", "the plugin `dashboard` failed:\x1b]0;t")

        source.agent = refused  # type: ignore[method-assign]
        page = await press(app, pilot, "enter")
        while "asks for" in page and not page.startswith("agentfw top"):
            page = await press(app, pilot)
        assert page.startswith("agentfw top the plugin `dashboard` failed:\\x1b]0;t")
        source.agent = told  # type: ignore[method-assign]
        await app.ask()
        assert (await press(app, pilot)).startswith("pool ready") and app.screen.story is not None  # type: ignore[attr-defined]
        source.agent = refused  # type: ignore[method-assign]
        await app.ask()
        assert (await press(app, pilot)).startswith("agentfw top the plugin"), "what is old is not passed off as new"

    shown(body, agents=20)


@pytest.mark.parametrize(("key", "what"), [("3", "loaded_page"), ("enter", "story_page"), ("question_mark", "keys_page")])
def test_what_cannot_be_drawn_ends_nothing(key: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ValueError("no such\x1b[31m")

    async def body(app: Top, pilot: Pilot[int], source: FakeSource) -> None:
        monkeypatch.setattr(f"agentfw.cli.top.app.{what}", broken)
        monkeypatch.delenv("AGENTFW_TRACEBACK", raising=False)
        page = await press(app, pilot, key)
        while "asks for" in page and not page.startswith("agentfw top"):
            page = await press(app, pilot)
        assert page.startswith("agentfw top internal error: ValueError: no such\\x1b[31m")
        monkeypatch.undo()
        await app.ask()
        assert (await press(app, pilot)).startswith("pool ready")

    shown(body, agents=20)


def test_what_came_under_another_screen_is_there_when_that_goes() -> None:
    async def body(app: Top, pilot: Pilot[int], source: FakeSource) -> None:
        answered, told = asyncio.Event(), source.agent

        async def later(id: str) -> AgentStory | None:
            await answered.wait()
            return await told(id)

        source.agent = later  # type: ignore[method-assign]
        assert "asks for" in await press(app, pilot, "enter")
        assert "keys" in await press(app, pilot, "question_mark")
        answered.set()
        await press(app, pilot)
        assert "timeline (" in await press(app, pilot, "escape")

    shown(body, agents=20)


def test_pages_and_help() -> None:
    async def body(app: Top, pilot: Pilot[int], source: FakeSource) -> None:
        text = await press(app, pilot, "2")
        assert "the last 54s, a second a bar" in text and "tokens/s" in text and "NAME" not in text
        text = await press(app, pilot, "G")
        assert "policy: default: deny" in text
        assert f"denied: {app.seen.overview.denials}, the last of them" in plain(app.first.query_one("#page", Page).lines)  # type: ignore[union-attr]
        assert (await press(app, pilot, "2")).split("\n")[1].startswith("warm-up "), "each page from its beginning"
        text = await press(app, pilot, "3")
        assert (
            "/etc/agentfw/agentfw.toml" in text
            and "allow *.anthropic.com:443" in text
            and "dns 0.1.0" in text
            and "    resolve" in text
        )
        aside = (await press(app, pilot, "right")).split("\n")[1]
        assert aside and aside == text.split("\n")[1][20:] and (await press(app, pilot, "h")) == text
        app.first.query_one("#foot", Page).show_lines([(("\x1b]0;t\x07\u202e", ""),)])
        await pilot.pause()
        assert screen(app)[-1] == "\\x1b]0;t\\x07\\u202e", "whatever led there"
        assert "NAME" in await press(app, pilot, "escape")
        text = await press(app, pilot, "question_mark")
        assert text.split("\n")[1] == "keys" and "page up, page down" in text
        await press(app, pilot, "escape")
        assert "NAME" in await press(app, pilot, "1") and app.first.focused is app.first.table
        await press(app, pilot, "p")
        assert "paused (p goes on)" in page(app)
        await press(app, pilot, "p")
        await press(app, pilot, "question_mark", "q")
        assert isinstance(app.screen, First)
        await press(app, pilot, "q")
        assert app.return_code == 0

    shown(body)


def test_all_keys_are_told() -> None:
    told = " ".join(keys for keys, _ in KEYS)
    for key in (*PAGES, *SECTIONS, *(column.key for column in COLUMNS), *"/a<>p?qhl", "space", "Esc", "Enter"):
        assert key in told


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 10), (20, 5), (1, 1), (300, 100)])
def test_sizes(size: tuple[int, int]) -> None:
    async def body(app: Top, pilot: Pilot[int], source: FakeSource) -> None:
        if size == (40, 10):
            assert screen(app)[1].startswith("NAME"), "where there is little room the agents come first"
        for keys in ("2", "3", "1", "enter", "G", "escape", "question_mark", "escape"):
            await press(app, pilot, keys)
        await pilot.resize_terminal(100, 30)
        await pilot.pause()
        await pilot.pause()
        assert len(screen(app)) == 30 and "pool ready" in screen(app)[0] and "of 300 agents" in screen(app)[29]
        assert len(screen(app)[7]) == 100

    shown(body, agents=300, size=size)


def test_a_pool_that_is_lost_and_found() -> None:
    async def body(app: Top, pilot: Pilot[int], source: FakeSource) -> None:
        source.lost = "no pool runs at /run/x/\x1b]0;evil\x07pool.sock"
        await app.ask()
        await pilot.pause()
        first = screen(app)[0]
        assert first.startswith("agentfw top no pool runs at /run/x/\\x1b]0;evil\\x07pool.sock; looking for it")
        assert " of 1500 agents" in page(app), "what was seen last stays"
        assert source.reconnects == 1
        source.lost = ""
        await app.ask()
        assert source.asked[-1] == 0, "what it missed is not known"
        source.fake = FakeObservatory(3, now=NOW + 1, hostile_names=False)  # another pool
        await app.ask()
        await pilot.pause()
        assert "pool ready" in screen(app)[0] and source.asked[-1] == 0 and "of 3 agents" in page(app)
        source.fake = FakeObservatory(5, now=NOW + 2, hostile_names=False)  # begun anew between two looks
        await app.ask()
        await pilot.pause()
        assert "of 5 agents" in page(app) and len(app.agents.known) == 5

    shown(body)


def test_a_pool_that_was_never_there() -> None:
    source = FakeSource(FakeObservatory(3, now=NOW))
    source.lost = "no pool runs at /run/x/pool.sock"

    async def run() -> None:
        app = Top(source, 3600.0)
        async with app.run_test(size=(80, 24)) as pilot:
            await settled(app, pilot)
            assert screen(app)[0].startswith("agentfw top no pool runs at /run/x/pool.sock; looking for it again")
            await press(app, pilot, "2", "3", "enter", "1", "enter", "question_mark", "escape", "q")
            assert app.return_code == 0

    asyncio.run(run())


def test_all_from_the_start() -> None:
    """`agentfw top --all`: as if `a` had been pressed."""

    async def run() -> None:
        app = Top(FakeSource(FakeObservatory(40, now=NOW)), 3600.0, ended=True)
        async with app.run_test(size=(80, 24)) as pilot:
            await settled(app, pilot)
            assert "40 of 40 agents" in page(app) and "a running" in page(app)
            assert "a all" in await press(app, pilot, "a")

    asyncio.run(run())


def test_without_the_dashboard_it_says_so() -> None:
    async def body(app: Top, pilot: Pilot[int], source: FakeSource) -> None:
        source.plain = True
        await app.ask()
        await pilot.pause()
        assert MISSING[:40] in page(app)
        assert "and was not told" in await press(app, pilot, "3")

    shown(body, size=(160, 24))


def test_hostile_texts_everywhere() -> None:
    """In every field that an agent, a server or a plugin fills; on every page."""
    fake = FakeObservatory(len(TEXTS), now=NOW, hostile_names=False)
    for row, text in zip(fake.rows(), TEXTS, strict=True):
        fake.set(
            row.id, name=text, tenant=text, template=text, labels={"hostile": "yes", text[:99]: text}, last=text, how=text,
            state="running", started=NOW - 9, ended=None, model_calls=3, denials=2,
        )  # fmt: skip
        fake.deny(row.id, text)
        fake.set(row.id, last=text)

    async def body(app: Top, pilot: Pilot[int], source: FakeSource) -> None:
        assert len(app.first.table.ids) == len(TEXTS) < app.first.table.size.height
        for keys in ("N", "2", "G", "3", "1"):
            assert not harmful_page((await press(app, pilot, keys)).replace("\n", "\n.")), keys
        for row in fake.rows():
            one = One(row.id)
            await app.push_screen(one)
            while one.story is None:
                await pilot.pause()
            assert len(plain(one.query_one("#story", Page).lines)) < 200_000, "a megabyte is cut"
            for top in (0, 50):
                one.query_one("#story", Page).go(top)
                await pilot.pause()
                seen = page(app)
                assert not harmful_page(seen.replace("\n", "\n.")) and len(seen.split("\n")) == 60
                assert all(width(line) <= 150 for line in seen.split("\n"))
            await press(app, pilot, "escape")

    shown(body, fake=fake, size=(150, 60))
