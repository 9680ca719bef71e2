"""Where secrets come from, and how they change while agents run."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from agentfw import ConfigError, Denied
from agentfw.testing import make_runtime
from agentfw_credentials import CommandConfig, Config, Plugin
from agentfw_credentials.renewed import Command, Renewed, Unavailable
from agentfw_credentials.sources import File

from tests.core.support import async_test

from .support import KEY, PLACEHOLDER, ask, credentials, rule, sent, until

NEW = "sk-newer-9876543210"


def look(source: File, times: int = 1) -> str | None:
    for _ in range(times):
        source.check()
        source.apply()
    return source.value


def test_a_file_replaced_at_once(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    source = File(str(file))
    assert look(source) == KEY and source.file == file
    (tmp_path / "new").write_text(NEW + "\r\n")
    (tmp_path / "new").rename(file)
    assert look(source) == NEW


def test_a_pipe_that_nobody_writes_to_holds_up_no_agent(tmp_path: Path) -> None:
    """A reload happens in the loop that all agents share; so does nothing that waits for a pipe. Nor does the look at files."""
    file, pipe = tmp_path / "key", tmp_path / "pipe"
    file.write_text(KEY)
    os.mkfifo(pipe)
    plugin = credentials(rule(value=f"Bearer ${{file:{file}}}"))
    with pytest.raises(ConfigError, match="is no regular file"):
        plugin.reconfigure(Config(rule=(rule(value=f"Bearer ${{file:{pipe}}}"),)))
    source = File(str(file))
    pipe.rename(file)
    assert look(source, 3) == KEY and source.counters["failures"] == 1


def test_a_file_written_in_place_counts_when_it_stays_the_same(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    source = File(str(file))
    with file.open("w") as stream:
        for part in (NEW[:10], NEW[10:15], NEW[15:]):
            stream.write(part)
            stream.flush()
            os.utime(file, ns=(time.time_ns(), time.time_ns()))
            assert look(source) == KEY, "half-written"
    look(source)
    assert look(source) == NEW


def test_a_link_somewhere_in_the_path(tmp_path: Path) -> None:
    """As Kubernetes mounts secrets: key -> ..data/key, ..data -> a folder, replaced in one rename."""
    for name, value in (("..v1", KEY), ("..v2", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "key").write_text(value)
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "key").symlink_to("..data/key")
    source = File(str(tmp_path / "key"))
    assert look(source) == KEY
    (tmp_path / "..new").symlink_to("..v2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert look(source) == NEW


@pytest.mark.parametrize("trouble", ["missing", "empty", "blank", "binary", "two lines", "short", "folder", "long"])
def test_the_last_good_value_stays_and_it_is_said(tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    source = File(str(file))
    file.unlink()
    if trouble == "folder":
        file.mkdir()
    elif trouble != "missing":
        file.write_bytes({"empty": b"", "blank": b" \n", "binary": b"\xff\0" * 20, "two lines": b"sk-a-secret\nsk-another",
                          "short": b"sk-a", "long": b"x" * 100_000}[trouble])  # fmt: skip
    assert look(source, 4) == KEY
    assert len(caplog.records) == 1 and "last good value" in caplog.text and "sk-" not in caplog.text
    assert source.counters["failures"] == 1
    if trouble == "folder":
        file.rmdir()
    (tmp_path / "new").write_text(NEW)
    (tmp_path / "new").rename(file)
    assert look(source, 3) == NEW


def test_what_is_no_file_is_read_once(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, KEY.encode())
    os.close(writing)
    source = File(f"/dev/fd/{reading}")
    os.close(reading)
    assert look(source, 3) == KEY and not source.counters


@async_test
async def test_new_values_are_used_and_both_are_secret(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    plugin = credentials(rule(value=f"Bearer ${{file:{file}}}"))
    await plugin.start(make_runtime(plugin))
    try:
        assert sent(plugin) == {"authorization": f"Bearer {KEY}"}
        (tmp_path / "new").write_text(NEW)
        (tmp_path / "new").rename(file)
        await until(lambda: sent(plugin) == {"authorization": f"Bearer {NEW}"})
        assert plugin.statistics()["renewed"] == 1
        for value in (KEY, NEW):
            with pytest.raises(Denied):
                ask(plugin, {"X": value}, "https://other.example:443")
    finally:
        await plugin.stop()


def command(code: str, **more: Any) -> CommandConfig:
    return CommandConfig((sys.executable, "-S", "-c", code), **more)


async def started(config: CommandConfig) -> Plugin:
    plugin = Plugin(Config(rule=(rule(value="Bearer ${command:c}"),), command={"c": config}), {})
    await plugin.start(make_runtime(plugin))
    return plugin


@async_test
async def test_a_command() -> None:
    plugin = await started(command(f"import sys; print('{KEY}'); print('{NEW}', file=sys.stderr)"))
    assert sent(plugin) == {"authorization": f"Bearer {KEY}"}
    await plugin.stop()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import sys; print('sk-out-12345678'); sys.exit('sk-err-12345678')", "ended with status 1"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "signal 15"),
        ("pass", "is empty"),
        ("print('sk-a\\nsk-b')", "line break"),
        ("print('x' * 100_000)", "too much"),
        ("import os; os.write(1, b'\\xff' * 20)", "not text"),
        ("import time; time.sleep(60)", "did not end"),
        ("import os, time; os.close(1); time.sleep(60)", "did not end"),
        ("import subprocess, sys; print('sk-a-secret'); subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])",
         "did not end"),
    ],
)  # fmt: skip
@async_test
async def test_commands_that_give_nothing(code: str, why: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        await started(command(code, timeout=0.7 if "sleep" in code else 20.0))
    assert caught.value.key == "credentials.command.c" and time.monotonic() - began < 40
    assert why in caplog.text and "sk-" not in caplog.text + str(caught.value)


@async_test
async def test_a_program_that_is_not_there() -> None:
    for argv in (("/does/not/exist",), ("",), ("a\0b",), ("/",)):
        with pytest.raises(ConfigError):
            await started(CommandConfig(argv))


class Counted(Renewed):
    """A value for each renewal, or an error."""

    def __init__(self, *results: object, life: float = 1000.0, keeps: bool = True) -> None:
        super().__init__("test:counted")
        self.results = list(results)
        self.life = life
        self.keeps = keeps
        self.runs = 0
        self.gate: asyncio.Event | None = None

    async def _renew(self) -> tuple[str, float]:
        self.runs += 1
        if self.gate is not None:
            await self.gate.wait()
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return str(result), self.life


@async_test
async def test_many_who_ask_renew_once() -> None:
    source = Counted("first", "second")
    source.gate = asyncio.Event()
    asking = [asyncio.create_task(source.get()) for _ in range(50)]
    await asyncio.sleep(0)
    asking[0].cancel()  # the first of them giving up takes nobody along
    source.gate.set()
    assert await asyncio.gather(*asking[1:]) == ["first"] * 49 and source.runs == 1
    await source.stop()


@async_test
async def test_renewed_ahead_of_its_end_as_long_as_it_is_used() -> None:
    source = Counted("first", "second", "third", life=0.2)
    assert await source.get() == "first"
    assert source.value == "first"
    await until(lambda: source.known == "second")
    await asyncio.sleep(0.3)  # nobody has asked for it since
    assert source.runs == 2
    assert source.value == "second"
    await until(lambda: source.value == "third")
    await source.stop()


@async_test
async def test_failures(caplog: pytest.LogCaptureFixture) -> None:
    source = Counted(Unavailable("not now"), ValueError("sk-quoted-secret"), "first", keeps=False, life=0.1)
    assert await source.get() is None and source.runs == 1
    assert await source.get() is None and source.runs == 1, "not again at once"
    source._not_before = 0
    assert await source.get() is None and source.runs == 2
    assert "not now" in caplog.text and "ValueError" in caplog.text and "sk-quoted" not in caplog.text
    source._not_before = 0
    assert await source.get() == "first"
    source.results = [Unavailable("gone")] * 9
    await until(lambda: source.value is None)
    assert source.known == "first" and await source.get() is None
    kept = Counted("first", *[Unavailable("gone")] * 9, life=0.05)
    assert await kept.get() == "first"
    async with asyncio.timeout(10):
        while kept.runs < 2:
            assert kept.value == "first"
            await asyncio.sleep(0.01)
    assert kept.value == "first" and "stays in use" in caplog.text
    await source.stop()
    await kept.stop()


@async_test
async def test_a_401_renews_once() -> None:
    source = Counted("first", "second", "third", "fourth", keeps=False)
    assert await source.get() == "first"
    source.gate = asyncio.Event()
    for _ in range(5):
        source.rejected("first")
    assert source.value is None, "it is not sent any more"
    source.gate.set()
    assert await source.get() == "second" and source.runs == 2
    source.rejected("first")  # late answers to what was sent before
    for _ in range(5):
        source.rejected("second")
    assert await source.get() == "second" and source.runs == 2, "a new one was no better: renewing does not help"
    source.accepted("second")
    source.rejected("second")
    assert await source.get() == "second" and source.runs == 2, "not again and again, whatever agents make servers say"
    source._no_doubt_before = 0.0
    source.accepted("second")
    source.rejected("second")
    assert await source.get() == "third" and source.runs == 3
    await source.stop()


@async_test
async def test_reload(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    config = Config(rule=(rule(value=f"${{file:{tmp_path}/key}}", header="x-key"), rule(value="${command:c}")),
                    command={"c": command("import time; print('sk-command-' + str(time.time_ns()))")})  # fmt: skip
    plugin = Plugin(config, {"KEY": NEW})
    await plugin.start(make_runtime(plugin))
    before = sent(plugin)
    seen: list[Path] = []
    plugin.check_guest(tmp_path / "agentfw.toml", {"MINE": "sk-literal-secret"}, lambda path: seen.append(path) is not None)
    for bad in (
        Config(rule=(rule(host="*"),)),
        Config(rule=(rule(value="${env:MISSING}"),)),
        Config(rule=(rule(value="Bearer sk-literal-secret"),)),
        Config(rule=(rule(value="${command:c}"),)),
    ):
        with pytest.raises(ConfigError):
            plugin.reconfigure(bad)
        assert sent(plugin) == before, "nothing has changed"
    commit = plugin.reconfigure(Config(rule=(*config.rule, rule(host="b.example")), command=config.command, grace=10.0))
    assert sent(plugin, where="https://b.example:443") == {}
    commit()
    assert sent(plugin) == before, "what was there is kept, the command is not run again"
    assert sent(plugin, where="https://b.example:443") == {"authorization": f"Bearer {NEW}"}
    other = Config(rule=(rule(value="${command:c}"),), command={"c": command("print('sk-another-command')")})
    plugin.reconfigure(other)()
    await until(lambda: plugin._state.rules["api.example", 443][0].credential() is not None)
    assert sent(plugin) == {"authorization": "sk-another-command"}
    for old in (before["x-key"], before["authorization"], NEW):
        with pytest.raises(Denied):
            ask(plugin, {"X": old}, "https://other.example:443")
    plugin.reconfigure(Config())()
    assert sent(plugin, {"Authorization": "mine"}) == {"authorization": "mine"}
    await plugin.stop()


@async_test
async def test_a_commands_secret_that_agents_have_stops_the_start() -> None:
    plugin = Plugin(Config(rule=(rule(value="${command:c}"),), command={"c": command(f"print('{KEY}')")}), {})
    plugin.check_guest(None, {"MINE": f"..{KEY}"}, lambda path: False)
    with pytest.raises(ConfigError, match="variable"):
        await plugin.start(make_runtime(plugin))
    await plugin.stop()
    assert isinstance(plugin._state.sources["command", "c"], Command) and PLACEHOLDER
