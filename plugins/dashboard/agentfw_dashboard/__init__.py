"""The operations dashboard: what every agent of a pool does, collected in the workers, merged in the router, shown on a page of
its own (`web`). docs/dashboard.md is for its users."""

from .config import Config
from .plugin import Plugin

__all__ = ["Config", "Plugin"]
