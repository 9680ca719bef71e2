"""Which destinations the open flows have to do with: what a new policy is asked about.

A flow (for UDP, each peer of a socket) is one `Use`. It is told its destination before the first question about it is asked, so
that a policy that comes while it is connecting finds it, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from ..agents import Agent
from ..destination import Destination
from ..errors import AgentfwError, Denied
from ..http1 import RequestHead
from ..upstream import TlsRequest, Upstream

if TYPE_CHECKING:
    from ..runtime import Runtime

CHECKS = 16
"""Uses that are asked about at once: an `allow` hook may wait for something."""


class Use:
    """`with` it, in the task that serves the flow: when a new policy refuses, the block is cancelled and its refusal raised."""

    def __init__(self, runtime: Runtime, agent: Agent) -> None:
        self._runtime = runtime
        self.agent = agent
        self.destinations: tuple[Destination, ...] = ()
        """What must be permitted for it to go on."""
        self.address: str | None = None
        """Where the last connection to destinations[0] led."""
        self.head: RequestHead | None = None
        """Of the request to destinations[0] that is being answered, as the agent sent it."""
        self.own_tls: str | None = None
        """The verdict on TLS that the agent makes itself, if this is such a flow."""
        self.meter: Callable[[], None] | None = None
        """Asks anew which meters count it. Denied if one of them has enough."""
        self.refused: AgentfwError | None = None
        """Why it was cut."""
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0

    async def connect(self, destination: Destination, tls: TlsRequest | None, *also: Destination) -> Upstream:
        """`Runtime.connect()`, noted. `also`: further destinations that must stay permitted for it."""
        self.destinations = (destination, *also)
        self.address = None
        try:
            upstream = await self._runtime.connect(self.agent, destination, tls)
        except BaseException:
            self.destinations = ()
            raise
        self.address = upstream.address
        return upstream

    async def check(self) -> None:
        """Raise what speaks against it now."""
        for destination in self.destinations:
            await self._runtime.plugins.allow(self.agent, destination)
        if self.meter is not None:
            self.meter()
        if self.head is not None and self.destinations:
            await self._runtime.plugins.recheck(self.agent, self.destinations[0], self.head)
        if self.own_tls is not None and self.destinations:
            host, port = self.destinations[0].host, self.destinations[0].port
            verdict = await self._runtime.plugins.own_tls(self.agent, Destination("tls", host, port))
            if verdict != self.own_tls and self.own_tls == "passthrough":
                raise Denied(
                    f"own_tls: {verdict}", f"{host} may not be talked to by TLS that the runtime cannot see into any more"
                )
        if self.address is not None and self.destinations:
            self._runtime.check_address(self.agent, self.destinations[0], self.address)

    def cut(self, error: AgentfwError) -> None:
        """End it."""
        if self._task is not None and self.refused is None:
            self.refused = error
            self._task.cancel()

    def __enter__(self) -> Use:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        self._runtime.uses.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._runtime.uses.discard(self)
        task, self._task = self._task, None
        if self.refused is None or task is None:
            return
        if task.uncancel() <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise self.refused from None


async def recheck(uses: set[Use]) -> int:
    """Ask the plugins about all of them; -> how many were cut. Who fails to answer does not permit."""
    left = iter(list(uses))
    return sum(await asyncio.gather(*(_check_some(left, uses) for _ in range(CHECKS))))


async def _check_some(left: Iterator[Use], uses: set[Use]) -> int:
    cut = 0
    for number, use in enumerate(left):
        try:
            await use.check()
        except AgentfwError as error:
            if use in uses and use.refused is None:  # it may have ended meanwhile, or be about to
                use.cut(error)
                cut += 1
        if number % 64 == 63:
            await asyncio.sleep(0)  # others want to run, too
    return cut
