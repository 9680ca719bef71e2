"""[policy.files] and [policy.syscalls] compiled, for the hook `guest_rules`, and said to people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from agentfw import ConfigError
from agentfw.guest_rules import FileRule, GuestRules, bad_call, bad_pattern, enforced_by, same_calls

from .guest_config import FilesConfig, SyscallsConfig
from .limits import parse_size


def compiled(files: FilesConfig, syscalls: SyscallsConfig, key: str = "") -> GuestRules:
    """ConfigError with the key (`key` before it) of what is wrong."""

    def checked() -> Iterator[FileRule]:
        lists: tuple[tuple[str, tuple[str, ...], Literal["deny", "hide", "read"]], ...] = (
            ("deny", files.deny, "deny"),
            ("hide", files.hide, "hide"),
            ("read_only", files.read_only, "read"),
        )
        for name, patterns, action in lists:
            for i, pattern in enumerate(patterns):
                if reason := bad_pattern(pattern):
                    raise ConfigError(f"{key}files.{name}.{i}", f"`{pattern}`: {reason}")
                yield FileRule(pattern, action)

    for name, calls in (("deny", syscalls.deny), ("kill", syscalls.kill), ("advisory", syscalls.advisory)):
        for i, call in enumerate(calls):
            if reason := bad_call(call, advisory=name == "advisory"):
                raise ConfigError(f"{key}syscalls.{name}.{i}", reason)
    try:
        write_bytes = None if files.write_bytes is None else parse_size(files.write_bytes)
    except ValueError as error:
        raise ConfigError(f"{key}files.write_bytes", str(error)) from None
    if files.creates is not None and not 0 <= files.creates < 1 << 63:
        raise ConfigError(f"{key}files.creates", f"{files.creates}: a number of files")
    rules = GuestRules(
        tuple(checked()),
        frozenset(syscalls.deny),
        frozenset(syscalls.kill),
        frozenset(syscalls.advisory),
        syscalls.error,
        write_bytes,
        files.creates,
    )
    try:
        rules.table()
    except ValueError as error:
        raise ConfigError(f"{key}files", str(error)) from None
    return rules


def enforcement(rules: GuestRules) -> dict[str, list[str]]:
    """By whom each call is refused: "host" (whatever the guest has become), "guest" (by its own code, no boundary) or "absent"
    (no virtual machine has it)."""
    found: dict[str, set[str]] = {"host": set(), "guest": set(), "absent": set()}
    for name in rules.deny | rules.kill:
        found[enforced_by(name)].update(same_calls(name))
    for name in rules.advisory:
        found["absent" if enforced_by(name) == "absent" else "guest"].add(name)
    found["guest"] -= found["host"]
    return {who: sorted(names) for who, names in found.items()}


def described(rules: GuestRules) -> list[str]:
    """For people; nothing if nothing is ruled."""
    lines = []
    patterns = {action: sum(rule.action == action for rule in rules.files) for action in ("hide", "deny", "read")}
    files = ", ".join(f"{n} {word}" for n, word in zip(patterns.values(), ("hidden", "denied", "read-only"), strict=True) if n)
    if files:
        lines.append(f"patterns of files: {files}")
    for limit, text in ((rules.write_bytes, "bytes written to mounts"), (rules.creates, "files made in mounts")):
        if limit is not None:
            lines.append(f"{text}: at most {limit}")
    calls = enforcement(rules)
    for who, text in (
        ("host", "the host refuses"),
        ("guest", "refused inside the virtual machine only, which is no boundary"),
        ("absent", "no virtual machine has"),
    ):
        if calls[who]:
            lines.append(f"{text}: {', '.join(calls[who])}")
    return lines


def needless(rules: SyscallsConfig) -> Iterable[tuple[str, str]]:
    """(key, text) of what a better place is known for."""
    for i, name in enumerate(rules.advisory):
        if enforced_by(name) == "host" and name not in (*rules.deny, *rules.kill):
            yield f"syscalls.advisory.{i}", f"`{name}`: the host can refuse it, under `deny`; here it is no boundary"
