"""Copies of a running job: VMs that go on from where it stood, each a job with an agent, events and limits of its own.

A copy's VM cannot be warmed before its agent is known: it runs from its first instruction on. So what waits for it in the stock
is an empty place (`Group.late`), and its run restores it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agentfw_vmm import CellError, SavedVm

from ..dispatch import Job as Told
from ..errors import AgentfwError
from .cells import Vm
from .groups import GroupKey
from .jobs import PoolError
from .runs import Run
from .templates import Prepared

MOST = 256
"""Copies that can be asked for at once."""

log = logging.getLogger("agentfw.pool")


@dataclass(frozen=True, eq=False)
class Forked(Prepared):
    """Instead of a template's snapshot: a saved VM. It is one job's; its copies are all that is made of it."""

    late: ClassVar[bool] = True
    saved: SavedVm
    bytes: int

    @property
    def shared_memory(self) -> int:
        return self.bytes


def forked(key: GroupKey, saved: SavedVm) -> GroupKey:
    """Of the copies of a job of group `key`."""
    old = key.template
    template = Forked(old.name, old.template, old.snapshot, old.key, old.environment, old.trust, saved, saved.memory())
    return GroupKey(key.tenant, template, key.isolation)


class ForkedRun(Run):
    """A copy. `told`: what its /proc/agentfw says."""

    told: Mapping[str, object] = {}

    def _prepare(self, vm: Vm, template: Prepared, environment: Mapping[str, str]) -> Told | None:
        runtime = self._around.runtime
        try:
            rules = runtime.plugins.guest_rules(self.agent).table()
            note = json.dumps(self.told).encode("ascii") + b"\n"
            vm.cell.restore_now(vm, rules, note)
            if self._limits.cpu is not None or self._limits.cpu_seconds is not None:
                vm.cell.native.limit(vm.number, self._limits.cpu, self._limits.cpu_seconds)
        except (AgentfwError, ValueError) as error:
            runtime.note(self.agent, None, error)
            self._failure = f"not started: {error}"
        except CellError as error:
            self._failure = f"not started: {error}"
        except Exception as error:
            log.exception("a copy could not be prepared")
            self._failure = f"not started: {type(error).__name__}: {error}"
        else:
            return Told(self.job.mode, self.job.target, (), {}, "/")
        self._kill(vm)
        return None

    async def _dispatch(self, vm: Vm, told: Told) -> None:
        self._go(vm)


async def save(run: Run, key: GroupKey | None) -> SavedVm:
    """The VM of a run as it stands. PoolError, also if it is killed meanwhile: what a limit, a budget or somebody ends does not
    go on as its copies."""
    vm = run.vm
    if vm is None or key is None or not run.running or run.doomed:
        raise PoolError("bad_job", "it does not run (yet, or any more): there is nothing to make copies of")
    try:
        saved = await vm.cell.native.save(vm.number)
    except CellError as error:
        raise PoolError("unsupported", str(error)) from None
    if run.doomed:
        saved.close()
        raise PoolError("bad_job", "it was killed while it was saved")
    return saved
