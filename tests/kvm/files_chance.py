"""Sequences of file operations drawn by chance: natively, on a tmpfs, and in a VM's /tmp each must give what it gives there, and the same
tree in the end. `files_chance.py DIRECTORY SEED SEQUENCES`"""

from __future__ import annotations

# The calls below pathlib are what is tested.
# ruff: noqa
import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import random
import shutil
import stat
import struct
import sys
import tempfile
from collections.abc import Callable
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
NAMES = "a", "b", "c", "d/a", "d/b", "d", "d/e", "d/e/a", "./a", "d/../b", "d/e/../a", "a/", "d/", "l/a", "l"
STEPS = 120
LOCK = struct.Struct("hhqqi4x")  # struct flock


class Sequence:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.files: list[int] = []
        self.maps: list[mmap.mmap] = []
        self.out: list[str] = []

    def name(self) -> str:
        return self.random.choice(NAMES)

    def file(self) -> int:
        return self.random.choice(self.files) if self.files and self.random.random() < 0.97 else 900

    def place(self) -> int:
        return self.random.choice((0, 1, 7, 4095, 4096, 4097, 65535, 65536, 70000, 200_000, -1))

    def size(self) -> int:
        return self.random.choice((0, 1, 5, 100, 4096, 5000, 66000, 150_000))

    def bytes(self) -> bytes:
        return self.random.randbytes(16) * (self.size() // 16) + b"x"

    def flags(self) -> int:
        r = self.random
        flags = r.choice((os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR))
        for flag, chance in (
            (os.O_CREAT, 0.6),
            (os.O_EXCL, 0.1),
            (os.O_TRUNC, 0.15),
            (os.O_APPEND, 0.25),
            (os.O_NOFOLLOW, 0.1),
            (os.O_DIRECTORY, 0.05),
        ):
            if r.random() < chance:
                flags |= flag
        return flags & ~os.O_DIRECTORY if flags & os.O_CREAT else flags  # (kernels differ about both together)

    def opened(self) -> object:
        path, flags, mode = self.name(), self.flags(), self.random.choice((0o600, 0o644, 0o400, 0o666))
        self.files.append(os.open(path, flags, mode))
        return oct(fcntl.fcntl(self.files[-1], fcntl.F_GETFL) & ~os.O_CLOEXEC)

    def closed(self) -> object:
        fd = self.file()
        if fd in self.files:
            self.files.remove(fd)
        return os.close(fd)

    def doubled(self) -> object:
        self.files.append(os.dup(self.file()))
        return None

    def again(self) -> object:
        fd = self.file()
        self.files.append(os.open(f"/proc/self/fd/{fd}", self.random.choice((os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND))))
        return None

    def unnamed(self) -> object:
        self.files.append(os.open(self.random.choice((".", "d", "d/e")), os.O_TMPFILE | os.O_RDWR, 0o600))
        return None

    def mapped(self) -> object:
        fd, at = self.file(), os.fstat(self.file()).st_size
        m = mmap.mmap(fd, 4096, mmap.MAP_SHARED if self.random.random() < 0.6 else mmap.MAP_PRIVATE, mmap.PROT_READ)
        self.maps.append(m)
        return at

    def seen(self) -> object:
        if not self.maps:
            return None
        m = self.maps.pop(self.random.randrange(len(self.maps)))
        if not m.size():  # beyond the end is SIGBUS
            return 0
        found = m[0 : min(m.size(), 4096)]
        m.close()
        return digest(found)

    def renamed(self) -> object:
        flags = self.random.choice((0, 0, 0, 1, 2))
        if LIBC.renameat2(-100, self.name().encode(), -100, self.name().encode(), flags):
            raise OSError(ctypes.get_errno(), "")
        return None

    def looked(self) -> object:
        st = os.lstat(self.name()) if self.random.random() < 0.5 else os.stat(self.name())
        return shown(st)

    def listed(self) -> object:
        with os.scandir(self.random.choice((".", "d", "d/e", "l"))) as entries:
            return sorted((e.name, e.is_dir(follow_symlinks=False), e.is_symlink()) for e in entries)

    def surveyed(self) -> object:
        top = self.random.choice((".", "d", "l", "d/e"))
        order = self.random.choice((sorted, list, lambda names: sorted(names, reverse=True)))
        found: dict[str, object] = {}
        for name in order(os.listdir(top)):
            path, n = f"{top}/{name}", self.random.randrange(12) if order is sorted else 1
            try:  # (in the order of the listing it is not the same file that comes to be the first with an error)
                st = os.lstat(path) if n % 2 else os.stat(path)
                if n == 0 and order is sorted:
                    os.chmod(path, 0o700 if stat.S_ISDIR(st.st_mode) else 0o640)
                elif n == 1 and order is sorted:
                    os.link(path, self.name())
                elif n == 2 and order is sorted:
                    os.truncate(path, 3)
                found[name] = shown(os.lstat(path)), shown(os.stat(path))
            except OSError as error:
                found[name] = errno.errorcode[error.errno or 0]
        return sorted(found.items())

    def timed(self) -> object:
        path, ns = self.name(), (self.random.randrange(10**18), self.random.randrange(10**18))
        os.utime(path, ns=ns)
        st = os.stat(path)
        return st.st_atime_ns, st.st_mtime_ns

    def sought(self) -> object:
        fd = self.file()
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            return None  # where a directory's end is no two file systems agree on
        return os.lseek(fd, self.place(), self.random.choice((os.SEEK_SET, os.SEEK_CUR, os.SEEK_END)))

    def sent(self) -> object:
        target, source = self.file(), self.file()
        st = os.fstat(source)
        if not stat.S_ISREG(st.st_mode) or os.path.sameopenfile(target, source):
            return None  # of a file to itself: pages are sent while they are written to
        return os.sendfile(target, source, abs(self.place()), self.size())

    def copied(self) -> object:
        source, target, n = self.file(), self.file(), self.size()
        return os.copy_file_range(
            source, target, n, self.random.choice((None, abs(self.place()))), self.random.choice((None, abs(self.place())))
        )

    def locked(self) -> object:
        """A lock of the process's or of a description's, or who has one. Nothing waits."""
        r = self.random
        command = r.choice((fcntl.F_GETLK, fcntl.F_SETLK, 36, 37, 37))  # F_OFD_GETLK, F_OFD_SETLK
        asked = LOCK.pack(
            r.choice((0, 0, 1, 1, 2)), r.choice((0, 0, 0, 1, 2)), r.choice((0, 3, 10, -2)), r.choice((0, 1, 5, 100, -1)), 0
        )
        kind, whence, start, length, pid = LOCK.unpack(fcntl.fcntl(self.file(), command, asked))
        return kind, whence, start, length, pid == os.getpid() or pid

    def linked(self) -> object:
        path = f"/proc/self/fd/{self.file()}".encode()
        if LIBC.linkat(-100, path, -100, self.name().encode(), 0x400):
            raise OSError(ctypes.get_errno(), "")
        return None

    def step(self) -> None:
        r = self.random
        choices: list[Callable[[], Any]] = [
            *[self.opened] * 5, self.closed, self.doubled, self.again, self.unnamed, self.mapped, self.seen, self.renamed, self.renamed,
            self.looked, self.looked, self.listed, self.surveyed, self.surveyed, self.timed,
            *[lambda: os.write(self.file(), self.bytes())] * 3,
            lambda: digest(os.read(self.file(), 1 + self.size())),
            lambda: digest(os.read(self.file(), 1 + self.size())),
            lambda: os.pwrite(self.file(), self.bytes(), abs(self.place())),
            lambda: digest(os.pread(self.file(), 1 + self.size(), abs(self.place()))),
            lambda: os.writev(self.file(), [self.bytes(), b"", self.bytes()]),
            self.sought,
            lambda: os.ftruncate(self.file(), self.place()),
            lambda: os.truncate(self.name(), self.place()),
            lambda: os.posix_fallocate(self.file(), self.place(), self.size()),
            lambda: shown(os.fstat(self.file())),
            lambda: os.mkdir(self.name(), r.choice((0o755, 0o700, 0o2755))),
            lambda: os.mkdir(r.choice(("d", "d/e"))),
            lambda: os.rmdir(self.name()),
            lambda: os.unlink(self.name()),
            lambda: os.link(self.name(), self.name(), follow_symlinks=r.random() < 0.3),
            lambda: os.symlink(r.choice(("d", "a", "../b", "nowhere", "l")), self.name()),
            lambda: os.readlink(self.name()),
            lambda: os.chmod(self.name(), r.choice((0o644, 0o600, 0o755, 0o700, 0o400, 0o2755))),
            lambda: os.fchmod(self.file(), r.choice((0o644, 0o600, 0o400))),
            lambda: os.access(self.name(), r.choice((os.F_OK, os.R_OK, os.W_OK, os.X_OK))),
            self.sent, self.copied, self.copied, self.linked, *[self.locked] * 6,
            lambda: fcntl.flock(self.file(), fcntl.LOCK_NB | r.choice((fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN))),
            lambda: fcntl.fcntl(self.file(), fcntl.F_SETFL, r.choice((0, os.O_APPEND))),
        ]  # fmt: skip
        n = r.randrange(len(choices))
        state = r.getrandbits(64)
        r.seed(state)  # what an operation draws must not depend on how far it got
        try:
            result = choices[n]()
        except OSError as error:
            result = errno.errorcode[error.errno or 0]
        except ValueError as error:  # mmap's own checks
            result = error
        r.seed(state + 1)
        self.out.append(f"{n} {result}")

    def end(self) -> None:
        for top, directories, _ in os.walk("."):  # to be looked into
            for name in directories:
                path = os.path.join(top, name)
                if not os.path.islink(path):
                    os.chmod(path, os.stat(path).st_mode | 0o700)
        for top, directories, names in os.walk("."):
            directories.sort()
            for name in sorted(directories + names):
                path = os.path.join(top, name)
                st = os.lstat(path)
                content = "" if not stat.S_ISREG(st.st_mode) or not st.st_mode & 0o400 else digest(open(path, "rb").read())
                self.out.append(f"{path} {shown(st)} {content}")
        for m in self.maps:
            m.close()
        for fd in self.files:
            os.close(fd)


def digest(data: bytes) -> str:
    return f"{len(data)}:{hashlib.sha256(data).hexdigest()[:12]}"


def shown(st: os.stat_result) -> object:
    return oct(st.st_mode), None if stat.S_ISDIR(st.st_mode) else (st.st_nlink, st.st_size)


def run(directory: str, seed: int, sequences: int) -> None:
    os.umask(0o022)
    top = tempfile.mkdtemp(prefix="chance", dir=directory)
    if os.getuid() == 0:  # natively by root: as an ordinary user, whom permissions stop
        os.chown(top, 1000, 1000)
        os.setgroups([])
        os.setresgid(1000, 1000, 1000)
        os.setresuid(1000, 1000, 1000)
    for number in range(seed, seed + sequences):
        home = f"{top}/{number}"
        os.mkdir(home)
        os.chdir(home)
        sequence = Sequence(number)
        os.mkdir("d")
        os.symlink("d", "l")
        for _ in range(STEPS):
            sequence.step()
        sequence.end()
        print(f"# {number}", *sequence.out, sep="\n")
        os.chdir("/")
        for below, directories, _ in os.walk(home):
            for name in directories:
                path = os.path.join(below, name)
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
        shutil.rmtree(home)
    shutil.rmtree(top)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
