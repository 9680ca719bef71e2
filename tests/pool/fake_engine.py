"""An engine without VMs, for all about a pool that is not about them: a job's target is a list of what to do, as JSON.

["out", text] ["err", text] ["flood", bytes] ["cat"] (stdin to stdout) ["files"] (their sizes) ["agent"] (the run's name) ["pid"]
["sleep", seconds] ["exit", code] ["die", status] ["kill"] (the process) ["hang", seconds] (the loop) ["cell"] (its cell dies)
["resolve", name] ["ask", plugin, text] ["did", what, times] (told to the plugins' hooks: see `fake_work`)
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from agentfw import dns_reply, dns_wire
from agentfw.agents import Agent, ExitReport
from agentfw.config import RunConfig
from agentfw.errors import ConfigError
from agentfw.pool.config import PoolConfig
from agentfw.pool.jobs import Job, JobResult, PoolError, Usage
from agentfw.reports import DispatchReport
from agentfw.runtime import Runtime

try:
    from . import fake_work
except ImportError:  # in a worker this is a module of its own
    import fake_work  # type: ignore[no-redef]


class EngineCounts(msgspec.Struct):
    running: int
    idle: int
    cells: int
    runs: int


class _Killed(Exception):
    pass


class Engine:
    def __init__(self, runtime: Runtime, pool: PoolConfig, run: RunConfig, *, size: int, idle: int, store: object = None) -> None:
        self.runtime = runtime
        self.pool = pool
        self.vms = asyncio.Semaphore(size)
        self.idle = idle
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.jobs: dict[str, tuple[list[Any], Any]] = {}
        self.signals: dict[str, list[int]] = {}
        self.counters: Counter[str] = Counter()

    def deal(self, parts: dict[str, float]) -> dict[str, tuple[float, float]]:
        return {}

    def usage(self) -> dict[str, Usage]:
        return {job_id: Usage(cpu_seconds=1.5) for job_id in self.tasks}

    async def start(self, progress: object = None) -> None:
        if os.environ.get("FAKE_ENGINE") == "broken":
            raise PoolError("internal", "there is no /dev/kvm", "get one")
        if os.environ.get("FAKE_ENGINE") == "dies":
            os._exit(3)

    async def run(self, job: Job, job_id: str, events: Any, stdin: AsyncIterator[bytes] | None) -> JobResult:
        task = asyncio.current_task()
        assert task is not None
        self.tasks[job_id] = task
        self.counters["runs"] += 1
        agent = Agent(job_id, job.name or job_id, {**job.labels, "tenant": job.tenant}, job=job_id)
        result = JobResult(kind="internal", text="given up")
        try:
            await self.runtime.admit(agent)
            async with self.vms:
                events.started(0.001)
                self._tell_dispatched(agent, job)
                result = await self._do(agent, json.loads(job.target), job, events, stdin)
        except asyncio.CancelledError:
            if self.signals.get(job_id) is None:
                raise
            number = self.signals.pop(job_id)[0]
            result = JobResult(kind="killed") if number == 9 else JobResult(kind="signal", signal=number)
        except PoolError:
            raise
        except Exception as error:
            result = JobResult(kind="internal", text=f"{type(error).__name__}: {error}")
        finally:
            del self.tasks[job_id]
            self.jobs.pop(job_id, None)
            report = ExitReport("killed") if result.kind == "output" else ExitReport(result.kind, result.code, result.signal)
            self.runtime.agent_exited(agent, report)
        return result

    def _tell_dispatched(self, agent: Agent, job: Job) -> None:
        link = self.runtime.pool
        report = DispatchReport(
            job=agent.job, tenant=job.tenant, template=job.template, worker=link.number if link is not None else None,
            dispatch=0.002, began=time.perf_counter(),
        )  # fmt: skip
        self.runtime.plugins.dispatched(agent, report)

    async def _do(self, agent: Agent, steps: list[Any], job: Job, events: Any, stdin: AsyncIterator[bytes] | None) -> JobResult:
        written = {1: 0, 2: 0}

        async def write(stream: int, data: bytes) -> None:
            written[stream] += len(data)
            waiting = events.output(stream, data)
            if waiting is not None:
                await waiting

        for number, (what, *how) in enumerate(steps):
            self.jobs[agent.id] = steps[number + 1 :], job
            match what:
                case "out":
                    await write(1, how[0].encode())
                case "err":
                    await write(2, how[0].encode())
                case "flood":
                    for begin in range(0, how[0], 1 << 18):
                        await write(1, b"x" * min(1 << 18, how[0] - begin))
                case "cat":
                    await write(1, job.stdin)
                    if stdin is not None:
                        async for data in stdin:
                            await write(1, data)
                case "sleep":
                    await asyncio.sleep(how[0])
                case "exit":
                    return JobResult(kind="code", code=how[0], usage=Usage(stdout=written[1], stderr=written[2]))
                case "die":
                    os._exit(how[0])
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "hang":
                    time.sleep(how[0])  # noqa: ASYNC251 (that is the point)
                case "cell":
                    raise PoolError("worker_lost", "the cell died")
                case "resolve":
                    query = dns_wire.make_query(how[0], dns_wire.A)
                    reply = await self.runtime.plugins.resolve(agent, how[0], dns_wire.A, query)
                    assert reply is not None
                    found = dns_reply.parse_addresses(reply, query, dns_wire.parse_query(query))
                    text = json.dumps([found.rcode, *(list(pair) for pair in found.found)])
                    await write(1, text.encode() + b"\n")
                case "ask":
                    assert self.runtime.pool is not None and self.runtime.pool.role == "worker"
                    await write(1, await self.runtime.pool.ask(how[0], how[1].encode()))
                case "did":
                    fake_work.do(self.runtime, agent, *how)
                case "agent":
                    await write(1, agent.id.encode())
                case "pid":
                    await write(1, str(os.getpid()).encode())
                case "files":
                    await write(1, json.dumps({name: len(data) for name, data in job.files.items()}).encode())
                case _:
                    raise ValueError(what)
        return JobResult(kind="code", usage=Usage(stdout=written[1], stderr=written[2]))

    def signal(self, job_id: str, number: int) -> None:
        task = self.tasks.get(job_id)
        if task is not None:
            self.signals[job_id] = [number]
            task.cancel()

    async def fork(self, job_id: str, ids: Sequence[str], events: Sequence[Any]) -> list[asyncio.Task[JobResult]]:
        if job_id not in self.jobs:
            raise PoolError("unsupported", "it does not run")
        steps, job = self.jobs[job_id]
        await asyncio.sleep(float(job.env.get("SAVING", 0)))
        return [
            asyncio.get_running_loop().create_task(
                self.run(msgspec.structs.replace(job, target=json.dumps(steps)), copy, event, None)
            )
            for copy, event in zip(ids, events, strict=True)
        ]

    def counts(self) -> EngineCounts:
        return EngineCounts(len(self.tasks), self.idle, 1, self.counters["runs"])

    async def check(self, pool: PoolConfig, run: RunConfig) -> None: ...

    def reload(self, pool: PoolConfig, run: RunConfig) -> None:
        if os.environ.get("FAKE_ENGINE") == "stubborn" and self.counters["runs"]:
            raise ConfigError("idle", "no")
        self.pool = pool

    async def drain(self) -> None:
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def trim(self, vms: int) -> int:
        return 0

    async def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
