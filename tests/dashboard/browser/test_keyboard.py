"""The whole page without a pointer."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from ..threaded import Serving
from .conftest import Open, live

FOCUSED = """() => { const at = document.activeElement; const style = getComputedStyle(at);
    return { name: (at.ariaLabel || at.textContent || at.id).trim().slice(0, 40), tag: at.tagName,
             seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
             inside: at.getBoundingClientRect().width > 0 && at !== document.body }; }"""


def tab_through(page: Page, most: int) -> list[str]:
    """Names of what Tab comes to, each of which must show that it has the focus."""
    names = []
    for _ in range(most):
        page.keyboard.press("Tab")
        at = page.evaluate(FOCUSED)
        if at["tag"] == "BODY":
            break
        assert at["seen"] and at["inside"], at
        names.append(at["name"])
    return names


def test_tab_comes_to_everything_and_is_seen(open_page: Open, fleet: Serving) -> None:
    page = live(open_page(fleet, "#/agents"))
    expect(page.locator("[role=grid]")).to_be_visible()
    page.evaluate("document.activeElement.blur()")
    names = tab_through(page, 30)
    wanted = [
        "Skip to content",
        "agentfw, overview",
        "Overview",
        "Agents",
        "Loaded",
        "Theme",
        "Keyboard shortcuts",
        "Filter",
        "Help",
    ]
    wanted += ["Columns", "Pause", "All", "Running", "Agents", "Agent"]
    places = iter(names)
    assert all(any(name.startswith(want) for name in places) for want in wanted), names
    row = next(row for row in fleet.fake.rows() if row.model_calls > 5)
    page.goto(f"{fleet.url}#/agents/{row.id}")
    expect(page.locator(".story")).to_be_visible()
    names = tab_through(page, 40)
    assert {"Earlier", "Later", "Wider", "Narrower", "All", "Steps", "Output"} <= set(names), names


def test_from_the_overview_to_an_agent_and_back(open_page: Open, fleet: Serving) -> None:
    page = live(open_page(fleet, "#/overview"))
    press = page.keyboard.press
    press("g")
    press("a")
    expect(page).to_have_url(re.compile("#/agents$"))
    press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("state:running")
    press("ArrowDown")
    grid = page.get_by_role("grid")
    expect(grid).to_be_focused()
    press("ArrowDown")
    press("PageDown")
    press("ArrowUp")
    active = page.locator("[role=row][aria-selected=true]")
    expect(active).to_have_count(1)
    place = int(active.get_attribute("aria-rowindex") or 0)
    assert place > 8
    assert grid.get_attribute("aria-activedescendant") == active.get_attribute("id")
    press("End")
    expect(active).to_have_attribute("aria-rowindex", grid.get_attribute("aria-rowcount") or "")
    press("Home")
    expect(active).to_have_attribute("aria-rowindex", "2")
    press("j")
    press("j")
    press("k")
    expect(active).to_have_attribute("aria-rowindex", "3")
    chosen = active.evaluate("(row) => row.agentId")
    press("Enter")
    expect(page).to_have_url(re.compile(f"#/agents/{chosen}$"))
    expect(page.locator(".story")).to_be_visible()
    press("2")
    tab = page.get_by_role("tab", name="Model calls")
    expect(tab).to_be_focused()
    press("ArrowRight")
    expect(page.get_by_role("tab", name="Network")).to_have_attribute("aria-selected", "true")
    press("Home")
    expect(page.get_by_role("tab", name="Output")).to_be_focused()
    press("]")
    expect(page).not_to_have_url(re.compile(chosen))
    press("[")
    expect(page).to_have_url(re.compile(chosen))
    press("Escape")
    expect(page.get_by_role("searchbox")).to_have_value("state:running")
    expect(page.get_by_role("grid")).to_be_focused()
    expect(active).to_have_attribute("aria-rowindex", "3")
    press("ArrowUp")
    press("ArrowUp")
    expect(page.get_by_role("columnheader", name="Agent").get_by_role("button")).to_be_focused()
    press("ArrowRight")
    press("Enter")
    expect(page.get_by_role("columnheader", name="State")).to_have_attribute("aria-sort", "ascending")
    press("ArrowDown")
    expect(page.get_by_role("grid")).to_be_focused()


def test_help_lists_what_there_is_and_can_turn_it_off(open_page: Open, fleet: Serving) -> None:
    page = live(open_page(fleet, "#/overview"))
    page.get_by_role("button", name="Keyboard shortcuts").focus()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    for what in ("Overview", "Agents", "Filter", "Next", "Back to the table", "Light, dark"):
        expect(dialog).to_contain_text(what)
    page.keyboard.press("g")
    page.keyboard.press("l")
    expect(page).to_have_url(re.compile("#/overview$"))
    dialog.get_by_label("Single-key shortcuts").focus()
    page.keyboard.press("Space")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Keyboard shortcuts")).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("l")
    expect(page).to_have_url(re.compile("#/overview$"))
    page.keyboard.press("?")
    dialog.get_by_label("Single-key shortcuts").check()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("l")
    expect(page).to_have_url(re.compile("#/loaded$"))


def test_the_timeline_is_moved_by_keys(open_page: Open, fleet: Serving) -> None:
    row = next(row for row in fleet.fake.rows() if row.model_calls > 5)
    page = live(open_page(fleet, f"#/agents/{row.id}"))
    said = page.locator(".timeline .tools .muted")
    expect(said).to_contain_text("0 s –")
    whole = said.inner_text()
    page.get_by_role("group", name="Steps", exact=True).focus()
    page.keyboard.press("+")
    page.keyboard.press("+")
    expect(said).not_to_have_text(whole)
    near = said.inner_text()
    page.keyboard.press("ArrowLeft")
    expect(said).not_to_have_text(near)
    page.keyboard.press("0")
    expect(said).to_contain_text("0 s –")
