"""What `agentfw run --strace` prints: agents' system calls as strace(1) writes them, and where each was answered.

    openat(AT_FDCWD, "/etc/hosts", O_RDONLY|O_CLOEXEC) = 3 [host]
    [pid 1002] futex(0x7f4a10, FUTEX_WAIT_BITSET_PRIVATE|..., 0, NULL, FUTEX_BITSET_MATCH_ANY <unfinished ...>

`[shim]`: inside the VM. `[host]`: the VM's cell was asked. Nothing is shown of what a VM does before it has its program.
Strings are agents' words: they are cut, and escaped to plain ASCII. They hold no credential of the operator's, since agents
never have one: what they send in its place is a placeholder.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Protocol

from agentfw_vmm import VmExit, trace_calls, trace_names
from agentfw_vmm.syscalls import NUMBERS
from agentfw_vmm.trace import Copy, Event, Tracer
from agentfw_vmm.trace_forms import View
from agentfw_vmm.trace_text import siginfo

from .texts import shown_lines

STRING = 32
"""Bytes of a string that are shown, as with strace."""
STRING_MAX = 1024
IDLE = 0.2
"""Seconds after which a call that has not ended is printed as unfinished."""
THREADS_MOST = 4096
"""Calls of a VM that are open at once, and ..."""
COUNTS_MOST = 1000
"""... rows of a summary. Numbers of calls and threads are the guest's word."""
_READY = b'{"ready"'  # what a VM says on its job stream before its program's first instruction (docs/internals.md)
_READY_BYTES = 16


class Sink(Protocol):
    """Where the lines go."""

    def write(self, text: str) -> object: ...


@dataclass
class _Pending:
    """A call that has begun."""

    number: int
    view: View
    text: str
    done: int  # arguments in `text`
    ns: int
    printed: bool = False  # as unfinished


@dataclass
class _Life:
    """A VM's, until it ends."""

    begun: bool = False
    open: dict[int, _Pending] = field(default_factory=dict)  # by thread
    threads: set[int] = field(default_factory=set)  # two of those that live: it has several
    newest: int = 0  # the thread whose call began last, and has not been printed


@dataclass
class Count:
    """Of a call, for the summary. `seconds` is the time from its beginning to its end, waiting included (as with strace -cw)."""

    calls: int = 0
    errors: int = 0
    seconds: float = 0.0


def chosen(patterns: str) -> frozenset[int] | None:
    """Numbers of the calls that `open*,read` names; None: all. ValueError names a pattern that fits none."""
    words = [word.strip() for word in patterns.split(",") if word.strip()]
    if not words:
        return None
    found: set[int] = set()
    for word in words:
        fits = {number for name, number in NUMBERS.items() if fnmatchcase(name, word)}
        if not fits:
            raise ValueError(f"no system call is named `{word}`")
        found |= fits
    return frozenset(found)


class Strace:
    """Prints the calls of all agents of a command, or counts them. `calls`: numbers of those that are looked at. `string`: bytes
    of a string that are shown."""

    def __init__(
        self,
        sink: Sink,
        *,
        summary: bool = False,
        calls: frozenset[int] | None = None,
        string: int = STRING,
        several: bool = False,
    ) -> None:
        self.counts: dict[tuple[str, str], Count] = {}
        self.lost = 0
        self.string = min(string, STRING_MAX)
        self.summary = summary
        self.several = several
        self.calls = calls
        self._sink = sink

    def tracer(self, name: Callable[[int], str]) -> Tracer:
        """For one cell. `name(vm)`: its agent's, which lines begin with if there are several agents."""
        return _CellTracer(self, name)

    def wants(self, number: int) -> bool:
        return self.calls is None or number in self.calls

    def line(self, text: str) -> None:
        self._sink.write(shown_lines(text) + "\n")

    def count(self, event: Event, ns: int) -> None:
        key = trace_calls.name_of(event.number), "host" if event.host else "shim"
        if len(self.counts) >= COUNTS_MOST and key not in self.counts:
            key = "(others)", key[1]
        count = self.counts.setdefault(key, Count())
        count.calls += 1
        count.errors += -4096 < event.result < 0
        count.seconds += ns / 1e9

    def table(self) -> str:
        """The summary, in the shape of strace -c."""
        total = sum((count.seconds for count in self.counts.values()), 0.0)
        rows = sorted(self.counts.items(), key=lambda item: (-item[1].seconds, item[0]))
        lines = [
            "% time     seconds  usecs/call     calls    errors where syscall",
            "------ ----------- ----------- --------- --------- ----- ----------------",
        ]
        for (name, where), count in rows:
            lines.append(_row(count, total, where, name))
        lines.append(lines[1])
        whole = Count(sum(c.calls for _, c in rows), sum(c.errors for _, c in rows), total)
        lines.append(_row(whole, total, "", "total"))
        if self.lost:
            lines.append(f"({self.lost} messages about calls were lost: they came faster than they were read)")
        return "\n".join(lines)


def _row(count: Count, total: float, where: str, name: str) -> str:
    share = 100 * count.seconds / total if total else 0.0
    each = round(count.seconds * 1e6 / count.calls) if count.calls else 0
    return f"{share:6.2f} {count.seconds:11.6f} {each:11d} {count.calls:9d} {count.errors or '':>9} {where:<5} {name}"


class _CellTracer:
    """A Tracer."""

    def __init__(self, strace: Strace, name: Callable[[int], str]) -> None:
        self._strace = strace
        self._name = name
        self._lives: dict[int, _Life] = {}
        self._timer: asyncio.TimerHandle | None = None

    def copies(self) -> Iterator[Copy]:
        write = NUMBERS["write"]
        for number, call in trace_calls.CALLS.items():
            if self._strace.wants(number) and not self._strace.summary:
                yield from call.copies(max(self._strace.string, _READY_BYTES))
            elif number == write:  # by it the program's beginning is known
                yield from call.copies(_READY_BYTES)

    def call(self, event: Event) -> None:
        life = self._lives.setdefault(event.vm, _Life())
        if event.lost:
            self._strace.lost += event.lost
            life.open.clear()
            if not self._strace.summary:
                self._strace.line(f"{self._prefix(event.vm, life, 0)}({event.lost} messages were lost here)")
        if not life.begun:
            self._look_for_beginning(event, life)
        elif event.signal:
            self._signal(event, life)
        elif event.entry:
            self._entry(event, life)
        else:
            self._leave(event, life)

    def ended(self, vm: int, report: VmExit) -> None:
        life = self._lives.pop(vm, None)
        if life is None or not life.begun or self._strace.summary:
            return
        for tid, pending in sorted(life.open.items()):
            head = f"<... {trace_calls.name_of(pending.number)} resumed>" if pending.printed else pending.text
            rest = "" if pending.done == trace_calls.count(pending.number) else " <unfinished ...>"
            self._strace.line(f"{self._prefix(vm, life, tid)}{head}{rest}{trace_calls.gone()}")
        self._strace.line(f"{self._prefix(vm, life, 0)}+++ {_end(report)} +++")

    def _look_for_beginning(self, event: Event, life: _Life) -> None:
        if event.signal or event.number != NUMBERS["write"]:
            return
        chunk = event.memory.get(1)
        if event.entry and chunk is not None and chunk.data[4:].startswith(_READY):
            life.open[event.tid] = _Pending(event.number, View(event.args), "", 0, event.ns)
        elif not event.entry and event.tid in life.open:
            life.open.clear()
            life.begun = True

    def _entry(self, event: Event, life: _Life) -> None:
        wanted = self._strace.wants(event.number)
        if wanted:
            self._unfinished(event.vm, life)
        if len(life.threads) < 2:
            life.threads.add(event.tid)
        if not wanted:
            return
        view = View(event.args, self._strace.string, before=event.memory)
        text, done = ("", 0) if self._strace.summary else trace_calls.begun(event.number, view)
        if not trace_calls.returns(event.number):
            self._last(event, life, text)
            return
        if len(life.open) >= THREADS_MOST and event.tid not in life.open:
            del life.open[next(iter(life.open))]
        life.open[event.tid] = _Pending(event.number, view, text, done, event.ns)
        if not self._strace.summary:
            life.newest = event.tid
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(IDLE, self._idle)

    def _signal(self, event: Event, life: _Life) -> None:
        if self._strace.summary:
            return
        self._unfinished(event.vm, life)
        name = trace_names.SIGNALS.get(event.number, f"{event.number}")
        info = siginfo(event.number, event.result, event.args[0], event.args[1])
        self._strace.line(f"{self._prefix(event.vm, life, event.tid)}--- {name} {info} ---")

    def _last(self, event: Event, life: _Life, text: str) -> None:
        """Of a thread, or of all."""
        if self._strace.summary:
            self._strace.count(event, 0)
            return
        prefix = self._prefix(event.vm, life, event.tid)
        self._strace.line(f"{prefix}{text}{trace_calls.gone()} [shim]")
        if event.number == NUMBERS["exit"]:
            self._strace.line(f"{prefix}+++ exited with {event.args[0] & 0xFF} +++")
            life.threads.discard(event.tid)
            life.threads.update(itertools.islice(life.open, 2))

    def _leave(self, event: Event, life: _Life) -> None:
        pending = life.open.pop(event.tid, None)
        if pending is None or (event.number != pending.number and event.number >> 63 == 0):
            return  # its beginning was lost, or not wanted
        event.number = pending.number
        if self._strace.summary:
            self._strace.count(event, event.ns - pending.ns)
            return
        if life.newest != event.tid:
            self._unfinished(event.vm, life)
        life.newest = 0
        pending.view.after = event.memory
        pending.view.result = event.result
        rest = trace_calls.ended(event.number, pending.view, pending.done)
        head = pending.text
        if pending.printed:
            head, rest = f"<... {trace_calls.name_of(event.number)} resumed>", rest.removeprefix(", ")
        where = "host" if event.host else "shim"
        self._strace.line(f"{self._prefix(event.vm, life, event.tid)}{head}{rest} [{where}]")

    def _unfinished(self, vm: int, life: _Life) -> None:
        """Another line comes: the call that has begun is printed as far as it is known."""
        pending = life.open.get(life.newest)
        if pending is not None and not pending.printed and not self._strace.summary:
            pending.printed = True
            more = ", " if 0 < pending.done < trace_calls.count(pending.number) else ""
            self._strace.line(f"{self._prefix(vm, life, life.newest)}{pending.text}{more} <unfinished ...>")
        life.newest = 0

    def _idle(self) -> None:
        """Shows in what calls threads wait."""
        self._timer = None
        left = False
        for vm, life in self._lives.items():
            pending = life.open.get(life.newest)
            if pending is None or pending.printed:
                continue
            if life.begun and time.monotonic_ns() - pending.ns >= IDLE * 1e9:
                self._unfinished(vm, life)
            else:
                left = True
        if left:
            self._timer = asyncio.get_running_loop().call_later(IDLE, self._idle)

    def _prefix(self, vm: int, life: _Life, tid: int) -> str:
        agent = f"[{self._name(vm)}] " if self._strace.several else ""
        return f"{agent}[pid {tid}] " if tid and len(life.threads) > 1 else agent


def _end(report: VmExit) -> str:
    if report.kind == "code":
        return f"exited with {report.code}"
    if report.kind == "signal":
        try:
            return f"killed by {signal.Signals(report.signal).name}"
        except ValueError:
            return f"killed by signal {report.signal}"
    return f"killed ({report.kind})"
