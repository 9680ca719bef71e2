"""The page's files, read once: what is not among them when the server starts is never served, whatever a request's path says."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
MAX_BYTES = 16 << 20
"""Of all files together."""


@dataclass(frozen=True, slots=True)
class File:
    data: bytes
    kind: str
    tag: str
    """Its entity tag, RFC 9110 section 8.8.3."""


def load(directory: Path) -> dict[str, File]:
    """By path below `directory`, as in "charts/plot.js". Symlinks, dotfiles and kinds that a page has no use for are left out."""
    found: dict[str, File] = {}
    size = 0
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory)
        kind = TYPES.get(path.suffix)
        if kind is None or path.is_symlink() or not path.is_file() or any(part.startswith(".") for part in name.parts):
            continue
        data = path.read_bytes()
        size += len(data)
        if size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES >> 20} MiB of files in {directory}")
        found[name.as_posix()] = File(data, kind, f'"{hashlib.sha256(data).hexdigest()[:32]}"')
    return found
