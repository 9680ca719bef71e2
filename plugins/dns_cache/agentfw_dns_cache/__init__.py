"""Plugin `dns`: one cache for all agents, in front of the upstream resolvers that the operator names."""

from .cache import Cache, Entry
from .config import DnsConfig
from .plugin import Plugin

__all__ = ["Cache", "DnsConfig", "Entry", "Plugin"]
