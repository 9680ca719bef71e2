"""Which TLS never leaves this guest: that is made by the real module, from end to end."""

from __future__ import annotations

import _socket
import errno
import sys
import types
from typing import Any


def local_peer(sock: Any) -> bool | None:
    """Is the other end inside this guest? None: not connected yet."""
    try:
        peer = sock.getpeername()
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.EINVAL):
            return None
        raise
    if not isinstance(peer, tuple):  # AF_UNIX
        return True
    return local_name(peer[0])


def local_name(name: str | None) -> bool:
    """Does a host name or a numeric address mean this guest itself?"""
    if not name or "\0" in name:
        return False
    name = name.lower().rstrip(".")
    if name in ("localhost", "ip6-localhost", "ip6-loopback") or name.endswith(".localhost"):
        return True
    for family in (_socket.AF_INET, _socket.AF_INET6):
        try:
            packed = _socket.inet_pton(family, name.partition("%")[0])
        except OSError:
            continue
        if len(packed) == 16 and packed[:12] == b"\0" * 10 + b"\xff\xff":
            packed = packed[12:]
        return packed[0] == 127 if len(packed) == 4 else packed == b"\0" * 15 + b"\1"
    return False


def caller_is_local() -> bool:
    """Memory BIOs do not say who the peer is. asyncio's protocol and anyio's stream, which make most of them, do: their frame,
    a few calls up, has the transport."""
    frame: types.FrameType | None = sys._getframe(2)
    for _ in range(8):
        if frame is None:
            return False
        for name, attribute in (("self", "_transport"), ("transport_stream", "")):
            holder = frame.f_locals.get(name)
            transport: Any = getattr(holder, attribute, None) if attribute else holder
            try:
                if hasattr(transport, "get_extra_info"):
                    peer = transport.get_extra_info("peername")
                elif hasattr(transport, "extra"):
                    import anyio.abc  # type: ignore[import-not-found,unused-ignore]  # it is there: it called us

                    peer = transport.extra(anyio.abc.SocketAttribute.remote_address, None)
                else:
                    continue
            except Exception:
                continue
            if peer is not None:
                return local_name(peer[0]) if isinstance(peer, tuple) else True
        frame = frame.f_back
    return False
