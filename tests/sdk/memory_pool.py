"""A Backend in memory, whose jobs are coroutines of the tests': what the SDK does is tried without VMs."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from agentfw.pool.jobs import Job, JobInfo, JobResult, Output, PoolError, PoolInfo, State, Usage


class Running:
    """What a job's body has."""

    def __init__(self, job: Job, info: JobInfo) -> None:
        self.job, self.info = job, info
        self.pieces: list[Output] = []
        self.news = asyncio.Condition()
        self.fed: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.sizes = {1: 0, 2: 0}
        self.signals: list[int] = []
        self.task: asyncio.Task[None] | None = None

    async def write(self, data: bytes, stream: Any = 1) -> None:
        async with self.news:
            self.pieces.append(Output(stream=stream, offset=self.sizes[stream], data=data))
            self.sizes[stream] += len(data)
            self.news.notify_all()


Body = Callable[[Running], Awaitable[JobResult | int | None]]


async def echo(run: Running) -> None:
    """Its arguments, one a line, then its stdin."""
    for each in run.job.args:
        await run.write(each.encode() + b"\n")
    await run.write(run.job.stdin)


class MemoryPool:
    """`body` is what every job does. `slots`: jobs at once; `queue`: jobs that may wait."""

    def __init__(self, body: Body = echo, *, slots: int = 1000, queue: int = 1000, forget_output: bool = False) -> None:
        self.body = body
        self.runs: dict[str, Running] = {}
        self.free = asyncio.Semaphore(slots)
        self.queue = queue
        self.numbers = itertools.count(1)
        self.most = self.active = 0
        self.started = self.closed = 0
        self.submit_delay = 0.0
        self.forget_output = forget_output
        self.pool: object = None

    async def start(self) -> None:
        self.started += 1

    async def close(self) -> None:
        self.closed += 1
        tasks = [run.task for run in self.runs.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def submit(self, job: Job) -> JobInfo:
        if sum(run.info.state == "queued" for run in self.runs.values()) >= self.queue:
            raise PoolError("pool_full", "too many jobs wait")
        job_id = f"job-{next(self.numbers)}"
        info = JobInfo(
            id=job_id, name=job.name or job_id, tenant=job.tenant, template=job.template, labels=job.labels, state="queued",
            submitted=time.time(),
        )  # fmt: skip
        run = self.runs[job_id] = Running(job, info)
        run.task = asyncio.ensure_future(self._run(run))
        await asyncio.sleep(self.submit_delay)
        return info

    async def _run(self, run: Running) -> None:
        result = JobResult(kind="killed", text="by signal 9")
        try:
            async with self.free:
                self.active += 1
                self.most = max(self.most, self.active)
                try:
                    await self._change(run, state="running", started=time.time())
                    answer = await self.body(run)
                    result = answer if isinstance(answer, JobResult) else JobResult(kind="code", code=answer or 0)
                finally:
                    self.active -= 1
        except asyncio.CancelledError:
            pass
        usage = Usage(stdout=run.sizes[1], stderr=run.sizes[2])
        if self.forget_output:
            run.pieces.clear()
        ended = JobResult(kind=result.kind, code=result.code, signal=result.signal, text=result.text, usage=usage)
        await self._change(run, state="done", ended=time.time(), result=ended)

    async def _change(self, run: Running, **fields: Any) -> None:
        async with run.news:
            run.info = JobInfo(**{**{name: getattr(run.info, name) for name in JobInfo.__struct_fields__}, **fields})
            run.news.notify_all()

    def _known(self, job_id: str) -> Running:
        if job_id not in self.runs:
            raise PoolError("no_such_job", f"no job `{job_id}`")
        return self.runs[job_id]

    async def info(self, job_id: str) -> JobInfo:
        return self._known(job_id).info

    async def jobs(
        self, *, state: State | None = None, tenant: str | None = None, labels: Mapping[str, str] | None = None, limit: int = 1000
    ) -> list[JobInfo]:
        found = [run.info for run in reversed(self.runs.values())]
        return [info for info in found if state in (None, info.state) and tenant in (None, info.tenant)][:limit]

    async def wait(self, job_id: str, seconds: float | None = None) -> JobInfo:
        run = self._known(job_id)
        async with run.news:
            await asyncio.wait_for(run.news.wait_for(lambda: run.info.state == "done"), seconds)
        return run.info

    async def output(self, job_id: str, *, follow: bool = True, stdout: int = 0, stderr: int = 0) -> AsyncIterator[Output]:
        run, at = self._known(job_id), 0
        from_ = {1: stdout, 2: stderr}
        while True:
            async with run.news:
                while at >= len(run.pieces) and run.info.state != "done" and follow:
                    await run.news.wait()
                pieces, at = run.pieces[at:], len(run.pieces)
            if not pieces:
                return
            for piece in pieces:
                skip = max(0, from_[piece.stream] - piece.offset)
                if skip < len(piece.data) or not piece.data:
                    yield Output(stream=piece.stream, offset=piece.offset + skip, data=piece.data[skip:])

    async def feed(self, job_id: str, data: bytes, end: bool = False) -> None:
        run = self._known(job_id)
        if not run.job.interactive:
            raise PoolError("unsupported", "not an interactive job")
        run.fed.put_nowait(data)
        if end:
            run.fed.put_nowait(None)

    async def signal(self, job_id: str, number: int) -> None:
        run = self._known(job_id)
        run.signals.append(number)
        if number == signal.SIGKILL and run.task is not None:
            run.task.cancel()

    async def fork(self, job_id: str, count: int) -> list[JobInfo]:
        return [await self.submit(self._known(job_id).job) for _ in range(count)]

    async def describe(self) -> PoolInfo:
        return PoolInfo(
            version="0", api="1", pid=1, state="ready", started=0.0, queued=0, running=self.active, done=0,
            templates=["default"], workers=[],
        )  # fmt: skip

    async def metrics(self) -> dict[str, float]:
        return {"pool.submitted": float(len(self.runs))}

    async def drain(self) -> None:
        await asyncio.gather(*(self.wait(job_id) for job_id in self.runs))

    async def reload(self) -> list[str]:
        return []
