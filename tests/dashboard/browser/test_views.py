"""What each view says of what the pool says."""

from __future__ import annotations

import asyncio
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
from agentfw.views import AgentRow, AgentStory, Denial, Loaded, LoadedPlugin, Overview, Step
from agentfw_dashboard.web import shared
from msgspec.structs import replace
from playwright.sync_api import Page, expect

from ..fake import FakeObservatory
from ..threaded import Serving
from .conftest import Open, Serve, live


def overview_of(serving: Serving) -> Overview:
    return asyncio.run_coroutine_threadsafe(serving.fake.overview(), serving.loop).result(20)


def story_of(serving: Serving, id: str) -> AgentStory:
    story = asyncio.run_coroutine_threadsafe(serving.fake.agent(id), serving.loop).result(20)
    assert story is not None
    return story


def card(page: Page, id: str) -> str:
    return page.locator(f"#{id}").inner_text()


def test_the_six_numbers(open_page: Open, fleet: Serving) -> None:
    page = live(open_page(fleet, "#/overview"))
    now = overview_of(fleet)
    assert now.agents_per_gb is not None and now.agents_per_session is not None
    all_vms = sum(now.warmup)
    below, half = 0, 0
    while below + now.warmup[half] < all_vms / 2:
        below += now.warmup[half]
        half += 1
    median = 100 * (half + (all_vms / 2 - below) / now.warmup[half])
    expect(page.locator("#warmup .big strong")).to_have_text(f"{median:.0f} ms")
    assert f"{all_vms:,}" in card(page, "warmup")
    expect(page.locator("#density .big strong")).to_have_text(f"{round(now.agents_per_gb):,}")
    assert f"{now.memory / 1e6:.0f} MB" in card(page, "density")
    expect(page.locator("#dns .big strong")).to_have_text("97.0%")
    rows = page.locator("#latency tbody tr")
    expect(rows.nth(0)).to_contain_text(re.compile("Dispatch.*820 µs.*2.10 ms.*4.70 ms.*1,500"))
    expect(rows.nth(1)).to_contain_text(re.compile("Connect.*3.10 µs.*900 µs.*31.2 ms.*6,000"))
    expect(rows.nth(2)).to_contain_text(re.compile("First call.*2.10 ms.*8.30 ms.*41.0 ms.*1,500"))
    expect(page.locator("#tls .big strong")).to_have_text(f"{now.agents_per_session:.1f}")
    assert f"Sessions\n{now.tls_sessions}" in card(page, "tls")
    down, up = now.history[-1].bytes_down / 1e6, now.history[-1].bytes_up / 1e6
    assert f"{down:.3g}"[:3] in card(page, "throughput") and f"{up:.3g}"[:3] in card(page, "throughput")
    assert f"{now.model_calls_failed} failed" in card(page, "calls")
    assert f"${now.cost:,.2f}" in card(page, "cost")
    expect(page.locator("#denied .big strong")).to_have_text(f"{now.denials:,}")
    expect(page.locator("#denials tbody tr")).to_have_count(len(now.recent_denials))
    expect(page.locator("#denials tbody tr").first).to_contain_text("collector.example:443")
    expect(page.locator("#denials tbody tr").first).to_contain_text("default: deny")
    assert page.evaluate("[...document.querySelectorAll('.chart')].map((chart) => chart.ariaLabel)")[0] == (
        f"VMs by seconds until warm: {all_vms} VMs"
    )


def test_charts_are_drawn_and_answer_to_the_pointer(open_page: Open, fleet: Serving) -> None:
    page = live(open_page(fleet, "#/overview"))
    expect(page.locator(".uplot canvas")).to_have_count(12)
    painted = """(canvas) => { const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return data.some((value) => value > 0); }"""
    assert all(canvas.evaluate(painted) for canvas in page.locator(".uplot canvas").all())
    page.locator("#warmup .u-over").hover(position={"x": 40, "y": 30})
    expect(page.locator("#warmup .tip")).to_contain_text(re.compile(r"0\.\d – 0\.\d s[\d,]+ VMs"))
    page.locator("#throughput .u-over").hover()
    expect(page.locator("#throughput .tip")).to_contain_text(re.compile(r"\d\d:\d\d:\d\dOut .*/sIn .*/s"))


def test_numbers_move(open_page: Open, fleet: Serving) -> None:
    page = live(open_page(fleet, "#/overview"))
    row = fleet.fake.rows()[0]
    expect(page.locator("#denied .big strong")).to_have_text(f"{overview_of(fleet).denials:,}")
    fleet.do(lambda: [fleet.fake.deny(row.id, "new.example:1") for _ in range(3)])
    expect(page.locator("#denied .big strong")).to_have_text(f"{overview_of(fleet).denials:,}")
    expect(page.locator("#denials tbody tr").first).to_contain_text("new.example:1")
    link = page.locator("#denials tbody tr").first.get_by_role("link")
    link.click()
    expect(page.get_by_role("tab", name="Denials")).to_have_attribute("aria-selected", "true")
    expect(page.locator("h1")).to_have_text(row.name)


def one(serving: Serving, *, state: str = "running", how: str = "") -> AgentRow:
    return next(r for r in serving.fake.rows() if r.state == state and 3 < r.model_calls < 30 and (not how or r.how == how))


def test_one_agents_story(open_page: Open, fleet: Serving) -> None:
    row = one(fleet, state="done", how="code 1")
    story = story_of(fleet, row.id)
    page = live(open_page(fleet, f"#/agents/{row.id}"))
    expect(page.locator("h1")).to_have_text(row.name)
    expect(page.locator(".title .state")).to_have_text("code 1")
    expect(page.locator(".steps li")).to_have_count(len(story.timeline))
    kinds = page.locator(".kinds button")
    assert {text.split("\n")[0] for text in kinds.all_inner_texts()} >= {
        "Queued",
        "Dispatch",
        "First syscall",
        "Model call",
        "Exit",
    }
    bars = page.locator(".steps li", has_text="Model call").locator(".bar")
    assert min(bar.evaluate("(bar) => bar.offsetWidth") for bar in bars.all()) >= 3
    page.get_by_role("button", name="Model call").click()
    expect(page.locator(".steps li")).to_have_count(
        len(story.timeline) - len([s for s in story.timeline if s.kind == "model_call"])
    )
    page.get_by_role("button", name="Narrower").click()
    expect(page.locator(".timeline .tools .muted")).not_to_contain_text("0 s –")
    page.get_by_role("button", name="All", exact=True).click()
    expect(page.locator(".timeline .tools .muted")).to_contain_text("0 s –")

    page.get_by_role("tab", name="Model calls").click()
    expect(page.locator(".panel tbody tr")).to_have_count(len(story.model_calls))
    first = story.model_calls[0]
    expect(page.locator(".panel tbody")).to_contain_text(first.model)
    expect(page.locator(".panel tbody")).to_contain_text(f"{first.input_tokens:,}" if first.input_tokens else "rate limited")
    page.get_by_role("tab", name="Network").click()
    expect(page.locator(".panel tbody tr")).to_have_count(len(story.destinations) + len(story.names))
    page.get_by_role("tab", name="System calls").click()
    expect(page.locator(".panel tbody tr").first).to_contain_text(f"{story.syscalls[0].count:,}")
    page.get_by_role("columnheader", name="Call", exact=True).get_by_role("button").click()
    expect(page.locator(".panel tbody tr").first).to_contain_text(min(call.name for call in story.syscalls))
    page.get_by_role("tab", name="Files").click()
    expect(page.locator(".panel tbody")).to_contain_text("/etc/shadow")
    expect(page.locator(".panel tbody")).to_contain_text("ENOENT")
    page.get_by_role("tab", name="Exit and counters").click()
    expect(page.locator(".panel")).to_contain_text("ended with code 1")
    expect(page.locator(".panel .counters")).to_contain_text("212")


class Repeated(FakeObservatory):
    """An agent that is denied the same so many times: one step, of the first time."""

    times = 2

    async def agent(self, id: str) -> AgentStory | None:
        story = await super().agent(id)
        step = Step(at=1.0, kind="denied", text=f"x.example:443 ({self.times} times)", ok=False)
        return None if story is None else replace(story, timeline=[step])


def test_a_step_says_what_it_is_now(open_page: Open, serve: Serve) -> None:
    fake = Repeated(9, hostile_names=False)
    serving, row = serve(fake), next(row for row in fake.rows() if row.state == "running")
    page = live(open_page(serving, f"#/agents/{row.id}"))
    expect(page.locator(".steps li")).to_contain_text("(2 times)")

    def again() -> None:
        fake.times = 3
        fake.set(row.id, denials=3)

    serving.do(again)
    expect(page.locator(".steps li")).to_contain_text("(3 times)")


class Waiting(FakeObservatory):
    """Agents wait, until they have waited for `seconds`."""

    seconds: float | None = None

    async def agent(self, id: str) -> AgentStory | None:
        story = await super().agent(id)
        step = Step(at=0.0, kind="queued", seconds=self.seconds)
        return None if story is None else replace(story, timeline=[step])


def test_a_wait_that_ends_has_a_bar_as_long_as_it_was(open_page: Open, serve: Serve) -> None:
    fake = Waiting(9, hostile_names=False)
    serving, row = serve(fake), next(row for row in fake.rows() if row.state == "running")
    page = live(open_page(serving, f"#/agents/{row.id}"))
    bar = page.locator(".steps .bar")
    expect(bar).to_have_class(re.compile("moment"))

    def begin() -> None:
        fake.seconds = 3600.0
        fake.set(row.id, denials=3)

    serving.do(begin)
    expect(page.locator(".steps .taken")).to_have_text("1 h 00 m")
    assert bar.evaluate("(bar) => getComputedStyle(bar).transform") == "none"


def test_a_link_leads_to_a_tab_and_an_agent_that_is_gone_is_said(open_page: Open, fleet: Serving) -> None:
    row = one(fleet)
    page = live(open_page(fleet, f"#/agents/{row.id}/models"))
    expect(page.get_by_role("tab", name="Model calls")).to_have_attribute("aria-selected", "true")
    page.get_by_role("button", name="Next agent").click()
    expect(page.locator("h1")).not_to_have_text(row.name)
    expect(page.get_by_role("tab", name="Model calls")).to_have_attribute("aria-selected", "true")
    missing = open_page(fleet, "#/agents/nobody", errors="404")
    expect(missing.locator(".agent .empty").first).to_contain_text("The pool knows no such agent")
    other = open_page(fleet, "#/no-such-view")
    expect(other).to_have_url(re.compile("#/overview$"))


def test_output_is_followed_until_one_looks_back(open_page: Open, fleet: Serving) -> None:
    row = next(r for r in fleet.fake.rows() if r.state == "running" and r.model_calls > 60)
    page = live(open_page(fleet, f"#/agents/{row.id}"))
    text = page.get_by_role("log")
    expect(text).to_contain_text(f"step {row.requests + 2}:")
    at_end = "(text) => text.scrollHeight - text.clientHeight - text.scrollTop < 30"
    assert text.evaluate(at_end)
    fleet.do(lambda: fleet.fake.set(row.id, requests=row.requests + 9))
    expect(text).to_contain_text(f"step {row.requests + 11}:")
    assert text.evaluate(at_end)
    text.evaluate("(text) => { text.scrollTop = 0; }")
    expect(page.get_by_role("button", name="Follow")).to_be_visible()
    fleet.do(lambda: fleet.fake.set(row.id, requests=row.requests + 19))
    expect(text).to_contain_text(f"step {row.requests + 21}:")
    assert text.evaluate("(text) => text.scrollTop") == 0
    page.get_by_role("button", name="Follow").click()
    assert text.evaluate(at_end)


def test_an_agent_is_seen_to_end(open_page: Open, fleet: Serving) -> None:
    row = one(fleet)
    page = live(open_page(fleet, f"#/agents/{row.id}/exit"))
    expect(page.locator(".panel")).to_contain_text("not yet")

    def end() -> None:
        fleet.fake.step()
        fleet.fake.set(row.id, state="done", how="signal 11", ended=fleet.fake.time)

    fleet.do(end)
    expect(page.locator(".title .state")).to_have_text("signal 11")
    expect(page.locator(".panel")).to_contain_text("ended with signal 11")
    expect(page.locator(".steps li").last).to_contain_text("Exit")


def test_what_is_loaded(open_page: Open, fleet: Serving) -> None:
    page = live(open_page(fleet, "#/loaded"))
    expect(page.locator(".plugins > li")).to_have_count(5)
    expect(page.locator(".plugins > li").first).to_contain_text("policy")
    expect(page.locator(".loaded")).to_contain_text("/etc/agentfw/agentfw.toml")
    expect(page.locator(".loaded")).to_contain_text("deny everything but")
    page.locator(".plugins summary").first.click()
    expect(page.locator(".plugins details pre").first).to_contain_text("*.anthropic.com:443")


class Untold(FakeObservatory):
    """No plugin says its rules in words; `first`: of its plugins those from there on are loaded."""

    first = 0

    async def loaded(self) -> Loaded:
        loaded = await super().loaded()
        return replace(loaded, policy="", plugins=loaded.plugins[self.first :])


def test_a_policy_that_is_not_told_is_not_called_none(open_page: Open, serve: Serve) -> None:
    for first, said in ((0, "is decided by policy"), (1, "No plugin restricts")):
        fake = Untold(1, hostile_names=False)
        fake.first = first
        page = live(open_page(serve(fake), "#/loaded"))
        expect(page.locator(".loaded .card").first).to_contain_text(said)


class Strange(FakeObservatory):
    """A plugin counts what is no number, and somebody whom nobody knows is denied something."""

    async def loaded(self) -> Loaded:
        plugin = LoadedPlugin(name="strange", counters={"share": math.nan, "most": math.inf, "hits": 5.0})
        return replace(await super().loaded(), plugins=[plugin])

    async def overview(self) -> Overview:
        denial = Denial(time=self.time, agent="nobody-we-know", destination="x.example:443", rule="r", plugin="policy")
        return replace(await super().overview(), recent_denials=[denial])


def test_what_is_no_number_hides_nothing(open_page: Open, serve: Serve) -> None:
    page = live(open_page(serve(Strange(1, hostile_names=False)), "#/loaded"))
    expect(page.locator(".plugins > li")).to_contain_text("share")
    expect(page.locator(".plugins .counters")).to_contain_text("5")


def test_a_denial_of_nobody_leads_nowhere(open_page: Open, serve: Serve) -> None:
    page = live(open_page(serve(Strange(1, hostile_names=False)), "#/overview"))
    expect(page.locator("#denials tbody tr")).to_contain_text("nobody-we-know")
    expect(page.locator("#denials tbody a")).to_have_count(0)


def test_a_denial_that_happens_again_keeps_its_line(open_page: Open, serve: Serve) -> None:
    """Who marks a part of it, or points at it, does not lose it each second."""
    fake = FakeObservatory(3, hostile_names=False)
    asked = fake.overview

    async def again() -> Overview:
        now = await asked()
        again = [replace(now.recent_denials[0], time=now.time - 60 + times, count=times)] if times else []
        return replace(now, recent_denials=[*again, Denial(time=now.time - 90, destination="other.example:1")])

    fake.deny(fake.rows()[0].id, "again.example:1")
    times = 2
    fake.overview = again  # type: ignore[method-assign]
    page = live(open_page(serve(fake, period=0.1), "#/overview"))
    row = page.locator("#denials tbody tr").first
    expect(row).to_contain_text("again.example:1")
    expect(row.locator("td").last).to_have_text("2")
    row.evaluate("(row) => { row.mine = row.firstChild.title; }")
    times = 30
    expect(row.locator("td").last).to_have_text("30")
    title = row.evaluate("(row) => [row.mine, row.firstChild.title]")
    assert title[0] and title[0] != title[1]


class Unmeasured(FakeObservatory):
    """As `agentfw run --dashboard`: nobody has measured its memory, no VM was warmed ahead."""

    async def overview(self) -> Overview:
        now = await super().overview()
        history = [replace(sample, memory=0) for sample in now.history]
        return replace(now, memory=0, agents_per_gb=None, dns_hit_rate=None, dns_hits=0, warmup=[], history=history)


def test_what_was_not_measured_is_not_called_zero(open_page: Open, serve: Serve) -> None:
    page = live(open_page(serve(Unmeasured(9, hostile_names=False)), "#/overview"))
    expect(page.locator("#density .big strong")).to_have_text("–")
    expect(page.locator("#density .facts")).not_to_contain_text("0 B")
    expect(page.locator("#dns .facts div", has_text="Misses")).to_contain_text("–")
    expect(page.locator("#warmup .big")).to_contain_text("no VM was warmed yet")
    expect(page.locator(".uplot canvas")).to_have_count(12)


def test_the_last_bar_has_no_end(open_page: Open, serve: Serve) -> None:
    class Slow(FakeObservatory):
        async def overview(self) -> Overview:
            return replace(await super().overview(), warmup=[0] * 12 + [3] + [0] * 36 + [7])

    page = live(open_page(serve(Slow(9, hostile_names=False)), "#/overview"))
    expect(page.locator("#warmup .big")).to_have_text("over 4.9 s" + "median")
    expect(page.locator("#warmup .facts dd")).to_have_text(["10", "over 4.9 s", "over 4.9 s"])


def test_questions_that_were_refused_are_no_misses(open_page: Open, serve: Serve) -> None:
    class Refusing(FakeObservatory):
        async def overview(self) -> Overview:
            return replace(await super().overview(), dns_questions=4711, dns_hits=0, dns_misses=3, dns_hit_rate=0.0)

    page = live(open_page(serve(Refusing(9, hostile_names=False)), "#/overview"))
    expect(page.locator("#dns .facts div", has_text="Misses").locator("dd")).to_have_text("3")


HISTORY = "async () => (await import('/js/store.js')).store.overview.history.map((each) => each.time)"


def test_the_history_goes_on_from_what_is_known(open_page: Open, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events have only what is new of it; also when the pool's clock is set back."""

    class Moving(FakeObservatory):
        async def overview(self) -> Overview:
            self.step(1.0)
            return await super().overview()

    monkeypatch.setattr(shared, "FRESH", 0.0)
    fake = Moving(3, hostile_names=False, now=1_700_000_000.0)
    serving = serve(fake, period=0.02)
    page = live(open_page(serving, "#/overview"))
    for _ in range(2):
        end = serving.do(lambda: fake.time) + 12
        while not end <= (times := page.evaluate(HISTORY))[-1] < end + 30:
            page.wait_for_timeout(100)
        assert len(times) > 200 and times == sorted(set(times))
        assert {after - before for before, after in pairwise(times[-10:])} == {1.0}
        serving.do(lambda: setattr(fake, "time", fake.time - 60))


def test_a_pool_without_agents(open_page: Open, serve: Serve) -> None:
    empty = serve(FakeObservatory(0, hostile_names=False))
    page = live(open_page(empty, "#/agents"))
    expect(page.locator(".agents > .empty")).to_contain_text("No agents yet")
    page.goto(empty.url + "#/overview")
    expect(page.locator("#denials .empty")).to_have_text("Nothing was denied")
    expect(page.locator("#dns .big strong")).to_have_text("–")


def test_pictures(open_page: Open, fleet: Serving, villains: Serving, tmp_path: Path) -> None:
    """Of each view can be taken: for people, who look at them."""
    for serving, hash in ((fleet, "#/overview"), (villains, "#/agents")):
        page = live(open_page(serving, hash))
        page.screenshot(path=tmp_path / "page.png", full_page=True)
        assert (tmp_path / "page.png").stat().st_size > 20_000
