"""The table of agents at 1,500 rows: only those in sight are in the document; filters, orders, and changes in place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from agentfw.views import AgentRow
from playwright.sync_api import Page, expect

from ..fake import FakeObservatory
from ..threaded import Serving
from .conftest import Open, Serve, live

GRID = "[role=grid]"
ROWS = f"{GRID} .grid-body [role=row]"
READ = """() => [...document.querySelectorAll(".grid-body [role=row]")].sort((a, b) => a.ariaRowIndex - b.ariaRowIndex)
    .map((row) => [Number(row.ariaRowIndex), row.agentId])"""


ROW = '[...document.querySelectorAll(".grid-body [role=row]")].find((row) => row.agentId === id)'


def shown(page: Page) -> list[str]:
    """Ids of the rows in the document, from above."""
    return [id for _, id in page.evaluate(READ)]


def counted(page: Page, rows: int) -> None:
    expect(page.locator(GRID)).to_have_attribute("aria-rowcount", str(rows + 1))


def in_order(rows: list[AgentRow], key: Callable[[AgentRow], Any], *, down: bool) -> list[str]:
    """What has no value is last; the same are by submission, newest first."""
    newest = sorted(rows, key=lambda row: -row.submitted)
    have = sorted((row for row in newest if key(row) is not None), key=key, reverse=down)
    return [row.id for row in have] + [row.id for row in newest if key(row) is None]


SORTS: dict[str, Callable[[AgentRow], Any]] = {
    "Calls": lambda row: row.model_calls,
    "Tokens in": lambda row: row.input_tokens,
    "Cost": lambda row: row.cost,
    "Denials": lambda row: row.denials,
    "CPU": lambda row: row.cpu_seconds,
    "Memory": lambda row: row.memory,
    "In": lambda row: row.bytes_down,
    "Agent": lambda row: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", row.name)],
    "Tenant": lambda row: row.tenant,
    "State": lambda row: row.state,
}


def test_no_number_is_cut(open_page: Open, serve: Serve) -> None:
    """Half of a number is another number: "10 m 0..." has run for how long?"""
    fake = FakeObservatory(4, hostile_names=False)
    for row, seconds in zip(fake.rows(), (59 * 60 + 58.5, 23 * 3600 + 59 * 60, 99 * 86400 + 23 * 3600, 0.000_888), strict=True):
        fake.set(row.id, state="done", started=fake.time - seconds, ended=fake.time, cpu_seconds=seconds, memory=888_888_888,
                    bytes_down=888_888_888, cost=8_888.88, denials=888_888, model_calls=88_888, input_tokens=888_888_888,
                    output_tokens=888_888_888)  # fmt: skip
    page = live(open_page(serve(fake), "#/agents"))
    counted(page, 4)
    # Not by scrollWidth: what stands to the right flows over to the left, where nothing scrolls.
    found = page.evaluate("""() => [...document.querySelectorAll(".grid-body [role=gridcell].numeric")].map((cell) => {
        const style = getComputedStyle(cell), text = document.createRange();
        text.selectNodeContents(cell);
        const room = cell.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
        return [cell.textContent, text.getBoundingClientRect().width, room];
    })""")
    assert len(found) >= 4 * 9 and not [each for each in found if each[1] > each[2]]


def test_few_rows_are_in_the_document_and_every_column_sorts(open_page: Open, fleet: Serving) -> None:
    page = live(open_page(fleet, "#/agents"))
    counted(page, 1500)
    assert page.locator(ROWS).count() < 60
    rows = fleet.fake.rows()
    assert shown(page) == in_order(rows, lambda row: row.submitted, down=True)[: len(shown(page))]
    for label, key in SORTS.items():
        header = page.get_by_role("columnheader", name=label, exact=True)
        numeric = label not in ("Agent", "Tenant", "State")
        for down in (numeric, not numeric):
            header.get_by_role("button").click()
            expect(header).to_have_attribute("aria-sort", "descending" if down else "ascending")
            have = shown(page)
            assert have == in_order(rows, key, down=down)[: len(have)], (label, down)
    page.locator(GRID).evaluate("(grid) => { grid.scrollTop = grid.scrollHeight; }")
    last = in_order(rows, SORTS["State"], down=True)[-1]
    page.wait_for_function(f"() => ({READ})().at(-1)[1] === {last!r}")
    assert page.locator(ROWS).count() < 60


FILTERS: dict[str, Callable[[AgentRow], bool]] = {
    "triage": lambda row: "triage" in f"{row.name} {row.labels}",
    "state:running": lambda row: row.state == "running",
    "denials>0": lambda row: row.denials > 0,
    "tenant:evals denials>=1": lambda row: row.tenant == "evals" and row.denials >= 1,
    "-tenant:batch -state:done": lambda row: row.tenant != "batch" and row.state != "done",
    "label.run=7": lambda row: row.labels["run"] == "7",
    "label:task=browse": lambda row: row.labels["task"] == "browse",
    "memory>50MB": lambda row: row.memory > 50e6,
    "cpu<500ms": lambda row: row.cpu_seconds < 0.5,
    "calls!=0 calls<=3": lambda row: 0 < row.model_calls <= 3,
    "status:failed": lambda row: row.state == "done" and row.how != "code 0",
    'how:"signal 11"': lambda row: row.how == "signal 11",
    "tokens>1m": lambda row: row.input_tokens + row.output_tokens > 1e6,
    "worker=1": lambda row: row.worker == 1,
    "cost>0.5": lambda row: row.cost is not None and row.cost > 0.5,
}


def test_filters(open_page: Open, fleet: Serving) -> None:
    page = live(open_page(fleet, "#/agents"))
    rows = fleet.fake.rows()
    field = page.get_by_role("searchbox")
    for text, test in FILTERS.items():
        field.fill(text)
        found = [row for row in rows if test(row)]
        assert 0 < len(found) < 1500, text
        counted(page, len(found))
        expect(page.locator(".counted")).to_have_text(f"{len(found):,} of 1,500 agents")
        assert set(shown(page)) <= {row.id for row in found}, text
    field.fill("nobody-is-called-this")
    expect(page.locator(".agents > .empty")).to_have_text("No agent is like this")
    field.fill("colour>3")
    expect(page.locator("#filter-error")).to_have_text("There is no field “colour”")
    expect(field).to_have_attribute("aria-invalid", "true")
    field.fill("memory>much")
    expect(page.locator("#filter-error")).to_have_text("“much” is not a number")
    page.get_by_role("button", name=re.compile("^Denied")).click()
    counted(page, sum(row.denials > 0 for row in rows))
    # The address is a link to just this.
    other = live(open_page(fleet, page.url.removeprefix(fleet.url)))
    counted(other, sum(row.denials > 0 for row in rows))
    expect(other.get_by_role("searchbox")).to_have_value("denials>0")


def test_changes_come_in_place(open_page: Open, fleet: Serving) -> None:
    """The row, its node, what is selected and where one has scrolled to stay; values change."""
    page = live(open_page(fleet, "#/agents?sort=name"))
    grid = page.locator(GRID)
    grid.focus()
    grid.evaluate("(grid) => { grid.scrollTop = 9000; }")
    page.wait_for_function(f"() => ({READ})()[0][0] > 200")
    id = shown(page)[20]
    page.evaluate(
        f"(id) => {{ const row = {ROW}; row.mark = 1; getSelection().selectAllChildren(row.querySelector('.c-name')); }}", id
    )
    name = next(row.name for row in fleet.fake.rows() if row.id == id)

    def change() -> None:
        fleet.fake.step()
        fleet.fake.set(id, model_calls=7_654_321, denials=3)

    fleet.do(change)
    same = "row.mark === 1 && row.querySelector('.c-model_calls').textContent === '7.65M'"
    red = "row.querySelector('.c-denials').classList.contains('bad')"
    page.wait_for_function(f"(id) => {{ const row = {ROW}; return {same} && {red}; }}", arg=id)
    assert grid.evaluate("(grid) => grid.scrollTop") == 9000
    assert page.evaluate("String(getSelection())") == name
    added = fleet.do(lambda: fleet.fake.add("aaaa-first", tenant="new"))
    counted(page, 1501)
    fleet.do(lambda: fleet.fake.forget(added.id))
    counted(page, 1500)
    assert grid.evaluate("(grid) => grid.scrollTop") == 9000


def test_it_holds_still_while_paused(open_page: Open, fleet: Serving) -> None:
    page = live(open_page(fleet, "#/agents?filter=held"))
    expect(page.locator(".agents > .empty")).to_be_visible()
    page.keyboard.press("p")
    expect(page.locator("#connection")).to_have_text("Paused")
    rows = [fleet.do(lambda: fleet.fake.add("held"))]
    with page.expect_response("**/data/overview"):
        page.evaluate("fetch('data/overview')")
    page.wait_for_timeout(900)  # two frames of the server's
    expect(page.locator(".agents > .empty")).to_be_visible()
    page.keyboard.press("p")
    counted(page, 1)
    for row in rows:
        fleet.do(lambda row=row: fleet.fake.forget(row.id))


@pytest.mark.parametrize("width", [1280, 360])
def test_columns_are_chosen_and_kept(open_page: Open, fleet: Serving, width: int) -> None:
    page = live(open_page(fleet, "#/agents", width=width))
    if width == 360:
        expect(page.get_by_role("button", name="Columns")).to_be_hidden()
        page.get_by_label("Sort by").select_option("Denials")
        have = shown(page)
        assert have == in_order(fleet.fake.rows(), lambda row: row.denials, down=True)[: len(have)]
        page.get_by_role("button", name="Descending").click()
        have = shown(page)
        assert have == in_order(fleet.fake.rows(), lambda row: row.denials, down=False)[: len(have)]
        return
    expect(page.get_by_role("columnheader", name="Worker")).to_have_count(0)
    page.get_by_role("button", name="Columns").click()
    page.get_by_label("Worker", exact=True).check()
    page.get_by_label("Tenant", exact=True).uncheck()
    page.keyboard.press("Escape")
    page.reload()
    expect(page.get_by_role("columnheader", name="Worker")).to_have_count(1)
    expect(page.get_by_role("columnheader", name="Tenant")).to_have_count(0)
