"""A pool's plugins talk: a worker's with that of the same name in the router, the router's with those in all workers, and clients
of the control API with the router's.

    answer = await runtime.pool.ask("dns", body)           # in a worker: runtime.pool is a PoolLink
    async def answer_pool(self, body: bytes) -> bytes      # of the plugin, called in the router

    answers = await runtime.pool.ask_workers("mine", body) # in the router: runtime.pool is a RouterLink
    async def answer_router(self, body: bytes) -> bytes    # of the plugin, called in each worker

    GET /v1/plugins/mine/state?since=7
    async def answer_api(self, what: str, query: Mapping[str, str]) -> Any  # of the plugin, called in the router
    api_local = frozenset({"token"})                       # optional: what is told over the Unix socket only

A plugin is both ends, so what the bodies are is its own business; it treats what comes in as any input.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..errors import AgentfwError
from ..plugins import PluginManager
from ..plugins.calling import is_wanted
from ..texts import shown
from .jobs import PoolError
from .link import Channel
from .messages import Ask, Body, Done, Keep, Query

if TYPE_CHECKING:
    from ..config import Config
    from .router import Router
    from .workers import Worker

ASK_SECONDS = 60.0
"""For an answer: more than a plugin's own time limits."""
MAX_BODY = 1 << 20
"""Bytes of a question, and of the router's answer to a worker."""
QUERY_SECONDS = 2.0
"""For a worker's answer to the router, unless it is asked otherwise."""
MAX_QUERY_SECONDS = 60.0
MAX_ANSWER = 8 << 20
"""Bytes of a worker's answer to the router."""
API_SECONDS = 30.0
"""For an answer to a client of the control API."""

log = logging.getLogger("agentfw.pool")


class PoolLink:
    """A worker's way to the router's plugins (`Runtime.pool`)."""

    role: Literal["worker"] = "worker"

    def __init__(self, channel: Channel, number: int = 0) -> None:
        self._channel = channel
        self.number = number
        """Which of the pool's workers this is."""

    async def ask(self, plugin: str, body: bytes) -> bytes:
        """-> what `answer_pool()` of this plugin returned in the router. PoolError: "unavailable" (the router is busy or gone),
        "unsupported" (it has no such plugin, or one that does not answer), "internal" (it failed)."""
        if len(body) > MAX_BODY:
            raise PoolError("unsupported", f"a question of {len(body)} bytes (at most {MAX_BODY})")
        return (await self._channel.ask(Ask(plugin, body), Body, ASK_SECONDS)).data


class RouterLink:
    """The router's way to the plugins of all workers (`Runtime.pool` there), and to the pool itself.

    In a pool with one engine in its own process (`local`) the worker's plugin is the router's: it asks itself.
    """

    role: Literal["router"] = "router"
    number = 0
    """Of the one engine, if it is in this process."""

    def __init__(self, backend: Router, workers: Callable[[], Sequence[Worker]]) -> None:
        self.backend = backend
        """Jobs, output, usage, counters: of the whole pool."""
        self._workers = workers

    @property
    def workers(self) -> int:
        """How many there should be."""
        return len(self._workers())

    @property
    def processes(self) -> dict[int, int]:
        """By worker's number, which of its processes it is: another number for each."""
        return {worker.number: worker.restarts for worker in self._workers()}

    async def ask(self, plugin: str, body: bytes) -> bytes:
        """PoolError "unsupported", always: it is workers that ask the router."""
        raise PoolError("unsupported", "this is the pool's router: nobody is above it")

    async def ask_workers(
        self, plugin: str, body: bytes, seconds: float = QUERY_SECONDS, *, only: int | None = None
    ) -> dict[int, bytes]:
        """-> by worker's number, what `answer_router()` of this plugin returned there. Workers that fail, are late, are being
        replaced or say too much (MAX_ANSWER) are missing; one that said nothing at all for as long the last time is waited for a
        moment only. `only`: the number of the one that is asked. ValueError: the question is larger than MAX_BODY."""
        if len(body) > MAX_BODY:
            raise ValueError(f"a question of {len(body)} bytes (at most {MAX_BODY})")
        asked = [
            worker
            for worker in self._workers()
            if worker.channel is not None and worker.state in ("ready", "draining") and only in (None, worker.number)
        ]
        query = Query(plugin, body, min(seconds, MAX_QUERY_SECONDS))
        answers = await asyncio.gather(*(_ask(worker, query) for worker in asked))
        return {worker.number: answer for worker, answer in zip(asked, answers, strict=True) if answer is not None}

    async def keep_from_agents(self, listeners: Sequence[tuple[str, int]]) -> None:
        """All workers' agents are kept from these (`Runtime.listeners`) when this returns: for who is about to listen. Of a
        worker that does not answer they are at the next reload, or it is replaced."""
        ready = [worker.channel for worker in self._workers() if worker.channel is not None and worker.state == "ready"]
        asked = (channel.ask(Keep(tuple(listeners)), Done, QUERY_SECONDS) for channel in ready)
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException):
                log.warning("a worker does not keep its agents from an address of operators yet: %s", answer)


async def _ask(worker: Worker, query: Query) -> bytes | None:
    channel = worker.channel
    try:
        data = (await channel.ask(query, Body, worker.patience(query.seconds))).data if channel is not None else None
    except AgentfwError as error:
        log.debug("worker %d did not answer plugin `%s`: %s", worker.number, query.plugin, error)
        return None
    except Exception:
        log.exception("worker %d could not be asked for plugin `%s`", worker.number, query.plugin)
        return None
    if data is not None and len(data) > MAX_ANSWER:
        log.warning("worker %d answered plugin `%s` with %d bytes: dropped", worker.number, query.plugin, len(data))
        return None
    return data


async def answer(plugins: PluginManager, question: Ask) -> Body:
    """In the router: a worker's question. PoolError."""
    return await _bytes_of(plugins, question, "answer_pool", ASK_SECONDS, MAX_BODY)


async def answer_query(plugins: PluginManager, question: Query) -> Body:
    """In a worker: the router's question. PoolError."""
    return await _bytes_of(plugins, question, "answer_router", min(question.seconds, MAX_QUERY_SECONDS), MAX_ANSWER)


async def answer_api(plugins: PluginManager, plugin: str, what: str, query: Mapping[str, str], local: bool) -> Any:
    """In the router: a question of a client of the control API; `local`: over the Unix socket. PoolError: "not_found" if there is
    no such plugin, or it tells no such thing; "forbidden" if it is not for this client."""
    found = plugins.get(plugin)
    method = getattr(found, "answer_api", None)
    if found is None:
        why = f"plugin `{shown(plugin, 64)}`: there is no such plugin in this pool"
        raise PoolError("not_found", why, f"{_how_to_have(plugin, plugins.config)}, and start the pool anew")
    if method is None:
        able = ", ".join(f"`{name}`" for name in plugins.names if hasattr(plugins.get(name), "answer_api"))
        why = f"plugin `{shown(plugin, 64)}`: it tells clients nothing in this pool"
        raise PoolError("not_found", why, f"those that do: {able or 'none'}")
    if not local and what in getattr(found, "api_local", ()):
        why = f"`{shown(what, 64)}` of plugin `{plugin}` is told over the pool's Unix socket only"
        raise PoolError("forbidden", why, "ask on the pool's own machine, without `--url`")
    return await _called(plugin, "answer_api", lambda: method(what, query), API_SECONDS)


async def _bytes_of(plugins: PluginManager, question: Ask | Query, name: str, seconds: float, most: int) -> Body:
    method = getattr(plugins.get(question.plugin), name, None)
    if method is None:
        raise PoolError("unsupported", f"plugin `{shown(question.plugin, 64)}` answers no questions of the pool's")
    data = await _called(question.plugin, name, lambda: method(question.body), seconds)
    if not isinstance(data, bytes):
        raise PoolError("internal", f"plugin `{question.plugin}` returned no answer: {type(data).__name__}")
    if len(data) > most:
        raise PoolError("internal", f"plugin `{question.plugin}` returned no answer: {len(data)} bytes (at most {most})")
    return Body(data)


def _how_to_have(plugin: str, config: Config) -> str:
    """A list that is given is all there is: neither a table nor being one that pools have adds to it."""
    from ..plugins.discovery import pool_plugins

    if plugin in pool_plugins(config):
        return "name it in `--plugins`, if the pool has those"
    if config.run.plugins is not None:
        place = config.place("run.plugins")
        return "add it to [run] `plugins`" + (f" ({place})" if place else "")
    return "give it a table in agentfw.toml, or name it in [run] `plugins`"


async def _called(plugin: str, name: str, method: Callable[[], Any], seconds: float) -> Any:
    """What comes of it. PoolError, or another error of agentfw's that it raised."""
    try:
        async with asyncio.timeout(seconds):
            return await method()
    except AgentfwError:
        raise
    except TimeoutError:
        raise PoolError("internal", f"plugin `{plugin}` took more than {seconds:g} s for a question") from None
    except BaseException as error:
        if is_wanted(error):
            raise
        log.exception("plugin `%s` failed in %s()", plugin, name)
        raise PoolError("internal", f"plugin `{plugin}` failed in {name}(): {type(error).__name__}") from None
