"""One HTTP/1 request and its response: sent on a leased connection, a second time if that had been closed before, and told of at
its end. Heads are written anew, bodies pass the transforms and observers that hooks put on them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Iterator

from ..destination import Destination
from ..errors import AgentfwError, Denied, HookError, ProtocolError, UpstreamError
from ..http1 import (
    LAST_CHUNK,
    NO_BODY,
    BodyObserver,
    BodyReader,
    BodyTransform,
    Framing,
    Headers,
    RequestHead,
    ResponseHead,
    encode_chunk,
    find_head_end,
    parse_response,
    response_framing,
    transformed,
)
from ..reports import ExchangeReport, shown
from ..upstream import Replayable, TlsRequest, Upstream
from .raw import relay_raw
from .record import describe
from .session import LINGER, GuestGone, Session

MAX_INTERIM = 32
"""1xx responses to one request."""
MAX_REPLAY = 1 << 20
"""Bytes of a request's body kept for a second attempt, on routes where there may be one."""
_REPLAYABLE = frozenset({"GET", "HEAD", "OPTIONS"})
_FRAMING = ("transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade")
_INTERIM = {100: "Continue", 102: "Processing", 103: "Early Hints"}

log = logging.getLogger("agentfw.relay")
_numbers = itertools.count(1)


class _Stale(Exception):
    """A reused connection turned out to be closed before a byte of the response came."""


class Exchange:
    """One request and its response."""

    def __init__(
        self, session: Session, destination: Destination, tls: TlsRequest | None, head: RequestHead, framing: Framing
    ) -> None:
        self.session = session
        self.destination = destination
        self.tls = tls
        self.head = head
        self.target = head.target
        """As the agent sent it."""
        self.number = next(_numbers)
        self.framing = framing
        self.status = 0
        """Of the response that the guest was sent."""
        self.failure: BaseException | None = None
        self.body = BodyReader(framing)
        """The request's, as far as it was read."""
        self.answered = False
        """A byte of the final response went to the guest."""
        self.upgraded = False
        self.keep = head.version == "1.1" and "close" not in head.headers.tokens("connection")
        """The guest may send another request on this flow, once this one was read to its end."""
        self._expects = "expect" in head.headers
        self._upgrade = self._wanted_upgrade()
        self._pump: asyncio.Task[None] | None = None
        self._sent_all = framing.empty
        self._replay: list[bytes] | None = None
        """The body as far as it was read, if the request may be sent again."""
        self._replay_size = 0
        self._transforms: list[BodyTransform] = []
        self._chunked = framing.chunked
        self._started = session.runtime.loop.time()
        self._began = time.perf_counter()
        self._connected: float | None = None
        self._reused = False
        self._first_byte: float | None = None
        self._attempts = 0
        self._bytes_up = 0
        self._bytes_down = 0
        self._switched = (0, 0)
        """The flow's bytes up and down when it became another protocol."""

    def tell(self) -> None:
        """It is over: the `exchange_end` hooks."""
        runtime, record = self.session.runtime, self.session.record
        if not runtime.plugins.implemented("exchange_end"):
            return
        if self.upgraded:
            self._bytes_up += record.bytes_up - self._switched[0]
            self._bytes_down += record.bytes_down - self._switched[1]
        failure = self.failure
        report = ExchangeReport(
            exchange=self.number,
            destination=self.destination,
            method=self.head.method,
            target=shown(self.target),
            status=self.status,
            bytes_up=self._bytes_up,
            bytes_down=self._bytes_down,
            started=self._started,
            first_byte=self._first_byte,
            seconds=time.perf_counter() - self._began,
            error="" if failure is None else _why(failure),
            denied_rule=shown(failure.rule) if isinstance(failure, Denied) else "",
            attempts=self._attempts,
            upgraded=self.upgraded,
            began=self._began,
            connected=self._connected,
            reused=self._reused,
        )
        runtime.plugins.exchange_end(self.session.agent, report)

    async def run(self) -> bool:
        """Whether the flow can carry another request. Errors as raised by hooks and connections; ProtocolError."""
        self.head.headers.strip_hop_by_hop()
        for retry in (True, False):
            self._attempts += 1
            upstream = await self.session.connect(self.destination, self.tls, linger=LINGER)
            self._connected = time.perf_counter() - self._began
            if retry:  # a request is counted once
                self.session.runtime.connected(self.session.agent, self._connected)
            self._reused = upstream.reused
            try:
                head = self.session.use.head = self.head
                request = RequestHead(head.method, head.target, head.headers.copy(), head.version, exchange=self.number)
                request.upgrade = self._upgrade
                try:
                    await self.session.runtime.plugins.request(self.session.agent, self.destination, request, upstream.tls)
                except BaseException:
                    upstream.release(reusable=True)  # nothing was sent on it
                    raise
                return await self._run(upstream, request)
            except _Stale:
                self.session.count("http_stale_connections")
                if not retry:
                    break
            finally:
                self.session.use.head = None
                await self._stop_pump()
                upstream.release()
        raise UpstreamError("the server closed the connection before it answered")

    def _wanted_upgrade(self) -> str | None:
        """The protocol to switch to, if the request asks for one that can be relayed. HTTP/2 cannot."""
        headers = self.head.headers
        tokens = headers.tokens("upgrade")
        if len(tokens) != 1 or "upgrade" not in headers.tokens("connection"):
            return None
        if not self.framing.empty or self.head.version != "1.1":
            return None
        return None if tokens[0].startswith("h2") else tokens[0]

    async def _run(self, upstream: Upstream, request: RequestHead) -> bool:
        if self._replay is not None:  # this is the second attempt, and the last one
            body = b"".join(self._replay) + self._buffered_body()
            self._replay = None
        else:
            if upstream.reused and self._may_replay(upstream):
                self._replay = []
            body = self._kept(self._buffered_body())
        out = self._encode_request(request) + await self._encode_body(body)
        try:
            await upstream.send(out)
            self._sent_all = self.body.done
        except (OSError, UpstreamError):  # it may have answered and closed: reading tells
            self._sent_all = False
        else:
            if not self.body.done:
                self._pump = asyncio.get_running_loop().create_task(self._send_body(upstream))
        del body, out  # the answer may take minutes
        async with self.session.until_closed():
            response, rest = await self._read_response_head(upstream, request)
            if response.status != 101:
                return await self._relay_response(upstream, request, response, rest)
        self.answered = self.upgraded = True
        self.status = 101
        await self.session.send(response.encode())
        self._switched = (self.session.record.bytes_up - len(self.session.buffer), self.session.record.bytes_down)
        await relay_raw(self.session, upstream, rest or None, response.transforms)
        return False

    def _encode_request(self, request: RequestHead) -> bytes:
        headers = request.headers
        headers.remove(*_FRAMING)
        headers.set("Host", self.destination.authority)
        self._transforms = [] if self.framing.empty else request.transforms
        if not all(getattr(each, "same_length", False) for each in self._transforms):
            self._chunked = True
        if self._chunked:
            headers.remove("content-length")
            headers.set("Transfer-Encoding", "chunked")
        elif self.framing.length or "content-length" in self.head.headers:
            headers.set("Content-Length", str(self.framing.length))
        else:
            headers.remove("content-length")
        if self._upgrade is not None and request.upgrade is not None:
            headers.set("Connection", "Upgrade")
            headers.set("Upgrade", self._upgrade)
        try:
            return request.encode()
        except ValueError as error:
            raise HookError("?", "request", str(error)) from None

    # -- the request's body

    def _buffered_body(self) -> bytes:
        """What of the body has been read already, decoded."""
        session = self.session
        if self.body.done or not session.buffer:
            return b""
        piece = self.body.feed(session.take(len(session.buffer)))
        self._bytes_up += len(piece)
        if self.body.done:
            session.buffer[:0] = self.body.leftover
        return piece

    async def _encode_body(self, piece: bytes) -> bytes:
        """What to send for the next piece: all of its parts together, other agents' turns in between."""
        if self._transforms and (piece or self.body.done):
            made: list[bytes] = []
            try:
                for part, _ in transformed(self._transforms, piece, self.body.done):
                    if made:
                        await asyncio.sleep(0)
                    made.append(part)
            except AgentfwError:
                raise
            except Exception as error:
                raise HookError("?", "request", type(error).__name__) from error
            piece = b"".join(made)
        if not self._chunked:
            return piece
        return encode_chunk(piece) + (LAST_CHUNK if self.body.done else b"")

    def _kept(self, piece: bytes) -> bytes:
        """`piece`, remembered for a second attempt if there may be one."""
        if self._replay is not None and piece:
            self._replay.append(piece)
            self._replay_size += len(piece)
            if self._replay_size > MAX_REPLAY:
                self._replay = None
        return piece

    def _may_replay(self, upstream: Upstream) -> bool:
        ask = getattr(upstream, "replayable", None)  # PERF: isinstance() of a Protocol takes 5 us
        if ask is not None:
            return bool(ask(self.head.method))
        return self.head.method in _REPLAYABLE and self.framing.empty

    async def _send_body(self, upstream: Upstream) -> None:
        """The rest of the body as it comes. ProtocolError if the guest breaks it off or garbles it."""
        while not self.body.done:
            if not self.session.buffer and not await self.session.fill():
                self.body.end()
            out = await self._encode_body(self._kept(self._buffered_body()))
            if out:
                try:
                    await upstream.send(out)
                except (OSError, UpstreamError):  # as above
                    return
        self._sent_all = True

    async def _stop_pump(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
            self._pump = None

    # -- the response

    async def _receive(self, upstream: Upstream) -> bytes:
        """More bytes of the response; b"" at its stream's end. Raises what went wrong with the request's body meanwhile."""
        pump = self._pump
        if pump is None or pump.done():
            if pump is not None:
                pump.result()
            return await upstream.receive()
        receiving = asyncio.get_running_loop().create_task(upstream.receive())
        try:
            await asyncio.wait([receiving, pump], return_when=asyncio.FIRST_COMPLETED)
            if pump.done():
                pump.result()
            return await receiving
        finally:
            receiving.cancel()

    async def _read_response_head(self, upstream: Upstream, request: RequestHead) -> tuple[ResponseHead, bytes]:
        """The final head (or that of the switch to another protocol) and the bytes behind it. Passes 1xx on."""
        buffer = b""
        seen = interim = 0
        while True:
            end = find_response_head_end(buffer, seen)
            if end < 0:
                seen = len(buffer)
                try:
                    data = await self._receive(upstream)
                except OSError as error:
                    if not buffer and not interim:
                        self._check_stale(upstream)
                    raise UpstreamError(f"connection to {self.destination} failed: {error.strerror or error}") from error
                if not data:
                    if not buffer and not interim:
                        self._check_stale(upstream)
                    raise UpstreamError(f"{self.destination} closed the connection before it answered")
                self._replay = None  # there will be no second attempt
                buffer += data
                continue
            head = parse_response(buffer[:end])
            buffer, seen = buffer[end:], 0
            if head.status >= 200 or head.status == 101:
                self._first_byte = time.perf_counter() - self._began
            if head.status >= 200:
                return head, buffer
            interim += 1
            if interim > MAX_INTERIM:
                raise ProtocolError("too many interim responses", 502)
            connection = head.headers.tokens("connection")
            protocol = head.headers.tokens("upgrade")
            head.headers.strip_hop_by_hop()
            head.headers.remove("content-length")
            if head.status == 101:
                if self._upgrade is None or request.upgrade is None or protocol != [self._upgrade] or "upgrade" not in connection:
                    raise ProtocolError("a switch of protocols that was not asked for", 502)
                await self._hook_response(request, head)
                head.headers.set("Connection", "Upgrade")
                head.headers.set("Upgrade", self._upgrade)
                return head, buffer
            head.headers, head.reason = Headers(), _INTERIM.get(head.status, "")  # no response() hook has seen them
            if self.head.version == "1.1" and (head.status != 100 or self._expects):
                await self.session.send(head.encode())

    def _check_stale(self, upstream: Upstream) -> None:
        """Not a byte of the response came: _Stale if the request may be sent once more."""
        if self._replay is not None and upstream.reused and (not isinstance(upstream, Replayable) or upstream.claim_retry()):
            raise _Stale

    async def _hook_response(self, request: RequestHead, head: ResponseHead) -> None:
        await self.session.runtime.plugins.response(self.session.agent, self.destination, request, head)

    async def _relay_response(self, upstream: Upstream, request: RequestHead, head: ResponseHead, data: bytes) -> bool:
        framing = response_framing(head, request.method)
        reusable = head.version == "1.1" and "close" not in head.headers.tokens("connection") and not _binds(request)
        delimited = framing.chunked or framing.length is not None
        lengths = head.headers.get_all("content-length")
        head.headers.strip_hop_by_hop()
        await self._hook_response(request, head)
        writer = BodyWriter(head, framing, lengths, self.head)
        keep = self.keep and writer.delimited and self.body.done
        if self._pump is not None and not self._pump.done():
            keep = False  # answered before it had read the request: what it makes of the rest is its own affair
        if not keep:
            head.headers.set("Connection", "close")
        body = BodyReader(framing, 502)
        try:
            out = head.encode()
        except ValueError as error:
            raise HookError("?", "response", str(error)) from None
        self.status = head.status
        while True:
            piece = body.feed(data) if data or body.done else b""
            self._bytes_down += len(piece)
            if body.done:
                self._release(upstream, body, reusable and delimited)
            await self._send_parts(writer, piece, body.done, out)
            if body.done:
                break
            try:
                data = await self._receive(upstream)
            except OSError as error:
                raise UpstreamError(f"connection to {self.destination} failed: {error.strerror or error}") from error
            out = b""
            if not data:
                body.end()
                upstream.release()
                await self._send_parts(writer, b"", True, b"")
                break
        self.session.count("http_responses")
        return keep and self.body.done

    async def _send_parts(self, writer: BodyWriter, piece: bytes, last: bool, out: bytes) -> None:
        """`out`, and behind it what becomes of `piece`: each part when the one before is gone, other agents' turns in between."""
        for number, part in enumerate(writer.write(piece, last)):
            if number:
                await asyncio.sleep(0)
            out += part
            if out:
                await self.session.send(out)  # Denied here, at the head: it can still be told
                self.answered = True
                out = b""

    def _release(self, upstream: Upstream, body: BodyReader, reusable: bool) -> None:
        """The response is complete: the next may have the connection, unless something was left on it."""
        if body.leftover:
            self.session.count("http_extra_bytes")
            log.warning("%s sent %d bytes behind its response; connection closed", self.destination, len(body.leftover))
        upstream.release(reusable=reusable and not body.leftover and self._sent_all)


def _why(failure: BaseException) -> str:
    """For a report. Messages of unexpected exceptions may quote a header."""
    if isinstance(failure, (GuestGone, BrokenPipeError)):
        return "the agent closed the connection"
    if isinstance(failure, asyncio.CancelledError):
        return "cancelled"
    return describe(failure) if isinstance(failure, (AgentfwError, OSError)) else type(failure).__name__


def _binds(request: RequestHead) -> bool:
    """It may have authenticated the connection itself (RFC 4559, MS-NTHT): whatever comes next on it would be in its name."""
    values = request.headers.get_all("authorization")
    return any(value.partition(" ")[0].lower() in ("ntlm", "negotiate") for value in values)


class BodyWriter:
    """Frames a response's body for the guest; sets the head's framing fields accordingly."""

    def __init__(self, head: ResponseHead, framing: Framing, lengths: list[str], request: RequestHead) -> None:
        self._transforms: list[BodyTransform] = head.transforms if framing is not NO_BODY else []
        self._observers: list[BodyObserver] = list(head.observers) if framing is not NO_BODY else []
        self._chunked = False
        self.delimited = True
        """The guest can tell where the body ends."""
        headers = head.headers
        headers.remove(*_FRAMING)
        if framing is NO_BODY:
            if head.status == 204 or len(lengths) != 1 or not lengths[0].isdigit():
                headers.remove("content-length")
            else:  # of what GET would have got
                headers.set("Content-Length", lengths[0])
        elif framing.length is not None and all(getattr(each, "same_length", False) for each in self._transforms):
            headers.set("Content-Length", str(framing.length))
        else:
            headers.remove("content-length")
            self._chunked = self.delimited = request.version == "1.1"
            if self._chunked:
                headers.set("Transfer-Encoding", "chunked")

    def write(self, piece: bytes, last: bool) -> Iterator[bytes]:
        """What to send for the next piece of the body, in one part or several."""
        for part, end in transformed(self._transforms, piece, last):
            if self._observers and (part or end):
                self._show(part, end)
            yield encode_chunk(part) + (LAST_CHUNK if end else b"") if self._chunked else part

    def _show(self, piece: bytes, last: bool) -> None:
        for observer in tuple(self._observers):
            try:
                observer(piece, last)
            except Exception as error:  # its message may quote the body
                self._observers.remove(observer)
                log.error("an observer of a response failed: %s", type(error).__name__)


def find_response_head_end(buffer: bytes, seen: int = 0) -> int:
    """As `find_head_end`, with the error that an upstream's mistake is."""
    try:
        return find_head_end(buffer, seen=seen)
    except ProtocolError as error:
        raise ProtocolError(f"bad response: {error}", 502) from None
