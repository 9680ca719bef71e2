"""SIGHUP without virtual machines: who asks for a reload, who hung up, and what is said."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agentfw import hookimpl
from agentfw.cli.reload import Reloads
from agentfw.config import Config, load_config
from agentfw.runtime import Runtime
from agentfw.testing import make_runtime

WAITER = """
import fcntl, os, signal, sys, termios
from agentfw.cli.reload import Terminal
os.setsid()
if len(sys.argv) > 1:
    fcntl.ioctl(int(sys.argv[1]), termios.TIOCSCTTY, 0)
terminal = Terminal()
signal.signal(signal.SIGHUP, lambda *_: (print(terminal.hung_up(), flush=True), os._exit(0)))
print("ready", flush=True)
signal.pause()
"""


def test_a_terminal_that_is_closed_is_no_wish_to_reload() -> None:
    for closes in (False, True):
        master, slave = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", WAITER, str(slave)], pass_fds=[slave], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        os.close(slave)
        with process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            if closes:
                os.close(master)  # the kernel sends SIGHUP
            else:
                process.send_signal(signal.SIGHUP)
            assert process.stdout.readline() == f"{closes}\n".encode()
            assert process.wait(30) == 0
        if not closes:
            os.close(master)


def test_without_a_terminal_it_is_a_wish_to_reload() -> None:
    process = subprocess.Popen([sys.executable, "-c", WAITER], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == b"False\n"


class Slow:
    name = "slow"

    def __init__(self) -> None:
        self.reloads = 0
        self.go_on = asyncio.Event()

    @hookimpl
    async def reloaded(self, runtime: Runtime) -> None:
        self.reloads += 1
        await self.go_on.wait()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_many_wishes_are_few_reloads() -> None:
    async def body() -> None:
        plugin = Slow()
        reloads = Reloads(make_runtime(plugin), Config, quiet=True)
        reloads.request()
        await settled()
        assert plugin.reloads == 0, "the runtime has not started"
        reloads.begin()
        for _ in range(5):
            reloads.request()
            await settled()
        assert plugin.reloads == 1, "the others wait for it"
        plugin.go_on.set()
        await settled()
        assert plugin.reloads == 2, "and are one"
        await reloads.end()
        reloads.request()
        await settled()
        assert plugin.reloads == 2

    asyncio.run(body())


def test_what_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "agentfw.toml"

    async def say(text: str) -> str:
        file.write_text(text)
        reloads.begin()
        reloads.request()
        await settled()
        await reloads.end()
        return capsys.readouterr().err

    async def body() -> None:
        nonlocal reloads
        runtime = make_runtime(config=load_config(file))
        reloads = Reloads(runtime, lambda: load_config(file, pipes=False), quiet=False)
        assert await say("") == f"reloaded {file}: nothing changed\n"
        assert await say("[plugins]\nblocking = 1\n") == f"reloaded {file}: plugins changed\n"
        assert "[run] counts from the next start" in await say("[plugins]\nblocking = 1\n[run]\nmemory = '1G'\n")
        note = "note: [policy] has no effect: `policy` is not among the plugins\n"
        assert note in await say("[plugins]\nblocking = 1\n[policy]\n")
        assert await say("[plugins]\nblocking = 1\n[policy]\n") == f"reloaded {file}: nothing changed\n", "it was said"
        assert f"{file}:2: plugins.blocking: must be" in await say("[plugins]\nblocking = -1\n")
        assert f"not reloaded, all stays as it was: {file}:1: not TOML" in await say("[plugins\n")
        file.unlink()
        os.mkfifo(file)  # nobody will ever write to it; all agents would wait
        reloads.begin()
        reloads.request()
        await settled()
        assert f"not reloaded, all stays as it was: {file}: cannot be read: a pipe" in capsys.readouterr().err
        file.unlink()
        reloads.begin()
        reloads.request()
        await settled()
        await reloads.end()
        assert f"not reloaded, all stays as it was: {file}: cannot be read" in capsys.readouterr().err
        assert runtime.config.tables["plugins"] == {"blocking": 1}

    file.write_text("")
    reloads: Reloads
    asyncio.run(body())
