"""What a pool can do, whoever does it: the router in this process (embedded), or one behind the control API (connected).

The SDK, the CLI and the HTTP server know this protocol only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from .jobs import Job, JobInfo, Output, PoolInfo, State, Usage


class Backend(Protocol):
    """All methods may raise PoolError: "no_such_job" for an id it does not know (any more), "unavailable" when it is gone."""

    async def submit(self, job: Job) -> JobInfo:
        """Take a job; returns at once, with its id. PoolError "bad_job", "pool_full", "draining"."""

    async def info(self, job_id: str) -> JobInfo: ...

    async def jobs(
        self, *, state: State | None = None, tenant: str | None = None, labels: Mapping[str, str] | None = None, limit: int = 1000
    ) -> list[JobInfo]:
        """Newest first."""

    async def wait(self, job_id: str, seconds: float | None = None) -> JobInfo:
        """Its end, or where it stands after `seconds`. All its output has been taken in when it is "done"."""

    def output(self, job_id: str, *, follow: bool = True, stdout: int = 0, stderr: int = 0) -> AsyncIterator[Output]:
        """What it wrote from these offsets on, in the order it came in; `follow`: until its end."""

    async def feed(self, job_id: str, data: bytes, end: bool = False) -> None:
        """More standard input of an interactive job; waits while the pool has enough of it. PoolError "unsupported"."""

    async def signal(self, job_id: str, number: int) -> None:
        """A signal to its process; 9 kills, also one that is still queued. Nothing if it has ended."""

    async def fork(self, job_id: str, count: int) -> list[JobInfo]:
        """`count` copies of a running job, each from where it stands, with output, pid, seed and clock of its own."""

    async def describe(self) -> PoolInfo: ...

    async def metrics(self) -> dict[str, float]:
        """Counters and gauges by dotted name, summed over the workers."""

    async def usage(self) -> dict[str, Usage]:
        """What the jobs that run have used so far, by id. Those of a worker that does not answer are missing."""

    async def plugin(self, plugin: str, what: str, query: Mapping[str, str] | None = None, *, local: bool = True) -> Any:
        """What a plugin tells of `what`: something that msgspec can encode (over HTTP: its JSON, decoded). `local` False: whoever
        asks may not be told what is for this machine's user only. PoolError "not_found", "forbidden"."""

    async def drain(self) -> None:
        """Take no more jobs; returns when the last has ended."""

    async def reload(self) -> list[str]:
        """Read the configuration again; -> the tables that changed. Raises ConfigError as PoolError "bad_config"."""
