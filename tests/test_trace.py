"""System calls as strace writes them (agentfw_vmm.trace*): out of bytes that a guest chose."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import struct
from pathlib import Path

import pytest
from agentfw_vmm import CellError, VmExit, trace, trace_calls, trace_text
from agentfw_vmm.cell import Cell
from agentfw_vmm.config import CellConfig, Mount
from agentfw_vmm.syscalls import NUMBERS
from agentfw_vmm.trace import Chunk
from agentfw_vmm.trace_forms import FORMS, View
from agentfw_vmm.trace_socket import TraceSocket
from hypothesis import given, settings
from hypothesis import strategies as st

from .descriptors import left, opened
from .native import bare

CWD = (1 << 64) - 100


def written(
    name: str, *args: int, result: int = 0, before: dict[int, bytes] | None = None, after: dict[int, bytes] | None = None
) -> str:
    view = View(tuple(args) + (0,) * (6 - len(args)), before={n: Chunk(data) for n, data in (before or {}).items()})
    head, done = trace_calls.begun(NUMBERS[name], view)
    view.after = {n: Chunk(data) for n, data in (after or {}).items()}
    view.result = result
    return head + trace_calls.ended(NUMBERS[name], view, done)


def test_calls_as_strace_writes_them() -> None:
    opened = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    assert (
        written("openat", CWD, 0x10, opened, 0o644, result=3, before={1: b"a\nb\0"})
        == r'openat(AT_FDCWD, "a\nb", O_WRONLY|O_CREAT|O_CLOEXEC, 0644) = 3'
    )
    assert (
        written("openat", 5, 0x10, 0, result=-2, before={1: b"x\0"})
        == 'openat(5, "x", O_RDONLY) = -1 ENOENT (No such file or directory)'
    )
    assert written("read", 3, 0x10, 100, result=5, after={1: b"he\x1b[m"}) == r'read(3, "he\33[m", 100) = 5'
    assert written("read", 3, 0x10, 100, result=-11) == "read(3, 0x10, 100) = -1 EAGAIN (Resource temporarily unavailable)"
    assert written("write", 1, 0x10, 40, result=40, before={1: b"x" * 33}) == f'write(1, "{"x" * 32}"..., 40) = 40'
    assert (
        written("mmap", 0, 4096, 3, 0x22, (1 << 64) - 1, 0, result=0x7000)
        == "mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7000"
    )
    assert written("exit_group", 3)[:14] == "exit_group(3) "
    assert written("futex", 0x10, 128, 2, 0) == "futex(0x10, FUTEX_WAIT_PRIVATE, 2, NULL) = 0"
    assert written("futex", 0x10, 129, 1, 0x5, result=1) == "futex(0x10, FUTEX_WAKE_PRIVATE, 1) = 1"
    assert written("fcntl", 3, 3, 0, result=0x802) == "fcntl(3, F_GETFL) = 0x802 (flags O_RDWR|O_NONBLOCK)"
    assert written("kill", 7, int(signal.SIGTERM)) == "kill(7, SIGTERM) = 0"
    assert written("pipe2", 0x10, 0, after={0: struct.pack("<ii", 3, 4)}) == "pipe2([3, 4], 0) = 0"
    assert written("gettid", result=9) == "gettid() = 9"
    assert written("clone3", 0x10, 88, before={0: bytes(88)}).startswith("clone3({flags=0, ")  # more than was asked for
    one, two = struct.pack("<i", 1), struct.pack("<i", 2)
    assert written("ioctl", 3, 0x5421, 0x10, before={2: one}, after={2: two}) == "ioctl(3, FIONBIO, [1]) = 0"
    assert written("ioctl", 3, 0x541B, 0x10, before={2: one}, after={2: two}) == "ioctl(3, FIONREAD, [2]) = 0"
    assert written("ioctl", 3, 0x541B, 0x10, result=-9, before={2: one}).startswith("ioctl(3, FIONREAD, 0x10) = -1 EBADF ")
    assert written("getsockname", 3, 0x10, 0x20, before={2: one}, after={1: b"", 2: two}).endswith(", [1 => 2]) = 0")
    assert written("getsockname", 3, 0x10, 0x20, before={2: one[:3]}, after={1: b"", 2: two}).endswith(", [2]) = 0")


def test_structures() -> None:
    address = struct.pack("<H", socket.AF_INET) + struct.pack(">H", 443) + bytes([10, 0, 2, 2]) + bytes(8)
    assert written("connect", 3, 0x10, 16, result=-111, before={1: address}).startswith(
        'connect(3, {sa_family=AF_INET, sin_port=htons(443), sin_addr=inet_addr("10.0.2.2")}, 16) = -1 ECONNREFUSED'
    )
    six = struct.pack("<H", socket.AF_INET6) + struct.pack(">HI", 53, 0) + socket.inet_pton(socket.AF_INET6, "fd00::3") + bytes(4)
    assert 'inet_pton(AF_INET6, "fd00::3", &sin6_addr)' in trace_text.sockaddr(six)
    assert trace_text.sockaddr(b"\1\0\0abc") == '{sa_family=AF_UNIX, sun_path=@"abc"}'
    polled = struct.pack("<iHH", 3, 1, 0)
    ready = struct.pack("<iHH", 3, 1, 17)
    assert written("poll", 0x10, 1, 100, result=1, before={0: polled}, after={0: ready}) == (
        "poll([{fd=3, events=POLLIN}], 1, 100) = 1 ([{fd=3, revents=POLLIN|POLLHUP}])"
    )
    vector = struct.pack("<QQQQ", 0x10, 3, 0x20, 90)
    assert written("writev", 1, 0x10, 2, result=93, before={32: vector, 33: b"abc", 34: b"d" * 33}) == (
        f'writev(1, [{{iov_base="abc", iov_len=3}}, {{iov_base="{"d" * 32}"..., iov_len=90}}], 2) = 93'
    )
    real = Path("/etc/passwd").stat()
    packed = struct.pack("<QQQIIIIQq", real.st_dev, real.st_ino, 1, real.st_mode, 0, 0, 0, 0, real.st_size) + bytes(88)
    assert trace_text.stat(packed) == f"{{st_mode=S_IFREG|0{real.st_mode & 0o777:o}, st_size={real.st_size}, ...}}"
    assert trace_text.bit_set(struct.pack("<Q", 1 << 1 | 1 << 33), trace_calls.names.SHORT_SIGNALS) == "[INT RT_2]"


def test_signals_as_strace_writes_them() -> None:
    def info(number: int, code: int, first: int = 0, second: int = 0) -> str:
        return trace_text.siginfo(number, code, first, second)

    assert info(14, 0x80) == "{si_signo=SIGALRM, si_code=SI_KERNEL}"
    assert info(10, 0, 7 | 1000 << 32) == "{si_signo=SIGUSR1, si_code=SI_USER, si_pid=7, si_uid=1000}"
    assert info(10, -1, 7, 5) == "{si_signo=SIGUSR1, si_code=SI_QUEUE, si_pid=7, si_uid=0, si_int=5, si_ptr=0x5}"
    assert info(11, 1) == "{si_signo=SIGSEGV, si_code=SEGV_MAPERR, si_addr=NULL}"
    assert info(8, 1, 0x10) == "{si_signo=SIGFPE, si_code=FPE_INTDIV, si_addr=0x10}"
    assert info(99, 77) == "{si_signo=99, si_code=0x4d /* SI_??? */}"
    assert written("rt_sigtimedwait", 1, 2, 0, 8, result=10, after={1: struct.pack("<iiiiQQ", 10, 0, -6, 0, 7, 0)}).endswith(
        "{si_signo=SIGUSR1, si_code=SI_TKILL, si_pid=7, si_uid=0}, NULL, 8) = 10 (SIGUSR1)"
    )
    assert written("pause", result=-4) == "pause() = ? ERESTARTNOHAND (To be restarted if no handler)"
    assert written("poll", 0, 0, 9, result=-4) == "poll(NULL, 0, 9) = ? ERESTART_RESTARTBLOCK (Interrupted by signal)"
    assert written("epoll_wait", 3, 0, 1, 9, result=-4).endswith(" = -1 EINTR (Interrupted system call)")


@pytest.mark.parametrize("kind", [0, 4, 1 << 31])
def test_a_message_of_no_kind_is_refused(kind: int) -> None:
    with pytest.raises(ValueError, match="kind"):
        trace.parse(struct.pack("<IIIIQQQQ6QII", 0, kind, 1, 0, 0, 0, 0, 0, *(0,) * 6, 0, 0))


def test_forms_and_conditions_fit_the_calls() -> None:
    """A typing error in the table would show as a wrong call only when somebody traces it."""
    assert len(trace_calls.CALLS) > 150
    for number, call in trace_calls.CALLS.items():
        assert NUMBERS[call.name] == number
        late = False
        for argument in call.arguments:
            assert argument.place < 6 and argument.counter < 6
            late = late or argument.form.late
        for copy in call.copies(32):
            assert copy.limit and copy.unit and copy.kind, call.name
            assert len(copy.packed()) == 16
    assert {form for form in FORMS if form.endswith(">")} == {name for name, form in FORMS.items() if form.late}


printable = st.binary(max_size=80)


@given(printable, st.integers(0, 64))
def test_no_string_reaches_a_terminal_as_it_is(data: bytes, most: int) -> None:
    """And it can be read back."""
    text = trace_text.quoted(data, most)
    assert text.isascii() and text.isprintable()
    assert eval("b" + text.removesuffix("...")) == data[:most]  # C's escapes are Python's
    assert text.endswith("...") == (len(data) > most)


numbers = st.one_of(st.sampled_from(sorted(trace_calls.CALLS)), st.integers(0, 600), st.integers(0, (1 << 64) - 1))
words = st.one_of(st.integers(0, 8), st.integers(0, (1 << 64) - 1))
chunks = st.dictionaries(
    st.sampled_from([*range(6), 31, *range(32, 40), 64, 65, 96]), st.builds(Chunk, st.binary(max_size=200), st.booleans())
)


@settings(max_examples=600)
@given(numbers, st.tuples(*[words] * 6), chunks, chunks, st.integers(-(1 << 63), (1 << 63) - 1))
def test_whatever_a_guest_says_is_one_printable_line(
    number: int, args: tuple[int, ...], before: dict[int, Chunk], after: dict[int, Chunk], result: int
) -> None:
    view = View(args, before=before)
    head, done = trace_calls.begun(number, view)
    view.after, view.result = after, result
    line = head + trace_calls.ended(number, view, done)
    assert line.isascii() and line.isprintable() and " = " in line


@pytest.mark.parametrize("second", [1, 3, 5, 0x5421, 0x541B])
def test_whatever_is_cut_by_a_page(second: int) -> None:
    """Each kind of memory of each call, of which not all can be read when the call begins, or when it ends."""
    sizes = (None, 0, 3, 7, 15, 200)
    for call in trace_calls.CALLS.values():
        for early, late in itertools.product(sizes, repeat=2):
            before, after = ({} if size is None else dict.fromkeys(range(40), b"\1" * size) for size in (early, late))
            for result in (-1, 0, 1, 9):
                assert ") = " in written(call.name, 1, second, 13, 2, 2, 2, result=result, before=before, after=after)


@given(st.binary(max_size=400))
def test_messages_are_taken_apart_or_refused(message: bytes) -> None:
    try:
        trace.parse(message)
    except ValueError:
        return


@given(st.integers(0, 63), st.booleans(), st.binary(max_size=50), st.integers(0, 60))
def test_a_message(vm: int, broken: bool, data: bytes, cut: int) -> None:
    head = struct.pack("<IIIIQQQQ6QII", vm, 1, 7, 1, 257, (1 << 64) - 2, 5, 6, 1, 2, 3, 4, 5, 6, 0, 1)
    message = head + struct.pack("<HHI", 1, 14 if broken else 0, len(data)) + data
    event = trace.parse(message)
    assert (event.vm, event.entry, event.tid, event.host, event.number, event.result) == (vm, True, 7, True, 257, -2)
    assert event.memory == {1: Chunk(data, broken)}
    if cut:
        with pytest.raises(ValueError):
            trace.parse(message[:-cut])


class Closed:
    """A tracer that prints to a pipe that nobody reads any more."""

    def __init__(self) -> None:
        self.told = 0

    def copies(self) -> list[trace.Copy]:
        return []

    def call(self, event: trace.Event) -> None:
        self.told += 1
        raise BrokenPipeError

    def ended(self, vm: int, report: VmExit) -> None:
        self.told += 1
        raise BrokenPipeError


@pytest.mark.parametrize("calls", [0, 3])
def test_a_tracer_that_fails_is_told_no_more(calls: int, caplog: pytest.LogCaptureFixture) -> None:
    """And harms nobody: that a VM has ended is heard all the same."""

    async def main() -> None:
        tracer, opened, broken = Closed(), list[int](), list[str]()
        calls_of = TraceSocket(tracer, opened)
        calls_of.open(lambda vm: True, broken.append)
        message = struct.pack("<IIIIQQQQ6QII", 0, 1, 7, 0, 257, 0, 5, 6, 1, 2, 3, 4, 5, 6, 0, 0)
        for _ in range(calls):
            os.write(opened[0], message)
        for _ in range(2):
            calls_of.ended(0, VmExit("code", 0, 0, ""))
        os.close(opened[0])
        assert tracer.told == 1 and not broken

    asyncio.run(main())
    assert "a tracer failed" in caplog.text


def test_a_cell_that_cannot_start_leaves_no_socket(tmp_path: Path) -> None:
    async def main() -> None:
        before = opened()
        config = CellConfig(mounts=[Mount("/t", tmp_path / "missing")], program="/t/x", trace=Closed())
        with pytest.raises(CellError) as error:
            await Cell.start(config, bare.Recorder(), program=Path("/bin/true"))
        assert "missing" in str(error.value)
        assert not left(before)

    asyncio.run(main())
