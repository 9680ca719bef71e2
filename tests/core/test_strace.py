"""agentfw.strace: the order of lines, and the summary."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from agentfw.cli.traced import StraceOptions, tracing
from agentfw.strace import COUNTS_MOST, IDLE, THREADS_MOST, Strace, chosen
from agentfw_vmm import VmExit
from agentfw_vmm.syscalls import NUMBERS
from agentfw_vmm.trace import Chunk, Event, Tracer


class Agent:
    """What a cell would tell of VM 0."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.now = 0
        self.enter(1, "write", 4, 0x10, 40, text=struct.pack("<I", 36) + b'{"ready": "x')
        self.leave(1, "write", 40)

    def enter(self, tid: int, name: str, *args: int, text: bytes = b"") -> None:
        self._tell(tid, name, True, 0, args, {1: Chunk(text)} if text else {})

    def leave(self, tid: int, name: str, result: int, host: bool = False) -> None:
        self._tell(tid, name, False, result, (), {}, host)

    def _tell(self, tid: int, name: str, entry: bool, result: int, args: Any, memory: Any, host: bool = False) -> None:
        self.now += 1000
        self._tracer.call(Event(0, entry, tid, host, NUMBERS[name], result, self.now, (*args, *[0] * (6 - len(args))), 0, memory))


def traced(what: Callable[[Agent], Any], wait: float = 0, **options: Any) -> list[str]:
    out = StringIO()

    async def main() -> Strace:
        strace = Strace(out, **options)
        tracer = strace.tracer(lambda vm: "agent-7")
        tracer.call(Event(0, True, 1, False, NUMBERS["getpid"], 0, 0, (0,) * 6))  # the bootstrap's
        tracer.call(Event(0, False, 1, False, NUMBERS["getpid"], 5, 0, (0,) * 6))
        what(Agent(tracer))
        await asyncio.sleep(wait)
        tracer.ended(0, VmExit("code", 3, 0, ""))
        return strace

    strace = asyncio.run(main())
    return [*out.getvalue().splitlines(), *(strace.table().splitlines() if strace.summary else [])]


def test_calls_of_threads_that_wait() -> None:
    def what(agent: Agent) -> None:
        agent.enter(1, "gettid")
        agent.leave(1, "gettid", 1)
        agent.enter(1, "read", 3, 0x10, 5)
        agent.enter(2, "close", 3)
        agent.leave(2, "close", -9, host=True)
        agent.leave(1, "read", 0)
        agent.enter(2, "exit", 0)
        agent.enter(1, "pause")

    assert traced(what) == [
        "gettid() = 1 [shim]",
        "read(3,  <unfinished ...>",
        "[pid 2] close(3) = -1 EBADF (Bad file descriptor) [host]",
        "[pid 1] <... read resumed>0x10, 5) = 0 [shim]",
        "[pid 2] exit(0) = ? [shim]",
        "[pid 2] +++ exited with 0 +++",
        "pause() = ?",
        "+++ exited with 3 +++",
    ]


def test_a_call_that_waits_is_shown_before_it_ends() -> None:
    def what(agent: Agent) -> None:
        agent.enter(1, "pause")

    lines = traced(what, wait=3 * IDLE, several=True)
    assert lines == [
        "[agent-7] pause( <unfinished ...>",
        "[agent-7] <... pause resumed>) = ?",
        "[agent-7] +++ exited with 3 +++",
    ]


def test_a_call_that_is_not_printed_is_no_other_line() -> None:
    def what(agent: Agent) -> None:
        agent.enter(1, "read", 3, 0x10, 5)
        agent.enter(2, "close", 3)
        agent.leave(2, "close", 0)
        agent.leave(1, "read", 0)

    assert traced(what, calls=chosen("read"))[:-1] == ["[pid 1] read(3, 0x10, 5) = 0 [shim]"]


def test_what_guests_make_up_is_kept_within_bounds() -> None:
    def threads(agent: Agent) -> None:
        for tid in range(THREADS_MOST + 100):
            agent.enter(tid + 1, "pause")

    ends = traced(threads)[THREADS_MOST + 99 :]  # each is printed when the next comes, and again at the end
    assert len(ends) == THREADS_MOST + 1 and ends[0].startswith("[pid 101] <... pause resumed>")

    def numbers(agent: Agent) -> None:
        for number, entry in itertools.product(range(1000, 1000 + 2 * COUNTS_MOST), (True, False)):
            agent._tracer.call(Event(0, entry, 1, False, number, -38, number, (0,) * 6))

    lines = traced(numbers, summary=True)
    assert len(lines) <= COUNTS_MOST + 5 and any(line.split()[3:] == ["1000", "1000", "shim", "(others)"] for line in lines)


@pytest.mark.parametrize("summary", [False, True])
def test_a_full_disk_ends_nothing(summary: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with tracing(StraceOptions(summary, Path("/dev/full"), "", 32), False) as strace:
        assert strace is not None
        strace.line("a")
        strace.line("b")
    assert capsys.readouterr().err == "error: /dev/full: No space left on device: what came then is not in it\n"


def test_only_some_calls() -> None:
    def what(agent: Agent) -> None:
        for name in ("openat", "read", "gettid"):
            agent.enter(1, name, 3)
            agent.leave(1, name, 4)

    assert [line.split("(")[0] for line in traced(what, calls=chosen("open*,gettid"))[:-1]] == ["openat", "gettid"]
    with pytest.raises(ValueError, match="opne"):
        chosen("opne")
    assert chosen("") is None


def test_summary() -> None:
    def what(agent: Agent) -> None:
        for _ in range(3):
            agent.enter(1, "openat", 3)
            agent.leave(1, "openat", -2, host=True)
        agent.enter(1, "gettid")
        agent.leave(1, "gettid", 1)

    lines = traced(what, summary=True)
    assert lines[0].split() == ["%", "time", "seconds", "usecs/call", "calls", "errors", "where", "syscall"]
    assert lines[2].split() == ["75.00", "0.000003", "1", "3", "3", "host", "openat"]
    assert lines[3].split() == ["25.00", "0.000001", "1", "1", "shim", "gettid"]
    assert lines[-1].split() == ["100.00", "0.000004", "1", "4", "3", "total"]


def test_lost_messages_are_told() -> None:
    def what(agent: Agent) -> None:
        agent.enter(1, "gettid")
        agent._tracer.call(Event(0, False, 1, False, NUMBERS["close"], 0, 0, (0,) * 6, lost=4))

    assert traced(what)[0] == "(4 messages were lost here)"
