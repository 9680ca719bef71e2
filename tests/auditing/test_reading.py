"""The log read again: forwards, backwards, as it grows and is put away, with garbage in it, whatever its size."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import threading
import tracemalloc
from pathlib import Path

import pytest
from agentfw_audit import reading
from agentfw_audit.choosing import Chooser, decode, moment, value_of
from agentfw_audit.reading import Follower, Parts, Unread
from agentfw_audit.writer import LogFile, Writer
from hypothesis import given, settings
from hypothesis import strategies as st


def line(n: int, size: int = 0, **more: object) -> bytes:
    return json.dumps({"time": 1000.0 + n, "event": "exit", "n": n, "pad": "x" * size, **more}).encode()


def write(path: Path, *lines: bytes, end: bytes = b"\n") -> None:
    path.write_bytes(b"\n".join(lines) + end if lines else b"")


def numbers(lines: object) -> list[int]:
    return [json.loads(each)["n"] for each in lines]  # type: ignore[attr-defined]


def following(path: Path, unread: Unread) -> Follower:
    """From its end on."""
    with Parts(path) as parts:
        return Follower(path, unread, parts.take())


def both_ways(path: Path) -> tuple[list[bytes], list[bytes], Unread]:
    unread = Unread()
    with Parts(path) as parts:
        forward = list(parts.forward(unread))
        backward = list(parts.backward(Unread()))
    return forward, backward[::-1], unread


def test_all_files_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with gzip.open(tmp_path / "a.3.gz", "wb") as file:
        file.write(line(0) + b"\n" + line(1) + b"\n")
    write(tmp_path / "a.2", line(2), line(3))
    write(tmp_path / "a.1", line(4))
    write(path, line(5), line(6))
    write(tmp_path / "ab", b"another's")
    write(tmp_path / "a.1.lock", b"another's")
    with gzip.open(tmp_path / "a-20260101.gz", "wb") as file:
        file.write(line(-1) + b"\n")
    forward, backward, unread = both_ways(path)
    assert numbers(forward) == numbers(backward) == list(range(-1, 7)) and not unread.lines
    path.unlink()
    assert numbers(both_ways(path)[0]) == list(range(-1, 5))  # between two files


def test_what_is_put_away_amid_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    write(tmp_path / "a.1", line(0))
    write(path, line(1))
    real = reading._open

    def rotating(each: Path, *, active: bool) -> reading.Part:
        part = real(each, active=active)
        if each == path:
            (tmp_path / "a.1").rename(tmp_path / "a.2")
            path.rename(tmp_path / "a.1")
            write(path, line(2))
        return part

    monkeypatch.setattr(reading, "_open", rotating)
    monkeypatch.setattr(reading, "_put_away", lambda each: [tmp_path / "a.1", tmp_path / "a.2"])
    with Parts(path) as parts:
        assert numbers(parts.forward(Unread())) == [0, 1]


def test_old_files_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(tmp_path / "a.1", b"\xff" * 1000)
    os.utime(tmp_path / "a.1", (500, 500))
    write(path, line(0))
    read = 0

    def told(size: int) -> None:
        nonlocal read
        read += size

    with Parts(path) as parts:
        assert numbers(parts.forward(Unread(), 900.0, told)) == [0] and read == parts.size
        assert numbers(parts.backward(Unread(), 900.0)) == [0]


def test_a_file_systems_clock_may_be_late(tmp_path: Path) -> None:
    """A coarse one is some milliseconds: lines of the last of them were left out with their file."""
    path = tmp_path / "a"
    write(path, line(0))
    os.utime(path, (999.996, 999.996))
    with Parts(path) as parts:
        assert numbers(parts.forward(Unread(), 1000.0)) == numbers(parts.backward(Unread(), 1000.0)) == [0]


@pytest.mark.parametrize("kind", ["directory", "fifo", "missing"])
def test_what_is_no_log(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(OSError):
        Parts(path).__enter__()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 300), st.just(-1)), max_size=60),
    st.integers(1, 200),
    st.integers(100, 250),
    st.booleans(),
)
def test_lines_are_the_same_both_ways(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], piece: int, most: int, ended: bool
) -> None:
    """-1: an empty line. Those that are too long are left out and counted, in whatever pieces they are read."""
    path = tmp_path_factory.mktemp("log") / "a"
    lines = [b"" if size < 0 else b"{" + b"x" * size + b"}" for size in sizes]
    path.write_bytes(b"\n".join(lines) + (b"\n" if ended and lines else b""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "PIECE", piece)
        patch.setattr(reading, "MAX_LINE", most)
        forward, backward, unread = both_ways(path)
    short = [each for each in lines if each and len(each) <= most]
    assert forward == backward == short
    assert unread.lines == sum(len(each) > most for each in lines)


def test_memory_is_bounded(tmp_path: Path) -> None:
    """100 MB, one line of it 60 MB long."""
    path = tmp_path / "a"
    with path.open("wb") as file:
        for n in range(20_000):
            file.write(line(n, 1900) + b"\n")
        for _ in range(60):
            file.write(b"x" * (1 << 20))
        file.write(b"\n" + line(20_000) + b"\n")
    tracemalloc.start()
    unread = Unread()
    with Parts(path) as parts:
        count = sum(1 for each in parts.forward(unread) if each)
        back = sum(1 for each in parts.backward(Unread()) if each)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == back == 20_001 and unread.lines == 1 and peak < 16 << 20
    assert unread.first == f"{path}, line 20001"


def test_a_gzip_file_that_is_broken_is_told(tmp_path: Path) -> None:
    whole = gzip.compress(b"\n".join(line(n) for n in range(1000)))
    (tmp_path / "a.2.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "a.1.gz").write_bytes(b"no gzip at all")
    write(tmp_path / "a", line(1000))
    unread = Unread()
    with Parts(tmp_path / "a") as parts:
        found = numbers(parts.forward(unread))
    assert found[-1] == 1000 and found[:-1] == list(range(len(found) - 1)) and unread.lines == 2 and "a.2.gz" in unread.first


def test_a_last_line_that_is_being_written_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, line(0), line(1)[:20], end=b"")
    with path.open("ab") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)  # as `LogFile` does for as long as it writes
        forward, backward, unread = both_ways(path)
        assert numbers(forward) == numbers(backward) == [0] and not unread.lines
    path.rename(tmp_path / "a.1")  # nobody writes it any more
    assert both_ways(path)[0][-1] == line(1)[:20]


@pytest.mark.parametrize("rest", [line(1)[:20], line(1), bytes(4096)])
def test_a_last_line_that_never_gets_its_end_is(tmp_path: Path, rest: bytes) -> None:
    """Whoever wrote it was killed, or lost its power: torn it is to be told, and all but its end may be there."""
    path = tmp_path / "a"
    write(path, line(0), rest, end=b"")
    forward, backward, unread = both_ways(path)
    assert forward == backward == [line(0), rest] and not unread.lines
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody keeps the next writer from it
    with Parts(path) as parts:
        with path.open("ab") as file:
            file.write(b"x")  # it was not over
        assert list(parts.forward(Unread())) == [line(0)]
    with Parts(path) as parts:
        assert list(parts.backward(Unread(), following=True)) == [line(0)]


# ---- as it grows


def test_following_goes_along_when_files_are_put_away(tmp_path: Path) -> None:
    path, unread = tmp_path / "a", Unread()
    write(path, line(0))
    follower = following(path, unread)
    assert numbers(follower.lines()) == []
    with path.open("ab") as file:
        file.write(line(1) + b"\n" + line(2)[:10])
    assert numbers(follower.lines()) == [1]
    with path.open("ab") as file:
        file.write(line(2)[10:] + b"\n")
    path.rename(tmp_path / "a.1")
    assert numbers(follower.lines()) == [2]
    (tmp_path / "a.1").rename(tmp_path / "a.2")
    write(tmp_path / "a.1", line(3), line(4))  # one that came and went between two looks
    write(path, line(5))
    assert numbers(follower.lines()) == [3, 4, 5] and not unread.lines
    with path.open("ab") as file:
        file.write(line(6) + b"\n" + line(66)[:10])
    assert numbers(follower.lines()) == [6]
    other = following(path, unread)  # begins with a line that is being written
    with path.open("ab") as file:
        file.write(line(66)[10:] + b"\n")
    assert numbers(follower.lines()) == numbers(other.lines()) == [66]
    other.close()
    path.write_bytes(line(7) + b"\n")  # emptied, and written anew
    os.truncate(path, 0)
    assert numbers(follower.lines()) == []
    path.write_bytes(line(8)[:10])
    assert numbers(follower.lines()) == [] and not unread.lines
    os.truncate(path, 0)  # amid a line
    assert numbers(follower.lines()) == [] and unread.lines == 1 and ascii(line(8)[:10].decode()) == unread.first
    path.write_bytes(line(8) + b"\n")
    assert numbers(follower.lines()) == [8]
    path.unlink()
    assert numbers(follower.lines()) == []
    write(path, line(9))
    assert numbers(follower.lines()) == [9]
    follower.close()


def test_following_one_that_is_not_there_yet(tmp_path: Path) -> None:
    path = tmp_path / "a"
    follower = Follower(path, Unread(), None)
    write(tmp_path / "a.1", line(0))
    assert list(follower.lines()) == []
    write(path, line(1))
    assert numbers(follower.lines()) == [1]
    follower.close()


def test_following_while_files_are_given_other_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at one name and the next: one file was read by both."""
    path, real = tmp_path / "a", reading._open
    write(path, line(0))
    follower = following(path, Unread())

    def put_away() -> None:
        for number in (2, 1):
            if (tmp_path / f"a.{number}").exists():
                (tmp_path / f"a.{number}").rename(tmp_path / f"a.{number + 1}")
        path.rename(tmp_path / "a.1")

    put_away()
    write(path, line(1))
    put_away()
    write(path, line(2))
    left = [1]

    def late(path: Path, *, active: bool) -> reading.Part:
        part = real(path, active=active)
        if left and active:
            left.pop()
            put_away()
            write(path, line(3))
        return part

    monkeypatch.setattr(reading, "_open", late)
    assert [*numbers(follower.lines()), *numbers(follower.lines())] == [1, 2, 3] and not left
    follower.close()


def test_following_a_log_that_two_write_and_put_away(tmp_path: Path) -> None:
    """Nothing is lost and nothing comes twice, whatever the writers do meanwhile."""
    path, unread = tmp_path / "a", Unread()
    LogFile(path, 4096, 1000, "no").close()
    follower = following(path, unread)

    def run(first: int) -> None:
        made = Writer(LogFile(path, 4096, 1000, "no"), 1 << 20)
        for n in range(first, first + 500):
            made.put([line(n, 50)])
            if not n % 20:
                threading.Event().wait(0.002)
        assert made.stop(20)

    threads = [threading.Thread(target=run, args=(first,)) for first in (0, 500)]
    for thread in threads:
        thread.start()
    found: list[int] = []
    while any(thread.is_alive() for thread in threads):
        found += numbers(follower.lines())
    found += numbers(follower.lines())
    follower.close()
    assert sorted(found) == list(range(1000)) and not unread.lines and (tmp_path / "a.5").exists()


# ---- which lines


LINE = {
    "time": 1000.0, "event": "decision", "agent_id": "7k2m.2-9", "agent": "crawl-1", "labels": {"tenant": "red", "team": "x"},
    "destination": "https://[::1]:8443", "rule": "policy.deny: *.example (agentfw.toml:3)", "allowed": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, True),
        ({"since": 1000.0, "until": 1001.0}, True),
        ({"since": 1000.1}, False),
        ({"until": 1000.0}, False),
        ({"agents": ["crawl-*"]}, True),
        ({"agents": ["7k2m.2-9", "other"]}, True),
        ({"agents": ["crawl"]}, False),
        ({"jobs": ["7k2m"]}, True),
        ({"jobs": ["7k2"]}, False),
        ({"jobs": ["7k2m.2"]}, True),
        ({"tenants": ["red"]}, True),
        ({"tenants": ["blue"]}, False),
        ({"labels": {"team": "x", "tenant": "r*"}}, True),
        ({"labels": {"team": "y"}}, False),
        ({"labels": {"none": "*"}}, False),
        ({"events": ["decision"]}, True),
        ({"events": ["exit", "job"]}, False),
        ({"destinations": ["::1"]}, True),
        ({"destinations": ["[::1]:8443"]}, True),
        ({"destinations": ["https://[::1]:*"]}, True),
        ({"destinations": ["https://*"]}, True),
        ({"destinations": ["1"]}, False),
        ({"rules": ["policy.deny"]}, True),
        ({"rules": ["allow"]}, False),
        ({"models": ["*"]}, False),
        ({"by": ["uid"]}, False),
        ({"denied": True}, True),
        ({"denied": True, "agents": ["nobody"]}, False),
    ],
)
def test_choosing(options: dict[str, object], wanted: bool) -> None:
    assert Chooser(**options).wants(decode(json.dumps(LINE).encode())) is wanted  # type: ignore[arg-type]


def test_choosing_jobs_and_questions() -> None:
    job = decode(b'{"time":1,"event":"job","what":"ended","job":"abc","tenant":"t","by":"uid 7 pid 8","agent_id":"abc.2"}')
    assert all(
        Chooser(**options).wants(job)  # type: ignore[arg-type]
        for options in ({"events": ["job.ended"]}, {"events": ["job"]}, {"by": ["uid 7"]}, {"tenants": ["t"]}, {"jobs": ["abc"]})
    )
    assert not Chooser(events=["job.submitted"]).wants(job) and not Chooser(denied=True).wants(job)
    question = decode(b'{"time":1,"event":"question","name":"api.example"}')
    assert Chooser(destinations=["*.example"]).wants(question) and not Chooser(destinations=["other"]).wants(question)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"7", b"{}", b'{"time":"x","event":"y"}', b"\xff", b'{"time":1,"event":"x"', b"[" * 9999]
)
def test_what_is_no_line(data: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        decode(data)


def test_times() -> None:
    assert moment("90s", 1000.0) == 910.0 and moment("2h", 10000.0) == 2800.0 and moment("now", 5.0) == 5.0
    assert moment("1764500000") == 1764500000.0 and moment("1970-01-01T00:01:00+00:00") == 60.0
    for wrong in ("", "yesterday", "5", "1y", "2026-13-01", "9" * 30):
        with pytest.raises(ValueError):
            moment(wrong)


def test_values() -> None:
    found = {"labels": {"team": "x", "tenant": "t"}, "usage": {"memory": 7}, "destination": "https://a.example:443"}
    names = ("labels.team", "labels.none", "usage.memory", "tenant", "host", "event", "destination.x")
    assert [value_of(found, name) for name in names] == ["x", None, 7, "t", "a.example", None, None]
