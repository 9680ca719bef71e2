"""What happened, as JSON lines in a file of the operator's: refusals, failures of plugins, exchanges, flows, model calls, ends.

    [audit]
    file = "/var/log/agentfw/audit.jsonl"
    events = ["events", "exchanges", "model_calls", "exits"]

Writing is a thread's: no agent waits for a disk. What it cannot keep up with is dropped, and counted in the file itself. Lines
have no header, no byte of a body, and, unless `queries` says so, nothing behind the `?` of a target.
"""

from .config import Config
from .plugin import Plugin

__all__ = ["Config", "Plugin"]
