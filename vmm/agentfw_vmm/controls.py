"""What can be told to a VM that runs, and asked of it: the part of `Cell` that is commands."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from . import _lib
from ._lib import Worker, lib
from .config import CellConfig
from .life import Life
from .report import rate
from .sight import Sight

_MOST_SECONDS = 1e9  # of CPU time, in a limit


class Controls(ABC):
    """Commands to the runner of a VM."""

    worker: Worker
    _config: CellConfig
    _vms: dict[int, Life]

    @abstractmethod
    def _command(self, runner: int, kind: int, vm: int, a: int = 0, c: int = 0, b: int = 0) -> None: ...

    @abstractmethod
    def _usable(self) -> bool:
        """It takes commands, and will still do what it was told."""

    @abstractmethod
    def _mapped(self) -> bool:
        """What is shared with its process is still there, though that may have died."""

    def live(self, vm: int) -> bool:
        """True from boot() or restore() until vm_exited."""
        record = self._vms.get(vm)
        return record is not None and record.live

    def _tell(self, kind: int, vm: int, a: int = 0, b: int = 0) -> None:
        self._command(vm % self._config.runners, kind, vm, a, b=b)

    def signal(self, vm: int, number: int) -> None:
        """A signal (1..64) to the guest's process; nothing if the VM is gone."""
        if not 1 <= number <= 64:
            raise ValueError(f"signal {number}")
        if self.live(vm):
            self._tell(lib.AFW_CMD_SIGNAL, vm, number)

    def kill(self, vm: int) -> None:
        """Ends the VM at once; vm_exited follows. Nothing if it is gone."""
        if self.live(vm):
            self._tell(lib.AFW_CMD_KILL, vm)

    def share(self, fraction: float | None) -> None:
        """At most this part of a core (2.0: two cores) for all VMs together; None: no limit. They wait when it is used up;
        commands, signals and kills are served all the same. Holds from the runners' next turn on."""
        for runner in range(self._config.runners):
            self._command(runner, lib.AFW_CMD_SHARE, 0, rate(fraction))

    def limit(self, vm: int, cpu: float | None = None, cpu_seconds: float | None = None) -> None:
        """CPU time of a running VM, in place of what was said before: at most `cpu` of a core, and `cpu_seconds` from here on,
        then it ends as "killed" with a text for which `report.out_of_cpu()` is true. None: no limit. Nothing if it is gone."""
        if cpu_seconds is not None and not 0 < cpu_seconds <= _MOST_SECONDS:
            raise ValueError(f"{cpu_seconds} seconds of CPU time")
        part = rate(cpu)
        if self.live(vm):
            ns = 0 if cpu_seconds is None else max(1, round(cpu_seconds * 1e9))
            self._tell(lib.AFW_CMD_LIMIT, vm, part, ns)

    def discard(self, vm: int) -> None:
        """Frees what CellConfig.recycle keeps of VM `vm` since its end: the next restore() makes a new one. ValueError: live."""
        if self.live(vm):
            raise ValueError(f"VM {vm} is running")
        if vm in self._vms and self._usable():
            self._tell(lib.AFW_CMD_DISCARD, vm)

    # -- what it does

    def sight(self, vm: int) -> Sight:
        """What VM `vm` did in its life so far, or in the last one; system calls as of the last `look()`, or of its end, the
        rest as of now. To be taken before the next life, and within a second of the end."""
        record = self._vms.get(vm)
        if record is None or not self._mapped():
            return Sight()
        return Sight(_lib.sight(self.worker, vm), record.rules)

    async def look(self, vm: int) -> Sight:
        """`sight()` with its system calls as of now. The VM goes on; its runner is asked between two turns. Of one that has
        ended, `sight()`."""
        record = self._vms.get(vm)
        if record is not None and record.live and self._usable():
            if record.looker is None:
                record.looker = asyncio.get_running_loop().create_future()
                self._tell(lib.AFW_CMD_SIGHT, vm)
            await asyncio.shield(record.looker)
            if self._vms.get(vm) is not record:
                return Sight()  # another life has begun there since
        return self.sight(vm)

    def sight_anew(self, vm: int) -> None:
        """What VM `vm` did until now is not its agent's: forgotten. Nothing if it is gone."""
        if self.live(vm):
            self._tell(lib.AFW_CMD_SIGHT, vm, 1)
