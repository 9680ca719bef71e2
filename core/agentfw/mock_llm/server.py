"""The server: TLS, HTTP/1.1, counting, and the choice of dialect."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import Counter, deque
from http import HTTPStatus
from typing import Any, Self, cast

import httptools
import msgspec

from . import anthropic, openai
from .authority import CertificateAuthority
from .options import MockOptions
from .reply import Call, Reply, json_reply
from .thread import ServerThread
from .usage import PromptCache, Usage

NAMES = ("api.openai.com", "api.anthropic.com", "localhost", "127.0.0.1")
CONTROL = "/_mock/stats"
BODY_MAX = 64 << 20
HEAD_MAX = 64 << 10
DEFAULTS = MockOptions()


class MockLLM:
    """`async with MockLLM(options) as server`: serves until the block ends, then closes every connection.

    `authority`: sign with this CA rather than a new one. `ssl_context`: serve with this context instead of an own leaf.
    """

    def __init__(
        self,
        options: MockOptions = DEFAULTS,
        *,
        authority: CertificateAuthority | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.options = options
        self.authority = authority or CertificateAuthority()
        self._context = ssl_context
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._counts: Counter[str] = Counter()
        self._paths: Counter[str] = Counter()
        self._names: Counter[str] = Counter()
        self._statuses: Counter[int] = Counter()
        self._usage: dict[str, Usage] = {}
        """By model."""
        self._cache = PromptCache(options.cache_minimum)
        self._chance = random.Random(options.seed)
        self._streams = 0
        self._peak = 0
        self._calls = 0
        self._empty: asyncio.Event | None = None

    @property
    def ca_pem(self) -> str:
        """What a client has to trust."""
        return self.authority.ca_pem

    @property
    def port(self) -> int:
        if self._server is None:
            raise RuntimeError("the mock server has not been started")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def stats(self) -> dict[str, Any]:
        """Counters since the start. A connection that began with a control request counts as a control connection only.

        `connections` accepted over TCP, `handshakes` completed (`resumed` of them abbreviated), `open` now and their `peak`;
        `requests` to anything but the control path, `unauthorized` of them answered 401; `usage` (and, by model, `models`) is
        what `model_calls` were billed for, whether the client was told or not; the rest is by path, status and SNI.
        """
        counts = self._counts
        return {
            **{name: counts[name] for name in ("connections", "handshakes", "resumed", "requests", "unauthorized")},
            "streams": counts["streams"],
            "aborted": counts["aborted"],
            "tokens": counts["tokens"],
            "model_calls": counts["model_calls"],
            "cut": counts["cut"],
            "usage": sum(self._usage.values(), Usage()).as_dict(),
            "models": {model: usage.as_dict() for model, usage in self._usage.items()},
            "open": sum(not connection.control for connection in self._connections if connection.handshaken),
            "peak": self._peak,
            "control_connections": counts["control_connections"],
            "control_requests": counts["control_requests"],
            "paths": dict(self._paths),
            "statuses": {str(status): count for status, count in self._statuses.items()},
            "server_names": dict(self._names),
        }

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        context = self._context
        if context is None:
            context = self.authority.server_context((*NAMES, *self.options.names))
        # One server runs in one process for one tester: SNI is only noted.
        context.sni_callback = self._note_name
        self._server = await loop.create_server(
            lambda: _Connection(self),
            self.options.host,
            self.options.port,
            ssl=context,
            ssl_handshake_timeout=10,
            backlog=1024,
        )

    async def close(self) -> None:
        """Stop listening, end all connections. Idempotent."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._connections):
            connection.abort()
        if self._connections:  # connection_lost() comes in the next turns of the loop
            self._empty = asyncio.Event()
            await self._empty.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _note_name(self, sslobject: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        self._names[name or ""] += 1

    # ---- what connections report ----

    def _accepted(self, connection: _Connection) -> None:
        self._connections.add(connection)
        self._counts["connections"] += 1

    def _handshaken(self, connection: _Connection, resumed: bool) -> None:
        self._counts["handshakes"] += 1
        self._counts["resumed"] += resumed
        self._peak = max(self._peak, sum(c.handshaken and not c.control for c in self._connections))

    def _became_control(self, connection: _Connection) -> None:
        self._counts["control_connections"] += 1
        self._counts["connections"] -= 1
        self._counts["handshakes"] -= 1
        self._counts["resumed"] -= connection.resumed

    def _gone(self, connection: _Connection, aborted: bool) -> None:
        self._connections.discard(connection)
        self._counts["aborted"] += aborted
        if self._empty and not self._connections:
            self._empty.set()

    def _answer(self, call: Call) -> Reply:
        if call.path == CONTROL:
            self._counts["control_requests"] += 1
            return json_reply(200, self.stats())
        self._counts["requests"] += 1
        self._paths[call.path if len(self._paths) < 1000 else "..."] += 1
        reply = self._dispatch(call)
        self._statuses[reply.status] += 1
        self._counts["unauthorized"] += reply.status == 401
        self._counts["streams"] += reply.events is not None
        self._counts["tokens"] += reply.tokens
        if reply.usage is not None:
            self._counts["model_calls"] += 1
            model = reply.model if reply.model in self._usage or len(self._usage) < 1000 else "..."
            self._usage[model] = self._usage.get(model, Usage()) + reply.usage
        if reply.events is not None and self.options.cut_every:
            self._streams += 1
            if not self._streams % self.options.cut_every:
                self._counts["cut"] += 1
                reply.cut_after = len(reply.events) // 2
        return reply

    def _dispatch(self, call: Call) -> Reply:
        anthropic_client = b"anthropic-version" in call.headers or b"x-api-key" in call.headers
        dialect: Any
        if call.path in anthropic.PATHS or (anthropic_client and call.path in openai.PATHS):
            dialect = anthropic
        elif call.path in openai.PATHS:
            dialect = openai
        else:
            return (
                anthropic.error(404, "Not found")
                if anthropic_client
                else openai.error(404, f"Invalid URL ({call.method} {call.path})", "invalid_request_error")
            )
        self._calls += 1
        call.number = self._calls
        fail_every = self.options.fail_every
        reply: Reply
        if (fail_every and self._calls % fail_every == 0) or self._chance.random() < self.options.error_rate:
            reply = dialect.failure(self.options, call, self.options.fail_status)
        else:
            reply = dialect.handle(self.options, call)
        return reply


class _Connection(asyncio.Protocol):
    """One client. Requests that come pipelined are answered in their order."""

    def __init__(self, server: MockLLM) -> None:
        self._server = server
        self._options = server.options
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[Call, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._served = 0
        self._idle: asyncio.TimerHandle | None = None
        self._broken = False
        self.handshaken = False
        self.resumed = False
        self.control = False
        self._reset()
        server._accepted(self)  # asyncio makes the protocol at accept and calls connection_made() after the handshake

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_size = 0
        self._in_head = True
        self._body: list[bytes] = []
        self._body_size = 0

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        tls = transport.get_extra_info("ssl_object")
        self.resumed = bool(tls is not None and getattr(tls, "session_reused", False))
        self.handshaken = True
        self._server._handshaken(self, self.resumed)
        self._rearm()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle:
            self._idle.cancel()
        aborted = self._task is not None
        if self._task:
            self._task.cancel()
        self._writable.set()
        self._server._gone(self, aborted)

    def data_received(self, data: bytes) -> None:
        if self._broken:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as trouble:
            cause = trouble.__context__
            self._refuse(413 if isinstance(cause, _TooLarge) else 400)
        except httptools.HttpParserUpgrade:
            self._refuse(400)
        else:
            if self._in_head:  # httptools keeps an unfinished header to itself, however long it gets
                self._head_size += len(data)
                if self._head_size > HEAD_MAX:
                    self._refuse(431)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def abort(self) -> None:
        if self._transport:
            self._transport.abort()
        else:  # still in its handshake: the server's close takes it along, but without a connection_lost()
            self._server._gone(self, False)

    # ---- httptools ----

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._headers.get(b"expect", b"").lower() == b"100-continue" and self._transport:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        if self._body_size > BODY_MAX:
            raise _TooLarge
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._url.partition(b"?")[0].decode("latin-1")
        method = self._parser.get_method().decode("latin-1")
        call = Call(0, method, path, self._headers, b"".join(self._body), self._server._cache)
        keep = bool(self._parser.should_keep_alive())
        self._reset()
        self._waiting.append((call, keep))
        if self._task is None:
            self._next()

    # ---- answers ----

    def _next(self) -> None:
        """Answer what waits; an answer that takes time goes on in a task."""
        if self._idle:
            self._idle.cancel()
            self._idle = None
        while self._waiting and not self._broken:
            call, keep = self._waiting.popleft()
            if call.path == CONTROL and not self._served and not self.control:
                self.control = True
                self._server._became_control(self)
            self._served += 1
            if b"host" not in call.headers:
                self._refuse(400)
                return
            if self._options.max_requests and self._served >= self._options.max_requests:
                keep = False
            reply = self._server._answer(call)
            slow = call.path != CONTROL and (
                self._options.latency or (self._options.tokens_per_second and reply.tokens) or not self._writable.is_set()
            )
            if slow:
                self._task = self._loop.create_task(self._slowly(reply, keep))
                return
            self._write(_head(reply, keep) + _whole(reply))
            if not keep or reply.cut_after is not None:
                self._finish()
                return
        if not self._broken:
            self._rearm()

    async def _slowly(self, reply: Reply, keep: bool) -> None:
        try:
            per_token = 1 / self._options.tokens_per_second if self._options.tokens_per_second else 0.0
            await asyncio.sleep(self._options.latency)
            start = self._loop.time()
            if reply.events is None:
                if per_token and reply.tokens:
                    await asyncio.sleep(per_token * reply.tokens)
                await self._writable.wait()
                self._write(_head(reply, keep) + reply.body)
            else:
                self._write(_head(reply, keep))
                spent = 0
                for event, cost in reply.events[: reply.cut_after]:
                    if cost and per_token:
                        spent += cost
                        await asyncio.sleep(max(0.0, start + spent * per_token - self._loop.time()))
                    await self._writable.wait()
                    self._write(_chunk(event))
                if reply.cut_after is None:
                    self._write(b"0\r\n\r\n")
                else:
                    keep = False
        finally:
            self._task = None
        if keep:
            self._next()
        else:
            self._finish()

    def _write(self, data: bytes) -> None:
        if self._transport and not self._transport.is_closing():
            self._transport.write(data)

    def _refuse(self, status: int) -> None:
        reply = openai.error(status, HTTPStatus(status).phrase, "invalid_request_error")
        self._write(_head(reply, False) + reply.body)
        self._finish()

    def _finish(self) -> None:
        self._broken = True
        self._waiting.clear()
        if self._transport:
            self._transport.close()

    def _rearm(self) -> None:
        if self._options.idle_timeout:
            self._idle = self._loop.call_later(self._options.idle_timeout, self._finish)


class _TooLarge(Exception):
    pass


def _head(reply: Reply, keep: bool) -> bytes:
    try:
        phrase = HTTPStatus(reply.status).phrase
    except ValueError:
        phrase = "Overloaded" if reply.status == 529 else "Unknown"
    lines = [f"HTTP/1.1 {reply.status} {phrase}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    lines.append("transfer-encoding: chunked" if reply.events is not None else f"content-length: {len(reply.body)}")
    lines.append("connection: keep-alive" if keep else "connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _whole(reply: Reply) -> bytes:
    if reply.events is None:
        return reply.body
    end = b"0\r\n\r\n" if reply.cut_after is None else b""
    return b"".join([_chunk(event) for event, _ in reply.events[: reply.cut_after]]) + end


class MockLLMThread(ServerThread[MockLLM]):
    """The same server for callers without a loop: `with MockLLMThread(options) as server`."""

    def __init__(self, options: MockOptions = DEFAULTS, *, authority: CertificateAuthority | None = None) -> None:
        super().__init__(MockLLM(options, authority=authority))

    @property
    def ca_pem(self) -> str:
        return self.server.ca_pem

    def stats(self) -> dict[str, Any]:
        """As `MockLLM.stats()`."""
        return self.call(self.server.stats)


def stats_text(stats: dict[str, Any]) -> str:
    """One line for people."""
    text = "{requests} requests on {connections} connections ({handshakes} handshakes, {resumed} resumed; peak {peak})".format(
        **stats
    )
    if stats["unauthorized"]:
        text += f", {stats['unauthorized']} refused for their key"
    return text


def stats_json(stats: dict[str, Any]) -> str:
    return msgspec.json.encode(stats).decode()
