"""[policy.files] and [policy.syscalls]: what agents' virtual machines may not do.

[policy.files]
hide = ["**/.env", "**/.git/config"]
deny = ["/home/me/project/secrets/**"]
read_only = ["/data/**"]

[policy.syscalls]
deny = ["symlink", "link"]
"""

from __future__ import annotations

from typing import Literal

import msgspec


class FilesConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Lists of patterns of guest paths; of those that match, hide goes before deny, deny before read_only."""

    deny: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    write_bytes: int | str | None = None
    """In an agent's life, to writable mounts; a number, "64K", "10M", "2G"."""
    creates: int | None = None
    """Files, directories and links that an agent may make there."""


class SyscallsConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Lists of names of Linux system calls."""

    deny: tuple[str, ...] = ()
    kill: tuple[str, ...] = ()
    advisory: tuple[str, ...] = ()
    error: Literal["EPERM", "ENOSYS"] = "EPERM"
