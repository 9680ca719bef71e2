"""The network of the agents that run: a task a connection, from its opening to its end."""

from __future__ import annotations

import asyncio
import logging

from agentfw_vmm import GuestFlow

from .agents import Agent
from .runtime import Runtime

CLOSE_SECONDS = 2.0

log = logging.getLogger("agentfw.fleet")


class Serving:
    """The connections of a runtime's agents. Belongs to its loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tasks: set[asyncio.Task[None]] = set()

    def opened(self, agent: Agent, flow: GuestFlow) -> None:
        task = self._runtime.loop.create_task(self._serve(agent, flow))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def close(self) -> None:
        """After the last VM's end: wait for the last bytes, a little, then cut them off."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, agent: Agent, flow: GuestFlow) -> None:
        try:
            await flow.turn()  # policies are asked before it says anything
        except asyncio.CancelledError:
            flow.reset()
            flow.close()
            raise
        await self._runtime.handle_flow(agent, flow)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a flow failed", exc_info=task.exception())
