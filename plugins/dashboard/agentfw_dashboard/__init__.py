"""The operations dashboard: what every agent of a pool does, collected in the workers, merged in the router, shown on a page of
its own (`web`). Without a pool one process does all of it. docs/dashboard.md is for its users.

`collector` counts, from hooks, in each worker; `observatory` asks all of them and puts together what operators are shown
(`agentfw.views`).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import Config
    from .observatory import Observatory
    from .plugin import Plugin

__all__ = ["Config", "Observatory", "Plugin"]


def __getattr__(name: str) -> Any:
    """What is in them, when it is asked for: they bring aiohttp, and `agentfw --help` imports this package for its command."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f".{name.lower()}", __name__), name)
    globals()[name] = found
    return found
