"""The cell's file system, driven without a VM: what a guest may see, what it must not, and that the rest is as on Linux."""

import ctypes
import errno
import mmap
import os
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .vfs_driver import BUFFER, CWD, HOLE, OP, OUT, PATH1, PATH2, SYSTEM, WRITABLE, Vfs, build

SECRET = b"the host's secret"
MakeVfs = Callable[..., Vfs]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    directory = tmp_path_factory.mktemp("harness")
    return {sanitize: build(directory, sanitize) for sanitize in (False, True)}


@pytest.fixture(params=["sanitized", "jailed"])
def make(request: pytest.FixtureRequest, programs: dict[bool, Path]) -> Iterator[MakeVfs]:
    """Makes file systems; each test runs sanitized, and in another build under a seccomp filter of the jail's file calls."""
    sanitize = request.param == "sanitized"
    made: list[Vfs] = []

    def make(**arguments: object) -> Vfs:
        made.append(Vfs(programs[sanitize], jail=not sanitize, **arguments))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for vfs in made:
        vfs.close()


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host: `secret` lies beside `shared`, which is what guests get."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_bytes(SECRET)
    shared = tmp_path / "shared"
    (shared / "lib/sub").mkdir(parents=True)
    (shared / "lib/module.py").write_text("x = 1\n")
    (shared / "lib/sub/data").write_bytes(bytes(range(256)) * 1000)
    (shared / "bin").mkdir()
    (shared / "bin/tool").write_text("#!")
    (shared / "bin/tool").chmod(0o755)
    return tmp_path


# ---- the name tree ----


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


# ---- what must not be seen ----


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


# ---- hostile operations ----


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
            (0x700000, 4096, 1, 3, 0),
            (0x700000, 1 << 60, 1, 2, 0),
            (0x700000, 4096, 1, 2, 1 << 63),
        ):
            assert vfs.raw("mapfile", handle, *bad) == -errno.EINVAL, bad
    for number in (0, 25, 31, 32, 34, 100, 0xFFFF):
        assert vfs.raw(number, 1, 2, 3, 4) == -errno.ENOSYS
    small = vfs.open("/tmp/small", os.O_RDWR | os.O_CREAT)
    assert vfs.raw("pwrite", small, HOLE - 4, 8, 0) == -errno.EFAULT
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
    for _ in range(15000):
        op = dice.choice(list(OP.values()))
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
        vfs.raw(op, *args)
    assert vfs.raw("stat", *vfs.path("/tmp"), 0, OUT, CWD) == 0
    assert (host / "secret/key").read_bytes() == SECRET
    assert sorted(path.name for path in host.iterdir()) == ["secret", "shared"]


# ---- /proc ----


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
    assert b"00400000-00402000 r-xp" in vfs.read("/proc/self/maps").replace(b"400000-402000", b"00400000-00402000")
    assert b"MemTotal:         262144 kB\n" in vfs.read("/proc/meminfo")
    assert vfs.read("/sys/devices/system/cpu/online") == b"0\n"
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
        "self/fdinfo",
        "self/task/1",
        "sysrq-trigger",
    ):
        assert vfs.error("stat", f"/proc/{path}") == "ENOENT", path
    assert vfs.error("open", "/proc/self/status", os.O_WRONLY) == "EACCES"
    for number in range(200):
        vfs.close_handle(vfs.open("/proc/self/maps")) if number % 2 else vfs.open("/proc/self/limits")
    for entry in vfs.listdir("/proc/self"):
        vfs.lstat(f"/proc/self/{entry}")


# ---- the private /tmp ----


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
    vfs.command(2, b"")  # another VM
    assert vfs.listdir("/tmp") == []


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
