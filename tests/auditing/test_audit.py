"""The audit log: what stands in it, where it may lie, and that nobody waits for it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agentfw import ConfigError, Denied, Destination, ExitReport, RequestHead, hookimpl
from agentfw.config import load_config
from agentfw.plugins import load_plugins
from agentfw.reports import AuditEvent, Decision
from agentfw.runtime import Runtime
from agentfw.testing import make_agent
from agentfw_audit import Config, Plugin, shares, writer
from agentfw_audit.choosing import decode
from agentfw_audit.config import Kind
from agentfw_audit.writer import LogFile, Writer
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.support import (
    Loopback,
    Names,
    Recorder,
    TlsOnce,
    async_test,
    guest,
    lookup,
    offload,
    read_response,
    running,
    serving,
)

HOST = "api.example"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Policy:
    name = "mine"

    @hookimpl
    def request(self, head: RequestHead) -> None:
        head.headers.set("Authorization", "Bearer sk-real-secret")
        head.target += "&key=sk-real-secret"
        if "denied" in head.target:
            raise Denied("mine: no", "not \x1b[31mthis\n")


@async_test
async def test_what_happened_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log" / "audit.jsonl"
    path.parent.mkdir()
    plugin = Plugin(Config(str(path), events=("events", "exchanges", "flows", "exits")))
    agent = make_agent(team="red")
    async with (
        serving(Recorder(), HOST) as port,
        running(Names(**{HOST: "127.0.0.1"}), Loopback(), TlsOnce(), Policy(), plugin) as runtime,
    ):
        await lookup(runtime, HOST, agent)
        async with guest(runtime, "127.0.0.1", port, agent=agent) as flow:
            await offload(flow, HOST)
            for target in ("/fine?token=sk-mine", "/denied?token=sk-mine"):
                await flow.guest_send(f"GET {target} HTTP/1.1\r\nHost: {HOST}\r\nX-Api-Key: sk-mine\r\n\r\n".encode())
                await read_response(flow)
        runtime.agent_exited(agent, ExitReport("code", 3, seconds=1.5))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    told = lines(path)
    assert "sk-" not in path.read_text()
    assert all(line["agent"] == "test" and line["labels"] == {"team": "red"} and line["time"] > 1.7e9 for line in told)
    events = [line["event"] for line in told]
    assert sorted(events) == ["denied", "exchange", "exchange", "exit", "flow", "flow"]
    denied = told[events.index("denied")]
    assert (denied["rule"], denied["plugin"], denied["reason"]) == ("mine: no", "mine", "not \\x1b[31mthis\\n")
    assert (denied["method"], denied["target"], denied["destination"]) == ("GET", "/denied", f"https://{HOST}:{port}")
    fine, refused = (line for line in told if line["event"] == "exchange")
    assert (fine["status"], fine["target"], fine["bytes_down"], "error" in fine) == (200, "/fine", 2, False)
    assert (refused["status"], refused["rule"]) == (403, "mine: no")
    assert told[events.index("exit")] | {"time": 0} == {
        "time": 0, "event": "exit", "agent": "test", "agent_id": "test", "labels": {"team": "red"}, "how": "code", "code": 3,
        "signal": 0, "seconds": 1.5,
    }  # fmt: skip
    assert plugin.statistics() == {"written": 6, "dropped": 0, "withheld": 0, "failures": 0, "rotations": 0}


@async_test
async def test_only_what_is_wanted_and_queries_if_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a"
    plugin = Plugin(Config(str(path), events=("events",), queries=True))
    async with running(plugin) as runtime:
        runtime.audit(AuditEvent.about("denied", target="/x?y=z", event="not this", rule="r"))
        runtime.agent_exited(make_agent(), ExitReport("code"))
    (line,) = lines(path)
    assert (line["event"], line["target"], line["rule"]) == ("denied", "/x?y=z", "r")


class Looks:
    """As `credentials` does, into each line."""

    name = "looks"

    def __init__(self) -> None:
        self.lines = 0

    @hookimpl
    def redact(self, text: bytes) -> None:
        self.lines += 1


@async_test
async def test_a_flood_of_one_agent_pushes_nothing_out(tmp_path: Path) -> None:
    """Nor is its own end, or what others did, missing; and it is told how much is."""
    path = tmp_path / "a"
    plugin = Plugin(Config(str(path), max_bytes=40_000, keep=1, agent_bytes_per_second=1, agent_burst=10_000))
    evil, good = make_agent("evil"), make_agent("good")
    looked = Looks()
    async with running(plugin, looked) as runtime:
        runtime.audit(AuditEvent.about("denied", evil, rule="its deed"))
        for number in range(5000):
            runtime.note(evil, Destination.make("dns", f"n{number}.example", 53), Denied("no", "really"))
        runtime.audit(AuditEvent.about("denied", good, rule="another's"))
        runtime.audit(AuditEvent.about("agent_stopped", evil))
        runtime.agent_exited(evil, ExitReport("code"))
    found = lines(path)
    assert not (tmp_path / "a.1").exists() and found[0]["rule"] == "its deed"
    written = sum(line["event"] in ("denied", "decision") and line["agent"] == "evil" for line in found)
    assert looked.lines < written + 20, "what is not written is not looked into"
    missing = sum(line["lines"] for line in found if line["event"] == "dropped" and line["agent_id"] == "evil")
    assert written + missing == 10_001 and 20 < written < 200 and plugin.statistics()["withheld"] == missing
    others = [line["event"] for line in found if line["event"] not in ("denied", "decision", "dropped")]
    assert others == ["agent_stopped", "exit"] and any(line.get("rule") == "another's" for line in found)


def test_shares_come_back_and_are_bounded() -> None:
    told: list[tuple[str, str, int]] = []
    kept = shares.Shares(lambda *missing: told.append(missing))
    assert [kept.admit("a", "A", 60, 10, 100, now) for now in (0.0, 0.0, 0.1, 2.0, 2.0)] == [True, False, False, True, False]
    assert told == [("a", "A", 1), ("a", "A", 1)]
    for number in range(shares.MAX_AGENTS + 10):
        kept.admit(str(number), "B", 1, 10, 100, 3.0)
    assert len(kept._shares) == shares.MAX_AGENTS and sum(missing for _, _, missing in told) == kept.withheld == 3
    kept.end()
    assert not kept._shares


def test_who_says_nothing_for_long_saves_up_no_more_than_a_burst() -> None:
    kept = shares.Shares(lambda *missing: None)
    assert [kept.admit("a", "A", 60, 10, 100, now) for now in (0.0, 1000.0, 1000.0)] == [True, True, False]
    assert not kept.admit("a", "A", 60, 10, 50, 2000.0), "nor than one that a reload has made smaller"


def put(path: Path, count: int, size: int = 50, **more: Any) -> Writer:
    options: dict[str, Any] = {"max_bytes": 4096, "keep": 3, "sync": "no", **more}
    made = Writer(LogFile(path, **options), 1 << 20)
    for n in range(count):
        made.put([json.dumps({"n": n, "pad": "x" * size}).encode()])
        if not n % 7:
            time.sleep(0.001)
    assert made.stop(10)
    return made


def test_full_files_are_put_away(tmp_path: Path) -> None:
    path = tmp_path / "a"
    made = put(path, 400)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["a", "a.1", "a.2", "a.3"] and made.rotations > 3
    assert all(file.stat().st_size <= 4096 and stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    numbers = [line["n"] for name in ("a.3", "a.2", "a.1", "a") for line in lines(tmp_path / name)]
    assert numbers == list(range(numbers[0], 400)) and made.dropped == 0


@pytest.mark.parametrize("sync", ["no", "rotate", "always"])
def test_nothing_kept(tmp_path: Path, sync: str) -> None:
    put(tmp_path / "a", 200, keep=0, sync=sync)
    assert [file.name for file in tmp_path.iterdir()] == ["a"] and lines(tmp_path / "a")[-1]["n"] == 199


def test_two_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    threads = [threading.Thread(target=put, args=(path, 300), kwargs={"keep": 1000}) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    numbers = [line["n"] for file in tmp_path.iterdir() for line in lines(file)]
    assert sorted(numbers) == sorted([*range(300), *range(300)])


def test_a_file_that_another_removes_at_once_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two write one file and keep none: between one's open() and its look at what it has, the other put it away."""
    real = os.fstat
    file = LogFile(tmp_path / "a", 4096, 0, "no")
    (tmp_path / "a").unlink()

    def late(descriptor: int) -> os.stat_result:
        (tmp_path / "a").unlink(missing_ok=True)
        return real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(writer.os, "fstat", late)
        file.write([b"{}"])
    file.write([b"[]"])
    file.close()
    assert (tmp_path / "a").read_bytes() == b"[]\n"


def test_nobody_of_ours_puts_a_file_away_amid_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`audit tail -f` had read it to its end by then, and missed what came after."""
    mine, other = (LogFile(tmp_path / "a", 4096, 5, "no") for _ in range(2))
    mine.write([b"x" * 4000])
    real, seen = os.write, []
    thread = threading.Thread(target=other.write, args=([b"z" * 4000],))

    def late(descriptor: int, data: Any) -> int:
        if threading.current_thread() is not thread:
            thread.start()
            thread.join(0.1)
            seen.append((tmp_path / "a.1").exists())
        return real(descriptor, data)

    monkeypatch.setattr(writer.os, "write", late)
    mine.write([b"y"])
    thread.join(10)
    assert seen == [False] and (tmp_path / "a.1").read_bytes().endswith(b"\ny\n")
    mine.close()
    other.close()


def test_who_was_killed_amid_a_line_spoils_no_other(tmp_path: Path) -> None:
    """Another process that writes the same file, or the one before."""
    (tmp_path / "a").write_bytes(b'{"n": 0}\n{"n"')
    file = LogFile(tmp_path / "a", 1 << 20, 1, "no")
    file.write([b'{"n": 1}'])
    with (tmp_path / "a").open("ab") as other:
        other.write(b'{"n": 2}\n{"n')
    file.write([b'{"n": 3}', b'{"n": 4}'])
    file.close()
    assert (tmp_path / "a").read_bytes() == b'{"n": 0}\n{"n"\n{"n": 1}\n{"n": 2}\n{"n\n{"n": 3}\n{"n": 4}\n'


def test_a_file_that_another_program_put_away_is_begun_anew(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "a", 1 << 20, 1, "no")
    file.write([b"{}"])
    (tmp_path / "a").rename(tmp_path / "old")
    file.write([b"[]"])
    (tmp_path / "a").unlink()
    file.write([b"5"])
    file.close()
    assert ((tmp_path / "old").read_bytes(), (tmp_path / "a").read_bytes()) == (b"{}\n", b"5\n")


def test_nobody_waits_and_what_is_dropped_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that stands still."""
    moves = threading.Event()
    write = LogFile.write

    def slow(self: LogFile, lines: Sequence[bytes]) -> None:
        assert moves.wait(20)
        write(self, lines)

    monkeypatch.setattr(LogFile, "write", slow)
    made = Writer(LogFile(tmp_path / "a", 1 << 30, 1, "no"), 65536)
    line = json.dumps({"event": "x", "pad": "y" * 100}).encode()
    for _ in range(20_000):
        made.put([line])
    assert made._size <= 65536 and made.dropped > 15_000
    moves.set()
    assert made.stop(20)
    told = lines(tmp_path / "a")
    missing = [entry["lines"] for entry in told if entry["event"] == "dropped"]
    assert sum(missing) == made.dropped and len(told) - len(missing) + made.dropped == 20_000


def test_a_small_buffer_does_not_wait_until_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "GATHER", 3600.0)
    there, write = threading.Event(), LogFile.write

    def told(self: LogFile, lines: Sequence[bytes]) -> None:
        write(self, lines)
        there.set()

    monkeypatch.setattr(LogFile, "write", told)
    made = Writer(LogFile(tmp_path / "a", 1 << 30, 1, "no"), 65536)
    for _ in range(5):
        for _ in range(33):
            made.put([b"x" * 1000])
        assert there.wait(20)
        there.clear()
    assert made.stop(20) and (made.dropped, made.written) == (0, 165)


def test_a_full_disk_is_counted_and_recovered_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lines wait, and are written once each; one that got out in part is ended first."""
    monkeypatch.setattr(writer, "AGAIN", 0.02)
    room, tries, real = 50, threading.Event(), os.write

    def filling(descriptor: int, data: Any) -> int:
        nonlocal room
        if not room:
            tries.set()
            raise OSError(28, "No space left on device")
        size = real(descriptor, data[:room])
        room -= size
        return size

    monkeypatch.setattr(writer.os, "write", filling)
    made = Writer(LogFile(tmp_path / "a", 1 << 30, 1, "no"), 65536)
    for n in range(10):
        made.put([b'{"n": %d, "more": 1}' % n])  # 20 bytes with the end
    assert tries.wait(10)
    tries.clear()
    for n in range(10, 2000):
        made.put([b'{"n": %d, "pad": "%b"}' % (n, b"x" * 100)])
    assert tries.wait(10) and made.failures and made._size <= 2 * 65536  # what came while a batch was away, and that
    room = 1 << 30
    assert made.stop(10)
    first, second, torn, *rest = (tmp_path / "a").read_bytes().splitlines()
    assert [json.loads(line)["n"] for line in (first, second)] == [0, 1]
    assert torn == b'{"n": 2, "'
    told = [json.loads(line) for line in rest]
    assert [line["n"] for line in told[:-1]] == list(range(2, len(told) + 1)), "in order, none twice"
    assert told[-1]["event"] == "dropped" and told[-1]["lines"] == made.dropped == 2000 - 2 - (len(told) - 1)
    assert made.written == 2000 - made.dropped
    assert len([record for record in caplog.records if record.name == "agentfw.audit"]) == 1


def test_another_file_gets_what_a_full_disk_did_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names another file in agentfw.toml since the disk is full."""
    tries, real = threading.Event(), LogFile.write

    def failing(self: LogFile, lines: Sequence[bytes]) -> None:
        self.done = 0
        if self.path.name == "a":
            tries.set()
            raise OSError(28, "No space left on device")
        real(self, lines)

    monkeypatch.setattr(LogFile, "write", failing)
    made = Writer(LogFile(tmp_path / "a", 1 << 30, 1, "no"), 65536)
    made.put([b'{"n": 1}'])
    assert tries.wait(10)
    made.turn_to(LogFile(tmp_path / "b", 1 << 30, 1, "no"), 65536)
    made.put([b'{"n": 2}'])
    assert made.stop(10) and (tmp_path / "b").read_bytes() == b'{"n": 1}\n{"n": 2}\n' and not made.dropped


@pytest.mark.parametrize("sizes", [(10, 10, 10), (0, 10, 0), (1000, 0, 1000)])
def test_lines_without_end_do_not_keep_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int]
) -> None:
    """Each file has what came while it was the newest, though some wait whenever lines are written."""
    monkeypatch.setattr(writer, "GATHER", 0.001)
    monkeypatch.setattr(writer, "BATCH", 2000)
    moves, there, real, after = threading.Event(), threading.Event(), LogFile.write, 0

    def busy(self: LogFile, lines: Sequence[bytes]) -> None:
        nonlocal after
        assert moves.wait(20)
        real(self, lines)
        if self.path.name == "c":
            there.set()
        elif after < 100:
            after += 1
            made.put([b"c"])

    monkeypatch.setattr(LogFile, "write", busy)
    made = Writer(LogFile(tmp_path / "a", 1 << 30, 1, "no"), 1 << 20)
    for name, size in zip("abc", sizes, strict=True):
        if name != "a":
            made.turn_to(LogFile(tmp_path / name, 1 << 30, 1, "no"), 1 << 20)
        made.put([name.encode()] * size)
    made.put([b"c"])
    moves.set()
    assert there.wait(20) and after < 100
    assert made.stop(20) and not made.dropped and made.written == sum(sizes) + 1 + after
    a, b, c = sizes
    for name, size in (("a", a), ("b", b), ("c", c + 1 + after)):
        assert (tmp_path / name).read_bytes() == f"{name}\n".encode() * size


@pytest.mark.parametrize("keep", [0, 2])
def test_a_file_that_another_puts_away_first_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int) -> None:
    """logrotate, between our look at the name and our own renaming."""
    file = LogFile(tmp_path / "a", 4096, keep, "no")
    file.write([b"x" * 4050])
    rotate, named = LogFile._rotate, LogFile._named

    def late(self: LogFile) -> tuple[int, int] | None:
        found = named(self)
        if found and self.path.stat().st_size > 4000:
            self.path.rename(tmp_path / "others")
        return found

    def rotated(self: LogFile) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(LogFile, "_named", late)
            rotate(self)

    monkeypatch.setattr(LogFile, "_rotate", rotated)
    file.write([b"y" * 100])
    file.close()
    assert (tmp_path / "a").read_bytes() == b"y" * 100 + b"\n" and (tmp_path / "others").stat().st_size == 4051


def test_at_the_end_a_full_disk_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(descriptor: int, data: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer.os, "write", failing)
    made = Writer(LogFile(tmp_path / "a", 1 << 30, 1, "no"), 1 << 20)
    for _ in range(10):
        made.put([b"{}"])
    assert made.stop(5) and made.dropped == made.untold == 10


@async_test
async def test_what_a_full_disk_did_not_take_at_the_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no line to say so: the file has no room for that either."""

    def failing(descriptor: int, data: Any) -> int:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a"
    async with running(Plugin(Config(str(path)))) as runtime:
        monkeypatch.setattr(writer.os, "write", failing)
        for _ in range(3):
            runtime.audit(AuditEvent.about("one"))
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot write the audit log {path}: No space left on device",
        f"the audit log {path} lacks its end, 3 lines: the disk did not take them",
    ]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=40), st.integers(0, 3))
def test_lines_are_whole_and_in_order(tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, bool]], keep: int) -> None:
    folder = tmp_path_factory.mktemp("log")
    made = Writer(LogFile(folder / "a", 4096, keep, "no"), 1 << 20)
    for n, (size, pause) in enumerate(sizes):
        made.put([json.dumps({"n": n, "pad": "x" * size}).encode()])
        if pause:
            time.sleep(0.0005)
    assert made.stop(10)
    names = [f"a.{i}" for i in range(keep, 0, -1)] + ["a"]
    numbers = [line["n"] for name in names if (folder / name).exists() for line in lines(folder / name)]
    assert numbers == list(range(len(sizes) - len(numbers), len(sizes)))


# ---- where it may lie


def config(tmp_path: Path, text: str) -> Path:
    (tmp_path / "agentfw.toml").write_text(text)
    return tmp_path / "agentfw.toml"


def test_not_where_agents_look(tmp_path: Path) -> None:
    file = load_config(config(tmp_path, '[audit]\nfile = "seen/audit.jsonl"\n'))
    manager = load_plugins(["audit"], file)
    seen = tmp_path / "seen"
    with pytest.raises(ConfigError) as caught:
        manager.check_guest(file, {}, lambda path: path.is_relative_to(seen))
    assert caught.value.key == "audit.file" and str(seen) in caught.value.message and caught.value.hint
    manager.check_guest(file, {}, lambda path: path.is_relative_to(tmp_path / "other"))
    assert not (seen / "audit.jsonl").exists()


def test_a_log_of_nothing_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"audit\.events: expected list of length >= 1"):
        load_plugins(["audit"], load_config(config(tmp_path, '[audit]\nfile = "audit.jsonl"\nevents = []\n')))


@pytest.mark.parametrize(("events", "told"), [(("model_calls",), True), (("exits",), False), (None, False)])
@async_test
async def test_model_calls_that_nobody_tells_of(
    tmp_path: Path, events: tuple[Kind, ...] | None, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    file = str(tmp_path / "audit.jsonl")
    async with running(Plugin(Config(file) if events is None else Config(file, events))):
        pass
    assert ("[audit]: `model_calls` are written only if `inspect` is among the plugins" in caplog.messages) == told


def test_not_through_a_link_into_where_agents_look(tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "seen")
    file = load_config(config(tmp_path, '[audit]\nfile = "link/audit.jsonl"\n'))
    with pytest.raises(ConfigError):
        load_plugins(["audit"], file).check_guest(file, {}, lambda path: path.is_relative_to(tmp_path / "seen"))


@pytest.mark.parametrize("what", ["directory", "missing", "link", "fifo", "hard link"])
@async_test
async def test_what_is_no_file_of_ours_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "audit.jsonl"
    if what == "directory":
        path.mkdir()
    elif what == "link":
        (tmp_path / "target").touch()
        path.symlink_to(tmp_path / "target")
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "hard link":
        (tmp_path / "other").touch()
        path.hardlink_to(tmp_path / "other")
    name = "no/such/audit.jsonl" if what == "missing" else "audit.jsonl"
    file = load_config(config(tmp_path, f'[audit]\nfile = "{name}"\n'))
    runtime = Runtime(asyncio.get_running_loop(), load_plugins(["audit"], file), file)
    with pytest.raises(ConfigError) as caught:
        await runtime.start()
    assert caught.value.key == "audit.file" and caught.value.line == 2


@async_test
async def test_another_file_after_a_reload(tmp_path: Path) -> None:
    plugin = Plugin(Config(str(tmp_path / "a")))
    async with running(plugin) as runtime:
        runtime.audit(AuditEvent.about("one"))
        with pytest.raises(ConfigError):
            plugin.reconfigure(Config(str(tmp_path / "no" / "b")))
        plugin.reconfigure(Config(str(tmp_path / "b")))()
        for _ in range(400):  # what waited goes into the old file first
            await asyncio.sleep(0.005)
            if plugin._writer is not None and not plugin._writer._turns:
                break
        runtime.audit(AuditEvent.about("two"))
    assert [line["event"] for line in lines(tmp_path / "a")] == ["one"]
    assert [line["event"] for line in lines(tmp_path / "b")] == ["two"]


@async_test
async def test_reloads_that_others_refuse_leave_no_file_open(tmp_path: Path) -> None:
    def opened() -> list[str]:
        found = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return sorted(place for place in found if place.startswith(str(tmp_path)))

    plugin = Plugin(Config(str(tmp_path / "a")))
    async with running(plugin) as runtime:
        for _ in range(5):
            plugin.reconfigure(Config(str(tmp_path / "b")))
        assert opened() == [str(tmp_path / "a"), str(tmp_path / "b")]
        runtime.audit(AuditEvent.about("one"))
    assert opened() == [] and [line["event"] for line in lines(tmp_path / "a")] == ["one"]


@async_test
async def test_a_disk_that_takes_too_long_at_the_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    moves = threading.Event()
    monkeypatch.setattr("agentfw_audit.plugin.STOP_SECONDS", 0.1)
    monkeypatch.setattr(LogFile, "write", lambda self, lines: moves.wait(20))
    plugin = Plugin(Config(str(tmp_path / "a")))
    try:
        async with running(plugin) as runtime:
            runtime.audit(AuditEvent.about("one"))
    finally:
        moves.set()
    assert "lacks its end" in caplog.text
    assert plugin._writer is not None and plugin._writer.stop(10)


@pytest.mark.parametrize(
    "table", ['file = ""', 'file = "a"\nkeep = -1', 'file = "a"\nmax_bytes = 1', 'file = "a"\nevents = ["all"]', ""]
)
def test_mistakes_in_the_table(tmp_path: Path, table: str) -> None:
    with pytest.raises(ConfigError):
        load_plugins(["audit"], load_config(config(tmp_path, f"[audit]\n{table}\n")))


@async_test
async def test_no_word_of_an_events_own_makes_its_line_none(tmp_path: Path) -> None:
    """A plugin's `count="3"` was a line that `agentfw audit` could not read."""
    path = tmp_path / "a"
    extra = {"count": "3", "allowed": "no", "labels": "x", "time": "noon", "agent_id": "y", "event": "z", "left": "7"}
    async with running(Plugin(Config(str(path)))) as runtime:
        runtime.audit(AuditEvent(time=1.0, kind="a_plugins", reason="r", extra=extra))
    (line,) = lines(path)
    assert decode(path.read_bytes()).event == "a_plugins" and (line["left"], line["count_"], line["labels_"]) == ("7", "3", "x")


@async_test
async def test_queries_that_are_not_told_make_no_kinds(tmp_path: Path) -> None:
    path = tmp_path / "a"
    plugin, agent = Plugin(Config(str(path))), make_agent("a")
    async with running(plugin) as runtime:
        for n in range(20):
            decision = Decision(allowed=False, rule="r", hook="request", method="GET", target=f"/x?n={n}")
            runtime.plugins.decided(agent, Destination.make("https", "x.example"), decision)
        runtime.agent_exited(agent, ExitReport("code"))
    told = [line for line in lines(path) if line["event"] == "decision"]
    assert [(line["target"], line.get("count", 1)) for line in told] == [("/x", 1), ("/x", 19)]


def test_a_file_system_without_locks_is_written_and_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the file was full nothing was written any more."""

    def none(descriptor: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(writer.fcntl, "flock", none)
    file = LogFile(tmp_path / "a", 4096, 2, "no")
    for letter in b"abc":
        file.write([bytes([letter]) * 3000])
    file.close()
    assert [(tmp_path / name).read_bytes()[:1] for name in ("a.2", "a.1", "a")] == [b"a", b"b", b"c"]


def test_rotations_are_counted_on_after_a_reload(tmp_path: Path) -> None:
    made = Writer(LogFile(tmp_path / "a", 4096, 1, "no"), 1 << 20)
    made.put([b"x" * 3000] * 3)
    made.turn_to(LogFile(tmp_path / "b", 4096, 1, "no"), 1 << 20)
    made.put([b"x" * 3000] * 2)
    assert made.stop(20) and made.rotations == 3


def test_destinations_read_as_people_write_them() -> None:
    assert str(Destination("https", HOST, 443)) == "https://api.example:443"
