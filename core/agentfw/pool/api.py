"""The control API: a pool's backend over HTTP/1.1, on a Unix socket and, with a token, on TCP. Its users read
docs/reference/api.md.

A request costs a connection and a bounded buffer. A client that goes away ends its handler; one that reads slowly holds up its
own stream only; what takes longer than `wire.LONGEST_WAIT` is asked for again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec
from aiohttp import web

from ..metrics import expose
from .answers import error_answer, refusal
from .backend import Backend
from .diary import Diary, caller
from .guard import HEADERS, Connection, Listener, bind_tcp
from .jobs import Job, JobInfo, Output, PoolError, in_words
from .places import BACKLOG
from .routes import ROUTES, Route, openapi
from .wire import (
    API_VERSION,
    HEARTBEAT,
    MAX_BODY,
    PIECE,
    Drained,
    ErrorBody,
    ForkRequest,
    JobList,
    ListQuery,
    Metrics,
    MetricsQuery,
    OutputQuery,
    Reloaded,
    SignalRequest,
    StdinQuery,
    StopRequest,
    UsageList,
    WaitQuery,
)

log = logging.getLogger("agentfw.pool.api")

BODIES = 4 * MAX_BODY
"""Bytes of all requests' bodies that are read at one time."""
SMALL_BODY = 64 << 10
"""Bytes of a body that is no job."""
BODY_SECONDS = 300.0
STOP_SECONDS = 10.0
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")


class ApiServer:
    """Serves `backend`. `on_stop(seconds)` is called when a client ends the pool: its jobs have so long. `grace`: seconds that
    streams have to say their last when it is closed. `diary`: who reads what, and who is refused, is told there."""

    def __init__(
        self, backend: Backend, on_stop: Callable[[float], None], *, grace: float = 2.0, diary: Diary | None = None
    ) -> None:
        self.backend = backend
        self._diary = diary or Diary()
        self._on_stop = on_stop
        self._held = 0
        self._drain: asyncio.Task[None] | None = None
        self._servers: list[asyncio.AbstractServer] = []
        self._document = b""
        app = web.Application(middlewares=[self._middleware], client_max_size=MAX_BODY)
        for route in ROUTES:
            app.router.add_route(route.method, route.path, self._handler(route))
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=grace)

    async def start(self) -> None:
        await self._runner.setup()

    async def listen_unix(self, sock: socket.socket, listener: Listener | None = None) -> None:
        """On a bound socket (`places.SocketPlace.bind()`), for this user and root."""
        loop = asyncio.get_running_loop()
        chosen = listener or Listener()
        chosen.tell = self._refused
        server = await loop.create_unix_server(lambda: Connection(chosen, self._runner.server, loop), sock=sock)
        self._servers.append(server)

    async def listen_tcp(self, host: str, port: int, token: bytes) -> int:
        """-> the port. OSError."""
        sockets = bind_tcp(host, port)
        await self.serve_tcp(sockets, host, token)
        return int(sockets[0].getsockname()[1])

    async def serve_tcp(self, sockets: list[socket.socket], host: str, token: bytes) -> None:
        """On sockets that are bound to the addresses of `host`; they are its own from now on."""
        loop = asyncio.get_running_loop()
        listener = Listener.tcp(host, token)
        listener.tell = self._refused
        for sock in sockets:
            server = await loop.create_server(lambda: Connection(listener, self._runner.server, loop), sock=sock, backlog=BACKLOG)
            self._servers.append(server)

    def _refused(self, who: str, error: PoolError) -> None:
        self._diary.pool("refused", str(error), by=who.replace("token", "nobody known", 1), how=error.code)

    def stop_listening(self) -> None:
        """No more connections; those that are open go on."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def close(self) -> None:
        """End it all. Idempotent."""
        self.stop_listening()
        await self._runner.cleanup()
        if self._drain is not None:
            self._drain.cancel()
            await asyncio.gather(self._drain, return_exceptions=True)

    # -- around every request

    @web.middleware
    async def _middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            connection = request.protocol
            assert isinstance(connection, Connection)
            try:
                connection.listener.check(request.headers, request.headers.get("Host"))
            except PoolError as error:
                self._refused(connection.who, error)
                raise
            connection.vouch()
            caller.set(connection.who)  # for this request: the next one of the connection sets it anew
            response = await handler(request)
        except web.HTTPException as error:
            response = refusal(request, error, "see GET /v1/openapi.json")
        except PoolError as error:
            response = error_answer(error)
        except TimeoutError:
            response = error_answer(PoolError("timeout", f"the body did not come within {BODY_SECONDS:.0f} s"))
            response.force_close()
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # ours, or the backend's
            log.exception("%s %s failed", request.method, request.path)
            response = error_answer(PoolError("internal", f"an internal error: {type(error).__name__}", "see the pool's log"))
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    def _handler(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        method = getattr(self, f"_do_{route.name}")

        async def handle(request: web.Request) -> web.StreamResponse:
            arguments: dict[str, Any] = {}
            if "id" in request.match_info:
                arguments["job_id"] = _job_id(request.match_info["id"])
            if route.free_query:
                arguments["query"] = _free_query(request)
            elif (query := _query(request, route.query)) is not None:
                arguments["query"] = query
            if request.headers.get("Content-Encoding", "identity") != "identity":
                raise PoolError("bad_request", "compressed bodies are not taken")
            if route.body is bytes or route.lines or route.free_query or route.text:
                found = await method(request, **arguments)
            elif route.body is not None:
                found = await self._with_body(request, route, method, arguments)
            else:
                found = await method(**arguments)
            if isinstance(found, web.StreamResponse):
                return found
            if found is None:
                return web.Response(status=route.status)
            return web.Response(status=route.status, body=msgspec.json.encode(found), content_type="application/json")

        return handle

    async def _with_body(
        self, request: web.Request, route: Route, method: Callable[..., Awaitable[Any]], arguments: dict[str, Any]
    ) -> Any:
        with self._holding() as hold:
            data = await _read(request, MAX_BODY if route.body is Job else SMALL_BODY, hold)
            try:
                body = (
                    route.body()
                    if route.optional_body and not data and route.body
                    else msgspec.json.decode(data, type=route.body)
                )
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                code = "bad_job" if route.body is Job else "bad_request"
                hint = "see docs/reference/api.md, or GET /v1/openapi.json"
                raise PoolError(code, f"the request's body: {in_words(error)}", hint) from None
            del data
            return await method(body=body, **arguments)

    @contextlib.contextmanager
    def _holding(self) -> Iterator[Callable[[int], None]]:
        """Bodies count, all together, from their first byte until the job is the backend's."""
        mine = 0

        def hold(size: int) -> None:
            nonlocal mine
            if self._held + size > BODIES:
                raise PoolError("unavailable", "too many large requests at once", "try again in a moment")
            self._held += size
            mine += size

        try:
            yield hold
        finally:
            self._held -= mine

    # -- jobs

    async def _do_submit(self, body: Job) -> web.Response:
        info = await self.backend.submit(body)
        where = {"Location": f"/v1/jobs/{info.id}"}
        return web.Response(status=201, body=msgspec.json.encode(info), content_type="application/json", headers=where)

    async def _do_jobs(self, query: ListQuery) -> JobList:
        labels = {}
        for text in query.label:
            name, equals, value = text.partition("=")
            if not equals:
                raise PoolError("bad_request", "`label` must be NAME=VALUE")
            labels[name] = value
        found = await self.backend.jobs(state=query.state, tenant=query.tenant, labels=labels or None, limit=query.limit)
        return JobList(jobs=found)

    async def _do_info(self, job_id: str) -> JobInfo:
        return await self.backend.info(job_id)

    async def _do_wait(self, job_id: str, query: WaitQuery) -> JobInfo:
        return await self.backend.wait(job_id, query.seconds)

    async def _do_output(self, request: web.Request, job_id: str, query: OutputQuery) -> web.StreamResponse:
        await self.backend.info(job_id)  # an error can still be a status
        self._diary.pool("read", job=job_id)
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        lines = _Lines(response)
        pieces = self.backend.output(job_id, follow=query.follow, stdout=query.stdout, stderr=query.stderr)
        async with lines:
            try:
                async for piece in pieces:
                    for line in _cut(piece):
                        await lines.write(line)
            except PoolError as error:
                await lines.write(msgspec.json.encode(ErrorBody.of(error)) + b"\n")
            except ConnectionError:
                raise  # it went away
            except Exception as error:
                log.exception("the output of %s failed", job_id)
                text = f"an internal error: {type(error).__name__}"
                await lines.write(msgspec.json.encode(ErrorBody.of(PoolError("internal", text))) + b"\n")
            finally:
                if isinstance(pieces, AsyncIterator) and hasattr(pieces, "aclose"):
                    await pieces.aclose()
        await response.write_eof()
        return response

    async def _do_feed(self, request: web.Request, job_id: str, query: StdinQuery) -> None:
        await self.backend.info(job_id)
        with self._holding() as hold:
            hold(SMALL_BODY)
            last = b""
            while piece := await request.content.readany():
                if last:
                    await self.backend.feed(job_id, last)
                last = piece
        if last or query.end:  # both in one: a program that reads a line may have ended before it is told that this was all
            await self.backend.feed(job_id, last, query.end)

    async def _do_signal(self, job_id: str, body: SignalRequest) -> None:
        await self.backend.signal(job_id, body.signal)

    async def _do_kill(self, job_id: str) -> None:
        await self.backend.signal(job_id, 9)

    async def _do_fork(self, job_id: str, body: ForkRequest) -> JobList:
        return JobList(jobs=await self.backend.fork(job_id, body.count))

    # -- the pool

    async def _do_describe(self) -> Any:
        return msgspec.structs.replace(await self.backend.describe(), api=API_VERSION)

    async def _do_metrics(self, request: web.Request, query: MetricsQuery) -> Metrics | web.Response:
        if query.format == "prometheus":
            return await self._do_prometheus(request)
        return Metrics(metrics=await self.backend.metrics())

    async def _do_prometheus(self, request: web.Request) -> web.Response:
        # In a thread: ten milliseconds are long for a router.
        body, kind = await asyncio.to_thread(expose, await self.backend.metrics(), ",".join(request.headers.getall("Accept", ())))
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _do_usage(self) -> UsageList:
        return UsageList(usage=await self.backend.usage())

    async def _do_plugin(self, request: web.Request, query: Mapping[str, str]) -> web.Response:
        plugin, what = request.match_info["plugin"], request.match_info["what"]
        assert isinstance(request.protocol, Connection)
        local = request.protocol.listener.token is None
        found = await self.backend.plugin(plugin, what, query, local=local)
        try:
            body = msgspec.json.encode(found)
        except Exception as error:
            log.exception("what plugin `%s` told of `%s` cannot be encoded", plugin, what)
            raise PoolError("internal", f"plugin `{plugin}` failed in answer_api(): {type(error).__name__}") from None
        return web.Response(body=body, content_type="application/json")

    async def _do_drain(self, query: WaitQuery) -> Drained:
        if self._drain is None or self._drain.done():  # the client may go, the pool drains on
            self._drain = asyncio.get_running_loop().create_task(self._drained())
        done, _ = await asyncio.wait([self._drain], timeout=query.seconds)
        for task in done:
            task.result()
        return Drained(done=bool(done), pool=await self._do_describe())

    async def _drained(self) -> None:
        await self.backend.drain()

    async def _do_reload(self) -> Reloaded:
        return Reloaded(changed=await self.backend.reload())

    async def _do_stop(self, body: StopRequest) -> None:
        self._on_stop(STOP_SECONDS if body.seconds is None else body.seconds)

    async def _do_openapi(self) -> web.Response:
        self._document = self._document or msgspec.json.encode(openapi())
        return web.Response(body=self._document, content_type="application/json")


class _Lines:
    """A stream's lines, written one after the other, and an empty one whenever there was none for a while."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response
        self._lock = asyncio.Lock()
        self._written = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._beat())

    async def __aexit__(self, *error: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def write(self, line: bytes) -> None:
        """Returns when the client has taken so much that little is left in between."""
        async with self._lock:
            await self._response.write(line)
            self._written = True

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT)
            if not self._written:
                with contextlib.suppress(ConnectionError):  # the handler is told by its own write, or cancelled
                    await self.write(b"\n")
            self._written = False


def _cut(piece: Output) -> Iterator[bytes]:
    """Lines of bounded length."""
    if len(piece.data) <= PIECE:
        yield msgspec.json.encode(piece) + b"\n"
        return
    for at in range(0, len(piece.data), PIECE):
        part = Output(stream=piece.stream, offset=piece.offset + at, data=piece.data[at : at + PIECE])
        yield msgspec.json.encode(part) + b"\n"


async def _read(request: web.Request, most: int, hold: Callable[[int], None]) -> bytearray:
    """A body of at most so many bytes. PoolError "too_large", "unavailable"; TimeoutError."""
    if (request.content_length or 0) > most:
        raise PoolError("too_large", f"a body of {request.content_length} bytes (at most {most})")
    data = bytearray()
    async with asyncio.timeout(BODY_SECONDS):
        while piece := await request.content.readany():
            hold(len(piece))
            data += piece
            if len(data) > most:
                raise PoolError("too_large", f"a body of more than {most} bytes")
    return data


def _job_id(text: str) -> str:
    if not _ID.match(text):
        raise PoolError("no_such_job", "no such job: that is no id")
    return text


def _free_query(request: web.Request) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name, value in request.query.items():
        if name in found:
            raise PoolError("bad_request", f"parameter `{name}` twice")
        found[name] = value
    return found


def _query(request: web.Request, kind: type[msgspec.Struct] | None) -> msgspec.Struct | None:
    given: dict[str, Any] = {}
    for name in dict.fromkeys(request.query):
        values = request.query.getall(name)
        several = kind is not None and isinstance(msgspec.structs.asdict(kind()).get(name), list)
        if not several and len(values) > 1:
            raise PoolError("bad_request", f"parameter `{name}` twice")
        given[name] = values if several else values[0]
    if kind is None:
        if given:
            raise PoolError("bad_request", f"no parameter `{next(iter(given))}` here")
        return None
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise PoolError("bad_request", f"the request's parameters: {in_words(error)}", "see docs/reference/api.md") from None
