"""The ELF loader against damaged files, sanitized; and against files that are none, in a VM."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from . import bare


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    out = tmp_path_factory.mktemp("fuzz") / "elf_fuzz"
    includes = [f"-I{bare.ROOT}/{path}" for path in ("shim", "vmm/native", "vmm/native/cell")]
    flags = ["-O1", "-g", "-std=gnu11", "-D_GNU_SOURCE", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    bare.run("cc", *flags, *includes, "-o", out, bare.HERE / "elf_fuzz.c", bare.ROOT / "vmm/native/cell/elf.c")
    return out


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_never_lead_outside(fuzzer, tmp_path, seed):
    small = bare.build_guest(tmp_path, "small", "char bss[100000]; int data = 5; void run(void) { leave(bss[data]); }")
    files = [small, Path(sys.executable).resolve()]
    done = subprocess.run([fuzzer, files[seed % 2], str(seed + 1), "1500"], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 0  # some damage is harmless: otherwise the test reaches nothing


@pytest.mark.kvm
@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("empty", b"", "not an ELF file"),
        ("script", b"#!/bin/sh\n" * 20, "not an ELF file"),
        ("elf32", b"\x7fELF\1\1\1" + bytes(100), "not an x86-64 ELF file, but one for another machine"),
        ("i386", b"\x7fELF\1\1\1" + bytes(9) + b"\2\0\3\0" + bytes(100), "not an x86-64 ELF file, but one for i386"),
        ("arm64", b"\x7fELF\2\1\1" + bytes(9) + b"\3\0\xb7\0" + bytes(100), "not an x86-64 ELF file, but one for AArch64"),
        ("s390", b"\x7fELF\2\2\1" + bytes(9) + b"\0\3\0\x16" + bytes(100), "not an x86-64 ELF file, but one for s390"),
        (
            "truncated",
            b"\x7fELF\2\1\1" + bytes(9) + b"\2\0\x3e\0" + bytes(12) + b"\x40" + bytes(21) + b"\x38\0\4\0" + bytes(6),
            "lie outside",
        ),
        ("missing", None, "No such file"),
        ("directory", ..., "Permission denied"),
    ],
)
def test_what_is_no_program_is_named(bare_cell, tmp_path, name, content, text):
    program = tmp_path / name
    if content is ...:
        program.mkdir()
    elif content is not None:
        program.write_bytes(content)
    end, _ = asyncio.run(bare.run_guest(bare_cell, program))
    assert end.kind == "internal" and f"/t/{name}" in end.text and text in end.text
