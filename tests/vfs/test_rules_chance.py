"""Any operations in any order: what rules protect is neither read nor changed."""

import errno
import os
import random
import stat
from pathlib import Path

import pytest
from agentfw_vmm.rules import FileRule, compile_rules

from .conftest import SECRET, MakeVfs
from .driver import BUFFER, CWD, OUT, PATH2, WRITABLE, Vfs

NAMES = ["vault", "deep", "key.txt", "a", "b", "sub", "link", "fixed"]
ROOTS = ["/w", "/w", "/w", "/again", "/inner", "/w/vault", "/tmp", ""]
PROTECTED = [
    ["/w/vault"],
    ["/w/vault/**"],
    ["/w/vault/key.txt", "/w/vault/deep/key.txt"],
    ["**/key.txt"],
    ["/inner/**"],
    ["/again/*/**/key.txt"],
    ["/w/link/**", "/w/v*/k*", "/inner/deep"],
]


class Chance:
    """Random operations by one VM; whatever can be read is looked at."""

    def __init__(self, vfs: Vfs, seed: int) -> None:
        self.vfs = vfs
        self.random = random.Random(seed)
        self.handles = [CWD]
        self.done = 0

    def path(self, at: int | None = None) -> tuple[int, int]:
        choice = self.random.choice
        text = choice(ROOTS) + "".join("/" + choice(NAMES) for _ in range(choice([0, 1, 1, 1, 2, 2, 3])))
        if self.random.random() < 0.1:
            text = text.replace("/", choice(["/./", "//", "/x/../", "/sub/../"]))
        return self.vfs.path(text or "/", at) if at else self.vfs.path(text or "/")

    def base(self) -> int:
        return self.random.choice(self.handles)

    def step(self) -> None:
        pick, vfs = self.random.randint, self.vfs
        op = self.random.choice(
            ["open"] * 6 + ["rename"] * 4 + ["link", "symlink", "mkdir", "unlink", "rmdir", "chmod", "chdir", "readlink", "close"]
        )
        if op == "open":
            flags = self.random.choice([0, 0, 0, os.O_DIRECTORY, os.O_PATH, os.O_NOFOLLOW, os.O_RDWR, os.O_RDWR | os.O_CREAT])
            handle = vfs.raw("open", *self.path(), flags, 0o644, self.base(), OUT)
            if handle > 0:
                self.handles.append(handle)
                self.look(handle)
            result = handle
        elif op in ("rename", "link"):
            bases = self.base() | self.base() << 32
            result = vfs.raw(op, *self.path(), *self.path(PATH2), bases, pick(0, 2) if op == "rename" else pick(0, 1) * 0x400)
        elif op == "symlink":
            result = vfs.raw("symlink", *self.path(), *self.path(PATH2), self.base())
        elif op in ("unlink", "rmdir"):
            result = vfs.raw("unlink", *self.path(), 0x200 * (op == "rmdir"), 0, self.base())
        elif op == "readlink":
            result = vfs.raw("readlink", *self.path(), BUFFER, 4096, self.base())
        elif op == "close":
            handle = self.handles.pop(pick(1, len(self.handles) - 1)) if len(self.handles) > 1 else 0
            result = vfs.raw("close", handle)
        else:
            result = vfs.raw(op, *self.path(), 0o755, 0, self.base())
        self.done += result >= 0
        if op in ("rename", "link", "symlink") and result >= 0:
            for root in ("/w", "/again", "/inner"):
                self.sweep(root, 0)
        if self.random.random() < 0.1:
            for handle in self.handles[1:]:
                self.look(handle)
        if len(self.handles) > 40:
            vfs.raw("close", self.handles.pop(pick(1, 40)))

    def sweep(self, path: str, depth: int) -> None:
        """Reads all that there is below a path."""
        vfs = self.vfs
        handle = vfs.raw("open", *vfs.path(path), 0, 0, CWD, 0)
        if handle < 0:
            return
        self.look(handle, write=False)
        length = vfs.raw("readdir", handle, BUFFER, 4096, 0)
        names = [entry.name for entry in vfs.entries(handle)] if length > 0 and depth < 4 else []
        vfs.raw("close", handle)
        for name in names:
            if name not in (".", ".."):
                self.sweep(f"{path}/{name}", depth + 1)

    def look(self, handle: int, write: bool = True) -> None:
        vfs = self.vfs
        length = vfs.raw("pread", handle, BUFFER, 4096, 0)
        if length > 0:
            assert SECRET not in vfs.peek(BUFFER, length)
            vfs.poke(BUFFER, b"scribble")
            if write:
                vfs.raw("pwrite", handle, BUFFER, 8, 0)  # what is open for writing is written to
        if vfs.raw("mapfile", handle, 0x700000, 4096, 1, 2, 0) == 0 and length > 0:
            assert SECRET not in vfs.peek(0x700000, length)


@pytest.mark.parametrize("patterns", PROTECTED, ids=lambda patterns: patterns[0])
@pytest.mark.parametrize("action", ["deny", "hide"])
def test_what_is_protected_is_never_seen(make: MakeVfs, tmp_path: Path, patterns: list[str], action: str) -> None:
    for seed in range(2):
        work = tmp_path / f"work{seed}"
        for name in ("vault/deep", "sub", "fixed/sub"):
            (work / name).mkdir(parents=True)
        for name in ("vault/key.txt", "vault/deep/key.txt"):
            (work / name).write_bytes(SECRET)
        for name in ("a", "sub/b", "fixed/a", "fixed/sub/b"):
            (work / name).write_text(f"text of {name}")
        (work / "link").symlink_to("vault")
        mounts = {"/w": (work, WRITABLE), "/again": (work, WRITABLE), "/inner": (work / "vault", WRITABLE)}
        vfs = make(mounts=mounts)
        files = [FileRule(pattern, action) for pattern in patterns]  # type: ignore[arg-type]
        assert vfs.rules(compile_rules([*files, FileRule("/w/fixed/**", "read")])) == 0
        chance = Chance(vfs, seed)
        for _ in range(300):
            chance.step()
        assert chance.done > 25
        keys = [path for path in work.rglob("*") if path.is_file() and not path.is_symlink() and path.read_bytes() == SECRET]
        assert len(keys) == 2, "changed or removed"
        assert (work / "fixed/a").read_text() == "text of fixed/a" and (work / "fixed/sub/b").read_text() == "text of fixed/sub/b"
        assert {path.name for path in (work / "fixed").rglob("*")} == {"a", "sub", "b"}


def test_no_more_than_the_limits_is_ever_there(make: MakeVfs, tmp_path: Path) -> None:
    """Whatever is written, cut, allocated, mapped and moved: the host's files are never longer than what may be written."""
    limit, others = 100_000, ["unlink", "link", "rename", "symlink", "mkdir"]
    for seed in range(8):
        work, pick = tmp_path / str(seed), random.Random(seed)
        work.mkdir()
        vfs = make(mounts={"/w": (work, WRITABLE)})
        assert vfs.rules(compile_rules(write_bytes=limit, creates=6)) == 0
        handles: list[int] = []
        refused = 0
        for _ in range(120):
            op = pick.choice(["open"] * 3 + ["pwrite"] * 4 + ["truncate", "fallocate", "map", *others])
            name, other = (f"/w/{pick.choice('abcdefghij')}" for _ in range(2))
            handle, length = pick.choice(handles or [0]), pick.choice([1, 10, 1000, 5000, 30_000])
            offset = pick.choice([0, 0, 10, 4096, 20_000, 50_000, 99_999, 200_000, 1 << 40])
            match op:
                case "open":
                    flags = os.O_RDWR | pick.choice([0, os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_TRUNC])
                    result = vfs.raw("open", *vfs.path(name), flags, 0o644, CWD, 0)
                    handles += [result] if result > 0 else []
                case "pwrite":
                    result = vfs.raw("pwrite", handle, BUFFER, length, pick.choice([offset, offset, -1]))
                case "truncate":
                    result = vfs.raw("truncate", handle, offset)
                case "fallocate":
                    result = vfs.raw("fallocate", handle, pick.choice([0, 1, 3, 0x10, 0x11]), offset, length)
                case "map":
                    result = vfs.raw("mapfile", handle, 0x700000, 8192, 3, 1, 0)
                    if result == 0 and (room := min(8192, vfs.fstat(handle).size)):
                        vfs.poke(0x700000, b"m" * room)
                case "unlink":
                    result = vfs.raw("unlink", *vfs.path(name), 0, 0, CWD)
                case "mkdir":
                    result = vfs.raw("mkdir", *vfs.path(name), 0o755, 0, CWD)
                case "rename":
                    result = vfs.raw("rename", *vfs.path(name), *vfs.path(other, PATH2), CWD << 32 | CWD, pick.randint(0, 2))
                case _:
                    result = vfs.raw(op, *vfs.path(name), *vfs.path(other, PATH2), CWD << 32 | CWD)
            refused += result == -errno.EDQUOT
            there = [path.lstat() for path in work.iterdir()]
            assert len(there) <= 6
            assert sum({s.st_ino: s.st_size for s in there if stat.S_ISREG(s.st_mode)}.values()) <= limit, op
        assert refused
