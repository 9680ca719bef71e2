"""A server's TLS object, until its client has begun: a client in the same guest may ask for the host first.

Memory BIOs do not say who is at their other end, so a client over them asks the host whoever it talks to. A server here answers
that there is none, and the client becomes a real one. From then on the real object is all there is.
"""

from __future__ import annotations

import _ssl as real
import json
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .offload_links import FRAME_MAX, HEAD, MAGIC, BioLink, SocketLink, ssl_error
    from .ssl_offload import Context
else:
    from offload_links import FRAME_MAX, HEAD, MAGIC, ssl_error

_BODY = json.dumps({"ok": False, "native": True, "verify_code": 0, "message": "the server is in this guest"}).encode("ascii")
NOT_HERE = MAGIC + len(_BODY).to_bytes(4, "big") + _BODY


class Server:
    """Stands before `_SSLSocket`, to which everything goes that is not the handshake's beginning."""

    def __init__(self, context: Context, link: SocketLink | BioLink, owner: Any, session: Any) -> None:
        own = self.__dict__
        own["_link"] = link
        own["_owner"] = None if owner is None else weakref.ref(owner)
        own["_real"] = link.really(context, True, None, owner, session)
        own["_in"] = bytearray()
        own["_out"] = b""
        own["_begun"] = False

    def _begin(self) -> None:
        """Returns once the client's TLS begins."""
        own = self.__dict__
        if self._begun:
            return
        link, data = self._link, self._in
        if not self._out and (data or link.first() == b"\0"):  # no TLS begins with it
            self._fill(HEAD)
            size = int.from_bytes(data[len(MAGIC) : HEAD], "big")
            if not data.startswith(MAGIC) or size > FRAME_MAX:
                raise ssl_error(real.SSLError, 1, "wrong version number", "WRONG_VERSION_NUMBER")
            self._fill(HEAD + size)
            own["_out"] = NOT_HERE
        while self._out:
            own["_out"] = self._out[link.send(self._out, "handshake") :]
        own["_begun"] = True
        owner = self._owner() if self._owner is not None else None
        if owner is not None and owner._sslobj is self:
            owner._sslobj = self._real

    def _fill(self, size: int) -> None:
        data = self._in
        while len(data) < size:
            piece = self._link.receive(size - len(data), "handshake")
            if not piece:
                raise ssl_error(real.SSLEOFError, 8, "EOF occurred in violation of protocol", "UNEXPECTED_EOF_WHILE_READING")
            data += piece

    def do_handshake(self) -> Any:
        self._begin()
        return self._real.do_handshake()

    def read(self, *args: Any) -> Any:
        self._begin()
        return self._real.read(*args)

    def write(self, data: Any) -> Any:
        self._begin()
        return self._real.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)


Server.__name__ = Server.__qualname__ = "_SSLSocket"
Server.__module__ = "_ssl"
