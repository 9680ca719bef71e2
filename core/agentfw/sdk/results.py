"""What became of a job: like subprocess.CompletedProcess, with what it used."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from ..pool.jobs import JobInfo, JobResult, Usage
from .errors import JobFailed, failure


@dataclass(frozen=True, eq=False)
class Result:
    """A job that has ended.

    `info`: the job as the pool knows it; `stdout_bytes`, `stderr_bytes`: what it wrote; `truncated`: the pool no longer had all
    of that; `input`: of `map`, which of the inputs it was given.
    """

    info: JobInfo
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    truncated: bool = False
    input: Any = None

    @property
    def ended(self) -> JobResult:
        """Kind, code, signal and text of its end."""
        if self.info.result is None:
            raise ValueError(f"job {self.info.id} has not ended")
        return self.info.result

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def exit_code(self) -> int:
        """The program's own; 128+n: signal n ended it; 124: time-out; 125: the pool's fault; 137: killed, or out of memory."""
        return self.ended.status

    @property
    def returncode(self) -> int:
        """`exit_code`, by the name that it has in `subprocess`."""
        return self.exit_code

    @property
    def ok(self) -> bool:
        """It ended by itself, with 0."""
        return self.exit_code == 0

    @property
    def usage(self) -> Usage:
        return self.ended.usage

    @cached_property
    def stdout(self) -> str:
        """As text: UTF-8, what is none replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @cached_property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")

    def error(self) -> JobFailed | None:
        """What `check()` would raise."""
        return None if self.ok else failure(self)

    def check(self) -> Self:
        """Itself, if `ok`; else raises JobFailed, of the kind that fits."""
        error = self.error()
        if error is not None:
            raise error
        return self

    def __repr__(self) -> str:
        kind = "" if self.ended.kind == "code" else f" kind={self.ended.kind}"
        sizes = f"stdout={len(self.stdout_bytes)} bytes stderr={len(self.stderr_bytes)} bytes"
        return f"<Result {self.name} exit_code={self.exit_code}{kind} {sizes}>"
