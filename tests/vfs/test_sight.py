"""Files opened and refused, as the worker is told of them: paths as they really are, the rule, each once."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from agentfw_vmm import OpenedFile, Sight
from agentfw_vmm.rules import FileRule, compile_rules, parse_pattern, rule_at
from hypothesis import example, given
from hypothesis import strategies as st

from ..cell_peer import C
from .conftest import MakeVfs
from .driver import WRITABLE, Vfs


def seen(vfs: Vfs, table: bytes = b"") -> list[OpenedFile]:
    return Sight(vfs.command(15, b"")[1], table).opened()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """w/{a, sub/b, link -> sub, away -> /p/a}, and what /p is"""
    for name in ("w/a", "w/sub/b", "p/a"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "w/link").symlink_to("sub")
    (tmp_path / "w/away").symlink_to("/p/a")
    return tmp_path


def test_paths_are_what_they_lead_to(make: MakeVfs, tree: Path) -> None:
    vfs = make(mounts={"/w": (tree / "w", WRITABLE), "/p": (tree / "p", 0)}, files={"/etc/x": b"x"})
    assert seen(vfs) == []
    vfs.chdir("/w")
    directory = vfs.open("/w/sub", os.O_DIRECTORY)
    for path in ("/w/./link/../a", "a", "/w/a"):
        vfs.close_handle(vfs.open(path))
    vfs.close_handle(vfs.open("../link/b", base=directory))
    vfs.close_handle(vfs.open("away"))
    vfs.close_handle(vfs.open("/etc/x"))
    vfs.close_handle(vfs.open("new", os.O_RDWR | os.O_CREAT))
    vfs.close_handle(vfs.open("new", os.O_WRONLY | os.O_TRUNC))
    vfs.close_handle(vfs.open("new", os.O_PATH))
    vfs.close_handle(vfs.open("/tmp", os.O_TMPFILE | os.O_RDWR))
    assert seen(vfs) == [
        OpenedFile("/w/sub", "r", 1),
        OpenedFile("/w/a", "r", 3),
        OpenedFile("/w/sub/b", "r", 1),
        OpenedFile("/p/a", "r", 1),
        OpenedFile("/etc/x", "r", 1),
        OpenedFile("/w/new", "rw", 1),
        OpenedFile("/w/new", "w", 1),
        OpenedFile("/w/new", "p", 1),
        OpenedFile("/tmp", "rw", 1),
    ]


def test_what_fails(make: MakeVfs, tree: Path) -> None:
    vfs = make(mounts={"/w": (tree / "w", 0)})
    vfs.chdir("/w")
    directory = vfs.open("sub", os.O_DIRECTORY)
    for path, flags, base in (
        ("none/below", os.O_RDONLY, None),
        ("none", os.O_RDONLY, directory),
        ("a", os.O_WRONLY, None),
        ("a/b", os.O_RDONLY, None),
        ("link", os.O_NOFOLLOW, None),
        ("/w/sub", os.O_RDWR, None),
        ("n" * 300, os.O_RDONLY, None),
        ("", os.O_RDONLY, None),
    ):
        assert vfs.error("open", path, flags, base=base) if base else vfs.error("open", path, flags)
    assert seen(vfs)[1:] == [
        OpenedFile("/w/none/below", "r", 1, "ENOENT"),
        OpenedFile("/w/sub/none", "r", 1, "ENOENT"),
        OpenedFile("/w/a", "w", 1, "EROFS"),
        OpenedFile("/w/a/b", "r", 1, "ENOTDIR"),
        OpenedFile("/w/link", "r", 1, "ELOOP"),
        OpenedFile("/w/sub", "rw", 1, "EISDIR"),
        OpenedFile(("/w/" + "n" * 300)[:255], "r", 1, "ENAMETOOLONG"),
    ]


def test_the_rule_that_refused(make: MakeVfs, tree: Path) -> None:
    """Also where a symlink leads, and under the other name of a mount that lies in another."""
    vfs = make(mounts={"/w": (tree / "w", WRITABLE), "/p": (tree / "p", WRITABLE), "/again": (tree / "w/sub", WRITABLE)})
    files = [
        FileRule("/w/link", "read"),
        FileRule("**/*.[ck]ey", "hide"),
        FileRule("/w/sub/b", "deny"),
        FileRule("/p/**", "read"),
    ]
    table = compile_rules(files)
    assert vfs.rules(table) == 0
    assert vfs.error("open", "/w/a.key") == "ENOENT"
    assert vfs.error("stat", "/w/a.key") == "ENOENT"
    assert vfs.error("open", "/w/link/b") == vfs.error("open", "/again/b") == "EACCES"
    assert vfs.error("open", "/w/away", os.O_WRONLY) == "EROFS"
    assert vfs.error("open", "/w/sub/new", os.O_WRONLY | os.O_CREAT) == "EROFS"  # by /w/link
    assert vfs.error("unlink", "/p/a") == vfs.error("mkdir", "/p/d") == "EROFS"
    assert vfs.error("rename", "/w/link", "/w/other") == "EROFS"
    assert not vfs.access("/p/a", os.W_OK) and vfs.access("/p/a", os.R_OK)
    vfs.close_handle(vfs.open("/w/a"))
    assert seen(vfs, table) == [
        OpenedFile("/w/a.key", "r", 1, "ENOENT", "hide **/*.[ck]ey"),
        OpenedFile("/w/a.key", "", 1, "ENOENT", "hide **/*.[ck]ey"),
        OpenedFile("/w/sub/b", "r", 1, "EACCES", "deny /w/sub/b"),
        OpenedFile("/again/b", "r", 1, "EACCES", "deny /w/sub/b"),
        OpenedFile("/p/a", "w", 1, "EROFS", "read /p/*"),
        OpenedFile("/w/sub/new", "w", 1, "EROFS", "read /w/link"),
        OpenedFile("/p/a", "", 2, "EROFS", "read /p/*"),
        OpenedFile("/p/d", "", 1, "EROFS", "read /p/*"),
        OpenedFile("/w/link", "", 1, "EROFS", "read /w/link"),
        OpenedFile("/w/a", "r", 1),
    ]
    assert [file.rule for file in seen(vfs)][:1] == [""], "without the table nobody can say which"


def test_bounds_hold_by_bytes_too(make: MakeVfs, tree: Path) -> None:
    vfs = make(mounts={"/w": (tree / "w", 0)})
    for number in range(600):
        vfs.error("open", f"/w/{number:04}/" + "x/" * 200)
    found = seen(vfs)
    most = (C["AFW_SIGHT_SIZE"] - C["AFW_SIGHT_FILES_AT"]) // 280
    assert len(found) == most and {len(file.path) for file in found} == {255}
    more = struct.unpack_from("<Q", vfs.command(15, b"")[1], 16)[0]
    assert more == 600 - most


PATTERN = st.text(alphabet="ab*?[]!^-/.é{", min_size=1, max_size=20)
MEMBERS = st.text(alphabet="abcd]!^-", min_size=1, max_size=6)
SET = st.builds("/{}[{}{}]".format, st.sampled_from(["", "a", "*"]), st.sampled_from(["", "!"]), MEMBERS)


@given(st.lists(PATTERN | SET, min_size=1, max_size=6))
@example(["/[a!]", "/[-!]", "/[]!a]", "/[a-d^]", "/[!!a]", "/[]-]", "/[-]", "/[!^-]"])
def test_a_table_says_what_its_rules_were(patterns: list[str]) -> None:
    good = []
    for pattern in patterns:
        try:
            good.append((pattern, parse_pattern(pattern)))
        except ValueError:
            continue
    rules = [FileRule(pattern, "deny") for pattern, _ in good]
    if not rules:
        return
    table = compile_rules(rules)
    told = []
    while (found := rule_at(table, len(told))) is not None:
        told.append(found)
    assert all(rule.action == "deny" for rule in told)
    assert [tuple(parse_pattern(rule.pattern)) for rule in told] == list(dict.fromkeys(tuple(parts) for _, parts in good))
    assert rule_at(table, len(told)) is None and rule_at(table, -1) is None and rule_at(b"", 0) is None
