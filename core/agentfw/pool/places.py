"""Where a pool's control socket is and whose it is: directory, lock, log. One pool a socket; nobody else's file is touched."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import socket
import stat
import time
from pathlib import Path

from ..homes import home
from .jobs import PoolError

BACKLOG = 4096
"""Connections that wait to be accepted: a fleet's clients come all at once."""
LOCK_TRIES = 10
LONGEST_PATH = 107
"""Bytes of a Unix socket's path, unix(7)."""


def default_socket() -> Path:
    """$XDG_RUNTIME_DIR/agentfw/pool.sock, else /tmp/agentfw-UID/pool.sock."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        with contextlib.suppress(OSError, ValueError):
            if Path(runtime).stat().st_uid == os.getuid():  # not what `su` left us of somebody else's
                return Path(runtime, "agentfw", "pool.sock")
    return Path(f"/tmp/agentfw-{os.getuid()}/pool.sock")


def log_file(path: Path) -> Path:
    """Where the pool of the socket at `path` logs when it is a daemon: in $XDG_STATE_HOME/agentfw. ConfigError if nobody
    says where."""
    state = os.environ.get("XDG_STATE_HOME", "")
    directory = Path(state if state.startswith("/") else home("XDG_STATE_HOME") / ".local/state") / "agentfw"
    mark = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:8]
    return directory / ("pool.log" if path.absolute() == default_socket() else f"pool-{mark}.log")


def _bad(message: str, hint: str = "") -> PoolError:
    return PoolError("bad_config", message, hint)


def open_directory(path: Path, *, make: bool) -> int:
    """A descriptor of the directory that `path` (of a socket) is in. PoolError if somebody else could put another socket there:
    it is a symlink, another user's, or may be written by others without being sticky. The default one is ours alone."""
    directory = path.absolute().parent
    ours = path.absolute() == default_socket()
    try:
        if make:
            with contextlib.suppress(FileExistsError):
                directory.mkdir(0o700)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise (
                _missing(path) if not make else _bad(f"{directory}: no such directory", "name another one with `--socket`")
            ) from None
        if isinstance(error, OSError) and error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _bad(
                f"{directory} is not a directory (a symlink is not followed)", "name another one with `--socket`"
            ) from None
        text = error.strerror if isinstance(error, OSError) else str(error)
        raise _bad(f"{directory}: {text}", "name another socket with `--socket`") from None
    found = os.fstat(descriptor)
    trouble = ""
    if found.st_uid != os.getuid() and (ours or found.st_uid != 0):
        trouble = f"belongs to the user with the id {found.st_uid}"
    elif ours and found.st_mode & 0o077:
        os.fchmod(descriptor, 0o700)
    elif found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        trouble = "may be written by others"
    if trouble and not (make is False and os.getuid() == 0 and not ours):  # root may go to anybody's pool, if it names it
        os.close(descriptor)
        raise _bad(f"{directory} {trouble}", "name a socket in a directory of your own with `--socket`")
    return descriptor


def _missing(path: Path) -> PoolError:
    return PoolError("unavailable", f"no pool runs at {path}", "start one with `agentfw pool start`")


def reachable(path: Path, directory: int) -> str:
    """A name for the socket at `path` in the open `directory`: as long as a socket's may be, and never somewhere else."""
    name = f"/proc/self/fd/{directory}/{path.name}"
    if len(os.fsencode(name)) > LONGEST_PATH:
        raise _bad(f"{path}: the socket's name is too long", "name a shorter one with `--socket`")
    return name


def check_socket(path: Path, directory: int) -> None:
    """For a client: the socket is there, and its maker is this user or root (or we are root). PoolError."""
    try:
        found = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        if (pid := _holder(path, directory)) is not None:
            raise PoolError("unavailable", f"the pool at {path} (pid {pid}) has not started yet, or is ending") from None
        raise _missing(path) from None
    except (OSError, ValueError) as error:
        raise _bad(f"{path}: {error}") from None
    if not stat.S_ISSOCK(found.st_mode):
        raise _bad(f"{path} is no socket", "name the pool's with `--socket`")
    if found.st_uid not in (os.getuid(), 0) and os.getuid() != 0:
        raise _bad(f"{path} was made by the user with the id {found.st_uid}", "a pool serves its own user only")


class SocketPlace:
    """The place of a pool's socket, taken: the lock beside it is held until `close()`, or until this process is gone.

    Make one with `take()`. PoolError "bad_config" if another pool has it, or it is not ours to have.
    """

    def __init__(self, path: Path, directory: int, lock: int) -> None:
        self.path = path
        self._directory = directory
        self._lock = lock
        self._bound: tuple[int, int] | None = None

    @classmethod
    def take(cls, path: Path) -> SocketPlace:
        path = path.absolute()
        directory = open_directory(path, make=True)
        try:
            reachable(path, directory)
            return cls(path, directory, _take_lock(path, directory))
        except BaseException:
            os.close(directory)
            raise

    def bind(self) -> socket.socket:
        """The listening socket, mode 0600. What a pool that was killed left there goes first."""
        name = self.path.name
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.stat(name, dir_fd=self._directory, follow_symlinks=False).st_mode):
                raise _bad(f"{self.path} exists and is no socket", "name another one with `--socket`")
            os.unlink(name, dir_fd=self._directory)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(made.fileno(), 0o600)  # what the file will have, from its beginning: unix_bind() takes it from here
            made.bind(reachable(self.path, self._directory))
            made.listen(BACKLOG)
            made.setblocking(False)
            found = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
            self._bound = (found.st_dev, found.st_ino)
        except BaseException as error:
            made.close()
            if isinstance(error, OSError):
                raise _bad(f"{self.path}: {error.strerror}", "name another one with `--socket`") from None
            raise
        return made

    def close(self) -> None:
        """Remove what is ours and let others have the place. Idempotent."""
        if self._lock < 0:
            return
        with contextlib.suppress(OSError):
            found = os.stat(self.path.name, dir_fd=self._directory, follow_symlinks=False)
            if (found.st_dev, found.st_ino) == self._bound:
                os.unlink(self.path.name, dir_fd=self._directory)
        with contextlib.suppress(OSError):
            os.unlink(_lock_name(self.path), dir_fd=self._directory)
        os.close(self._lock)
        os.close(self._directory)
        self._lock = -1


def _lock_name(path: Path) -> str:
    return f"{path.name}.lock"


def _take_lock(path: Path, directory: int) -> int:
    name = _lock_name(path)
    while True:
        try:
            lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=directory)
        except (OSError, ValueError) as error:
            raise _bad(f"{path}.lock: {getattr(error, 'strerror', error)}", "name another socket with `--socket`") from None
        try:
            found = os.fstat(lock)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
                raise _bad(f"{path}.lock is not a file of yours", "name another socket with `--socket`")
            if not _locked(lock):
                hint = "use it, end it with `agentfw pool stop`, or name another `--socket`"
                raise _bad(f"a pool has {path} already (pid {_pid(lock)})", hint)
            with contextlib.suppress(FileNotFoundError):
                # The one before us may have removed it between open() and flock().
                if os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino == found.st_ino:
                    os.ftruncate(lock, 0)
                    os.pwrite(lock, b"%d\n" % os.getpid(), 0)
                    return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _locked(lock: int) -> bool:
    """Clients that look whether there is a pool have it for a moment, too."""
    for _ in range(LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.02)
    return False


def _holder(path: Path, directory: int) -> str | None:
    """Pid of the pool that has the lock, "?" if it has not said."""
    try:
        lock = os.open(_lock_name(path), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _pid(lock)
    finally:
        os.close(lock)


def _pid(lock: int) -> str:
    pid = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
    return pid if pid.isdecimal() else "?"


def wait_until_free(path: Path, seconds: float) -> bool:
    """Wait (blocking) until the pool that has the socket at `path` is gone with all it had; False: it still is there."""
    try:
        directory = open_directory(path, make=False)
    except PoolError:
        return True
    until = time.monotonic() + seconds
    try:
        while True:
            try:
                lock = os.open(_lock_name(path), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
            except FileNotFoundError:
                return True
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= until:
                    return False
            finally:
                os.close(lock)
            time.sleep(0.02)
    finally:
        os.close(directory)
