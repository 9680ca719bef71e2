"""The page over a pool at work, in a real browser: what an agent says of itself, does and writes is on it, as text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from .. import debian
from ..dashboard import chromium, hostile
from .test_dashboard import ready_or
from .test_pool import Run, Start, environment, line, run, start

pytestmark = pytest.mark.kvm
__all__ = ["environment", "run", "start"]

NAME = f"<img src=x onerror=window.{hostile.MARK}=1>"
AGENT = rf"""
import os, socket, sys
print("\x1b[31mred\x1b[0m <script>window.{hostile.MARK}=1</script>", flush=True)
try:
    socket.create_connection(("<b>bold.example", 443))
except OSError as error:
    print(error, file=sys.stderr)
try:
    socket.create_connection(("denied.example", 443), 5)
except OSError as error:
    print(error, file=sys.stderr)
open("/tmp/<i>made", "w").write("x")
sys.exit(3)
"""


def test_an_agent_of_a_real_pool(run: Run, start: Start, tmp_path: Path) -> None:
    program = chromium.program()
    if program is None:
        pytest.skip(f"no Chromium: {debian.MISSING[chromium.NAME]}")
    (tmp_path / "agentfw.toml").write_text('[pool]\nworkers = 1\nsize = 2\nidle = 1\n[policy]\nallow = ["allowed.example"]\n')
    pool = start("pool", "start")
    while not ready_or(pool).startswith("pool ready"):
        pass
    assert line(pool, "stderr").startswith("dashboard at ")
    assert run("submit", "--wait", "--name", NAME, "--label", f"what={NAME}", "-c", AGENT).returncode == 3
    (job,) = (each["id"] for each in json.loads(run("ps", "--all", "--json").stdout)["jobs"])
    link = run("dashboard", "--print-url").stdout.strip()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program.path, env=dict(program.environment), args=chromium.ARGUMENTS)
        page = browser.new_page()
        troubles: list[str] = []
        page.on("console", lambda message: message.type == "error" and troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(link)
        look(page, job)
        browser.close()
    assert troubles == []
    assert run("pool", "stop", "--now").returncode == 0 and pool.wait(20) == 0


def look(page: Page, job: str) -> None:
    expect.set_options(timeout=20_000)
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator("#warmup .facts dd").first).not_to_have_text("0")
    expect(page.locator("#density .big strong")).not_to_have_text("–")
    expect(page.locator("#denials tbody")).to_contain_text("denied.example")
    page.keyboard.press("g")
    page.keyboard.press("a")
    row = page.locator("[role=grid] .grid-body [role=row]")
    expect(row).to_have_count(1)
    expect(row.locator(".c-name")).to_have_text(NAME)
    expect(row.locator(".c-state")).to_have_text("code 3")
    row.click()
    expect(page.locator(".meta").first).to_contain_text(job)
    expect(page.locator("h1")).to_have_text(NAME)
    for step in ("Dispatch", "First syscall", "Resolve", "Denied", "Exit"):
        expect(page.locator(".steps")).to_contain_text(step)
    expect(page.get_by_role("log")).to_contain_text(f"red <script>window.{hostile.MARK}=1</script>")
    for tab, said in (
        ("Network", "denied.example"),
        ("Denials", "policy.default"),
        ("System calls", "openat"),
        ("Files", "/tmp/<i>made"),
    ):
        page.get_by_role("tab", name=tab).click()
        expect(page.locator(".panel")).to_contain_text(said)
    page.get_by_role("tab", name="Exit and counters").click()
    expect(page.locator(".panel .counters")).to_contain_text("exits")
    page.goto(page.url.split("#")[0] + "#/loaded")
    expect(page.locator(".loaded")).to_contain_text("allow allowed.example")
    assert page.evaluate(f"'{hostile.MARK}' in window") is False and page.locator("img, script:not([src]), main b i").count() == 0
