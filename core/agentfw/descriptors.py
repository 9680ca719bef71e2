"""What processes of agentfw may have and leave: files, sockets and VMs that are open; no core dumps."""

from __future__ import annotations

import contextlib
import resource

WANTED = 65536


def more_descriptors() -> None:
    """The usual soft limit, 1,024, is for programs that use select(): few agents with many connections would starve the rest."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def no_core_dumps() -> None:
    """What agents sent and were sent, and credentials, are in these processes' memory: the kernel is not to write it down."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
