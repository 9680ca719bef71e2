"""What a VM said is read late, when its place is the next job's: nothing that comes of it is done to that one."""

from __future__ import annotations

import asyncio
import gc
import itertools
import marshal
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agentfw.agents import Agent
from agentfw.pool import forks, runs
from agentfw.pool.groups import GroupKey
from agentfw.pool.jobs import Job, JobResult, Limits, PoolError
from agentfw.pool.runs import Run, Surroundings
from agentfw.pool.stock import Stock
from agentfw.pool.templates import Prepared
from agentfw.serving import Serving
from agentfw.testing import make_runtime
from agentfw_vmm import CellHandler

from .engines import Heard
from .fake_cells import FakeCell, Stream, frame

KEY = GroupKey("a", Prepared("plain", None, Path(), b"", {}, {}), "cell")  # type: ignore[arg-type]


class JobStream(Stream):
    @property
    def ack(self) -> str:
        return str(marshal.loads(self.sent[4:])["ack"])


class Cell(FakeCell):
    def __init__(self, handler: CellHandler, vms: int, recycle: bool) -> None:
        super().__init__(handler, vms, recycle)
        self.saving, self.may_save = asyncio.Event(), asyncio.Event()
        self.output = b""
        self.signals: list[tuple[int, int]] = []
        self.asked: list[int] = []
        """Lives whose output was asked for."""
        self.last: dict[int, JobStream] = {}

    def restore(self, vm: int, pid: int, rules: bytes = b"", note: bytes = b"", soon: bool = False, later: bool = False) -> None:
        super().restore(vm, pid, rules, note, soon, later)
        self.live[vm] = self.last[vm] = JobStream()

    def stream(self, vm: int, index: int) -> Any:
        if index == 3:
            return self.last[vm]
        self.asked += [self.restores] * (index == 1)
        quiet = JobStream()
        quiet.write_out(self.output if index == 1 else b"")
        quiet.end()
        return quiet

    async def save(self, vm: int) -> Any:
        self.saved = Saved()
        self.saving.set()
        await self.may_save.wait()
        return self.saved

    def signal(self, vm: int, number: int) -> None:
        self.signals.append((vm, number))


class Saved:
    closed = False

    def close(self) -> None:
        self.closed = True


def garbage(ack: str) -> bytes:
    return struct.pack("<I", 4) + b"nono"


def acknowledged(ack: str) -> bytes:
    return frame({"ready": ack})


class Pool:
    """One VM, and runs that want it."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []
        runtime = make_runtime()
        self.stock = Stock(1, lambda group: self.begin, terms=lambda tenant: (1.0, None), recycle=True)
        self.around = Surroundings(runtime, Serving(runtime), self.stock)
        self.numbers = itertools.count()

    async def begin(self, handler: CellHandler, vms: int) -> Cell:
        self.cells.append(Cell(handler, vms, True))
        return self.cells[-1]

    async def start(self, heard: Heard | None = None, sent: bool = True) -> tuple[Run, asyncio.Task[JobResult], Cell, JobStream]:
        """A run whose VM has got its job (`sent` False: is about to get it), and not said that it begins."""
        agent = Agent(str(next(self.numbers)), "x", {})
        run = Run(self.around, agent, Job(mode="code", target="pass"), Limits(), heard or Heard())
        end = asyncio.ensure_future(run.perform(KEY, {}, None))
        await until(lambda: self.cells and self.cells[0].live)
        stream = self.cells[0].last[0]
        stream.say({"warm": 1})
        await until(lambda: stream.sent if sent else run.vm)
        return run, end, self.cells[0], stream


async def until(there: Callable[[], object]) -> None:
    while not there():  # noqa: ASYNC110 (what is waited for is the fakes')
        await asyncio.sleep(0)


@pytest.mark.parametrize(("words", "kind"), [(garbage, "internal"), (acknowledged, "code")])
def test_the_next_job_is_left_alone(words: Callable[[str], bytes], kind: str) -> None:
    async def main() -> None:
        pool = Pool()
        first, end, cell, stream = await pool.start()
        stream.held = True
        first.signal(15)
        stream.write_out(words(stream.ack))
        cell.exit(0, "code")
        second, other, _, next_stream = await pool.start()
        assert next_stream is not stream
        stream.release()
        assert (await end).kind == kind
        assert not cell.killed and not cell.signals and not other.done()
        assert cell.restores == 2 and not first.running and not second.running
        cell.exit(0, "code")
        await other
        await pool.stock.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_the_output_of_the_next_job_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A VM ends, and its place is the next job's, while the first one is still being sent."""

    async def main() -> None:
        pool = Pool()
        turn = asyncio.Event()

        async def send(stream: JobStream, data: bytes) -> None:
            await turn.wait()
            await Stream.send(stream, data)

        monkeypatch.setattr(JobStream, "send", send)
        _, end, cell, _ = await pool.start(sent=False)
        cell.exit(0, "killed")
        _, other, _, _ = await pool.start(sent=False)
        assert cell.restores == 2 and not end.done()
        turn.set()
        assert (await end).kind == "killed" and cell.asked == [1, 2]
        cell.exit(0, "code")
        await other
        await pool.stock.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_vm_that_is_lost_as_it_is_given_away_is_not_told_a_job() -> None:
    """Its place may be another's by then."""

    async def main() -> None:
        pool = Pool()
        _, end, cell, stream = await pool.start()
        run = Run(pool.around, Agent("late", "x", {}), Job(mode="code", target="pass"), Limits(), Heard())
        waits = asyncio.ensure_future(run.perform(KEY, {}, None))
        await until(lambda: len(pool.stock.queue))
        stream.write_out(acknowledged(stream.ack))
        cell.exit(0, "code")
        assert (await end).kind == "code"
        await until(lambda: cell.live)
        given = cell.last[0]
        given.say({"warm": 1})
        await until(lambda: pool.stock.count["running"])
        cell.exit(0, "signal")
        assert (await waits).kind == "signal" and not given.sent
        await pool.stock.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_what_is_killed_while_it_is_saved_has_no_copies() -> None:
    async def main() -> None:
        pool = Pool()
        run, end, cell, stream = await pool.start()
        stream.write_out(acknowledged(stream.ack))
        await until(lambda: run.running)
        saving = asyncio.ensure_future(forks.save(run, KEY))
        await cell.saving.wait()
        run.end("killed", "its budget is used up")
        cell.may_save.set()
        with pytest.raises(PoolError, match="killed"):
            await saving
        assert cell.saved.closed and cell.killed == [0]
        with pytest.raises(PoolError, match="does not run"):
            await forks.save(run, KEY)
        cell.obey()
        assert (await end).kind == "killed"
        await pool.stock.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_who_has_the_first_output_of_a_job_finds_it_running() -> None:
    """It may be read before the acknowledgement is; then a fork, say, is refused to who was told to wait for that line."""

    async def main() -> None:
        pool = Pool()
        _, end, cell, _ = await pool.start()
        cell.exit(0, "code")
        await end
        cell.output = b"a line\n"
        heard = Heard()
        run, end, _, stream = await pool.start(heard)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not heard.out and not run.running
        stream.write_out(acknowledged(stream.ack))
        await heard.line.wait()
        assert heard.out == "a line\n" and run.running and heard.began.is_set()
        cell.exit(0, "code")
        await end
        cell.output = b"cannot begin\n"
        heard = Heard()
        _, end, _, _ = await pool.start(heard)
        cell.exit(0, "code")
        assert (await end).kind == "internal" and heard.out == "cannot begin\n", "what is said instead is not lost"
        await pool.stock.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_what_takes_output_is_cancelled_before_it_begins(recwarn: pytest.WarningsRecorder) -> None:
    """A job that ends in the turn of the loop in which its output came: nothing is left that is never awaited."""
    begun: list[bytes] = []

    async def taking(data: bytes) -> None:
        begun.append(data)

    async def body() -> None:
        stream = Stream()
        run = SimpleNamespace(answered=True, take=lambda number, data: taking(data), output_ended=lambda error: None)
        output = runs._Output(cast(Any, run), cast(Any, stream), 1)
        stream.write_out(b"taken")
        await asyncio.sleep(0.01)
        assert begun == [b"taken"]
        stream.write_out(b"never")
        output.cancel()
        await asyncio.sleep(0.01)

    asyncio.run(body())
    gc.collect()
    assert begun == [b"taken"] and not [str(each.message) for each in recwarn]
