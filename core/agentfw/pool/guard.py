"""Who may talk to the control API, and how long, how much and how many at once: told before a request is looked at."""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
import logging
import os
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from .jobs import PoolError
from .wire import API_VERSION, VERSION_HEADER, ErrorBody

log = logging.getLogger("agentfw.pool.api")

CONNECTIONS = 8192
"""At once, of each listener: two for each job that a client follows."""
IDLE = 15.0
"""Seconds within which a connection must have sent the head of its next request."""
UNREAD = 2.0
"""Seconds in which the rest of a refused request is read, so that its sender reads why."""
LINGER = 0.5
HEADERS = {"Server": "agentfw", VERSION_HEADER: API_VERSION, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


@dataclass(eq=False)
class Listener:
    """One address that the API is served at. `token` None: a Unix socket, where peers are known by their user."""

    token: bytes | None = None
    names: frozenset[str] = frozenset({"localhost", "agentfw"})
    """Host names that it answers to, beyond numeric addresses over TCP."""
    users: frozenset[int] = field(default_factory=lambda: frozenset({0, os.getuid()}))
    most: int | None = None
    """Connections at once; None: CONNECTIONS."""
    headers: Mapping[str, str] = field(default_factory=lambda: HEADERS)
    """Of each answer that is given before a request is looked at."""
    unread: float | None = None
    """Seconds after which a peer that takes nothing of what is for it is cut off, tcp(7) TCP_USER_TIMEOUT; None: never."""
    head: int = 8190
    """Bytes of a request's line, and of each of its header fields."""
    fields: int = 128
    """Header fields of a request."""
    open: int = 0
    refused: int = 0
    """Connections that are being told that they are not wanted."""
    tell: Callable[[str, PoolError], None] = lambda who, error: None
    """Told of peers that are refused: who, why."""
    unknown: dict[Connection, None] = field(default_factory=dict)
    """Of those that are open: which have not shown who they are. Oldest first."""

    def make_room(self) -> bool:
        """Cut off who is here for the longest time without having shown who it is: whoever may only connect keeps nobody out."""
        if not self.unknown:
            return False
        next(iter(self.unknown)).cut_off()
        return True

    @classmethod
    def tcp(cls, host: str, token: bytes) -> Listener:
        return cls(token, frozenset({"localhost", host.lower(), socket.gethostname().lower()}))

    def check(self, headers: Mapping[str, str], host: str | None) -> None:
        """PoolError for a request that a web page made, and for one without the token."""
        if "Origin" in headers or headers.get("Sec-Fetch-Site", "none") != "none":
            raise PoolError("forbidden", "requests of web pages are refused")
        if not self._answers_to(host or ""):
            raise PoolError("forbidden", "the pool is not known by the name in `Host`", "use `localhost` or a numeric address")
        if self.token is None:
            return
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(errors="replace"), self.token):
            raise PoolError("unauthorized", "no token, or a wrong one", "send `Authorization: Bearer TOKEN`")

    def _answers_to(self, host: str) -> bool:
        """A page that had its name resolve to us says that name."""
        name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        name = (name if port.isdecimal() else host).lower()
        if name in self.names:
            return True
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return self.token is not None


def bind_hint(error: OSError, taken: str) -> str:
    """What to do when `bind_tcp` fails. `taken`: if another one has the port."""
    if isinstance(error, socket.gaierror):
        return "write an address of this machine: 127.0.0.1 is reached from here only, 0.0.0.0 from everywhere"
    return {
        errno.EADDRINUSE: taken,
        errno.EADDRNOTAVAIL: "this machine has no such address: 127.0.0.1 is reached from here only, 0.0.0.0 from everywhere",
        errno.EACCES: "ports below 1024 are root's: name a higher one",
    }.get(error.errno or 0, "name another address")


def bind_tcp(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to all addresses of `host` that this machine has, at one port (0: any that is free); they do not listen yet.
    OSError."""
    made: list[socket.socket] = []
    missing = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            at = made[0].getsockname()[1] if made else port
            try:
                sock = socket.socket(family, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
                made.append(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind((address[0], at, *address[2:]))
            except OSError as error:
                # /etc/hosts has ::1 for localhost where there is no IPv6, too, as in many containers.
                if error.errno == errno.EADDRNOTAVAIL:
                    made.pop().close()
                elif error.errno != errno.EAFNOSUPPORT:
                    raise
                missing = error
        if not made:
            raise missing
    except BaseException:
        for sock in made:
            sock.close()
        raise
    return made


class Connection(RequestHandler):
    """aiohttp's, for peers of ours only, so many at once, and with errors in the API's form."""

    def __init__(self, listener: Listener, manager: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=IDLE,  # also what a head may take to come
            lingering_time=UNREAD,
            auto_decompress=False,  # a kilobyte may become a megabyte
            access_log=None,  # type: ignore[arg-type]
            logger=_Quiet(log),  # type: ignore[arg-type]
            max_line_size=listener.head,
            max_field_size=listener.head,
            max_headers=listener.fields,
        )
        self.listener = listener
        self.who = ""
        """The peer, as `JobEvent.by`."""
        self._served = False
        self._counted = False
        self._refused = False

    def vouch(self) -> None:
        """A request of it may be answered: it is not cut off to make room."""
        self.listener.unknown.pop(self, None)

    def cut_off(self) -> None:
        """It counts no more."""
        self._uncount()
        if self.transport is not None:
            self.transport.abort()

    def _uncount(self) -> None:
        if self._counted:
            self._counted = False
            self.listener.open -= 1
            self.vouch()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        error = None
        user = -1
        if self.listener.token is None:
            process, user = _peer(transport)
            self.who = f"uid {user} pid {process}"
        else:
            self.who = f"token from {(transport.get_extra_info('peername') or ('?',))[0]}"
        if self.listener.token is None and user not in self.listener.users:
            error = PoolError("forbidden", f"this pool serves the user with the id {os.getuid()}, not {user}")
        elif self.listener.open >= (most := self.listener.most or CONNECTIONS) and not self.listener.make_room():
            error = PoolError("unavailable", f"more than {most} connections")
        if error is not None:
            self.listener.tell(self.who, error)
            body = msgspec.json.encode(ErrorBody.of(error))
            status = "403 Forbidden" if error.code == "forbidden" else "503 Service Unavailable"
            fixed = "".join(f"{name}: {value}\r\n" for name, value in self.listener.headers.items())
            head = f"HTTP/1.1 {status}\r\n{fixed}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            transport.write(f"{head}Connection: close\r\n\r\n".encode() + body)  # type: ignore[attr-defined]
            self._turn_away(transport)
            return
        self._served = self._counted = True
        self.listener.open += 1
        if self.listener.token is not None:
            self.listener.unknown[self] = None
        if self.listener.unread is not None and (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self.listener.unread * 1000))
        super().connection_made(transport)

    def _turn_away(self, transport: asyncio.BaseTransport) -> None:
        """It gets a moment to read why: with something unread from it, close() would be a reset."""
        self._force_close = True  # whatever it says is dropped
        if self.listener.refused >= CONNECTIONS:
            transport.close()
            return
        self.listener.refused += 1
        self._refused = True
        transport.write_eof()  # type: ignore[attr-defined]
        self._loop.call_later(LINGER, transport.close)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._refused:
            self._refused = False
            self.listener.refused -= 1
        self._uncount()
        if self._served:
            self._served = False
            super().connection_lost(exc)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What is no HTTP; faults of ours do not come here."""
        if request.writer.output_size > 0:
            raise ConnectionError("in the middle of an answer")
        code = "bad_request" if status < 500 else "internal"
        if status >= 500:
            log.error("a request failed: %s", type(exc).__name__)
        text = "not a request that can be understood" if status < 500 else "an internal error"
        response = web.Response(
            status=status, body=msgspec.json.encode(ErrorBody.of(PoolError(code, text))), content_type="application/json",
            headers=self.listener.headers,
        )  # fmt: skip
        response.force_close()
        return response


class _Quiet:
    """aiohttp logs what peers do wrong with tracebacks: not news, and theirs to fill a disk with."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def __getattr__(self, name: str) -> Callable[..., None]:
        return self._logger.debug


def _peer(transport: asyncio.BaseTransport) -> tuple[int, int]:
    """(process, user) of a Unix socket's other end: as it was when it connected, socket(7) SO_PEERCRED."""
    found = transport.get_extra_info("socket")
    with socket.socket(fileno=os.dup(found.fileno())) as copy:
        data = copy.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, user, _ = struct.unpack("3i", data)
    return int(process), int(user)
