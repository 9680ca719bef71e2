"""The job as it comes to a VM (docs/internals.md, "Job stream")."""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable
from typing import Any

FRAME_MAX = 1 << 29
"""Bytes of the job; its code and arguments are in it, each character in up to six bytes."""


class Stream:
    """What the worker sends, by frames and files."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.data = b""

    def some(self, size: int) -> bytes:
        """1..size bytes."""
        if self.data:
            part, self.data = self.data[:size], self.data[size:]
        else:
            part = os.read(self.descriptor, min(size, 1 << 16))
        if not part:
            os._exit(125)  # the worker changed its mind: nobody waits for this VM
        return part

    def take(self, size: int) -> bytes:
        parts = []
        while size:
            parts.append(self.some(size))
            size -= len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def job(self, ahead: Callable[[], object] = dict) -> dict[str, Any]:
        """Marshalled, not JSON: it is read by a single call that touches little of the heap. An empty one may come before it."""
        self.data = os.read(self.descriptor, 8192)  # mostly all of it
        size = int.from_bytes(self.take(4), "little")
        if not size:
            ahead()
            self.data = self.data or os.read(self.descriptor, 8192)
            size = int.from_bytes(self.take(4), "little")
        if size > FRAME_MAX:
            os._exit(125)
        job: dict[str, Any] = marshal.loads(self.take(size))
        return job

    def say(self, text: bytes) -> None:
        """A frame of JSON."""
        data = len(text).to_bytes(4, "little") + text
        try:
            while data:
                data = data[os.write(self.descriptor, data) :]
        except BrokenPipeError:
            os._exit(125)


def lay(stream: Stream, files: list[tuple[str, int]], wanted: str | None = None) -> bytes | None:
    """The job's files, whose contents follow it on the stream, into the working directory; -> that of `wanted`. ValueError
    says which cannot be laid."""
    made = set()
    found = None
    for path, size in files:
        above, _, name = path.rpartition("/")
        try:
            if not name or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
                raise ValueError("it is no relative path")
            if above and above not in made:
                os.makedirs(above, exist_ok=True)
                made.add(above)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            kept = []
            while size:
                part = stream.some(size)
                size -= len(part)
                if path == wanted:
                    kept.append(part)
                while part:
                    part = part[os.write(file, part) :]
            os.close(file)
        except (OSError, ValueError) as error:
            raise ValueError(f"the job's file {path!r} cannot be laid: {error}") from None
        if path == wanted:
            found = b"".join(kept)
    return found
