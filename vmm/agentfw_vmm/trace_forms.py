"""Forms that arguments of system calls have: which memory to copy for one, and how it is written.

A form is a word in the table of calls (trace_calls.py), `name` or `name@n` (n: the argument that counts it). Forms of what a call
writes are `LATE`: they are known when it has ended, and then only if it went well.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from . import trace_names as names
from .trace import BYTES, COUNTED, LENGTH, MESSAGE_HEADER, NAME, PIECES, RESULT, TEXT, VECTOR, Chunk
from .trace_text import (
    bit_set,
    clock,
    flags,
    hexadecimal,
    in_hex,
    mode,
    one_of,
    pointer,
    quoted,
    siginfo,
    signed,
    sockaddr,
    stat,
    timespec,
)

PATH = 4096  # bytes of a path that are copied
FD_SET = 128  # bytes: 1,024 descriptors
VECTORS = 16  # pieces of a vector, as in tracing.c


@dataclass
class View:
    """One call as far as it is known. `limit`: bytes of a string that are shown."""

    args: tuple[int, ...]
    limit: int = 32
    before: dict[int, Chunk] = field(default_factory=dict)
    after: dict[int, Chunk] = field(default_factory=dict)
    result: int = 0

    @property
    def failed(self) -> bool:
        return -4096 < self.result < 0


Show = Callable[[View, int, int], str]


@dataclass(frozen=True)
class Form:
    """`show(view, index, counter)`; `kind` 0: nothing is copied. `size`: bytes, or of an element; 0: as strings are cut. `early`:
    bytes of what is `late` that are looked at when the call begins, too."""

    show: Show
    kind: int = 0
    size: int = 0
    unit: int = 1
    late: bool = False
    early: int = 0


def _memory(view: View, index: int, late: bool) -> bytes | None:
    chunk = (view.after if late else view.before).get(index)
    return None if chunk is None or (chunk.broken and not chunk.data) else chunk.data


def _text(view: View, index: int, _: int) -> str:
    data = _memory(view, index, late=False)
    if data is None:
        return pointer(view.args[index])
    end = data.find(0)
    return quoted(data, cut=True) if end < 0 else quoted(data[:end])


def _buffer(view: View, index: int, counter: int) -> str:
    data = _memory(view, index, late=False)
    if data is None:
        return pointer(view.args[index])
    return quoted(data, view.limit, cut=view.args[counter] > len(data))


def _filled(view: View, index: int, _: int) -> str:
    data = _memory(view, index, late=True)
    if data is None:
        return pointer(view.args[index])
    return quoted(data, view.limit, cut=view.result > len(data))


def _text_filled(view: View, index: int, _: int) -> str:
    data = _memory(view, index, late=True)
    return pointer(view.args[index]) if data is None else quoted(data.split(b"\0")[0])


def _struct(size: int, write: Callable[[bytes], str], late: bool = False) -> Form:
    def show(view: View, index: int, _: int) -> str:
        data = _memory(view, index, late)
        return pointer(view.args[index]) if data is None or len(data) < size else write(data)

    return Form(show, BYTES, size, late=late)


def _address(late: bool) -> Show:
    def show(view: View, index: int, _: int) -> str:
        data = _memory(view, index, late)
        return pointer(view.args[index]) if data is None else sockaddr(data)

    return show


def _array(unit: int, write: Callable[[bytes], str], late: bool = False, most: int = 32) -> Form:
    """Elements, counted by another argument, or by the result."""

    def show(view: View, index: int, counter: int) -> str:
        data = _memory(view, index, late)
        if data is None:
            return pointer(view.args[index])
        count = view.result if late else view.args[counter]
        elements = [write(data[at : at + unit]) for at in range(0, len(data) - unit + 1, unit)]
        return f"[{', '.join([*elements, *(['...'] if count > len(elements) else [])])}]"

    return Form(show, RESULT if late else COUNTED, unit * most, unit, late)


def _pieces(memory: Mapping[int, Chunk], place: int, limit: int, left: int | None) -> str:
    """An array of struct iovec; `left`: bytes of it that count."""
    array = memory.get(place)
    if array is None:
        return "[...]"
    parts = []
    for number in range(len(array.data) // 16):
        base, size = struct.unpack_from("<QQ", array.data, number * 16)
        chunk = memory.get(place + 1 + number)
        shown = size if left is None else min(size, left)
        left = None if left is None else left - shown
        data = None if chunk is None else chunk.data
        if not shown and base:
            data = b""  # nothing came there
        text = pointer(base) if data is None else quoted(data, limit, cut=shown > len(data))
        parts.append(f"{{iov_base={text}, iov_len={size}}}")
    return f"[{', '.join(parts)}]"


def _vector(late: bool) -> Show:
    def show(view: View, index: int, _: int) -> str:
        memory = view.after if late else view.before
        place = index * PIECES
        return _pieces(memory, place, view.limit, view.result if late else None) if place in memory else pointer(view.args[index])

    return show


def _message(late: bool) -> Show:
    def show(view: View, index: int, _: int) -> str:
        memory = view.after if late else view.before
        header = memory.get(index)
        if header is None or len(header.data) < 52:
            return pointer(view.args[index])
        name, size, _pad, _iov, count, _control, control, got = struct.unpack_from("<QIIQQQQI", header.data)
        before = view.before.get(index)
        had = struct.unpack_from("<I", before.data, 8)[0] if late and before and len(before.data) >= 12 else size
        peer = sockaddr(memory[NAME].data) if name and size and NAME in memory else pointer(name)
        pieces = _pieces(memory, PIECES, view.limit, view.result if late else None)
        word = flags(got, names.MSG) if late else "0"
        length = f"{size}" if had == size else f"{had} => {size}"
        head = f"msg_name={peer}, msg_namelen={length}, msg_iov={pieces}, msg_iovlen={count}"
        return f"{{{head}, msg_controllen={control}, msg_flags={word}}}"

    return show


def _pollfd(data: bytes) -> str:
    fd, events, _ = struct.unpack("<iHH", data)
    return f"{{fd={fd}, events={flags(events, names.POLL)}}}"


def _epoll_event(data: bytes) -> str:
    events, number = struct.unpack_from("<IQ", data)
    return f"{{events={flags(events, names.EPOLL)}, data={{u32={number & 0xFFFFFFFF}, u64={number}}}}}"


def _epoll_change(view: View, index: int, _: int) -> str:
    data = _memory(view, index, late=False)
    removed = view.args[1] & 0xFFFFFFFF == 2
    return pointer(view.args[index]) if data is None or len(data) < 12 or removed else _epoll_event(data)


def _sigaction(data: bytes) -> str:
    handler, bits, restorer = struct.unpack_from("<QQQ", data)
    who = names.HANDLERS.get(handler, f"{handler:#x}")
    tail = f", sa_restorer={restorer:#x}" if bits & 0x4000000 else ""
    return f"{{sa_handler={who}, sa_mask={_sigset(data[24:])}, sa_flags={flags(bits, names.SA)}{tail}}}"


def _sigset(data: bytes) -> str:
    return bit_set(data, names.SHORT_SIGNALS)


def _itimer(data: bytes) -> str:
    return f"{{it_interval={timespec(data, True)}, it_value={timespec(data[16:], True)}}}"


def _itimerspec(data: bytes) -> str:
    return f"{{it_interval={timespec(data)}, it_value={timespec(data[16:])}}}"


def _rlimit(data: bytes) -> str:
    def word(value: int) -> str:
        if value == (1 << 64) - 1:
            return "RLIM64_INFINITY"
        return f"{value // 1024}*1024" if value > 1024 and not value % 1024 else str(value)

    soft, hard = struct.unpack_from("<QQ", data)
    return f"{{rlim_cur={word(soft)}, rlim_max={word(hard)}}}"


def _times(data: bytes) -> str:
    def one(part: bytes) -> str:
        return {0x3FFFFFFF: "UTIME_NOW", 0x3FFFFFFE: "UTIME_OMIT"}.get(struct.unpack_from("<q", part, 8)[0]) or timespec(part)

    return f"[{one(data)}, {one(data[16:])}]"


def _timezone(data: bytes) -> str:
    west, dst = struct.unpack_from("<ii", data)
    return f"{{tz_minuteswest={west}, tz_dsttime={dst}}}"


def _uname(data: bytes) -> str:
    fields = [data[at : at + 65].split(b"\0")[0] for at in (0, 65)]
    return f"{{sysname={quoted(fields[0])}, nodename={quoted(fields[1])}, ...}}"


def _clone_args(data: bytes) -> str:
    bits, _pidfd, child, parent, sig, stack, size, tls = struct.unpack_from("<8Q", data)
    return (
        f"{{flags={flags(bits, names.CLONE)}, child_tid={child:#x}, parent_tid={parent:#x}, exit_signal={sig}, stack={stack:#x}, "
        f"stack_size={size:#x}, tls={tls:#x}}}"
    )


def _open_flags(view: View, index: int, _: int) -> str:
    value = view.args[index] & 0xFFFFFFFF
    access = names.ACCESS_MODES[value & 3]
    return f"{access}|{flags(value & ~3, names.OPEN)}" if value & ~3 else access


def _socket_type(view: View, index: int, _: int) -> str:
    value = view.args[index] & 0xFFFFFFFF
    kind = one_of(value & 0xF, names.SOCK, "SOCK_")
    return f"{kind}|{flags(value & ~0xF, names.SOCK_FLAGS)}" if value & ~0xF else kind


def _futex_word(view: View, index: int, _: int) -> str:
    value = view.args[index] & 0xFFFFFFFF
    word = one_of(value & 0x7F, names.FUTEX, "FUTEX_")
    return word + ("_PRIVATE" if value & 128 else "") + ("|FUTEX_CLOCK_REALTIME" if value & 256 else "")


def _option(view: View, index: int, _: int) -> str:
    level = view.args[index - 1]
    return one_of(view.args[index], {1: names.SO, 6: names.TCP}.get(level, {}), "SO_" if level == 1 else "")


def _option_value(late: bool) -> Show:
    def show(view: View, index: int, _: int) -> str:
        data = _memory(view, index, late)
        if data is None:
            return pointer(view.args[index])
        if view.args[1] == 1 and view.args[2] == 13 and len(data) == 8:
            return "{{l_onoff={}, l_linger={}}}".format(*struct.unpack("<ii", data))
        return f"[{struct.unpack('<i', data)[0]}]" if len(data) == 4 else quoted(data, view.limit)

    return show


def _fcntl_argument(view: View, index: int, _: int) -> str:
    command, value = view.args[index - 1] & 0xFFFFFFFF, view.args[index]
    if command in (0, 1030, 1031, 8):
        return str(signed(value, 32))
    if command == 2:
        return flags(value & 0xFFFFFFFF, names.FD)
    if command == 4:
        return _open_flags(view, index, 0)
    if command in (5, 6, 7, 36, 37, 38):
        data = _memory(view, index, late=False)
        return pointer(value) if data is None or len(data) < 32 else _lock(data)
    return hexadecimal(value)


def _lock(data: bytes) -> str:
    """struct flock."""
    kind, whence, start, size = struct.unpack_from("<hh4xqq", data)
    where = one_of(whence, names.SEEK, "SEEK_")
    return f"{{l_type={one_of(kind, names.LOCK_TYPES, 'F_')}, l_whence={where}, l_start={start}, l_len={size}}}"


def _ioctl_argument(view: View, index: int, _: int) -> str:
    command = view.args[1] & 0xFFFFFFFF
    if command not in (0x5421, 0x541B):  # FIONBIO, which is told a number, and FIONREAD, which tells one
        return hexadecimal(view.args[index])
    data = _memory(view, index, late=command == 0x541B)
    return pointer(view.args[index]) if data is None or len(data) < 4 else _number(data)


def _length(view: View, index: int, _: int) -> str:
    """A socklen_t: what it was, and what it came to be."""
    is_, was = _memory(view, index, late=True), _memory(view, index, late=False)
    if is_ is None or len(is_) < 4:
        return pointer(view.args[index])
    return _number(is_) if was is None or len(was) < 4 or was == is_ else f"[{_number(was)[1:-1]} => {_number(is_)[1:-1]}]"


def _random(view: View, index: int, _: int) -> str:
    data = _memory(view, index, late=True)
    if data is None:
        return pointer(view.args[index])
    return in_hex(data[: view.limit]) + ("..." if view.result > min(len(data), view.limit) else "")


def _protocol(view: View, index: int, _: int) -> str:
    inet = view.args[0] & 0xFFFFFFFF in (2, 10)
    return one_of(view.args[index] & 0xFFFFFFFF, names.IPPROTO, "IPPROTO_") if inet else str(view.args[index] & 0xFFFFFFFF)


def _signal(view: View, index: int, _: int) -> str:
    value = signed(view.args[index], 32)
    return names.SIGNALS.get(value, str(value))


def _rusage(data: bytes) -> str:
    return f"{{ru_utime={timespec(data, True)}, ru_stime={timespec(data[16:], True)}, ...}}"


def _tms(data: bytes) -> str:
    user, system, *children = struct.unpack_from("<4q", data)
    return f"{{tms_utime={user}, tms_stime={system}, tms_cutime={children[0]}, tms_cstime={children[1]}}}"


def _cpus(view: View, index: int, _: int) -> str:
    data = _memory(view, index, late=True)
    return pointer(view.args[index]) if data is None else f"[{' '.join(map(str, fds(data, len(data) * 8)))}]"


def _altstack(data: bytes) -> str:
    place, bits, size = struct.unpack_from("<QI4xQ", data)
    return f"{{ss_sp={pointer(place)}, ss_flags={flags(bits, names.SS)}, ss_size={size}}}"


def fds(data: bytes, count: int) -> list[int]:
    """Members of an fd_set, those below `count`."""
    most = min(count & 0xFFFFFFFF, len(data) * 8)
    return [number for number in range(most) if data[number >> 3] >> (number & 7) & 1]


def _fd_set(view: View, index: int, _: int) -> str:
    data = _memory(view, index, late=False)
    return pointer(view.args[index]) if data is None else f"[{' '.join(map(str, fds(data, view.args[0])))}]"


def _frame(view: View, index: int, _: int) -> str:
    """The signal mask that a handler's return brings back: the cell finds it on the stack."""
    data = _memory(view, 0, late=False)
    return "" if data is None else f"{{mask={_sigset(data)}}}"


def _siginfo(data: bytes) -> str:
    number, _, code = struct.unpack_from("<iii", data)
    return siginfo(number, code, *struct.unpack_from("<QQ", data, 16))


def _hex(view: View, index: int, _: int) -> str:
    return hexadecimal(view.args[index])


def _int(view: View, index: int, _: int) -> str:
    return str(signed(view.args[index], 32))


def _unsigned(view: View, index: int, _: int) -> str:
    return str(view.args[index])


def _long(view: View, index: int, _: int) -> str:
    return str(signed(view.args[index]))


def _pointer(view: View, index: int, _: int) -> str:
    return pointer(view.args[index])


def _directory(view: View, index: int, _: int) -> str:
    value = signed(view.args[index], 32)
    return "AT_FDCWD" if value == -100 else str(value)


def _flags(table: Mapping[int, str], prefix: str = "") -> Form:
    return Form(lambda view, index, _: flags(view.args[index] & 0xFFFFFFFF, table, prefix))


def _one(table: Mapping[int, str], prefix: str) -> Form:
    return Form(lambda view, index, _: one_of(view.args[index] & 0xFFFFFFFF, table, prefix))


def _number(data: bytes) -> str:
    return f"[{struct.unpack_from('<i', data)[0]}]"


def _two(data: bytes) -> str:
    return "[{}, {}]".format(*struct.unpack_from("<ii", data))


def _late(write: Show) -> Form:
    return Form(write, late=True)


FORMS: Mapping[str, Form] = {
    "int": Form(_int),
    "fd": Form(_int),
    "long": Form(_long),
    "size": Form(_unsigned),
    "hex": Form(_hex),
    "frame": Form(_frame),
    "fds": Form(_fd_set, BYTES, FD_SET),
    "siginfo>": _struct(32, _siginfo, late=True),
    "ptr": Form(_pointer),
    "ptr>": _late(_pointer),
    "mode": Form(lambda view, index, _: mode(view.args[index])),
    "dirfd": Form(_directory),
    "path": Form(_text, TEXT, PATH),
    "buf": Form(_buffer, COUNTED),
    "buf>": Form(_filled, RESULT, late=True),
    "text>": Form(_text_filled, RESULT, late=True),
    "iov": Form(_vector(False), VECTOR),
    "iov>": Form(_vector(True), VECTOR, late=True),
    "msg": Form(_message(False), MESSAGE_HEADER),
    "msg>": Form(_message(True), MESSAGE_HEADER, late=True, early=16),
    "addr": Form(_address(False), COUNTED, 128),
    "addr>": Form(_address(True), LENGTH, 128, late=True),
    "stat>": _struct(144, stat, late=True),
    "int>": _struct(4, _number, late=True),
    "int*": _struct(4, _number),
    "two>": _struct(8, _two, late=True),
    "timespec": _struct(16, timespec),
    "timespec>": _struct(16, timespec, late=True),
    "timeval": _struct(16, lambda data: timespec(data, True)),
    "timeval>": _struct(16, lambda data: timespec(data, True), late=True),
    "timezone>": _struct(8, _timezone, late=True),
    "times": _struct(32, _times),
    "itimer": _struct(32, _itimer),
    "itimer>": _struct(32, _itimer, late=True),
    "itimerspec": _struct(32, _itimerspec),
    "itimerspec>": _struct(32, _itimerspec, late=True),
    "rlimit": _struct(16, _rlimit),
    "rlimit>": _struct(16, _rlimit, late=True),
    "sigset": _struct(8, _sigset),
    "sigset>": _struct(8, _sigset, late=True),
    "sigaction": _struct(32, _sigaction),
    "sigaction>": _struct(32, _sigaction, late=True),
    "uname>": _struct(390, _uname, late=True),
    "cloneargs": _struct(64, _clone_args),
    "pollfds": _array(8, _pollfd),
    "epollevent": Form(_epoll_change, BYTES, 12),
    "epollevents>": _array(12, _epoll_event, late=True),
    "optval": Form(_option_value(False), COUNTED, 64),
    "optval>": Form(_option_value(True), LENGTH, 64, late=True),
    "open": Form(_open_flags),
    "pipe": _flags(names.OPEN, "O_"),
    "at": _flags(names.AT, "AT_"),
    "faccess": _flags(names.FACCESSAT, "AT_"),
    "access": _flags(names.ACCESS, "?_OK "),
    "prot": _flags(names.PROT, "PROT_"),
    "map": _flags(names.MAP, "MAP_"),
    "mremap": _flags(names.MREMAP, "MREMAP_"),
    "madvise": _one(names.MADVISE, "MADV_"),
    "whence": _one(names.SEEK, "SEEK_"),
    "family": _one(names.AF, "AF_"),
    "socktype": Form(_socket_type),
    "sockflags": _flags(names.SOCK_FLAGS, "SOCK_"),
    "ipproto": Form(_protocol),
    "level": _one(names.SOL, "SOL_"),
    "option": Form(_option),
    "msgflags": _flags(names.MSG, "MSG_"),
    "shut": _one(names.SHUT, "SHUT_"),
    "epollctl": _one(names.EPOLL_CTL, "EPOLL_CTL_"),
    "epollflags": _flags(names.EPOLL_CREATE, "EPOLL_"),
    "efd": _flags(names.EVENTFD, "EFD_"),
    "tfd": _flags(names.TIMERFD, "TFD_"),
    "abstime": _flags(names.TIMER_ABSTIME, "TIMER_"),
    "fcntl": _one(names.FCNTL, "F_"),
    "fcntlarg": Form(_fcntl_argument, BYTES, 32),
    "lock": _flags(names.LOCK, "LOCK_"),
    "ioctl": _one(names.IOCTL, "TC"),
    "ioctlarg>": Form(_ioctl_argument, BYTES, 4, late=True, early=4),
    "futex": Form(_futex_word),
    "match": _one({0xFFFFFFFF: "FUTEX_BITSET_MATCH_ANY"}, ""),
    "clone": _flags(names.CLONE, "CLONE_"),
    "clock": Form(lambda view, index, _: clock(view.args[index])),
    "which": _one(names.ITIMER, "ITIMER_"),
    "resource": _one(names.RLIMIT, "RLIMIT_"),
    "rusage": _one(names.RUSAGE, "RUSAGE_"),
    "how": _one(names.SIG_HOW, "SIG_"),
    "signal": Form(_signal),
    "rwf": _flags(names.RWF, "RWF_"),
    "tms>": _struct(32, _tms, late=True),
    "prio": _one(names.PRIO, "PRIO_"),
    "wait": _flags(names.WAIT, "W"),
    "statxmask": _flags(names.STATX, "STATX_"),
    "rusage>": _struct(32, _rusage, late=True),
    "cpus>": Form(_cpus, RESULT, 128, late=True),
    "altstack": _struct(24, _altstack),
    "altstack>": _struct(24, _altstack, late=True),
    "random>": Form(_random, RESULT, late=True),
    "len>": Form(_length, BYTES, 4, late=True, early=4),
    "grnd": _flags(names.GRND, "GRND_"),
    "mfd": _flags(names.MEMFD, "MFD_"),
    "rename": _flags(names.RENAME, "RENAME_"),
    "falloc": _flags(names.FALLOC, "FALLOC_"),
    "fadvise": _one(names.FADVISE, "POSIX_FADV_"),
    "archprctl": _one(names.ARCH_PRCTL, "ARCH_"),
    "prctl": _one(names.PRCTL, "PR_"),
}
