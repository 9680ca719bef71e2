"""The same operations on the host's file system and through the cell: results, errors and what is left must be alike."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .driver import WRITABLE, Vfs

DEPTH = "/1/2/3/4/5/6"  # so that `..` leads to directories that both sides have

names = st.sampled_from(["a", "b", "c"])
parts = st.sampled_from(["a", "b", "c", "a", "b", "..", ".", ""])
paths = st.lists(parts, min_size=1, max_size=4).map("/".join).map(lambda path: path.lstrip("/") or "a")
targets = st.sampled_from(["a", "b", "c", "a/b", "./c", "b/", "../6/a", "c/../b", "no", "."])
flags = st.sets(
    st.sampled_from([os.O_CREAT, os.O_CREAT, os.O_EXCL, os.O_TRUNC, os.O_NOFOLLOW, os.O_DIRECTORY, os.O_APPEND]), max_size=3
).flatmap(lambda chosen: st.sampled_from([os.O_RDONLY, os.O_WRONLY, os.O_RDWR]).map(lambda access: sum(chosen, access)))
data = st.sampled_from([b"", b"x", b"hello" * 10, b"z" * 5000, b"L" * 70000])
offsets = st.sampled_from([0, 1, 10, 4095, 66000])

operations = st.one_of(
    st.tuples(st.just("mkdir"), paths),
    st.tuples(st.just("mkdir"), paths),
    st.tuples(st.just("rmdir"), paths),
    st.tuples(st.just("unlink"), paths),
    st.tuples(st.just("rename"), paths, paths),
    st.tuples(st.just("symlink"), targets, paths),
    st.tuples(st.just("link"), paths, paths),
    st.tuples(st.just("stat"), paths),
    st.tuples(st.just("lstat"), paths),
    st.tuples(st.just("readlink"), paths),
    st.tuples(st.just("listdir"), paths),
    st.tuples(st.just("access"), paths),
    st.tuples(st.just("chmod"), paths, st.sampled_from([0o700, 0o750, 0o755, 0o777])),
    st.tuples(st.just("utime"), paths, st.integers(0, 10**18)),
    st.tuples(st.just("open"), paths, flags, data, offsets),
    st.tuples(st.just("open"), paths, flags, data, offsets),
    st.tuples(st.just("truncate"), paths, st.sampled_from([0, 5, 4096, 70000])),
    st.tuples(st.just("chdir"), paths),
)


def kind(mode: int, size: int) -> tuple[int, int]:
    return stat.S_IFMT(mode), size if stat.S_ISREG(mode) or stat.S_ISLNK(mode) else 0


class Host:
    """Operations by the host's kernel, relative to a directory that stands for the guest's current one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cwd = os.open(root, os.O_RDONLY)

    def close(self) -> None:
        os.close(self.cwd)

    def run(self, operation: str, path: str, *rest: Any) -> object:
        at = self.cwd
        match operation:
            case "mkdir":
                os.mkdir(path, 0o755, dir_fd=at)
            case "rmdir":
                os.rmdir(path, dir_fd=at)
            case "unlink":
                os.unlink(path, dir_fd=at)
            case "rename":
                os.rename(path, rest[0], src_dir_fd=at, dst_dir_fd=at)
            case "symlink":
                os.symlink(path, rest[0], dir_fd=at)
            case "link":
                os.link(path, rest[0], src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
            case "stat" | "lstat":
                found = os.stat(path, dir_fd=at, follow_symlinks=operation == "stat")
                return (*kind(found.st_mode, found.st_size), found.st_nlink if stat.S_ISREG(found.st_mode) else 0)
            case "readlink":
                return os.readlink(path, dir_fd=at)
            case "listdir":
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
                try:
                    return sorted(os.listdir(fd))  # noqa: PTH208
                finally:
                    os.close(fd)
            case "access":
                return os.access(path, os.F_OK, dir_fd=at)
            case "chmod":
                os.chmod(path, rest[0], dir_fd=at)
            case "utime":
                os.utime(path, ns=(rest[0], rest[0]), dir_fd=at)
                return os.stat(path, dir_fd=at).st_mtime_ns
            case "truncate" | "open":
                fd = os.open(path, os.O_WRONLY if operation == "truncate" else rest[0], 0o644, dir_fd=at)
                try:
                    if operation == "truncate":
                        return os.ftruncate(fd, rest[0])
                    access = rest[0] & os.O_ACCMODE
                    if access != os.O_RDONLY:
                        os.pwrite(fd, rest[1], rest[2])
                    return os.pread(fd, 100000, 0) if access != os.O_WRONLY and stat.S_ISREG(os.fstat(fd).st_mode) else None
                finally:
                    os.close(fd)
            case "chdir":
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
                os.close(self.cwd)
                self.cwd = fd
        return None


class Guest:
    def __init__(self, vfs: Vfs, root: str) -> None:
        self.vfs = vfs
        vfs.chdir(root)

    def run(self, operation: str, path: str, *rest: Any) -> object:
        vfs = self.vfs
        match operation:
            case "stat" | "lstat":
                found = getattr(vfs, operation)(path)
                return (*kind(found.mode, found.size), found.nlink if stat.S_ISREG(found.mode) else 0)
            case "access":
                return vfs.access(path, os.F_OK)
            case "utime":
                vfs.utime(path, (rest[0], rest[0]))
                return vfs.stat(path).mtime_ns
            case "truncate" | "open":
                opened = os.O_WRONLY if operation == "truncate" else rest[0] & ~os.O_APPEND
                handle = vfs.open(path, opened)
                try:
                    if operation == "truncate":
                        vfs.op("truncate", handle, rest[0])
                        return None
                    access = rest[0] & os.O_ACCMODE
                    if access != os.O_RDONLY:
                        # what the shim does for O_APPEND
                        at, done = (-1 if rest[0] & os.O_APPEND else rest[2]), 0
                        while done < len(rest[1]):
                            done += vfs.pwrite(handle, rest[1][done:], at if at < 0 else at + done)
                    if access == os.O_WRONLY or not stat.S_ISREG(vfs.fstat(handle).mode):
                        return None
                    return vfs.pread(handle, 100000, 0)
                finally:
                    vfs.close_handle(handle)
            case _:
                return getattr(vfs, operation)(path, *rest)


class Failed(str):
    pass


def outcome(side: Host | Guest, operation: tuple[Any, ...]) -> object:
    try:
        return side.run(*operation)
    except OSError as failure:
        return Failed(os.strerror(failure.errno or 0))


def host_tree(root: Path) -> dict[str, object]:
    tree: dict[str, object] = {}
    for directory, subdirectories, files in os.walk(root):
        for name in subdirectories + files:
            path = Path(directory) / name
            found = path.lstat()
            link = os.readlink(path) if path.is_symlink() else None  # noqa: PTH115 (Path would normalise it)
            content = link if link is not None else path.read_bytes() if path.is_file() else None
            mode = 0 if path.is_symlink() else stat.S_IMODE(found.st_mode)
            tree[str(path.relative_to(root))] = (stat.S_IFMT(found.st_mode), mode, str(content))
    return tree


def guest_tree(vfs: Vfs, root: str, below: str = "") -> dict[str, object]:
    tree: dict[str, object] = {}
    for name in vfs.listdir(f"{root}/{below}"):
        path = f"{below}/{name}" if below else name
        found = vfs.lstat(f"{root}/{path}")
        link, directory = stat.S_ISLNK(found.mode), stat.S_ISDIR(found.mode)
        content = vfs.readlink(f"{root}/{path}") if link else None if directory else vfs.read(f"{root}/{path}")
        tree[path] = (stat.S_IFMT(found.mode), 0 if link else stat.S_IMODE(found.mode), str(content))
        if directory:
            tree |= guest_tree(vfs, root, path)
    return tree


@pytest.fixture(scope="module")
def sides(programs: dict[bool, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, Vfs]]:
    reference, shared = tmp_path_factory.mktemp("reference"), tmp_path_factory.mktemp("shared")
    vfs = Vfs(programs[True], mounts={"/m": (shared, WRITABLE)})
    mask = os.umask(0)
    yield reference, shared, vfs
    os.umask(mask)
    vfs.close()


def fresh(directory: Path) -> Path:
    for child in directory.iterdir():
        shutil.rmtree(child)
    for part in DEPTH[1:].split("/"):
        directory = directory / part
        directory.mkdir(0o755)
    return directory


# A run leaves DEPTH only by a chain of links that hypothesis hardly finds.
@pytest.mark.parametrize("where", ["tmp", "mount"])
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(program=st.lists(operations, min_size=1, max_size=25))
def test_like_the_host(sides: tuple[Path, Path, Vfs], where: str, program: list[tuple[Any, ...]]) -> None:
    reference, shared, vfs = sides
    host_root = fresh(reference)
    vfs.restart()
    if where == "mount":
        fresh(shared)
        root = "/m" + DEPTH
    else:
        root = "/tmp"
        for part in DEPTH[1:].split("/"):
            root += "/" + part
            vfs.mkdir(root)
    host, guest = Host(host_root), Guest(vfs, root)
    try:
        for operation in program:
            expected, found = outcome(host, operation), outcome(guest, operation)
            # Of two reasons to fail Linux names the dots first, as it does not look a last name up before it must
            both = isinstance(expected, Failed) and isinstance(found, Failed)
            if not (both and operation[0] == "rename" and any(path.rstrip("/").endswith(".") for path in operation[1:3])):
                assert expected == found, operation
    finally:
        host.close()
    assert host_tree(reference) == guest_tree(vfs, "/m" if where == "mount" else "/tmp")


def test_large_file_at_random(programs: dict[bool, Path], tmp_path: Path) -> None:
    """Writes, truncations and holes across the step from heap to memfd, against a bytearray."""
    import random

    dice = random.Random(11)
    vfs = Vfs(programs[True], mounts={"/m": (tmp_path, WRITABLE)})
    for path in ("/tmp/f", "/m/f"):
        handle = vfs.open(path, os.O_RDWR | os.O_CREAT)
        model = bytearray()
        for _ in range(400):
            offset, size = (
                dice.choice([0, 100, 4000, 65000, 65536, 200000]) + dice.randint(0, 99),
                dice.choice([0, 1, 500, 4096, 70000]),
            )
            choice = dice.random()
            if choice < 0.5:
                block = bytes([dice.randint(1, 255)]) * size
                assert vfs.pwrite(handle, block, offset) == size
                if size:
                    model.extend(bytes(max(0, offset - len(model))))
                    model[offset : offset + size] = block
            elif choice < 0.65:
                vfs.op("truncate", handle, offset)
                del model[offset:]
                model.extend(bytes(max(0, offset - len(model))))
            elif choice < 0.75 and size:
                vfs.op("fallocate", handle, 3, offset, size)  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
                end = min(len(model), offset + size)
                model[offset:end] = bytes(max(0, end - offset))
            elif choice < 0.8 and size:
                vfs.op("fallocate", handle, 0, offset, size)
                model.extend(bytes(max(0, offset + size - len(model))))
            else:
                assert vfs.pread(handle, size, offset) == model[offset : offset + size]
            assert vfs.fstat(handle).size == len(model)
        assert vfs.read(path) == model
    vfs.close()
