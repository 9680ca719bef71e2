"""What makes the VMs of a template, and the copies of a running agent (docs/pool.md, "Agents that branch"), differ."""

from __future__ import annotations

import _ssl
import contextlib
import ctypes
import gc
import logging
import os
import random
import signal
import ssl
import struct
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

FORK_SIGNAL = 63  # AFW_FORK_SIGNAL in shim/abi.h
GET_TICKET_KEYS, SET_TICKET_KEYS = 58, 59  # SSL_CTRL_SET_TLSEXT_TICKET_KEYS in openssl/ssl.h
FORK_FILL = 0x204178  # where AFW_CTL has its field fork_fill (tests/test_abi.py)


def prepare() -> None:
    """A copy of a running VM has other random numbers: the cell fills the state of `random`'s own generator before anything runs
    in it, for all threads; what needs Python is done at the main thread's next bytecode."""
    if not os.uname().release.endswith("-agentfw"):
        return
    generator = random._inst
    words = generator.getstate()[1][:-1]
    memory = ctypes.string_at(id(generator), type(generator).__basicsize__)
    state = struct.pack(f"{len(words)}I", *words)
    at = memory.find(state)
    for copy in (memory, state):  # else they stay in freed memory, the same in all VMs (bench/uniqueness.py)
        ctypes.memset(id(copy) + type(copy).__basicsize__ - 1, 0, len(copy))
    if at >= 0 and len(words) == 624:
        ctypes.c_uint64.from_address(FORK_FILL).value = id(generator) + at
    signal.signal(FORK_SIGNAL, _forked)


def _forked(number: int, frame: types.FrameType | None) -> None:
    """In the copy. As with fork(), generators that the program made itself are not touched."""
    _keep_loops()
    random.seed()
    _renew()
    if "uuid" in sys.modules:
        sys.modules["uuid"]._generate_time_safe = None  # type: ignore[attr-defined]  # libuuid's node and clock are the original's


def _renew() -> None:
    """Random numbers that modules keep and have no hook for, which would be the same in all VMs of a template."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        with contextlib.suppress(Exception):
            numpy.seed()
    processes = sys.modules.get("multiprocessing.process")  # keeps the secret by which its connections are known
    if processes is not None:
        with contextlib.suppress(Exception):
            processes.current_process().authkey = os.urandom(32)
    uuid = sys.modules.get("uuid")
    if uuid is not None:
        uuid._node = None  # type: ignore[attr-defined]  # looked up again: in a VM it is a random one


def _keep_loops() -> None:
    """Up to CPython 3.11 an event loop counts as running only in the process that began to run it: the main thread's goes on."""
    if sys.version_info >= (3, 12):
        return
    address = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_GetDict", ctypes.pythonapi))()  # a borrowed reference
    if not address:
        return
    holder = ctypes.cast(address, ctypes.py_object).value.get("__asyncio_running_event_loop__")
    if type(holder).__name__ == "_RunningLoopHolder" and type(holder).__basicsize__ == 32:
        ctypes.c_int.from_address(id(holder) + 24).value = os.getpid()  # behind the object's head and the loop


class TicketKeys:
    """Of TLS contexts that modules made before the snapshot: with a server's all its clients' sessions are encrypted."""

    def __init__(self) -> None:
        gc.collect()
        kind = ssl.SSLContext.__mro__[-2]  # the real _ssl's
        self.contexts = [each for each in gc.get_objects() if issubclass(type(each), kind)]
        self.control: Any = None
        if self.contexts:
            with contextlib.suppress(AttributeError, OSError):
                self.control = ctypes.CDLL(getattr(_ssl, "__file__", None)).SSL_CTX_ctrl
                self.control.argtypes = ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_char_p
                self.control.restype = ctypes.c_long

    def renew(self) -> None:
        for context in self.contexts if self.control is not None else ():
            address = ctypes.c_void_p.from_address(id(context) + object.__basicsize__).value  # (the first that it keeps)
            size = self.control(address, GET_TICKET_KEYS, 0, None)
            self.control(address, SET_TICKET_KEYS, size, os.urandom(size))
        self.contexts = []


class ForkHooks:
    """What a restored VM does of what a forked child must do (PyOS_AfterFork_Child()).

    A child of fork() has lost all threads but one, and finds locks, the GIL and thread registries as these left them: most of the
    work is to make them anew, and it writes a hundred pages. A restored VM has lost nothing: it goes on where the template
    stood, with one thread, which holds no lock. What is left is what must differ between processes: the hooks that modules
    registered, but for those of the standard library that only make locks and registries anew, and the main thread's native id.
    Where the template has more threads or the hooks cannot be found, all of it is done as for a child. `ignored`: is told
    what a hook raised, and the hook.
    """

    def __init__(self, ignored: Callable[[BaseException, object], None]) -> None:
        self.ignored = ignored
        self.tickets = TicketKeys()

        def before() -> None:
            """Found in the interpreter's own list of hooks, which nothing else gives."""

        def after() -> None:
            """The same."""

        os.register_at_fork(before=before, after_in_child=after)
        self.lists = [
            [held for held in gc.get_referrers(hook) if type(held) is list and hook in held] for hook in (before, after)
        ]
        for (found,), hook in zip(self.lists, (before, after), strict=True) if self.found else ():
            found.remove(hook)
        self.whole = True

    @property
    def found(self) -> bool:
        return [len(found) for found in self.lists] == [1, 1]

    def stop(self) -> None:
        """Before the snapshot."""
        self.whole = not self.found or len(sys._current_frames()) > 1
        if self.whole:
            ctypes.pythonapi.PyOS_BeforeFork()
            return
        before, after = ([hook for hook in found if not self._of_locks(hook)] for (found,) in self.lists)
        for hook in reversed(before):
            hook()
        self.after = after
        self.main = threading.main_thread()

    @staticmethod
    def _of_locks(hook: object) -> bool:
        """Of the standard library, and for locks or the registry of threads alone."""
        pool = sys.modules.get("concurrent.futures.thread")
        locks = (getattr(logging, "_lock", None), getattr(pool, "_global_shutdown_lock", None))
        if any(getattr(hook, "__self__", hook) is lock for lock in locks):
            return True
        place = getattr(hook, "__globals__", None)  # their names are others in each version
        return place is vars(logging) or place is vars(threading)

    def go_on(self) -> None:
        """After it."""
        self.tickets.renew()
        if self.whole:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            _renew()
            return
        for hook in self.after:
            try:
                hook()
            except Exception as error:  # as in a child
                self.ignored(error, hook)
        self.main._set_native_id()  # type: ignore[attr-defined]
        _renew()
