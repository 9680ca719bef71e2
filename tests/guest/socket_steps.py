"""Sequences of calls on pipes, eventfds, unix sockets, refused connections and epoll sets, step by step. A program: each line of standard input is a JSON list of steps, each line of output
the list of what came of them. Run under plain `python` and in a guest.

Descriptors lie in a list; a step names one by its index modulo the list's length. All are non-blocking. One epoll watches what it is told to.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import json
import os
import select
import socket
import sys

PAIRS = {"stream": socket.SOCK_STREAM, "dgram": socket.SOCK_DGRAM, "seqpacket": socket.SOCK_SEQPACKET}
MASK = select.POLLIN | select.POLLOUT | select.POLLRDHUP


def refused() -> int:
    """A TCP socket whose connect() nobody answered, which has been told so."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex(address)
    select.select([], [made], [], 60)
    return made.detach()


def new_set() -> int:
    with select.epoll() as made:
        return fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 0)


def is_set(fd: int) -> bool:
    """A set says that standard input is not in it."""
    try:
        with select.epoll.fromfd(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)) as one:
            one.unregister(0)
    except OSError as error:
        return error.errno == errno.ENOENT
    return True


class Run:
    def __init__(self) -> None:
        self.fds: list[int] = []
        self.epoll = select.epoll()

    def make(self, kind: str) -> object:
        if kind == "pipe":
            made = list(os.pipe2(os.O_NONBLOCK))
        elif kind == "event":
            made = [os.eventfd(1, os.EFD_NONBLOCK)]
        elif kind == "set":
            made = [new_set()]
        elif kind == "refused":
            made = [refused()]
        else:
            ends = socket.socketpair(socket.AF_UNIX, PAIRS[kind])
            for end in ends:
                end.setblocking(False)
            made = [end.detach() for end in ends]
        self.fds += made
        return len(self.fds)

    def fd(self, index: int) -> int:
        return self.fds[index % len(self.fds)]

    def socket(self, index: int) -> socket.socket:
        return socket.socket(fileno=os.dup(self.fd(index)))

    def write(self, index: int, n: int) -> object:
        return os.write(self.fd(index), bytes([n % 251]) * n)

    def read(self, index: int, n: int) -> object:
        return os.read(self.fd(index), n).hex()

    def send(self, index: int, n: int, passed: int) -> object:
        with self.socket(index) as one:
            fds = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self.fd(passed)]))] if passed >= 0 else []
            return one.sendmsg([bytes([n % 251]) * n], fds)

    def receive(self, index: int, n: int, flags: int) -> object:
        with self.socket(index) as one:
            data, control, told, _ = one.recvmsg(n, socket.CMSG_SPACE(4), flags)
            for _, _, passed in control:
                self.fds += array.array("i", passed)
            return [data.hex(), len(control), told]

    def shutdown(self, index: int, how: int) -> object:
        with self.socket(index) as one:
            one.shutdown(how)
        return 0

    def close(self, index: int) -> object:
        os.close(self.fds.pop(index % len(self.fds)))
        return 0

    def dup(self, index: int) -> object:
        self.fds.append(os.dup(self.fd(index)))
        return 0

    def poll(self) -> object:
        poll = select.poll()
        for fd in self.fds:
            poll.register(fd, MASK)
        return [dict(poll.poll(0)).get(fd, 0) for fd in self.fds]

    def add(self, index: int, events: int) -> object:
        self.epoll.register(self.fd(index), events)
        return 0

    def change(self, index: int, events: int) -> object:
        self.epoll.modify(self.fd(index), events)
        return 0

    def remove(self, index: int) -> object:
        self.epoll.unregister(self.fd(index))
        return 0

    def set(self, index: int) -> select.epoll:
        return select.epoll.fromfd(fcntl.fcntl(self.fd(index), fcntl.F_DUPFD_CLOEXEC, 0))

    def join(self, index: int, other: int, events: int) -> object:
        """A set watches what is none."""
        if is_set(self.fd(other)):
            return None
        with self.set(index) as one:
            one.register(self.fd(other), events)
        return 0

    def leave(self, index: int, other: int) -> object:
        with self.set(index) as one:
            one.unregister(self.fd(other))
        return 0

    def inner(self, index: int) -> object:
        """What one of the sets has to tell."""
        with self.set(index) as one:
            return sorted(events for _, events in one.poll(0, 100))

    def wait(self) -> object:
        return sorted(events for _, events in self.epoll.poll(0, 100))

    def error(self, index: int) -> object:
        with self.socket(index) as one:
            return one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def end(self) -> None:
        self.epoll.close()
        for fd in self.fds:
            os.close(fd)


def results(steps: list[list[object]]) -> list[object]:
    run, told = Run(), []
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(run.end)
        for name, *arguments in steps:
            if not run.fds and name not in ("make", "wait", "poll"):
                continue
            try:
                told.append(getattr(run, str(name))(*arguments))
            except OSError as error:
                told.append(errno.errorcode[error.errno or 0])
    return told


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(results(json.loads(line))), flush=True)
