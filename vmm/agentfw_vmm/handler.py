"""What a cell's owner is told."""

from __future__ import annotations

from typing import Protocol

from .flows import GuestFlow
from .report import VmExit


class CellHandler(Protocol):
    """What a cell tells its owner, from the event loop. Must not block; exceptions are logged."""

    def vm_ready(self, vm: int, snapshot_bytes: int, error: int) -> None:
        """A booted VM made its ready call. `error` 0: the snapshot was saved; else the errno that prevented it. Or one that was
        restored to run later stands ready to run."""

    def flow_opened(self, flow: GuestFlow) -> None:
        """The guest connects: call `opened()` or `failed()`, and `close()` in the end."""

    def vm_exited(self, vm: int, report: VmExit) -> None:
        """The VM is gone and its number free. Once for each boot() or restore()."""

    def cell_failed(self, text: str) -> None:
        """The process died or broke its protocol and was killed. `vm_exited` was called for each VM before."""
