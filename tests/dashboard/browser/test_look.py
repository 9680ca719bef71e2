"""Light and dark, wide and narrow: what can be read, by axe-core's rules and by measure."""

from __future__ import annotations

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page, expect

from ..fake import FakeObservatory
from ..threaded import Serving
from .conftest import Open, Serve, live

RULES = """(only) => axe.run(document, { resultTypes: ["violations"], runOnly: only }).then(({ violations }) =>
    violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 200)} ${node.failureSummary}`)))"""
ALL = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]
COLOURS = ["color-contrast", "link-in-text-block"]


def views(serving: Serving) -> list[str]:
    row = min((row for row in serving.fake.rows() if row.denials and row.model_calls > 3), key=lambda row: row.model_calls)
    tabs = ["", "/models", "/network", "/denials", "/syscalls", "/files", "/exit"]
    return ["#/overview", "#/agents", "#/loaded", *(f"#/agents/{row.id}{tab}" for tab in tabs)]


def show(page: Page, hash: str) -> None:
    page.evaluate("(hash) => { location.hash = hash; }", hash)
    expect(page.locator(".view")).to_be_visible()
    if hash.count("/") > 1:
        expect(page.locator(".story")).to_be_visible()
    if hash == "#/loaded":
        expect(page.locator(".plugins")).to_be_visible()


@pytest.mark.parametrize(("theme", "rules"), [("light", ALL), ("dark", COLOURS)], ids=["light", "dark"])
def test_axe_finds_nothing(open_page: Open, serve: Serve, theme: str, rules: list[str]) -> None:
    """All rules in one theme, those of colours in the other."""
    few = serve(FakeObservatory(30, hostile_names=False))
    page = live(open_page(few, "#/overview", color_scheme=theme, reduced_motion="reduce"))
    page.evaluate(AXE_SCRIPT)
    shown = ("overview", "agents", "loaded", "/models", "/exit") if rules == ALL else ("overview", "agents", "/denials")
    for hash in [each for each in views(few) if each.endswith(shown)]:
        show(page, hash)
        assert page.evaluate(RULES, rules) == [], hash
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.evaluate(RULES, rules) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_is_old_switched_off_or_out_of_sight_can_be_read(open_page: Open, serve: Serve, theme: str) -> None:
    few = serve(FakeObservatory(30, hostile_names=False), period=600)
    page = open_page(few, None, color_scheme=theme)
    page.clock.install()
    page.goto(few.url)
    live(page)
    page.evaluate(AXE_SCRIPT)
    page.clock.fast_forward(9000)
    expect(page.locator("body.old")).to_be_visible()
    assert page.evaluate(RULES, COLOURS) == []
    show(page, views(few)[3])
    page.locator(".kinds .chip").first.click()
    for _ in range(3):
        page.get_by_role("button", name="Narrower").click()
    expect(page.locator(".step.outside").first).to_be_attached()
    assert page.evaluate(RULES, COLOURS) == []


def test_nothing_is_wider_than_a_phone(open_page: Open, fleet: Serving, villains: Serving) -> None:
    for serving in (fleet, villains):
        page = live(open_page(serving, "#/overview", width=360, height=740, has_touch=True))
        for hash in views(serving):
            show(page, hash)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, hash
            small = page.locator("button:visible, a.back:visible, .tabs a:visible").evaluate_all(
                "(all) => all.filter((each) => each.getBoundingClientRect().height < 17).map((each) => each.outerHTML)"
            )
            assert small == []


def background(page: Page) -> list[int]:
    text: str = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    return [int(part) for part in text.removeprefix("rgb(").removesuffix(")").split(",")]


def test_the_theme_is_the_systems_or_as_chosen(open_page: Open, fleet: Serving) -> None:
    page = live(open_page(fleet, "#/overview", color_scheme="dark"))
    assert max(background(page)) < 40
    series = "getComputedStyle(document.documentElement).getPropertyValue('--blue')"
    dark = page.evaluate(series)
    page.keyboard.press("t")
    assert min(background(page)) > 230 and page.evaluate(series) != dark
    page.reload()
    live(page)
    assert min(background(page)) > 230
    page.get_by_role("button", name="Theme: light").click()
    page.emulate_media(color_scheme="light")
    assert max(background(page)) < 40
    page.get_by_role("button", name="Theme: dark").click()
    assert min(background(page)) > 230
    expect(page.get_by_role("button", name="Theme: as the system")).to_be_visible()


def test_nothing_moves_but_what_changes(open_page: Open, fleet: Serving) -> None:
    """For who wants less motion, and since an animation that never ends takes a quarter of a core."""
    page = live(open_page(fleet, "#/overview"))
    for hash in views(fleet):
        show(page, hash)
        assert page.evaluate("document.getAnimations().length") == 0
