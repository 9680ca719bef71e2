"""A fleet whose runs are cancelled: numbers of VMs are used again only when their VMs have ended."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agentfw import Agent, Denied, ExitReport, hookimpl
from agentfw.cli.output import Kept
from agentfw.fleet import Fleet, Job, Result, Streams, default_environment, template_environment
from agentfw.guestfs import base_view, find_interpreter
from agentfw.reports import AuditEvent
from agentfw.snapshots import SnapshotStore, Template
from agentfw.testing import make_runtime

pytestmark = pytest.mark.kvm


class Watch:
    """What plugins are told of agents' lives."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, str]] = []
        self.events: list[tuple[str, str, str]] = []

    @hookimpl
    def admit(self, agent: Agent) -> None:
        if "refused" in agent.labels:
            raise Denied("watch: refused", "not today")

    @hookimpl
    def environment(self, agent: Agent) -> dict[str, str]:
        if "bare" in agent.labels:
            raise Denied("watch: bare", "nothing for it")
        return {}

    @hookimpl
    def exit(self, agent: Agent, report: ExitReport) -> None:
        self.ends.append((report.kind, report.text))

    @hookimpl
    def audit(self, event: AuditEvent) -> None:
        self.events.append((event.kind, event.rule, event.plugin))


async def run(fleet: Fleet, code: str, **labels: str) -> tuple[Result, str]:
    out = Kept()
    job = Job("code", code, (), default_environment(), "/tmp")
    return await fleet.run(job, Streams(out, Kept()), labels=labels), out.text


@contextlib.asynccontextmanager
async def one_vm(watch: Watch, agentfw_environment: dict[str, str], recycle: bool = False) -> AsyncIterator[Fleet]:
    environment = template_environment({})
    interpreter = find_interpreter(sys.executable, environment)
    view = base_view(interpreter)
    view.cwd = "/tmp"
    template = Template(interpreter, view, environment, (), 256 << 20)
    runtime = make_runtime(watch)
    store = SnapshotStore(Path(agentfw_environment["XDG_CACHE_HOME"]) / "agentfw/snapshots")
    await runtime.start()
    try:
        async with Fleet(runtime, template, size=1, store=store, recycle=recycle) as fleet:
            yield fleet
    finally:
        await runtime.stop()


def test_a_recycled_vm_has_nothing_of_the_program_before(agentfw_environment: dict[str, str]) -> None:
    code = """
import os, sys
print(os.path.exists('mine'), hasattr(sys, 'mine'), os.environ.get('MINE'), os.getpid(), flush=True)
open('mine', 'w').write('x'); sys.mine = os.environ['MINE'] = 'mine'
"""

    async def main() -> list[tuple[Result, str]]:
        async with one_vm(Watch(), agentfw_environment, recycle=True) as fleet:
            ends = ["", "", "os._exit(3)", "", "import ctypes; ctypes.string_at(0)", "", "os.kill(os.getpid(), 9)", "", ""]
            return [await run(fleet, code + end) for end in ends]

    results = asyncio.run(main())
    numbers = [result.statistics for result, _ in results]
    assert [text.split()[:3] for _, text in results] == [["False", "False", "None"]] * 9
    assert len({text.split()[3] for _, text in results}) == 9
    assert [number.recycled for number in numbers if number] == [0, 1, 1, 1, 1, 0, 1, 0, 1]  # not after a fault or a signal


def test_a_cancelled_run_leaves_its_vm_to_the_next(agentfw_environment: dict[str, str]) -> None:
    watch = Watch()

    async def main() -> list[tuple[Result, str]]:
        results = []
        async with one_vm(watch, agentfw_environment) as fleet:
            for _ in range(5):
                first = asyncio.create_task(run(fleet, "while True: pass"))
                second = asyncio.create_task(run(fleet, "print('second')"))
                async with asyncio.timeout(30):
                    while not fleet.running:  # noqa: ASYNC110  # nothing tells
                        await asyncio.sleep(0.001)
                first.cancel()
                results.append(await asyncio.wait_for(second, 30))
                with pytest.raises(asyncio.CancelledError):
                    await first
            for label in ("refused", "bare"):
                refused, _ = await run(fleet, "print('it ran')", **{label: "yes"})
                assert refused.status == 125 and f"watch: {label}" in refused.report.text, refused.report
        return results

    for result, output in asyncio.run(main()):
        assert (result.status, output) == (0, "second\n"), result.report
    killed, ended, refused = ("killed", "its run was given up"), ("code", "exit code 0"), [("internal", text) for text in
        ("denied by watch: refused: not today", "denied by watch: bare: nothing for it")]  # fmt: skip
    assert sorted(watch.ends) == sorted([killed] * 5 + [ended] * 5 + refused), "told of each"
    assert watch.events == [("denied", "watch: refused", "Watch"), ("denied", "watch: bare", "Watch")]
