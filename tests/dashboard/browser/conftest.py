"""The page in a real Chromium without a window. Whatever a test does, the page may report no error, break no policy, ask no other
host, open no dialog, and run nothing that an agent's name says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from ... import debian
from .. import chromium, hostile
from ..fake import FakeObservatory
from ..threaded import Serving

Open = Callable[..., Page]
Serve = Callable[..., Serving]
expect.set_options(timeout=15_000)

WATCH = """
globalThis.seenTroubles = [];
addEventListener("securitypolicyviolation", (event) =>
  seenTroubles.push(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
addEventListener("unhandledrejection", (event) => seenTroubles.push(`rejected: ${event.reason}`));
"""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    program = chromium.program()
    if program is None:
        pytest.skip(f"no Chromium: {debian.MISSING[chromium.NAME]}")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program.path, env=dict(program.environment), args=chromium.ARGUMENTS)
        yield found
        found.close()


@pytest.fixture(scope="package")
def fleet() -> Iterator[Serving]:
    """1,500 agents of good manners. Time stands still until a test lets it pass."""
    with Serving(FakeObservatory(1500, hostile_names=False)) as serving:
        yield serving


@pytest.fixture(scope="package")
def villains() -> Iterator[Serving]:
    """Hostile agents, and a few others."""
    with Serving(FakeObservatory(len(hostile.NAMES) + 9)) as serving:
        yield serving


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(fake, ...)`: a server that ends after the test's pages."""
    with ExitStack() as stack:
        yield lambda fake, **more: stack.enter_context(Serving(fake, **more))


@pytest.fixture
def open_page(browser: Browser, serve: Serve) -> Iterator[Open]:
    """`open_page(serving, "#/agents", width=360, ...)`, logged in. What must not happen is asserted at the end; `errors`: a
    pattern of those of the console's errors that are expected."""
    opened: list[tuple[Page, list[str]]] = []

    def open(
        serving: Serving,
        hash: str | None = "",
        *,
        width: int = 1280,
        height: int = 800,
        errors: str = "",
        log_in: bool = True,
        **options: Any,
    ) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.add_init_script(WATCH)
        if log_in:
            context.add_cookies([serving.cookie])  # type: ignore[list-item]
        page = context.new_page()
        troubles: list[str] = []
        page.on("console", lambda message: _heard(troubles, message.type, message.text, errors))
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("dialog", lambda dialog: troubles.append(f"dialog: {dialog.message}"))
        page.on("popup", lambda popup: troubles.append(f"popup: {popup.url}"))
        page.on(
            "request", lambda request: request.url.startswith(serving.url) or troubles.append(f"request: {request.url[:200]}")
        )
        opened.append((page, troubles))
        if hash is not None:
            page.goto(serving.url + hash)
        return page

    yield open
    for page, troubles in opened:
        if not page.is_closed():
            troubles += page.evaluate("globalThis.seenTroubles ?? []")
            troubles += page.evaluate(f"'{hostile.MARK}' in globalThis ? ['an agent ran something'] : []")
        page.context.close()
    assert [trouble for _, troubles in opened for trouble in troubles] == []


def _heard(troubles: list[str], kind: str, text: str, expected: str) -> None:
    if kind in ("error", "warning") and not (expected and re.search(expected, text)):
        troubles.append(f"console: {kind}: {text}")


def live(page: Page) -> Page:
    """When its events come."""
    expect(page.locator("#connection")).to_have_attribute("data-kind", "live")
    return page
