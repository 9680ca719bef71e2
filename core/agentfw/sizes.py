"""Sizes as people write them: "512M", "2G", "8 GiB"."""

from __future__ import annotations

import re

VM_MEMORY = 512 << 20
"""Of a VM, where nobody says otherwise."""
VM_MEMORY_RANGE = (96 << 20, 14 << 30)

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int | None:
    """Bytes (of 1024s); None: it is no size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    # More digits than any memory has become infinity, and that is no int.
    return int(min(float(match[1]) * 1024 ** " KMG".index(match[2].upper() or " "), 2.0**63))


def vm_memory(text: str | None) -> int:
    """Bytes that a VM may use. ValueError with what is wrong; None: the default."""
    if text is None:
        return VM_MEMORY
    size = parse_size(text)
    low, high = VM_MEMORY_RANGE
    if size is not None and low <= size <= high:
        return size
    raise ValueError(f"must be from {low >> 20}M to {high >> 30}G" if size is not None else "is no size (write 512M or 2G)")
