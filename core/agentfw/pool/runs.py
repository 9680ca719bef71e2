"""One job in a VM: dispatched, its output handed on and cut at its limit, its end told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from agentfw_vmm import CellError, GuestFlow, Sight, VmExit, VmStatistics
from agentfw_vmm.report import out_of_cpu
from agentfw_vmm.trace import Tracer

from .. import guest_trust
from ..agents import Agent, ExitReport, VmReport
from ..dispatch import ACK_SECONDS, Handover
from ..dispatch import Job as Told
from ..errors import AgentfwError
from ..lives import KILL_SECONDS, LOOK_SECONDS
from ..reports import DispatchReport
from ..runtime import Runtime
from ..serving import Serving
from .cells import Loss, Vm
from .groups import GroupKey, Trouble
from .jobs import JOB_DIRECTORY, Job, JobResult, Limits, PoolError, Usage
from .stock import Stock
from .templates import Prepared
from .traces import JobTrace

log = logging.getLogger("agentfw.pool")

NOTHING = Sight()

Reason = Literal["killed", "timeout", "output"]


class JobEvents(Protocol):
    """What a job's submitter is told meanwhile."""

    def started(self, dispatch_seconds: float) -> None:
        """Its program begins now."""

    def output(self, stream: int, data: bytes) -> Awaitable[None] | None:
        """Stream 1 or 2. None: it has been taken. Else the agent waits while this does. What it raises ends the job, and comes
        out of `Engine.run()`."""


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
        self.parent = ""
        """The job that this one is a copy of."""
        self.key: GroupKey | None = None
        """Whose VMs it runs in."""
        self._vm: Vm | None = None
        self._report: VmExit | None = None
        """How its VM ended."""
        self._waiter: asyncio.Future[None] | None = None
        """`_in()` waits for something to end."""
        self._vm_report: VmReport | None = None
        """What its VM did, once that has ended."""
        self._loss: Loss | None = None
        self._queued = 0.0
        self._began = 0.0
        self._dispatched: float | None = None
        self._handover = Handover()
        self._silence: asyncio.TimerHandle | None = None
        """Until it has said that it begins."""
        self.answered = False
        """It has, or will not say so. Whoever has its first output may take it that it runs."""
        self._outputs: tuple[_Output, ...] = ()
        self._broken: BaseException | None = None
        """What taking its output raised."""
        self._failure = ""
        """What went wrong on our side of it."""
        self._reason: tuple[Reason, str] | None = None
        """Why we ended it."""
        self._signals: list[int] = []
        self._left = limits.output
        self._written = [0, 0]
        self._end_told = False
        self._trace = JobTrace(job.strace, lambda data: events.output(2, data)) if job.strace is not None else None

    @property
    def tracer(self) -> Tracer | None:
        """(User)"""
        return self._trace.tracer if self._trace is not None else None

    @property
    def vm(self) -> Vm | None:
        return self._vm

    @property
    def running(self) -> bool:
        """Its program has begun, and not ended."""
        return self._dispatched is not None and self._report is None

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
        elif self._vm is not None and self._report is None:
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
        if statistics is not None and self._vm is not None:
            self._vm_report = self._of_vm(self._vm, statistics, self._vm.cell.native.sight(self._vm.number))
        self._loss = loss
        if self._report is None:
            self._report = report
        self._wake()
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
        runtime.can_stop(self.agent, lambda reason: self.end("killed", reason))
        runtime.can_look(self.agent, self.look, self.glance)
        feeding: asyncio.Task[None] | None = None
        timer: asyncio.TimerHandle | None = None
        try:
            if self._reason is None and self._report is None:
                told = self._prepare(vm, key.template, environment)
            else:  # it was ended, or its VM was lost, in the very moment in which it was given that
                told = None
                self._kill(vm)
            if told is not None:
                # Its flows, before anything is waited for: then its place may be the next one's.
                self._outputs = _Output(self, vm.stream(1), 1), _Output(self, vm.stream(2), 2)
                most = self._limits.seconds
                if most is not None:
                    timer = loop.call_later(most, self.end, "timeout", f"timed out after {most:g} s")
                if self.job.stdin or stdin is not None:
                    feeding = loop.create_task(_feed(self.job.stdin, stdin, vm.stream(0)))
                else:
                    vm.stream(0).send_eof()
                await self._dispatch(vm, told)
            while self._report is None:
                await self._wait()
            seconds = time.perf_counter() - self._began
            while not all(output.ended for output in self._outputs):  # all it wrote, before its end is told
                await self._wait()
            if self._trace is not None:
                await self._trace.end()
        finally:
            if self._trace is not None:
                self._trace.close()
            for each in (timer, self._silence):
                if each is not None:
                    each.cancel()
            runtime.can_stop(self.agent, None)
            runtime.can_look(self.agent, None)
            if self._report is None:  # we are being cancelled, or whoever takes the output is gone
                vm.cell.kill(vm)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(KILL_SECONDS):
                        while self._report is None:
                            await self._wait()
            for output in self._outputs:
                output.cancel()
            if feeding is not None:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        if self._broken is not None:
            raise self._broken
        return self._result(self._report, seconds, key)

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

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
            return Told(job.mode, target, job.args, variables, JOB_DIRECTORY, files=job.files, alone=True)
        self._kill(vm)
        return None

    def _kill(self, vm: Vm) -> None:
        """Not once it has ended: the place may be the next one's by now, however late we hear what this one said."""
        if self._report is None:
            vm.cell.kill(vm)

    async def _dispatch(self, vm: Vm, told: Told) -> None:
        """The job in; what it answers is `_said()`. Who takes the output is not asked before."""
        stream = vm.stream(3)
        self._silence = self._loop.call_later(ACK_SECONDS, self._not_answered, vm, f"silent for {ACK_SECONDS:.0f} s")
        stream.listen(lambda: self._said(vm, stream))
        with contextlib.suppress(BrokenPipeError):  # it is gone, and its end will tell
            await stream.send(await self._handover.frame(told))
        if not self.answered:
            self._said(vm, stream)

    def _said(self, vm: Vm, stream: GuestFlow) -> None:
        """On the job stream."""
        while not self.answered:
            data = stream.read()
            if data is None:
                return
            try:
                if not data:
                    self._answer()  # it is gone, and its end will tell
                elif self._handover.said(data):
                    self._go(vm)
            except ValueError as error:
                self._not_answered(vm, str(error))
            if not stream.gone:
                return  # of what it says from here on we are told

    def _not_answered(self, vm: Vm, why: str) -> None:
        if not self.answered:
            self._failure = f"the VM did not acknowledge its job: {why}"
            self._kill(vm)
            self._answer()

    def _go(self, vm: Vm) -> None:
        """Its program runs, or has run: a short one may have ended before its acknowledgement was read."""
        self._dispatched = time.perf_counter() - self._began
        for number in self._signals if self._report is None else ():
            vm.cell.native.signal(vm.number, number)
        self._events.started(self._dispatched)
        self._around.runtime.program_began(self.agent, self._queued, self._dispatched)
        self._tell_dispatched()
        self._answer()

    def _tell_dispatched(self) -> None:
        runtime = self._around.runtime
        if self._dispatched is None or not runtime.plugins.implemented("dispatched"):
            return
        link = runtime.pool
        report = DispatchReport(
            job=self.agent.job,
            tenant=self.job.tenant,
            template=self.job.template,
            worker=link.number if link is not None else None,
            parent=self.parent,
            queued=self._queued,
            dispatch=self._dispatched,
            began=self._began + self._dispatched,
        )
        runtime.plugins.dispatched(self.agent, report)

    def _answer(self) -> None:
        """It has said that it begins, or will not say it any more."""
        self.answered = True
        if self._silence is not None:
            self._silence.cancel()
        for output in self._outputs:
            output.more()

    # -- its output

    def take(self, stream: Literal[1, 2], data: bytes) -> Awaitable[None] | None:
        """Hand it on, up to the limit; -> what to wait for before the next."""
        if self._left is not None:
            if len(data) > self._left:
                data = data[: self._left]
                self.end("output", f"it wrote more than {self._limits.output} bytes")
            self._left -= len(data)
        if not data:
            return None
        self._written[stream - 1] += len(data)
        return self._events.output(stream, data)

    def output_ended(self, error: BaseException | None = None) -> None:
        """Of one stream. `error`: it cannot be handed on, and nobody is to run who writes it."""
        if error is not None:
            self._broken = self._broken or error
            if self._vm is not None:
                self._kill(self._vm)
        self._wake()

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
        usage = self._used(seconds, self._vm_report)
        self._told(report)
        result = JobResult.of(report, usage)
        return result if kind is None or kind == report.kind else JobResult(kind=kind, text=report.text, usage=usage)

    def usage(self) -> Usage | None:
        """So far; None: it does not run."""
        report = self.glance()
        return None if report is None else self._used(time.perf_counter() - self._began, report)

    def glance(self) -> VmReport | None:
        """Its VM's counters alone, which are there to be read; None: it does not run."""
        vm = self._vm
        if vm is None or not self.running:
            return None
        return self._of_vm(vm, vm.cell.native.statistics(vm.number), NOTHING)

    async def look(self) -> VmReport | None:
        """What its VM did so far; None: it does not run."""
        vm = self._vm
        if vm is None or not self.running:
            return None
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                sight = await vm.cell.native.look(vm.number)
        except TimeoutError:
            sight = vm.cell.native.sight(vm.number)
        return self._of_vm(vm, vm.cell.native.statistics(vm.number), sight) if self.running else self._vm_report

    def _of_vm(self, vm: Vm, statistics: VmStatistics, sight: Sight) -> VmReport:
        return VmReport(statistics, sight, max(0, statistics.cpu_ns - vm.warm_cpu) / 1e9)

    def _used(self, seconds: float, report: VmReport | None) -> Usage:
        traffic = self._around.runtime.traffic(self.agent)
        return Usage(
            seconds=seconds,
            cpu_seconds=report.cpu_seconds if report is not None else 0.0,
            queued_seconds=self._queued,
            dispatch_seconds=self._dispatched,
            memory=report.statistics.memory_committed if report is not None else 0,
            stdout=self._written[0],
            stderr=self._written[1],
            bytes_up=traffic.up,
            bytes_down=traffic.down,
        )

    def _told(self, report: ExitReport) -> None:
        self._end_told = True
        if self._vm_report is not None:
            statistics = self._vm_report.statistics
            self._around.runtime.refused(self.agent, statistics.refused_paths, statistics.refused_calls)
            report = replace(report, vm=self._vm_report)
        self._around.runtime.agent_exited(self.agent, report)

    def dropped(self) -> None:
        """It ended without a result: what is kept for the agent goes all the same."""
        if not self._end_told:
            seconds = time.perf_counter() - self._began if self._began else 0.0
            self._told(ExitReport("killed", text="its run was given up", seconds=seconds))


class _Output:
    """One stream of a job, handed on as it comes: without a task, as long as it is taken at once."""

    __slots__ = ("_flow", "_more", "_number", "_resting", "_run", "_task", "ended")

    def __init__(self, run: Run, flow: GuestFlow, number: Literal[1, 2]) -> None:
        self.ended = False
        self._resting = False
        """It has had its part of this turn of the loop."""
        self._more = False
        """And there is more."""
        self._run = run
        self._flow = flow
        self._number: Literal[1, 2] = number
        self._task: asyncio.Future[None] | None = None
        flow.listen(self.more)

    def more(self) -> None:
        """There may be some."""
        while self._run.answered and self._task is None and not self.ended:
            if self._resting and not self._flow.gone:
                self._more = True
                return
            try:
                data = self._flow.read()
                if data is None:
                    return
                waiting = self._run.take(self._number, data) if data else None
            except Exception as error:
                self._end(error)
                return
            if not data:
                self._end(None)
            elif waiting is not None:
                # A task of its own, not one that awaits it: that, cancelled before it began, would leave it never awaited.
                self._task = asyncio.ensure_future(waiting)
                self._task.add_done_callback(self._taken)
            elif not self._flow.gone:  # of what it writes from here on we are told
                self._resting = True
                asyncio.get_running_loop().call_soon(self._rested)
                return

    def _rested(self) -> None:
        self._resting = False
        if self._more:
            self._more = False
            self.more()

    def _taken(self, task: asyncio.Future[None]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            self._end(error)
            return
        self._task = None
        self.more()

    def _end(self, error: BaseException | None) -> None:
        if not self.ended:
            self.ended = True
            self._run.output_ended(error)

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self.ended = True
        self._flow.listen(None)
        if self._task is not None:
            self._task.cancel()


async def _feed(first: bytes, more: AsyncIterator[bytes] | None, flow: GuestFlow) -> None:
    with contextlib.suppress(BrokenPipeError):
        if first:
            await flow.send(first)
        if more is not None:
            async for data in more:
                await flow.send(data)
        flow.send_eof()
