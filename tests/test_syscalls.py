"""The lists of system calls say what the shim has, and what the system's headers do."""

import errno
import re
import subprocess
from pathlib import Path

import pytest
from agentfw_vmm import syscalls
from agentfw_vmm.rules import FileRule, compile_rules, refuses_connections

ROOT = Path(__file__).parent.parent
NEVER = {"nofork", "notallowed"}  # functions of the shim that refuse whatever is asked
CHILDREN = {syscalls.NUMBERS["wait4"], syscalls.NUMBERS["waitid"]}  # there are none


def shim_calls() -> dict[int, str]:
    return {
        int(number): function
        for number, function in re.findall(r"^X\((\d+), (\w+)\)", (ROOT / "shim/syscalls.h").read_text(), re.M)
    }


def test_numbers_are_the_systems() -> None:
    command = ["cc", "-E", "-dM", "-include", "asm/unistd.h", "-x", "c", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)$", done.stdout, re.M)}
    assert len(numbers) > 300
    for name, number in numbers.items():
        if number < 468:  # what later kernels have is no business of ours yet
            assert syscalls.NUMBERS[name] == number


def test_kinds_are_the_shims() -> None:
    refused = CHILDREN | {number for name, number in syscalls.NUMBERS.items() if name.endswith("xattr")}  # by the cell
    served = {number for number, function in shim_calls().items() if function not in NEVER} - refused
    for name, number in syscalls.NUMBERS.items():
        kind = syscalls.kind(name)
        if kind == "absent":
            assert number not in served, name
        elif kind == "guest":
            assert number in served, name
        else:
            _, same = syscalls.HOST[name]
            assert any(syscalls.NUMBERS[each] in served for each in same), name
    assert syscalls.kind("no_such_call") is None


def test_what_a_table_says() -> None:
    assert compile_rules() == b"" and not refuses_connections(b"")
    assert refuses_connections(compile_rules(deny=["socket"])) and refuses_connections(compile_rules(kill=["connect"]))
    assert not refuses_connections(compile_rules([FileRule("/a", "deny")], ["symlink"], ["link"], ["socket"]))
    for arguments, reason in (
        ({"deny": ["mmap"]}, "does not leave the VM"),
        ({"kill": ["write"]}, "does not leave the VM"),
        ({"deny": ["opne"]}, "no system call"),
        ({"advisory": ["opne"]}, "no system call"),
        ({"deny": ["link"], "error": errno.EIO}, "EPERM or ENOSYS"),
    ):
        with pytest.raises(ValueError, match=reason):
            compile_rules(**arguments)  # type: ignore[arg-type]
    assert compile_rules(deny=["ptrace", "mount"]) != b""  # there is no such call to be refused, which is well
