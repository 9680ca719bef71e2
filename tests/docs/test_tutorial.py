"""docs/tutorial.md: its files are written, its commands run one after the other in one shell, and they print what it says."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .pages import ROOT, Block, blocks

PAGE = ROOT / "docs/tutorial.md"
SECONDS = 60.0
"""That one block may take; a snapshot is made in the first."""


class Shell:
    """A bash that is given blocks as files to source (its standard input is nothing: `agentfw run` would read it), with both its
    streams in one file."""

    def __init__(self, directory: Path, scratch: Path, environment: dict[str, str]) -> None:
        self._scratch, self._printed = scratch, scratch / "printed"
        blocks_, self._give = os.pipe()
        loop = f'while read -r file <&{blocks_}; do . "$file"; echo "--- $file ended with $?"; done'
        with self._printed.open("wb") as file:
            self.process = subprocess.Popen(
                ["bash", "--norc", "-m", "-c", loop], cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                stderr=file, pass_fds=(blocks_,),
            )  # fmt: skip
        os.close(blocks_)
        self._told = 0
        self._blocks = 0

    def run(self, text: str, expected: list[str]) -> None:
        """Until it has ended, with status 0, and all that is `expected` was printed: by what runs in the background, too."""
        self._blocks += 1
        file = self._scratch / f"block-{self._blocks}"
        file.write_text(text)
        os.write(self._give, f"{file}\n".encode())
        until = time.monotonic() + SECONDS
        while True:
            printed = self._printed.read_text(errors="replace")[self._told :]
            ended = re.search(rf"(?m)^(.*)--- {re.escape(str(file))} ended with (\d+)$", printed)
            wanted = missing(printed, expected)
            if ended is not None and ended[2] == "0" and not wanted:
                self._told += ended.end()
                return
            failed = ended is not None and ended[2] != "0"
            if failed or time.monotonic() > until or self.process.poll() is not None:
                raise AssertionError(f"{text}\nprinted:\n{printed}\n" + (f"but not: {wanted}" if wanted else ""))
            time.sleep(0.02)

    def close(self) -> None:
        """What a reader would do at the end; and if the page did not come so far, all the same."""
        last = self._scratch / "last"
        last.write_text("agentfw pool stop --now > /dev/null 2>&1\nkill $(jobs -p) 2> /dev/null; wait\nexit\n")
        os.write(self._give, f"{last}\n".encode())
        os.close(self._give)
        self.process.wait(30)


def missing(printed: str, expected: list[str]) -> str:
    """The first line that was not printed, in any order; `...` stands for anything."""
    for line in expected:
        pattern = ".*".join(
            map(re.escape, (part.strip() if line.strip().startswith("...") else part for part in line.split("...")))
        )
        if not re.search(rf"(?m)^\s*{pattern.strip()}", printed):
            return line
    return ""


@pytest.fixture
def reader(tmp_path: Path, agentfw_environment: dict[str, str], nothing_left: None) -> Iterator[Shell]:
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "agentfw").write_text(f'#!/bin/sh\nexec {sys.executable} -P -c "from agentfw.cli import main; main()" "$@"\n')
    (binaries / "agentfw").chmod(0o755)
    (tmp_path / "run").mkdir(mode=0o700)
    environment = {
        **agentfw_environment, "PATH": f"{binaries}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(tmp_path / "run"), "XDG_STATE_HOME": str(tmp_path / "state"),
    }  # fmt: skip
    (tmp_path / "work").mkdir()
    shell = Shell(tmp_path / "work", tmp_path, environment)
    yield shell
    shell.close()


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
