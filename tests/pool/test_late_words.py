"""What a VM said is read late, when its place is the next job's: nothing that comes of it is done to that one."""

from __future__ import annotations

import asyncio
import itertools
import json
import marshal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agentfw.agents import Agent
from agentfw.pool.groups import GroupKey
from agentfw.pool.jobs import Job, Limits
from agentfw.pool.runs import Run, Surroundings
from agentfw.pool.stock import Stock
from agentfw.pool.templates import Prepared
from agentfw.serving import Serving
from agentfw.testing import make_runtime
from agentfw_vmm import CellHandler

from .engines import Heard
from .fake_cells import FakeCell, Stream

KEY = GroupKey("a", Prepared("plain", None, Path(), b"", {}, {}), "cell")  # type: ignore[arg-type]


class JobStream(Stream):
    """`held`: what is said from here on is not read before it is set, as with a VM whose other flows come first."""

    def __init__(self) -> None:
        super().__init__()
        self.held = asyncio.Event()
        self.held.set()
        self.sent = b""

    async def send(self, data: bytes) -> None:
        self.sent += data

    async def receive(self, limit: int = 65536) -> bytes:
        part = await super().receive(limit)
        await self.held.wait()
        return part

    def send_eof(self) -> None: ...

    @property
    def ack(self) -> str:
        return str(marshal.loads(self.sent[4:])["ack"])


class Cell(FakeCell):
    def __init__(self, handler: CellHandler, vms: int, recycle: bool) -> None:
        super().__init__(handler, vms, recycle)
        self.signals: list[tuple[int, int]] = []
        self.last: dict[int, JobStream] = {}

    def restore(self, vm: int, pid: int, rules: bytes = b"", note: bytes = b"") -> None:
        super().restore(vm, pid, rules, note)
        self.live[vm] = self.last[vm] = JobStream()

    def stream(self, vm: int, index: int) -> Any:
        if index == 3:
            return self.last[vm]
        quiet = JobStream()
        quiet.end()
        return quiet

    def signal(self, vm: int, number: int) -> None:
        self.signals.append((vm, number))


def garbage(ack: str) -> bytes:
    return struct.pack("<I", 4) + b"nono"


def acknowledged(ack: str) -> bytes:
    body = json.dumps({"ready": ack}).encode()
    return struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(("words", "kind"), [(garbage, "internal"), (acknowledged, "code")])
def test_the_next_job_is_left_alone(words: Callable[[str], bytes], kind: str) -> None:
    async def main() -> None:
        cells: list[Cell] = []

        async def begin(handler: CellHandler, vms: int) -> Cell:
            cells.append(Cell(handler, vms, True))
            return cells[-1]

        async def until(there: Callable[[], object]) -> None:
            while not there():  # noqa: ASYNC110 (what is waited for is the fakes')
                await asyncio.sleep(0)

        runtime = make_runtime()
        stock = Stock(1, lambda group: begin, terms=lambda tenant: (1.0, None), recycle=True)
        around = Surroundings(runtime, Serving(runtime), stock)
        numbers = itertools.count()

        def start() -> tuple[Run, asyncio.Task[Any]]:
            agent = Agent(str(next(numbers)), "x", {})
            run = Run(around, agent, Job(mode="code", target="pass"), Limits(), Heard())
            return run, asyncio.ensure_future(run.perform(KEY, {}, None))

        async with asyncio.timeout(30):
            first, end = start()
            await until(lambda: cells and cells[0].live)
            cell = cells[0]
            stream = cell.last[0]
            stream.say({"warm": 1})
            await until(lambda: stream.sent)
            stream.held.clear()
            first.signal(15)
            stream._data += words(stream.ack)
            cell.exit(0, "code")
            second, other = start()
            await until(lambda: cell.live)
            cell.last[0].say({"warm": 1})
            await until(lambda: cell.last[0].sent)
            stream.held.set()
            assert (await end).kind == kind
            assert not cell.killed and not cell.signals and not other.done()
            assert cell.restores == 2 and not first.running and not second.running
            cell.exit(0, "code")
            await other
            await stock.close()

    asyncio.run(main())
