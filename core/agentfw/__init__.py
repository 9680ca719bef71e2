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
    from .upstream import TlsInfo, TlsRequest, Upstream

__all__ = [
    "Agent",
    "AgentfwError",
    "ConfigError",
    "Denied",
    "Destination",
    "ExitReport",
    "Headers",
    "RequestHead",
    "ResponseHead",
    "TlsInfo",
    "TlsRequest",
    "Upstream",
    "hookimpl",
]

_HOMES = {
    "Agent": "agents",
    "AgentfwError": "errors",
    "ConfigError": "errors",
    "Denied": "errors",
    "Destination": "destination",
    "ExitReport": "agents",
    "Headers": "http1",
    "RequestHead": "http1",
    "ResponseHead": "http1",
    "TlsInfo": "upstream",
    "TlsRequest": "upstream",
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
