"""`agentfw dashboard` against the control API over a fake pool: what it opens, prints and says."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from agentfw.pool.jobs import PoolError

from tests.conftest import COMMAND
from tests.pool.test_cli import Command, Done, Pool, command, pool

__all__ = ["command", "pool"]

ADDRESS = {
    "url": "http://127.0.0.1:8701",
    "login": "http://127.0.0.1:8701/login?code=c-o_de",
    "token": "the-token",
    "trouble": "",
}
Tell = Callable[[Any], None]


@pytest.fixture
def tell(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """What the pool says from now on."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)

    def change(says: Any) -> None:
        async def plugin(name: str, what: str, query: Mapping[str, str] | None = None, *, local: bool = True) -> Any:
            assert (name, what, local) == ("dashboard", "address", True)
            if isinstance(says, Exception):
                raise says
            return says

        pool.backend.plugin = plugin

    change(ADDRESS)
    return change


def test_it_opens_a_browser(tell: Tell, pool: Pool, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\nprintf "%s" "$1" > "$(dirname "$0")/opened"\n')
    browser.chmod(0o755)
    environment = {**os.environ, "BROWSER": f"{browser} %s"}
    done = subprocess.run([*COMMAND, "dashboard"], cwd=tmp_path, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "opened http://127.0.0.1:8701\n")
    assert (tmp_path / "opened").read_text() == ADDRESS["login"]


def test_it_prints_the_link_if_asked_and_without_a_browser(tell: Tell, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    link = (ADDRESS["login"] + "\n").encode()
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or False)
    assert command("dashboard") == Done(0, link, "") and opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    assert command("dashboard", "--print-url") == Done(0, link, "") and opened == []
    assert command("dashboard", "--json").document == {
        "version": 1,
        **{name: ADDRESS[name] for name in ("url", "login", "token")},
    }
    assert opened == []
    assert command("dashboard") == Done(0, link, "") and opened == [ADDRESS["login"]], "it did not open"


def test_what_keeps_it_from_opening(tell: Tell, command: Command) -> None:
    for says, said in (
        ({**ADDRESS, "url": "", "login": ""}, "hint: set [dashboard] `listen`"),
        ({**ADDRESS, "url": "", "login": "", "trouble": "cannot listen at x"}, "hint: cannot listen at x"),
        (PoolError("not_found", "plugin `dashboard`: there is no such plugin in this pool"), "there is no such plugin"),
        ({"url": 5}, ""),
        ([], ""),
        ({**ADDRESS, "login": "file:///etc/passwd"}, "told no link"),
        ({**ADDRESS, "login": "http://x/\x1b]0;owned\x07\n\u202eevil"}, "told no link"),
        ({**ADDRESS, "url": "", "trouble": "\x1b[2J\n\u202e"}, "has no page"),
    ):
        tell(says)
        for arguments in ((), ("--print-url",), ("--json",)):
            done = command("dashboard", *arguments)
            assert (done.status, done.out) == (125, b"") and said in done.err and "Traceback" not in done.err, done
            assert "\x1b" not in done.err and "\u202e" not in done.err
