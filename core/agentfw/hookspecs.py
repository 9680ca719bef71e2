"""Hook specifications: where plugins stand in an agent's path.

Signatures and docstrings only. Hooks decide (a name, a connection, a request head, a response head, an exit); none is called per
byte. A plugin is a class named by an entry point of group ``agentfw.plugins`` (or a module holding a class ``Plugin``); see
`agentfw.plugins`. Awaitable results are awaited by the caller. Any hook may raise `agentfw.errors.Denied`; anything else it raises
fails that one operation closed, with the plugin's name in the error.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from .agents import Agent, ExitReport
    from .destination import Destination
    from .http1 import RequestHead, ResponseHead
    from .runtime import Runtime
    from .upstream import TlsRequest, Upstream

hookspec = pluggy.HookspecMarker("agentfw")
hookimpl = pluggy.HookimplMarker("agentfw")


@hookspec
def start(runtime: Runtime) -> Awaitable[None] | None:
    """Before the first agent. May open connections, start tasks. An error here stops the command."""


@hookspec
def stop() -> Awaitable[None] | None:
    """After the last agent. Errors are logged, the other plugins still stop."""


@hookspec(firstresult=True)
def resolve(agent: Agent, name: str, qtype: int, query: bytes) -> Awaitable[bytes] | bytes | None:
    """A DNS question: `name` normalised (lower case, no trailing dot), `query` the wire message it came in. -> wire reply.

    Called for an agent's own queries and, with a query made by the core, before a destination is dialled. First result wins;
    a policy plugin stands first and raises `Denied` or returns None.
    """


@hookspec(firstresult=True)
def connect(agent: Agent, destination: Destination, tls: TlsRequest | None) -> Awaitable[Upstream] | None:
    """An upstream connection for `destination`, to be used by this agent until `Upstream.release()`.

    `tls` None: a plain TCP connection. First result wins.
    """


@hookspec(firstresult=True)
def dial(agent: Agent, destination: Destination, address: str) -> bool | None:
    """May `address` (a numeric one that `destination` resolved to) be dialled? True: yes, even if it is not public. None: no
    opinion; if nobody has one, only public addresses pass. Called at answer and again right before connect()."""


@hookspec
def request(agent: Agent, destination: Destination, head: RequestHead) -> Awaitable[None] | None:
    """An HTTP request head about to be sent; may change it (headers, not the destination). All implementations are called."""


@hookspec
def response(agent: Agent, destination: Destination, request: RequestHead, head: ResponseHead) -> Awaitable[None] | None:
    """The response head that came for it, before the agent sees it; may change it."""


@hookspec
def exit(agent: Agent, report: ExitReport) -> None:
    """An agent has ended."""


@hookspec
def statistics() -> dict[str, int | float] | None:
    """Counters of this plugin, names in lower_snake_case."""
