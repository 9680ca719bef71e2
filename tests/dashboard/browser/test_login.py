"""Getting in, with what a real browser says of itself: by a link, by the form, from another site's page; and out again."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from ...serving import Quiet, serving
from ..fake import FakeObservatory
from ..threaded import Serving
from .conftest import Open, Serve, live

TRY = """async ([url, mode]) => {
  try { return (await (await fetch(url, {credentials: "include", mode})).text()) } catch { return "refused" }
}"""
REFUSED = r"status of 40[13]"


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """Another site: a page with a link whose target is what its address says."""

    class Answer(Quiet):
        def do_GET(self) -> None:
            body = f'<!doctype html><a id="link" href="{self.path[1:]}">there</a>'.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Answer) as port:
        yield f"http://localhost:{port}/"


def is_in(page: Page) -> None:
    live(page)
    assert page.evaluate("document.cookie") == "", "no script reads it"


def test_a_link_lets_in_once(open_page: Open, fleet: Serving) -> None:
    link = fleet.login()
    page = open_page(fleet, None, log_in=False, errors=REFUSED)
    page.goto(link)
    is_in(page)
    assert page.url.startswith(fleet.url) and "code" not in page.url
    page.reload()
    is_in(page)
    other = open_page(fleet, None, log_in=False, errors=REFUSED)
    other.goto(link)
    expect(other.get_by_role("alert")).to_contain_text("not good")


def test_the_form(open_page: Open, fleet: Serving) -> None:
    page = open_page(fleet, "", log_in=False, errors=REFUSED)
    page.get_by_label("Token or code").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not good")
    page.get_by_label("Token or code").fill(fleet.access.token)
    page.keyboard.press("Enter")
    is_in(page)
    expect(page).to_have_title(re.compile("Overview"))


def test_out_again(open_page: Open, serve: Serve) -> None:
    serving = serve(FakeObservatory(5))
    page = open_page(serving, "", errors=REFUSED)
    is_in(page)
    other = page.context.new_page()  # the same session
    other.goto(serving.url)
    live(other)
    before = page.context.cookies()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    expect(other.locator("#connection")).to_have_attribute("data-kind", "logged-out")
    other.close()
    page.context.add_cookies(before)  # type: ignore[arg-type]  # what is returned is what is taken
    page.goto(serving.url)
    expect(page.get_by_label("Token or code")).to_be_visible()
    assert serving.access.sessions == 0


def test_by_a_link_of_another_sites_page(open_page: Open, fleet: Serving, elsewhere: str) -> None:
    """The first time with a code; later with the cookie, which the browser keeps back from that request, and sends with ours."""
    page = open_page(fleet, None, log_in=False, errors=REFUSED)
    for target in (fleet.login(), fleet.url):
        reached = page.context.new_page()
        reached.goto(elsewhere + target)
        reached.click("#link")
        is_in(reached)
        reached.close()


def test_nothing_for_another_sites_scripts(open_page: Open, fleet: Serving, elsewhere: str) -> None:
    page = open_page(fleet, "", errors=REFUSED)
    is_in(page)
    other = page.context.new_page()  # the same browser, with the cookie
    other.goto(elsewhere.replace("localhost", "127.0.0.1") + "x")  # the same site as ours, another port
    for target in ("data/overview", "events", "metrics"):
        for mode in (
            "cors",
            "no-cors",
        ):  # of the latter's answer a page sees nothing anyhow, and that goes for its own process too
            assert other.evaluate(TRY, [fleet.url + target, mode]) == "refused", (target, mode)
    other.close()
