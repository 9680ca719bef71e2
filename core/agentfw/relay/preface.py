"""The TLS offload's handshake: a preface from the guest's `_ssl`, an answer from us, then plaintext (docs/internals.md)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from errno import ECONNREFUSED, ECONNRESET, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT
from typing import Annotated

import msgspec

from ..errors import AgentfwError, ConnectError, Denied, HookError, ProtocolError, TlsError
from ..upstream import TlsInfo

MAGIC = b"\0AFWTLS1"
MAX_LENGTH = 65536
_BEGINS, _ENDS = b'{"server_name":', b"}"
_BEFORE = 4096
_CONNECTING = frozenset({ECONNREFUSED, ECONNRESET, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT})
"""What a native program's connect() would have failed with."""


class Preface(msgspec.Struct, forbid_unknown_fields=False, frozen=True):
    """What the agent's SSLContext and SSLObject say."""

    server_name: Annotated[str, msgspec.Meta(max_length=512)] | None
    alpn: Annotated[list[Annotated[str, msgspec.Meta(max_length=255)]], msgspec.Meta(max_length=32)] = []
    verify: Annotated[int, msgspec.Meta(ge=0, le=2)] = 2
    check_hostname: bool = True
    cas: list[str] = []
    public: bool = True
    min: Annotated[int, msgspec.Meta(ge=-0xFFFF, le=0xFFFF)] = 0
    max: Annotated[int, msgspec.Meta(ge=-0xFFFF, le=0xFFFF)] = 0

    def certificates(self) -> tuple[bytes, ...]:
        """`cas` as DER. ProtocolError if it is not base64."""
        try:
            return tuple(base64.b64decode(ca, validate=True) for ca in self.cas)
        except (binascii.Error, ValueError):
            raise ProtocolError("the TLS preface is malformed") from None


_decoder = msgspec.json.Decoder(Preface)


def preface_length(buffer: bytes | bytearray) -> int | None:
    """Bytes of the preface at the start of `buffer`, None while that is not known. ProtocolError if it is too long."""
    if len(buffer) < len(MAGIC) + 4:
        return None
    length = int.from_bytes(buffer[len(MAGIC) : len(MAGIC) + 4])
    if length > MAX_LENGTH:
        raise ProtocolError("the TLS preface is too long")
    return len(MAGIC) + 4 + length


def parse_preface(data: bytes) -> Preface:
    """All of `preface_length()` bytes."""
    try:
        return _decoder.decode(data[len(MAGIC) + 4 :])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # the last: nested too deeply
        raise ProtocolError("the TLS preface is malformed") from None


def accepted(info: TlsInfo, *, resumed: bool = False) -> bytes:
    """The answer: this was negotiated. `resumed`: what an earlier connection began was of use."""
    place = {der: number for number, der in enumerate(info.chain)}
    return _frame(
        {
            "ok": True,
            "version": info.version,
            "cipher": list(info.cipher),
            "alpn": info.alpn,
            "cert": base64.b64encode(info.certificate).decode(),
            "chain": [base64.b64encode(der).decode() for der in info.chain[1:]],
            "verified": [place[der] if der in place else base64.b64encode(der).decode() for der in info.verified_chain],
            "resumed": resumed,
        }
    )


def declined() -> bytes:
    """The answer: the client has to make its TLS itself, over what this connection already carries."""
    return _frame({"ok": False, "native": True, "verify_code": 0, "verify_message": "", "reason": "", "message": "not here"})


def late(buffer: bytes | bytearray) -> int:
    """Where in a piece of a stream that is already relayed a preface seems to begin, -1 if nowhere.

    Nothing follows a preface, so a piece either ends with it or, if the ring had no room for all of it, has little before it:
    looking at every byte of what is relayed would cost as much as relaying it.
    """
    end = len(buffer) if buffer.endswith(_ENDS) else _BEFORE + len(MAGIC)
    at = buffer.find(MAGIC, 0, end)
    while at >= 0:
        size = at + len(MAGIC)
        if buffer.startswith(_BEGINS, size + 4) and int.from_bytes(buffer[size : size + 4]) <= MAX_LENGTH:
            return at
        at = buffer.find(MAGIC, at + 1, end)
    return -1


def refused(error: AgentfwError) -> bytes:
    """The answer: there is no TLS session, and why."""
    if isinstance(error, TlsError):
        return _frame(
            {
                "ok": False,
                "verify_code": error.verify_code,
                "verify_message": error.verify_message,
                "reason": error.reason or "SSL_ERROR",
                "message": str(error),
            }
        )
    reason = "AGENTFW_PLUGIN_FAILED" if isinstance(error, HookError) else "AGENTFW_UPSTREAM"
    if isinstance(error, Denied):
        reason = "AGENTFW_DENIED"
    message = f"{error} [{error.plugin}]" if isinstance(error, Denied) else str(error)
    answer: dict[str, object] = {"ok": False, "verify_code": 0, "verify_message": "", "reason": reason, "message": message}
    if isinstance(error, ConnectError) and error.errno in _CONNECTING:
        answer["errno"] = error.errno
    return _frame(answer)


def _frame(answer: Mapping[str, object]) -> bytes:
    body = msgspec.json.encode(answer)
    return MAGIC + len(body).to_bytes(4) + body
