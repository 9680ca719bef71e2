"""The life of agents: VMs out of a template, a job into each, its streams and its network to the outside, its end reported.

    async with Fleet(runtime, template, size=20) as fleet:
        result = await fleet.run(Job.script("agent.py", ["x"], env, cwd), Streams(stdout=..., stderr=...))

A fleet has as many VMs as `size`; more jobs than that wait. All of it belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentfw_vmm import Cell, CellError, GuestFlow, VmExit, VmStatistics
from agentfw_vmm.in_memory import in_memory

from . import guest_trust
from .agents import Agent, ExitReport, VmReport, status_of
from .dispatch import ACK_SECONDS, Job, Mode, default_environment, hand_over, template_environment
from .errors import AgentfwError
from .lives import KILL_SECONDS, Host, Life
from .rehearsal import rehearse
from .reports import DispatchReport
from .runtime import Runtime
from .serving import Serving
from .snapshots import Progress, SnapshotStore, Template, TemplateError, cell_config, quiet

if TYPE_CHECKING:
    from .strace import Strace

CELL_VMS = 64
"""VMs that a cell holds at most; more slow each other down."""
_FIRST_PID = 1000
_MANY = 16  # VMs: to copy their snapshot into memory takes longer than a few of them gain

log = logging.getLogger("agentfw.fleet")


class FleetError(AgentfwError):
    """The fleet cannot run agents (no KVM, a cell that broke). `hint`: what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        self.hint = hint
        super().__init__(message)


class Sink(Protocol):
    """Where an agent's output goes."""

    async def write(self, data: bytes) -> None:
        """Returns when more may come. BrokenPipeError: nobody reads any more (the agent's next write fails so, too)."""

    async def close(self) -> None:
        """After the last byte."""


@dataclass
class Streams:
    """An agent's standard streams. `stdin` None: end of file at once."""

    stdout: Sink
    stderr: Sink
    stdin: AsyncIterator[bytes] | None = None


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    agent: Agent
    report: ExitReport

    @property
    def statistics(self) -> VmStatistics | None:
        """None: its VM never ran."""
        return None if self.report.vm is None else self.report.vm.statistics

    @property
    def status(self) -> int:
        """What `agentfw run` exits with for it (docs/reference/cli.md)."""
        return exit_status(self.report)


def exit_status(report: ExitReport) -> int:
    """The agent's own status; 128+n: a signal ended it; 137: killed by us, as by SIGKILL; 124: time-out; 125: our fault."""
    return status_of(report.kind, report.code, report.signal)


class Fleet:
    """VMs of one template under one runtime.

    `size`: VMs at once. `store`: where templates are kept. `trace`: prints the agents' system calls. `progress`
    and `on_line` tell about the making of the template. `recycle`: a VM whose program ended is put back for the next one (for
    more jobs than VMs, all of one owner). Starting may raise TemplateError and FleetError.
    """

    def __init__(
        self,
        runtime: Runtime,
        template: Template,
        *,
        size: int = 1,
        store: SnapshotStore | None = None,
        progress: Progress | None = None,
        on_line: Callable[[str], None] = lambda line: None,
        trace: Strace | None = None,
        recycle: bool = False,
    ) -> None:
        self.runtime = runtime
        self.template = template
        self.size = size
        self.store = store or SnapshotStore()
        self._progress = progress or quiet
        self._on_line = on_line
        self._trace = trace
        self._recycle = recycle
        self._hosts: list[Host] = []
        self._free: asyncio.Queue[tuple[Host, int]] = asyncio.Queue()
        self._runs: set[Life] = set()
        self._serving = Serving(runtime)
        self._numbers = itertools.count(1)
        self._stopped = False
        self._key = b""
        self._trust: dict[str, Any] = {}

    async def __aenter__(self) -> Fleet:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Make or find the template, start the cells."""
        snapshot, self._key = await self.store.get(self.template, self._progress, self._on_line)
        await rehearse(self.store, self.template, snapshot, self._key)
        self._trust = self._with_authority()
        count = -(-self.size // CELL_VMS)
        runners = max(1, min(4, len(os.sched_getaffinity(0)) // count))
        try:
            for index in range(count):
                vms = min(CELL_VMS, self.size - index * CELL_VMS)
                await self._start_cell(snapshot, self._key, vms, min(runners, vms))
        except BaseException:
            await self.close()
            raise

    def _with_authority(self) -> dict[str, Any]:
        """What makes guests trust the fleet's authority, if TLS of theirs may be intercepted: of a cell's configuration."""
        if not self.runtime.plugins.may_intercept:
            return {}
        return guest_trust.of_cell(self.template.view, self.template.interpreter.path, self.runtime.interceptor.authority)

    async def _start_cell(self, snapshot: Path, key: bytes, vms: int, runners: int) -> None:
        host = Host(self, self._recycle)
        hot = self.store.hot_path(key)
        config = cell_config(
            self.template,
            vms=vms,
            runners=runners,
            snapshot_in=in_memory(snapshot) if self.size >= _MANY else snapshot,
            hot_in=hot if hot.exists() else None,
            key=key,
            trace=None if self._trace is None else self._trace.tracer(lambda vm: host.lives[vm].agent.name),
            recycle=self._recycle,
            **self._trust,
        )
        try:
            host.cell = await Cell.start(config, host)
        except CellError as error:
            raise FleetError(str(error), "run `agentfw doctor`") from None
        self._hosts.append(host)
        for vm in range(vms):
            self._free.put_nowait((host, vm))

    async def close(self) -> None:
        """Kill what runs, end the cells, wait for the last network bytes. Idempotent."""
        self.kill()
        results = await asyncio.gather(*(host.cell.close() for host in self._hosts), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                log.error("a cell did not close: %s", result)
        self._hosts.clear()
        await self._serving.close()

    # -- control

    def signal(self, number: int) -> None:
        """A signal to every agent that runs; jobs that wait for a VM end as if it had killed them."""
        self._stopped = True
        for run in list(self._runs):
            run.signal(number)

    def kill(self) -> None:
        """End all agents now."""
        self._stopped = True
        for run in list(self._runs):
            run.kill()

    @property
    def running(self) -> int:
        return len(self._runs)

    # -- runs

    async def run(
        self,
        job: Job,
        streams: Streams,
        *,
        name: str = "",
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # as subprocess.run() has it
        capture: bool = False,
    ) -> Result:
        """Run `job` in a fresh VM to its end; all its output is in the sinks when this returns. Never raises for what the agent
        does. `timeout`: seconds from here. `capture`: as `Agent.capture`."""
        number = next(self._numbers)
        agent = Agent(f"{os.getpid()}-{number}", name or f"agent-{number}", labels or {}, capture=capture)
        started = asyncio.get_running_loop().time()
        try:
            return await self._admitted(agent, job, streams, timeout, started)
        except BaseException:  # we are being cancelled, or a sink failed: what is kept for the agent goes all the same
            seconds = asyncio.get_running_loop().time() - started
            self.runtime.agent_exited(agent, ExitReport("killed", text="its run was given up", seconds=seconds))
            raise

    async def _admitted(self, agent: Agent, job: Job, streams: Streams, timeout: float | None, started: float) -> Result:  # noqa: ASYNC109
        try:
            await self.runtime.admit(agent)
        except AgentfwError as error:
            self.runtime.note(agent, None, error)
            return self._done(agent, ExitReport("internal", text=str(error)), None)
        deadline = None if timeout is None else started + timeout
        try:
            async with asyncio.timeout_at(deadline):
                host, vm = await self._free.get()
        except TimeoutError:
            return self._done(
                agent, ExitReport("timeout", text=f"no VM was free within {timeout:g} s", seconds=timeout or 0), None
            )
        try:
            if self._stopped or host.failure:
                report = VmExit("internal", 0, 0, host.failure) if host.failure else VmExit("killed", 0, 0, "not started")
                return self._done(agent, _report(report, 0.0), None)
            return await self._run(agent, host, vm, job, streams, deadline, started)
        finally:
            self._give_back(host, vm)

    def _give_back(self, host: Host, vm: int) -> None:
        """Its number is free when it has ended: after a cancelled run it has not yet."""
        run = host.lives.get(vm)
        if run is None:
            self._free.put_nowait((host, vm))
        else:
            run.exited.add_done_callback(lambda _: self._free.put_nowait((host, vm)))

    async def _run(
        self, agent: Agent, host: Host, vm: int, job: Job, streams: Streams, deadline: float | None, started: float
    ) -> Result:
        loop = asyncio.get_running_loop()
        try:
            rules = self.runtime.plugins.guest_rules(agent).table()
        except (AgentfwError, ValueError) as error:
            self.runtime.note(agent, None, error)
            return self._done(agent, ExitReport("internal", text=f"not started without its rules: {error}"), None)
        run = Life(agent, host, vm)
        run.queued = max(0.0, loop.time() - started)
        host.lives[vm] = run
        self._runs.add(run)
        self.runtime.can_stop(agent, run.stop)
        self.runtime.can_look(agent, run.look, run.glance)
        helpers: list[asyncio.Task[None]] = []
        timed_out = False
        try:
            try:
                host.cell.restore(vm, _FIRST_PID + next(self._numbers), rules, soon=True)
            except CellError as error:
                del host.lives[vm]
                run.exited.set_result(VmExit("internal", 0, 0, str(error)))  # nothing runs: nothing to wait for below
                return self._done(agent, ExitReport("internal", text=str(error)), None)
            cell = host.cell
            outputs = [
                loop.create_task(_pump(cell.stream(vm, 1), streams.stdout)),
                loop.create_task(_pump(cell.stream(vm, 2), streams.stderr)),
            ]
            helpers += outputs
            helpers.append(loop.create_task(_feed(streams.stdin, cell.stream(vm, 0))))
            helpers.append(loop.create_task(self._dispatch(run, job)))
            try:
                async with asyncio.timeout_at(deadline):
                    ended = await asyncio.shield(run.exited)
            except TimeoutError:
                timed_out = True
                run.kill()
                ended = await run.exited
            seconds = loop.time() - started
            await asyncio.gather(*outputs)  # all it wrote, before its end is told
        finally:
            self._runs.discard(run)
            self.runtime.can_stop(agent, None)
            self.runtime.can_look(agent, None)
            if not run.exited.done():  # we are being cancelled: the VM's number is free only when it has ended
                run.kill()
                await asyncio.wait([run.exited], timeout=KILL_SECONDS)
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
        if timed_out:
            return self._done(agent, ExitReport("timeout", text="timed out", seconds=seconds), run.vm_report)
        if run.stopped and ended.kind == "killed":
            return self._done(agent, ExitReport("killed", text=run.stopped, seconds=seconds), run.vm_report)
        if ended.kind == "internal" and ended.text.startswith("snapshot: "):  # damaged, or of another machine: no use to anybody
            self.store.discard(self._key)
        if run.failure or (not run.acknowledged and ended.kind == "code" and ended.code in (0, 125)):
            text = run.failure or "the VM ended before the program began"
            return self._done(agent, ExitReport("internal", text=text, seconds=seconds), run.vm_report)
        return self._done(agent, _report(ended, seconds), run.vm_report)

    def _done(self, agent: Agent, report: ExitReport, vm: VmReport | None) -> Result:
        if vm is not None:
            self.runtime.refused(agent, vm.statistics.refused_paths, vm.statistics.refused_calls)
            report = replace(report, vm=vm)
        self.runtime.agent_exited(agent, report)
        return Result(agent, report)

    async def _dispatch(self, run: Life, job: Job) -> None:
        """The job in, the acknowledgement out; a VM that does not give it is not used."""
        stream = run.host.cell.stream(run.vm, 3)
        try:
            variables = {**self.runtime.plugins.environment(run.agent), **job.env}
            if self._trust:
                variables = {**guest_trust.variables(variables), **variables}
            await hand_over(stream, replace(job, env=variables))
        except BrokenPipeError:
            return  # it is gone, and its end will tell
        except EOFError:
            return
        except AgentfwError as error:
            self.runtime.note(run.agent, None, error)
            self.runtime.plugins.failures.tell(log, error, "%s: %s", run.agent.name, error)
            run.failure = str(error)
            run.kill()
            return
        except (TimeoutError, ValueError) as error:
            run.failure = f"the VM did not acknowledge its job: {str(error) or f'silent for {ACK_SECONDS:.0f} s'}"
            run.kill()
            return
        except Exception as error:  # a mistake of ours must not leave a VM waiting for ever
            log.exception("a job could not be sent")
            run.failure = f"the job could not be sent: {type(error).__name__}: {error}"
            run.kill()
            return
        run.acknowledge()
        now = time.perf_counter()
        self.runtime.program_began(run.agent, run.queued, now - run.restored)
        if self.runtime.plugins.implemented("dispatched"):
            report = DispatchReport(job="", queued=run.queued, dispatch=now - run.restored, began=now)
            self.runtime.plugins.dispatched(run.agent, report)

    def flow_opened(self, life: Life, flow: GuestFlow) -> None:
        self._serving.opened(life.agent, flow)


def _report(ended: VmExit, seconds: float) -> ExitReport:
    return ExitReport(ended.kind, ended.code, ended.signal, ended.text, seconds)


async def _pump(flow: GuestFlow, sink: Sink) -> None:
    try:
        while data := await flow.receive():
            await sink.write(data)
    except BrokenPipeError:
        flow.reset()  # EPIPE and SIGPIPE there
    finally:
        with contextlib.suppress(BrokenPipeError):
            await sink.close()


async def _feed(source: AsyncIterator[bytes] | None, flow: GuestFlow) -> None:
    with contextlib.suppress(BrokenPipeError):
        if source is not None:
            async for data in source:
                await flow.send(data)
        flow.send_eof()


__all__ = [
    "Fleet",
    "FleetError",
    "Job",
    "Mode",
    "Result",
    "Sink",
    "Streams",
    "TemplateError",
    "default_environment",
    "exit_status",
    "template_environment",
]
