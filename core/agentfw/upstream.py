"""A leased connection to the outside, as `connect` hooks give it and the relay uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from .destination import Destination


@dataclass(frozen=True, slots=True)
class TlsRequest:
    """What the agent asked for in its TLS preface (docs/internals.md), plus what the core makes of it.

    It can only narrow what the host does: `verify` 0 turns nothing off, `cas` never make a connection `TlsInfo.verified`.
    """

    server_name: str | None
    """SNI and name to verify, normalised; None: the destination is an address. Always equal to destination.host when set."""
    alpn: tuple[str, ...] = ()
    verify: int = 2
    """ssl.VerifyMode of the agent's context: 0 none, 1 optional, 2 required."""
    check_hostname: bool = True
    cas: tuple[bytes, ...] = ()
    """DER certificates the agent loaded beyond the host's. Part of the pool key if they are used at all."""
    public: bool = True
    """The agent trusts public authorities; False: those in `cas` only."""
    minimum: int = 0
    maximum: int = 0
    """TLS versions as ssl.TLSVersion numbers (0x0303 = 1.2, 0x0304 = 1.3), 0: no opinion."""
    probe: bool = False
    """Only what is negotiated is asked for, nothing will be sent: a pool need not take a connection out of anybody's turn for it,
    if it knows the answer from one that is open."""


@dataclass(frozen=True, slots=True)
class TlsInfo:
    """What was negotiated with the real peer."""

    version: str
    cipher: tuple[str, str, int]
    """As ssl.SSLSocket.cipher(): name, protocol, secret bits."""
    alpn: str | None
    certificate: bytes
    """The peer's, DER."""
    verified: bool
    """Chain verified against the *operator's* trust store and the name or address with service-identity. Credentials need it."""
    chain: tuple[bytes, ...] = ()
    """DER, as the peer sent it, its own first; (): not known, and then an agent's choice of authorities does not count."""
    verified_chain: tuple[bytes, ...] = ()
    """DER, the peer's own first, what is trusted last; (): not known."""
    resumed: bool = False
    """It continued a TLS session of an earlier connection."""


class Upstream(Protocol):
    """A connection that one agent may use until `release()`. One reader and one writer task at most."""

    @property
    def destination(self) -> Destination: ...

    @property
    def tls(self) -> TlsInfo | None:
        """None: no TLS on it."""

    @property
    def address(self) -> str:
        """Numeric address really connected to."""

    @property
    def reused(self) -> bool:
        """It has served a lease before, so the peer may have closed it meanwhile."""

    async def send(self, data: bytes) -> None:
        """Returns when it has been handed to the socket (bounded buffering). One call is one datagram on "udp". OSError or
        UpstreamError when the connection is gone."""

    async def receive(self, limit: int = 65536) -> bytes:
        """1..limit bytes (one datagram on "udp"), as soon as there are any; b"" at the peer's end of stream. A TLS stream that
        ends without close_notify raises UpstreamError: it may have been cut."""

    async def send_eof(self) -> None:
        """No more bytes from us (close_notify; shutdown on TCP); receiving goes on. Such a connection is not reusable."""

    def release(self, *, reusable: bool = False) -> None:
        """End of the lease; idempotent, never blocks, never raises.

        `reusable`: the last message exchange ended exactly, so a pool may lend it again *if* nothing is readable on it. Default:
        close it (cancelled, upgraded, close-delimited, leftover bytes, any error)."""


@runtime_checkable
class Replayable(Protocol):
    """What an `Upstream` may have besides: the operator's word on second attempts. Without it GET, HEAD and OPTIONS are sent
    again, and nothing else. There is at most one second attempt, and only if a reused connection turns out to be closed before
    a byte of the response came."""

    def replayable(self, method: str) -> bool:
        """May such a request to this destination be sent again?"""

    def claim_retry(self) -> bool:
        """Another lease for the second attempt follows at once. False: there are too many of these."""
