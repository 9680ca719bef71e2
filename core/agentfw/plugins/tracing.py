"""A line on stderr for each hook call, with AGENTFW_TRACE_PLUGINS=1 or `agentfw run --trace-plugins`.

    hook policy.allow agent-1 https://api.openai.com ok 3us

Plugin and hook, agent, destination (or name, or address) where the hook has them, how it went, microseconds. Nothing else of its
arguments or results is ever written: heads and errors may hold secrets.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from ..agents import Agent
from ..destination import Destination
from ..texts import shown

if TYPE_CHECKING:
    from .calling import Call, Tracer

VARIABLE = "AGENTFW_TRACE_PLUGINS"
_SHOWN = ("name", "address")
"""Arguments besides agents and destinations: names asked for and addresses dialled, normalised."""


def wanted() -> bool:
    return os.environ.get(VARIABLE, "").strip().lower() not in ("", "0", "false", "no", "off", "f", "n")  # as click reads it


def to_stderr(call: Call, args: tuple[object, ...], outcome: str, nanoseconds: int) -> None:
    """A `Tracer`."""
    with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads
        sys.stderr.write(line(call, args, outcome, nanoseconds) + "\n")


def line(call: Call, args: tuple[object, ...], outcome: str, nanoseconds: int) -> str:
    words = ["hook", f"{call.plugin}.{call.hook}"]
    for name, value in zip(call.names, args, strict=False):
        if isinstance(value, Agent):
            words.append(value.name)
        elif isinstance(value, Destination) or (name in _SHOWN and isinstance(value, str)):
            words.append(str(value))
    return " ".join([*(shown(word, 300) for word in words), shown(outcome), f"{nanoseconds // 1000}us"])


_: Tracer = to_stderr
