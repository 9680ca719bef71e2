"""Calls x kinds of descriptors: every call of the table on every kind, new for each, and what came of it. A program, run under plain `python` and in a guest.

Prints JSON: {"kind: call": result}. A result is an errno's name, a number, or a number and the bytes that the call wrote. Nothing waits.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial

import name_cases  # type: ignore[import-not-found]
from descriptor_kinds import ASKED, BAD, KINDS, STREAM, Place, buffer, call, file, pair  # type: ignore[import-not-found]

INET = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(9), socket.inet_aton("127.0.0.1"))
INET6 = struct.pack("=HHI16sI", socket.AF_INET6, socket.htons(9), 0, socket.inet_pton(socket.AF_INET6, "::1"), 0)
SOL, TCP, IP = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_IP
OPTIONS = {
    "TYPE": (SOL, 3), "ERROR": (SOL, 4), "REUSEADDR": (SOL, 2), "KEEPALIVE": (SOL, 9), "BROADCAST": (SOL, 6), "OOBINLINE": (SOL, 10), "DONTROUTE": (SOL, 5),
    "LINGER": (SOL, 13), "REUSEPORT": (SOL, 15), "PASSCRED": (SOL, 16), "PEERCRED": (SOL, 17), "RCVLOWAT": (SOL, 18), "SNDLOWAT": (SOL, 19),
    "RCVTIMEO": (SOL, 20), "SNDTIMEO": (SOL, 21), "ACCEPTCONN": (SOL, 30), "PROTOCOL": (SOL, 38), "DOMAIN": (SOL, 39), "PRIORITY": (SOL, 12),
    "none": (SOL, 4000), "level": (4000, 1), "minus": (-1, 1),
    "NODELAY": (TCP, 1), "MAXSEG": (TCP, 2), "CORK": (TCP, 3), "KEEPIDLE": (TCP, 4), "KEEPINTVL": (TCP, 5), "KEEPCNT": (TCP, 6), "SYNCNT": (TCP, 7),
    "DEFER_ACCEPT": (TCP, 9), "QUICKACK": (TCP, 12), "USER_TIMEOUT": (TCP, 18), "no tcp": (TCP, 400),
    "TOS": (IP, 1), "TTL": (IP, 2), "MULTICAST_TTL": (IP, 33), "MULTICAST_LOOP": (IP, 34), "no ip": (IP, 400), "V6ONLY": (41, 26), "no ip6": (41, 400),
}  # fmt: skip


def shown(got: str | int, out: ctypes.Array[ctypes.c_char], n: int | None = None) -> object:
    """A result with the bytes that the call left."""
    if isinstance(got, str):
        return got
    return [got, out.raw[: got if n is None else n].hex()]


def read_of(n: int) -> Callable[[int], object]:
    def run(fd: int) -> object:
        out = buffer(16)
        return shown(call("read", fd, out, n), out)

    return run


def receive(n: int, flags: int) -> Callable[[int], object]:
    def run(fd: int) -> object:
        out = buffer(16)
        return shown(call("recvfrom", fd, out, n, flags, 0, 0), out, n and None)

    return run


def message(n: int, flags: int) -> Callable[[int], object]:
    """recvmsg() with a name: what is returned, bytes, length of the name, flags"""

    def run(fd: int) -> object:
        out, name, control = buffer(16), buffer(b"\x7f" * 128), buffer(64)
        vector = buffer(struct.pack("QQ", ctypes.addressof(out), n))
        head = buffer(
            struct.pack(
                "QIIQQQQii", ctypes.addressof(name), 128, 0, ctypes.addressof(vector), 1, ctypes.addressof(control), 64, 0, 0
            )
        )
        got = call("recvmsg", fd, head, flags)
        if isinstance(got, str):
            return got
        _, namelen, _, _, _, _, controllen, told, _ = struct.unpack("QIIQQQQii", head.raw)
        return [got, out.raw[: min(got, n)].hex(), namelen, controllen, told]

    return run


def send_message(namelen: int, control: bytes, flags: int) -> Callable[[int], object]:
    def run(fd: int) -> object:
        data, name, more = buffer(b"message"), buffer(INET), buffer(control or b"\0")
        vector = buffer(struct.pack("QQ", ctypes.addressof(data), 7))
        at = ctypes.addressof(more) if control else 0
        head = buffer(
            struct.pack(
                "QIIQQQQii",
                ctypes.addressof(name) if namelen else 0,
                namelen,
                0,
                ctypes.addressof(vector),
                1,
                at,
                len(control),
                0,
                0,
            )
        )
        return call("sendmsg", fd, head, flags)

    return run


def name_of(which: str, room: int) -> Callable[[int], object]:
    def run(fd: int) -> object:
        out, length = buffer(128), buffer(struct.pack("i", room))
        got = call(which, fd, out, length)
        if isinstance(got, str):
            return got
        size = struct.unpack("i", length.raw)[0]
        shown = bytearray(out.raw[: min(size, 28)])
        if shown[:1] in (b"\2", b"\n"):
            shown[2:4] = b"\0\0" if shown[2:4] == b"\0\0" else b"pp"  # a port like another
        return [got, size, shown[: 8 if shown[:1] == b"\1" else None].hex()]

    return run


def option_get(level: int, name: int, room: int) -> Callable[[int], object]:
    def run(fd: int) -> object:
        out, length = buffer(64), buffer(struct.pack("i", room))
        got = call("getsockopt", fd, level, name, out, length)
        size = struct.unpack("i", length.raw)[0]
        if got == 0 and (level, name) == (SOL, 17) and room > 12:
            mine = os.getpid(), os.getuid(), os.getgid()
            return [size, [b == a or b for a, b in zip(mine, struct.unpack_from("3i", out.raw), strict=True)]]
        if got == 0 and (level, name) == (SOL, 17):
            out = buffer(64)  # ids differ
        return got if isinstance(got, str) else [size, out.raw[: max(size, 0)].hex()]

    return run


def option_set(level: int, name: int, value: bytes, length: int) -> Callable[[int], object]:
    def run(fd: int) -> object:
        got = call("setsockopt", fd, level, name, buffer(value), length)
        return got if got else option_get(level, name, 16)(fd)

    return run


def polled(fd: int) -> object:
    watched = buffer(struct.pack("iHH", fd, ASKED, 0))
    call("poll", watched, 1, 0)
    return struct.unpack("iHH", watched.raw)[2]


def selected(fd: int) -> object:
    if not 0 <= fd < 1024:
        return None
    sets = [bytearray(128) for _ in range(3)]
    for one in sets:
        one[fd // 8] |= 1 << fd % 8
    given = [buffer(bytes(one)) for one in sets]
    got = call("select", fd + 1, *given, buffer(16))
    return [got, [bool(one.raw[fd // 8] >> fd % 8 & 1) for one in given]]


def epolled(flags: int) -> Callable[[int], object]:
    def run(fd: int) -> object:
        with contextlib.closing(select.epoll()) as watcher:
            got = call("epoll_ctl", watcher.fileno(), 1, fd, buffer(struct.pack("=IQ", flags, 5)))
            if got:
                return got
            told = [watcher.poll(0, 4), watcher.poll(0, 4)]
            again = call("epoll_ctl", watcher.fileno(), 1, fd, buffer(struct.pack("=IQ", flags, 5)))
            changed = call("epoll_ctl", watcher.fileno(), 3, fd, buffer(struct.pack("=IQ", flags, 5)))
            more = watcher.poll(0, 4)
            return [
                *([event for _, event in each] for each in told),
                again,
                changed,
                [event for _, event in more],
                call("epoll_ctl", watcher.fileno(), 2, fd, 0),
            ]

    return run


def watches(fd: int) -> object:
    """as the epoll itself"""
    mine = os.pipe()
    try:
        added = buffer(struct.pack("=IQ", 1, 5))
        return [call("epoll_ctl", fd, operation, mine[0], added) for operation in (2, 3, 1, 1, 3, 2, 2, 0, 4)]
    finally:
        os.close(mine[0])
        os.close(mine[1])


def control(number: int, size: int) -> Callable[[int], object]:
    def run(fd: int) -> object:
        out = buffer(size)
        return shown(call("ioctl", fd, number, out), out, size)

    return run


def spliced(fd: int) -> object:
    with contextlib.ExitStack() as stack:
        other = file(Place(stack))
        return call("sendfile", fd, other, 0, 4)


def sent_from(fd: int) -> object:
    with contextlib.ExitStack() as stack:
        return call("sendfile", pair(Place(stack), STREAM)[0].fileno(), fd, 0, 4)


def sent_at(fd: int) -> object:
    with contextlib.ExitStack() as stack:
        offset = buffer(struct.pack("q", 6))
        return [call("sendfile", fd, file(Place(stack)), offset, 40), struct.unpack("q", offset.raw)[0]]


def pipe_size(n: int, fd: int) -> object:
    return [call("fcntl", fd, 1031, n), call("fcntl", fd, 1032, 0), polled(fd)]


def send(flags: int, address: bytes, n: int, fd: int) -> object:
    return call("sendto", fd, buffer(b"sent"), 4, flags, buffer(address) if address else 0, n)


def named(name: str, address: bytes, n: int, fd: int) -> object:
    return call(name, fd, buffer(address), n)


def shut(how: int, fd: int) -> object:
    return [call("shutdown", fd, how), polled(fd), call("shutdown", fd, how)]


EIGHT = struct.pack("Q", 1)
CALLS: dict[str, Callable[[int], object]] = {
    **{f"read {n}": read_of(n) for n in (0, 4, 8, 16)},
    "read badly": lambda fd: call("read", fd, BAD, 8),
    "write": lambda fd: call("write", fd, buffer(EIGHT), 8),
    "write 0": lambda fd: call("write", fd, buffer(EIGHT), 0),
    "write 4": lambda fd: call("write", fd, buffer(EIGHT), 4),
    "write badly": lambda fd: call("write", fd, BAD, 8),
    "write twice": lambda fd: [call("write", fd, buffer(EIGHT), 8), call("write", fd, buffer(EIGHT), 8), polled(fd)],
    "write and read": lambda fd: [call("write", fd, buffer(EIGHT), 8), call("read", fd, buffer(16), 16), call("read", fd, buffer(16), 16), polled(fd)],
    "read to the end": lambda fd: [call("read", fd, buffer(16), 16) for _ in range(3)] + [polled(fd)],
    "pread": lambda fd: call("pread", fd, buffer(16), 8, 0),
    "pread before": lambda fd: call("pread", fd, buffer(16), 8, -1),
    "pwrite": lambda fd: call("pwrite", fd, buffer(EIGHT), 8, 0),
    "readv 0": lambda fd: call("readv", fd, 0, 0),
    "readv minus": lambda fd: call("readv", fd, buffer(16), -1),
    "readv many": lambda fd: call("readv", fd, buffer(16 * 1025), 1025),
    "readv badly": lambda fd: call("readv", fd, BAD, 1),
    "readv too long": lambda fd: call("readv", fd, buffer(struct.pack("QQ", 4096, 2**63)), 1),
    "writev 0": lambda fd: call("writev", fd, 0, 0),
    "lseek": lambda fd: call("lseek", fd, 0, 1),
    "lseek badly": lambda fd: call("lseek", fd, 0, 9),
    "ftruncate": lambda fd: call("ftruncate", fd, 3),
    "fsync": lambda fd: call("fsync", fd),
    "mmap": lambda fd: "EACCES" if call("mmap", 0, 4096, 1, 2, fd, 0) == "EACCES" else type(call("mmap", 0, 4096, 1, 2, fd, 0)).__name__,
    "getdents": lambda fd: call("getdents", fd, buffer(16), 0) if fd < 0 else type(call("getdents", fd, buffer(1024), 1024)).__name__,
    "GETFL": lambda fd: call("fcntl", fd, 3, 0),
    "GETFD": lambda fd: call("fcntl", fd, 1, 0),
    "SETFL": lambda fd: [call("fcntl", fd, 4, os.O_APPEND | os.O_NONBLOCK), call("fcntl", fd, 3, 0)],
    "GETPIPE_SZ": lambda fd: call("fcntl", fd, 1032, 0),
    **{f"SETPIPE_SZ {n}": partial(pipe_size, n) for n in (0, 1, 5000, 1 << 17, 1 << 21, -1)},
    "DUPFD": lambda fd: call("fcntl", fd, 0, -1),
    "fcntl none": lambda fd: call("fcntl", fd, 4000, 0),
    "FIONREAD": control(0x541B, 4),
    "FIONREAD badly": lambda fd: call("ioctl", fd, 0x541B, BAD),
    "TCGETS": control(0x5401, 64),
    "SIOCOUTQ": control(0x5411, 4),
    "SIOCATMARK": control(0x8905, 4),
    "no ioctl": control(0x12345, 4),
    "FIONBIO": lambda fd: [call("ioctl", fd, 0x5421, buffer(4)), call("fcntl", fd, 3, 0)],
    "FIOASYNC": lambda fd: call("ioctl", fd, 0x5452, buffer(4)),
    "fstat": lambda fd: [call("fstat", fd, out := buffer(144)), oct(struct.unpack_from("I", out.raw, 24)[0] & 0o170000)],
    "poll": polled,
    "select": selected,
    **{f"epoll {flags:x}": epolled(flags) for flags in (0, 1, 4, 0x2005, 0x80000005, 0x40000005, 0x10000005, ASKED, 0x50000005)},
    "watches": watches,
    "epoll_wait": lambda fd: shown(call("epoll_wait", fd, out := buffer(64), 4, 0), out, 12),
    "epoll_wait 0": lambda fd: call("epoll_wait", fd, buffer(64), 0, 0),
    "epoll_wait -1": lambda fd: call("epoll_wait", fd, buffer(64), -1, 0),
    "epoll_wait badly": lambda fd: call("epoll_wait", fd, BAD, 4, 0),
    "epoll_pwait size": lambda fd: call("epoll_pwait", fd, buffer(64), 4, 0, buffer(8), 4),
    "epoll itself": lambda fd: call("epoll_ctl", fd, 1, fd, buffer(struct.pack("=IQ", 1, 5))),
    "epoll none": lambda fd: call("epoll_ctl", fd, 1, 9999, buffer(struct.pack("=IQ", 1, 5))),
    "epoll badly": lambda fd: call("epoll_ctl", fd, 1, fd, BAD),
    "timerfd_settime": lambda fd: [call("timerfd_settime", fd, 0, buffer(struct.pack("4q", 0, 0, 1000, 0)), old := buffer(32)), old.raw.hex()],
    "timerfd_settime badly": lambda fd: call("timerfd_settime", fd, 0, BAD, 0),
    "timerfd_settime flags": lambda fd: call("timerfd_settime", fd, 8, buffer(32), 0),
    "timerfd_settime cancel": lambda fd: call("timerfd_settime", fd, 3, buffer(32), 0),
    "timerfd_settime ns": lambda fd: call("timerfd_settime", fd, 0, buffer(struct.pack("4q", 0, 0, 0, 10**9)), 0),
    "timerfd_settime minus": lambda fd: call("timerfd_settime", fd, 0, buffer(struct.pack("4q", 0, 0, -1, 0)), 0),
    "timerfd_gettime": lambda fd: shown(call("timerfd_gettime", fd, out := buffer(32)), out, 32),
    "timerfd_gettime badly": lambda fd: call("timerfd_gettime", fd, BAD),
    **{f"recv {n} {flags:x}": receive(n, flags) for n in (0, 4, 16) for flags in (0x40, 0x42, 0x60, 0x62, 0x140)},
    "recv badly": lambda fd: call("recvfrom", fd, BAD, 4, 0x40, 0, 0),
    "recv oob": receive(4, 0x41),
    "recv errqueue": receive(4, 0x2040),
    "recvfrom": lambda fd: [call("recvfrom", fd, buffer(16), 16, 0x40, buffer(16), length := buffer(struct.pack("i", 16))), length.raw.hex()],
    "recvfrom minus": lambda fd: call("recvfrom", fd, buffer(16), 16, 0x40, buffer(16), buffer(struct.pack("i", -1))),
    **{f"recvmsg {n} {flags:x}": message(n, flags) for n in (0, 4, 16) for flags in (0x40, 0x42, 0x60)},
    "recvmsg badly": lambda fd: call("recvmsg", fd, BAD, 0),
    "recvmmsg": lambda fd: call("recvmmsg", fd, buffer(64), 1, 0x40, 0),
    "sendmmsg": lambda fd: call("sendmmsg", fd, buffer(64), 1, 0x40),
    **{f"send {flags:x}": partial(send, flags, b"", 0) for flags in (0, 0x40, 0x4000, 0x8000, 0x1)},
    "send 0": lambda fd: call("sendto", fd, buffer(b"sent"), 0, 0x4000, 0, 0),
    "send badly": lambda fd: call("sendto", fd, BAD, 4, 0x4000, 0, 0),
    "send much": lambda fd: type(call("sendto", fd, buffer(70000), 70000, 0x4000, 0, 0)).__name__,
    **{f"sendto {name}": partial(send, 0x4000, address, n) for name, address, n in (
        ("inet", INET, 16), ("inet short", INET, 8), ("inet6", INET6, 28), ("unspec", bytes(16), 16), ("unix", b"\1\0/no/such", 10), ("unix dir", b"\1\0/", 3),
        ("unix abstract", b"\1\0\0nothing", 10), ("long", INET + bytes(200), 200), ("zero", INET, 0))},
    "sendto badly": lambda fd: call("sendto", fd, buffer(b"sent"), 4, 0x4000, BAD, 16),
    "sendmsg": send_message(0, b"", 0x4000),
    "sendmsg name": send_message(16, b"", 0x4000),
    "sendmsg control": send_message(0, struct.pack("Qii4s4x", 20, 4000, 1, b"abcd"), 0x4000),
    "sendmsg short control": send_message(0, struct.pack("Qii4s4x", 8, 1, 1, b"abcd"), 0x4000),
    "sendmsg bad fd": send_message(0, struct.pack("Qiii4x", 20, 1, 1, 9999), 0x4000),
    "sendmsg bad scm": send_message(0, struct.pack("Qiii4x", 20, 1, 77, 9999), 0x4000),
    "sendmsg long control": send_message(0, struct.pack("Qiii4x", 200, 1, 1, 0), 0x4000),
    "sendmsg badly": lambda fd: call("sendmsg", fd, BAD, 0x4000),
    "sendfile to": spliced,
    "sendfile from": sent_from,
    "sendfile at": sent_at,
    **{f"connect {name}": partial(named, "connect", address, n) for name, address, n in (
        ("inet", INET, 16), ("inet short", INET, 8), ("inet6", INET6, 28), ("inet6 short", INET6, 20), ("unspec", bytes(16), 16), ("unspec 2", bytes(16), 2),
        ("unix", b"\1\0/no/such", 10), ("unix dir", b"\1\0/", 3), ("unix file", b"\1\0file", 6), ("unix abstract", b"\1\0\0nothing", 10), ("one byte", INET, 1),
        ("zero", INET, 0), ("long", INET + bytes(200), 200), ("family", b"\x63\0" + INET[2:], 16))},
    "connect badly": lambda fd: call("connect", fd, BAD, 16),
    **{f"bind {name}": partial(named, "bind", address, n) for name, address, n in (
        ("inet", struct.pack("=HH4s8x", 2, 0, socket.inet_aton("127.0.0.1")), 16), ("inet short", INET, 8), ("inet6", INET6[:2] + bytes(2) + INET6[4:], 28),
        ("elsewhere", struct.pack("=HH4s8x", 2, 0, socket.inet_aton("198.51.100.7")), 16), ("unspec any", bytes(16), 16), ("unix missing", b"\1\0/no/such", 10),
        ("unix file", b"\1\0file", 6), ("unix autobind", b"\1\0", 2), ("one byte", INET, 1), ("long", INET + bytes(200), 200), ("family", b"\x63\0" + INET[2:], 16))},
    "bind badly": lambda fd: call("bind", fd, BAD, 16),
    "listen": lambda fd: [call("listen", fd, 5), call("listen", fd, 0), call("listen", fd, -1)],
    "accept": lambda fd: call("accept", fd, 0, 0),
    "accept4 flags": lambda fd: call("accept4", fd, 0, 0, 0x40),
    **{f"shutdown {how}": partial(shut, how) for how in (-1, 0, 1, 2, 3)},
    **{f"{which} {room}": name_of(which, room) for which in ("getsockname", "getpeername") for room in (128, 16, 3, 0, -1)},
    "getsockname badly": lambda fd: call("getsockname", fd, BAD, buffer(struct.pack("i", 16))),
    "set badly": lambda fd: call("setsockopt", fd, SOL, 2, BAD, 4),
}  # fmt: skip

OPTION_CALLS: dict[str, Callable[[int], object]] = {
    **{f"get {name} {room}": option_get(level, option, room) for name, (level, option) in OPTIONS.items() for room in (16, 4, 1)},
    "get minus": option_get(SOL, 3, -1),
    **{f"set {name} {value}": option_set(level, option, struct.pack("iiii", value, 0, 0, 0), 4) for name, (level, option) in OPTIONS.items() for value in (0, 1, 7, -1)},
    **{f"set {name} in {n}": option_set(level, option, bytes([1]) + bytes(15), n) for name, (level, option) in OPTIONS.items() for n in (0, 1, 8, 16, -1)},
}  # fmt: skip
WITH_OPTIONS = "tcp", "tcp6", "tcp_listener", "udp", "udp6", "unix_of stream", "pair_of dgram", "file", "closed"


def opened(name: str, *arguments: object) -> object:
    """What comes of a call that gives a descriptor: its close-on-exec flag, and it is closed."""
    got = call(name, *arguments)
    return got if isinstance(got, str) else [call("fcntl", got, 1, 0), os.close(got)]


def opened_pair(name: str, *arguments: object) -> object:
    """The same of two descriptors, which go where an argument is None."""
    out = buffer(8)
    got = call(name, *(out if argument is None else argument for argument in arguments))
    return (
        got
        if isinstance(got, str)
        else [[call("fcntl", fd, 3, 0), call("fcntl", fd, 1, 0), os.close(fd)] for fd in struct.unpack("ii", out.raw)]
    )


ALONE: dict[str, Callable[[], object]] = {
    **{f"socket {family} {kind} {protocol}": partial(opened, "socket", family, kind, protocol)
       for family in (0, 1, 2, 10, 17, 45, 46, 99, -1) for kind in (0, 1, 2, 3, 4, 5, 9, 10, 1 | 0o4000, 1 | 0x100, -1) for protocol in (0, 1, 6, 17, 58, 300, -1)},
    **{f"socketpair {family} {kind} {protocol}": partial(opened_pair, "socketpair", family, kind, protocol, None)
       for family in (0, 1, 2, 10, 99) for kind in (0, 1, 2, 3, 5, 1 | 0x100) for protocol in (0, 1, 6)},
    "socketpair badly": lambda: call("socketpair", 1, 1, 0, BAD),
    **{f"pipe2 {flags:o}": partial(opened_pair, "pipe2", None, flags) for flags in (0, 1, 2, 0o4000, 0o2000000, 0o40000, 0o200, 0o200000000)},
    "pipe badly": lambda: call("pipe", BAD),
    **{f"eventfd2 {flags:x}": partial(opened, "eventfd2", 1, flags) for flags in (0, 1, 0o4000, 0o2000000, 2, 0o2000, -1)},
    **{f"timerfd_create {clock} {flags:x}": partial(opened, "timerfd_create", clock, flags)
       for clock in (0, 1, 2, 3, 4, 7, 11, -1, 99) for flags in (0, 0o4000, 0o2000000, 1)},
    **{f"epoll_create1 {flags:x}": partial(opened, "epoll_create1", flags) for flags in (0, 0o2000000, 0o4000, 1, -1)},
    **{f"epoll_create {size}": partial(opened, "epoll_create", size) for size in (0, 1, -1)},
    **{f"dup2 {old} {new}": partial(call, "dup2", old, new) for old in (-1, 99999, 0) for new in (-1, 1 << 30, 0)},
    **{f"dup3 {old} {new} {flags:x}": partial(call, "dup3", old, new, flags) for old in (-1, 0) for new in (-1, 0, 1 << 30) for flags in (0, 1)},
    "poll badly": lambda: call("poll", BAD, 1, 0),
    "poll too many": lambda: call("poll", 0, 1 << 30, 0),
    "poll nothing": lambda: call("poll", 0, 0, 0),
    "poll minus": lambda: [call("poll", watched := buffer(struct.pack("iHH", -1, 1, 9)), 1, 0), struct.unpack("iHH", watched.raw)[2]],
    "ppoll size": lambda: call("ppoll", 0, 0, buffer(16), buffer(8), 4),
    "ppoll time": lambda: call("ppoll", 0, 0, buffer(struct.pack("qq", 0, 10**9)), 0, 8),
    "ppoll minus": lambda: call("ppoll", 0, 0, buffer(struct.pack("qq", -1, 0)), 0, 8),
    "ppoll badly": lambda: call("ppoll", 0, 0, BAD, 0, 8),
    "select minus": lambda: call("select", -1, 0, 0, 0, buffer(16)),
    "select closed": lambda: call("select", 1000, buffer(b"\0" * 124 + b"\x80" + bytes(3)), 0, 0, buffer(16)),
    "select badly": lambda: call("select", 8, BAD, 0, 0, buffer(16)),
    "select time": lambda: call("select", 0, 0, 0, 0, buffer(struct.pack("qq", -1, 0))),
    "select micro": lambda: call("select", 0, 0, 0, 0, buffer(struct.pack("qq", 0, 10**6))),
    "pselect6 size": lambda: call("pselect6", 0, 0, 0, 0, buffer(16), buffer(struct.pack("QQ", ctypes.addressof(buffer(8)), 4))),
    "pselect6 time": lambda: call("pselect6", 0, 0, 0, 0, buffer(struct.pack("qq", 0, 10**9)), 0),
}  # fmt: skip


def results() -> Iterator[tuple[str, object]]:
    for name, run in (ALONE | name_cases.CASES).items():
        yield name, run()
    for kind, make in KINDS.items():
        for name, act in (CALLS | OPTION_CALLS if kind in WITH_OPTIONS else CALLS).items():
            with contextlib.ExitStack() as stack:
                try:
                    result = act(make(Place(stack)))
                except OSError as error:
                    result = str(error)
                yield f"{kind}: {name}", result


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        told = dict(results())
        os.chdir("/")
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
