"""Headers for the collector, which may be secrets: from a file or a program of the operator's, never from agentfw.toml itself."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Mapping

from agentfw import ConfigError
from agentfw.homes import expanded
from agentfw.small_files import read_small
from agentfw.small_output import NoOutput, kill, small_output

from .config import Config

MAX_BYTES = 64 << 10
COMMAND_SECONDS = 30.0
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
"""RFC 9110, 5.6.2."""
_OURS = frozenset({"host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection"})


def parse(text: str, key: str) -> dict[str, str]:
    """Lines `NAME: VALUE`; empty ones and comments (`#`) do not count. ConfigError about `key`, which quotes no value."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, value = line.partition(":")
        name, value = name.strip(), value.strip()
        if not colon or not _NAME.match(name) or not value or not value.isascii() or not value.isprintable():
            raise ConfigError(key, f"line {number} is no header: write `NAME: VALUE`")
        if name.lower() in _OURS:
            raise ConfigError(key, f"line {number}: `{name}` is not for you to set")
        found[name] = value
    return found


class Source:
    """The headers as they are now. Used from one thread, but for `close()`."""

    def __init__(self, config: Config) -> None:
        self._file = None if config.headers_file is None else expanded(config.headers_file, "headers_file")
        self._command = config.headers_command
        self._found: dict[str, str] = {}
        self._seen: tuple[int, int, int] | None = None
        self._asked = False
        """The program has been run."""
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def first(self) -> None:
        """ConfigError if there are none to be had."""
        if self._file is not None:
            self._read()
        elif self._command:
            self._run()

    def now(self) -> Mapping[str, str]:
        """Those of a file that cannot be read right now are as they were. ConfigError: a program that has not been asked yet has
        none."""
        if self._file is not None:
            with contextlib.suppress(ConfigError):
                self._read()
        elif self._command and not self._asked:
            self._run()
        return self._found

    def refused(self) -> None:
        """The collector did not take them: a program may have others by now. ConfigError."""
        if self._command:
            self._run()

    def close(self) -> None:
        """Nobody waits any more for what a program prints."""
        self._closed = True
        for process in list(self._running):
            kill(process)

    def _read(self) -> None:
        assert self._file is not None
        try:
            state = self._file.stat()
            seen = state.st_mtime_ns, state.st_size, state.st_ino
            if seen == self._seen:
                return
            text = read_small(self._file, MAX_BYTES).decode("ascii")
        except OSError as error:
            raise ConfigError("headers_file", f"cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise ConfigError("headers_file", "holds what no header may: use ASCII") from None
        self._found = parse(text, "headers_file")
        self._seen = seen

    def _run(self) -> None:
        if self._closed:
            raise ConfigError("headers_command", "nobody waits for it any more")
        try:
            printed = small_output(self._command, COMMAND_SECONDS, MAX_BYTES, self._running)
        except NoOutput as error:
            raise ConfigError("headers_command", str(error)) from None
        self._found = parse(printed.decode("ascii", "replace"), "headers_command")
        self._asked = True
