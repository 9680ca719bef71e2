"""Who a hook is called for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    # Two are for plugins too, which know the core only.
    from agentfw_vmm import OpenedFile as OpenedFile
    from agentfw_vmm import Sight, VmStatistics
    from agentfw_vmm import SyscallCount as SyscallCount

from . import statuses


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent run. `id` is unique in the process and never reused; `name` is for people (at most 128 bytes); `labels` are the
    operator's, an agent cannot set them."""

    id: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    job: str = field(default="", hash=False, compare=False, kw_only=True)
    """The run of a pool's job that it is: the job's id, with `.2` behind it if it is the second attempt; "" without a pool."""

    capture: bool = field(default=False, hash=False, compare=False, kw_only=True)
    """Whoever started it wants its traffic kept (the plugin `capture`)."""

    def __post_init__(self) -> None:
        if not self.id or len(self.name.encode()) > 128:
            raise ValueError("an agent needs an id, and a name of at most 128 bytes")


@dataclass(frozen=True, slots=True)
class Operator(Agent):
    """Stands where an agent would, for an errand of the operator's own, as a plugin's that fetches a token: `allow` hooks are not
    asked about it. Only public addresses are dialled for it, whatever agents may do, and those in `networks`."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()


@dataclass(frozen=True, slots=True)
class VmReport:
    """What an agent's VM did until now, or until its end.

    `sight`: system calls by count and time, files opened; `cpu_seconds`: of the VM, and for it, since it got the agent's job.
    What a VM did while it waited for that is not in either; what it does between its waking and its program's first line is.
    """

    statistics: VmStatistics
    sight: Sight
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class ExitReport:
    """How an agent ended. `kind` as in `agentfw_vmm.VmExit`; "timeout" is the operator's limit. `text`: one line with signal,
    address, module and symbol where known; `seconds`: wall time since dispatch."""

    kind: Literal["code", "signal", "killed", "memory", "internal", "hostile", "timeout"]
    code: int = 0
    signal: int = 0
    text: str = ""
    seconds: float = 0.0
    vm: VmReport | None = field(default=None, repr=False, compare=False)
    """What its VM did. None: it had none. Since 1.1."""


def status_of(kind: str, code: int, signal: int) -> int:
    """The exit status that an end amounts to (docs/reference/exit-codes.md): the program's own; 128+n: a signal ended it; 137:
    killed by us, as by SIGKILL; 124: time-out; 125: our fault."""
    if kind == "code":
        return code
    if kind == "signal":
        return statuses.SIGNAL + signal
    return {"timeout": statuses.TIME_OUT, "internal": statuses.OWN_FAULT}.get(kind, statuses.KILLED)
