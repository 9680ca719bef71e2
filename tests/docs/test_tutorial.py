"""docs/tutorial.md: its files are written, its commands run one after the other in one shell, and they print what it says."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from .pages import ROOT, Block, blocks
from .shell import Shell, missing

PAGE = ROOT / "docs/tutorial.md"


def steps() -> list[Block]:
    text = PAGE.read_text().splitlines()
    found = []
    for block in blocks(PAGE):
        before = "\n".join(text[: block.line - 2]).rstrip().rpartition("\n")[2]
        if not before.startswith("<!-- not run"):
            found.append(block)
    return found


@pytest.mark.kvm
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_tutorial_works(reader: Shell, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    directory, listed = tmp_path / "work", steps()
    assert sum(block.language == "sh" for block in listed) > 15
    for number, block in enumerate(listed):
        text = block.text.replace("8443", port)
        if block.name:
            (directory / "fleet" / block.name).write_text(text)
        elif block.language == "sh":
            after = listed[number + 1] if number + 1 < len(listed) else block
            expected = after.text.replace("8443", port).splitlines() if after.language == "text" else []
            reader.run(text, expected)
        else:
            assert block.language == "text", block.place
    assert not any((tmp_path / "run/agentfw").glob("*.sock"))


def test_lines_that_are_missing_are_found() -> None:
    assert not missing("ID   NAME\n  a1 ask.py-100 done\n", ["ID ... NAME", " ... ask.py-100 ..."])
    assert missing("a\nb\n", ["a", "c"]) == "c" and missing("x denied by y\n", ["denied by ..."]) == "denied by ..."
