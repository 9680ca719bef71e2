"""Where `agentfw top` has its facts from, over the control API of a pool that is made up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from agentfw.cli.top.plain import text
from agentfw.cli.top.source import MISSING, TAIL, PoolSource, overview_of
from agentfw.pool.jobs import Job, PoolError, PoolInfo, Usage, WorkerInfo

from tests.dashboard.fake import FakeObservatory
from tests.pool.routers import until
from tests.pool.support import served


def test_with_a_dashboard(tmp_path: Path, nothing_left: None) -> None:
    async def body() -> None:
        async with served(tmp_path / "s") as found:
            fake = found.backend.observatory = FakeObservatory(40)
            source = PoolSource(found.client)
            assert source.where == str(tmp_path / "s")
            seen = await source.look(0)
            assert seen.missing == "" and seen.table.whole and len(seen.table.rows) == 40
            assert seen.overview == await fake.overview()
            assert seen.pool is not None and seen.here
            fake.step()
            again = await source.look(seen.table.since)
            assert not again.table.whole and 0 < len(again.table.rows) < 10
            id = fake.rows()[0].id
            assert await source.agent(id) == await fake.agent(id) and await source.agent("no such") is None
            assert await source.loaded() == await fake.loaded()
            assert (await source.output("no-such")).data == b""

    asyncio.run(body())


def test_without_one(tmp_path: Path, nothing_left: None) -> None:
    async def body() -> None:
        async with served(tmp_path / "s") as found:
            backend = found.backend
            source = PoolSource(found.client)
            code = "import sys; print('out ' * 50000, flush=True); sys.stderr.write('err'); "
            ended = (await backend.submit(Job(mode="code", target=code + "sys.exit(3)", name="one"))).id
            running = (await backend.submit(Job(mode="code", target=code + "import time; time.sleep(60)", labels={"a": "b"}))).id
            await backend.wait(ended)
            await anext(backend.output(running))
            seen = await source.look(0)
            assert seen.missing == MISSING and seen.table.whole and seen.table.since == 0
            rows = {row.id: row for row in seen.table.rows}
            assert (rows[ended].name, rows[ended].state, rows[ended].how) == ("one", "done", "code 3")
            assert (rows[running].state, rows[running].how, rows[running].labels) == ("running", "", {"a": "b"})
            assert (seen.overview.running, seen.overview.state) == (1, "ready") and seen.overview.dispatch.count == 0
            story = await source.agent(ended)
            assert story is not None and (story.exit_kind, story.exit_code, story.row) == ("code", 3, rows[ended])
            assert await source.agent("no-such") is None and await source.loaded() is None
            tail = await source.output(ended)
            assert tail.data.endswith((b"out \n", b"err")) and len(tail.data) <= 2 << 16 and tail.before > 60_000
            backend.observatory = FakeObservatory(4)
            assert (await source.look(0)).missing == MISSING, "asked again only after it was lost"
            await source.reconnect()
            assert (await source.look(0)).missing == ""

    asyncio.run(body())


def test_counters_make_the_same_numbers_as_the_dashboard() -> None:
    info = PoolInfo(version="1", api="v1", pid=1, state="ready", started=0.0, queued=1, running=6, done=10, templates=[],
                    workers=[WorkerInfo(number=0, pid=2, state="ready", running=6, idle=2, cells=1, restarts=0)])  # fmt: skip
    ends = {"pool.ended.succeeded": 7, "pool.ended.failed": 1, "pool.ended.timeout": 2}
    engine = {"engine.warming": 4, "engine.warmup_seconds.bucket.0.2": 5, "pool.physical_memory": 1 << 29}
    network = {"tls.held": 3, "tls.leased": 2, "tls.opening": 9, "core.bytes_up": 10, "core.bytes_down": 20}
    found = overview_of(info, {**ends, **engine, **network, "inspect.calls_failed": 1}, 5.0)
    assert (found.done, found.failed, found.tls_sessions, found.warming, found.model_calls_failed) == (10, 3, 5, 4, 1)
    assert (found.memory, found.agents_per_gb, found.bytes_up, found.bytes_down) == (1 << 29, 16.0, 10, 20)
    assert sum(found.warmup) == found.warmup[1] == 5


def test_times_are_by_the_pools_clock(tmp_path: Path, nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of another machine may be another one."""

    async def body() -> None:
        async with served(tmp_path / "s") as found:
            fake = found.backend.observatory = FakeObservatory(1, hostile_names=False, steps_itself=False)
            (row,) = fake.rows()
            now = (await fake.overview()).time
            fake.set(row.id, state="running", started=now - 63, ended=None)
            for away in (-7200, 7200):
                monkeypatch.setattr("agentfw.cli.top.plain.time", SimpleNamespace(time=lambda away=away: now + away))
                assert "1m03s" in await text(found.client)

    asyncio.run(body())


def test_what_is_left_out_is_counted_when_a_worker_does_not_say_how_much_there_is(tmp_path: Path, nothing_left: None) -> None:
    async def body() -> None:
        async with served(tmp_path / "s") as found:
            code = "import time; print('x' * 299_999, flush=True); time.sleep(60)"
            job = (await found.backend.submit(Job(mode="code", target=code))).id
            await until(lambda: found.backend.runs[job].written[1] == 300_000)
            found.backend.usage = nobody
            tail = await PoolSource(found.client).output(job)
            assert len(tail.data) == 2 * TAIL and tail.before == 300_000 - 2 * TAIL

    async def nobody() -> dict[str, Usage]:
        return {}

    asyncio.run(body())


def test_output_is_read_only_if_there_is_more(tmp_path: Path, nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever watches a story reads it each two seconds, and each time would be told in the audit log."""
    reads: list[str] = []

    async def body() -> None:
        async with served(tmp_path / "s") as found:
            backend, source = found.backend, PoolSource(found.client)
            output = backend.output
            monkeypatch.setattr(backend, "output", lambda id, **more: reads.append(id) or output(id, **more))
            code = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
            one, other = [(await backend.submit(Job(mode="code", target=code, interactive=True))).id for _ in "ab"]
            for text in ("a\n", "bb\n"):
                await backend.feed(one, text.encode())
                await until(lambda text=text: backend.runs[one].info.state == "running"
                            and b"".join(each.data for each in backend.runs[one].output).endswith(text.encode()))  # fmt: skip
                for _ in range(3):
                    assert (await source.output(one)).data.decode().endswith(text)
            assert reads == [one] * 2
            await backend.feed(one, b"", end=True)
            await backend.wait(one)
            assert (await source.output(one)).data == b"a\nbb\n" and reads == [one] * 2, "its end is no more of it"
            assert (await source.output(other)).data == b"" and reads == [one, one, other], "nobody's but its own"
            await source.reconnect()
            assert (await source.output(one)).data == b"a\nbb\n" and reads == [one, one, other, one], "perhaps another pool"

    asyncio.run(body())


def test_a_pool_that_comes_back(tmp_path: Path, nothing_left: None) -> None:
    async def body() -> None:
        async with served(tmp_path / "s") as found:
            client = found.client
            source = PoolSource(client)
            found.backend.observatory = FakeObservatory(4)
            await source.look(0)
        with pytest.raises(PoolError) as lost:
            await source.look(1)
        assert lost.value.code == "unavailable"
        await source.reconnect()
        async with served(tmp_path / "s") as found:
            found.backend.observatory = FakeObservatory(6)
            assert len((await source.look(0)).table.rows) == 6
            await source.reconnect()

    asyncio.run(body())


def test_textual_is_imported_by_top_alone() -> None:
    """`agentfw --help` looks at each command, and is as quick as before."""
    code = (
        "import sys\nfrom agentfw.cli import cli, status_of\n"
        "for words in (['--help'], ['top', '--help'], ['ps', '--help']):\n"
        "    status_of(lambda: cli.main(words, prog_name='agentfw', standalone_mode=False), words)\n"
        "sys.exit(str([name for name in ('textual', 'rich', 'aiohttp') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.stderr == "[]\n"
