"""The server: a listener of its own, and what there is at each path.

    server = WebServer(source, access, files=load(directory))
    await server.start()
    port = await server.listen("127.0.0.1", 0)
    ... f"http://127.0.0.1:{port}/login?code={access.new_code()}" ...
    await server.close()

All answers but the page's own files want a session (a cookie that a login gives) or `Authorization: Bearer TOKEN`. Nothing here
changes anything in the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qs

from agentfw.pool.answers import error_answer, refusal
from agentfw.pool.guard import Connection, Listener, bind_tcp
from agentfw.pool.jobs import PoolError
from agentfw.views import OutputTail
from aiohttp import web

from . import login
from .access import Access
from .door import Door, bearer
from .events import MAX_VIEWERS, PERIOD, Events
from .files import File
from .shared import Answer, Shared, Source

MAX_CONNECTIONS = 512
HEAD = 4096
"""Bytes of a request's line, and of each header field."""
FIELDS = 64
"""Header fields."""
MAX_BODY = 4096
BODY_SECONDS = 10.0
TAKE_SECONDS = 20.0
"""In which an answer, or a second's events, must have been taken."""
GRACE = 1.0
"""Seconds for answers that are being given when the server is closed."""
BACKLOG = 256

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Content-Security-Policy of all there is: https://www.w3.org/TR/CSP3/."""
HEADERS = {
    "Server": "agentfw",
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_ARRIVAL = web.RequestKey("arrival", str)
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")
_SINCE = re.compile(r"[0-9]{1,18}\Z")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Output = Callable[[str], Awaitable[OutputTail]]
Metrics = Callable[[str], Awaitable[tuple[bytes, str]]]

log = logging.getLogger("agentfw.dashboard")


class WebServer:
    """`files`: the page's, by path; "index.html" is the page. `output`: of a job (PoolError "no_such_job"); `metrics`: for an
    `Accept` field, the text and its type. `door`: whose requests are looked at. `period`: seconds between events."""

    def __init__(
        self,
        source: Source,
        access: Access,
        *,
        files: Mapping[str, File],
        door: Door | None = None,
        output: Output | None = None,
        metrics: Metrics | None = None,
        period: float = PERIOD,
        connections: int = MAX_CONNECTIONS,
        viewers: int = MAX_VIEWERS,
    ) -> None:
        self.access = access
        self.door = door or Door()
        self.shared = Shared(source)
        self.events = Events(self.shared, period=period, viewers=viewers)
        self.logins = 0
        self.refused = 0
        self._files = files
        self._output = output
        self._metrics = metrics
        self._connections = connections
        self._listener: Listener | None = None
        self._servers: list[asyncio.Server] = []
        app = web.Application(middlewares=[self._middleware], client_max_size=MAX_BODY)
        routes = app.router
        for path, handler in (
            ("/", self._page),
            ("/login", self._login_page),
            ("/data/overview", self._overview),
            ("/data/agents", self._agents),
            ("/data/agent", self._agent),
            ("/data/loaded", self._loaded),
            ("/data/output", self._tail),
            ("/metrics", self._numbers),
        ):
            routes.add_get(path, handler)
        routes.add_get("/events", self._stream, allow_head=False)
        routes.add_post("/login", self._login)
        routes.add_post("/logout", self._logout)
        routes.add_get("/{file:.+}", self._file)  # last: all that there is else would be one
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=GRACE)

    async def start(self) -> None:
        await self._runner.setup()

    async def listen(self, host: str, port: int) -> list[tuple[str, int]]:
        """-> the addresses that it listens at, numeric. OSError."""
        sockets = bind_tcp(host, port)
        await self.serve(sockets)
        return [sock.getsockname()[:2] for sock in sockets]

    async def serve(self, sockets: list[socket.socket]) -> None:
        """On sockets that are bound; they are its own from now on."""
        loop = asyncio.get_running_loop()
        listener = self._listener = self._listener or Listener(
            self.access.token.encode(),
            most=self._connections,
            headers=HEADERS,
            unread=TAKE_SECONDS,
            head=HEAD,
            fields=FIELDS,
        )
        for sock in sockets:
            server = await loop.create_server(lambda: Connection(listener, self._runner.server, loop), sock=sock, backlog=BACKLOG)
            self._servers.append(server)

    @property
    def listening(self) -> bool:
        return bool(self._servers)

    @property
    def open(self) -> int:
        """Connections."""
        return self._listener.open if self._listener is not None else 0

    def stop_listening(self) -> None:
        """No more connections; those that are open go on."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def close(self) -> None:
        """End it all, those who watch too. Idempotent."""
        self.stop_listening()
        await self.events.close()
        await self._runner.cleanup()
        await self.shared.close()

    # -- around every request

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._check(request)
            response = await handler(request)
        except web.HTTPException as error:
            response = refusal(request, error)
        except PoolError as error:
            response = error_answer(error)
        except TimeoutError:
            response = error_answer(PoolError("timeout", f"the body did not come within {BODY_SECONDS:.0f} s"))
            response.force_close()
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # ours, or the source's
            log.exception("%s %s failed", request.method, request.path)
            response = error_answer(PoolError("internal", f"an internal error: {type(error).__name__}", "see the pool's log"))
        self.refused += response.status in (401, 403)
        if not response.prepared:
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            await _give(request, response)
        return response

    def _check(self, request: web.Request) -> None:
        if not request.raw_path.startswith("/"):  # RFC 9112, 3.2.2: that is a proxy's; its host would be another one's
            raise PoolError("bad_request", "the request's target is not a path")
        page = request.method in ("GET", "HEAD") and request.path in ("/", "/login")
        request[_ARRIVAL] = self.door.check(request.headers, _own_address(request), page=page)
        if request.method in ("GET", "HEAD") and request.can_read_body:
            raise PoolError("bad_request", f"a {request.method} with a body")
        if request.path in ("/", "/login", "/logout") or request.match_info.get("file") in self._files:
            return
        if not self._may_look(request):
            raise PoolError("unauthorized", "no session and no token", "`agentfw dashboard` opens the page, and logs you in")

    def _may_look(self, request: web.Request) -> bool:
        given = bearer(request.headers)
        if given is not None:
            may = self.access.is_token(given)
        else:
            may = self.access.is_session(request.cookies.get(self.access.cookie, ""))
        if may and isinstance(request.protocol, Connection):
            request.protocol.vouch()
        return may

    # -- pages

    async def _page(self, request: web.Request) -> web.Response:
        if request[_ARRIVAL] == "navigation":  # without the cookie (it is SameSite=Strict); asked again by us it has it
            return login.onward()
        if not self._may_look(request):
            return login.page("")
        return _file_answer(request, self._files["index.html"])

    async def _file(self, request: web.Request) -> web.Response:
        found = self._files.get(request.match_info["file"])
        if found is None or request.match_info["file"] == "index.html":
            raise web.HTTPNotFound
        return _file_answer(request, found)

    async def _login_page(self, request: web.Request) -> web.Response:
        """With a code the door opens, once. Not at a HEAD: who only looks whether the link works does not use it up."""
        code = request.query.get("code", "")
        if request.method == "HEAD" or not code:
            return login.page("", status=200)
        return self._let_in(request, self.access.spend(code))

    async def _login(self, request: web.Request) -> web.Response:
        if request.content_type != "application/x-www-form-urlencoded":
            raise PoolError("bad_request", "a login is a form's: application/x-www-form-urlencoded")
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.read()
        try:
            fields = parse_qs(body.decode("ascii"), max_num_fields=8)
        except ValueError:
            raise PoolError("bad_request", "a form that cannot be read") from None
        given = fields.get("token", [""])[0].strip()
        return self._let_in(request, self.access.is_token(given) or self.access.spend(given))

    def _let_in(self, request: web.Request, good: bool) -> web.Response:
        if not good:
            return login.page("That code or token is not good (any more). `agentfw dashboard` makes a new code.")
        self.logins += 1
        response = login.onward()
        response.set_cookie(
            self.access.cookie,
            self.access.new_session(),
            httponly=True,
            samesite="Strict",
            secure=self.door.is_secure(request.headers["Host"]),
            path="/",
        )
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        self.access.end_session(request.cookies.get(self.access.cookie, ""))
        response = login.onward()
        response.del_cookie(self.access.cookie, path="/", httponly=True, samesite="Strict")
        return response

    # -- data

    async def _overview(self, request: web.Request) -> web.Response:
        return _json(await self.shared.overview())

    async def _agents(self, request: web.Request) -> web.Response:
        since = request.query.get("since", "0")
        if not _SINCE.match(since):
            raise PoolError("bad_request", "`since` must be a number that an answer gave")
        return _json(await self.shared.agents(int(since)))

    async def _agent(self, request: web.Request) -> web.Response:
        return _json(await self.shared.agent(_agent_id(request)))

    async def _loaded(self, request: web.Request) -> web.Response:
        return _json(await self.shared.loaded())

    async def _tail(self, request: web.Request) -> web.Response:
        if self._output is None:
            raise PoolError("not_found", "no output is kept here: the agents' goes to the terminal")
        return _json(await self.shared.output(self._output, _agent_id(request)))

    async def _numbers(self, request: web.Request) -> web.Response:
        if self._metrics is None:
            raise PoolError("not_found", "there are no metrics here")
        found = await self.shared.metrics(self._metrics, ",".join(request.headers.getall("Accept", [])))
        return web.Response(body=found.data, headers={"Content-Type": found.kind})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        view = self.events.view(request.headers.get("Last-Event-ID", ""))
        async with contextlib.aclosing(view):
            first = await anext(view)  # an error can still be a status
            try:
                async with asyncio.timeout(TAKE_SECONDS):
                    await response.prepare(request)
                    await response.write(first)
                async for data in view:
                    if not self._may_look(request):  # logged out, or the session's time is over
                        break
                    async with asyncio.timeout(TAKE_SECONDS):
                        await response.write(data)
                await response.write_eof()
            except TimeoutError:
                _cut(request)
        response.force_close()
        return response


async def _give(request: web.Request, response: web.StreamResponse) -> None:
    """Until it has been taken, but for what a socket holds."""
    try:
        async with asyncio.timeout(TAKE_SECONDS):
            await response.prepare(request)
            await response.write_eof()
    except TimeoutError:
        _cut(request)
        raise ConnectionResetError("it did not take its answer") from None


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _own_address(request: web.Request) -> str:
    name = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return str(name[0]) if name else ""


def _agent_id(request: web.Request) -> str:
    given = request.query.get("id", "")
    if not _ID.match(given):
        raise PoolError("no_such_job", "no such agent: that is no id")
    return given


def _json(answer: Answer) -> web.Response:
    return web.Response(body=answer.data, content_type="application/json")


def _file_answer(request: web.Request, file: File) -> web.Response:
    """Kept by the browser, which asks each time whether it is still the same."""
    headers = {"Content-Type": file.kind, "ETag": file.tag, "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == file.tag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=file.data, headers=headers)
