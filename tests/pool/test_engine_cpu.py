"""The engine and the CPU: tenants' parts, and templates that are named snapshots."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from agentfw.pool.config import TemplateConfig
from agentfw.pool.jobs import Limits

from ..conftest import Agentfw
from .engines import Heard, engine, in_loop, run

pytestmark = pytest.mark.kvm
LOOP = "print('on', flush=True)\nwhile True: pass"


@pytest.fixture
def store(agentfw_environment: dict[str, str]) -> Path:
    return Path(agentfw_environment["XDG_CACHE_HOME"]) / "agentfw/snapshots"


def test_a_tenant_with_many_loops_gets_no_more_than_one_with_one(store: Path) -> None:
    """Six processes of one against one of another, on two cores at most: a scheduler that knows of threads only gives 14 %."""
    os_cores = os.sched_getaffinity(0)

    async def body() -> list[tuple[float, float]]:
        async with engine(store, size=7, idle=0, isolation="process") as pool:
            started: list[asyncio.Task[Any]] = []
            for number in range(7):
                tenant = "one" if number == 6 else "many"
                started.append(asyncio.create_task(run(pool, LOOP, tenant=tenant, limits=Limits(cpu_seconds=60))))
            async with asyncio.timeout(60):
                while pool.counts().running < 7:  # noqa: ASYNC110  # it does not tell
                    await asyncio.sleep(0.05)
            await asyncio.sleep(1.5)
            parts = []
            while len(parts) < 10 and (not parts or not fair(*parts[-1])):  # what else runs here has its part of both cores, too
                before = usage(pool)
                await asyncio.sleep(3)
                after = usage(pool)
                parts.append((after[0] - before[0], after[1] - before[1]))
            for job_id in list(pool._runs):
                pool.signal(job_id, 9)
            await asyncio.gather(*started)
            return parts

    def fair(many: float, one: float) -> bool:
        return one / (many + one) > 0.3

    def usage(pool: Any) -> tuple[float, float]:
        total = {"many": 0.0, "one": 0.0}
        for tenant, (_, cells) in pool._by_tenant().items():
            total[tenant] += sum(cell.cpu_seconds() for cell in cells)
        return total["many"], total["one"]

    try:
        os.sched_setaffinity(0, set(sorted(os_cores)[:2]))
        parts = in_loop(body)
    finally:
        os.sched_setaffinity(0, os_cores)
    assert fair(*parts[-1]), parts


def test_a_template_that_is_a_named_snapshot(
    store: Path, agentfw: Agentfw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = {"XDG_DATA_HOME": str(tmp_path / "data")}
    made = agentfw("snapshot", "build", "waves", "--preload", "wave", env=library)
    assert made.returncode == 0, made.stderr
    monkeypatch.setenv("XDG_DATA_HOME", library["XDG_DATA_HOME"])

    async def body() -> list[tuple[str, Heard]]:
        async with engine(store, idle=1, templates={name: TemplateConfig(snapshot=name) for name in ("waves", "gone")}) as pool:
            code = "import sys, os; print('wave' in sys.modules, os.getcwd())"
            found = [await run(pool, code, template=name) for name in ("waves", "default", "gone", "waves")]
            return [(result.text, heard) for result, heard in found]

    first, plain, gone, second = in_loop(body)
    assert first[1].out == second[1].out == "True /job\n"
    assert plain[1].out == "False /job\n"
    assert "there is no snapshot `gone`" in gone[0]
