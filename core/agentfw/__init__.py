"""agentfw: fleets of AI agents, each in a KVM virtual machine without a guest kernel, one runtime in the path of all.

The names below are the public API, imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agents import Agent, ExitReport
    from .destination import Destination
    from .errors import AgentfwError, ConfigError, Denied
    from .hookspecs import hookimpl
    from .http1 import Headers, RequestHead, ResponseHead
    from .pool.jobs import Limits, PoolError, Trace
    from .sdk import (
        Code,
        Handle,
        Input,
        JobBroken,
        JobFailed,
        JobHostile,
        JobKilled,
        JobSignaled,
        JobTimeout,
        Module,
        Mounted,
        OutOfMemory,
        Pool,
        Result,
        SyncHandle,
        SyncPool,
        TooMuchOutput,
    )
    from .upstream import TlsInfo, TlsRequest, Upstream

__all__ = [
    "Agent",
    "AgentfwError",
    "Code",
    "ConfigError",
    "Denied",
    "Destination",
    "ExitReport",
    "Handle",
    "Headers",
    "Input",
    "JobBroken",
    "JobFailed",
    "JobHostile",
    "JobKilled",
    "JobSignaled",
    "JobTimeout",
    "Limits",
    "Module",
    "Mounted",
    "OutOfMemory",
    "Pool",
    "PoolError",
    "RequestHead",
    "ResponseHead",
    "Result",
    "SyncHandle",
    "SyncPool",
    "TlsInfo",
    "TlsRequest",
    "TooMuchOutput",
    "Trace",
    "Upstream",
    "hookimpl",
]

_HOMES = {
    "Agent": "agents",
    "AgentfwError": "errors",
    "Code": "sdk",
    "ConfigError": "errors",
    "Denied": "errors",
    "Destination": "destination",
    "ExitReport": "agents",
    "Handle": "sdk",
    "Headers": "http1",
    "Input": "sdk",
    "JobBroken": "sdk",
    "JobFailed": "sdk",
    "JobHostile": "sdk",
    "JobKilled": "sdk",
    "JobSignaled": "sdk",
    "JobTimeout": "sdk",
    "Limits": "pool.jobs",
    "Module": "sdk",
    "Mounted": "sdk",
    "OutOfMemory": "sdk",
    "Pool": "sdk",
    "PoolError": "pool.jobs",
    "RequestHead": "http1",
    "ResponseHead": "http1",
    "Result": "sdk",
    "SyncHandle": "sdk",
    "SyncPool": "sdk",
    "TlsInfo": "upstream",
    "TlsRequest": "upstream",
    "TooMuchOutput": "sdk",
    "Trace": "pool.jobs",
    "Upstream": "upstream",
    "hookimpl": "hookspecs",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
