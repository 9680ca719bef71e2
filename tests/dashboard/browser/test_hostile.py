"""Names, hosts, files, models and output that would do something if they were believed are text, and short."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from .. import hostile
from ..fake import FakeObservatory
from ..threaded import Serving
from .conftest import Open, Serve, live

ELEMENTS = "script, img, iframe, form, object, embed, link, style, base, meta, [onerror], [onload], [srcdoc]"
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e01ef]"
)
"""Controls, directions and what has no width: in no text of the page."""


def check(page: Page, elements: int) -> None:
    """Nothing has become markup, no text hides or turns anything, and the page is no wider than it is."""
    assert page.locator(ELEMENTS).count() == elements
    assert page.evaluate(f"'{hostile.MARK}' in window") is False
    text = page.locator("html").evaluate("(html) => html.textContent")
    found = UNSEEN.search(text)
    assert found is None, ascii(text[max(0, found.start() - 50) : found.end() + 50])
    for title in page.locator("[title], [aria-label]").evaluate_all("(all) => all.map((each) => each.title + each.ariaLabel)"):
        assert UNSEEN.search(title) is None and len(title) < 700, ascii(title)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_names_are_text_in_every_view(open_page: Open, villains: Serving) -> None:
    page = live(open_page(villains, "#/overview"))
    elements = page.locator(ELEMENTS).count()
    expect(page.locator("#denials tbody tr").first).to_be_visible()
    shown = page.locator("#denials tbody").inner_text()
    for name in hostile.MARKUP:
        assert name[:60] in shown, name
    assert "‹202E›gnp.txt.exe‹202C›" in shown and "‹ESC›[2J" in shown and "(blank)" in shown
    check(page, elements)
    for hash in ("#/loaded", "#/agents"):
        page.goto(villains.url + hash)
        expect(page.locator(".view")).to_be_visible()
        check(page, elements)
    expect(page.locator("[role=grid]")).to_contain_text("<img src=x onerror=")
    page.get_by_role("searchbox").fill("</script><script>")
    expect(page.locator("[role=grid] .c-name").first).to_have_text("</script><script>window.pwned=1</script>")
    page.get_by_role("searchbox").fill("__proto__:x constructor")
    check(page, elements)


def test_one_agent_with_one_of_the_names(open_page: Open, villains: Serving) -> None:
    page = live(open_page(villains, "#/overview", width=360))
    elements = page.locator(ELEMENTS).count()
    rows = [row for row in villains.fake.rows() if row.labels.get("hostile")]
    assert len(rows) == len(hostile.NAMES) + 1
    tabs = ["models", "network", "denials", "files", "exit", "output"]
    for at, row in enumerate(rows[::3]):  # all of them are in the other views
        page.evaluate("(hash) => { location.hash = hash; }", f"#/agents/{row.id}/{tabs[at % len(tabs)]}")
        page.wait_for_function("(id) => document.querySelector('.meta')?.textContent.includes(id)", arg=row.id)
        expect(page.locator(".story")).to_be_visible()
        if row.name in hostile.MARKUP:
            assert page.locator("h1").inner_text() == row.name
        assert 0 < len(page.locator("h1").inner_text()) < 400
        check(page, elements)


def test_output_is_text(open_page: Open, villains: Serving) -> None:
    row = next(row for row in villains.fake.rows() if row.labels.get("hostile"))
    page = live(open_page(villains, f"#/agents/{row.id}"))
    text = page.get_by_role("log")
    expect(text).to_contain_text("green and coloured text")
    expect(text).to_contain_text("‹ESC›[2J‹ESC›[H‹ESC›]0;pwned‹BEL›")
    expect(text).to_contain_text("<script>window.pwned=1</script><img src=x onerror=window.pwned=1>")
    expect(text).to_contain_text("‹202E›reversed‹202C›")
    page.get_by_label("Escapes").check()
    expect(text).to_contain_text("‹ESC›[1;32mgreen‹ESC›[0m")
    assert text.locator("*").evaluate_all("(all) => all.every((each) => each.tagName === 'SPAN')")


def test_a_name_of_a_megabyte_is_cut(open_page: Open, serve: Serve) -> None:
    fake = FakeObservatory(3, hostile_names=False)
    row = fake.add(hostile.LONG, tenant=hostile.LONG, labels={hostile.LONG: hostile.LONG}, last=hostile.LONG)
    serving = serve(fake)
    page = live(open_page(serving, "#/agents?filter=AAAA"))
    cell = page.locator("[role=grid] .c-name").first
    expect(cell).to_contain_text("AAAA")
    assert cell.inner_text().endswith("… (+999,884)") and len(cell.inner_text()) < 150
    assert len(page.locator("html").evaluate("(html) => html.outerHTML")) < 200_000
    page.goto(f"{serving.url}#/agents/{row.id}")
    expect(page.locator("h1")).to_contain_text("… (+999,884)")
    expect(page.locator(".story")).to_be_visible()
    assert len(page.locator("html").evaluate("(html) => html.outerHTML")) < 400_000
    check(page, page.locator(ELEMENTS).count())
