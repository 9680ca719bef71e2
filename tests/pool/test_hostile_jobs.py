"""Jobs, and callers who go away at a bad moment: neither costs a worker or another job, or leaves what nobody can end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agentfw.pool.jobs import Job, PoolError
from agentfw.pool.messages import Fork

from .routers import finish, job, pool_test, running, until, until_running

BOTH = pytest.mark.parametrize("local", [False, True])


@BOTH
@pool_test
async def test_a_job_that_nobody_could_read_is_refused_and_costs_no_worker(local: bool) -> None:
    async with running(local=local) as router:
        other = await router.submit(job(["sleep", 60]))
        await until_running(router, other.id)
        for bad in (Job(mode="code", target="[]", retries=10**30), Job(mode="code", target="[]", name="\udcff")):
            with pytest.raises(PoolError) as caught:
                await router.submit(bad)
            assert caught.value.code == "bad_job"
        assert (await finish(router)).result is not None
        assert (await router.info(other.id)).state == "running"
        assert (await router.metrics())["pool.worker_restarts"] == 0
        await router.signal(other.id, 9)
        await router.drain()


@pool_test
async def test_a_job_that_cannot_be_sent_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as router:
        monkeypatch.setattr(Job, "check", lambda self: None)  # whatever slips through
        bad = await router.wait((await router.submit(Job(mode="code", target="[]", retries=10**30))).id)
        assert bad.result is not None and bad.result.kind == "internal" and "cannot be sent" in bad.result.text
        assert (await finish(router, ["exit", 3])).result is not None
        assert (await router.metrics())["pool.worker_restarts"] == 0
        await router.drain()


@BOTH
@pool_test
async def test_copies_for_a_caller_who_has_gone_are_killed(local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(local=local) as router:
        parent = await router.submit(job(["sleep", 60], ["sleep", 60]))
        await until_running(router, parent.id)
        await asyncio.sleep(0.05)  # a copy has the steps that are left, whichever
        channel = router.workers[0].link()
        ask, made = channel.ask, asyncio.Event()

        async def asked(message: Any, *more: Any) -> Any:
            answer = await ask(message, *more)
            if isinstance(message, Fork):
                made.set()
                await asyncio.sleep(0.05)
            return answer

        monkeypatch.setattr(channel, "ask", asked)
        forking = asyncio.ensure_future(router.fork(parent.id, 3))
        await made.wait()
        forking.cancel()
        await asyncio.gather(forking, return_exceptions=True)
        assert forking.cancelled()
        copies = [info.id for info in await router.jobs() if info.parent == parent.id]
        assert len(copies) == 3, "they are known as long as they are there"
        ends = [(await router.wait(copy)).result for copy in copies]
        assert [end.kind for end in ends if end is not None] == ["killed"] * 3
        await router.signal(parent.id, 9)
        await router.drain()


@pool_test
async def test_copies_of_a_large_job_do_not_fill_the_pool() -> None:
    async with running(queue=50) as router:
        parent = await router.submit(Job(mode="code", target='[["sleep", 60]]' + " " * (40 << 20)))
        await until_running(router, parent.id)
        copies = await router.fork(parent.id, 40)
        assert router.book.payload < 50 << 20, "what it was made of is not copied"
        assert (await finish(router)).state == "done"
        for info in (parent, *copies):
            await router.signal(info.id, 9)
        await router.drain()


@BOTH
@pool_test
async def test_a_job_is_there_for_a_moment_however_few_are_kept(local: bool) -> None:
    async with running(local=local, keep_jobs=0) as router:
        infos = [await router.submit(job(["exit", 4])) for _ in range(20)]
        await router.drain()
        ends = [(await router.wait(info.id)).result for info in infos]
        assert [end.code for end in ends if end is not None] == [4] * 20
        router.book._moment = 0.0
        for info in infos:
            with pytest.raises(PoolError, match="no job"):
                await router.info(info.id)
        assert not await router.jobs() and not len(router.book)


@pool_test
async def test_who_feeds_jobs_that_have_ended_leaves_nothing() -> None:
    async with running() as router:
        info = await router.submit(job(["exit", 0], interactive=True))
        await router.wait(info.id)
        with pytest.raises(PoolError, match="has ended"):
            await router.feed(info.id, b"x")
        assert not router._feeding
        await until(lambda: not router.workers[0].runs)
