"""What a pool counts, over workers that come, go and lie; and what Prometheus makes of it."""

from __future__ import annotations

import math
import os

from agentfw.pool.counting import Tally

from ..metrics.support import of, scrape
from .routers import finish, job, pool_test, running, until, until_running


def test_what_a_worker_counted_stays_when_it_is_gone() -> None:
    tally = Tally()
    first = {"core.flows_tcp": 5, "dns.entries": 7, "engine.running": 2, "hooks.a.allow.longest": 0.5, "hooks.a.allow.calls": 9}
    tally.told(0, 0, first)
    tally.told(1, 0, {**first, "hooks.a.allow.longest": 0.9})
    assert tally.sums({"core.flows_tcp": 1}) == {
        "core.flows_tcp": 11, "dns.entries": 14, "engine.running": 4, "hooks.a.allow.longest": 0.9, "hooks.a.allow.calls": 18
    }  # fmt: skip
    tally.ended(1, 1)
    assert tally.sums({}) == {**first, "core.flows_tcp": 10, "hooks.a.allow.calls": 18}
    tally.told(1, 1, {"core.flows_tcp": 1, "dns.entries": 1})
    assert tally.sums({})["core.flows_tcp"] == 11 and tally.sums({})["dns.entries"] == 8
    tally.told(1, 2, {"core.flows_tcp": 2})  # nobody asked while it was the one before
    assert tally.sums({})["core.flows_tcp"] == 13 and tally.sums({})["dns.entries"] == 7


def test_lies_of_workers() -> None:
    tally = Tally()
    tally.told(0, 0, {"core.flows_tcp": 5, "core.flows_udp": 3, "dns.entries": 4})
    tally.told(0, 0, {"core.flows_tcp": 4, "dns.entries": 2})
    assert tally.sums({}) == {"core.flows_tcp": 5, "core.flows_udp": 3, "dns.entries": 2}
    lies = {"core.flows_tcp": -1, "core.flows_udp": math.nan, "core.http_requests": math.inf, "x" * 1_000_000: 1,
            "pool.workers": 99, "process.router.threads": 7, "core.http_denied": 1e300, "dns.entries": -3}  # fmt: skip
    tally.told(0, 0, lies)
    assert tally.sums({}) == {"core.flows_tcp": 5, "core.flows_udp": 3, "dns.entries": -3}


def test_what_is_kept_of_the_dead_is_bounded() -> None:
    tally = Tally()
    for process in range(4):
        tally.told(0, process, {f"hooks.{process}x{number}.allow.calls": 1 for number in range(8000)})
    assert len(tally.sums({})) < 2 * 8192 + 1


def test_what_is_kept_of_one_that_counts_ever_other_things_is_bounded() -> None:
    """As a plugin does that counts by host."""
    tally = Tally()
    for turn in range(4):
        tally.told(0, 0, {f"hooks.{turn}x{number}.allow.calls": 1 for number in range(8000)})
    assert len(tally.sums({})) <= 8192


@pool_test
async def test_a_pool_tells_of_its_jobs_workers_and_tenants() -> None:
    async with running(workers=2, tenants={"acme": {"share": 2}}) as router:
        await finish(router, ["out", "x"])
        await finish(router, ["exit", 3], tenant="acme")
        await finish(router, ["exit", 3], tenant="stranger")
        waits = await router.submit(job(["sleep", 60], tenant="acme"))
        await until_running(router, waits.id)
        numbers = await router.metrics()
        assert not [name for name, value in numbers.items() if isinstance(value, bool)]  # clients take none for a number
        found = scrape(numbers)
        assert of(found, "agentfw_jobs_ended_total", how="succeeded") == 1
        assert of(found, "agentfw_jobs_ended_total", how="failed") == 2
        assert of(found, "agentfw_jobs", state="running") == 1 and of(found, "agentfw_jobs_submitted_total") == 4
        assert of(found, "agentfw_pool_state", state="ready") == 1 and of(found, "agentfw_pool_state", state="draining") == 0
        for tenant, ended, runs in (("default", 1, 0), ("acme", 1, 1), ("other", 1, 0)):
            assert of(found, "agentfw_tenant_jobs_ended_total", tenant=tenant) == ended
            assert of(found, "agentfw_tenant_jobs", tenant=tenant, state="running") == runs
            assert of(found, "agentfw_tenant_jobs", tenant=tenant, state="queued") == 0
        for process in ("router", "worker-0", "worker-1"):
            memory = of(found, "agentfw_process_resident_memory_bytes", process=process)
            assert memory is not None and memory > 1 << 20
        assert of(found, "agentfw_workers_ready") == 2 and of(found, "agentfw_workers_silent") == 0
        assert of(found, "agentfw_metrics_left_out") == 0
        await router.signal(waits.id, 9)
        await router.wait(waits.id)
        assert of(scrape(await router.metrics()), "agentfw_jobs_ended_total", how="killed") == 1


@pool_test
async def test_counters_do_not_fall_when_a_worker_dies() -> None:
    async with running(plugins=("dns",)) as router:
        await finish(router, ["out", "x"])
        before = await router.metrics()
        await finish(router, ["kill"])
        await until(lambda: router.workers[0].state == "ready" and router.workers[0].restarts == 1)
        after = await router.metrics()
        known = {name for name in before if name.startswith("hooks.") and name.endswith(".calls")}
        assert known and all(after[name] >= before[name] for name in known)
        assert after["pool.lost"] == after["pool.ended.internal"] == 1
        assert of(scrape(after), "agentfw_worker_restarts_total") == 1


@pool_test
async def test_a_pool_in_one_process_counts_once() -> None:
    async with running(local=True) as router:
        await finish(router, ["out", "x"])
        found = scrape(await router.metrics())
        assert of(found, "agentfw_jobs_submitted_total") == 1
        assert of(found, "agentfw_process_threads", process="router") is not None
        assert not [labels for name, labels in found if ("process", "worker-0") in labels]
        assert router.workers[0].pid == os.getpid()
