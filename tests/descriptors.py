"""This process's open descriptors, and those that a test has left."""

from __future__ import annotations

import gc
from pathlib import Path

Opened = set[tuple[str, str]]
"""A descriptor's number, and what it is of: a path, "socket:[inode]", "anon_inode:[eventpoll]"."""


def opened() -> Opened:
    gc.collect()  # what other tests have dropped goes now
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.add((link.name, str(link.readlink())))
        except FileNotFoundError:  # the one of this listing
            continue
    return found


def left(before: Opened) -> list[tuple[str, str]]:
    """What is open and was not. (To count them does not do: in a whole run, threads and loops of earlier tests end meanwhile.)"""
    return sorted(opened() - before)
