"""The cell's file system as Python calls, without a VM: builds and drives harness.c."""

import errno
import os
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from agentfw_vmm.config import Mount, _aliases

from ..fuzz.run import VFS

ROOT = Path(__file__).resolve().parent.parent.parent
CWD = 0xFFFFFFFF
WRITABLE, SYSTEM = 1, 2
REC = {"mount": 1, "file": 2, "program": 3, "arg": 4, "env": 5, "memory": 6, "tmp": 11, "symlink": 12, "alias": 16}
OPS = [
    "nop",
    "open",
    "close",
    "pread",
    "pwrite",
    "stat",
    "fstat",
    "readdir",
    "readlink",
    "access",
    "mkdir",
    "unlink",
    "rename",
    "symlink",
    "link",
    "chmod",
    "utimens",
    "truncate",
    "fsync",
    "statfs",
    "chdir",
    "getcwd",
    "flock",
    "fchmod",
    "fallocate",
]
OP = {name: number for number, name in enumerate(OPS)} | {"mapfile": 33}
PATH1, PATH2, BUFFER, OUT = 0x500000, 0x502000, 0x600000, 0x504000
HOLE = 16 << 20


def build(directory: Path, sanitize: bool) -> Path:
    """Compiles the harness into `directory`; -> the program."""
    program = directory / ("vfs-asan" if sanitize else "vfs")
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1"] if sanitize else ["-O2"]
    cell = ROOT / "vmm/native/cell"
    subprocess.run(
        ["cc", *flags, "-g", "-std=gnu11", "-D_GNU_SOURCE", "-pthread", "-Wall", "-Wextra", "-Werror"]
        + [f"-I{ROOT}/shim", f"-I{ROOT}/vmm/native", f"-I{cell}"]
        + [f"-I{ROOT}/vmm/native/lib", "-o", str(program)]
        + [str(ROOT / "tests/vfs/harness.c"), str(ROOT / "vmm/native/lib/sight.c")]
        + [str(source) for source in VFS],
        check=True,
    )
    return program


class Stat(NamedTuple):
    dev: int
    ino: int
    nlink: int
    mode: int
    uid: int
    gid: int
    rdev: int
    size: int
    mtime_ns: int


class Entry(NamedTuple):
    name: str
    ino: int
    type: int
    cookie: int


class Vfs:
    """One harness process. Every operation raises OSError with the guest's errno.

    mounts: guest path -> (host path, flags); files: guest path -> content; symlinks: guest path -> target;
    tmp: (bytes, inodes, more paths).
    """

    def __init__(
        self,
        program: Path,
        mounts: Mapping[str, tuple[Path, int]] | None = None,
        files: Mapping[str, bytes] | None = None,
        symlinks: Mapping[str, str] | None = None,
        tmp: tuple[int, int, list[str]] | None = (64 << 20, 10000, []),
        jail: bool = False,
    ) -> None:
        aliases = _aliases([Mount(path, host) for path, (host, _) in (mounts or {}).items()])
        opened = {path: os.open(host, os.O_PATH) for path, (host, _) in (mounts or {}).items()}
        self.process = subprocess.Popen(
            [program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=list(opened.values()),
            env={"ASAN_OPTIONS": "detect_leaks=1"},
        )
        for path, fd in opened.items():
            self.configure("mount", struct.pack("<II", fd, (mounts or {})[path][1]) + path.encode())
            os.close(fd)
        for one, other in aliases:
            self.configure("alias", struct.pack("<I", len(one)) + one + other)
        for path, content in (files or {}).items():
            self.configure("file", struct.pack("<II", 0o444, len(path.encode())) + path.encode() + content)
        for path, target in (symlinks or {}).items():
            self.configure("symlink", struct.pack("<I", len(path.encode())) + path.encode() + target.encode())
        if tmp:
            self.configure("tmp", struct.pack("<QQ", *tmp[:2]) + b"".join(path.encode() + b"\0" for path in tmp[2]))
        self.restart()
        if jail:
            self.command(7, b"")

    def command(self, number: int, payload: bytes) -> tuple[int, bytes]:
        """One frame and its answer: (result, bytes)."""
        pipe_in, pipe_out = self.process.stdin, self.process.stdout
        assert pipe_in and pipe_out
        pipe_in.write(struct.pack("<II", number, len(payload)) + payload)
        pipe_in.flush()
        head = pipe_out.read(12)
        if len(head) < 12:
            raise AssertionError(f"the harness died: {self.process.wait()}")
        result, size = struct.unpack("<qI", head)
        return result, pipe_out.read(size)

    @staticmethod
    def check(result: int) -> int:
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return result

    def configure(self, record: str, payload: bytes) -> None:
        self.check(self.command(1, struct.pack("<I", REC[record]) + payload)[0])

    def close(self) -> None:
        """Ends the process; AddressSanitizer's findings (leaks too) are a non-zero status."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        status = self.process.wait(60)
        assert status == 0, f"harness ended with {status}"

    def restart(self) -> None:
        """Another VM: no handle, empty /tmp, the mounts as before."""
        self.check(self.command(2, b"")[0])

    def rules(self, table: bytes) -> int:
        """From now on; b"": none. -> 0 or -errno"""
        return self.command(12, table)[0]

    def poke(self, gva: int, data: bytes) -> None:
        self.command(3, struct.pack("<Q", gva) + data)

    def peek(self, gva: int, size: int) -> bytes:
        return self.command(4, struct.pack("<QQ", gva, size))[1]

    def raw(self, op: int | str, *args: int) -> int:
        """The operation's result as the guest sees it: >= 0 or -errno."""
        number = OP[op] if isinstance(op, str) else op
        values = [value & (1 << 64) - 1 for value in [*args, 0, 0, 0, 0, 0, 0][:6]]
        return self.command(5, struct.pack("<H6Q", number, *values))[0]

    def op(self, op: str, *args: int) -> int:
        return self.check(self.raw(op, *args))

    def path(self, text: str | bytes, at: int = PATH1) -> tuple[int, int]:
        data = os.fsencode(text)
        self.poke(at, data + b"\0")
        return at, len(data)

    def open(self, path: str | bytes, flags: int = os.O_RDONLY, mode: int = 0o644, base: int = CWD) -> int:
        return self.op("open", *self.path(path), flags, mode, base, 0)

    def close_handle(self, handle: int) -> None:
        self.op("close", handle)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        return self.peek(BUFFER, self.op("pread", handle, BUFFER, size, offset))

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        self.poke(BUFFER, data)
        return self.op("pwrite", handle, BUFFER, len(data), offset)

    def read(self, path: str) -> bytes:
        handle = self.open(path)
        try:
            data = b""
            while part := self.pread(handle, 65536, len(data)):
                data += part
            return data
        finally:
            self.close_handle(handle)

    def write(self, path: str, data: bytes, flags: int = os.O_CREAT | os.O_TRUNC) -> None:
        handle = self.open(path, os.O_WRONLY | flags)
        try:
            done = 0
            while done < len(data):
                done += self.pwrite(handle, data[done:], done)
        finally:
            self.close_handle(handle)

    def unpack_stat(self) -> Stat:
        fields = struct.unpack("<QQQIIIIQqqqqqqq", self.peek(OUT, 104))
        dev, ino, nlink, mode, uid, gid, _, rdev, size, _, _, _, _, mtime, mtime_ns = fields
        return Stat(dev, ino, nlink, mode, uid, gid, rdev, size, mtime * 10**9 + mtime_ns)

    def stat(self, path: str, flags: int = 0, base: int = CWD) -> Stat:
        self.op("stat", *self.path(path), flags, OUT, base)
        return self.unpack_stat()

    def lstat(self, path: str) -> Stat:
        return self.stat(path, 0x100)

    def fstat(self, handle: int) -> Stat:
        self.op("fstat", handle, OUT)
        return self.unpack_stat()

    def entries(self, handle: int, size: int = 4096, cookie: int = 0) -> list[Entry]:
        """All entries from a cookie on, read in buffers of `size` bytes."""
        found: list[Entry] = []
        while length := self.op("readdir", handle, BUFFER, size, cookie):
            data, at = self.peek(BUFFER, length), 0
            while at < length:
                ino, cookie, record, kind = struct.unpack_from("<QqHB", data, at)
                found.append(Entry(os.fsdecode(data[at + 19 : data.index(b"\0", at + 19)]), ino, kind, cookie))
                at += record
            assert at == length
        return found

    def listdir(self, path: str, size: int = 4096) -> list[str]:
        handle = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return sorted(entry.name for entry in self.entries(handle, size) if entry.name not in (".", ".."))
        finally:
            self.close_handle(handle)

    def readlink(self, path: str) -> str:
        return os.fsdecode(self.peek(BUFFER, self.op("readlink", *self.path(path), BUFFER, 4096, CWD)))

    def access(self, path: str, mode: int) -> bool:
        return self.raw("access", *self.path(path), mode, 0, CWD) == 0

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        self.op("mkdir", *self.path(path), mode, 0, CWD)

    def unlink(self, path: str) -> None:
        self.op("unlink", *self.path(path), 0, 0, CWD)

    def rmdir(self, path: str) -> None:
        self.op("unlink", *self.path(path), 0x200, 0, CWD)

    def rename(self, old: str, new: str, flags: int = 0) -> None:
        self.op("rename", *self.path(old), *self.path(new, PATH2), CWD << 32 | CWD, flags)

    def symlink(self, target: str, path: str) -> None:
        self.op("symlink", *self.path(target), *self.path(path, PATH2), CWD)

    def link(self, old: str, new: str, flags: int = 0) -> None:
        self.op("link", *self.path(old), *self.path(new, PATH2), CWD << 32 | CWD, flags)

    def chmod(self, path: str, mode: int) -> None:
        self.op("chmod", *self.path(path), mode, 0, CWD)

    def utime(self, path: str, ns: tuple[int, int], flags: int = 0) -> None:
        self.poke(OUT, struct.pack("<4q", *divmod(ns[0], 10**9), *divmod(ns[1], 10**9)))
        self.op("utimens", *self.path(path), OUT, flags, CWD)

    def chdir(self, path: str) -> None:
        self.op("chdir", *self.path(path), 0, 0, CWD)

    def getcwd(self) -> str:
        return os.fsdecode(self.peek(BUFFER, self.op("getcwd", BUFFER, 4096))[:-1])

    def error(self, method: str, *args: object, **kwargs: object) -> str | None:
        """Name of the errno that a call fails with, or None."""
        try:
            getattr(self, method)(*args, **kwargs)
        except OSError as failure:
            return errno.errorcode[failure.errno or 0]
        return None
