"""One module of CPython's `test` package, case by case: the same file runs natively and in a VM.

    conformance_module.py REQUEST.json

REQUEST.json: {"module": name in the package `test`, "file": null or a file to load instead, "resources": [as `-u` of regrtest],
"skip": [patterns of cases not to run, as in fnmatch], "done": [cases not to run again], "only": null or [cases], "alone": whether
fork and exec are to fail, natively, as they do in a VM}. What the tests print goes to stderr; on stdout is one JSON array a line:

    ["start", CASE]
    ["end", CASE, OUTCOME, TEXT, SECONDS]             TEXT: why it was skipped, or the end of its traceback
    ["excluded", CASE]
    ["error", TEXT]                                   the module as a whole: it could not be loaded
    ["skipped", TEXT]
    ["whole", SECONDS]                                it was run to its end

OUTCOME: "passed", "failed", "error", "skipped", "expected failure", "unexpected success". Set-ups of
classes and modules are cases, if they do not succeed.
"""

from __future__ import annotations

import errno
import fnmatch
import gc
import importlib
import importlib.util
import io
import json
import os
import re
import struct
import sys
import tempfile
import time
import traceback
import unittest
from typing import Any

TEXT = 2000
"""Characters of a traceback's end that are kept."""


def channel() -> io.TextIOWrapper:
    """The way out for results. Descriptor 1 becomes stderr, so that tests cannot write among them."""
    import fcntl

    mine = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 100)
    os.dup2(2, 1)
    return io.TextIOWrapper(io.FileIO(mine, "w"), encoding="utf-8", errors="backslashreplace", write_through=True)


class Report:
    """Lines to the harness, and what may not be run."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._out = channel()
        self._pid = os.getpid()
        only = request["only"]
        self._only = None if only is None else set(only)
        self._done = set(request["done"])
        self._skip = re.compile("|".join(map(fnmatch.translate, request["skip"])) or r"(?!)").match

    def tell(self, *words: Any) -> None:
        if os.getpid() == self._pid:  # not in what a test forked
            self._out.write(json.dumps(words) + "\n")

    def runs(self, case: str) -> bool:
        if self._only is not None and case not in self._only:
            return False
        if case in self._done:
            return False
        if self._skip(case):
            self.tell("excluded", case)
            return False
        return True


def _name(test: Any) -> str:
    return str(test.id()).removeprefix("test.")


class Result(unittest.TestResult):
    """Each case is told when it begins and when it ends, with the worst that was heard of it in between."""

    def __init__(self, report: Report, names: dict[int, str]) -> None:
        super().__init__()
        self._report, self._names = report, names
        self._case = ""
        self._told: tuple[str, str] | None = None
        self._since = 0.0
        self._failed_before = False

    def startTest(self, test: Any) -> None:
        if self._failed_before:  # what it left (transports, whose end is a warning) is not for this one to find
            self._failed_before = False
            gc.collect()
        super().startTest(test)
        self._case = self._names.get(id(test)) or _name(test)
        self._told = None
        self._report.tell("start", self._case)
        self._since = time.monotonic()

    def stopTest(self, test: Any) -> None:
        outcome, text = self._told or ("passed", "")
        seconds = round(time.monotonic() - self._since, 3)
        self._report.tell("end", self._case, outcome, text, seconds)
        self._case = ""
        self._failed_before = outcome in ("failed", "error")
        super().stopTest(test)

    def _heard(self, test: Any, outcome: str, text: str, worse: bool = False) -> None:
        if not self._case:  # a set-up or tear-down of a class or module
            self._report.tell("end", _name(test), outcome, text, 0)
        elif self._told is None or worse:
            self._told = outcome, text

    def _failed(self, test: Any, outcome: str, error: Any) -> None:
        try:
            text = "".join(traceback.format_exception(*error))
        except Exception as trouble:  # a test's exceptions may be of any kind
            text = f"{error[0]!r}, and no traceback: {type(trouble).__name__}"
        self._heard(test, outcome, text[-TEXT:], self._told is None or self._told[0] not in ("failed", "error"))

    def addFailure(self, test: Any, err: Any) -> None:
        self._failed(test, "failed", err)

    def addError(self, test: Any, err: Any) -> None:
        self._failed(test, "error", err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._failed(test, "failed" if issubclass(err[0], test.failureException) else "error", err)

    def addSkip(self, test: Any, reason: str) -> None:
        self._heard(test, "skipped", str(reason)[:TEXT])

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._heard(test, "expected failure", "")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._heard(test, "unexpected success", "")


def chosen(tests: unittest.TestSuite, report: Report, names: dict[int, str], seen: dict[str, int]) -> None:
    """Leave in `tests` what is to be run. Cases of one name are told apart by a number."""
    kept: list[Any] = []
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            chosen(test, report, names, seen)
            kept.append(test)
            continue
        case = _name(test)
        number = seen[case] = seen.get(case, 0) + 1
        if number > 1:
            case = f"{case}#{number}"
        if report.runs(case):
            names[id(test)] = case
            kept.append(test)
    tests._tests = kept  # type: ignore[attr-defined]


def prepare(request: dict[str, Any]) -> None:
    """What regrtest does before it loads a module."""
    from test import support

    support.use_resources = dict.fromkeys(request["resources"])  # type: ignore[assignment]
    support.verbose = 0
    directory = tempfile.mkdtemp(prefix="test_python_")
    os.chdir(directory)
    try:
        from test.libregrtest.setup import setup_process
    except ImportError:  # an older libregrtest
        return
    setup_process()


def one_process() -> None:
    """From here on fork, vfork, execve, and clone but for threads are no system calls (ENOSYS), as in a VM. seccomp(2)."""
    import ctypes

    load, equal, any_bit, give = 0x20, 0x15, 0x45, 0x06
    calls = (57, 58, 59, 322, 435)  # fork, vfork, execve, execveat, clone3 (the C library goes on to clone)
    program = [(load, 0, 0, 0)]  # struct seccomp_data: nr
    program += [(equal, len(calls) - place + 3, 0, call) for place, call in enumerate(calls)]
    program += [
        (equal, 0, 2, 56),  # clone
        (load, 0, 0, 16),  # its flags
        (any_bit, 0, 1, 0x10000),  # CLONE_THREAD
        (give, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
        (give, 0, 0, 0x00050000 | errno.ENOSYS),  # SECCOMP_RET_ERRNO
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    table = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    no_new_privileges, seccomp, filtered = 38, 22, 2
    zero = ctypes.c_ulong(0)
    if prctl(no_new_privileges, ctypes.c_ulong(1), zero, zero, zero) or prctl(seccomp, filtered, table, zero, zero):
        raise OSError(ctypes.get_errno(), "no seccomp filter")


def load(request: dict[str, Any]) -> Any:
    if request["file"] is None:
        return importlib.import_module("test." + request["module"])
    spec = importlib.util.spec_from_file_location(request["module"], request["file"])
    assert spec is not None and spec.loader is not None
    sys.modules[request["module"]] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(request: dict[str, Any], report: Report) -> None:
    since = time.monotonic()
    file = request["file"]
    if file is not None:
        request["file"] = os.path.abspath(file)
    else:
        prepare(request)
    try:
        module = load(request)
        loader = unittest.TestLoader()
        tests = loader.loadTestsFromModule(module)
        if loader.errors:
            raise ImportError(str(loader.errors[0]))
    except unittest.SkipTest as skip:
        report.tell("skipped", str(skip))
    except BaseException:
        report.tell("error", traceback.format_exc()[-TEXT:])
    else:
        names: dict[int, str] = {}
        chosen(tests, report, names, {})
        try:
            tests(Result(report, names))
        except BaseException:
            report.tell("error", traceback.format_exc()[-TEXT:])
            return
    report.tell("whole", round(time.monotonic() - since, 3))


def main() -> None:
    with open(sys.argv.pop(1)) as file:
        request = json.load(file)
    if request["alone"]:
        one_process()
    run(request, Report(request))
    sys.stderr.flush()
    os._exit(0)  # whatever threads a module left


if __name__ == "__main__":
    main()
