"""Where secrets come from: the configuration itself, the host's environment, a file."""

from __future__ import annotations

import logging
import os
import stat
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agentfw import ConfigError

from .values import LONGEST, check_secret, one_line

if TYPE_CHECKING:
    from agentfw.runtime import Runtime

log = logging.getLogger("agentfw.credentials")

READ = 2 * LONGEST
"""Bytes of a file or of a command's output that are read at most."""


class Source:
    """One secret. `name` is what messages call it ("env:KEY"), `value` the last good one; `changed` is called after a change."""

    file: Path | None = None
    """Agents must not see it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.changed: Callable[[Source], None] = lambda source: None
        self.counters: Counter[str] = Counter()
        self._value: str | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def value(self) -> str | None:
        """What can be sent right now; None: `get()` may know more."""
        return self._value

    @property
    def known(self) -> str | None:
        """The last value, good or not."""
        return self._value

    async def get(self) -> str | None:
        """As `value`, once what can be done for it has been done. Why there is none has been logged."""
        return self.value

    def check(self) -> None:
        """Look whether there is another value. May block, runs in a thread; `apply()` follows."""

    def apply(self) -> None:
        """Take what `check()` found, in the loop."""

    def rejected(self, value: str) -> None:
        """A server did not accept it (401)."""

    def accepted(self, value: str) -> None:
        """A server did."""

    async def start(self, runtime: Runtime) -> None:
        """Before the first agent. ConfigError if it can be had by no means."""

    async def stop(self) -> None:
        """Tasks end."""

    def _set(self, value: str | None) -> None:
        if value != self._value:
            self._value = value
            self.changed(self)


class Literal(Source):
    """Written in agentfw.toml."""

    def __init__(self, value: str) -> None:
        super().__init__("literal")
        self._value = check_secret(value, "it")


class Environment(Source):
    """A variable of the host's."""

    def __init__(self, variable: str, environment: Mapping[str, str]) -> None:
        super().__init__(f"env:{variable}")
        value = environment.get(variable)
        if value is None:
            hint = f"set it where agentfw is started: `export {variable}=...`; or name another source, as ${{file:PATH}}"
            raise ConfigError("value", f"the environment variable {variable} is not set", hint=hint)
        self._value = check_secret(value, f"the environment variable {variable}")


class File(Source):
    """A file, read again when it has changed: written in place, replaced, or a link in its path (as Kubernetes does) now leads
    elsewhere. While it is missing, empty or being written the last good value stays."""

    def __init__(self, path: str, *, pipes: bool = True) -> None:
        """`pipes`: it may be one, and is waited for. ConfigError (key "value")."""
        super().__init__(f"file:{path}")
        try:
            if not path or "\0" in path:
                raise RuntimeError
            self._path = Path(path).expanduser()
        except RuntimeError:  # no such user's home
            raise ConfigError("value", "the path in ${file:PATH} is none") from None
        self.file = self._path.absolute()
        self._pending: tuple[int, ...] | None = None
        self._found: str | None = None
        self._trouble = ""
        try:
            if not pipes and not stat.S_ISREG(self._path.stat().st_mode):
                raise ConfigError("value", f"the file {path} is no regular file, and all agents would wait for it")
            self._value, self._seen = self._read()
        except OSError as error:
            raise ConfigError("value", f"the file {path} cannot be read: {error.strerror or error}") from None

    def check(self) -> None:
        if not self._seen:  # a pipe: it was read once
            return
        trouble = ""
        try:
            status = self._path.stat()
            now = _signature(status) if stat.S_ISREG(status.st_mode) else ()
            if now == self._seen:
                self._pending = None
            elif now[:2] == self._seen[:2] and now != self._pending:
                self._pending = now  # it is being written: not before it has stayed the same for a while
            elif not now:
                trouble = "it is no regular file any more"
            else:
                self._found, self._seen = self._read()
                self._pending = None
        except OSError as error:
            trouble = f"it cannot be read: {error.strerror or error}"
        except ConfigError as error:
            trouble = error.message
        if trouble and trouble != self._trouble:
            log.warning("%s: the last good value stays in use: %s", self.name, trouble)
            self.counters["failures"] += 1
        self._trouble = trouble

    def apply(self) -> None:
        found, self._found = self._found, None
        if found is not None and found != self._value:
            log.info("%s: a new value is in use", self.name)
            self.counters["renewed"] += 1
            self._set(found)

    def _read(self) -> tuple[str, tuple[int, ...]]:
        """Value and signature (() for what is no regular file). OSError, ConfigError."""
        with self._path.open("rb", buffering=0) as stream:
            before = os.fstat(stream.fileno())
            data = b""
            while len(data) <= READ and (piece := stream.read(READ)):
                data += piece
            after = os.fstat(stream.fileno())
        what = f"the file {self._path}"
        if not stat.S_ISREG(before.st_mode):
            signature: tuple[int, ...] = ()
        elif _signature(before) != _signature(after):
            raise ConfigError("value", f"{what} is being written")
        else:
            signature = _signature(after)
        try:
            return check_secret(one_line(data.decode("utf-8")), what), signature
        except UnicodeDecodeError:
            raise ConfigError("value", f"{what} cannot be read: not text") from None


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
