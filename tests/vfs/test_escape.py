"""What a guest must not see or change, whatever paths, links and races it finds."""

import ctypes
import errno
import os
import socket
import stat
import struct
import threading
from pathlib import Path

import pytest

from .conftest import SECRET, MakeVfs
from .driver import BUFFER, SYSTEM, WRITABLE


def test_symlinks_are_the_guests(make: MakeVfs, host: Path) -> None:
    shared = host / "shared"
    for name, target in {
        "abs": host / "secret/key",
        "absdir": host / "secret",
        "up": "../secret/key",
        "updir": "..",
        "deep": "lib/../../secret/key",
        "etc": "/etc/passwd",
        "proc": "/proc/self/root/etc/shadow",
        "self": "/proc/self/fd/0",
        "inner": "/m/lib/module.py",
        "chain": "abs",
        "loop1": "loop2",
        "loop2": "loop1",
        "lib2": "lib",
        "many": "/" + "m/../" * 300 + "m/lib/module.py",
    }.items():
        (shared / name).symlink_to(target)
    for writable in (0, WRITABLE):
        vfs = make(mounts={"/m": (shared, writable)}, files={"/etc/passwd": b"guest's"})
        for name in ("abs", "absdir", "absdir/key", "up", "updir/secret/key", "deep", "chain", "proc", "self"):
            assert vfs.error("read", f"/m/{name}") == "ENOENT", name
        assert vfs.listdir("/m/updir") == vfs.listdir("/")
        assert vfs.read("/m/etc") == b"guest's"
        assert vfs.read("/m/inner") == vfs.read("/m/many") == b"x = 1\n"
        assert vfs.read("/m/lib2/../lib/module.py") == b"x = 1\n"
        assert vfs.error("read", "/m/loop1") == "ELOOP"
        assert vfs.error("read", "/m/" + "../" * 40 + "secret/key") == "ENOENT"
        assert vfs.error("read", f"/m/..{host}/secret/key") == "ENOENT"
        handle = vfs.open("/m/lib/sub", os.O_DIRECTORY)
        assert vfs.error("open", "../../../secret/key", base=handle) == "ENOENT"
        assert vfs.error("open", "../../../../../m/../secret/key", base=handle) == "ENOENT"
        assert vfs.error("write", "/m/abs", b"x") in ("ENOENT", "EROFS")
        assert (host / "secret/key").read_bytes() == SECRET


def test_hosts_proc_sys_dev_stay_hidden_even_in_a_mount_of_the_root(make: MakeVfs) -> None:
    vfs = make(mounts={"/host": (Path("/"), SYSTEM)})
    for path in ("proc/self/environ", "proc/1/cmdline", "proc/self/root/etc/passwd", "proc/version", "sys/kernel/mm", "dev/null"):
        assert vfs.error("read", f"/host/{path}") in ("EACCES", "ENOENT"), path
    assert vfs.error("read", "/host/etc/shadow") in ("EACCES", "ENOENT")
    assert "passwd" in vfs.listdir("/host/etc")


def test_system_mounts_show_what_others_may_read(make: MakeVfs, host: Path) -> None:
    etc = host / "etc"
    (etc / "private/below").mkdir(parents=True)
    (etc / "shadow").write_bytes(SECRET)
    (etc / "private/key").write_bytes(SECRET)
    (etc / "private/below/key").write_bytes(SECRET)
    (etc / "open").write_bytes(b"open")
    for path, mode in {
        "shadow": 0o640,
        "private/key": 0o644,
        "private/below/key": 0o644,
        "open": 0o644,
        "private/below": 0o755,
    }.items():
        (etc / path).chmod(mode)
    etc.chmod(0o755)
    (etc / "link").symlink_to("shadow")
    (etc / "private").chmod(0o710)
    vfs = make(mounts={"/etc": (etc, SYSTEM), "/plain": (etc, 0)})
    assert vfs.read("/etc/open") == b"open"
    for name in ("shadow", "link", "private/key", "private/below/key"):
        assert vfs.error("read", f"/etc/{name}") == "EACCES", name
    assert vfs.error("open", "/etc/private", os.O_DIRECTORY) == "EACCES"
    assert vfs.error("stat", "/etc/private/key") == "EACCES"
    assert not vfs.access("/etc/shadow", os.R_OK) and vfs.access("/etc/open", os.R_OK)
    assert vfs.command(10, b"/etc/shadow")[0] == -errno.EACCES
    assert vfs.command(10, b"/etc/open") == (4, b"open")
    if os.geteuid() == 0:
        assert vfs.read("/plain/private/below/key") == SECRET  # a plain mount shows what the cell's user may read
        assert vfs.stat("/etc/open").uid == 0 and vfs.stat("/plain/open").uid == 1000


def test_special_files_are_refused(make: MakeVfs, host: Path) -> None:
    shared = host / "shared"
    os.mkfifo(shared / "fifo")
    special = {"fifo": "EACCES", "socket": "ENXIO"}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(shared / "socket"))
        try:
            os.mknod(shared / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
            special["device"] = "EACCES"
        except PermissionError:
            pass
        vfs = make(mounts={"/m": (shared, WRITABLE)})
        for name, error in special.items():
            for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_NONBLOCK, os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
                assert vfs.error("open", f"/m/{name}", flags) == error, (name, flags)
            assert not stat.S_ISREG(vfs.stat(f"/m/{name}").mode)
            assert vfs.command(10, f"/m/{name}".encode())[0] == -errno.EACCES
            vfs.unlink(f"/m/{name}")
    assert vfs.error("open", "/dev/null") == "ENXIO"  # the shim's
    assert vfs.stat("/dev/null").rdev == os.makedev(1, 3)


@pytest.mark.parametrize("kind", ["file", "directory", "fifo"])
def test_symlink_swapped_in_while_walking(make: MakeVfs, host: Path, kind: str) -> None:
    """A thread flips a name between what the guest may see and a symlink out; the guest opens it all the time."""
    shared = host / "shared"
    (shared / "good").mkdir()
    (shared / "good/key").write_bytes(b"harmless")
    (shared / "out").symlink_to(host / "secret")
    (shared / "out-key").symlink_to(host / "secret/key")
    (shared / "flip").mkdir()
    (shared / "flip/key").write_bytes(b"harmless")
    (shared / "file").write_bytes(b"harmless")
    os.mkfifo(shared / "pipe")
    names = {"file": ("file", "out-key"), "directory": ("flip", "out"), "fifo": ("file", "pipe")}[kind]
    stop = threading.Event()
    flips = 0

    def flip() -> None:
        nonlocal flips
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
        a, b = (os.fsencode(shared / name) for name in names)
        while not stop.is_set():
            assert exchange(-100, a, -100, b, 2) == 0  # AT_FDCWD, RENAME_EXCHANGE
            flips += 1

    vfs = make(mounts={"/m": (shared, WRITABLE)})
    thread = threading.Thread(target=flip)
    thread.start()
    try:
        seen = opened = 0
        paths = {"directory": ["/m/flip/key", "/m/flip", "/m/flip/../flip/key"]}.get(kind, ["/m/file", "/m/lib/../file"])
        for path in paths * 4:
            for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
                size = vfs.path(path)
                result, _ = vfs.command(
                    8, struct.pack("<4Q", *size, flags, 1500) + (b"key\0" if path.endswith("flip") else SECRET)
                )
                if not path.endswith("flip"):
                    seen += result >> 32
                opened += result & 0xFFFFFFFF
    finally:
        stop.set()
        thread.join()
    assert seen == 0
    assert opened and flips
    assert (host / "secret/key").read_bytes() == SECRET
    assert sorted(path.name for path in (host / "secret").iterdir()) == ["key"]


def test_moved_directories(make: MakeVfs, host: Path) -> None:
    """A handle is a name: what a host process moves away is not followed, what the guest itself moves is."""
    shared = host / "shared"
    vfs = make(mounts={"/m": (shared, WRITABLE)})
    handle = vfs.open("/m/lib/sub", os.O_DIRECTORY)
    vfs.chdir("/m/lib/sub")
    vfs.rename("/m/lib", "/m/moved")
    assert vfs.getcwd() == "/m/moved/sub"
    assert vfs.pread(vfs.open("data", base=handle), 3, 0) == b"\0\1\2"
    (shared / "moved/sub").rename(host / "secret/sub")
    assert vfs.error("open", "data", base=handle) == "ENOENT"
    assert vfs.error("open", "../../key", base=handle) == "ENOENT"
    assert vfs.error("open", "../key", base=handle) == "ENOENT"
    assert vfs.error("getcwd") == "ENOENT"
    assert vfs.error("read", "../key") == "ENOENT"


def test_links_between_mounts(make: MakeVfs, host: Path) -> None:
    """A hard link into a writable mount would make a read-only file writable."""
    (host / "work").mkdir()
    vfs = make(mounts={"/ro": (host / "shared", 0), "/rw": (host / "work", WRITABLE)})
    assert vfs.error("link", "/ro/bin/tool", "/rw/tool") == "EXDEV"
    assert vfs.error("link", "/ro/bin/tool", "/tmp/tool") == "EXDEV"
    assert vfs.error("rename", "/ro/bin/tool", "/rw/tool") == "EROFS"
    assert vfs.error("rename", "/tmp/../rw/x", "/tmp/x") == "ENOENT"
    vfs.write("/rw/x", b"1")
    assert vfs.error("rename", "/rw/x", "/tmp/x") == "EXDEV"
    vfs.symlink("/ro/bin/tool", "/rw/s")
    assert vfs.read("/rw/s") == b"#!"
    assert vfs.error("link", "/rw/s", "/rw/h", 0x400) == "EXDEV"
    vfs.link("/rw/x", "/rw/y")
    assert (host / "work/y").stat().st_nlink == 2


def test_read_only_mounts_stay_so(make: MakeVfs, host: Path) -> None:
    vfs = make(mounts={"/m": (host / "shared", 0)})
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
        assert vfs.error("open", "/m/bin/tool", flags) == "EROFS"
    assert vfs.error("open", "/m/new", os.O_RDONLY | os.O_CREAT) == "EROFS"
    assert vfs.error("open", "/m/bin/tool", os.O_RDONLY | os.O_CREAT) is None
    assert vfs.error("open", "/m/lib", os.O_TMPFILE | os.O_RDWR) == "EROFS"
    for call in (
        ("unlink", "/m/bin/tool"),
        ("rmdir", "/m/bin"),
        ("mkdir", "/m/d"),
        ("symlink", "a", "/m/s"),
        ("link", "/m/bin/tool", "/m/t"),
        ("rename", "/m/bin/tool", "/m/t"),
        ("chmod", "/m/bin/tool", 0o777),
        ("utime", "/m/bin/tool", (0, 0)),
    ):
        assert vfs.error(*call) == "EROFS", call
    handle = vfs.open("/m/bin/tool")
    assert vfs.raw("pwrite", handle, BUFFER, 1, 0) == -errno.EBADF
    assert vfs.raw("truncate", handle, 0) == -errno.EINVAL
    assert vfs.raw("fchmod", handle, 0o777) == -errno.EROFS
    assert vfs.raw("fallocate", handle, 0, 0, 10) == -errno.EBADF
    assert vfs.raw("utimens", 0, 0, 0, 0, handle) == -errno.EROFS
    assert not vfs.access("/m/bin/tool", os.W_OK)
    assert vfs.access("/m/bin/tool", os.R_OK | os.X_OK)


def test_set_id_bits_do_not_reach_the_host(make: MakeVfs, host: Path) -> None:
    vfs = make(mounts={"/m": (host / "shared", WRITABLE)})
    handle = vfs.open("/m/new", os.O_CREAT | os.O_RDWR, 0o6755)
    vfs.chmod("/m/bin/tool", 0o6755)
    vfs.mkdir("/m/dir", 0o6777)
    vfs.op("fchmod", handle, 0o7700)
    for name in ("new", "bin/tool", "dir"):
        assert not (host / "shared" / name).stat().st_mode & 0o6000
    assert stat.S_IMODE((host / "shared/bin/tool").stat().st_mode) == 0o755
