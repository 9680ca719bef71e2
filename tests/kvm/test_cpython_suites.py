"""CPython's own tests of `ssl` and of asyncio's TLS, in a guest, with the newest CPython here that has its tests beside it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.conftest import WITHOUT_TESTS

from .test_interpreters import interpreters

pytestmark = pytest.mark.kvm

SUITES = "test.test_ssl", "test.test_asyncio.test_sslproto"
PROGRAM = """
import os, unittest
os.chdir("/tmp")
unittest.main(module=None, argv=["x", {}])
"""
DIFFERENT = {
    "test_ssl_types",  # that `_ssl`'s classes are immutable
}


def with_tests() -> str:
    for python in (*reversed(interpreters()), sys.executable):
        if not subprocess.run([python, "-c", "import test.test_ssl"], capture_output=True).returncode:
            return python
    pytest.skip(f"no Python here (/usr/bin, PATH, ~/.pyenv) has {WITHOUT_TESTS}")


def test_cpythons_own_tests(agentfw: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    code = PROGRAM.format(", ".join(map(repr, SUITES)))
    done = agentfw("run", "--no-config", "--plugins", "native", "--memory", "1G", "--python", with_tests(), "-c", code)
    ran = re.search(r"^Ran (\d+) tests in ", done.stderr, re.MULTILINE)
    skipped = re.search(r"^(?:OK|FAILED) \(.*skipped=(\d+)", done.stderr, re.MULTILINE)
    assert ran is not None and int(ran[1]) - int(skipped[1] if skipped else 0) > 165, done.stderr[-3000:]
    failed = set(re.findall(r"^(?:FAIL|ERROR): (\w+)", done.stderr, re.MULTILINE))
    assert failed <= DIFFERENT, done.stderr[-10000:]
