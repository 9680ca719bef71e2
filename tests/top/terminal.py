"""A program on a pseudo-terminal, and what a terminal makes of what it writes (pyte)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import pyte

ROOT = Path(__file__).parents[2]
SECONDS = 30.0


class Terminal:
    """`python -m MODULE`; all that it writes is in `raw`, and drawn on `screen`. COMMANDS and ANSWERS among its arguments become
    descriptors."""

    def __init__(self, module: str, *arguments: str, size: tuple[int, int] = (80, 24), env: Mapping[str, str] | None = None):
        columns, lines = size
        self.screen = pyte.Screen(columns, lines)
        self.raw = b""
        self._stream = pyte.ByteStream(self.screen)
        self.main, side = pty.openpty()
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        self.resize(columns, lines)
        places = {"COMMANDS": str(commands), "ANSWERS": str(answers)}
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        environment |= env or {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *(places.get(word, word) for word in arguments)],
            stdin=side,
            stdout=side,
            stderr=side,
            cwd=ROOT,
            env=environment,
            pass_fds=(commands, answers),
            start_new_session=True,
        )
        for descriptor in (side, commands, answers):
            os.close(descriptor)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        for descriptor in (self.main, self._commands, self._answers):
            os.close(descriptor)

    def resize(self, columns: int, lines: int) -> None:
        self.screen.resize(lines, columns)
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.main, text.encode())

    def look(self, told: str) -> int:
        """Let it look once for each letter; -> bytes that came of it. What it draws is written when it wants to look again,
        twice: the loop has been idle in between."""
        before = len(self.raw)
        for letter in told:
            self._wanted()
            os.write(self._commands, letter.encode())
        return len(self.raw) - before

    def drawn(self, *texts: str) -> str:
        """The screen, once these are on it."""
        until = time.monotonic() + SECONDS
        while not all(text in self.page() for text in texts):
            assert time.monotonic() < until, f"never drawn: {texts}:\n{self.page()}"
            self._read(0.05)
        return self.page()

    def page(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def end(self, number: int | None = None) -> int:
        """Its status, once it has ended (by a signal, or by itself)."""
        if number is not None:
            os.kill(self.process.pid, number)
        until = time.monotonic() + SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < until
            with contextlib.suppress(BrokenPipeError):
                os.write(self._commands, b".")
            self._read(0.05)
        while self._read(0.05):
            pass
        return self.process.returncode

    @property
    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _wanted(self) -> None:
        """Wait until it wants to look; what it writes meanwhile is taken."""
        until = time.monotonic() + SECONDS
        while True:
            ready, _, _ = select.select([self.main, self._answers], [], [], 1.0)
            if self.main in ready:
                self._read(0)
                continue
            if self._answers in ready:
                os.read(self._answers, 1)
                return
            assert time.monotonic() < until and self.process.poll() is None, self.raw[-2000:].decode("utf-8", "replace")

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.main], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self.main, 1 << 16)
        except OSError:  # the other side is closed
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
