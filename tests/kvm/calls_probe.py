"""System calls about files with good and bad arguments, each by its number: run natively and in a VM, in a directory of its own below
the one that is named, it prints the same: result or errno, and what became of the tree."""

from __future__ import annotations

# The calls below pathlib are what is tested.
# ruff: noqa
import ctypes
import errno
import fcntl
import os
import resource
import shutil
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
NR = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "lseek": 8, "mmap": 9, "munmap": 11, "pread64": 17,
    "pwrite64": 18, "readv": 19, "writev": 20, "access": 21, "dup": 32, "dup2": 33, "sendfile": 40, "fcntl": 72, "flock": 73, "fsync": 74, "fdatasync": 75,
    "truncate": 76, "ftruncate": 77, "getcwd": 79, "chdir": 80, "fchdir": 81, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86,
    "unlink": 87, "symlink": 88, "readlink": 89, "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "utime": 132, "mknod": 133,
    "statfs": 137, "fstatfs": 138, "getxattr": 191, "fgetxattr": 193, "listxattr": 194, "getdents64": 217, "fadvise64": 221, "utimes": 235,
    "openat": 257, "mkdirat": 258, "mknodat": 259, "fchownat": 260, "futimesat": 261, "newfstatat": 262, "unlinkat": 263, "renameat": 264,
    "linkat": 265, "symlinkat": 266, "readlinkat": 267, "fchmodat": 268, "faccessat": 269, "sync_file_range": 277, "utimensat": 280,
    "fallocate": 285, "dup3": 292, "preadv": 295, "pwritev": 296, "syncfs": 306, "renameat2": 316, "memfd_create": 319, "preadv2": 327,
    "pwritev2": 328, "statx": 332, "openat2": 437, "copy_file_range": 326, "pipe2": 293, "ioctl": 16, "faccessat2": 439,
}  # fmt: skip
CWD = -100
NOBODY = 12345

out: list[str] = []
MEMORY = ctypes.create_string_buffer(1 << 16)
NOTHING = LIBC.mmap(None, 4096, 0, 0x22, -1, 0)  # PROT_NONE
FIXED = LIBC.mmap(None, 4096, 1, 0x22, -1, 0)  # PROT_READ
BAD = {"null": 0, "low": 8, "kernel": -4096, "none": NOTHING}

Argument = int | bytes


def call(name: str, *arguments: Argument) -> int:
    """Result, or -errno."""
    passed = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]
    result = int(LIBC.syscall(ctypes.c_long(NR[name]), *passed))
    return -ctypes.get_errno() if result < 0 else result


def word(result: int) -> str:
    return errno.errorcode.get(-result, str(result)) if result < 0 else str(result)


def say(*words: object) -> None:
    out.append(" ".join(map(str, words)))


def buffer() -> int:
    return ctypes.addressof(MEMORY)


def tree() -> Iterator[str]:
    for name in sorted(os.listdir(b".")):
        yield from branch(name)


def branch(path: bytes) -> Iterator[str]:
    st = os.lstat(path)
    what = [os.fsdecode(path)[:20], oct(st.st_mode), st.st_nlink if not stat.S_ISDIR(st.st_mode) else ""]
    if stat.S_ISLNK(st.st_mode):
        what.append(os.fsdecode(os.readlink(path)[:20]))
    elif stat.S_ISREG(st.st_mode):
        what.append(st.st_size)
    yield ",".join(map(str, what))
    if stat.S_ISDIR(st.st_mode) and st.st_mode & 0o500 == 0o500:
        for name in sorted(os.listdir(path)):
            yield from branch(path + b"/" + name)


def plant() -> None:
    for name in os.listdir("."):
        if os.path.isdir(name) and not os.path.islink(name):
            os.chmod(name, 0o700)
            for below, directories, _ in os.walk(name):
                for directory in directories:
                    os.chmod(os.path.join(below, directory), 0o700)
            shutil.rmtree(name)
        else:
            os.unlink(name)
    for name in ("d", "empty", "shut", "d/sub"):
        os.mkdir(name)
    for name in ("f", "g", "d/in", "shut/x"):
        with open(name, "wb") as file:
            file.write(b"0123456789")
    os.symlink("f", "l")
    os.symlink("nowhere", "dangling")
    os.symlink("loop", "loop")
    os.symlink("d", "ld")
    os.chmod("g", 0)
    os.chmod("shut", 0)


PATHS = [
    b"f", b"g", b"d", b"empty", b"l", b"dangling", b"loop", b"loop/x", b"ld", b"ld/in", b"f/x", b"f/", b"d/", b"l/", b"ld/", b"nope", b"nope/x",
    b"nope/", b"dangling/", b"d/.", b"d/..", b".", b"..", b"shut/x", b"shut", b"d/in", b"d/nope", b"", b"n" * 255, b"n" * 256,
    b"d/" * 2047 + b"x", b"d/" * 2047 + b"xy", b"./" * 2047 + b"f",
]  # fmt: skip

O = (
    os.O_RDONLY,
    os.O_WRONLY,
    os.O_RDWR,
    os.O_CREAT | os.O_RDWR,
    os.O_CREAT | os.O_EXCL | os.O_RDWR,
    os.O_TRUNC | os.O_WRONLY,
    os.O_DIRECTORY,
)
FLAGS = [
    *O, os.O_NOFOLLOW, os.O_NOFOLLOW | os.O_DIRECTORY, os.O_PATH, os.O_PATH | os.O_NOFOLLOW, os.O_PATH | os.O_DIRECTORY, os.O_TMPFILE | os.O_RDWR,
    os.O_TMPFILE, os.O_TRUNC, os.O_CREAT, os.O_CREAT | os.O_NOFOLLOW, os.O_APPEND | os.O_WRONLY, os.O_DIRECTORY | os.O_RDWR,
    os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, os.O_TMPFILE | os.O_RDWR | os.O_EXCL,
]  # fmt: skip
T = (ctypes.c_long * 4)(1, 2, 3, 4)
BAD_T = (ctypes.c_long * 4)(1, 2_000_000_000, 3, 4)

ON_PATHS: dict[str, Callable[[bytes], int]] = {
    **{f"open {flags:#o}": lambda p, flags=flags: opened("open", p, flags, 0o640) for flags in FLAGS},  # type: ignore[misc]
    "creat": lambda p: opened("creat", p, 0o600),
    **{f"{name}": lambda p, name=name: call(name, p, buffer()) for name in ("stat", "lstat", "statfs")},  # type: ignore[misc]
    **{f"access {mode}": lambda p, mode=mode: call("access", p, mode) for mode in (0, 1, 2, 4, 6, 7, 8)},  # type: ignore[misc]
    **{f"readlink {n}": lambda p, n=n: call("readlink", p, buffer(), n) for n in (100, 1, 0, -1)},  # type: ignore[misc]
    **{name: lambda p, name=name: call(name, p) for name in ("unlink", "rmdir")},  # type: ignore[misc]
    "mkdir": lambda p: call("mkdir", p, 0o751),
    "chmod": lambda p: call("chmod", p, 0o7711),
    "chown self": lambda p: call("chown", p, os.getuid(), os.getgid()),
    "chown none": lambda p: call("chown", p, -1, -1),
    "chown other": lambda p: call("chown", p, NOBODY, -1),
    "lchown other": lambda p: call("lchown", p, -1, NOBODY),
    **{f"truncate {n}": lambda p, n=n: call("truncate", p, n) for n in (3, 20, 0, -1)},  # type: ignore[misc]
    "chdir": lambda p: back(call("chdir", p)),
    "mknod file": lambda p: call("mknod", p, stat.S_IFREG | 0o640, 0),
    "mknod 0": lambda p: call("mknod", p, 0o666, 0),
    "mknod socket": lambda p: call("mknod", p, stat.S_IFSOCK | 0o640, 0),
    "utimensat": lambda p: call("utimensat", CWD, p, ctypes.addressof(T), 0),
    "utimensat now": lambda p: call("utimensat", CWD, p, 0, 0),
    "utimensat link": lambda p: call("utimensat", CWD, p, ctypes.addressof(T), 0x100),
    "utimensat bad": lambda p: call("utimensat", CWD, p, ctypes.addressof(BAD_T), 0),
    "utimensat flags": lambda p: call("utimensat", CWD, p, 0, 0x200),
    "utimes": lambda p: call("utimes", p, ctypes.addressof(T)),
    "utimes bad": lambda p: call("utimes", p, ctypes.addressof(BAD_T)),
    "utime": lambda p: call("utime", p, ctypes.addressof(T)),
    "faccessat2 link": lambda p: call("faccessat2", CWD, p, 4, 0x100),
    "faccessat2 flags": lambda p: call("faccessat2", CWD, p, 4, 0x400),
    "newfstatat flags": lambda p: call("newfstatat", CWD, p, buffer(), 0x80000),
    "newfstatat empty": lambda p: call("newfstatat", CWD, p, buffer(), 0x1000),
    "statx": lambda p: call("statx", CWD, p, 0, 0x7FF, buffer()),
    "statx link": lambda p: call("statx", CWD, p, 0x100, 0x7FF, buffer()),
    "statx flags": lambda p: call("statx", CWD, p, 0x8, 0x7FF, buffer()),
    "unlinkat flags": lambda p: call("unlinkat", CWD, p, 0x100),
    "fchownat flags": lambda p: call("fchownat", CWD, p, -1, -1, 0x80),
    "getxattr": lambda p: call("getxattr", p, b"user.x", buffer(), 10) if call("getxattr", p, b"user.x", buffer(), 10) not in (-61, -95) else 0,
    "symlink": lambda p: call("symlink", b"to", p),
    "symlink from": lambda p: call("symlink", p, b"made"),
}  # fmt: skip


def opened(name: str, *arguments: Argument) -> int:
    """Closed again; 0 for a descriptor."""
    fd = call(name, *arguments)
    if fd < 0:
        return fd
    call("close", fd)
    return 0


def back(result: int) -> int:
    os.chdir(HOME)
    return result


def short(path: bytes) -> str:
    return os.fsdecode(path if len(path) < 40 else path[:6] + b"*%d" % len(path))


PLANTED: list[str] = []  # the tree as plant() makes it


def changing(words: list[object], do: Callable[[], int]) -> None:
    result = do()
    after = list(tree())
    say(*words, "=", word(result), *sorted(set(PLANTED) ^ set(after)))
    if after != PLANTED:
        plant()


def on_paths() -> None:
    plant()
    PLANTED.extend(tree())
    for name, do in ON_PATHS.items():
        for path in PATHS:
            changing([name, short(path)], lambda do=do, path=path: do(path))  # type: ignore[misc]


def on_pairs() -> None:
    paths = [path for path in PATHS if len(path) < 256]
    for name, flags in (
        ("rename", 0),
        ("renameat2", 1),
        ("renameat2", 2),
        ("renameat2", 3),
        ("renameat2", 8),
        ("link", 0),
        ("linkat", 0x400),
    ):
        for source in paths:
            for target in paths:
                if name != "rename" and (source not in PATHS[::2] or target not in PATHS[::3]):
                    continue
                if flags == 0:
                    changing([name, short(source), short(target)], lambda s=source, t=target, n=name: call(n, s, t))  # type: ignore[misc]
                else:
                    changing([name, flags, short(source), short(target)],
                             lambda s=source, t=target, n=name, f=flags: call(n, CWD, s, CWD, t, f))  # type: ignore[misc]  # fmt: skip


def descriptors() -> dict[str, int]:
    plant()
    pipe = os.pipe()
    ends = socket.socketpair()
    found = {
        "reading": os.open("f", os.O_RDONLY), "writing": os.open("f", os.O_WRONLY), "both": os.open("f", os.O_RDWR),
        "appending": os.open("f", os.O_RDWR | os.O_APPEND), "path": os.open("f", os.O_PATH), "directory": os.open("d", os.O_RDONLY),
        "directory path": os.open("d", os.O_PATH), "pipe out": pipe[0], "pipe in": pipe[1], "socket": ends[0].detach(),
        "null": os.open("/dev/null", os.O_RDWR), "event": os.eventfd(3), "memory": os.memfd_create("m"), "gone": os.open("g2", os.O_RDWR | os.O_CREAT),
        "unnamed": os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600), "closed": 700, "none": -1, "huge": 1 << 40 | 900,
    }  # fmt: skip
    ends[1].detach()
    os.unlink("g2")
    for kind in ("memory", "gone", "unnamed"):
        os.pwrite(found[kind], b"9876543210", 0)
    return found


def flock(kind: int, whence: int = 0, start: int = 0, length: int = 0) -> int:
    struct = (ctypes.c_short * 16)(kind, whence)
    ctypes.memmove(ctypes.addressof(struct) + 8, (ctypes.c_long * 2)(start, length), 16)
    KEPT.append(struct)
    return ctypes.addressof(struct)


def vector(*pieces: tuple[int, int]) -> int:
    struct = (ctypes.c_long * (2 * len(pieces)))(*(word for piece in pieces for word in piece))
    KEPT.append(struct)
    return ctypes.addressof(struct)


def freed() -> int:
    page = call("mmap", 0, 4096, 3, 0x22, -1, 0)
    call("munmap", page, 4096)
    return page


KEPT: list[object] = []
# No two kernels agree on them, or nobody asks: where a directory's end is, what an eventfd does with a place or an owner, which of two
# reasons comes first: for not mapping a pipe, of a bad place, of flags; whose an eventfd is.
UNLIKE = {("directory", "lseek"), ("event", "lseek"), ("event", "fchown"), ("event", "utimensat"), ("event", "fstatfs"), ("pipe in", "mmap"),
          ("pipe out", "mmap"), ("event", "faccessat2")}  # fmt: skip
BIG = 1 << 62


def on_descriptors() -> None:
    at = buffer()
    iov = vector((at, 3), (at + 10, 4))
    calls: dict[str, Callable[[int], int]] = {
        "pwrite": lambda f: call("pwrite64", f, b"abc", 3, 2), "pwrite neg": lambda f: call("pwrite64", f, b"abc", 3, -5),
        "pread": lambda f: call("pread64", f, at, 4, 1), "pread neg": lambda f: call("pread64", f, at, 4, -1),
        "pread far": lambda f: call("pread64", f, at, 4, BIG),
        "pwrite 0": lambda f: call("pwrite64", f, at, 0, 0),
        **{f"lseek {o} {w}": lambda f, o=o, w=w: call("lseek", f, o, w) for o in (0, 4, -1, -100, BIG) for w in (0, 1, 2)},  # type: ignore[misc]
        "lseek 9": lambda f: call("lseek", f, 0, 9), "lseek back": lambda f: call("lseek", f, 0, 0),
        "preadv": lambda f: call("preadv", f, iov, 2, 0, 0), "pwritev": lambda f: call("pwritev", f, iov, 2, 0, 0),
        "preadv neg": lambda f: call("preadv", f, iov, 2, -2, -1), "preadv many": lambda f: call("preadv", f, iov, 1025, 0, 0),
        "preadv minus": lambda f: call("preadv", f, vector((at, -1)), 1, 0, 0), "preadv none": lambda f: call("preadv", f, iov, 0, 0, 0),
        "preadv2 flags": lambda f: call("preadv2", f, iov, 2, 0, 0, 0x4000), "pwritev2 flags": lambda f: call("pwritev2", f, iov, 2, 0, 0, 0x4000),
        **{f"ftruncate {n}": lambda f, n=n: call("ftruncate", f, n) for n in (12, 10, -1)},  # type: ignore[misc]
        "fsync": lambda f: call("fsync", f), "fdatasync": lambda f: call("fdatasync", f), "syncfs": lambda f: call("syncfs", f),
        "fstat": lambda f: call("fstat", f, at), "fstatfs": lambda f: call("fstatfs", f, at),
        "fchown none": lambda f: call("fchown", f, -1, -1),
        "utimensat": lambda f: call("utimensat", f, 0, 0, 0), "utimensat flags": lambda f: call("utimensat", f, 0, 0, 0x100),
        **{f"fadvise {n} {a}": lambda f, n=n, a=a: call("fadvise64", f, 0, n, a) for n in (0, -1) for a in (0, 5, 9)},  # type: ignore[misc]
        **{f"flock {o}": lambda f, o=o: call("flock", f, o) for o in (5, 6, 8, 4, 0, 3, 7)},  # type: ignore[misc]
        **{f"fallocate {m} {o} {n}": lambda f, m=m, o=o, n=n: call("fallocate", f, m, o, n)  # type: ignore[misc]
           for m, o, n in ((0, 0, 5), (1, 0, 5), (2, 0, 5), (3, 0, 0), (0, -1, 5), (0, 0, 0), (0, 5, -1), (64, 0, 5), (0, BIG, BIG), (0, BIG * 2 - 1, 5))},
        "getdents small": lambda f: call("getdents64", f, at, 1), "fchdir": lambda f: back(call("fchdir", f)),
        **{f"fcntl {c}": lambda f, c=c: call("fcntl", f, c, 0) for c in (1, 3, 777)},  # type: ignore[misc]
        "dupfd bad": lambda f: call("fcntl", f, 0, -1), "dup2 bad": lambda f: call("dup2", f, -1), "dup3 same": lambda f: call("dup3", f, f, 0),
        "dup3 flags": lambda f: call("dup3", f, 650, 0x10),
        **{f"lock {c} {k}": lambda f, c=c, k=k: call("fcntl", f, c, flock(k)) for c in (5, 6, 36, 37) for k in (0, 1, 2, 7)},  # type: ignore[misc]
        "lock whence": lambda f: call("fcntl", f, 6, flock(2, 9)), "lock pointer": lambda f: call("fcntl", f, 6, 8),
        "lock freed": lambda f: call("fcntl", f, 6, freed()), "lock shown freed": lambda f: call("fcntl", f, 5, freed()),
        "openat": lambda f: opened("openat", f, b"in", 0, 0), "openat absolute": lambda f: opened("openat", f, b"/dev/null", 0, 0),
        "mkdirat": lambda f: call("mkdirat", f, b"sub", 0o700), "unlinkat": lambda f: call("unlinkat", f, b"nope", 0),
        "fstatat": lambda f: call("newfstatat", f, b"in", at, 0), "fstatat empty": lambda f: call("newfstatat", f, b"", at, 0x1000),
        "fstatat none": lambda f: call("newfstatat", f, b"", at, 0), "statx empty": lambda f: call("statx", f, b"", 0x1000, 0x7FF, at),
        "readlinkat empty": lambda f: call("readlinkat", f, b"", at, 50), "faccessat": lambda f: call("faccessat", f, b"in", 0),
        "faccessat2 empty": lambda f: call("faccessat2", f, b"", 4, 0x1000), "faccessat2 none": lambda f: call("faccessat2", f, b"", 4, 0),
        "renameat": lambda f: call("renameat", f, b"nope", f, b"other"), "symlinkat": lambda f: call("symlinkat", b"x", f, b"sub"),
        "linkat": lambda f: call("linkat", f, b"nope", f, b"other", 0), "fchmodat": lambda f: call("fchmodat", f, b"in", 0o600),
        "mmap": lambda f: min(call("mmap", 0, 4096, 1, 2, f, 0), 0), "mmap shared": lambda f: min(call("mmap", 0, 4096, 3, 1, f, 0), 0),
        "mmap odd": lambda f: min(call("mmap", 0, 4096, 1, 2, f, 100), 0),
        "openat2 size": lambda f: call("openat2", f, b"in", at, 8), "fgetxattr": lambda f: min(call("fgetxattr", f, 8, at, 5), 0),
    }  # fmt: skip
    for kind, fd in descriptors().items():
        for name, do in calls.items():
            if (
                (kind, name.split()[0]) in UNLIKE
                or ((fd == -1 or fd > 600) and " neg" in name)
                or (kind != "both" and "v2 flags" in name)
            ):
                continue
            ctypes.memset(at, 0, 64)
            say(kind, name, "=", word(do(fd)), MEMORY.raw[:14] if name.startswith(("pread", "preadv")) else "")
    streams()


def streams() -> None:
    """What is read and written without a place; nothing here waits."""
    at = buffer()
    for kind, fd in descriptors().items():
        if kind not in ("pipe out", "socket", "event"):
            ctypes.memset(at, 0, 64)
            say(kind, "read", word(call("read", fd, at, 4)), MEMORY.raw[:6], "write", word(call("write", fd, b"xy", 2)))
            say(
                kind,
                "readv",
                word(call("readv", fd, vector((at, 2), (at, 3)), 2)),
                "writev",
                word(call("writev", fd, vector((at, 2)), 1)),
            )
            say(kind, "at", word(call("lseek", fd, 0, 1)))


def bad_pointers() -> None:
    plant()
    fd = os.open("f", os.O_RDWR)
    directory = os.open("d", os.O_RDONLY)
    for label, p in BAD.items():
        for name, arguments in {
            "open": (p, 0, 0), "creat": (p, 0), "stat": (p, buffer()), "access": (p, 0), "mkdir": (p, 0), "unlink": (p,), "rmdir": (p,),
            "rename": (p, b"x"), "link": (p, b"x"), "symlink": (p, b"x"), "readlink": (p, buffer(), 9), "chmod": (p, 0), "chown": (p, -1, -1),
            "truncate": (p, 0), "statfs": (p, buffer()), "chdir": (p,), "mknod": (p, 0o600, 0), "utime": (p, 0), "getxattr": (p, b"user.x", 0, 0),
            "read": (fd, p, 5), "write": (fd, p, 5), "pread64": (fd, p, 5, 0), "pwrite64": (fd, p, 5, 0), "readv": (fd, p, 1), "writev": (fd, p, 1),
            "fstat": (fd, p), "fstatfs": (fd, p), "getdents64": (directory, p, 100), "getcwd": (p, 200), "memfd_create": (p, 0),
            "openat2": (CWD, b"f", p, 24), "listxattr": (p, 0, 0),
        }.items():  # fmt: skip
            say(label, name, word(call(name, *arguments)))
        for name, arguments in {
            "stat": (b"f", p), "lstat": (b"l", p), "statfs": (b"f", p), "readlink": (b"l", p, 9), "rename": (b"f", p), "link": (b"f", p),
            "symlink": (b"f", p), "newfstatat": (CWD, b"f", p, 0), "statx": (CWD, b"f", 0, 0x7FF, p), "fcntl": (fd, 5, p),
            "preadv": (fd, vector((p, 4)), 1, 0, 0), "pwritev": (fd, vector((p, 4)), 1, 0, 0),
        }.items():  # fmt: skip
            say(label, "second", name, word(call(name, *arguments)))
        if p:
            say(label, "times", word(call("utimensat", CWD, b"f", p, 0)), word(call("utimes", b"f", p)))
    for name, arguments in {
        "read": (fd, FIXED, 5), "pread64": (fd, FIXED, 5, 0), "stat": (b"f", FIXED), "fstat": (fd, FIXED), "readlink": (b"l", FIXED, 9),
        "getcwd": (FIXED, 200), "statfs": (b"f", FIXED), "getdents64": (directory, FIXED, 100),
    }.items():  # fmt: skip
        say("fixed", name, word(call(name, *arguments)))
    say(
        "getcwd",
        word(call("getcwd", buffer(), 1)),
        word(call("getcwd", buffer(), 0)),
        call("getcwd", buffer(), 300) == len(HOME) + 1,
    )
    say(
        "memfd",
        word(call("memfd_create", b"m" * 250, 0)),
        word(call("memfd_create", b"m", 0x8000)),
        word(call("memfd_create", b"m", 0) > 0),
    )


def partly() -> None:
    """A piece that ends where memory ends, vectors with holes in them."""
    plant()
    edge = LIBC.mmap(None, 8192, 3, 0x22, -1, 0)
    LIBC.mprotect(ctypes.c_void_p(edge + 4096), 4096, 0)
    with open("long", "wb") as file:
        file.write(bytes(range(256)) * 64)
    fd = os.open("long", os.O_RDWR)
    for name in ("pread64", "pwrite64"):
        for room in (1, 100, 4096):
            result = call(name, fd, edge + 4096 - room, 8192, 0)
            say(name, room, word(result) if result < 0 or name == "pread64" else "some" if result else 0)
    at = buffer()
    say("readv hole", word(call("preadv", fd, vector((at, 10), (8, 10), (at, 10)), 3, 0, 0)))
    say("writev hole", word(call("pwritev", fd, vector((at, 10), (8, 10), (at, 10)), 3, 0, 0)))
    say("path at the edge", word(opened("open", edge + 4096 - 5, 0, 0)))


def offsets() -> None:
    """What descriptors of one description share, and others do not; appends."""
    plant()
    a = os.open("f", os.O_RDWR)
    b = os.dup(a)
    c = os.open("f", os.O_RDWR | os.O_APPEND)
    again = os.open(f"/proc/self/fd/{a}", os.O_RDONLY)
    say(os.read(a, 3), os.read(b, 3), os.read(c, 2), os.read(again, 4), os.lseek(b, 0, 1))
    say(os.write(c, b"END"), os.lseek(c, 0, 1), os.lseek(a, 0, 1), os.pwrite(c, b"!", 0), os.fstat(a).st_size)
    os.ftruncate(a, 2)
    say(os.read(b, 9), os.lseek(b, 0, 1), os.write(b, b"far"), os.pread(a, 30, 0))
    fcntl.fcntl(b, fcntl.F_SETFL, fcntl.fcntl(b, fcntl.F_GETFL) | os.O_APPEND)
    say(os.lseek(a, 0, 0), os.write(a, b"tail"), os.pread(c, 30, 0), os.fstat(c).st_size, oct(fcntl.fcntl(a, fcntl.F_GETFL)))
    os.unlink("f")
    say(
        os.fstat(a).st_nlink,
        os.readlink(f"/proc/self/fd/{a}").endswith("/f (deleted)"),
        len(os.read(os.open(f"/proc/self/fd/{a}", 0), 99)),
    )
    m = os.memfd_create("some")
    say(os.write(m, b"memory"), os.readlink(f"/proc/self/fd/{m}"), oct(os.fstat(m).st_mode), os.fstat(m).st_nlink)
    say(sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) in (a, b, c, m)) == sorted((a, b, c, m)))
    r, w = os.pipe()
    say(os.readlink(f"/proc/self/fd/{r}").startswith("pipe:["), stat.S_ISFIFO(os.stat(f"/proc/self/fd/{w}").st_mode))
    os.close(w)
    say(os.path.exists(f"/proc/self/fd/{w}"), os.path.lexists(f"/proc/self/fd/{r}"), os.access(f"/proc/self/fd/{a}", os.F_OK))


GETLK, SETLK, SETLKW, OFD_GETLK, OFD_SETLK, OFD_SETLKW = 5, 6, 7, 36, 37, 38
RD, WR, UN = 0, 1, 2


def asked(fd: int, command: int, kind: int, whence: int = 0, start: int = 0, length: int = 0) -> str:
    """fcntl() with a lock: its result, and for the two that look what they found. (Numbers of processes differ: ours, or not.)"""
    struct = flock(kind, whence, start, length)
    result = word(call("fcntl", fd, command, struct))
    if command not in (GETLK, OFD_GETLK):
        return result
    shorts, longs = (ctypes.c_short * 2).from_address(struct), (ctypes.c_long * 2).from_address(struct + 8)
    pid = ctypes.c_int.from_address(struct + 24).value
    return f"{result} {list(shorts)} {list(longs)} {'us' if pid == os.getpid() else pid}"


def locks() -> None:
    """What conflicts with what: POSIX locks are the process's, the others a description's, flock()'s are apart from both."""
    plant()
    for length in (4, 0):
        for first, second in ((a, b) for a in (SETLK, OFD_SETLK) for b in (SETLK, OFD_SETLK)):
            for kinds in ((RD, RD), (RD, WR), (WR, RD), (WR, WR)):
                a, b = os.open("f", os.O_RDWR), os.open("f", os.O_RDWR)
                twin = os.dup(a)
                say("lock", length, first, second, kinds, asked(a, first, kinds[0], 0, 2, length), asked(b, second, kinds[1], 0, 5, 3),
                    asked(twin, second, kinds[1], 0, 4, 2), asked(b, GETLK, WR), asked(b, OFD_GETLK, WR), asked(twin, OFD_GETLK, RD),
                    asked(a, first, UN, 0, 3, 1), asked(b, second, kinds[1], 0, 3, 1), asked(a, OFD_GETLK, WR))  # fmt: skip
                os.close(twin)  # with which the process's locks go
                say("after a close", asked(b, OFD_GETLK, WR), asked(b, OFD_SETLK, WR))
                os.close(a)
                say("after the last", asked(b, OFD_GETLK, WR), asked(b, OFD_SETLK, WR), asked(b, GETLK, WR, 0, 100, 1))
                os.close(b)
    say("split and merge")
    a, b = os.open("f", os.O_RDWR), os.open("f", os.O_RDWR)
    for kind, start, length in (
        (WR, 0, 100),
        (UN, 10, 10),
        (RD, 30, 10),
        (WR, 35, 5),
        (UN, 0, 5),
        (WR, 10, 10),
        (RD, 0, 0),
        (UN, 50, 0),
        (WR, 20, -10),
    ):
        say(kind, start, length, asked(a, OFD_SETLK, kind, 0, start, length))
        at = 0
        while at < 120:  # all that is there, a range at a time
            found = asked(b, OFD_GETLK, WR, 0, at, 0)
            say(at, found)
            if f"[{UN}" in found:
                break
            start, size = eval(found[found.index("] [") + 2 : found.rindex("]") + 1])
            at = start + size if size else 1000
    os.close(a)
    os.close(b)
    a = os.open("f", os.O_RDWR)
    os.lseek(a, 7, 0)
    for whence, start, length in ((1, 0, 2), (1, -7, 1), (1, -8, 1), (2, 0, 5), (2, -3, 0), (2, -30, 5), (0, 0, -1), (0, 5, -5), (0, 5, -6),
                                  (1, BIG * 2 - 1, 1), (0, BIG, BIG), (0, BIG, BIG + 1), (0, BIG * 2 - 1, 0), (3, 0, 0), (0, -1, 0)):  # fmt: skip
        b = os.open("f", os.O_RDWR)
        say(
            "at",
            whence,
            start,
            length,
            asked(a, OFD_SETLK, WR, whence, start, length),
            asked(b, OFD_GETLK, RD),
            asked(a, OFD_SETLK, UN),
        )
        os.close(b)
    say("of others")
    ro, wo = os.open("f", os.O_RDONLY), os.open("f", os.O_WRONLY)
    say(
        asked(ro, SETLK, RD),
        asked(ro, SETLK, WR),
        asked(wo, SETLK, RD),
        asked(wo, SETLK, WR),
        asked(ro, OFD_SETLK, WR),
        asked(ro, GETLK, WR),
    )
    say(
        asked(os.open("d", os.O_RDONLY), SETLK, RD),
        asked(ro, SETLK, UN),
        asked(ro, SETLKW, RD),
        asked(wo, SETLKW, WR),
        asked(wo, OFD_GETLK, WR),
    )
    os.close(ro)
    say(asked(wo, OFD_SETLK, WR), asked(wo, OFD_SETLKW, WR, 0, 5, 5))
    os.close(wo)
    say("flock")
    a, b = os.open("f", os.O_RDONLY), os.open("f", os.O_RDONLY)
    c = os.dup(a)
    for fd, how in ((a, 1), (b, 1), (a, 2), (b, 2), (a, 1), (c, 2), (b, 1), (c, 8), (b, 2), (a, 1), (b, 8), (a, 2), (b, 1)):
        say("abc"["abc".index({a: "a", b: "b", c: "c"}[fd])], how, word(call("flock", fd, how | 4)))
    os.close(a)
    say(word(call("flock", b, 2 | 4)))
    os.close(c)
    say(word(call("flock", b, 2 | 4)), asked(b, SETLK, RD), word(call("flock", b, 8)))
    os.close(b)


def many_locks() -> None:
    """More ranges than anybody needs: some number of them is too many for a VM, not for Linux."""
    a = os.open("f", os.O_RDWR)
    say("many", {asked(a, SETLK, WR, 0, 2 * i, 1) for i in range(1500)}, asked(a, OFD_GETLK, RD, 0, 1001, 2000))
    os.close(a)


def moving() -> None:
    """Bytes from file to file, with offsets and without; where data are; what ioctl() says of files."""
    found = descriptors() | {"other": os.open("moved", os.O_RDWR | os.O_CREAT, 0o600)}
    for fd in (found["other"], found["memory"]):
        os.ftruncate(fd, 0)
    os.pwrite(found["other"], b"abcdefghijklmnop", 0)
    offsets = (ctypes.c_long * 2)()
    at = ctypes.addressof(offsets)
    files = (
        "reading",
        "writing",
        "both",
        "appending",
        "other",
        "path",
        "directory",
        "pipe in",
        "null",
        "event",
        "closed",
        "unnamed",
    )
    for a in files:
        for b in files:
            if (a, b) == ("event", "null"):
                continue  # (it has a reader for splices, and gives what it counted)
            for into, out_of, n in ((0, 0, 3), (1, 1, 4), (1, 0, 0), (0, 5, 100), (2, 12, 2)):
                offsets[0], offsets[1] = into, out_of
                result = word(call("copy_file_range", found[a], at if into else 0, found[b], at + 8 if out_of else 0, n, 0))
                say("copy", a, b, into, out_of, n, result, list(offsets), *places(found, a, b))
            if b not in ("pipe in", "event", "closed") and a != b:  # (which of two reasons comes first)
                for start, n in ((0, 3), (2, 5), (8, 100), (-1, 2)):
                    offsets[0] = start
                    say(
                        "send",
                        a,
                        b,
                        start,
                        n,
                        word(call("sendfile", found[b], found[a], at, n)),
                        offsets[0],
                        *places(found, a, b),
                    )
                say("send", a, b, word(call("sendfile", found[b], found[a], 0, 3)), *places(found, a, b))
    f, g = found["both"], found["other"]
    os.ftruncate(f, 10)
    for into, out_of, n, flags in ((0, 2, 5, 0), (0, 5, 5, 0), (0, 4, 5, 0), (5, 0, 100, 0), (9, 9, 5, 0), (10, 0, 5, 0), (-1, 0, 5, 0), (0, -1, 5, 0),
                                   (0, BIG * 2 - 1, 5, 0), (BIG * 2 - 1, 0, 5, 0), (0, 0, 5, 1), (0, 0, -1, 0), (3, 20, -1, 0)):  # fmt: skip
        for fds in ((f, f), (f, g), (f, os.open("f", os.O_RDWR))):
            offsets[0], offsets[1] = into, out_of
            say(
                "range",
                into,
                out_of,
                n,
                flags,
                word(call("copy_file_range", fds[0], at, fds[1], at + 8, n, flags)),
                list(offsets),
                os.fstat(f).st_size,
            )
    say("pointers", *(word(call("copy_file_range", f, p, g, q, 3, 0)) for p, q in ((8, 0), (0, 8), (NOTHING, at), (at, FIXED))))
    for fd in (found["unnamed"], os.memfd_create("sparse"), os.open("sparse", os.O_RDWR | os.O_CREAT)):
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"x" * 5000, 9000)
        for size in (20_000, 1_000_000):
            os.ftruncate(fd, size)
            for whence in (3, 4):
                say(
                    "sparse",
                    size,
                    whence,
                    *(
                        word(call("lseek", fd, o, whence))
                        for o in (0, 1, 4096, 8191, 8192, 9000, 14000, 16383, 16384, 19_999, 20_000, 999_999, BIG, -1)
                    ),
                )
            os.lseek(fd, 7, 0)
            for what in (0x541B, 2, 0x40049409, 0x5413, 0x5401, 0xDEAD):
                if what > 0x40000000 and os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd"):
                    continue
                MEMORY[0:4] = b"\0\0\0\0"
                say(
                    "ioctl",
                    hex(what),
                    word(call("ioctl", fd, what, found["reading"] if what > 0x40000000 else buffer())),
                    MEMORY.raw[:4],
                )
    for kind in ("directory", "null", "event", "closed"):
        say("ioctl", kind, *(word(call("ioctl", found[kind], what, buffer())) for what in (0x541B, 0x5401, 0xDEAD)))
    for fd in found.values():
        if fd < 600:
            call("close", fd)


def places(found: dict[str, int], *kinds: str) -> list[str]:
    """Where their descriptions are, and their sizes."""
    return [
        f"{os.lseek(found[kind], 0, 1)}/{os.fstat(found[kind]).st_size}"
        for kind in kinds
        if kind not in ("path", "directory", "pipe in", "null", "event", "closed")
    ]


def naming() -> None:
    """linkat() of what is open: by /proc, and by the descriptor alone."""
    found = descriptors()
    found["kept"] = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
    os.write(found["unnamed"], b"now it has a name")
    for kind, fd in found.items():
        by = b"/proc/self/fd/%d" % (fd & 0xFFFFFFFF)
        say(
            kind,
            word(call("linkat", CWD, by, CWD, b"by-proc", 0x400)),
            word(call("linkat", CWD, by, CWD, b"not-followed", 0)),
            *tree(),
        )
        for name in (b"by-proc", b"by-fd"):
            if os.path.exists(name):
                os.unlink(name)
    found["unnamed"] = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
    for kind, fd in found.items():
        if kind in ("pipe in", "pipe out", "socket", "event", "null"):
            continue  # (kernels differ: of another file system, or no such file)
        say(kind, word(call("linkat", fd, b"", CWD, b"by-fd", 0x1000)), word(call("linkat", fd, b"", CWD, b"by-fd", 0)), *tree())
        if os.path.exists("by-fd"):
            os.unlink("by-fd")


def resolving() -> None:
    """openat2(): what a path may lead over."""
    plant()
    os.symlink("/f", "d/absolute")
    os.symlink("../f", "d/up")
    os.symlink("../../../../../../f", "d/far")
    os.symlink("/", "d/root")
    os.symlink("/proc/self/fd/%d" % os.open("f", os.O_RDONLY), "d/magic")
    os.symlink("sub/../in", "d/within")
    fd, d = os.open("f", os.O_RDONLY), os.open("d", os.O_RDONLY)
    paths = ["in", "sub", "sub/../in", "../f", "absolute", "up", "far", "root", "root/in", "magic", "within", "/in", "/../in", "/sub/..", "..", ".", "/",
             f"/proc/self/fd/{fd}", "/proc/self/fd", "/proc/self/status", "/proc/self/cwd", "/proc/self/exe", "/proc/self/root/proc", "/proc/self",
             "/dev/null", "made", "/made", "sub/../../f", "nope/in", ""]  # fmt: skip
    for flags in (os.O_RDONLY, os.O_PATH | os.O_NOFOLLOW, os.O_CREAT | os.O_WRONLY, os.O_DIRECTORY, os.O_TRUNC | os.O_WRONLY):
        for resolve in (0, 1, 2, 4, 8, 16, 32, 3, 6, 10, 18, 24, 9, 17, 64):
            how = (ctypes.c_long * 3)(flags, 0o600 if flags & os.O_CREAT else 0, resolve)
            for path in paths:
                if flags & os.O_ACCMODE and path.startswith(("/", "absolute", "far", "root")) and not resolve & 24:
                    continue  # (what is above is not ours)
                if (resolve & 1 and path == "/dev/null") or (resolve == 32 and path not in ("in", "sub", "..")):
                    continue  # (which mounts there are, and what the kernel has in its caches)
                say("openat2", oct(flags), resolve, path, word(opened("openat2", d, path.encode(), ctypes.addressof(how), 24)))
                for made in ("made", "d/made"):
                    if os.path.exists(made):
                        say(os.unlink(made), made)
    for closed in (900, fd):
        for path in ("in", "/in"):
            for resolve in (0, 8, 16):
                how = (ctypes.c_long * 3)(0, 0, resolve)
                say(
                    "openat2",
                    "closed" if closed == 900 else "file",
                    path,
                    resolve,
                    word(opened("openat2", closed, path.encode(), ctypes.addressof(how), 24)),
                )
    os.unlink("d/root")


def limits() -> None:
    """RLIMIT_FSIZE and RLIMIT_NOFILE."""
    os.closerange(3, 1000)
    plant()
    signal.signal(signal.SIGXFSZ, lambda *_: say("SIGXFSZ"))
    f, a, t = os.open("f", os.O_RDWR), os.open("f", os.O_RDWR | os.O_APPEND), os.open(".", os.O_TMPFILE | os.O_RDWR)
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, soft[1]))
    for fd in (f, a, t):
        say(
            "write",
            *(word(call("pwrite64", fd, b"x" * 12, n, at)) for at in (0, 15, 19, 20, 30) for n in (0, 1, 12)),
            os.fstat(fd).st_size,
        )
        say("more", word(call("write", fd, b"x" * 30, 30)), word(call("write", fd, b"x", 1)), os.fstat(fd).st_size)
        say("sizes", *(word(call("ftruncate", fd, n)) for n in (20, 21, 5, 30, 1000)), os.fstat(fd).st_size)
        say(
            "room",
            *(word(call("fallocate", fd, keep, at, n)) for keep in (0, 1) for at, n in ((0, 20), (10, 11), (0, 30), (21, 1))),
            os.fstat(fd).st_size,
        )
    say("path", word(call("truncate", b"f", 21)), word(call("truncate", b"f", 3)))
    os.lseek(f, 0, 0)
    os.ftruncate(f, 15)
    say(
        "sent",
        word(call("sendfile", t, f, 0, 15)),
        word(call("copy_file_range", f, 0, t, 0, 15, 0)),
        os.lseek(t, 0, 1),
        os.fstat(t).st_size,
    )
    os.lseek(f, 0, 0)
    say(
        "copied",
        word(call("copy_file_range", f, 0, t, 0, 15, 0)),
        word(call("copy_file_range", f, 0, t, 0, 15, 0)),
        os.fstat(t).st_size,
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, soft)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, soft[1]))
    say(
        *(word(call("fcntl", f, 0, n)) for n in (64, 65, -1)),
        *(word(call("dup2", f, n)) for n in (64, 63, 62)),
        call("fcntl", f, 0, 62),
    )
    held = []
    while (fd := call("dup", f)) >= 0:
        held.append(fd)
    at = buffer()
    say(
        word(fd),
        max(held),
        word(call("open", b"f", 0)),
        word(call("memfd_create", b"m", 0)),
        word(call("fcntl", f, 0, 63)),
        word(call("pipe2", at, 0)),
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, soft[1]))
    say(
        word(call("dup2", f, 63)),
        word(call("read", 63, at, 1)),
        word(call("close", 63)),
        word(call("dup2", f, 63)),
        word(call("dup2", 62, 62)),
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, soft)
    say(call("dup", f), word(call("dup2", f, soft[0])), word(call("dup2", f, soft[0] - 1) - soft[0]))
    for fd in (*held, 62, 63, soft[0] - 1):
        call("close", fd)


def told() -> None:
    """What /proc says of descriptors; names of pipes."""
    plant()
    f = os.open("f", os.O_RDWR | os.O_APPEND)
    os.lseek(f, 7, 0)
    fcntl.lockf(f, fcntl.LOCK_EX, 3, 1)
    fcntl.flock(f, fcntl.LOCK_SH)
    call("fcntl", f, OFD_SETLK, flock(RD, 0, 5, 0))
    for fd in (f, os.dup(f), os.open("d", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY), os.memfd_create("m")):
        lines = [line.split() for line in open(f"/proc/self/fdinfo/{fd}")]
        say(sorted(line[:2] for line in lines if line[0] in ("pos:", "flags:")), lines[3][1] == str(os.fstat(fd).st_ino))
        say(sorted([*line[2:5], line[5] == str(os.getpid()), *line[7:]] for line in lines if line[0] == "lock:"))
    say(
        str(f) in os.listdir("/proc/self/fdinfo"),
        oct(os.stat(f"/proc/self/fdinfo/{f}").st_mode),
        os.path.exists("/proc/self/fdinfo/900"),
    )
    for name in (b"pipe", b"d/pipe", b"f", b"nope/pipe", b"pipe/"):
        say("mkfifo", name, word(call("mknod", name, stat.S_IFIFO | 0o666, 0)), *tree())
    pipe = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    say(stat.filemode(os.fstat(pipe).st_mode), os.read(pipe, 9), word(call("getdents64", pipe, buffer(), 64)))
    os.close(pipe)
    say(stat.filemode(os.stat("pipe").st_mode), word(opened("open", b"pipe", os.O_WRONLY | os.O_NONBLOCK)), word(opened("open", b"pipe", os.O_PATH)),
        word(call("truncate", b"pipe", 0)), word(call("link", b"pipe", b"other")), word(call("rename", b"pipe", b"d/pipe")), word(call("unlink", b"d/pipe")))  # fmt: skip


def listings() -> None:
    """Directories that change while they are read, and many names."""
    plant()
    for i in range(3000):
        os.close(os.open(f"d/name-{i:05}", os.O_CREAT | os.O_WRONLY))
    seen = []
    with os.scandir("d") as entries:
        for entry in entries:
            seen.append(entry.name)
            if entry.name[-1] in "258":
                os.unlink(f"d/{entry.name}")
    say(
        len(seen), len(set(seen)), len(os.listdir("d")), len(os.listdir("d")) == len({entry.inode() for entry in os.scandir("d")})
    )
    fd = os.open("empty", os.O_RDONLY)
    say(os.listdir(fd), os.close(os.open("empty/x", os.O_CREAT)), os.listdir(fd), call("lseek", fd, 0, 0), os.listdir(fd))
    os.unlink("empty/x")
    os.rmdir("empty")
    say(os.listdir(fd), word(opened("openat", fd, b"y", os.O_CREAT | os.O_WRONLY, 0o600)), os.fstat(fd).st_nlink)


def run(directory: str) -> None:
    global HOME
    os.umask(0o027)
    HOME = tempfile.mkdtemp(prefix="calls", dir=directory)
    if os.getuid() == 0:  # natively by root: as an ordinary user, whom permissions stop
        os.chown(HOME, 1000, 1000)
        os.setgroups([])
        os.setresgid(1000, 1000, 1000)
        os.setresuid(1000, 1000, 1000)
    top, HOME = HOME, HOME + "/home"
    os.mkdir(HOME)
    os.chdir(HOME)
    for part in (
        on_paths,
        on_pairs,
        on_descriptors,
        bad_pointers,
        partly,
        offsets,
        locks,
        many_locks,
        moving,
        naming,
        resolving,
        limits,
        told,
        listings,
    ):
        say("#", part.__name__)
        part()
    plant()
    os.chmod("shut", 0o700)
    os.chdir("/")
    shutil.rmtree(top)
    print("\n".join(out))


HOME = ""
if __name__ == "__main__":
    run(sys.argv[1])
