"""The router with worker processes and in one process: jobs, their output, their ends."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from agentfw.pool.jobs import JobInfo, PoolError
from agentfw.pool.router import Router
from agentfw.pool.workers import LocalWorker

from .routers import finish, job, pool_test, running, stdout, until, until_running

BOTH = pytest.mark.parametrize("local", [False, True], ids=["processes", "local"])


@BOTH
@pool_test
async def test_a_job_and_what_comes_of_it(local: bool) -> None:
    async with running(local=local) as router:
        info = await router.submit(job(["out", "a"], ["err", "b"], ["out", "c"], ["exit", 3], name="x", labels={"k": "v"}))
        assert (info.state, info.name, info.labels, info.attempt) == ("starting", "x", {"k": "v"}, 1)
        info = await router.wait(info.id)
        assert info.state == "done" and info.result is not None
        assert (info.result.kind, info.result.code, info.result.status) == ("code", 3, 3)
        assert info.submitted <= (info.started or 0) <= (info.ended or 0)
        pieces = [(piece.stream, piece.offset, piece.data) async for piece in router.output(info.id)]
        assert pieces == [(1, 0, b"a"), (2, 0, b"b"), (1, 1, b"c")]
        end, before = await router.last_output(info.id, 2, 9)
        assert ([(piece.stream, piece.offset, piece.data) for piece in end], before) == (pieces[1:], 1)
        assert [each.id for each in await router.jobs(labels={"k": "v"}, state="done", tenant="default")] == [info.id]
        assert await router.jobs(labels={"k": "w"}) == await router.jobs(state="queued") == await router.jobs(tenant="t") == []


@BOTH
@pool_test
async def test_output_flows_while_it_runs_and_from_where_one_asks(local: bool) -> None:
    async with running(local=local) as router:
        info = await router.submit(job(["out", "one "], ["cat"], interactive=True))
        pieces = router.output(info.id)
        assert (await anext(pieces)).data == b"one "
        await router.feed(info.id, b"two ")
        assert (await anext(pieces)).data == b"two "
        late = router.output(info.id, stdout=2)
        assert (await anext(late)).data == b"e two "
        assert [piece.data async for piece in router.output(info.id, follow=False, stdout=6)] == [b"o "]
        await router.feed(info.id, b"three", end=True)
        assert [piece.data async for piece in pieces] == [b"three"] == [piece.data async for piece in late]
        assert (await router.wait(info.id)).state == "done"
        with pytest.raises(PoolError, match="has ended") as caught:
            await router.feed(info.id, b"four")
        assert caught.value.code == "unsupported"


@BOTH
@pool_test
async def test_input_that_is_not_read_waits_and_is_bounded(local: bool) -> None:
    async with running(local=local, workers=1) as router:
        info = await router.submit(job(["sleep", 60], interactive=True))
        refused = 0
        for _ in range(24):  # clients that give up, again and again
            try:
                async with asyncio.timeout(0.03):
                    await router.feed(info.id, bytes(1 << 18))
            except TimeoutError:
                pass
            except PoolError as error:
                assert error.code == "unavailable"
                refused += 1
        # Within one process a question that nobody waits for is given up itself.
        assert (refused or local) and (await router.info(info.id)).state == "running"
        await router.signal(info.id, 9)
        assert _end(await router.wait(info.id)) == ("killed", 0)
        info = await router.submit(job(["sleep", 0.2], ["cat"], interactive=True))
        await router.feed(info.id, bytes(3 << 20), end=True)  # more than is kept: it waits for the program
        await router.wait(info.id)
        assert len(await stdout(router, info.id)) == 3 << 20


@BOTH
@pool_test
async def test_more_jobs_than_vms_wait_and_all_is_told_before_the_end(local: bool) -> None:
    async with running(local=local, size=4) as router:
        size = 300_000
        infos = [await router.submit(job(["flood", size])) for _ in range(30)]
        assert [info.state for info in infos].count("queued") == 26
        for info in infos:
            done = await router.wait(info.id)
            assert done.result is not None and done.result.usage.stdout == size
            assert len(b"".join([piece.data async for piece in router.output(info.id, follow=False)])) == size
        assert infos[-1].id == (await router.jobs(limit=1))[0].id


@BOTH
@pool_test
async def test_nobody_reading_does_not_hold_a_job_up(local: bool) -> None:
    async with running(local=local, keep_output=1 << 20) as router:
        info = await router.submit(job(["flood", 20 << 20], ["sleep", 60]))
        reader = router.output(info.id)
        await anext(reader)
        await until(lambda: router.book.get(info.id).output.written[1] == 20 << 20)
        pieces = [piece async for piece in router.output(info.id, follow=False)]
        assert sum(len(piece.data) for piece in pieces) < 1 << 20
        assert (await anext(reader)).offset > 10 << 20, "what was not kept is a gap"
        await router.signal(info.id, 9)
        await reader.aclose()


@BOTH
@pool_test
async def test_signals(local: bool) -> None:
    async with running(local=local, size=2, workers=2, idle=0) as router:
        first, second = [await router.submit(job(["sleep", 60])) for _ in range(2)]
        third, fourth = [await router.submit(job(["sleep", 60])) for _ in range(2)]
        await router.signal(third.id, 9)
        await router.signal(fourth.id, 15)
        assert _end(await router.wait(third.id)) == ("killed", 0)
        assert (await router.info(fourth.id)).state == "queued"
        await router.signal(first.id, 9)
        await router.signal(second.id, 2)
        assert _end(await router.wait(first.id)) == ("killed", 0)
        assert _end(await router.wait(second.id)) == ("signal", 2)
        assert _end(await router.wait(fourth.id)) == ("signal", 15), "kept for it while it waited"
        await router.signal(first.id, 9)  # it is over: nothing
        for number in (0, 65, -9):
            with pytest.raises(PoolError):
                await router.signal(first.id, number)


@BOTH
@pool_test
async def test_forks(local: bool) -> None:
    async with running(local=local, size=8, queue=50) as router:
        info = await router.submit(job(["out", "before"], ["sleep", 0.3], ["agent"], ["exit", 4]))
        with pytest.raises(PoolError, match="does not run"):
            await router.fork((await router.submit(job())).id, 0 + 1)
        await until_running(router, info.id)
        await asyncio.sleep(0.05)
        copies = await router.fork(info.id, 2)
        assert [copy.parent for copy in copies] == [info.id] * 2
        for copy in copies:
            done = await router.wait(copy.id)
            assert _end(done) == ("code", 0 + 4)
            assert await stdout(router, copy.id) == copy.id.encode()
        assert await stdout(router, info.id) == b"before" + info.id.encode()
        with pytest.raises(PoolError) as caught:
            await router.fork((await router.submit(job(["sleep", 60]))).id, 1)
        assert caught.value.code == "unsupported", "it has not begun"
        sleeper = await router.submit(job(["sleep", 60]))
        await until_running(router, sleeper.id)
        with pytest.raises(PoolError) as caught:
            await router.fork(sleeper.id, 100)
        assert caught.value.code == "pool_full"
        assert len(await router.jobs()) == 6, "copies that are not are not in the book"
        await router.signal(sleeper.id, 9)
        parent = await router.submit(job(["sleep", 0.3], ["out", "x"]))
        await until_running(router, parent.id)
        copies = await router.fork(parent.id, 20)  # more than VMs: they wait for them
        assert {_end(await router.wait(copy.id)) for copy in copies} == {("code", 0)}


def _refused_forks(router: Router, gate: asyncio.Event) -> None:
    """The engine says so once the gate is open."""

    async def fork(*args: object) -> Any:
        await gate.wait()
        raise PoolError("unsupported", "it does not run any more")

    cast(LocalWorker, router.workers[0])._serving._engine.fork = fork


@pool_test
async def test_copies_whose_caller_went_away_are_ended() -> None:
    async with running(local=True) as router:
        parent = await router.submit(job(["sleep", 60], ["sleep", 60]))
        await until_running(router, parent.id)
        engine = cast(LocalWorker, router.workers[0])._serving._engine
        forks, gate = engine.fork, asyncio.Event()

        async def fork(*args: object) -> Any:
            found = await forks(*args)
            await gate.wait()
            return found

        engine.fork = fork
        asked = asyncio.ensure_future(router.fork(parent.id, 2))
        await until(lambda: len(engine.tasks) == 3)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        gate.set()
        await until(lambda: len(engine.tasks) == 1)
        await router.signal(parent.id, 9)
        await asyncio.wait_for(router.drain(), 10)
        assert {_end(info) for info in await router.jobs()} == {("killed", 0)}


@pool_test
async def test_copies_that_were_refused_hold_up_nobody() -> None:
    async with running(local=True, tenants={"default": {"running": 2}}) as router:
        parent = await router.submit(job(["sleep", 60]))
        await until_running(router, parent.id)
        for what in ("a job that waits", "a drain"):
            gate = asyncio.Event()
            _refused_forks(router, gate)
            asked = asyncio.ensure_future(router.fork(parent.id, 1))
            await asyncio.sleep(0.05)
            if what == "a drain":
                await router.signal(parent.id, 9)
                await router.wait(parent.id)
                waits: Any = asyncio.ensure_future(router.drain())
                await asyncio.sleep(0.05)
            else:
                waits = router.wait((await router.submit(job())).id)
            gate.set()
            with pytest.raises(PoolError, match="any more"):
                await asked
            await asyncio.wait_for(waits, 5)


@BOTH
@pool_test
async def test_feeding_leaves_nothing_behind(local: bool) -> None:
    async with running(local=local) as router:
        info = await router.submit(job(["cat"], interactive=True))
        await router.feed(info.id, b"x", True)
        await router.wait(info.id)
        for _ in range(2):
            with pytest.raises(PoolError, match="has ended"):
                await router.feed(info.id, b"late")
        assert not router._feeding


@BOTH
@pool_test
async def test_copies_that_are_killed_before_they_are_there(local: bool) -> None:
    async with running(local=local) as router:
        parent = await router.submit(job(["sleep", 60], ["sleep", 60], env={"SAVING": "0.3"}))
        await until_running(router, parent.id)
        await asyncio.sleep(0.05)
        forking = asyncio.ensure_future(router.fork(parent.id, 2))
        await until(lambda: len(router.book) == 3)
        first, second = (info for info in await router.jobs() if info.id != parent.id)
        await router.signal(first.id, 9)
        await forking
        assert _end(await router.wait(first.id)) == ("killed", 0)
        await until_running(router, second.id)
        await router.signal(second.id, 9)
        await router.wait(second.id)
        await router.signal(parent.id, 9)
        await router.wait(parent.id)
        assert not router.workers[0].runs


@BOTH
@pool_test
async def test_what_is_refused(local: bool) -> None:
    tables = {"tenants": {"small": {"queued": 1, "running": 1}}, "queue": 3}
    async with running(local=local, size=2, idle=0, workers=2, **tables) as router:
        with pytest.raises(PoolError) as caught:
            await router.submit(job(template="nothing"))
        assert caught.value.code == "bad_job" and "default" in str(caught.value)
        with pytest.raises(PoolError) as caught:
            await router.submit(job(labels={"tenant": "x"}))
        assert caught.value.code == "bad_job"
        await router.submit(job(["sleep", 60], tenant="small"))
        await router.submit(job(["sleep", 60], tenant="small"))
        with pytest.raises(PoolError, match="tenant `small`") as caught:
            await router.submit(job(tenant="small"))
        assert caught.value.code == "pool_full"
        await router.submit(job(["sleep", 60]))  # the tenant's limit is no other's
        for _ in range(2):
            await router.submit(job())
        with pytest.raises(PoolError, match="3 jobs wait") as caught:
            await router.submit(job())
        assert caught.value.code == "pool_full"
        for call in (router.info, router.wait):
            with pytest.raises(PoolError) as caught:
                await call("nobody")
            assert caught.value.code == "no_such_job"
        with pytest.raises(PoolError) as caught:
            await router.feed((await router.jobs())[0].id, b"x")
        assert caught.value.code == "unsupported"


@BOTH
@pool_test
async def test_draining(local: bool) -> None:
    async with running(local=local, size=2, idle=0) as router:
        infos = [await router.submit(job(["sleep", 0.05])) for _ in range(6)]
        await router.drain()
        assert {(await router.info(info.id)).state for info in infos} == {"done"}
        with pytest.raises(PoolError) as caught:
            await router.submit(job())
        assert caught.value.code == "draining" and "told to drain, or to stop" in str(caught.value)  # nobody stops it
        assert (await router.describe()).state == "draining"


@BOTH
@pool_test
async def test_a_pool_that_is_closed_tells_those_who_wait(local: bool) -> None:
    async with running(local=local, size=1, workers=1, idle=0) as router:
        infos = [await router.submit(job(["sleep", 60])) for _ in range(3)]
        waits = [asyncio.ensure_future(router.wait(info.id)) for info in infos]
        reader = asyncio.ensure_future(stdout(router, infos[0].id))
        await asyncio.sleep(0.1)
    assert [_end(await wait) for wait in waits] == [("killed", 0)] * 3
    assert await reader == b""


@pool_test
async def test_tenants_take_turns_by_their_shares() -> None:
    async with running(local=True, size=1, idle=0, tenants={"b": {"share": 2.0}}) as router:
        first = await router.submit(job(["sleep", 0.2]))
        infos = [await router.submit(job(tenant=tenant)) for tenant in "aaaaaabbbbbb"]
        await router.wait(first.id)
        done = [await router.wait(info.id) for info in infos]
        order = "".join(info.tenant for info in sorted(done, key=lambda info: info.ended or 0))
        assert sorted(order[:9]) == list("aaabbbbbb"), order
        assert "aaa" not in order[:8] and order.endswith("aaa")


@pool_test
async def test_one_kind_of_jobs_keeps_to_a_worker_until_it_has_much_more_to_do() -> None:
    async with running(size=8, workers=2) as router:
        for tenant in ("a", "b", "c", "d"):
            workers = {(await finish(router, tenant=tenant)).worker for _ in range(4)}
            assert len(workers) == 1, "the same VMs can be used again"
        infos = [await router.submit(job(["sleep", 0.3], tenant="a")) for _ in range(8)]
        assert sorted(info.worker for info in infos if info.worker is not None) == [0] * 4 + [1] * 4


@BOTH
@pool_test
async def test_what_there_is(local: bool) -> None:
    async with running(local=local, workers=2, plugins=("dns",), tables={"dns": {"upstream": ["127.0.0.1:1"]}}) as router:
        for _ in range(3):
            await finish(router)
        about = await router.describe()
        assert (about.state, about.done, about.queued, about.running, about.templates) == ("ready", 3, 0, 0, ["default"])
        assert sum(worker.idle for worker in about.workers) == 2 and all(worker.state == "ready" for worker in about.workers)
        assert len(about.workers) == (1 if local else 2) == len({worker.pid for worker in about.workers})
        numbers = await router.metrics()
        assert numbers["pool.done"] == numbers["pool.submitted"] == numbers["engine.runs"] == 3
        assert numbers["pool.workers_silent"] == 0 and numbers["dns.entries"] == 0
        running_one = await router.submit(job(["out", "a"], ["sleep", 60]))
        await anext(router.output(running_one.id))
        assert {key: usage.cpu_seconds for key, usage in (await router.usage()).items()} == {running_one.id: 1.5}


@pool_test
async def test_files_and_input_come_whole() -> None:
    async with running() as router:
        files = {"a/b": bytes(5 << 20), "c": b"x"}
        info = await finish(router, ["files"], ["cat"], files=files, stdin=b"hello")
        assert await stdout(router, info.id) == b'{"a/b": 5242880, "c": 1}hello'
        for _ in range(3):
            info = await finish(router, ["files"], files={"big": bytes(60 << 20)})
            assert _end(info) == ("code", 0)
        assert (await router.metrics())["pool.payload_bytes"] == 0


def _end(info: JobInfo) -> tuple[str, int]:
    assert info.result is not None, info
    return info.result.kind, info.result.signal or info.result.code


__all__ = ["Router"]
