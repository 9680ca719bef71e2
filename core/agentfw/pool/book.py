"""The book of jobs: what each is, where it stands, what it wrote.

A job goes queued -> starting -> running -> done and never back, but that another attempt begins with "queued"; "done" is for
ever. What the book takes is bounded: of jobs that are not done the router sees to it, of the others the newest `keep_jobs` are
kept (and for a moment all), and of output `keep_output` bytes in sum: that of the jobs that ended first goes first, then the
oldest of who wrote most.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from .jobs import Job, JobInfo, JobResult, PoolError, State
from .kept_output import KeptOutput, Stream

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_ORDER = {"queued": 0, "starting": 1, "running": 2, "done": 3}
MOMENT = 10.0
"""Seconds that a job is kept after its end at least: whoever submitted it has yet to ask for that ..."""
MOMENT_MOST = 10_000
"""... so many of them at most."""
MAX_TEXT = 4096
"""Characters of a result's text."""


class Entry:
    """A job. Changed by `Book` only; `worker_lost`, `signals` and `fed` are the router's notes."""

    __slots__ = (
        "attempt",
        "began",
        "ended",
        "fed",
        "id",
        "job",
        "output",
        "parent",
        "queued",
        "result",
        "signals",
        "size",
        "started",
        "state",
        "submitted",
        "waited",
        "waiters",
        "worker",
        "workers_lost",
    )

    def __init__(self, job_id: str, job: Job, submitted: float, output: KeptOutput, parent: str | None) -> None:
        self.id = job_id
        self.job = job
        self.size = payload(job)
        self.submitted = submitted
        self.output = output
        self.parent = parent
        self.state: State = "queued"
        self.attempt = 1
        self.started: float | None = None
        self.ended: float | None = None
        self.worker: int | None = None
        self.result: JobResult | None = None
        self.began = time.monotonic()
        """When it was submitted, by a clock that nobody sets."""
        self.queued = self.began
        """When it began to wait, by that clock."""
        self.waited = 0.0
        """Seconds in the queue, all attempts'."""
        self.waiters: set[asyncio.Future[None]] = set()
        """For it to be in another state."""
        self.signals: list[int] = []
        """For when it is sent to a worker."""
        self.fed = False
        """It was given standard input that is kept nowhere: it cannot be run again."""
        self.workers_lost = 0
        """Attempts that ended with the death of a worker's whole process."""

    @property
    def run(self) -> str:
        """The name of this attempt between router and worker, and the agent's id."""
        return self.id if self.attempt == 1 else f"{self.id}.{self.attempt}"

    @property
    def place(self) -> tuple[str, str]:
        """What its VMs must have in common with others'."""
        return self.job.tenant, self.job.template

    def now(self) -> float:
        """Seconds since 1970 by the clock of its submission: whatever that is set to meanwhile, its times are in order, and what
        lies between two of them passed."""
        return self.submitted + time.monotonic() - self.began

    async def change(self) -> None:
        """Until it is in another state."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.add(waiter)
        try:
            await waiter
        finally:
            self.waiters.discard(waiter)

    def info(self) -> JobInfo:
        job = self.job
        return JobInfo(
            id=self.id,
            name=job.name or self.id,
            tenant=job.tenant,
            template=job.template,
            labels=job.labels,
            state=self.state,
            submitted=self.submitted,
            started=self.started,
            ended=self.ended,
            worker=self.worker,
            attempt=self.attempt,
            parent=self.parent,
            result=self.result,
        )


class Book:
    """By id, in the order in which they came. `moment`: MOMENT. `tell(what, entry)`: it was "dispatched", is to be "retried", has
    "ended"."""

    def __init__(
        self,
        keep_jobs: int,
        keep_output: int,
        moment: float = MOMENT,
        tell: Callable[[str, Entry], None] = lambda what, entry: None,
    ) -> None:
        self._tell = tell
        self.keep_jobs = keep_jobs
        self.keep_output = keep_output
        self._moment = moment
        self.counts: dict[State, int] = {"queued": 0, "starting": 0, "running": 0, "done": 0}
        self.payload = 0
        """Bytes of files, code and stdin of jobs that are not done."""
        self.output_bytes = 0
        """Memory that output takes."""
        self.finished = 0
        """Jobs that ended, those included that are not in the book any more."""
        self._entries: dict[str, Entry] = {}
        self._ended: dict[str, Entry] = {}
        """In the order of their ends."""
        self._writing: dict[str, Entry] = {}
        """Those that have written something and have not ended."""
        self._with_output: dict[str, Entry] = {}
        """Those of `_ended` whose output is still here."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def get(self, job_id: str) -> Entry:
        """PoolError "no_such_job"."""
        self._forget_old()
        entry = self._entries.get(job_id)
        if entry is None:
            raise PoolError("no_such_job", f"there is no job `{job_id[:64]}` (any more)")
        return entry

    def add(self, job: Job, output_limit: int, parent: str | None = None) -> Entry:
        """A new job, "queued"."""
        job_id = _new_id()
        while job_id in self._entries:
            job_id = _new_id()
        entry = Entry(job_id, job, time.time(), KeptOutput(min(output_limit, self.keep_output)), parent)
        self._entries[job_id] = entry
        self.counts["queued"] += 1
        self.payload += entry.size
        return entry

    def sent(self, entry: Entry, worker: int) -> None:
        """It was given to a worker."""
        self._turn(entry, "starting")
        entry.worker = worker
        entry.waited += time.monotonic() - entry.queued

    def started(self, entry: Entry) -> None:
        """Its program runs."""
        self._turn(entry, "running")
        entry.started = entry.now()
        self._tell("dispatched", entry)

    def again(self, entry: Entry) -> None:
        """Another attempt, from its beginning."""
        if entry.state not in ("starting", "running"):
            raise ValueError(f"a job that is {entry.state} cannot be run again")
        self.counts[entry.state] -= 1
        self.counts["queued"] += 1
        entry.state = "queued"
        entry.attempt += 1
        entry.queued = time.monotonic()
        entry.worker = entry.started = None
        self.output_bytes -= entry.output.cost
        entry.output.again()
        self._tell("retried", entry)

    def wrote(self, entry: Entry, stream: Stream, data: bytes) -> None:
        """More output of a job that runs."""
        if entry.state == "done":
            raise ValueError("a job that is done wrote something")
        before = entry.output.cost
        self._writing[entry.id] = entry
        entry.output.add(stream, data)
        self.output_bytes += entry.output.cost - before
        if self.output_bytes > self.keep_output:
            self._make_room()

    def done(self, entry: Entry, result: JobResult) -> None:
        """It ended; of what it was made of only the description is kept."""
        self._turn(entry, "done")
        if len(result.text) > MAX_TEXT:
            result = msgspec.structs.replace(result, text=result.text[:MAX_TEXT])
        usage = msgspec.structs.replace(result.usage, queued_seconds=entry.waited)
        entry.result = msgspec.structs.replace(result, usage=usage)
        entry.ended = entry.now()
        entry.output.end()
        self.payload -= entry.size
        entry.job = msgspec.structs.replace(entry.job, target="", args=(), env={}, files={}, stdin=b"")
        entry.signals.clear()
        self.finished += 1
        self._writing.pop(entry.id, None)
        self._ended[entry.id] = entry
        if entry.output.cost:
            self._with_output[entry.id] = entry
        self._tell("ended", entry)
        self._forget_old()

    def remove(self, entry: Entry) -> None:
        """It never was: nobody has been told of it."""
        del self._entries[entry.id]
        self._writing.pop(entry.id, None)
        self.counts[entry.state] -= 1
        self.payload -= entry.size
        self.output_bytes -= entry.output.cost
        entry.output.drop()
        entry.output.end()

    def keep(self, jobs: int, output: int) -> None:
        """Other bounds."""
        self.keep_jobs, self.keep_output = jobs, output
        self._forget_old()
        self._make_room()

    def select(self, state: State | None, tenant: str | None, labels: Mapping[str, str] | None, limit: int) -> list[JobInfo]:
        """Newest first."""
        self._forget_old()
        found: list[JobInfo] = []
        wanted = labels or {}
        for entry in reversed(self._entries.values()):
            if len(found) >= limit:
                break
            job = entry.job
            if (
                (state is None or entry.state == state)
                and (tenant is None or job.tenant == tenant)
                and all(job.labels.get(name) == value for name, value in wanted.items())
            ):
                found.append(entry.info())
        return found

    # -- bounds

    def _turn(self, entry: Entry, state: State) -> None:
        if _ORDER[state] <= _ORDER[entry.state]:
            raise ValueError(f"a job that is {entry.state} cannot become {state}")
        self.counts[entry.state] -= 1
        self.counts[state] += 1
        entry.state = state
        for waiter in entry.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _forget_old(self) -> None:
        while len(self._ended) > self.keep_jobs:
            entry = next(iter(self._ended.values()))
            assert entry.ended is not None
            if len(self._ended) <= self.keep_jobs + MOMENT_MOST and entry.now() - entry.ended < self._moment:
                return
            del self._ended[entry.id]
            self._with_output.pop(entry.id, None)
            del self._entries[entry.id]
            self.counts["done"] -= 1
            self._drop_output(entry)

    def _make_room(self) -> None:
        while self.output_bytes > self.keep_output and self._with_output:
            self._drop_output(self._with_output.pop(next(iter(self._with_output))))
        if self.output_bytes <= self.keep_output:
            return
        # Rare, and then much is dropped at once, so that looking through all that run costs little.
        wanted = self.keep_output - self.keep_output // 8
        while self.output_bytes > wanted:
            most = max(self._writing.values(), key=lambda entry: entry.output.cost, default=None)
            if most is None or not most.output.cost:
                return
            target = most.output.cost // 2
            while self.output_bytes > wanted and most.output.cost > target:
                before = most.output.cost
                most.output.drop_oldest()
                self.output_bytes -= before - most.output.cost

    def _drop_output(self, entry: Entry) -> None:
        self.output_bytes -= entry.output.cost
        entry.output.drop()


def payload(job: Job) -> int:
    """Bytes that a job takes while it waits."""
    return (
        len(job.stdin)
        + sum(map(len, job.files.values()))
        + len(job.target)
        + sum(map(len, job.args))
        + sum(len(name) + len(value) for name, value in job.env.items())
    )


def _new_id() -> str:
    """Ten letters and digits, none of which is easily taken for another."""
    number = secrets.randbits(50)
    return "".join(_DIGITS[number >> shift & 31] for shift in range(0, 50, 5))
