"""The ELF loader against files that are no programs, in a VM. (Damaged ones: tests/fuzz.)"""

import asyncio

import pytest

from . import bare


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
