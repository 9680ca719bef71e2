"""What one VM may not do, compiled into the table that its cell enforces (struct afw_rules of cell.h).

Patterns are about guest paths as they really are: no symlink, `.` or `..` in them. `*` and `?` stay within a name, `[...]` is one
ASCII character of a set, `**` is any number of directories. What a pattern matches takes all below it along.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from . import syscalls
from ._lib import lib

Action = Literal["read", "deny", "hide"]
_ACTIONS: dict[Action, int] = {"read": lib.AFW_RULE_READ, "deny": lib.AFW_RULE_DENY, "hide": lib.AFW_RULE_HIDE}
_HEAD = struct.Struct("<IIII2Q2Q8Q2Q")
_ANY = (1 << 64) - 1
_RULE = struct.Struct("<IHH")
_PART = struct.Struct("<IHH")
_DEPTH = (lib.AFW_PART_DEPTH, b"")
_NAME_MAX = 255

Part = tuple[int, bytes]


@dataclass(frozen=True)
class FileRule:
    """`action` for what `pattern` matches and all below: "read": it cannot be changed (EROFS). "deny": it is seen, as a file of
    somebody else with mode 000 (EACCES). "hide": it is not there (ENOENT). Where several rules match, the strictest counts."""

    pattern: str
    action: Action


def parse_pattern(pattern: str) -> list[Part]:
    """The pattern's components as (AFW_PART_*, bytes). ValueError says what is wrong with it."""
    if "\0" in pattern:
        raise ValueError("a NUL is in no path")
    if not pattern.startswith("/") and pattern != "**" and not pattern.startswith("**/"):
        raise ValueError(f'begins neither with "/" nor with "**/" (any depth): write "/.../{pattern}" or "**/{pattern}"')
    names = pattern.removeprefix("/").removesuffix("/").split("/")
    if names == [""]:
        return []
    if names[0] == "proc" and len(names) > 1 and (names[1] in ("self", "thread-self") or names[1].isdecimal()):
        pid = "[0-9]*"  # the process has several names there, and can choose one of them
        names[1:2] = [pid, "task", pid] if names[1] == "thread-self" else [pid]
    parts: list[Part] = []
    for name in names:
        if name in ("", ".", ".."):
            raise ValueError(f"canonical paths have no `{name}` in them" if name else "has an empty name in it")
        part = _DEPTH if name == "**" else _part(name)
        if part is not _DEPTH or parts[-1:] != [_DEPTH]:
            parts.append(part)
    if parts[-1] is _DEPTH:
        parts[-1] = _part("*")  # all below, not the directory itself
    if len(parts) > lib.AFW_RULES_PARTS:
        raise ValueError(f"has more than {lib.AFW_RULES_PARTS} names")
    return parts


def _part(name: str) -> Part:
    for mark, hint in (("**", "`**` must be a whole name"), ("\\", "no escapes: write `[*]` for a star")):
        if mark in name:
            raise ValueError(hint)
    tokens: list[bytes] = []
    text = b""
    special = False
    i = 0
    while i < len(name):
        c = name[i]
        if c in "*?[":
            special = True
            tokens += _text(text)
            text = b""
            if c == "[":
                token, i = _set(name, i)
                tokens.append(token)
            else:
                tokens.append(bytes([lib.AFW_GLOB_STAR if c == "*" else lib.AFW_GLOB_ANY]))
                i += 1
            continue
        if c in "{}":
            raise ValueError(f"`{c}` is nothing special: write one pattern for each alternative, or `[{c}]` for the character")
        text += os.fsencode(c)
        i += 1
    if not special:
        if len(text) > _NAME_MAX:
            raise ValueError(f"has a name of more than {_NAME_MAX} bytes")
        return lib.AFW_PART_NAME, text
    done = b"".join([*tokens, *_text(text)])
    if len(done) > 2048:
        raise ValueError("is too long")
    return lib.AFW_PART_GLOB, done


def _text(text: bytes) -> list[bytes]:
    return [bytes([lib.AFW_GLOB_TEXT, len(piece)]) + piece for piece in (text[i : i + 255] for i in range(0, len(text), 255))]


def _set(name: str, start: int) -> tuple[bytes, int]:
    """The token of the set that begins at `start`, and where it ends."""
    i = start + 1
    kind = lib.AFW_GLOB_SET
    if name[i : i + 1] in ("!", "^"):
        kind = lib.AFW_GLOB_NOT
        i += 1
    end = name.find("]", i + 1)
    if end < 0:
        raise ValueError("`[` without `]`")
    members = name[i:end]
    if not members.isascii():
        raise ValueError(f"`{name[start : end + 1]}`: only ASCII characters can be in a set")
    bits = 0
    at = 0
    while at < len(members):
        first = last = ord(members[at])
        if members[at + 1 : at + 2] == "-" and at + 2 < len(members):
            last = ord(members[at + 2])
            at += 2
        if last < first:
            raise ValueError(f"`{name[start : end + 1]}`: the range runs backwards")
        for member in range(first, last + 1):
            bits |= 1 << member
        at += 1
    return bytes([kind]) + bits.to_bytes(16, "little"), end + 1


def compile_rules(
    files: Sequence[FileRule] = (),
    deny: Iterable[str] = (),
    kill: Iterable[str] = (),
    advisory: Iterable[str] = (),
    error: int = errno.EPERM,
    write_bytes: int | None = None,
    creates: int | None = None,
) -> bytes:
    """The table for `Cell.restore()`; b"" if nothing is ruled.

    deny: names of system calls that fail with `error` (EPERM or ENOSYS); kill: that end the VM with SIGSYS; both of kind "host"
    or "absent" (`agentfw_vmm.syscalls`). advisory: refused by the guest's own shim. write_bytes, creates: what the VM may write
    to host files in its life, and how many names it may make there. ValueError: bad patterns or names, too many.
    """
    deny, kill, advisory = list(deny), list(kill), list(advisory)
    if not (files or deny or kill or advisory) and write_bytes is None and creates is None:
        return b""
    limits = [_ANY if limit is None else limit for limit in (write_bytes, creates)]
    if not all(0 <= limit <= _ANY for limit in limits):
        raise ValueError("a limit out of range")
    if error not in (errno.EPERM, errno.ENOSYS):
        raise ValueError("calls are refused with EPERM or ENOSYS")
    denied, refused = _operations(deny)
    killed, _ = _operations(kill)
    for name in advisory:
        if name not in syscalls.NUMBERS:
            raise ValueError(f"no system call `{name}`")
        refused |= 1 << syscalls.NUMBERS[name]
    rules = b""
    parts: list[Part] = []
    compiled = {(tuple(parse_pattern(rule.pattern)), _ACTIONS[rule.action]): None for rule in files}  # each once
    if len(compiled) > lib.AFW_RULES_MAX:
        raise ValueError(f"more than {lib.AFW_RULES_MAX} file rules")
    for pattern, action in compiled:
        rules += _RULE.pack(len(parts), len(pattern), action)
        parts += pattern
    at = _HEAD.size + len(rules) + len(parts) * _PART.size
    index, text = b"", b""
    for kind, data in parts:
        index += _PART.pack(at + len(text), len(data), kind)
        text += data
    size = at + len(text)
    if size > lib.AFW_RULES_SIZE:
        raise ValueError(f"the file rules take {size} bytes of at most {lib.AFW_RULES_SIZE}")
    calls = (*_words(denied, 2), *_words(killed, 2), *_words(refused, 8))
    head = _HEAD.pack(size, len(compiled), len(parts), error, *calls, *limits)
    return head + rules + index + text


def number_of(action: Action) -> int:
    return _ACTIONS[action]


def rule_at(table: bytes, number: int) -> FileRule | None:
    """The rule of that number in a table that `compile_rules()` made; None: there is no such."""
    if not table or not 0 <= number < _HEAD.unpack_from(table)[1]:
        return None
    first, count, action = _RULE.unpack_from(table, _HEAD.size + number * _RULE.size)
    parts = _HEAD.size + _HEAD.unpack_from(table)[1] * _RULE.size
    names = []
    for i in range(first, first + count):
        at, size, kind = _PART.unpack_from(table, parts + i * _PART.size)
        text = table[at : at + size]
        names.append("**" if kind == lib.AFW_PART_DEPTH else _glob(text) if kind == lib.AFW_PART_GLOB else os.fsdecode(text))
    pattern = "/".join(names)
    return FileRule(pattern if names[:1] == ["**"] else f"/{pattern}", next(name for name, n in _ACTIONS.items() if n == action))


def _glob(tokens: bytes) -> str:
    """A component's tokens as they are written."""
    text = ""
    while tokens:
        kind, size = tokens[0], 1
        if kind == lib.AFW_GLOB_TEXT:
            size = 2 + tokens[1]
            text += os.fsdecode(tokens[2:size])
        elif kind in (lib.AFW_GLOB_STAR, lib.AFW_GLOB_ANY):
            text += "*" if kind == lib.AFW_GLOB_STAR else "?"
        else:
            size = 17
            bits = int.from_bytes(tokens[1:size], "little")
            members = [n for n in range(128) if bits >> n & 1]
            text += f"[{'!' if kind == lib.AFW_GLOB_NOT else ''}{_members(members)}]"
        tokens = tokens[size:]
    return text


def _members(members: list[int]) -> str:
    """Of a set, runs of three and more as ranges. `]` first, `-` last, and `!` and `^` not first, where they mean themselves."""
    runs: list[str] = []
    for c in map(chr, members):
        if runs and ord(runs[-1][-1]) + 1 == ord(c):
            runs[-1] += c
        else:
            runs.append(c)
    text = special = ""
    for run in runs:
        inner = run.lstrip("]-!^").rstrip("]-")
        special += run.replace(inner, "", 1)
        text += f"{inner[0]}-{inner[-1]}" if len(inner) > 2 else inner
    first, last = "]" * ("]" in special), "-" * ("-" in special)
    marks = special.replace("]", "").replace("-", "")
    return first + text + marks + last if first or text else last + marks


def refuses_connections(table: bytes) -> bool:
    """Does this table refuse flows to the outside?"""
    if not table:
        return False
    _, _, _, _, low, _, kill, *_ = _HEAD.unpack_from(table)
    return bool((low | kill) >> lib.AFW_OP_FLOW_OPEN & 1)


def _operations(names: Collection[str]) -> tuple[int, int]:
    """Ring operations, and the numbers of calls to be refused in the guest, as bit sets."""
    operations = numbers = 0
    for name in names:
        kind = syscalls.kind(name)
        if kind is None:
            raise ValueError(f"no system call `{name}`")
        if kind == "guest":
            raise ValueError(f"`{name}` does not leave the VM: the host cannot refuse it")
        if kind == "host":
            ring, same = syscalls.HOST[name]
            for operation in ring:
                operations |= 1 << operation
            for each in same:
                numbers |= 1 << syscalls.NUMBERS[each]
    return operations, numbers


def _words(bits: int, count: int) -> list[int]:
    return [bits >> 64 * i & 0xFFFFFFFFFFFFFFFF for i in range(count)]
