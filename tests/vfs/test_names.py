"""The name tree: mounts, synthetic files and links, listings; /proc."""

import errno
import mmap
import os
import stat
import struct
import uuid
from pathlib import Path

from .conftest import MakeVfs
from .driver import BUFFER, HOLE, WRITABLE


def test_parents_of_mounts_are_directories(make: MakeVfs, host: Path) -> None:
    vfs = make(
        mounts={"/usr/lib": (host / "shared/lib", 0), "/root/.pyenv/x": (host / "shared/bin", 0)},
        files={"/etc/hosts": b"127.0.0.1\n"},
    )
    assert vfs.listdir("/") == ["dev", "etc", "proc", "root", "sys", "tmp", "usr", "var"]
    assert vfs.listdir("/root/.pyenv") == ["x"]
    assert vfs.listdir("/usr/lib") == ["module.py", "sub"]
    assert vfs.read("/etc/hosts") == b"127.0.0.1\n"
    assert vfs.read("/usr/../usr//lib/./module.py") == b"x = 1\n"
    assert stat.S_ISDIR(vfs.stat("/root/.pyenv").mode)
    assert vfs.error("read", "/etc/passwd") == "ENOENT"
    assert vfs.error("read", "/usr/bin/x") == "ENOENT"
    assert vfs.error("read", "/etc/hosts/x") == "ENOTDIR"
    assert vfs.error("stat", "/etc/hosts/") == "ENOTDIR"
    assert vfs.error("open", "/usr", os.O_WRONLY) == "EISDIR"
    assert vfs.error("write", "/etc/new", b"x") == "EROFS"
    assert vfs.error("write", "/etc/hosts", b"x", 0) == "EROFS"
    assert vfs.error("mkdir", "/new") == "EROFS"
    assert vfs.error("mkdir", "/usr") == "EEXIST"
    assert vfs.error("rmdir", "/usr") == "EBUSY"
    assert vfs.error("rename", "/tmp", "/usr/x") == "EBUSY"


def test_synthetic_links_and_overlays(make: MakeVfs, host: Path) -> None:
    (host / "shared/lib/module.py").chmod(0o640)
    vfs = make(
        mounts={
            "/usr": (host / "shared", 0),
            "/usr/lib/inner/deep": (host / "shared/bin", 0),
            "/one": (host / "shared/bin/tool", 0),
        },
        symlinks={"/lib": "usr/lib", "/loop": "loop", "/up": "../../../usr/lib/../bin"},
        files={"/usr/lib/module.py": b"replaced"},
    )
    assert vfs.read("/lib/module.py") == b"replaced"
    assert vfs.readlink("/lib") == "usr/lib"
    assert stat.S_ISLNK(vfs.lstat("/lib").mode)
    assert vfs.listdir("/lib/") == ["inner", "module.py", "sub"]
    assert vfs.listdir("/usr/lib/inner") == ["deep"]
    assert vfs.read("/lib/inner/deep/tool") == b"#!"
    assert vfs.read("/up/tool") == b"#!"
    assert vfs.read("/one") == b"#!"
    assert vfs.error("read", "/one/x") == "ENOTDIR"
    assert vfs.error("read", "/loop") == "ELOOP"
    assert vfs.error("open", "/lib", os.O_NOFOLLOW) == "ELOOP"
    assert vfs.error("open", "/lib", os.O_NOFOLLOW | os.O_DIRECTORY) in ("ELOOP", "ENOTDIR")


def test_file_mounts(make: MakeVfs, host: Path) -> None:
    target = host / "shared/bin/tool"
    vfs = make(mounts={"/ro": (target, 0), "/rw": (target, WRITABLE)})
    vfs.write("/rw", b"changed")
    assert target.read_bytes() == b"changed" == vfs.read("/ro")
    assert vfs.error("write", "/ro", b"x") == "EROFS"
    handle = vfs.open("/ro")
    assert vfs.raw("pwrite", handle, BUFFER, 1, 0) == -errno.EBADF
    assert vfs.raw("mapfile", handle, 0x700000, 4096, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, 0) == -errno.EACCES
    vfs.utime("/rw", (5 * 10**9, 7 * 10**9))
    vfs.chmod("/rw", 0o600)
    assert target.stat().st_mtime_ns == 7 * 10**9
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert vfs.error("unlink", "/rw") == "EBUSY"
    assert vfs.error("rename", "/rw", "/tmp/x") == "EBUSY"


def test_listing_in_small_buffers_and_by_cookie(make: MakeVfs, host: Path) -> None:
    many = host / "shared/many"
    many.mkdir()
    for number in range(700):
        (many / f"file-{number:04}-{'x' * (number % 50)}").touch()
    vfs = make(mounts={"/m": (many, 0), "/m/mounted": (host / "shared/lib", 0), "/m/file-0003-xxx": (host / "shared/lib", 0)})
    handle = vfs.open("/m", os.O_DIRECTORY)
    whole = vfs.entries(handle, 30000)
    names = [entry.name for entry in whole]
    assert names[:2] == [".", ".."] and len(set(names)) == len(names)
    assert set(names) - {".", ".."} == {path.name for path in many.iterdir()} | {"mounted"}
    assert next(entry for entry in whole if entry.name == "file-0003-xxx").type == stat.S_IFDIR >> 12
    for size in (88, 200, 4096):
        assert vfs.entries(handle, size) == whole
    for index in (0, 1, 2, 3, 77, 500, len(whole) - 1):
        assert vfs.entries(handle, 1000, whole[index].cookie) == whole[index + 1 :]
    assert vfs.raw("readdir", handle, BUFFER, 20, 0) == -errno.EINVAL
    assert vfs.raw("readdir", handle, BUFFER, 20, whole[5].cookie) == -errno.EINVAL
    assert vfs.raw("readdir", handle, BUFFER, 4096, -1) == 0
    assert vfs.raw("readdir", handle, HOLE, 4096, 0) == -errno.EFAULT
    for entry in whole[2:20]:
        assert vfs.stat(f"/m/{entry.name}").ino == entry.ino


def test_tmp_listing_while_it_changes(make: MakeVfs) -> None:
    vfs = make()
    for number in range(300):
        vfs.write(f"/tmp/{number:03}", b"")
    handle = vfs.open("/tmp", os.O_DIRECTORY)
    seen, cookie = [], 0
    while length := vfs.op("readdir", handle, BUFFER, 200, cookie):
        data, at = vfs.peek(BUFFER, length), 0
        while at < length:
            _, cookie, record, _ = struct.unpack_from("<QqHB", data, at)
            seen.append(os.fsdecode(data[at + 19 : data.index(b"\0", at + 19)]))
            at += record
        for name in seen[2:]:
            if vfs.error("lstat", f"/tmp/{name}") is None:
                vfs.unlink(f"/tmp/{name}")
    assert seen[2:] == [f"{number:03}" for number in range(300)]
    assert vfs.listdir("/tmp") == []


def test_proc(make: MakeVfs) -> None:
    vfs = make()
    vfs.configure("program", b"/usr/bin/python3.11")
    vfs.configure("arg", b"python3")
    vfs.configure("arg", b"agent.py")
    assert vfs.readlink("/proc/self") == "4711"
    assert vfs.readlink("/proc/self/exe") == vfs.readlink("/proc/4711/exe") == "/usr/bin/python3.11"
    assert vfs.read("/proc/self/cmdline") == b"python3\0agent.py\0"
    assert b"VmRSS:\t    4000 kB\n" in vfs.read("/proc/self/status")
    assert b"Pid:\t4711\n" in vfs.read("/proc/thread-self/status")
    assert vfs.read("/proc/self/stat").startswith(b"4711 (python3.11) R 1 ") and len(vfs.read("/proc/self/stat").split()) == 52
    assert [line.split() for line in vfs.read("/proc/self/maps").splitlines()] == [
        b"00400000-00402000 r-xp 00000000 00:00 0 /usr/bin/python3".split(),
        b"00500000-00600000 rw-p 00000000 00:00 0 [stack]".split(),
    ]
    assert vfs.listdir("/proc/self/task") == ["4711", "4712"]
    assert vfs.read("/proc/4711/task/4712/comm") == b"worker\n"
    assert b"State:\tS (sleeping)\n" in vfs.read("/proc/self/task/4712/status")
    assert b"Threads:\t2\n" in vfs.read("/proc/thread-self/status")
    assert vfs.read("/proc/self/task/4711/stat").startswith(b"4711 (python3.11) R 1 ")
    assert vfs.error("stat", "/proc/4712") == vfs.error("stat", "/proc/self/task/04711") == "ENOENT"
    assert b"Max open files            1024                 4096                 files" in vfs.read("/proc/self/limits")
    assert b"MemTotal:         262144 kB\n" in vfs.read("/proc/meminfo")
    assert vfs.read("/sys/devices/system/cpu/online") == b"0\n"
    drawn = [vfs.read("/proc/sys/kernel/random/" + name) for name in ("uuid", "uuid", "boot_id", "boot_id")]
    assert len(set(drawn)) == 3 and drawn[2] == drawn[3]
    assert all(uuid.UUID(each.decode().removesuffix("\n")).version == 4 for each in drawn)
    assert b"tmpfs /tmp tmpfs rw 0 0\n" in vfs.read("/proc/mounts")
    assert "4711" in vfs.listdir("/proc") and "status" in vfs.listdir("/proc/self")
    vfs.chdir("/tmp")
    assert vfs.readlink("/proc/self/cwd") == "/tmp"
    assert vfs.listdir("/proc/self/root") == vfs.listdir("/")
    for path in (
        "1",
        "1/cmdline",
        "PID/status",
        "self/mem",
        "self/root/proc/1",
        "kcore",
        "self/ns",
        "self/task/1",
        "sysrq-trigger",
    ):
        assert vfs.error("stat", f"/proc/{path}") == "ENOENT", path
    assert vfs.error("open", "/proc/self/status", os.O_WRONLY) == "EACCES"
    for number in range(200):
        vfs.close_handle(vfs.open("/proc/self/maps")) if number % 2 else vfs.open("/proc/self/limits")
    for entry in vfs.listdir("/proc/self"):
        vfs.lstat(f"/proc/self/{entry}")


def test_exe_is_what_the_programs_links_lead_to(make: MakeVfs, host: Path) -> None:
    vfs = make(mounts={"/m": (host / "shared", WRITABLE)}, symlinks={"/venv/python": "/m/python"})
    vfs.configure("program", b"/venv/python")
    (host / "shared/python").symlink_to("bin/tool")
    assert vfs.readlink("/proc/self/exe") == "/m/bin/tool"
    assert vfs.read("/proc/self/exe") == b"#!"
    (host / "shared/python").unlink()
    assert vfs.readlink("/proc/self/exe") == "/venv/python"
    vfs.symlink("/proc/self/exe", "/m/python")  # over and over itself
    assert vfs.readlink("/proc/self/exe") == "/venv/python"
    assert vfs.error("read", "/m/python") == vfs.error("read", "/proc/self/exe") == "ELOOP"
