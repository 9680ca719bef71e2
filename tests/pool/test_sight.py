"""What agents' VMs did, as a pool and its plugins are told: while they run, and at their ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from agentfw import Agent, ExitReport, hookimpl
from agentfw.agents import VmReport
from agentfw.pool.jobs import Job
from agentfw.reports import DispatchReport
from agentfw.views import AgentStory, Syscall
from agentfw_dashboard import Config as DashboardConfig
from agentfw_dashboard import Plugin as Dashboard

from .engines import Heard, engine, in_loop, run

pytestmark = pytest.mark.kvm


@pytest.fixture
def store(agentfw_environment: dict[str, str]) -> Path:
    return Path(agentfw_environment["XDG_CACHE_HOME"]) / "agentfw/snapshots"


class Watcher:
    """Agents as they come and go."""

    name = "watcher"

    def __init__(self) -> None:
        self.agents: dict[str, Agent] = {}
        self.ends: dict[str, ExitReport] = {}

    @hookimpl
    def dispatched(self, agent: Agent, report: DispatchReport) -> None:
        self.agents[report.job] = agent

    @hookimpl
    def exit(self, agent: Agent, report: ExitReport) -> None:
        self.ends[agent.job] = report


def count(report: VmReport | None, name: str) -> int:
    assert report is not None
    return report.sight.counts().get(name, 0)


def paths(report: VmReport | None, *names: str) -> list[str]:
    assert report is not None
    return [file.path for file in report.sight.opened() if Path(file.path).name in names]


def looked_at_while_it_runs_and_at_its_end(store: Path) -> None:
    code = "import os, signal; [os.getppid() for i in range(123)]; open('one', 'w').close(); print('x', flush=True); "
    code += "signal.sigwait({signal.SIGUSR1}); [os.getppid() for i in range(7)]; open('two', 'w').close()"
    # blocked before anything is said: else the signal would end it
    code = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}); " + code
    watcher = Watcher()
    dashboard = Dashboard(DashboardConfig(listen=""))

    async def shown() -> tuple[AgentStory, dict[str, Syscall]]:
        assert dashboard.observatory is not None
        story = await dashboard.observatory.agent("7")
        assert story is not None
        return story, {row.name: row for row in story.syscalls}

    async def main() -> None:
        async with engine(store, watcher, dashboard) as pool:
            heard = Heard()
            job = pool.runtime.loop.create_task(pool.run(Job(mode="code", target=code), "7", heard, None))
            await asyncio.wait_for(heard.line.wait(), 30)
            agent = watcher.agents["7"]
            assert dashboard.observatory is not None
            overview = await dashboard.observatory.overview()
            assert overview.running == 1 and overview.memory > 40 << 20 and overview.agents_per_gb is not None
            story, calls = await shown()
            assert story.row.state == "running" and story.row.memory > 0 and story.row.exits > 0
            assert calls["getppid"].count == 123 and calls["openat"].host_count >= 1 and calls["openat"].host_seconds > 0
            for look in (pool.look("7"), pool.runtime.look(agent.id)):
                found = await look
                assert count(found, "getppid") == 123 and len(paths(found, "one")) == 1 and not paths(found, "two")
                assert found is not None and found.statistics.n_local > 123 and found.cpu_seconds < found.statistics.cpu_ns / 1e9
            pool.signal("7", 10)
            assert (await asyncio.wait_for(job, 30)).kind == "code"
            end = watcher.ends["7"].vm
            assert count(end, "getppid") == 130 and len(paths(end, "one", "two")) == 2
            story, calls = await shown()
            assert story.row.state == "done" and calls["getppid"].count == 130 and story.row.cpu_seconds > 0
            mine = [(file.mode, file.count, file.error) for file in story.files if Path(file.path).name in ("one", "two")]
            assert mine == [("w", 1, "")] * 2 and story.counters["n_local"] > 130 and not story.dropped
            assert (await pool.look("7")) is None and (await pool.runtime.look(agent.id)) is None
            # the next one in that VM, and one in another, begin anew; and none has what they did until they got their jobs
            for name in ("8", "9"):
                result, _ = await run(pool, "import os; os.getppid(); open('mine', 'w').close()")
                assert result.kind == "code", name
            for each in [report.vm for job_id, report in watcher.ends.items() if job_id != "7"]:
                assert count(each, "getppid") == 1 and not paths(each, "one", "two") and len(paths(each, "mine")) == 1
            assert pool.counts().counters.get("recycled", 0) >= 1

    in_loop(main)


def killed_and_never_started(store: Path) -> None:
    watcher = Watcher()

    async def main() -> None:
        async with engine(store, watcher, size=1) as pool:
            heard = Heard()
            code = "import os; os.getppid(); print(1, flush=True)\nwhile True: pass"
            job = pool.runtime.loop.create_task(pool.run(Job(mode="code", target=code), "1", heard, None))
            await asyncio.wait_for(heard.line.wait(), 30)
            waiting = pool.runtime.loop.create_task(pool.run(Job(mode="code", target="pass"), "2", Heard(), None))
            await asyncio.sleep(0)
            pool.signal("2", 9)
            assert (await waiting).kind == "killed"
            pool.signal("1", 9)
            assert (await job).kind == "killed"
            assert watcher.ends["2"].vm is None and count(watcher.ends["1"].vm, "getppid") == 1

    in_loop(main)


def a_copy_begins_anew(store: Path) -> None:
    watcher = Watcher()
    code = "import os, time\n[os.getppid() for i in range(50)]\nprint(1, flush=True)\n"
    code += "while not open('/proc/agentfw').read(): time.sleep(0.01)\nos.getpgid(0)"

    async def main() -> None:
        async with engine(store, watcher) as pool:
            heard = Heard()
            job = pool.runtime.loop.create_task(pool.run(Job(mode="code", target=code), "1", heard, None))
            await asyncio.wait_for(heard.line.wait(), 30)
            (copy,) = await pool.fork("1", ["2"], [Heard()])
            assert (await asyncio.wait_for(copy, 30)).kind == "code"
            pool.signal("1", 9)
            await job
            assert count(watcher.ends["1"].vm, "getppid") == 50
            assert count(watcher.ends["2"].vm, "getppid") == 0 and count(watcher.ends["2"].vm, "getpgid") == 1

    in_loop(main)


def test_what_vms_did(store: Path) -> None:
    """In one test: the snapshot is made once."""
    looked_at_while_it_runs_and_at_its_end(store)
    killed_and_never_started(store)
    a_copy_begins_anew(store)
