"""HTTP/1 between a guest and its upstreams, one request at a time.

Each request's head is parsed from a private copy, checked, and served as an `Exchange`; errors are answered here. Requests on
one flow are served in order (pipelined ones wait in the ring), all for one destination. What a peer leaves ambiguous ends the
connection.
"""

from __future__ import annotations

import logging
import math
import re

import msgspec

from ..destination import Destination, parse_authority
from ..errors import AgentfwError, Denied, DestinationError, HookError, Overloaded, ProtocolError, UpstreamError
from ..http1 import RequestHead, find_head_end, parse_request, request_framing
from ..upstream import TlsRequest
from .exchange import Exchange
from .named import also_named
from .session import Session

_ABSOLUTE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)\Z")
_REASONS = {400: "Bad Request", 403: "Forbidden", 417: "Expectation Failed", 431: "Request Header Fields Too Large",
            405: "Method Not Allowed", 429: "Too Many Requests", 501: "Not Implemented", 502: "Bad Gateway",
            503: "Service Unavailable", 505: "HTTP Version Not Supported"}  # fmt: skip

log = logging.getLogger("agentfw.relay")


class HttpRelay:
    """The HTTP/1 requests of one flow. `destination` None (plain HTTP): the first request's Host says which of the names that the
    agent may mean by the flow's address it is."""

    def __init__(self, session: Session, destination: Destination | None, tls: TlsRequest | None) -> None:
        self.session = session
        self.tls = tls
        self._destination = destination
        self._scheme = "https" if tls is not None else "http"

    async def run(self) -> None:
        """Until one side ends the connection. GuestGone if the guest went away amid a response."""
        session = self.session
        while True:
            try:
                data = await self._read_head()
                if data is None:
                    break
                head = parse_request(data)
                destination = await self._whom(head)
                self._whom_target(head, destination)
                framing = request_framing(head)
                session.aim(destination)
            except (ProtocolError, DestinationError) as error:
                session.count("http_bad_requests")
                await self._answer_error(error, False, "")
                break
            except (Denied, HookError) as error:
                await self._answer_error(error, False, "")
                break
            self._destination = session.record.destination = destination
            session.count("http_requests")
            exchange = Exchange(self.session, destination, self.tls, head, framing)
            try:
                keep = await self._serve(exchange)
            except BaseException as error:
                exchange.failure = exchange.failure or session.use.refused or error
                raise
            finally:
                exchange.tell()
            if keep is None:
                return
            if exchange.upgraded or not keep:
                break
        if not session.closed:
            session.flow.send_eof()

    async def _serve(self, exchange: Exchange) -> bool | None:
        """Whether the flow can carry another request; None: it was reset."""
        session, head = self.session, exchange.head
        try:
            return await exchange.run()
        except (Denied, HookError, UpstreamError, ProtocolError) as error:
            exchange.failure = error
            if exchange.answered:  # the guest must not take what it has for the whole
                log.info("%s: %s %s: %s", session.agent.name, head.method, exchange.destination, error)
                session.runtime.note(session.agent, exchange.destination, error, method=head.method, target=head.target)
                session.count("http_broken_responses")
                session.flow.reset()
                return None
            keep = exchange.keep and exchange.body.done
            exchange.status = await self._answer_error(error, keep, head.method, head.target)
            return keep

    async def _read_head(self) -> bytes | None:
        """One head; None at the guest's end (also in the middle of a head: there is nobody to answer)."""
        session = self.session
        seen = 0
        while True:
            if session.buffer:
                end = find_head_end(session.buffer, seen=seen)
                if end >= 0:
                    return session.take(end)
                seen = len(session.buffer)
            if not await session.fill():
                return None

    async def _whom(self, head: RequestHead) -> Destination:
        """The request's destination, out of everything in it that names one. ProtocolError unless all name this connection's."""
        named = head.headers.get_all("host")
        if len(named) > 1 or (not named and head.version != "1.0"):
            raise ProtocolError("not exactly one Host")
        absolute = _ABSOLUTE.match(head.target)
        if absolute is not None:
            if absolute[1].lower() != self._scheme:
                raise ProtocolError("the request names another scheme than this connection")
            named.append(absolute[2])
        destination = self._destination
        for text in named:
            host, port = parse_authority(text, 0)
            if destination is None and host in self.session.hosts:
                destination = Destination("http", host, self.session.flow.port)
            if destination is None or host != destination.host or (port or destination.port) != destination.port:
                raise ProtocolError("the request names another host than this connection")
        destination = destination or await self.session.permitted("http")
        for text in also_named(head.headers):
            host, port = parse_authority(text, 0)
            if host != destination.host or (port or destination.port) != destination.port:
                raise ProtocolError("the request names another host than this connection, in a header that some servers believe")
        return destination

    def _whom_target(self, head: RequestHead, destination: Destination) -> None:
        """Make the target origin-form; refuse the other forms."""
        absolute = _ABSOLUTE.match(head.target)
        if absolute is not None:
            head.target = absolute[3] if absolute[3].startswith("/") else "/" + absolute[3]
        if head.method.upper() == "CONNECT":
            raise ProtocolError("CONNECT is not for this connection", 405)
        if "#" in head.target or not (head.target.startswith("/") or (head.target == "*" and head.method == "OPTIONS")):
            raise ProtocolError("bad request target")
        expected = head.headers.tokens("expect")
        if expected and expected != ["100-continue"]:
            raise ProtocolError("only 100-continue can be expected", 417)

    async def _answer_error(self, error: AgentfwError, keep: bool, method: str, target: str = "") -> int:
        """An error as JSON, of one shape for all causes. -> the status sent"""
        session = self.session
        session.runtime.note(session.agent, self._destination, error, method=method, target=target, address=session.address)
        about: dict[str, str] = {"type": "agentfw_upstream_failed", "message": str(error), "agent": session.agent.name}
        status = 502
        retry_after: float | None = None
        if isinstance(error, Denied):
            status, retry_after = error.status, error.retry_after
            about.update(type="agentfw_denied", rule=error.rule, plugin=error.plugin)
            session.count("http_denied")
            log.info("%s: %s: %s [%s]", session.agent.name, self._destination, error, error.plugin, extra={"denied": True})
        elif isinstance(error, HookError):
            about.update(type="agentfw_plugin_failed", plugin=error.plugin, hook=error.hook, message="a plugin failed")
            session.count("http_plugin_failures")
            session.runtime.plugins.failures.tell(log, error, "%s: %s: %s", session.agent.name, self._destination, error)
        elif isinstance(error, DestinationError) or (isinstance(error, ProtocolError) and error.status != 502):
            status = getattr(error, "status", 400)
            about.update(type="agentfw_bad_request")
        else:
            if isinstance(error, Overloaded):
                status, retry_after = 503, error.retry_after
            session.count("http_upstream_failures")
            log.info("%s: %s: %s", session.agent.name, self._destination, error)
        body = msgspec.json.encode({"error": about})
        lines = [
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *(() if retry_after is None else (f"Retry-After: {max(1, math.ceil(retry_after))}",)),
            *(() if keep else ("Connection: close",)),
        ]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        await session.tell(head if method == "HEAD" else head + body)
        return status
