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
    """It is seen, as a file of somebody else with mode 000: stat() works, all else is EACCES, as is all below it."""
    hide: tuple[str, ...] = ()
    """It is not there: ENOENT, and no listing shows it. Nothing can be made under such a name (EACCES)."""
    read_only: tuple[str, ...] = ()
    """It cannot be changed (EROFS)."""
    write_bytes: int | str | None = None
    """What an agent may write to writable mounts in its life, or add to the length of their files: a number, `"64K"`,
    `"10M"`, `"2G"`; then EDQUOT."""
    creates: int | None = None
    """Files, directories and links that an agent may make there; then EDQUOT."""


class SyscallsConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Lists of names of Linux system calls."""

    deny: tuple[str, ...] = ()
    """These fail with `error`; with one go those that do the same (`mkdirat` with `mkdir`)."""
    kill: tuple[str, ...] = ()
    """These end the virtual machine, as if by SIGSYS."""
    advisory: tuple[str, ...] = ()
    """Calls that are answered inside the virtual machine. Its own code refuses them, which holds for programs that do not
    overwrite that code; it is no boundary."""
    error: Literal["EPERM", "ENOSYS"] = "EPERM"
    """What `deny` fails with."""
