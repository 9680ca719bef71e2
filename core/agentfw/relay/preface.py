"""The TLS offload's handshake: a preface from the guest's `_ssl`, an answer from us, then plaintext (docs/internals.md)."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import msgspec

from ..errors import AgentfwError, Denied, HookError, ProtocolError, TlsError
from ..upstream import TlsInfo

MAGIC = b"\0AFWTLS1"
MAX_LENGTH = 65536


class Preface(msgspec.Struct, forbid_unknown_fields=False, frozen=True):
    """What the agent's SSLContext and SSLObject say."""

    server_name: Annotated[str, msgspec.Meta(max_length=512)] | None
    alpn: Annotated[list[Annotated[str, msgspec.Meta(max_length=255)]], msgspec.Meta(max_length=32)] = []
    verify: Annotated[int, msgspec.Meta(ge=0, le=2)] = 2
    check_hostname: bool = True
    cas: list[str] = []
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
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ProtocolError("the TLS preface is malformed") from None


def accepted(info: TlsInfo) -> bytes:
    """The answer: this was negotiated."""
    return _frame(
        {
            "ok": True,
            "version": info.version,
            "cipher": list(info.cipher),
            "alpn": info.alpn,
            "cert": base64.b64encode(info.certificate).decode(),
        }
    )


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
    return _frame({"ok": False, "verify_code": 0, "verify_message": "", "reason": reason, "message": message})


def _frame(answer: dict[str, object]) -> bytes:
    body = msgspec.json.encode(answer)
    return MAGIC + len(body).to_bytes(4) + body
