"""The program of every template: what `python script.py` would be, with a stop in the middle where the snapshot is taken.

Before the stop: imports. `open("/dev/agentfw")` is the stop. After it, in every VM restored from the snapshot: do what a forked
child must do and say that the VM is warm; read the job, which may come much later; make `sys` and `__main__` what the command
line asked for, acknowledge, run, and leave as CPython leaves, except that the interpreter is not torn down (docs/internals.md,
"Job stream").
"""

from __future__ import annotations

INITIAL = dict(globals())  # what this Python puts into a script's __main__, and in which order
if __name__ == "__main__":  # warnings' filters and sys._getframemodulename() must not take our frames for the program's
    __name__ = "agentfw_bootstrap"

import sys

STARTUP = frozenset(sys.modules)  # these come before sys.path[0] natively, too

import _ssl  # the real one, for ssl_offload
import ssl_offload  # type: ignore[import-not-found,unused-ignore]

ssl_offload.install()

import asyncio
import atexit
import base64
import builtins
import collections
import concurrent.futures
import contextlib
import csv
import ctypes
import dataclasses
import datetime
import decimal
import email.message
import email.parser
import encodings.idna
import enum
import errno
import functools
import gc
import gzip
import hashlib
import hmac
import html
import http.client
import http.cookiejar
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import io
import ipaddress
import itertools
import json
import linecache
import logging
import marshal
import math
import mimetypes
import os
import pathlib
import pickle
import platform
import queue
import random
import re
import runpy
import secrets
import selectors
import shutil
import signal
import socket
import ssl
import statistics
import string
import struct
import subprocess
import tempfile
import textwrap
import threading
import time
import traceback
import types
import typing
import unicodedata
import urllib.parse
import urllib.request
import uuid
import warnings
import weakref
import zoneinfo

import guest_forks  # type: ignore[import-not-found,unused-ignore]
import job_stream  # type: ignore[import-not-found,unused-ignore]
import one_process  # type: ignore[import-not-found,unused-ignore]
import practice_calls  # type: ignore[import-not-found,unused-ignore]

# ---- becoming that `python script.py`


def _adopt(job: dict[str, typing.Any]) -> None:
    """What the process would have had from its start: environment, time of start, working directory."""
    logging._startTime = time.time_ns() if sys.version_info >= (3, 13) else time.time()  # type: ignore[attr-defined]
    if job["env"] != ENVIRONMENT:  # as it is mostly: to look at each variable writes to a page for nearly each
        _change_environment(marshal.loads(job["env"]))
    if job.get("line_buffered"):
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
    try:
        os.chdir(job["cwd"])
    except OSError as error:
        print(f"agentfw: the working directory cannot be entered: {error}", file=sys.stderr)
        _leave(125)


#: The template's environment: as a job's frame has one, its items, its names
ENVIRONMENT = b""
ITEMS: frozenset[tuple[str, str]] = frozenset()
NAMES: frozenset[str] = frozenset()


def _change_environment(wanted: list[tuple[str, str]]) -> None:
    """To look at a variable that stays as it is would write to the pages of its name and value, for the reference counts."""
    changed = dict(set(wanted) - ITEMS)
    gone = NAMES.difference([name for name, _ in wanted])
    for name in gone:
        os.environ.pop(name, None)
    os.environ.update(changed)
    if "TZ" in changed or "TZ" in gone:
        time.tzset()


def _new_main() -> types.ModuleType:
    """A `__main__` as the interpreter makes it before it knows what to run."""
    main = types.ModuleType("__main__")
    namespace = main.__dict__
    namespace.clear()
    for name, value in INITIAL.items():
        namespace[name] = value
    namespace["__doc__"] = None
    namespace["__loader__"] = importlib.machinery.BuiltinImporter
    if "__annotations__" in namespace:
        namespace["__annotations__"] = {}
    namespace["__builtins__"] = builtins
    namespace.pop("annotations", None)
    namespace.pop("__file__", None)
    namespace.pop("__cached__", None)
    sys.modules["__main__"] = main
    return main


#: Top-level name -> the imported modules under it that a file may shadow. Made before the stop: to look through sys.modules
#: after it would write, for the reference counts, to a page for nearly each of their names.
SHADOWED: dict[str, list[str]] = {}


def _index_modules() -> None:
    SHADOWED.clear()
    for module in list(sys.modules):
        top = module.partition(".")[0]
        if top not in STARTUP and top not in sys.builtin_module_names:
            SHADOWED.setdefault(top, []).append(module)


def _unshadow(directory: str, entries: list[str] | None = None) -> None:
    """Forget imported modules that a file beside the script would have come before. `entries`: what is there, if it is known."""
    if entries is None:
        try:
            entries = os.listdir(directory or ".")
        except OSError:
            return
    for entry in entries:
        name, dot, suffix = entry.partition(".")
        if name not in SHADOWED:
            continue
        if suffix.endswith(("py", "pyc", "so")) if dot else os.path.isfile(os.path.join(directory, name, "__init__.py")):
            for module in SHADOWED[name]:
                sys.modules.pop(module, None)


def _first_path(directory: str, entries: list[str] | None) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, directory)
        _unshadow(directory, entries)


def _lay(stream: typing.Any, job: dict[str, typing.Any]) -> bytes | None:
    """The job's files; -> the script, if it is one of them."""
    try:
        script: bytes | None = job_stream.lay(stream, job["files"], job.get("path"))
    except ValueError as error:
        print(f"agentfw: {error}", file=sys.stderr)
        _leave(125)
    return script


def _prepare(job: dict[str, typing.Any], main: types.ModuleType, script: bytes | None = None) -> typing.Callable[[], object]:
    """`sys.argv`, `sys.path[0]`, `sys.orig_argv`, `__main__`; -> what runs the program. `script`: its text, of a plain file that
    was laid just now. All that is asked of the host costs an exit."""
    sys.argv[:] = job["argv"]
    sys.orig_argv[:] = [sys.executable, *job["orig_argv"]]
    mode = job["mode"]
    beside: list[str] | None = job.get("beside")
    if mode == "module":
        _first_path(os.getcwd(), beside)
        sys.argv[0] = "-m"
        return functools.partial(runpy._run_module_as_main, job["module"])  # type: ignore[attr-defined]
    if mode == "code":
        _first_path("", beside)
        return functools.partial(_run_text, job["code"], "<string>", main)
    if mode == "stdin":
        _first_path("", beside)
        return functools.partial(_run_stdin, main)
    path = job["path"]
    data = _contents(path) if script is None else script
    rare = data is None or ARCHIVE in data[-ARCHIVE_TAIL:] or len(sys.path_hooks) != PATH_HOOKS
    if rare and _is_collection(path):
        sys.path.insert(0, os.path.abspath(path))
        _unshadow(path)
        return functools.partial(runpy._run_module_as_main, "__main__", False)  # type: ignore[attr-defined]
    real = path
    if script is None:
        with contextlib.suppress(OSError):
            real = os.path.join(os.path.dirname(path), os.readlink(path))
    _first_path(os.path.dirname(os.path.abspath(real)), beside)
    return functools.partial(_run_file, path, data, main)


#: Of these the standard library has: one looks into archives, one into directories
PATH_HOOKS = len(sys.path_hooks)
ARCHIVE = b"PK\x05\x06"
ARCHIVE_TAIL = 22 + 0xFFFF  # bytes from the end: where zipimport looks for it


def _contents(path: str) -> bytes | None:
    """None: it is no file that can be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = b""
        while part := os.read(descriptor, 16384 if len(data) < 16384 else 1 << 20):
            data += part
        return data
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _is_collection(path: str) -> bool:
    """A directory or an archive with a `__main__` in it."""
    for hook in sys.path_hooks:
        try:
            hook(path)
        except ImportError:
            continue
        return True
    return False


def _run_text(text: str | bytes, name: str, main: types.ModuleType) -> None:
    code = compile(text, name, "exec", dont_inherit=True)
    register = getattr(linecache, "_register_code", None)  # from 3.13 on tracebacks show the lines of -c
    if register is not None and isinstance(text, str):
        with contextlib.suppress(TypeError):
            register(code if hasattr(linecache, "_code_key") else name, text, name)  # 3.13.0 had it otherwise
    exec(code, main.__dict__)


def _run_stdin(main: types.ModuleType) -> None:
    main.__dict__["__file__"] = "<stdin>"
    if "__cached__" in INITIAL:
        main.__dict__["__cached__"] = None
    _run_text(sys.stdin.buffer.read(), "<stdin>", main)


def _run_file(path: str, data: bytes | None, main: types.ModuleType) -> None:
    absolute = os.path.abspath(path)
    if data is None:
        try:
            with io.open_code(absolute) as file:
                data = file.read()
        except OSError as error:
            print(f"{sys.executable}: can't open file {absolute!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
            raise SystemExit(2) from None
    namespace = main.__dict__
    namespace["__file__"] = absolute
    if "__cached__" in INITIAL:
        namespace["__cached__"] = None
    if data[:4] == importlib.util.MAGIC_NUMBER:
        namespace["__loader__"] = importlib.machinery.SourcelessFileLoader("__main__", absolute)
        exec(marshal.loads(data[16:]), namespace)
        return
    namespace["__loader__"] = importlib.machinery.SourceFileLoader("__main__", absolute)
    exec(compile(data, absolute, "exec", dont_inherit=True), namespace)


# ---- the end


def _outcome(program: typing.Callable[[], object]) -> int:
    """Runs it; -> exit status, or minus the signal to die of. Reports as CPython does."""
    try:
        program()
    except SystemExit as stop:
        return _system_exit(stop)
    except BaseException as error:
        error.__traceback__ = _without_ours(error.__traceback__)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        status = _call_excepthook(error)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) and status == 1 else status
    return 0


def _without_ours(trace: types.TracebackType | None) -> types.TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _call_excepthook(error: BaseException) -> int:
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        print("sys.excepthook is missing", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)
        return 1
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit as stop:
        return _system_exit(stop)
    except BaseException as second:
        second.__traceback__ = _without_ours(second.__traceback__)
        second.__context__ = None
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(second), second, second.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)
    return 1


def _system_exit(stop: SystemExit) -> int:
    code = stop.code
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
    with contextlib.suppress(BaseException):
        print(code, file=sys.stderr)
    return 1


def _finish(status: int) -> int:
    """What Py_FinalizeEx() does that a program can see."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # non-daemon threads, concurrent.futures
    except BaseException as error:
        _ignored(error, threading)
    atexit._run_exitfuncs()
    main = sys.modules.get("__main__")
    if main is not None:
        namespace = main.__dict__
        for name in [name for name, value in namespace.items() if hasattr(type(value), "__del__")]:
            namespace[name] = None
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    standard = {id(stream) for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)}
    for thing in gc.get_objects():  # without the frozen ones
        if type(thing) in kinds and id(thing) not in standard:
            with contextlib.suppress(Exception):
                thing.flush()
    for stream in (sys.stdout, sys.stderr):
        if stream is None or getattr(stream, "closed", False):
            continue
        try:
            stream.flush()
        except Exception as error:
            if stream is sys.stdout:
                _ignored(error, stream)
            status = 120
    return status


def _ignored(error: BaseException, where: object) -> None:
    trace = _without_ours(error.__traceback__)
    if sys.unraisablehook is sys.__unraisablehook__:  # it takes none but the interpreter's own arguments
        with contextlib.suppress(Exception):
            print(f"Exception ignored in: {where!r}", file=sys.stderr)
            traceback.print_exception(type(error), error, trace, file=sys.stderr)
        return
    sys.unraisablehook(
        types.SimpleNamespace(exc_type=type(error), exc_value=error, exc_traceback=trace, err_msg=None, object=where)
    )


def _leave(status: int) -> typing.NoReturn:
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        status = 128 - status
    os._exit(status)


def _preload(modules: list[str]) -> None:
    """Modules that the operator wants in the template; imported as the program would."""
    _import_processes()
    generate = getattr(uuid, "_generate_time_safe", None)  # libuuid's: keeps its node and clock, which would be all VMs'
    uuid._generate_time_safe = None  # type: ignore[attr-defined]
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(f"agentfw: cannot preload `{name}`: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(126)
    uuid._generate_time_safe = generate  # type: ignore[attr-defined]


def _import_processes() -> None:
    """multiprocessing draws its key as it is imported, and leaves a copy in freed memory, which would be the same in all VMs.
    Each draws its own (`guest_forks`): the template's is zeros."""
    urandom = os.urandom
    os.urandom = bytes
    try:
        importlib.import_module("multiprocessing.process")
    finally:
        os.urandom = urandom


#: Variables for the libraries of a starting template; a program that has them gets them with its job
START_ONLY = ("GLIBC_TUNABLES", "OPENSSL_ia32cap", "LD_BIND_NOW")
PRACTICE = 40  # times, half of them each way: after 8 to 16 calls of each piece of code nothing more is written to it
PRACTICE_SCRIPT = b"""import sys
def main():
    print(end="", flush=True)
if __name__ == "__main__":
    main()
"""


def _practise() -> None:
    """Does what is done after the stop before it, some times over: what the interpreter writes where code gets warm (specialised
    instructions, method caches, counters) is in the snapshot then, and not written in each VM."""
    place = f"/tmp/.agentfw-{os.getpid()}"  # the VM's own
    script = f"{place}/practice.py"
    try:
        os.mkdir(place)
        with open(script, "wb") as file:
            file.write(PRACTICE_SCRIPT)
    except OSError:
        return
    kept = [(held, held[:]) for held in (sys.argv, sys.orig_argv, sys.path)]
    items = sorted(ITEMS)
    job: dict[str, object] = {"argv": [script], "orig_argv": [script], "mode": "script", "path": script, "cwd": os.getcwd()}
    job |= {"ack": "0" * 32, "line_buffered": False}
    own = sys.modules["__main__"]
    ends = os.pipe()
    source, sink = job_stream.Stream(ends[0]), job_stream.Stream(ends[1])
    try:
        for turn in range(PRACTICE):
            more = [("AGENTFW_PRACTICE", "1")] if turn % 2 else []
            how = job if turn % 4 < 2 else {**job, "mode": "code", "code": PRACTICE_SCRIPT.decode(), "beside": []}
            data = marshal.dumps({**how, "env": marshal.dumps(items + more, 2)}, 2)
            os.write(ends[1], len(data).to_bytes(4, "little") + data)
            random.seed()
            sink.say(b'{"warm": %d}' % os.getpid())
            task = source.job()
            source.data = b""
            _adopt(task)
            program = _prepare(task, _new_main())
            _outcome(program)
            os.environ.pop("AGENTFW_PRACTICE", None)
            for held, content in kept:
                held[:] = content
    finally:
        sys.modules["__main__"] = own
        for descriptor in ends:
            os.close(descriptor)
        os.unlink(script)
        os.rmdir(place)


def _use_once() -> None:
    """OpenSSL looks its algorithms up when a first context is made, the C library its modules when a first name is resolved.
    That is done here, and not in each agent (7 ms of CPU time, 1 MB). Random numbers are not the template's: OpenSSL seeds
    itself anew where the pid is another."""
    with contextlib.suppress(Exception), practice_calls.nothing_drawn():  # what is wrong with them is for the program to find
        ssl.create_default_context()
        socket.getaddrinfo("localhost", 443, type=socket.SOCK_STREAM)


OURS = ("ssl_offload", "guest_forks", "job_stream", "one_process", "practice_calls")


def _note_environment() -> None:
    global ENVIRONMENT, ITEMS, NAMES
    ENVIRONMENT = marshal.dumps(sorted(os.environ.items()), 2)
    ITEMS = frozenset(marshal.loads(ENVIRONMENT))
    NAMES = frozenset(name for name, _ in ITEMS)


def main() -> typing.NoReturn:
    here = os.path.dirname(os.path.abspath(__file__))
    if sys.path and sys.path[0] == here:
        del sys.path[0]
    for name in [name for name in sys.modules if name in OURS or name.startswith("offload_")]:
        del sys.modules[name]
    one_process.install()
    preloaded = [name for name in os.environ.pop("AGENTFW_PRELOAD", "").split(",") if name]
    _note_environment()
    _index_modules()
    _practise()
    _use_once()
    practice_calls.practise()
    if preloaded:  # after what is practised: tracers, patches and counters of theirs see nothing of that
        _preload(preloaded)
    for name in START_ONLY:
        os.environ.pop(name, None)
    _note_environment()
    _index_modules()
    linecache.clearcache()
    sys.path_importer_cache.clear()  # mounts may be others than the template's; and what is thrown away later costs page faults
    fresh = _new_main()
    guest_forks.prepare()
    hooks = guest_forks.ForkHooks(_ignored)
    gc.collect()
    gc.freeze()
    hooks.stop()
    stream = job_stream.Stream(os.open("/dev/agentfw", os.O_RDWR | os.O_CLOEXEC))  # the stop
    hooks.go_on()
    pid = os.getpid()
    stream.say(b'{"warm": %d}' % pid)
    job = stream.job(lambda main=fresh: exec(compile(PRACTICE_SCRIPT, "<practice>", "exec"), vars(main).copy()))
    _adopt(job)
    script = _lay(stream, job) if "files" in job else None
    program = _prepare(job, fresh, script)
    stream.say(b'{"ready": "%s", "pid": %d}' % (job["ack"].encode(), pid))
    os.close(stream.descriptor)
    del job, stream, fresh, script
    status = _outcome(program)
    try:
        status = _finish(status)
    except BaseException as error:
        if not isinstance(error, SystemExit):
            sys.__excepthook__(type(error), error, _without_ours(error.__traceback__))
    _leave(status)


if INITIAL["__name__"] == "__main__":
    main()
