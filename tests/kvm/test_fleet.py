"""A fleet whose runs are cancelled: numbers of VMs are used again only when their VMs have ended."""

import asyncio
import sys
from pathlib import Path

import pytest
from agentfw.cli.output import Kept
from agentfw.config import Config
from agentfw.fleet import Fleet, Job, Result, Streams, default_environment, template_environment
from agentfw.guestfs import base_view, find_interpreter
from agentfw.plugins import load_plugins
from agentfw.runtime import Runtime
from agentfw.snapshots import SnapshotStore, Template

pytestmark = pytest.mark.kvm


def test_a_cancelled_run_leaves_its_vm_to_the_next(tmp_path: Path, agentfw_environment: dict[str, str]) -> None:
    async def run(fleet: Fleet, code: str) -> tuple[Result, str]:
        out = Kept()
        return await fleet.run(Job("code", code, (), default_environment(), "/tmp"), Streams(out, Kept())), out.text

    async def main() -> list[tuple[Result, str]]:
        environment = template_environment({})
        interpreter = find_interpreter(sys.executable, environment)
        view = base_view(interpreter)
        view.cwd = "/tmp"
        template = Template(interpreter, view, environment, (), 256 << 20)
        runtime = Runtime(asyncio.get_running_loop(), load_plugins((), Config()), Config())
        store = SnapshotStore(Path(agentfw_environment["XDG_CACHE_HOME"]) / "agentfw/snapshots")
        await runtime.start()
        results = []
        try:
            async with Fleet(runtime, template, size=1, store=store) as fleet:
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
        finally:
            await runtime.stop()
        return results

    for result, output in asyncio.run(main()):
        assert (result.status, output) == (0, "second\n"), result.report
