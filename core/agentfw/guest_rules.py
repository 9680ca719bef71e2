"""What an agent's virtual machine may not do with files and system calls: what the hook `guest_rules` returns.

The cell enforces file rules and denied system calls, outside the VM. `advisory` calls never leave the VM, so that only the
guest's own shim can refuse them: that holds for programs as they are, not for one that overwrites the shim in its memory.
"""

from __future__ import annotations

import difflib
import errno
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from agentfw_vmm import rules, syscalls
from agentfw_vmm.rules import FileRule

Error = Literal["EPERM", "ENOSYS"]


@dataclass(frozen=True)
class GuestRules:
    """`files`: see `FileRule`; of those that match, the strictest counts. `deny`, `kill`: names of Linux system calls that fail
    with `error`, or end the VM with SIGSYS; with one go those that do the same (`mkdir` and `mkdirat`). `advisory`: see above.

    ValueError, naming the field, for patterns and names that make no sense or cannot be enforced.
    """

    files: tuple[FileRule, ...] = ()
    deny: frozenset[str] = frozenset()
    kill: frozenset[str] = frozenset()
    advisory: frozenset[str] = frozenset()
    error: Error = "EPERM"
    write_bytes: int | None = None
    """Bytes that it may write to files of writable mounts, or add to their length, in its life; then EDQUOT."""
    creates: int | None = None
    """Files, directories and links that it may make there."""

    def __post_init__(self) -> None:
        if self.error not in ("EPERM", "ENOSYS"):
            raise ValueError(f"error {self.error!r}: EPERM or ENOSYS")
        for limit in (self.write_bytes, self.creates):
            if limit is not None and not 0 <= limit < 1 << 63:
                raise ValueError(f"a limit of {limit}")
        for rule in self.files:
            if reason := bad_pattern(rule.pattern):
                raise ValueError(f"files: {rule.pattern}: {reason}")
        for name in (*self.deny, *self.kill):
            if reason := bad_call(name):
                raise ValueError(f"deny: {reason}")
        for name in self.advisory:
            if reason := bad_call(name, advisory=True):
                raise ValueError(f"advisory: {reason}")

    def __bool__(self) -> bool:
        limited = self.write_bytes is not None or self.creates is not None
        return bool(self.files or self.deny or self.kill or self.advisory) or limited

    def table(self) -> bytes:
        """For `agentfw_vmm.Cell.restore()`. ValueError: too many rules."""
        return _table(self)

    @staticmethod
    def merged(found: Iterable[GuestRules]) -> GuestRules:
        """All of them together: what one of them refuses is refused."""
        each = list(found)
        if len(each) == 1:
            return each[0]
        return GuestRules(
            tuple(rule for one in each for rule in one.files),
            frozenset().union(*(one.deny for one in each)),
            frozenset().union(*(one.kill for one in each)),
            frozenset().union(*(one.advisory for one in each)),
            "ENOSYS" if each and all(one.error == "ENOSYS" for one in each) else "EPERM",
            min((one.write_bytes for one in each if one.write_bytes is not None), default=None),
            min((one.creates for one in each if one.creates is not None), default=None),
        )


@functools.lru_cache(64)
def _table(given: GuestRules) -> bytes:
    error = getattr(errno, given.error)
    return rules.compile_rules(given.files, given.deny, given.kill, given.advisory, error, given.write_bytes, given.creates)


def bad_pattern(pattern: str) -> str:
    """What is wrong with it, or ""."""
    try:
        rules.parse_pattern(pattern)
    except ValueError as error:
        return str(error)
    return ""


def bad_call(name: str, *, advisory: bool = False) -> str:
    """Why a system call of that name cannot be denied (or, `advisory`, be refused in the guest), or ""."""
    kind = syscalls.kind(name)
    if kind is None:
        near = difflib.get_close_matches(name, syscalls.NUMBERS, 1)
        return f"Linux has no system call `{name}`" + (f" (`{near[0]}`?)" if near else "")
    if kind == "guest" and not advisory:
        return (
            f"`{name}` does not leave the virtual machine, so the host cannot refuse it; `advisory` has the guest refuse it, "
            "which binds no program that means to get around it"
        )
    return ""


def enforced_by(name: str) -> syscalls.Kind:
    """ "host": the cell can refuse it; "guest": only the VM's own code can; "absent": there is no such call in a VM."""
    kind = syscalls.kind(name)
    if kind is None:
        raise ValueError(bad_call(name))
    return kind


def same_calls(name: str) -> tuple[str, ...]:
    """The calls that are denied along with `name`, itself included."""
    return syscalls.HOST[name][1] if name in syscalls.HOST else (name,)


__all__ = ["Error", "FileRule", "GuestRules", "bad_call", "bad_pattern", "enforced_by", "same_calls"]
