"""A snapshot as a single file, for another machine.

    "agentfw-snapshot"  16 bytes
    version, length     two u32, little-endian: 1, and bytes of what follows
    JSON                {"name": ..., "manifest": {...}}
    SHA-256             32 bytes, of all so far
    zlib stream         the snapshot's file, and nothing behind it

The same snapshot gives the same bytes. Whoever made an archive may be anybody: nothing is believed that was not counted and
digested here.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from typing import BinaryIO

import msgspec

from .manifests import Manifest
from .snapshot_library import NAME, Named
from .snapshots import TemplateError

MAGIC = b"agentfw-snapshot"
VERSION = 1
HEAD_MAX = 8 << 20
_NUMBERS = struct.Struct("<II")
_PIECE = 1 << 20
_BLOCK = 1 << 16
_LEVEL = 6
_ZERO = bytes(_BLOCK)


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    manifest: msgspec.Raw


def write_archive(named: Named, out: BinaryIO) -> None:
    """TemplateError: the snapshot is not what its digest says; OSError."""
    body = msgspec.json.encode(_Head(named.name, msgspec.Raw(named.manifest.json())))
    head = MAGIC + _NUMBERS.pack(VERSION, len(body)) + body
    out.write(head + hashlib.sha256(head).digest())
    packer = zlib.compressobj(_LEVEL)
    digest = hashlib.sha256()
    with named.path.open("rb") as file:
        while data := file.read(_PIECE):
            digest.update(data)
            out.write(packer.compress(data))
    out.write(packer.flush())
    if digest.hexdigest() != named.manifest.digest:
        raise TemplateError(f"the snapshot `{named.name}` is damaged: its content is not that of its digest")


def read_head(source: BinaryIO) -> tuple[str, Manifest]:
    """Name and manifest of the archive that begins here. TemplateError with what is wrong."""
    first = _exactly(source, len(MAGIC) + _NUMBERS.size)
    if first[: len(MAGIC)] != MAGIC:
        raise TemplateError("this is no archive of a snapshot (`agentfw snapshot export` makes one)")
    version, size = _NUMBERS.unpack(first[len(MAGIC) :])
    if version != VERSION:
        raise TemplateError(f"the archive is of version {version}; this agentfw reads {VERSION}")
    if size > HEAD_MAX:
        raise TemplateError(f"the archive is damaged: a manifest of {size} bytes")
    body = _exactly(source, size)
    if _exactly(source, 32) != hashlib.sha256(first + body).digest():
        raise TemplateError("the archive is damaged: the digest of its manifest is another")
    try:
        head = msgspec.json.decode(body, type=_Head)
        manifest = Manifest.parse(bytes(head.manifest))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TemplateError(f"the archive is damaged: {str(error)[:200]}") from None
    except ValueError as error:
        raise TemplateError(f"the archive cannot be used: {error}") from None
    if not NAME.match(head.name):
        raise TemplateError("the archive cannot be used: a bad name")
    return head.name, manifest


def unpack(source: BinaryIO, manifest: Manifest, out: BinaryIO) -> None:
    """The snapshot's file, from behind the head, into `out` (an empty file; zeros become holes). TemplateError: it is not what
    the manifest says; no more than that is written whatever the archive holds."""
    free = os.statvfs(out.fileno())
    unpacker = zlib.decompressobj()
    digest = hashlib.sha256()
    size = taken = 0
    while not unpacker.eof:
        data = unpacker.unconsumed_tail or source.read(_PIECE)
        try:
            piece = unpacker.decompress(data, _PIECE)
        except zlib.error:
            raise TemplateError("the archive is damaged: it cannot be decompressed") from None
        if not data and not piece and not unpacker.eof:
            raise TemplateError("the archive is damaged: it ends too early")
        digest.update(piece)
        size += len(piece)
        if size > manifest.size:
            raise TemplateError(f"the archive is damaged: it holds more than the {manifest.size} bytes that it tells")
        for at in range(0, len(piece), _BLOCK):
            block = piece[at : at + _BLOCK]
            if block == _ZERO[: len(block)]:
                out.seek(len(block), os.SEEK_CUR)
                continue
            taken += len(block)
            if taken > free.f_bavail * free.f_frsize:
                raise TemplateError("there is not room enough on the disk for the snapshot")
            out.write(block)
    if unpacker.unused_data or source.read(1):
        raise TemplateError("the archive is damaged: something follows the snapshot")
    if size != manifest.size:
        raise TemplateError(f"the archive is damaged: {size} bytes of {manifest.size}")
    if digest.hexdigest() != manifest.digest:
        raise TemplateError("the archive is damaged: its content is not that of its digest")
    out.truncate(size)
    out.flush()


def _exactly(source: BinaryIO, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = source.read(size - len(data))
        if not part:
            raise TemplateError("the archive is damaged: it ends too early" if data else "the archive is empty")
        data += part
    return data
