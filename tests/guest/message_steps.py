"""Messages and names of sockets, step by step, a line each: natively and in a VM the same. Argument: a directory that both may write to."""

# The calls below socket and os are what is tested.
from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import socket
import sys
import threading
import time

os.chdir(sys.argv[1])
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
libc = ctypes.CDLL(None, use_errno=True)
GETDENTS64, RECVMMSG, SENDMMSG = 217, 299, 307
SECOND = (1).to_bytes(8, "little") + bytes(8)


class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class Message(ctypes.Structure):  # struct mmsghdr
    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_size", ctypes.c_uint),
        ("vectors", ctypes.POINTER(Vector)),
        ("n", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_size", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("moved", ctypes.c_uint),
    ]


def many(call: int, s: socket.socket, sizes: list[int], flags: int = 0) -> object:
    """How many messages, and of which the length was told: all of it, some, or nothing."""
    messages = (Message * len(sizes))()
    held = []
    for message, size in zip(messages, sizes, strict=True):
        buffer = ctypes.create_string_buffer(size)
        vector = Vector(ctypes.addressof(buffer), size)
        held.append((buffer, vector))
        message.vectors, message.n, message.moved = ctypes.pointer(vector), 1, 7777
    n = libc.syscall(call, s.fileno(), messages, len(sizes), flags, 0)
    told = ["not" if m.moved == 7777 else "all" if m.moved == size else "some" for m, size in zip(messages, sizes, strict=True)]
    return n, told


def full_without_waiting() -> object:
    one, _other = pair = socket.socketpair()
    one.setblocking(False)
    result = many(SENDMMSG, one, [1000, 1_000_000, 1000])
    for each in pair:
        each.close()
    return result


def left_in_a_message() -> object:
    one, other = socket.socketpair()
    threading.Timer(0.2, other.close).start()
    with one:
        return many(SENDMMSG, one, [10, 1_000_000, 1000])


def late_in_a_message() -> object:
    one, other = socket.socketpair()
    with one, other:
        one.send(b"x" * 100)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, SECOND)
        return many(RECVMMSG, other, [10, 1000, 1000], socket.MSG_WAITALL)


def bound(kind: int, name: str) -> socket.socket:
    s = socket.socket(socket.AF_UNIX, kind)
    s.bind(name)
    s.settimeout(5)
    return s


def name_taken_over(new: str) -> object:
    """The file system may give the new name's file the inode of the one that was removed."""
    with bound(socket.SOCK_STREAM, "old") as old:
        old.listen()
        os.unlink("old")
        with bound(socket.SOCK_STREAM, new) as listener, contextlib.ExitStack() as clients:
            listener.listen()
            for _ in range(3):
                clients.enter_context(socket.socket(socket.AF_UNIX)).connect(new)
            for _ in range(3):
                listener.accept()[0].close()
            os.unlink(new)
    return "accepted"


def same_name() -> object:
    return name_taken_over("old")


def other_name() -> object:
    return name_taken_over("new")


def peer_without_its_name() -> object:
    with bound(socket.SOCK_DGRAM, "log") as log, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.connect("log")
        os.unlink("log")
        s.send(b"removed")
        with bound(socket.SOCK_DGRAM, "log"):
            s.send(b"replaced")
        os.unlink("log")
        return log.recv(10), log.recv(10)


def peer_gone() -> object:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        with bound(socket.SOCK_DGRAM, "gone"):
            s.connect("gone")
        return s.send(b"x")


def file_sent_late() -> object:
    """What sendfile() has read is not overwritten by what others open while it waits."""
    for name, byte in (("sent", b"s"), ("opened", b"o")):
        with open(name, "wb") as file:
            file.write(byte * 20000)
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other, open("sent", "rb") as file:
        one.send(bytes(50000))
        thread = threading.Thread(target=os.sendfile, args=(one.fileno(), file.fileno(), 0, 20000))
        thread.start()
        time.sleep(0.3)
        open("opened", "rb").close()
        other.recv(100_000)
        thread.join()
        return other.recv(100_000).count(b"s")


def listing_of_a_file() -> object:
    with open("small", "w") as file:
        file.write("small")
    fd = os.open("small", os.O_RDONLY)
    n = libc.syscall(GETDENTS64, fd, ctypes.create_string_buffer(1000), 1000)
    os.close(fd)
    return n, errno.errorcode[ctypes.get_errno()]


for step in (
    full_without_waiting,
    left_in_a_message,
    late_in_a_message,
    same_name,
    other_name,
    peer_without_its_name,
    peer_gone,
    file_sent_late,
    listing_of_a_file,
):
    try:
        print(step.__name__, step())
    except OSError as error:
        print(step.__name__, errno.errorcode.get(error.errno or 0, error))
