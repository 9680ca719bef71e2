"""What the page says and keeps while the server is away, and that it comes back by itself."""

from __future__ import annotations

import re

from agentfw_dashboard.web.access import Access
from playwright.sync_api import expect

from ..fake import FakeObservatory
from ..threaded import Serving
from .conftest import Open, Serve, live

GONE = "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET|ERR_NETWORK"


def pool() -> FakeObservatory:
    return FakeObservatory(30, hostile_names=False)


def test_it_comes_back_after_a_restart(open_page: Open) -> None:
    fake = pool()
    with Serving(fake) as serving:
        page = live(open_page(serving, "#/agents", errors=GONE))
        expect(page.get_by_role("grid")).to_have_attribute("aria-rowcount", "31")
        page.get_by_role("searchbox").fill("state:running")
        # It does not try by itself, or the button would be gone when it is clicked.
        page.evaluate("() => { globalThis.later = setTimeout; globalThis.setTimeout = () => 0; }")
    expect(page.locator("#connection")).to_have_attribute("data-kind", "reconnecting")
    expect(page.get_by_role("alert")).to_contain_text(re.compile("No connection to the pool.*This is \\d+ s old"))
    running = sum(row.state == "running" for row in fake.rows())
    expect(page.get_by_role("grid")).to_have_attribute("aria-rowcount", str(running + 1))
    expect(page.get_by_role("alert")).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), "the table makes room for the sentence"
    fake.add("came-meanwhile", state="running")
    with Serving(fake, access=serving.access, port=serving.port):
        page.get_by_role("button", name="Try now").click()
        live(page)
        expect(page.get_by_role("alert")).to_be_hidden()
        expect(page.get_by_role("searchbox")).to_have_value("state:running")
        expect(page.get_by_role("grid")).to_have_attribute("aria-rowcount", str(running + 2))
        expect(page.get_by_role("grid")).to_contain_text("came-meanwhile")
        page.evaluate("() => { globalThis.setTimeout = globalThis.later; }")
    # Another time without anybody's asking, and another pool: all that was known is replaced.
    expect(page.locator("#connection")).to_have_attribute("data-kind", "reconnecting")
    with Serving(FakeObservatory(3, hostile_names=False), access=serving.access, port=serving.port):
        live(page)
        expect(page.locator("#nav-agents")).to_have_text("3")
        page.goto("about:blank")


def test_whoever_is_logged_out_is_told_so(open_page: Open) -> None:
    with Serving(pool()) as serving:
        page = live(open_page(serving, "#/overview", errors=f"401|{GONE}"))
        density = page.locator("#density .big strong").inner_text()
    with Serving(pool(), access=Access.random(), port=serving.port):
        expect(page.locator("#connection")).to_have_text("Logged out")
        expect(page.get_by_role("alert")).to_contain_text("You are logged out")
        expect(page.locator("#density .big strong")).to_have_text(density)
        expect(page.get_by_role("alert")).to_be_in_viewport(ratio=1)
        page.get_by_role("link", name="Log in").click()
        expect(page.get_by_label("Token or code")).to_be_visible()
        page.goto("about:blank")


def test_whoever_is_logged_out_asks_no_more(open_page: Open, serve: Serve) -> None:
    """A tab that somebody forgot is no alarm for those who count what is refused."""
    fake = pool()
    serving, row = serve(fake), next(row for row in fake.rows() if row.state == "running")
    page = live(open_page(serving, f"#/agents/{row.id}", errors="401"))
    expect(page.get_by_role("log")).to_contain_text("step")
    serving.do(lambda: serving.access.change_token(b"another-token-of-the-tests"))
    expect(page.locator("#connection")).to_have_text("Logged out")
    page.wait_for_timeout(1500)  # what was on its way
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(5500)  # a story is asked for every five seconds
    assert asked == []


def test_a_pool_that_was_stopped(open_page: Open) -> None:
    fake = pool()
    with Serving(fake) as serving:
        page = live(open_page(serving, "#/overview", errors=GONE))
        serving.do(lambda: setattr(fake, "state", "stopping"))
        expect(page.locator("#pool-state")).to_have_text("stopping")
    expect(page.locator("#connection")).to_have_text("Stopped")
    expect(page.get_by_role("alert")).to_contain_text("The pool was stopped")
    expect(page.locator("#denials tbody tr").first).to_be_visible()
    page.goto("about:blank")


def test_what_is_old_is_called_so(open_page: Open, serve: Serve) -> None:
    """Events come once, then no more."""
    serving = serve(pool(), period=600)
    page = open_page(serving, None)
    page.clock.install()
    page.goto(serving.url)
    live(page)
    page.clock.fast_forward(9000)
    expect(page.locator("#connection")).to_have_text("Stale")
    expect(page.get_by_role("alert")).to_contain_text("what is shown may be old")


def test_events_that_never_end_and_never_come_are_asked_for_anew(open_page: Open, serve: Serve) -> None:
    """A stream whose other end was switched off is open for ever, as far as a browser knows."""
    fake = pool()
    serving = serve(fake, period=600)
    page = open_page(serving, None)
    page.clock.install()
    page.goto(serving.url + "#/agents")
    live(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/events") else None)
    serving.do(lambda: fake.add("came-meanwhile", state="running"))
    page.clock.fast_forward(9000)
    expect(page.locator("#connection")).to_have_text("Stale")
    assert asked == []
    page.clock.fast_forward(40_000)
    expect(page.get_by_role("grid")).to_contain_text("came-meanwhile")
    live(page)
    assert len(asked) == 1


def test_a_pool_that_does_not_answer(open_page: Open, serve: Serve) -> None:
    fake = pool()
    serving = serve(fake)
    page = live(open_page(serving, "#/overview", errors="503|500"))
    fails = fake.overview

    async def none() -> None:
        raise ValueError("no workers")

    serving.do(lambda: setattr(fake, "overview", none))
    expect(page.locator("#connection")).to_have_text("No answer")
    expect(page.get_by_role("alert")).to_contain_text("an internal error: ValueError")
    serving.do(lambda: setattr(fake, "overview", fails))
    live(page)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_server_that_takes_questions_and_says_nothing(open_page: Open, serve: Serve) -> None:
    """As one behind a tunnel that hangs: the page does not wait for ever to be told why it has no events."""
    serving = serve(pool())
    page = open_page(serving, None, errors="ERR_FAILED")
    page.add_init_script("const real = AbortSignal.timeout; AbortSignal.timeout = (most) => real.call(AbortSignal, most / 50);")
    page.route("**/events", lambda route: route.abort())
    page.route("**/data/overview", lambda route: None)
    page.goto(serving.url)
    expect(page.locator("#connection")).to_have_text("Reconnecting")


def test_before_anything_has_come(open_page: Open, serve: Serve) -> None:
    serving = serve(pool())
    page = open_page(serving, None)
    page.route("**/events", lambda route: None)
    page.goto(serving.url)
    expect(page.locator("#connection")).to_have_text("Connecting")
    expect(page.locator("#density .big strong")).to_have_text("–")
    page.goto(serving.url + "#/agents")
    expect(page.locator(".agents > .empty")).to_have_text("Loading")
