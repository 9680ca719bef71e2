"""One job in a VM: dispatched, its output handed on and cut at its limit, its end told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from agentfw_vmm import CellError, GuestFlow, VmExit, VmStatistics
from agentfw_vmm.report import out_of_cpu

from .. import guest_trust
from ..agents import Agent, ExitReport
from ..dispatch import ACK_SECONDS, hand_over
from ..dispatch import Job as Told
from ..errors import AgentfwError
from ..lives import KILL_SECONDS
from ..runtime import Runtime
from ..serving import Serving
from .cells import Loss, Vm
from .groups import GroupKey, Trouble
from .jobs import JOB_DIRECTORY, Job, JobResult, Limits, PoolError, Usage
from .stock import Stock
from .templates import Prepared

log = logging.getLogger("agentfw.pool")

Reason = Literal["killed", "timeout", "output"]


class JobEvents(Protocol):
    """What a job's submitter is told meanwhile."""

    def started(self, dispatch_seconds: float) -> None:
        """Its program begins now."""

    async def output(self, stream: int, data: bytes) -> None:
        """Stream 1 or 2. The agent waits while this does. What it raises ends the job, and comes out of `Engine.run()`."""


@dataclass(frozen=True)
class Surroundings:
    """What all runs of an engine share."""

    runtime: Runtime
    serving: Serving
    stock: Stock


class Run:
    """A `User` of a VM. `limits`: with the pool's as maxima."""

    def __init__(self, around: Surroundings, agent: Agent, job: Job, limits: Limits, events: JobEvents) -> None:
        self.agent = agent
        self.job = job
        self._around = around
        self._limits = limits
        self._events = events
        self._loop = around.runtime.loop
        self.key: GroupKey | None = None
        """Whose VMs it runs in."""
        self._vm: Vm | None = None
        self._exited: asyncio.Future[VmExit] = self._loop.create_future()
        self._statistics: VmStatistics | None = None
        self._loss: Loss | None = None
        self._queued = 0.0
        self._began = 0.0
        self._dispatched: float | None = None
        self._told_job = asyncio.Event()
        """It has said that it begins, or will not say so. Whoever has its first output may take it that it runs."""
        self._failure = ""
        """What went wrong on our side of it."""
        self._reason: tuple[Reason, str] | None = None
        """Why we ended it."""
        self._signals: list[int] = []
        self._left = limits.output
        self._written = [0, 0]
        self._warm_cpu = 0
        self._end_told = False

    @property
    def vm(self) -> Vm | None:
        return self._vm

    @property
    def running(self) -> bool:
        """Its program has begun, and not ended."""
        return self._dispatched is not None and not self._exited.done()

    @property
    def doomed(self) -> bool:
        """It is ended by us: by a caller, a limit or a plugin."""
        return self._reason is not None

    # -- control

    def signal(self, number: int) -> None:
        """9 kills, also what waits for a VM; others come to the program when it has begun."""
        if number == 9:
            self.end("killed", "killed")
        elif self._dispatched is None:
            self._signals.append(number)
        elif self._vm is not None and not self._exited.done():
            self._vm.cell.native.signal(self._vm.number, number)

    def end(self, kind: Reason, text: str) -> None:
        """End it now; the first reason counts."""
        if self._reason is None:
            self._reason = (kind, text)
        if self._vm is None:
            self._around.stock.withdraw(self)
        else:
            self._kill(self._vm)

    # -- what its cell tells (User)

    def flow_opened(self, flow: GuestFlow) -> None:
        self._around.serving.opened(self.agent, flow)

    def ended(self, report: VmExit, statistics: VmStatistics | None, loss: Loss | None) -> bool:
        self._statistics = statistics
        self._loss = loss
        if not self._exited.done():
            self._exited.set_result(report)
        return report.kind == "code" and self._reason is None and not self._failure

    # -- its life

    async def perform(self, key: GroupKey, environment: Mapping[str, str], stdin: AsyncIterator[bytes] | None) -> JobResult:
        """From its turn to its end. `environment`: all that it gets but for what plugins add. Trouble: no VM is to be had;
        PoolError "worker_lost"."""
        stock = self._around.stock
        self.key = key
        asked = time.perf_counter()
        vm: Vm | None = None
        try:
            if self._reason is None:
                vm = self._vm = await stock.take(key, self)
        except Trouble:
            if self._reason is None:
                raise
        self._queued = time.perf_counter() - asked
        if vm is None:
            return self.over(ExitReport("killed", text="killed before it was started"))
        try:
            return await self._in(vm, key, environment, stdin)
        finally:
            stock.over(key.tenant)

    async def _in(self, vm: Vm, key: GroupKey, environment: Mapping[str, str], stdin: AsyncIterator[bytes] | None) -> JobResult:
        loop, runtime = self._loop, self._around.runtime
        self._began = time.perf_counter()  # a loop's clock may count milliseconds only
        self._warm_cpu = vm.warm_cpu
        runtime.can_stop(self.agent, lambda reason: self.end("killed", reason))
        helpers: list[asyncio.Task[None]] = []
        timer: asyncio.TimerHandle | None = None
        try:
            if self._reason is None:
                told = self._prepare(vm, key.template, environment)
            else:  # it was ended in the very moment in which it was given its VM
                told = None
                self._kill(vm)
            if told is not None:
                outputs = [loop.create_task(self._pump(vm.stream(number), number)) for number in (1, 2)]
                helpers += outputs
                if self.job.stdin or stdin is not None:
                    helpers.append(loop.create_task(_feed(self.job.stdin, stdin, vm.stream(0))))
                else:
                    vm.stream(0).send_eof()
                most = self._limits.seconds
                if most is not None:
                    timer = loop.call_later(most, self.end, "timeout", f"timed out after {most:g} s")
                await self._dispatch(vm, told)
                self._told_job.set()
            report = await asyncio.shield(self._exited)
            seconds = time.perf_counter() - self._began
            if told is not None:
                await asyncio.gather(*outputs)  # all it wrote, before its end is told
        finally:
            if timer is not None:
                timer.cancel()
            runtime.can_stop(self.agent, None)
            if not self._exited.done():  # we are being cancelled, or whoever takes the output is gone
                vm.cell.kill(vm)
                await asyncio.wait([self._exited], timeout=KILL_SECONDS)
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
        return self._result(report, seconds, key)

    def _prepare(self, vm: Vm, template: Prepared, environment: Mapping[str, str]) -> Told | None:
        """What the VM is told, after it got its rules and limits. None: it must not start; it is killed."""
        runtime, job = self._around.runtime, self.job
        try:
            rules = runtime.plugins.guest_rules(self.agent).table()
            variables = {**runtime.plugins.environment(self.agent), **environment}
            if template.trust:
                variables = {**guest_trust.variables(variables), **variables}
            native = vm.cell.native
            if rules:
                native.rules(vm.number, rules)
            if self._limits.cpu is not None or self._limits.cpu_seconds is not None:
                native.limit(vm.number, self._limits.cpu, self._limits.cpu_seconds)
        except (AgentfwError, ValueError) as error:
            runtime.note(self.agent, None, error)
            self._failure = f"not started: {error}"
        except CellError as error:
            self._failure = f"not started: {error}"
        except Exception as error:  # a mistake of ours must not leave a VM waiting for ever
            log.exception("a job could not be prepared")
            self._failure = f"not started: {type(error).__name__}: {error}"
        else:
            target = job.target
            return Told(job.mode, target, job.args, variables, JOB_DIRECTORY, files=job.files)
        self._kill(vm)
        return None

    def _kill(self, vm: Vm) -> None:
        """Not once it has ended: the place may be the next one's by now, however late we hear what this one said."""
        if not self._exited.done():
            vm.cell.kill(vm)

    async def _dispatch(self, vm: Vm, told: Told) -> None:
        try:
            await hand_over(vm.stream(3), told)
        except (BrokenPipeError, EOFError):
            return  # it is gone, and its end will tell
        except (TimeoutError, ValueError) as error:
            self._failure = f"the VM did not acknowledge its job: {str(error) or f'silent for {ACK_SECONDS:.0f} s'}"
            self._kill(vm)
            return
        self._go(vm)

    def _go(self, vm: Vm) -> None:
        """Its program runs, or has run: a short one may have ended before its acknowledgement was read."""
        self._dispatched = time.perf_counter() - self._began
        for number in self._signals if not self._exited.done() else ():
            vm.cell.native.signal(vm.number, number)
        self._events.started(self._dispatched)

    async def _pump(self, flow: GuestFlow, stream: int) -> None:
        try:
            while data := await flow.receive():
                if self._left is not None:
                    if len(data) > self._left:
                        data = data[: self._left]
                        self.end("output", f"it wrote more than {self._limits.output} bytes")
                    self._left -= len(data)
                await self._told_job.wait()
                if data:
                    self._written[stream - 1] += len(data)
                    await self._events.output(stream, data)
        except BaseException:
            if self._vm is not None:
                self._kill(self._vm)
            raise

    # -- its end

    def _result(self, report: VmExit, seconds: float, key: GroupKey) -> JobResult:
        loss = self._loss
        if loss is not None and self._reason is None:
            if key.isolation == "cell" and (loss.outside or not loss.alone):
                self._told(ExitReport("internal", text=loss.text, seconds=seconds))
                raise PoolError("worker_lost", f"its VM was lost: {loss.text}", "give jobs `retries`, if they may be run again")
            return self.over(ExitReport("internal", text=report.text, seconds=seconds), seconds)
        if self._reason is not None and (report.kind in ("killed", "internal") or self._reason[0] == "output"):
            kind, text = self._reason
            return self.over(ExitReport("killed" if kind == "output" else kind, text=text, seconds=seconds), seconds, kind)
        if self._failure or (self._dispatched is None and report.kind == "code" and report.code in (0, 125)):
            text = self._failure or "the VM ended before the program began"
            return self.over(ExitReport("internal", text=text, seconds=seconds), seconds)
        if out_of_cpu(report):
            return self.over(ExitReport("timeout", text=report.text, seconds=seconds), seconds)
        return self.over(ExitReport(report.kind, report.code, report.signal, report.text, seconds), seconds)

    def over(self, report: ExitReport, seconds: float = 0.0, kind: Reason | None = None) -> JobResult:
        """Tell the plugins; -> the result. `kind`: if it is another than the report's."""
        usage = self._used(seconds, self._statistics)
        self._told(report)
        result = JobResult.of(report, usage)
        return result if kind is None or kind == report.kind else JobResult(kind=kind, text=report.text, usage=usage)

    def usage(self) -> Usage | None:
        """So far; None: it does not run."""
        vm = self._vm
        if vm is None or not self.running:
            return None
        return self._used(time.perf_counter() - self._began, vm.cell.native.statistics(vm.number))

    def _used(self, seconds: float, statistics: VmStatistics | None) -> Usage:
        traffic = self._around.runtime.traffic(self.agent)
        return Usage(
            seconds=seconds,
            cpu_seconds=max(0, statistics.cpu_ns - self._warm_cpu) / 1e9 if statistics is not None else 0.0,
            queued_seconds=self._queued,
            dispatch_seconds=self._dispatched,
            memory=statistics.memory_committed if statistics is not None else 0,
            stdout=self._written[0],
            stderr=self._written[1],
            bytes_up=traffic.up,
            bytes_down=traffic.down,
        )

    def _told(self, report: ExitReport) -> None:
        self._end_told = True
        if self._statistics is not None:
            self._around.runtime.refused(self.agent, self._statistics.refused_paths, self._statistics.refused_calls)
        self._around.runtime.agent_exited(self.agent, report)

    def dropped(self) -> None:
        """It ended without a result: what is kept for the agent goes all the same."""
        if not self._end_told:
            seconds = time.perf_counter() - self._began if self._began else 0.0
            self._told(ExitReport("killed", text="its run was given up", seconds=seconds))


async def _feed(first: bytes, more: AsyncIterator[bytes] | None, flow: GuestFlow) -> None:
    with contextlib.suppress(BrokenPipeError):
        if first:
            await flow.send(first)
        if more is not None:
            async for data in more:
                await flow.send(data)
        flow.send_eof()
