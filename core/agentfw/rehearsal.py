"""Once a snapshot: run nothing in a VM of its own, to learn which pages every run writes.

They are populated as VMs are restored, since a fault through KVM costs several times as much. Without it all works, only slower.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from agentfw_vmm import Cell, CellError

from .agents import Agent
from .dispatch import ACK_SECONDS, Job, default_environment, hand_over
from .lives import Host, Life
from .snapshots import SnapshotStore, Template, cell_config

_PID = 1000

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
        job = Job("code", "print(end='', flush=True)", (), default_environment(), template.view.cwd)
        try:
            host.cell.restore(0, _PID)
            host.cell.stream(0, 0).send_eof()
            await hand_over(host.cell.stream(0, 3), job)
            await asyncio.wait_for(asyncio.shield(life.exited), ACK_SECONDS)
        finally:
            await host.cell.close()
        part.rename(hot)
    except (CellError, OSError, EOFError, ValueError) as error:  # TimeoutError is an OSError
        log.debug("no rehearsal of the snapshot: %s", error)
    finally:
        part.unlink(missing_ok=True)
