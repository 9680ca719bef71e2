"""State of plugins that is one for the whole pool: a worker's plugin asks the plugin of the same name in the router.

    answer = await runtime.pool.ask("dns", body)      # in a worker; runtime.pool is None elsewhere
    async def answer_pool(self, body: bytes) -> bytes # of the plugin, called in the router

A plugin is both ends, so what the bodies are is its own business; it treats what comes in as any input.
"""

from __future__ import annotations

import asyncio
import logging

from ..errors import AgentfwError
from ..plugins import PluginManager
from .jobs import PoolError
from .link import Channel
from .messages import Ask, Body

ASK_SECONDS = 60.0
"""For an answer: more than a plugin's own time limits."""
MAX_BODY = 1 << 20
"""Bytes of a question, and of an answer."""

log = logging.getLogger("agentfw.pool")


class PoolLink:
    """A worker's way to the router's plugins (`Runtime.pool`)."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def ask(self, plugin: str, body: bytes) -> bytes:
        """-> what `answer_pool()` of this plugin returned in the router. PoolError: "unavailable" (the router is busy or gone),
        "unsupported" (it has no such plugin, or one that does not answer), "internal" (it failed)."""
        if len(body) > MAX_BODY:
            raise PoolError("unsupported", f"a question of {len(body)} bytes (at most {MAX_BODY})")
        return (await self._channel.ask(Ask(plugin, body), Body, ASK_SECONDS)).data


async def answer(plugins: PluginManager, question: Ask) -> Body:
    """In the router. PoolError."""
    method = getattr(plugins.get(question.plugin), "answer_pool", None)
    if method is None:
        raise PoolError("unsupported", f"plugin `{question.plugin[:64]}` answers no questions of the pool's")
    try:
        async with asyncio.timeout(ASK_SECONDS):
            data = await method(question.body)
    except AgentfwError:
        raise
    except TimeoutError:
        raise PoolError("internal", f"plugin `{question.plugin}` took more than {ASK_SECONDS:g} s for a question") from None
    except Exception as error:
        log.exception("plugin `%s` failed in answer_pool()", question.plugin)
        raise PoolError("internal", f"plugin `{question.plugin}` failed in answer_pool(): {type(error).__name__}") from None
    if not isinstance(data, bytes) or len(data) > MAX_BODY:
        raise PoolError("internal", f"plugin `{question.plugin}` returned no answer: {type(data).__name__}")
    return Body(data)
