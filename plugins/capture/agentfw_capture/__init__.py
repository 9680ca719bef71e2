"""What single agents say over HTTP, as HAR 1.2 files that browsers' and proxies' tools open: for those that ask for it (`agentfw
submit --har`, `agentfw run --har FILE`), or whose labels are named.

    [capture]
    directory = "/var/lib/agentfw/har"

Requests stand there as the agent wrote them, before a credential is put in; responses as it was sent them, with echoes masked.
Headers and parameters that carry credentials, the agent's own ones too, are masked; placeholders are shown. No agent waits: what
cannot be kept up with is left out, and the file says how much.
"""

from .config import Config
from .plugin import Plugin

__all__ = ["Config", "Plugin"]
