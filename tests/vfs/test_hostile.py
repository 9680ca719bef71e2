"""Operations with bad handles, paths, counts and offsets."""

import errno
import os
import struct
from pathlib import Path

import pytest

from .conftest import SECRET, MakeVfs
from .driver import BUFFER, CWD, HOLE, OP, OUT, PATH1, PATH2, WRITABLE


def test_bad_handles(make: MakeVfs) -> None:
    vfs = make()
    file, directory = vfs.open("/tmp/f", os.O_CREAT | os.O_RDWR), vfs.open("/tmp", os.O_DIRECTORY)
    path_only = vfs.open("/tmp/f", os.O_PATH)
    closed = vfs.open("/tmp/f")
    vfs.close_handle(closed)
    on_handles = (
        "close",
        "pread",
        "pwrite",
        "fstat",
        "readdir",
        "truncate",
        "fsync",
        "statfs",
        "flock",
        "fchmod",
        "fallocate",
        "mapfile",
    )
    for name in on_handles:
        for handle in (0, closed, 5000, 1 << 31, 1 << 32 | file, (1 << 64) - 1, 1 << 63):
            assert vfs.raw(name, handle, BUFFER, 8, 0) == -errno.EBADF, (name, handle)
    for name in ("pread", "pwrite", "truncate", "fallocate", "flock", "fchmod", "fsync"):
        assert vfs.raw(name, path_only, BUFFER, 8, 0) == -errno.EBADF, name
    assert vfs.raw("pread", directory, BUFFER, 8, 0) == -errno.EISDIR
    assert vfs.raw("mapfile", directory, 0x700000, 4096, 1, 2, 0) == -errno.ENODEV
    assert vfs.raw("readdir", file, BUFFER, 100, 0) == -errno.ENOTDIR
    assert vfs.error("open", "x", base=file) == "ENOTDIR"
    assert vfs.error("open", "x", base=closed) == "EBADF"
    assert vfs.error("open", "/tmp/f", base=closed) is None


def test_bad_paths(make: MakeVfs, host: Path) -> None:
    vfs = make(mounts={"/m": (host / "shared", WRITABLE)})
    for op in ("open", "stat", "readlink", "access", "mkdir", "unlink", "rename", "symlink", "link", "chmod", "utimens", "chdir"):
        for text, size, error in (("/tmp/x\0y", 8, "EINVAL"), ("/", 4096, "ENAMETOOLONG"), ("/", 1 << 40, "ENAMETOOLONG")):
            at, _ = vfs.path(text)
            second = (at, size) if op in ("rename", "symlink", "link") else (0, 0)
            assert vfs.raw(op, at, size, *second, CWD) == -getattr(errno, error), op
        for bad in (HOLE, 0, 0x1000, -10):
            second = (bad, 10) if op in ("rename", "symlink", "link") else (0, 0)
            assert vfs.raw(op, bad, 10, *second, CWD) == -errno.EFAULT, op
    for root in ("/tmp", "/m", "/dev", "/proc", ""):
        assert vfs.error("stat", f"{root}/{'n' * 256}") in ("ENAMETOOLONG", "ENOENT"), root
        assert vfs.error("stat", root + "/n" * 2000) == "ENOENT"
        assert vfs.error("stat", root + "/." * 2000 + "/n") == "ENOENT"
        assert vfs.error("stat", root + "/.." * 1300 + "/tmp") is None
    assert vfs.error("mkdir", "/tmp/" + "n" * 255) is None
    assert vfs.error("mkdir", "/tmp/" + "n" * 256) == "ENAMETOOLONG"
    assert vfs.error("mkdir", "/m/" + "n" * 256) == "ENAMETOOLONG"
    vfs.symlink("s/" * 2000, "/tmp/long")
    vfs.symlink("tmp/long/" * 400, "/m/long")
    assert vfs.error("stat", "/tmp/long/" + "x/" * 1000) in ("ENAMETOOLONG", "ELOOP")
    assert vfs.error("stat", "/m/long") in ("ENOENT", "ENAMETOOLONG")
    deep = ""
    with pytest.raises(OSError) as failure:
        for _ in range(100):
            deep += "/" + "d" * 200
            vfs.mkdir("/tmp" + deep)
    assert failure.value.errno == errno.ENAMETOOLONG


LOCK, SEEK, COPY = 29, 30, 31


def test_bad_counts_and_offsets(make: MakeVfs, host: Path) -> None:
    vfs = make(mounts={"/m": (host / "shared", WRITABLE)}, files={"/etc/f": b"0123456789"})
    handles = [vfs.open(path, os.O_RDWR | os.O_CREAT) for path in ("/tmp/f", "/m/f")]
    for handle in (*handles, vfs.open("/etc/f"), vfs.open("/proc/self/status")):
        assert vfs.raw("pread", handle, BUFFER, 10, -2) == -errno.EINVAL
        assert vfs.raw("pread", handle, BUFFER, 10, 1 << 63) == -errno.EINVAL
        assert vfs.raw("pread", handle, BUFFER, 0, 0) == 0
        assert vfs.raw("pread", handle, BUFFER, 10, (1 << 63) - 1) in (0, -errno.EINVAL)
        assert vfs.raw("fallocate", handle, 0xFF00, 0, 10) in (-errno.EOPNOTSUPP, -errno.EBADF)
    for handle in handles:
        assert vfs.pwrite(handle, b"x" * 100000, 0) == 100000
        assert vfs.raw("pwrite", handle, BUFFER, 10, -2) == -errno.EINVAL
        assert vfs.raw("pwrite", handle, BUFFER, 10, (1 << 63) - 1) in (-errno.EFBIG, -errno.EINVAL, -errno.ENOSPC)
        assert vfs.raw("pwrite", handle, HOLE, 10, 0) == -errno.EFAULT
        assert vfs.raw("pread", handle, HOLE, 10, 0) == -errno.EFAULT
        assert vfs.raw("pread", handle, 0x1000, 10, 0) == -errno.EFAULT  # page tables
        assert vfs.raw("pread", handle, BUFFER, 1 << 60, 0) == 100000
        assert vfs.raw("pread", handle, -5, 10, 0) == -errno.EFAULT
        assert vfs.raw("truncate", handle, -1) == -errno.EINVAL
        assert vfs.raw("truncate", handle, 1 << 62) < 0
        assert vfs.raw("fallocate", handle, 0, (1 << 63) - 1, (1 << 63) - 1) == -errno.EFBIG
        assert vfs.raw("fallocate", handle, 0, 0, 0) == -errno.EINVAL
        assert vfs.fstat(handle).size == 100000
        for bad in (
            (0x700001, 4096, 1, 2, 0),
            (0x700000, 4096, 1, 2, 5),
            (0x700000, 0, 1, 2, 0),
            (0x700000, 4096, 0xFF, 2, 0),
            (0x700000, 4096, 1, 4, 0),
            (0x700000, 1 << 60, 1, 2, 0),
            (0x700000, 4096, 1, 2, 1 << 63),
        ):
            assert vfs.raw("mapfile", handle, *bad) == -errno.EINVAL, bad
    handle = handles[0]
    assert vfs.raw(SEEK, handle, 1 << 63, 3) == -errno.ENXIO
    assert vfs.raw(SEEK, handle, 0, 1) == -errno.EINVAL
    assert vfs.raw(SEEK, 99, 0, 3) == vfs.raw(COPY, 99, 0, handle, 0, 1, 1) == -errno.EBADF
    assert vfs.raw(COPY, handle, 0, 99, 0, 1, 0) == -errno.EBADF
    for ranges in (0, 1):
        assert vfs.raw(COPY, handle, 1 << 63, handle, 0, 1, ranges) < 0
        assert vfs.raw(COPY, handle, 0, handle, (1 << 64) - 1, 1, ranges) < 0
        assert vfs.raw(COPY, handle, 0, handles[1], 0, 1 << 62, ranges) in (100000, -errno.EXDEV)
    assert vfs.raw(LOCK, handle, HOLE, 6, 0, 0) == vfs.raw(LOCK, handle, 1 << 62, 37, 0, 0) == -errno.EFAULT
    assert vfs.raw(LOCK, 99, 0x700000, 6, 0, 0) == -errno.EBADF
    last = (1 << 63) - 1  # the place of a file's last byte: there a lock may begin and end
    for kind, start, length, result in (
        (1, last, 1, 0),
        (0, last, 0, 0),
        (1, last, 2, -errno.EOVERFLOW),
        (1, last, last, -errno.EOVERFLOW),
        (1, 1, last, 0),
        (1, 0, -(1 << 63), -errno.EINVAL),
        (1, last, -(1 << 63), -errno.EINVAL),
        (1, last, -last, 0),
        (2, 0, 0, 0),
    ):
        vfs.poke(OUT, struct.pack("hhqqi4x", kind, 0, start, length, 0))
        assert vfs.raw(LOCK, handle, OUT, 6, 0, 0) == result, (kind, start, length)
    for number in (0, 32, 34, 100, 0xFFFF):
        assert vfs.raw(number, 1, 2, 3, 4) == -errno.ENOSYS
    small = vfs.open("/tmp/small", os.O_RDWR | os.O_CREAT)
    assert vfs.raw("pwrite", small, HOLE, 8, 0) == -errno.EFAULT
    assert vfs.raw("pwrite", small, HOLE - 4, 8, 0) == 4  # as far as memory goes
    vfs.op("truncate", small, 8)
    assert vfs.pread(small, 100, 0) == bytes(8)


def test_handles_run_out(make: MakeVfs, host: Path) -> None:
    vfs = make(mounts={"/m": (host / "shared", 0)})
    handles = []
    with pytest.raises(OSError) as failure:
        while True:
            handles.append(vfs.open("/m/bin/tool"))
    assert failure.value.errno == errno.EMFILE
    assert 10 < len(handles) <= 1000  # a VM's share of the cell's descriptors
    vfs.write("/tmp/f", b"x" * 200000)  # stays in the heap
    assert vfs.read("/tmp/f") == b"x" * 200000
    more = []
    with pytest.raises(OSError) as failure:
        while True:
            more.append(vfs.open("/tmp/f"))
    assert failure.value.errno == errno.EMFILE
    assert len(handles) + len(more) == 4096
    assert vfs.raw("mapfile", more[0], 0x700000, 4096, 1, 2, 0) == -errno.EMFILE
    for handle in handles + more:
        vfs.close_handle(handle)
    assert vfs.command(6, b"")[0] == 0
    assert vfs.read("/m/bin/tool") == b"#!"


def test_random_operations_do_no_harm(make: MakeVfs, host: Path) -> None:
    """Well over a hundred thousand fields of noise, in the shapes that reach furthest."""
    import random

    dice = random.Random(7)
    vfs = make(mounts={"/m": (host / "shared", WRITABLE)}, symlinks={"/l": "m/lib"}, tmp=(1 << 20, 200, []))
    descriptors = len(list(Path(f"/proc/{vfs.process.pid}/fd").iterdir()))
    words = ["/tmp", "/m", "/l", "/proc", "a", "b", "..", ".", "", "lib", "self", "fd", "0", "/"]
    interesting = [
        0,
        1,
        2,
        3,
        4,
        5,
        4095,
        4096,
        65536,
        CWD,
        CWD << 32 | CWD,
        PATH1,
        PATH2,
        BUFFER,
        OUT,
        HOLE,
        1 << 63,
        (1 << 64) - 1,
        0x410000,
        0o777,
    ]
    flags = [
        os.O_CREAT,
        os.O_EXCL,
        os.O_TRUNC,
        os.O_RDWR,
        os.O_WRONLY,
        os.O_DIRECTORY,
        os.O_PATH,
        os.O_NOFOLLOW,
        os.O_TMPFILE,
        os.O_APPEND,
    ]
    places = [*range(20), 1 << 62, (1 << 63) - 2, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    for _ in range(15000):
        op = dice.choice([*OP.values(), COPY, LOCK, SEEK])
        args = [dice.choice(interesting) for _ in range(6)]
        if dice.random() < 0.8:
            args[:2] = vfs.path("/".join(dice.choices(words, k=dice.randint(1, 5))))
            if op in (OP["rename"], OP["symlink"], OP["link"]):
                args[2:4] = vfs.path("/".join(dice.choices(words, k=dice.randint(1, 4))), PATH2)
            if op == OP["open"]:
                args[2] = sum({dice.choice(flags) for _ in range(3)})
            args[4] = dice.choice([CWD, CWD << 32 | CWD, dice.randint(0, 20)])
        elif dice.random() < 0.8:
            args[0] = dice.randint(0, 20)
        if op == OP["close"] and dice.random() < 0.6:
            continue
        if op == OP["mapfile"]:
            args[1] = dice.choice([0x700000, 0x710000, HOLE - 4096])
            args[2] = dice.choice([4096, 8192, 0x1000000])
        if op == LOCK:
            kind, whence = dice.choice([0, 1, 2, 3]), dice.choice([0, 1, 2, 3])
            vfs.poke(OUT, struct.pack("hhQQi4x", kind, whence, dice.choice(places), dice.choice(places), 0))
            args[1:3] = OUT, dice.choice([5, 6, 36, 37, 1034])
        vfs.raw(op, *args)
    assert vfs.raw("stat", *vfs.path("/tmp"), 0, OUT, CWD) == 0
    vfs.restart()
    assert len(list(Path(f"/proc/{vfs.process.pid}/fd").iterdir())) == descriptors  # none was lost
    assert (host / "secret/key").read_bytes() == SECRET
    assert sorted(path.name for path in host.iterdir()) == ["secret", "shared"]
