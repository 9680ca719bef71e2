"""Become an ordinary user, who has root's files and none of root's rights, and run a command.

    ordinary.py COMMAND [ARGUMENT...]

For root, whose own Python may be where no other user can read it: user_namespaces(7) with one user, the first in the password
file that is not root, and mount_namespaces(7) where the interpreter is read-only, as a distribution's is to its users. Nobody
else changes. Exit status 125 and a line: there may be no namespaces here.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import sys
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC = 1, 32, 4096, 16384


def call(name: str, *arguments: object) -> None:
    """OSError if the C library's function fails."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def become_ordinary() -> None:
    user = next(entry for entry in pwd.getpwall() if entry.pw_uid)
    own = os.getuid(), os.getgid()
    prefix = os.path.realpath(sys.base_prefix).encode()
    call("unshare", CLONE_NEWUSER | CLONE_NEWNS)
    for name, text in (
        ("uid_map", f"{user.pw_uid} {own[0]} 1"),
        ("setgroups", "deny"),
        ("gid_map", f"{user.pw_gid} {own[1]} 1"),
    ):
        Path("/proc/self", name).write_text(text)
    if prefix not in (b"/", b"/usr"):
        call("mount", prefix, prefix, None, ctypes.c_ulong(MS_BIND | MS_REC), None)
        call("mount", None, prefix, None, ctypes.c_ulong(MS_BIND | MS_REMOUNT | MS_RDONLY), None)


if __name__ == "__main__":
    if os.geteuid() == 0:
        try:
            become_ordinary()
        except OSError as error:
            print(f"ordinary.py: root cannot be an ordinary user here: {error}", file=sys.stderr)
            sys.exit(125)
    os.execv(sys.argv[1], sys.argv[1:])
