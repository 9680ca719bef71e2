"""Programs in real virtual machines, with the plugins under test in their path."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentfw_vmm import VmStatistics

from ..agents import Agent
from ..config import Config
from ..errors import AgentfwError
from ..fleet import Fleet, Streams
from ..plugins import DEFAULT, PluginManager, available, make_plugin, plugin_name
from ..programs import prepare
from ..runtime import Runtime
from ..snapshots import SnapshotStore

skipped: list[str] = []
"""Tests that did not run for want of /dev/kvm."""


class KvmMissing(AgentfwError):
    """This machine cannot run virtual machines."""


@dataclass(frozen=True)
class AgentRun:
    """How a program ended. `status`: as `agentfw run` would exit; `kind` and `text` as in `agentfw.ExitReport`; `statistics`: the
    core's, the plugins' and their hooks' counters; `vm`: the virtual machine's."""

    agent: Agent
    status: int
    kind: str
    text: str
    stdout: str
    stderr: str
    statistics: Mapping[str, int | float]
    vm: VmStatistics | None


def run_agent(
    program: str | Path,
    *arguments: str,
    plugins: Sequence[str | object] = DEFAULT,
    config: Config | Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    mounts: Sequence[str] = (),
    memory: int = 512 << 20,
    timeout: float = 60.0,
    store: SnapshotStore | None = None,
) -> AgentRun:
    """Run a script (a Path) or code (text) in a VM to its end.

    `plugins`: names, files (`"./mine.py"`) and instances, in calling order; `config`: the tables of agentfw.toml; `env`:
    variables beyond the usual; `mounts`: `"HOST:GUEST[:rw]"`; `memory`: bytes; `timeout`: seconds; `store`: where snapshots are
    kept (the first run makes one, in some seconds).

    Without /dev/kvm a test that calls it is skipped, with a warning; elsewhere it raises KvmMissing. Also raises what loading
    plugins and starting a fleet do.
    """
    require_kvm()
    return _run(
        run_agent_async(
            program, *arguments, plugins=plugins, config=config, env=env, labels=labels, mounts=mounts, memory=memory,
            timeout=timeout, store=store,
        )
    )  # fmt: skip


async def run_agent_async(
    program: str | Path,
    *arguments: str,
    plugins: Sequence[str | object] = DEFAULT,
    config: Config | Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    mounts: Sequence[str] = (),
    memory: int = 512 << 20,
    timeout: float = 60.0,  # noqa: ASYNC109  # as subprocess.run() has it
    store: SnapshotStore | None = None,
) -> AgentRun:
    """`run_agent()` in the running loop, for tests that do something meanwhile."""
    require_kvm()
    settings = config if isinstance(config, Config) else Config(config)
    manager = _manager(plugins, settings)
    template, job, _ = prepare(
        "script" if isinstance(program, Path) else "code",
        str(program),
        arguments,
        directory=str(Path.cwd()),
        mounts=mounts,
        env=env,
        memory=memory,
    )
    manager.check_guest(settings, job.env, template.view.shows)
    runtime = Runtime(asyncio.get_running_loop(), manager, settings)
    out, err = _Kept(), _Kept()
    await runtime.start()
    try:
        async with Fleet(runtime, template, store=store) as fleet:
            result = await fleet.run(job, Streams(out, err), labels=labels, timeout=timeout)
            statistics = runtime.statistics()
    finally:
        await runtime.stop()
    report = result.report
    return AgentRun(result.agent, result.status, report.kind, report.text, out.text, err.text, statistics, result.statistics)


def _manager(plugins: Sequence[str | object], config: Config) -> PluginManager:
    manager = PluginManager(config)
    made = [(plugin_name(each), each) if isinstance(each, str) else (_name(each), each) for each in plugins]
    config.check_tables({*available(), *(name for name, _ in made)})
    for name, each in made:
        manager.add(*(make_plugin(each, config) if isinstance(each, str) else (name, each)))
    manager.compile()
    return manager


def _name(plugin: object) -> str:
    return str(getattr(plugin, "name", type(plugin).__name__))


def _run(body: Coroutine[Any, Any, AgentRun]) -> AgentRun:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(body)


def kvm_trouble() -> str | None:
    """Why no virtual machine can be made here, if so."""
    try:
        os.close(os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"/dev/kvm: {error.strerror}"
    return None


def require_kvm() -> None:
    """Skip the running test, or raise KvmMissing, if there is no /dev/kvm."""
    trouble = kvm_trouble()
    if trouble is None:
        return
    test = os.environ.get("PYTEST_CURRENT_TEST")
    if test is None:
        raise KvmMissing(f"{trouble} (run `agentfw doctor`)")
    import pytest

    skipped.append(test.partition(" ")[0])
    warnings.warn(f"not run, it needs a virtual machine: {trouble}", stacklevel=3)
    pytest.skip(trouble)


class _Kept:
    """A sink that keeps all."""

    def __init__(self) -> None:
        self._data = bytearray()

    async def write(self, data: bytes) -> None:
        self._data += data

    async def close(self) -> None:
        pass

    @property
    def text(self) -> str:
        return self._data.decode("utf-8", "replace")
