"""A pool without VMs, for tests of what stands before one: jobs are processes of this Python, with the same types and errors."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from agentfw.pool.jobs import Job, JobInfo, JobResult, Output, PoolError, PoolInfo, State, Usage, WorkerInfo

PIECE = 65536


class Run:
    """One job: its state, all its output, its process."""

    def __init__(self, job: Job, info: JobInfo) -> None:
        self.job = job
        self.info = info
        self.output: list[Output] = []
        self.written = {1: 0, 2: 0}
        self.changed = asyncio.Condition()
        self.process: asyncio.subprocess.Process | None = None
        self.killed = False
        self.readers = 0
        """Streams of its output that are open."""

    async def change(self, **fields: object) -> None:
        async with self.changed:
            self.info = msgspec.structs.replace(self.info, **fields)
            self.changed.notify_all()


def _send(process: asyncio.subprocess.Process, number: int) -> None:
    """Not by its send_signal(): that of Python 3.11 may take the exit status away from asyncio."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)


class FakeBackend:
    """`limit`: jobs in all, more are refused. `forgotten`: what became of the first bytes of all output."""

    def __init__(self, limit: int = 1000) -> None:
        self.runs: dict[str, Run] = {}
        self.limit = limit
        self.draining = False
        self.started = time.time()
        self.reloads: list[list[str] | PoolError] = []
        """What the next reloads say."""
        self.observatory: Any = None
        """What the plugin `dashboard` tells; None: there is none."""
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._directory = Path(tempfile.mkdtemp(prefix="agentfw-fake-"))

    async def close(self) -> None:
        try:
            for run in self.runs.values():
                await self.signal(run.info.id, 9)
            await asyncio.gather(*self._tasks)
        finally:
            shutil.rmtree(self._directory)

    def _find(self, job_id: str) -> Run:
        if job_id not in self.runs:
            raise PoolError("no_such_job", f"no such job: {job_id}")
        return self.runs[job_id]

    async def submit(self, job: Job) -> JobInfo:
        job.check()
        if self.draining:
            raise PoolError("draining", "the pool takes no more jobs")
        if len(self.runs) >= self.limit:
            raise PoolError("pool_full", f"{self.limit} jobs wait already", "try again later")
        job_id = f"j-{next(self._numbers)}"
        info = JobInfo(id=job_id, name=job.name or job_id, tenant=job.tenant, template=job.template, labels=dict(job.labels),
                       state="queued", submitted=time.time())  # fmt: skip
        run = self.runs[job_id] = Run(job, info)
        task = asyncio.create_task(self._run(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return info

    async def _run(self, run: Run) -> None:
        job, place = run.job, self._directory / run.info.id
        for path, data in job.files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(data)
        place.mkdir(exist_ok=True)
        flag = {"module": ["-m"], "code": ["-c"], "script": []}[job.mode]
        began = time.monotonic()
        run.process = await asyncio.create_subprocess_exec(
            sys.executable, *flag, job.target, *job.args, cwd=place, env={"LANG": "C.UTF-8", **job.env},
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        await run.change(state="running", started=time.time(), worker=0)
        if run.killed:
            _send(run.process, signal.SIGKILL)
        assert run.process.stdin is not None
        run.process.stdin.write(job.stdin)
        if not job.interactive:
            run.process.stdin.close()
        timed_out = False
        pumps = asyncio.gather(self._pump(run, 1, run.process.stdout), self._pump(run, 2, run.process.stderr))
        try:
            await asyncio.wait_for(asyncio.shield(run.process.wait()), job.limits.seconds)
        except TimeoutError:
            timed_out = True
            _send(run.process, signal.SIGKILL)
        await pumps
        code = await run.process.wait()
        usage = Usage(seconds=time.monotonic() - began, stdout=run.written[1], stderr=run.written[2])
        if timed_out:
            result = JobResult(kind="timeout", text="timed out", usage=usage)
        elif run.killed:
            result = JobResult(kind="killed", text="killed", usage=usage)
        elif code < 0:
            result = JobResult(kind="signal", signal=-code, text=signal.Signals(-code).name, usage=usage)
        else:
            result = JobResult(kind="code", code=code, usage=usage)
        await run.change(state="done", ended=time.time(), result=result)

    async def _pump(self, run: Run, stream: int, source: asyncio.StreamReader | None) -> None:
        assert source is not None
        while data := await source.read(PIECE):
            async with run.changed:
                run.output.append(Output(stream=stream, offset=run.written[stream], data=data))  # type: ignore[arg-type]
                run.written[stream] += len(data)
                run.changed.notify_all()

    async def info(self, job_id: str) -> JobInfo:
        return self._find(job_id).info

    async def jobs(
        self, *, state: State | None = None, tenant: str | None = None, labels: Mapping[str, str] | None = None, limit: int = 1000
    ) -> list[JobInfo]:
        found = [
            run.info
            for run in reversed(self.runs.values())
            if state in (None, run.info.state)
            and tenant in (None, run.info.tenant)
            and (labels or {}).items() <= run.info.labels.items()
        ]
        return found[:limit]

    async def wait(self, job_id: str, seconds: float | None = None) -> JobInfo:
        run = self._find(job_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), run.changed:
                await run.changed.wait_for(lambda: run.info.state == "done")
        return run.info

    async def output(self, job_id: str, *, follow: bool = True, stdout: int = 0, stderr: int = 0) -> AsyncIterator[Output]:
        run = self._find(job_id)
        run.readers += 1
        begin = {1: stdout, 2: stderr}
        at = 0
        try:
            while True:
                while at < len(run.output):
                    piece = run.output[at]
                    at += 1
                    skip = max(begin[piece.stream] - piece.offset, 0)
                    if skip < len(piece.data):
                        yield Output(stream=piece.stream, offset=piece.offset + skip, data=piece.data[skip:])
                if not follow or run.info.state == "done":
                    return
                async with run.changed:
                    while at == len(run.output) and run.info.state != "done":
                        await run.changed.wait()
        finally:
            run.readers -= 1

    async def feed(self, job_id: str, data: bytes, end: bool = False) -> None:
        run = self._find(job_id)
        if not run.job.interactive:
            raise PoolError("unsupported", "not an interactive job")
        async with run.changed:
            await run.changed.wait_for(lambda: run.info.state != "queued")
        if run.info.state == "done" or run.process is None or run.process.stdin is None:
            return
        with contextlib.suppress(ConnectionError):
            run.process.stdin.write(data)
            await run.process.stdin.drain()
            if end:
                run.process.stdin.close()

    async def signal(self, job_id: str, number: int) -> None:
        run = self._find(job_id)
        run.killed = run.killed or (number == 9 and run.info.state != "done")
        if run.process is not None and run.info.state != "done":
            _send(run.process, number)

    async def fork(self, job_id: str, count: int) -> list[JobInfo]:
        run = self._find(job_id)
        if run.info.state != "running":
            raise PoolError("unsupported", "only a running job can be forked")
        copies = [await self.submit(run.job) for _ in range(count)]
        for copy in copies:
            await self.runs[copy.id].change(parent=job_id)
        return [self.runs[copy.id].info for copy in copies]

    async def describe(self) -> PoolInfo:
        counts = {state: sum(run.info.state == state for run in self.runs.values()) for state in ("queued", "running", "done")}
        worker = WorkerInfo(number=0, pid=os.getpid(), state="ready", running=counts["running"], idle=0, cells=0, restarts=0)
        state = "draining" if self.draining else "ready"
        return PoolInfo(version="0", api="", pid=os.getpid(), state=state, started=self.started, queued=counts["queued"],
                        running=counts["running"], done=counts["done"], templates=["default"], workers=[worker])  # fmt: skip

    async def metrics(self) -> dict[str, float]:
        count = float(len(self.runs))
        return {"pool.jobs": count, "pool.submitted": count, "pool.done": float((await self.describe()).done)}

    async def usage(self) -> dict[str, Usage]:
        found = {}
        for run in self.runs.values():
            if run.info.state == "running" and run.process is not None:
                with contextlib.suppress(OSError):
                    fields = (
                        Path(  # noqa: ASYNC240  # no disk
                            f"/proc/{run.process.pid}/stat"
                        )
                        .read_text()
                        .rpartition(")")[2]
                        .split()
                    )
                    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                    found[run.info.id] = Usage(cpu_seconds=cpu, stdout=run.written[1], stderr=run.written[2])
        return found

    async def plugin(self, plugin: str, what: str, query: Mapping[str, str] | None = None, *, local: bool = True) -> Any:
        if plugin == "dashboard" and self.observatory is not None:
            if what == "agents":
                return await self.observatory.agents(int((query or {})["since"]))
            if what == "agent":
                return await self.observatory.agent((query or {})["id"])
            return await getattr(self.observatory, what)()
        if plugin != "fake":
            raise PoolError("not_found", f"no plugin `{plugin}`")
        return {"what": what, "query": dict(query or {}), "local": local}

    async def drain(self) -> None:
        self.draining = True
        for run in list(self.runs.values()):
            await self.wait(run.info.id)

    async def reload(self) -> list[str]:
        said = self.reloads.pop(0) if self.reloads else []
        if isinstance(said, PoolError):
            raise said
        return said
