"""The records of a TLS stream, without their keys (RFC 8446, section 5.1)."""

from __future__ import annotations


class Framing:
    """Follows the records of a TLS stream: OpenSSL keeps the beginning of one to itself, and does not say that it has it."""

    __slots__ = ("_header", "_left")

    def __init__(self) -> None:
        self._header = b""
        self._left = 0

    @property
    def inside_record(self) -> bool:
        """The bytes so far end in the middle of a record."""
        return bool(self._left or self._header)

    def feed(self, data: bytes) -> None:
        at = self._left
        size = len(data)
        if at > size:
            self._left -= size
            return
        header = self._header
        while at < size:
            if header or size - at < 5:
                need = 5 - len(header)
                header += data[at : at + need]
                at += need
                if len(header) < 5:
                    break
                at += header[3] << 8 | header[4]
                header = b""
            else:
                at += 5 + (data[at + 3] << 8 | data[at + 4])
        self._header = header
        self._left = 0 if header else max(0, at - size)
