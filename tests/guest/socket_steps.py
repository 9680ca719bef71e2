"""Sequences of calls on pipes, eventfds and unix sockets, step by step. A program: each line of standard input is a JSON list of steps, each line of output
the list of what came of them. Run under plain `python` and in a guest.

Descriptors lie in a list; a step names one by its index modulo the list's length. All are non-blocking. One epoll watches what it is told to.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import select
import socket
import sys

PAIRS = {"stream": socket.SOCK_STREAM, "dgram": socket.SOCK_DGRAM, "seqpacket": socket.SOCK_SEQPACKET}
MASK = select.POLLIN | select.POLLOUT | select.POLLRDHUP


class Run:
    def __init__(self) -> None:
        self.fds: list[int] = []
        self.epoll = select.epoll()

    def make(self, kind: str) -> object:
        if kind == "pipe":
            made = list(os.pipe2(os.O_NONBLOCK))
        elif kind == "event":
            made = [os.eventfd(1, os.EFD_NONBLOCK)]
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
