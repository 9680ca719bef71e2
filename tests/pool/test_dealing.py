"""CPU between tenants whose VMs are in several workers."""

from __future__ import annotations

import asyncio
import math
import os
from types import SimpleNamespace
from typing import Any

import pytest
from agentfw.config import Config
from agentfw.pool.dealing import Dealer
from agentfw.pool.jobs import Job, PoolError
from agentfw.pool.messages import Deal, Look, Spent, Used
from agentfw.pool.router import Router
from agentfw.pool.shares import PERIOD, Claim, Shares, allocate

from .test_shares import Cell


class There:
    """A worker with an engine's Shares, as the router's `Worker` looks to a Dealer."""

    def __init__(self, number: int, tenants: dict[str, list[Cell]]) -> None:
        self.number = number
        self.state = "ready"
        self.channel = self
        self.tenants = tenants
        self.silent = False
        cells = {cell.pid: cell for group in tenants.values() for cell in group}
        self.shares = Shares(lambda: {name: (1.0, group) for name, group in tenants.items()}, 1.0, lambda pid: cells[pid].waited)

    def link(self) -> There:
        return self

    async def ask(self, message: Deal, answer: type[Spent], seconds: float) -> Spent:
        if self.silent:
            raise PoolError("unavailable", "no answer")
        self.shares.dealt(message.parts)
        return Spent(dict(self.shares.totals))


class Pool:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *workers: dict[str, list[Cell]], weights: dict[str, float] | None = None):
        self.now = 100.0
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr("agentfw.pool.shares.time", clock)
        monkeypatch.setattr("agentfw.pool.dealing.time", clock)
        self.workers = [There(number, tenants) for number, tenants in enumerate(workers)]
        found: Any = self.workers
        self.dealer = Dealer(lambda: found, lambda tenant: (weights or {}).get(tenant, 1.0), 2.0)

    def rates(self, seconds: float) -> dict[str, float]:
        """Cores of each tenant meanwhile, on two cores whose scheduler knows threads only."""
        everybody = [(name, cell) for worker in self.workers for name, cells in worker.tenants.items() for cell in cells]
        before = {cell: cell.used for _, cell in everybody}
        for _ in range(round(seconds / PERIOD)):
            self.now += PERIOD
            claims = {cell: Claim(min(cell.want, cell.limit, cell.threads), cell.threads) for _, cell in everybody}
            got = allocate(2.0, claims)
            for cell, cores in got.items():
                cell.used += cores * PERIOD
                cell.waited += (claims[cell].want - cores) * PERIOD
            asyncio.run(self.dealer.turn())
        found: dict[str, float] = {}
        for name, cell in everybody:
            found[name] = found.get(name, 0.0) + (cell.used - before[cell]) / seconds
        return found


def test_a_tenant_in_all_workers_has_no_more_than_one_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(
        monkeypatch,
        {"many": [Cell(9, 1) for _ in range(6)]},
        {"many": [Cell(9, 1) for _ in range(6)], "one": [Cell(1, 1)]},
    )
    pool.rates(4)
    rates = pool.rates(10)
    assert rates["one"] == pytest.approx(1, rel=0.1) and rates["many"] == pytest.approx(1, rel=0.1)


def test_weights_count_over_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [{"a": [Cell(9)], "b": [Cell(9)]}, {"a": [Cell(9)]}]
    pool = Pool(monkeypatch, *cells, weights={"b": 3.0})
    pool.rates(4)
    rates = pool.rates(10)
    assert rates["b"] / rates["a"] == pytest.approx(3, rel=0.15)


def test_nobody_is_held_back_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    modest = Cell(0.2)
    pool = Pool(monkeypatch, {"a": [Cell(9, 1)]}, {"a": [Cell(9, 1)], "b": [modest]})
    pool.rates(4)
    rates = pool.rates(10)
    assert rates["b"] == pytest.approx(0.2, rel=0.1) and rates["a"] > 1.6
    del pool.workers[1].tenants["b"]
    pool.rates(2)
    assert all(cell.limit == math.inf for worker in pool.workers for cells in worker.tenants.values() for cell in cells)


def test_a_worker_that_does_not_answer_deals_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(monkeypatch, {"a": [Cell(9)]}, {"a": [Cell(9)], "b": [Cell(9)]})
    pool.rates(3)
    pool.workers[1].silent = True
    pool.rates(1)
    assert set(pool.dealer.shares.parts) <= {"a"}
    pool.now += 10
    shares = pool.workers[1].shares
    task_over = shares._dealt is not None and shares._dealt[0] < pool.now
    assert task_over
    pool.workers[1].state = "lost"
    pool.rates(1)
    pool.workers[1].state, pool.workers[1].silent = "ready", False
    pool.rates(4)
    assert pool.rates(6)["b"] > 0.8


@pytest.mark.kvm
def test_a_pool_of_two_workers(agentfw_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight loops of one tenant in both workers, one of another: by threads it would have a ninth."""
    cores = os.sched_getaffinity(0)
    monkeypatch.setenv("XDG_CACHE_HOME", agentfw_environment["XDG_CACHE_HOME"])

    def fair(used: dict[str, float]) -> bool:
        return used["one"] / sum(used.values()) > 0.3

    async def main() -> list[dict[str, float]]:
        config = Config({"pool": {"workers": 2, "size": 12, "idle": 0, "isolation": "process"}})
        router = Router(config, (), load=lambda: config)
        await router.start()
        try:
            jobs: dict[str, str] = {}
            for tenant in ["many"] * 8 + ["one"]:
                jobs[(await router.submit(Job(mode="code", target="while True: pass", tenant=tenant))).id] = tenant

            async def used() -> dict[str, float]:
                found = {"many": 0.0, "one": 0.0}
                for worker in router.workers:
                    for run, usage in (await worker.link().ask(Look(), Used, 10)).runs.items():
                        found[jobs[next(each for each in jobs if run.startswith(each))]] += usage.cpu_seconds
                return found

            async with asyncio.timeout(60):
                while (await router.describe()).running < 9:  # noqa: ASYNC110  # it does not tell
                    await asyncio.sleep(0.05)
            await asyncio.sleep(3)
            parts: list[dict[str, float]] = []
            while len(parts) < 10 and (not parts or not fair(parts[-1])):  # what else runs here has its part of both cores, too
                before = await used()
                await asyncio.sleep(3)
                parts.append({tenant: seconds - before[tenant] for tenant, seconds in (await used()).items()})
            return parts
        finally:
            await router.close()

    try:
        os.sched_setaffinity(0, set(sorted(cores)[:2]))
        parts = asyncio.run(main())
    finally:
        os.sched_setaffinity(0, cores)
    assert fair(parts[-1]), parts
