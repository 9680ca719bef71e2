"""Become an ordinary user and run a command.

    ordinary.py DIRECTORY COMMAND [ARGUMENT...]

For root, whose own Python may be where no other user can come (/root): there it is mounted once more, below an empty directory,
in a mount namespace (mount_namespaces(7)). The user is the first in the password file that is not root, and gets the
directory with all that is in it. Exit status 125 and a line: it cannot be done here.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import sys
from pathlib import Path

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18


def call(name: str, *arguments: object) -> None:
    """OSError if the C library's function fails."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def closed(place: Path) -> Path | None:
    """The first directory on the way to a place that others may not pass."""
    for parent in reversed(place.parents):
        if not parent.stat().st_mode & 0o001:
            return parent
    return None


def open_up(places: set[Path]) -> None:
    """Others can come to these places, for this process and its children."""
    if not any(map(closed, places)):
        return
    call("unshare", CLONE_NEWNS)
    call("mount", None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    behind: dict[Path, dict[Path, int]] = {}
    for place in places:
        door = closed(place)
        if door is not None:
            behind.setdefault(door, {})[place] = os.open(place, os.O_PATH)
    for door, inside in behind.items():
        call("mount", b"none", bytes(door), b"tmpfs", ctypes.c_ulong(0), b"mode=755")
        for place, descriptor in inside.items():
            place.mkdir(parents=True)
            call("mount", f"/proc/self/fd/{descriptor}".encode(), bytes(place), None, ctypes.c_ulong(MS_BIND | MS_REC), None)


def become_ordinary(directory: str) -> None:
    user = next(entry for entry in pwd.getpwall() if entry.pw_uid)
    open_up({Path(name).resolve() for name in (sys.prefix, sys.base_prefix, Path(__file__).parents[1])})
    for place in (Path(directory), *Path(directory).rglob("*")):
        os.chown(place, user.pw_uid, user.pw_gid)
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


if __name__ == "__main__":
    if os.geteuid() == 0:
        try:
            become_ordinary(sys.argv[1])
        except OSError as error:
            print(f"root cannot be an ordinary user here: {error}", file=sys.stderr)
            sys.exit(125)
    os.execv(sys.argv[2], sys.argv[2:])
