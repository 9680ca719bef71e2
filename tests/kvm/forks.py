"""Agents that are forked: a cell with one VM that runs some Python, and cells of copies of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from agentfw.dispatch import Job, default_environment, template_environment
from agentfw.guestfs import base_view, find_interpreter
from agentfw.snapshots import SnapshotStore, Template, cell_config
from agentfw_vmm import Cell, GuestFlow, SavedVm, VmExit

SECONDS = 60
_pids = itertools.count(5000)


class Watch:
    """The handler of a cell."""

    def __init__(self) -> None:
        self.exits: dict[int, asyncio.Future[VmExit]] = {}
        self.flows: asyncio.Queue[GuestFlow] = asyncio.Queue()
        self.failed: list[str] = []

    def vm_ready(self, vm: int, snapshot_bytes: int, error: int) -> None: ...

    def flow_opened(self, flow: GuestFlow) -> None:
        self.flows.put_nowait(flow)

    def vm_exited(self, vm: int, report: VmExit) -> None:
        self.exits[vm].set_result(report)

    def cell_failed(self, text: str) -> None:
        self.failed.append(text)


class Agent:
    """One VM and what it wrote."""

    def __init__(self, cell: Cell, watch: Watch, vm: int) -> None:
        self.cell, self.watch, self.vm = cell, watch, vm
        watch.exits[vm] = asyncio.get_running_loop().create_future()
        self._seen = b""

    async def line(self) -> str:
        """The next line of its standard output."""
        async with asyncio.timeout(SECONDS):
            while b"\n" not in self._seen:
                part = await self.cell.stream(self.vm, 1).receive()
                if not part:
                    raise EOFError(f"after {self._seen!r}: {await self._errors()}")
                self._seen += part
        line, self._seen = self._seen.split(b"\n", 1)
        return line.decode()

    async def until(self, text: str) -> None:
        while await self.line() != text:
            pass

    async def _errors(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                return (await self.cell.stream(self.vm, 2).receive()).decode()
        return ""

    async def end(self) -> VmExit:
        async with asyncio.timeout(SECONDS):
            report = await self.watch.exits[self.vm]
        if (report.kind, report.code) != ("code", 0):
            print(report, await self._errors())
        return report

    async def flow(self) -> GuestFlow:
        """The next connection that it asks for (of any VM of its cell)."""
        async with asyncio.timeout(SECONDS):
            return await self.watch.flows.get()

    def say(self, text: str) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.cell.stream(self.vm, 0).send(text.encode()))

    async def save(self) -> SavedVm:
        return await self.cell.save(self.vm)


class Forks:
    """Starts agents, forks them, ends all of their cells."""

    def __init__(self, cache: str) -> None:
        environment = template_environment({})
        view = base_view(find_interpreter(sys.executable, environment))
        view.cwd = "/tmp"
        self.template = Template(find_interpreter(sys.executable, environment), view, environment, (), 256 << 20)
        self.store = SnapshotStore(Path(cache) / "agentfw/snapshots")
        self.cells: list[Cell] = []

    async def __aenter__(self) -> Forks:
        self.snapshot, self.key = await self.store.get(self.template, _quiet, lambda line: None)
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(*(cell.close() for cell in self.cells))

    async def start(self, code: str, rules: bytes = b"", mounts: Sequence[object] = ()) -> Agent:
        """An agent that runs `code`, from the moment in which that begins."""
        watch = Watch()
        config = cell_config(self.template, vms=1, runners=1, snapshot_in=self.snapshot, key=self.key)
        config.mounts = [*config.mounts, *mounts]  # type: ignore[list-item]
        cell = await Cell.start(config, watch)
        self.cells.append(cell)
        agent = Agent(cell, watch, 0)
        cell.restore(0, next(_pids), rules)
        stream = cell.stream(0, 3)
        await stream.send(Job("code", code, (), default_environment(), "/tmp").frame("ack"))
        async with asyncio.timeout(SECONDS):
            while b"ready" not in await stream.receive():
                pass
        return agent

    async def go_on(self, saved: SavedVm, count: int, rules: bytes = b"") -> list[Agent]:
        """`count` copies in a cell of their own."""
        watch = Watch()
        cell = await Cell.start(saved.config(count), watch)
        self.cells.append(cell)
        agents = [Agent(cell, watch, vm) for vm in range(count)]
        for agent in agents:
            cell.restore(agent.vm, next(_pids), rules, f'{{"index": {agent.vm}}}\n'.encode())
        return agents


@contextlib.contextmanager
def _quiet(what: str, seconds: float | None) -> object:
    yield


@contextlib.asynccontextmanager
async def forks(environment: dict[str, str]) -> AsyncIterator[Forks]:
    async with Forks(environment["XDG_CACHE_HOME"]) as every:
        yield every
