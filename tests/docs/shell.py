"""A shell that is given the blocks of a page, as a reader would, and what it prints held to what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

SECONDS = 200.0
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
        try:
            self.process.wait(30)
        finally:
            self.process.kill()  # it did not take it
            self.process.wait()


def missing(printed: str, expected: list[str]) -> str:
    """The first line that was not printed, in any order; `...` stands for anything."""
    for line in expected:
        pattern = ".*".join(
            map(re.escape, (part.strip() if line.strip().startswith("...") else part for part in line.split("...")))
        )
        if not re.search(rf"(?m)^\s*{pattern.strip()}", printed):
            return line
    return ""
