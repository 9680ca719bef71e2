"""Once a snapshot: run nothing in a VM of its own, to learn which pages every run writes.

They are populated as VMs are restored, and the others as they get their jobs, since a fault through KVM costs several times as
much. Without it all works, only slower.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from agentfw_vmm import Cell, CellError

from .agents import Agent
from .dispatch import ACK_SECONDS, Job, default_environment, hand_over, read_frame
from .lives import Host, Life
from .snapshots import SnapshotStore, Template, cell_config

_PID = 1000
_PARK_SECONDS = 0.05
"""Until a VM that said that it is warm, or printed, stands still. If it is too short, pages are in the wrong set."""

log = logging.getLogger("agentfw.fleet")


async def rehearse(store: SnapshotStore, template: Template, snapshot: Path, key: bytes) -> None:
    """Nothing if it was done before. Never raises for what goes wrong."""
    hot = store.hot_path(key)
    if hot.exists():
        return
    part = hot.with_name(f"{hot.stem}.{os.getpid()}.part")
    host = Host(None)
    try:
        config = cell_config(template, vms=1, runners=1, snapshot_in=snapshot, key=key, hot_out=part)
        host.cell = await Cell.start(config, host)
        life = host.lives[0] = Life(Agent("rehearsal", "rehearsal"), host, 0)
        job = Job("script", "/run/agentfw/rehearsal.py", (), default_environment(), template.view.cwd)
        try:
            host.cell.restore(0, _PID)
            if "warm" not in await read_frame(host.cell.stream(0, 3)):
                raise ValueError("it is not warm")
            await asyncio.sleep(_PARK_SECONDS)
            await hand_over(host.cell.stream(0, 3), job)
            async with asyncio.timeout(ACK_SECONDS):
                for _ in range(2):
                    if not await host.cell.stream(0, 1).receive():
                        raise ValueError("it printed nothing")
                    await asyncio.sleep(_PARK_SECONDS)
                    host.cell.stream(0, 0).send_eof()
                host.cell.kill(0)
                await asyncio.shield(life.exited)
        finally:
            await host.cell.close()
        part.rename(hot)
    except (CellError, OSError, EOFError, ValueError) as error:  # TimeoutError is an OSError
        log.debug("no rehearsal of the snapshot: %s", error)
    finally:
        part.unlink(missing_ok=True)
