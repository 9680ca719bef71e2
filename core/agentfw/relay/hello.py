"""The server name and application protocols in a ClientHello of an agent that brings its own TLS. Strict: what is
not plainly one host name is refused."""

from __future__ import annotations

from ..errors import ProtocolError

MAX_HELLO = 65536
"""Bytes of records that a ClientHello may take."""
MAX_RECORDS = 64
"""They are looked at again with every piece that comes, so there must not be many tiny ones."""
_SERVER_NAME, _ALPN, _ENCRYPTED_CLIENT_HELLO = 0, 16, 0xFE0D


def client_hello(buffer: bytes | bytearray) -> bytes | None:
    """The ClientHello message's body out of the TLS records at the start of `buffer`; None while it is incomplete.

    ProtocolError if these are not records with a ClientHello first.
    """
    message = bytearray()
    at = 0
    records = 0
    while True:
        if len(message) >= 4:
            if message[0] != 1:
                raise ProtocolError("TLS does not begin with a ClientHello")
            length = int.from_bytes(message[1:4])
            if length > MAX_HELLO:
                raise ProtocolError("the ClientHello is too long")
            if len(message) >= 4 + length:
                return bytes(message[4 : 4 + length])
        if len(buffer) - at < 5:
            return None
        size = int.from_bytes(buffer[at + 3 : at + 5])
        if buffer[at] != 22 or buffer[at + 1] != 3 or not 1 <= size <= 16384 or at > MAX_HELLO:
            raise ProtocolError("not a TLS handshake record")
        if len(buffer) < at + 5 + size:
            return None
        message += buffer[at + 5 : at + 5 + size]
        at += 5 + size
        records += 1
        if records > MAX_RECORDS:
            raise ProtocolError("the ClientHello is in too many pieces")


class _Reader:
    """Takes length-prefixed pieces; ProtocolError beyond the end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, length: int) -> bytes:
        piece = self.data[self.at : self.at + length]
        if len(piece) != length:
            raise ProtocolError("the ClientHello is malformed")
        self.at += length
        return piece

    def vector(self, size: int) -> bytes:
        return self.take(int.from_bytes(self.take(size)))

    @property
    def more(self) -> bool:
        return self.at < len(self.data)


def extensions(hello: bytes) -> dict[int, bytes]:
    """The ClientHello's extensions by number. ProtocolError: malformed, an extension twice."""
    reader = _Reader(hello)
    reader.take(2 + 32)
    reader.vector(1)
    reader.vector(2)
    reader.vector(1)
    if not reader.more:
        return {}
    listed = _Reader(reader.vector(2))
    if reader.more:
        raise ProtocolError("the ClientHello is malformed")
    seen: dict[int, bytes] = {}
    while listed.more:
        kind = int.from_bytes(listed.take(2))
        if kind in seen:
            raise ProtocolError("the ClientHello is malformed")
        seen[kind] = listed.vector(2)
    return seen


def check_open(hello: bytes) -> None:
    """ProtocolError if there is (or seems to be: browsers send such an extension for nothing) an encrypted inner hello, whose
    name is the one that would count for the server."""
    if _ENCRYPTED_CLIENT_HELLO in extensions(hello):
        raise ProtocolError("an encrypted ClientHello hides its destination")


def server_name(hello: bytes) -> str | None:
    """The name as it stands in server_name (not normalised), None if there is no such extension. ProtocolError also if there are
    several names. It is the one that counts if `check_open()` passes, or if the hello goes no further than to us."""
    found = extensions(hello).get(_SERVER_NAME)
    if found is None:
        return None
    outer = _Reader(found)
    names = _Reader(outer.vector(2))
    kind = names.take(1)[0]
    name = names.vector(2)
    if outer.more or names.more or kind != 0:
        raise ProtocolError("the ClientHello names more than one server")
    try:
        return name.decode("ascii")
    except UnicodeDecodeError:
        raise ProtocolError("the server name is not ASCII") from None


def alpn(hello: bytes) -> tuple[str, ...]:
    """The application protocols offered (RFC 7301), in the client's order; () if there is no such extension. ProtocolError."""
    found = extensions(hello).get(_ALPN)
    if found is None:
        return ()
    outer = _Reader(found)
    listed = _Reader(outer.vector(2))
    names = []
    while listed.more:
        names.append(listed.vector(1).decode("latin-1"))
    if outer.more or not all(names) or not names:
        raise ProtocolError("the ClientHello is malformed")
    return tuple(names)
