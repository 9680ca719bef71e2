"""The operations dashboard: what every agent of a pool does, collected in the workers, merged in the router, shown on a page of
its own (`web`). Without a pool one process does all of it. docs/dashboard.md is for its users.

`collector` counts, from hooks, in each worker; `observatory` asks all of them and puts together what operators are shown
(`agentfw.views`).
"""

from .config import Config
from .observatory import Observatory
from .plugin import Plugin

__all__ = ["Config", "Observatory", "Plugin"]
