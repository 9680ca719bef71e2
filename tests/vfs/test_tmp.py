"""The private /tmp, and what files do in it and in a writable mount."""

import errno
import mmap
import os
import stat
import struct
from pathlib import Path

import pytest

from .conftest import MakeVfs
from .driver import BUFFER, CWD, HOLE, OUT, WRITABLE, Vfs


def test_tmp_is_private_and_quota_holds(make: MakeVfs) -> None:
    vfs = make(tmp=(1 << 20, 20, ["/home/agent"]))
    vfs.write("/home/agent/f", b"x" * (1 << 19))
    assert vfs.error("write", "/tmp/g", b"x" * (1 << 20)) == "ENOSPC"
    assert vfs.stat("/tmp/g").size == 1 << 19
    vfs.unlink("/tmp/g")
    handle = vfs.open("/tmp/h", os.O_RDWR | os.O_CREAT)
    assert vfs.raw("truncate", handle, (1 << 19) + 1) == -errno.ENOSPC
    assert vfs.raw("truncate", handle, 1 << 19) == 0
    assert vfs.raw("fallocate", handle, 0, 1 << 19, 1) == -errno.ENOSPC
    vfs.unlink("/tmp/h")
    assert vfs.error("write", "/tmp/k", b"x") == "ENOSPC"  # still open
    vfs.close_handle(handle)
    vfs.write("/tmp/k", b"x")
    with pytest.raises(OSError) as failure:
        for number in range(30):
            vfs.symlink("t", f"/dev/shm/{number}")
    assert failure.value.errno == errno.ENOSPC
    assert vfs.error("link", "/tmp/k", "/tmp/l") == "ENOSPC"
    for name in vfs.listdir("/dev/shm"):
        vfs.unlink(f"/dev/shm/{name}")
    for number in range(10):  # links cost inodes and give them back
        vfs.link("/tmp/k", f"/tmp/l{number}")
    for number in range(10):
        vfs.rename("/tmp/k", f"/tmp/l{number}") if number == 3 else vfs.unlink(f"/tmp/l{number}")
    for path in ("/tmp/k", "/tmp/l3", "/home/agent/f"):  # two names of one file: rename() left both
        vfs.unlink(path)
    handle = vfs.open("/tmp", os.O_DIRECTORY)
    vfs.op("statfs", handle, OUT)
    kind, _, blocks, free, _, files, files_free = struct.unpack("<7q", vfs.peek(OUT, 56))
    assert (kind, blocks, free) == (0x01021994, 256, 256)
    assert (files, files_free) == (20, 20)
    vfs.write("/tmp/left", b"x")
    vfs.restart()
    assert vfs.listdir("/tmp") == []


def test_small_files_take_little_memory_of_the_host(programs: dict[bool, Path]) -> None:
    """Charged is a file's size: what was larger once, or was to be filled from where no memory is, must not stay so."""
    vfs = Vfs(programs[False], tmp=(8 << 20, 4000, []))  # (AddressSanitizer keeps what is freed)

    def resident() -> int:
        return int(Path(f"/proc/{vfs.process.pid}/statm").read_text().split()[1]) * 4096

    vfs.poke(BUFFER, b"x" * 65536)
    before = resident()
    for number in range(1800):
        handle = vfs.open(f"/tmp/{number}", os.O_RDWR | os.O_CREAT)
        assert vfs.raw("pwrite", handle, BUFFER, 65536, 0) == 65536
        assert vfs.raw("truncate", handle, 1) == 0
        vfs.close_handle(handle)
    for number in range(1800, 3600):
        handle = vfs.open(f"/tmp/{number}", os.O_RDWR | os.O_CREAT)
        assert vfs.raw("pwrite", handle, HOLE, 65536, 0) == -errno.EFAULT
        vfs.close_handle(handle)
    assert vfs.read("/tmp/7") == b"x"
    assert resident() - before < 16 << 20
    handle = vfs.open("/tmp/7", os.O_RDWR)
    assert vfs.raw("truncate", handle, 5000) == 0 and vfs.read("/tmp/7") == b"x" + bytes(4999)
    vfs.close()


def test_unlinked_files_live_while_open(make: MakeVfs) -> None:
    vfs = make()
    for size in (10, 300000):
        vfs.write("/tmp/f", b"a" * size)
        handle = vfs.open("/tmp/f", os.O_RDWR)
        vfs.unlink("/tmp/f")
        assert vfs.fstat(handle).nlink == 0
        assert vfs.pread(handle, size, 0) == b"a" * size
        assert vfs.pwrite(handle, b"b", -1) == 1
        assert vfs.fstat(handle).size == size + 1
        vfs.close_handle(handle)
    anonymous = vfs.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)
    assert vfs.pwrite(anonymous, b"hello", 0) == 5 and vfs.pread(anonymous, 9, 0) == b"hello"
    assert vfs.listdir("/tmp") == []
    vfs.mkdir("/tmp/d")
    vfs.chdir("/tmp/d")
    handle = vfs.open(".", os.O_DIRECTORY)
    vfs.rmdir("/tmp/d")
    assert vfs.error("open", "x", os.O_CREAT | os.O_WRONLY, base=handle) == "ENOENT"
    assert vfs.error("getcwd") == "ENOENT"
    assert [entry.name for entry in vfs.entries(handle)] == [".", ".."]


def test_rename_of_directories(make: MakeVfs) -> None:
    vfs = make()
    vfs.mkdir("/tmp/a")
    vfs.mkdir("/tmp/a/b")
    vfs.write("/tmp/a/b/f", b"1")
    vfs.mkdir("/tmp/c")
    assert vfs.error("rename", "/tmp/a", "/tmp/a/b/x") == "EINVAL"
    assert vfs.error("rename", "/tmp/c", "/tmp/a") == "ENOTEMPTY"
    assert vfs.error("rename", "/tmp/a/b/f", "/tmp/c") == "EISDIR"
    assert vfs.error("rename", "/tmp/c", "/tmp/a/b/f") == "ENOTDIR"
    assert vfs.error("rename", "/tmp/a/b/f", "/tmp/c", 1) == "EEXIST"
    handle = vfs.open("/tmp/a/b", os.O_DIRECTORY)
    vfs.rename("/tmp/a/b", "/tmp/c", 2)  # exchange
    assert vfs.listdir("/tmp/c") == ["f"] and vfs.listdir("/tmp/a/b") == []
    assert vfs.pread(vfs.open("f", base=handle), 5, 0) == b"1"
    vfs.rename("/tmp/c", "/tmp/a/b")
    assert vfs.read("/tmp/a/b/f") == b"1"
    assert vfs.stat("/tmp/a").nlink == 3 and vfs.stat("/tmp").nlink == 3
    vfs.rename("/tmp/a/b", "/dev/shm/b")
    assert vfs.error("rmdir", "/dev/shm/b") == "ENOTEMPTY"
    assert vfs.error("unlink", "/dev/shm/b") == "EISDIR"
    assert vfs.error("rmdir", "/dev/shm/b/f") == "ENOTDIR"
    assert vfs.error("rmdir", "/dev/shm/b/.") == "EINVAL"
    assert vfs.error("rmdir", "/dev/shm/b/..") == "ENOTEMPTY"


def test_mapping(make: MakeVfs, host: Path) -> None:
    vfs = make(mounts={"/m": (host / "shared", WRITABLE)})
    for path in ("/tmp/f", "/m/f"):
        vfs.write(path, b"A" * 5000)
        handle = vfs.open(path, os.O_RDWR)
        assert vfs.op("mapfile", handle, 0x700000, 8192, 3, mmap.MAP_SHARED, 0) == 0
        assert vfs.command(11, b"")[1] == path.encode()
        vfs.poke(0x700000, b"B")
        assert vfs.pread(handle, 2, 0) == b"BA"
        vfs.pwrite(handle, b"C", 4096)
        assert vfs.peek(0x701000, 2) == b"CA"
        assert vfs.op("mapfile", handle, 0x700000, 4096, 3, mmap.MAP_PRIVATE, 4096) == 0
        vfs.poke(0x700000, b"D")
        assert vfs.pread(handle, 1, 4096) == b"C"
        reader, writer = vfs.open(path), vfs.open(path, os.O_WRONLY)
        assert vfs.raw("mapfile", reader, 0x700000, 4096, 3, mmap.MAP_SHARED, 0) == -errno.EACCES
        assert vfs.raw("mapfile", writer, 0x700000, 4096, 1, mmap.MAP_PRIVATE, 0) == -errno.EACCES
        assert vfs.op("mapfile", reader, 0x700000, 4096, 3, mmap.MAP_PRIVATE, 0) == 0
    assert vfs.raw("mapfile", vfs.open("/proc/self/status"), 0x700000, 4096, 1, mmap.MAP_PRIVATE, 0) == -errno.ENODEV


def test_flock(make: MakeVfs, host: Path) -> None:
    import fcntl

    vfs = make(mounts={"/m": (host / "shared", WRITABLE)})
    for path in ("/tmp/f", "/m/f"):
        a, b = (vfs.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
        assert vfs.op("flock", a, fcntl.LOCK_SH) == vfs.op("flock", b, fcntl.LOCK_SH) == 0
        assert vfs.raw("flock", a, fcntl.LOCK_EX) == -errno.EWOULDBLOCK
        vfs.op("flock", b, fcntl.LOCK_UN)
        vfs.op("flock", a, fcntl.LOCK_EX)
        assert vfs.raw("flock", b, fcntl.LOCK_SH | fcntl.LOCK_NB) == -errno.EWOULDBLOCK
        vfs.close_handle(a)
        assert vfs.op("flock", b, fcntl.LOCK_EX) == 0


def test_permission_bits_of_tmp(make: MakeVfs) -> None:
    vfs = make()
    vfs.write("/tmp/f", b"x")
    vfs.chmod("/tmp/f", 0o200)
    assert vfs.error("open", "/tmp/f") == "EACCES"
    assert vfs.error("open", "/tmp/f", os.O_WRONLY) is None
    assert not vfs.access("/tmp/f", os.R_OK) and vfs.access("/tmp/f", os.W_OK)
    vfs.mkdir("/tmp/d")
    vfs.write("/tmp/d/f", b"x")
    vfs.chmod("/tmp/d", 0o500)
    assert vfs.error("write", "/tmp/d/g", b"") == "EACCES"
    assert vfs.error("unlink", "/tmp/d/f") == "EACCES"
    assert vfs.error("rename", "/tmp/d/f", "/tmp/f") == "EACCES"
    vfs.chmod("/tmp/d", 0o600)
    assert vfs.error("stat", "/tmp/d/f") == "EACCES"
    assert stat.S_IMODE(vfs.stat("/tmp").mode) == 0o1777


def test_times_and_owner(make: MakeVfs, host: Path) -> None:
    vfs = make(mounts={"/m": (host / "shared", WRITABLE)})
    for root in ("/tmp", "/m"):
        vfs.write(f"{root}/f", b"x")
        vfs.symlink("f", f"{root}/s")
        vfs.utime(f"{root}/s", (1, 1234567890123456789))
        assert vfs.stat(f"{root}/f").mtime_ns == 1234567890123456789
        vfs.utime(f"{root}/s", (1, 5), 0x100)
        assert (vfs.lstat(f"{root}/s").mtime_ns, vfs.stat(f"{root}/f").mtime_ns) == (5, 1234567890123456789)
        assert vfs.stat(f"{root}/f").uid == vfs.stat(f"{root}/f").gid == 1000
        vfs.poke(OUT, struct.pack("<4q", 0, 1 << 30, 0, (1 << 30) - 1))
        assert vfs.raw("utimens", *vfs.path(f"{root}/f"), OUT, 0, CWD) == -errno.EINVAL


def test_append_and_own_position(make: MakeVfs, host: Path) -> None:
    vfs = make(mounts={"/m": (host / "shared", WRITABLE)}, files={"/etc/f": b"0123456789"})
    for path in ("/tmp/f", "/m/f"):
        vfs.write(path, b"0123456789")
        handle = vfs.open(path, os.O_RDWR | os.O_APPEND)
        vfs.pwrite(handle, b"ab", -1)
        vfs.pwrite(handle, b"X", 0)  # a position is a position, O_APPEND or not: the shim decides
        assert vfs.read(path) == b"X123456789ab"
    for path in ("/tmp/f", "/m/f", "/etc/f"):
        handle = vfs.open(path)
        assert vfs.pread(handle, 4, -1)[1:] == b"123"
        assert vfs.pread(handle, 4, -1) == b"4567"


def test_landlock_paths(make: MakeVfs, host: Path) -> None:
    vfs = make(mounts={"/a": (host / "shared", 0), "/b": (host / "shared/lib", WRITABLE), "/c": (host / "shared/bin/tool", 0)})
    assert vfs.command(9, b"")[0] == 0x10002


def test_bad_configuration(programs: dict[bool, Path], host: Path) -> None:
    for records in (
        {"files": {"relative": b""}},
        {"files": {"/a/../b": b""}},
        {"files": {"/a": b""}, "symlinks": {"/a": "b"}},
        {"files": {"/": b""}},
        {"files": {"/a": b"", "/a/b": b""}},
        {"symlinks": {"/a": ""}},
        {"files": {"/tmp": b""}},
        {"files": {"/" + "n" * 256: b""}},
        {"mounts": {"/x": (Path("/dev/null"), 0)}},
        {"mounts": {"/x": (host, 8)}},
        {"mounts": {"": (host, 0)}},
    ):
        with pytest.raises(OSError):
            Vfs(programs[True], **records)  # type: ignore[arg-type]
