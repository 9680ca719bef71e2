"""Descriptors of every kind, new and non-blocking, with nobody at the other ends; and raw system calls. For call_table.py."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import socket
import struct
from collections.abc import Callable

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
NUMBERS = {
    "read": 0, "write": 1, "close": 3, "fstat": 5, "poll": 7, "lseek": 8, "mmap": 9, "ioctl": 16, "pread": 17, "pwrite": 18, "readv": 19, "writev": 20,
    "select": 23, "dup": 32, "dup2": 33, "sendfile": 40, "socket": 41, "connect": 42, "accept": 43, "sendto": 44, "recvfrom": 45, "sendmsg": 46, "recvmsg": 47,
    "shutdown": 48, "bind": 49, "listen": 50, "getsockname": 51, "getpeername": 52, "socketpair": 53, "setsockopt": 54, "getsockopt": 55, "fcntl": 72,
    "fsync": 74, "ftruncate": 77, "getdents": 217, "epoll_wait": 232, "epoll_ctl": 233, "pselect6": 270, "ppoll": 271, "splice": 275, "tee": 276,
    "epoll_pwait": 281, "signalfd": 282, "timerfd_create": 283, "eventfd": 284, "timerfd_settime": 286, "timerfd_gettime": 287, "accept4": 288, "signalfd4": 289,
    "eventfd2": 290, "epoll_create1": 291, "dup3": 292, "pipe2": 293, "inotify_init1": 294, "preadv": 295, "pwritev": 296, "recvmmsg": 299, "sendmmsg": 307,
    "epoll_create": 213, "copy_file_range": 326, "pipe": 22,
}  # fmt: skip
ASKED = select.POLLIN | select.POLLPRI | select.POLLOUT | select.POLLRDHUP
BAD = 8  # an address where nothing is


def call(name: str, *arguments: object) -> str | int:
    """-> what it returned, or its errno's name"""
    sent = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    ctypes.set_errno(0)
    got = int(LIBC.syscall(ctypes.c_long(NUMBERS[name]), *sent))
    return got if got >= 0 else errno.errorcode.get(ctypes.get_errno(), str(ctypes.get_errno()))


def buffer(data: bytes | int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(data, len(data) if isinstance(data, bytes) else data)


def closed(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


class Place:
    """One directory with a file, and whatever a case opens: closed behind it."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.stack = stack

    def keep(self, fd: int) -> int:
        self.stack.callback(closed, fd)
        return fd

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        made = self.stack.enter_context(socket.socket(family, kind, protocol))
        made.setblocking(False)
        return made


def file(place: Place) -> int:
    fd = os.open("file", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.write(fd, b"0123456789")
    os.lseek(fd, 0, 0)
    return place.keep(fd)


def directory(place: Place) -> int:
    return place.keep(os.open(".", os.O_RDONLY))


def path_only(place: Place) -> int:
    file(place)
    return place.keep(os.open("file", os.O_PATH))


def null(place: Place) -> int:
    return place.keep(os.open("/dev/null", os.O_RDWR))


def pipe(place: Place) -> tuple[int, int]:
    pair = os.pipe2(os.O_NONBLOCK)
    for fd in pair:
        place.keep(fd)
    return pair


def pipe_in(place: Place) -> int:
    read, write = pipe(place)
    os.write(write, b"piped")
    return read


def pipe_empty(place: Place) -> int:
    return pipe(place)[0]


def pipe_out(place: Place) -> int:
    return pipe(place)[1]


def pipe_ended(place: Place) -> int:
    read, write = pipe(place)
    os.write(write, b"end")
    os.close(write)
    return read


def pipe_broken(place: Place) -> int:
    read, write = pipe(place)
    os.close(read)
    return write


def pipe_full(place: Place) -> int:
    write = pipe(place)[1]
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, bytes(4096))
    return write


def event(place: Place) -> int:
    return place.keep(int(call("eventfd2", 3, os.O_NONBLOCK)))


def event_zero(place: Place) -> int:
    return place.keep(int(call("eventfd2", 0, os.O_NONBLOCK)))


def semaphore(place: Place) -> int:
    return place.keep(int(call("eventfd2", 2, os.O_NONBLOCK | 1)))


def event_full(place: Place) -> int:
    fd = event_zero(place)
    os.write(fd, struct.pack("Q", 2**64 - 2))
    return fd


def timer(place: Place) -> int:
    return place.keep(int(call("timerfd_create", 1, os.O_NONBLOCK)))


def timer_expired(place: Place) -> int:
    fd = timer(place)
    call("timerfd_settime", fd, 1, buffer(struct.pack("4q", 0, 0, 0, 1)), 0)
    select.select([fd], [], [], 10)
    return fd


def epoll(place: Place) -> int:
    return place.stack.enter_context(contextlib.closing(select.epoll())).fileno()


def epoll_ready(place: Place) -> int:
    fd = epoll(place)
    call("epoll_ctl", fd, 1, event(place), buffer(struct.pack("IQ", 1, 77)))
    return fd


def tcp(place: Place) -> int:
    return place.socket(socket.AF_INET, socket.SOCK_STREAM).fileno()


def tcp6(place: Place) -> int:
    return place.socket(socket.AF_INET6, socket.SOCK_STREAM).fileno()


def tcp_bound(place: Place) -> int:
    made = place.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.bind(("127.0.0.1", 0))
    return made.fileno()


def tcp_listener(place: Place) -> int:
    made = place.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made.fileno()


def connection(place: Place) -> tuple[socket.socket, socket.socket]:
    listener = place.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    client = place.stack.enter_context(socket.create_connection(listener.getsockname()))
    server = place.stack.enter_context(listener.accept()[0])
    for end in client, server:
        end.setblocking(False)
    return client, server


def tcp_connected(place: Place) -> int:
    return connection(place)[0].fileno()


def tcp_accepted(place: Place) -> int:
    return connection(place)[1].fileno()


def tcp_with_bytes(place: Place) -> int:
    client, server = connection(place)
    server.send(b"bytes")
    return client.fileno()


def tcp_ended(place: Place) -> int:
    client, server = connection(place)
    server.send(b"end")
    server.shutdown(socket.SHUT_WR)
    return client.fileno()


def tcp_left(place: Place) -> int:
    """the other end is closed, all was read"""
    client, server = connection(place)
    server.close()
    return client.fileno()


def tcp_left_written(place: Place) -> int:
    client, server = connection(place)
    server.close()
    client.send(b"first")
    return client.fileno()


def tcp_reset(place: Place) -> int:
    """closed with bytes unread"""
    client, server = connection(place)
    client.send(b"unread")
    server.close()
    return client.fileno()


def tcp_shut_read(place: Place) -> int:
    client, server = connection(place)
    server.send(b"in it")
    client.shutdown(socket.SHUT_RD)
    return client.fileno()


def tcp_shut_write(place: Place) -> int:
    client, _ = connection(place)
    client.shutdown(socket.SHUT_WR)
    return client.fileno()


def tcp_shut_both(place: Place) -> int:
    client, _ = connection(place)
    client.shutdown(socket.SHUT_RDWR)
    return client.fileno()


def tcp_other_shut_read(place: Place) -> int:
    client, server = connection(place)
    server.shutdown(socket.SHUT_RD)
    return client.fileno()


def tcp_refused(place: Place) -> int:
    free = socket.create_server(("127.0.0.1", 0))
    address = free.getsockname()
    free.close()
    made = place.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.connect_ex(address)
    select.select([], [made], [], 10)
    return made.fileno()


def udp(place: Place) -> int:
    return place.socket(socket.AF_INET, socket.SOCK_DGRAM).fileno()


def udp6(place: Place) -> int:
    return place.socket(socket.AF_INET6, socket.SOCK_DGRAM).fileno()


def udp_pair(place: Place) -> tuple[socket.socket, socket.socket]:
    ends = place.socket(socket.AF_INET, socket.SOCK_DGRAM), place.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for end in ends:
        end.bind(("127.0.0.1", 0))
    ends[0].connect(ends[1].getsockname())
    ends[1].connect(ends[0].getsockname())
    return ends


def udp_connected(place: Place) -> int:
    return udp_pair(place)[0].fileno()


def udp_with_bytes(place: Place) -> int:
    one, other = udp_pair(place)
    other.send(b"first")
    other.send(b"")
    return one.fileno()


def udp_shut(place: Place) -> int:
    one, _ = udp_pair(place)
    one.shutdown(socket.SHUT_RDWR)
    return one.fileno()


def udp_refused(place: Place) -> int:
    one, other = udp_pair(place)
    other.close()
    one.send(b"to nobody")
    return one.fileno()


def unix_of(kind: int) -> Callable[[Place], int]:
    return lambda place: place.socket(socket.AF_UNIX, kind).fileno()


def pair(place: Place, kind: int) -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair(socket.AF_UNIX, kind)
    for end in ends:
        place.stack.enter_context(end).setblocking(False)
    return ends


def pair_of(kind: int) -> Callable[[Place], int]:
    return lambda place: pair(place, kind)[0].fileno()


def pair_with(kind: int) -> Callable[[Place], int]:
    def make(place: Place) -> int:
        one, other = pair(place, kind)
        other.send(b"first")
        other.send(b"second")
        return one.fileno()

    return make


def pair_left(kind: int) -> Callable[[Place], int]:
    def make(place: Place) -> int:
        one, other = pair(place, kind)
        other.send(b"last")
        other.close()
        return one.fileno()

    return make


def pair_reset(kind: int) -> Callable[[Place], int]:
    def make(place: Place) -> int:
        one, other = pair(place, kind)
        one.send(b"unread")
        other.close()
        return one.fileno()

    return make


def pair_shut(kind: int, how: int, other: bool) -> Callable[[Place], int]:
    def make(place: Place) -> int:
        ends = pair(place, kind)
        ends[0].send(b"first")
        ends[1].send(b"back")
        ends[other].shutdown(how)
        return ends[0].fileno()

    return make


def unix_listener(place: Place) -> int:
    made = place.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(b"\0listener of %010d" % os.getpid())
    made.listen()
    return made.fileno()


STREAM, DGRAM, SEQ = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET
KINDS: dict[str, Callable[[Place], int]] = {
    **{made.__name__: made for made in (
        file, directory, path_only, null, pipe_in, pipe_empty, pipe_out, pipe_ended, pipe_broken, pipe_full, event, event_zero, semaphore, event_full, timer,
        timer_expired, epoll, epoll_ready, tcp, tcp6, tcp_bound, tcp_listener, tcp_connected, tcp_accepted, tcp_with_bytes, tcp_ended, tcp_left, tcp_left_written,
        tcp_reset, tcp_shut_read, tcp_shut_write, tcp_shut_both, tcp_other_shut_read, tcp_refused, udp, udp6, udp_connected, udp_with_bytes, udp_shut, udp_refused,
        unix_listener,
    )},
    "closed": lambda place: 1234567, "negative": lambda place: -1,
    **{f"{kind.__name__} {name}": kind(number) for number, name in ((STREAM, "stream"), (DGRAM, "dgram"), (SEQ, "seqpacket"))
       for kind in (unix_of, pair_of, pair_with, pair_left, pair_reset)},
    **{f"pair_shut {name} {how} {other}": pair_shut(number, how, other) for number, name in ((STREAM, "stream"), (DGRAM, "dgram"), (SEQ, "seqpacket"))
       for how in range(3) for other in (False, True)},
}  # fmt: skip
