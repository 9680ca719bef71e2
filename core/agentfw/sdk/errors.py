"""Jobs that did not end well, as exceptions: raised with `check=True`, and by `Result.check()`.

JobFailed               it ended with another status than 0
├── JobSignaled         a signal ended it, one of its own making or a crash
├── JobKilled           somebody killed it: a caller, an operator, a plugin (a budget)
├── JobTimeout          its `timeout` or CPU time was over (also a TimeoutError)
├── OutOfMemory         its VM's limit
├── TooMuchOutput       it wrote more than it may
├── JobHostile          it broke the VM's protocol, and was stopped for it
└── JobBroken           not its fault: the pool's, or of the machine under it

That a pool refuses or cannot be reached is no job's end, but PoolError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import AgentfwError
from ..texts import shown

if TYPE_CHECKING:
    from .results import Result


class JobFailed(AgentfwError):
    """`result` has all that is known: exit code, output, usage. The message ends with the last line of its stderr."""

    def __init__(self, result: Result) -> None:
        self.result = result
        super().__init__(_words(result))

    def __reduce__(self) -> tuple[type[JobFailed], tuple[Result]]:
        return type(self), (self.result,)


class JobSignaled(JobFailed):
    """`result.ended.signal` ended it."""


class JobKilled(JobFailed):
    """It was killed; `result.ended.text` may say by whom."""


class JobTimeout(JobFailed, TimeoutError):
    """It was killed when its time was over."""


class OutOfMemory(JobFailed):
    """It needed more memory than its VM may have."""


class TooMuchOutput(JobFailed):
    """It was killed when it had written more than it may."""


class JobHostile(JobFailed):
    """It broke the protocol between VM and host."""


class JobBroken(JobFailed):
    """It could not be run, or not to its end, through no fault of its own."""


_KINDS: dict[str, type[JobFailed]] = {
    "code": JobFailed,
    "signal": JobSignaled,
    "killed": JobKilled,
    "timeout": JobTimeout,
    "memory": OutOfMemory,
    "output": TooMuchOutput,
    "hostile": JobHostile,
    "internal": JobBroken,
}


def failure(result: Result) -> JobFailed:
    return _KINDS.get(result.ended.kind, JobBroken)(result)


def _words(result: Result) -> str:
    ended = result.ended
    what = {
        "code": f"exited with {ended.code}",
        "signal": f"was ended by signal {ended.signal}",
        "killed": "was killed",
        "timeout": "timed out",
        "memory": "ran out of memory",
        "output": "wrote more than it may",
        "hostile": "was stopped for breaking the VM's protocol",
        "internal": "could not be run",
    }.get(ended.kind, f"ended: {ended.kind}")
    name = result.name if result.name == result.id else f"{result.name} ({result.id})"
    said = ended.text if ended.kind != "code" else _last_line(result.stderr_bytes)
    if ended.kind == "signal":  # in brackets: the same by its number, or where
        said = said.partition(" (")[0]
    return f"job {name} {what}" + (f": {shown(said)}" if said else "")


def _last_line(data: bytes) -> str:
    lines = data[-4096:].decode("utf-8", "replace").rstrip().splitlines()
    return lines[-1].strip()[-400:] if lines else ""
