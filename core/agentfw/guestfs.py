"""What a guest sees of the host: the interpreter, system libraries, the agent's directory, the operator's mounts; nothing else.

`View` collects mounts, synthetic files and links; its paths are the host's own, so that tracebacks, `sys.path` and shebangs mean
the same inside. Directories are shown read-only; the operator's mounts may be writable (`:rw`).
"""

from __future__ import annotations

import glob
import json
import os
import pwd
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import msgspec
from agentfw_vmm import Mount

from .errors import AgentfwError
from .texts import shown

GUEST_CODE = Path(__file__).parent / "guest"
"""Mounted at /run/agentfw."""
HOME = "/home/agent"
PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")
"""Every VM has its own, in memory."""
PYTHONS = ((3, 11), (3, 14))
"""First and last CPython that the guest's code is tested with."""

_LIBRARIES = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib/locale", "/usr/lib/ssl")
_SHARED = ("/usr/share/zoneinfo", "/usr/share/tcltk", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates",
           "/etc/ssl/certs",
           "/etc/ssl/openssl.cnf", "/etc/pki/ca-trust/extracted", "/etc/pki/tls/certs", "/etc/ld.so.cache", "/etc/localtime",
           "/etc/mime.types", "/etc/services", "/etc/protocols", "/etc/os-release")  # fmt: skip
_FILES = {
    "/etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n",
    "/etc/group": "root:x:0:\nagent:x:1000:\n",
    "/etc/hosts": "127.0.0.1\tlocalhost agent\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    # Twice: a copy of a VM that was made amid a lookup has lost its question, and asks again at once. (So a refusal is asked for
    # twice, too: getaddrinfo() of a denied name is four denials, two for each family.)
    "/etc/resolv.conf": "nameserver 10.0.2.3\noptions timeout:10 attempts:2\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    "/etc/host.conf": "multi on\n",
    "/etc/hostname": "agent\n",
}
_SECRETS = (".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".git-credentials", ".password-store",
            ".pgpass", ".config/gcloud", ".config/gh", ".local/share/keyrings", ".mozilla", ".config/google-chrome")  # fmt: skip
_SYSTEM_SECRETS = ("/etc/shadow", "/etc/gshadow", "/etc/ssh", "/etc/ssl/private", "/proc", "/sys", "/dev", "/run", "/boot",
                   "/var/run", "/var/lib/docker")  # fmt: skip

_PROBE = """
import json, sys, sysconfig, os, site
for name in ("_ssl", "_ctypes", "_hashlib", "zlib", "_bz2", "_lzma", "_sqlite3", "_socket", "_decimal"):
    try:
        __import__(name)
    except ImportError:
        pass
code = [p for p in sys.path if p]
sys.path[:] = [*sys.argv[1:], *code]
site.exec = site.execsitecustomize = site.execusercustomize = lambda *line: None
site.main()
path, sys.path[:] = [p for p in sys.path if p], code
sys.modules.pop("sysconfig")
import sysconfig
with open("/proc/self/maps") as file:
    maps = sorted({line.split(None, 5)[5].strip() for line in file if line.count("/") and ".so" in line})
print(json.dumps({"executable": sys.executable, "version": list(sys.version_info[:3]), "name": sys.implementation.name,
    "full": sys.version, "prefix": sys.prefix, "base": sys.base_prefix, "path": path, "libraries": maps,
    "stdlib": sysconfig.get_path("stdlib"), "platstdlib": sysconfig.get_path("platstdlib"),
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")), "machine": sysconfig.get_platform()}))
"""
"""Run with -S: `site` makes sys.path and the prefix then; `import` lines of its .pth files, and sitecustomize, are not run."""
_NOT_ASKED_WITH = ("PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONSTARTUP", "PYTHONINSPECT")
"""Variables by which a Python runs code of other places than its own. (PYTHONPATH's are arguments.)"""


_PATH_MAX, _NAME_MAX = 4000, 255
_ANSWER_SECONDS, _ANSWER_MAX = 60, 1 << 20
"""Of what is asked whether it is a Python."""


class GuestError(AgentfwError):
    """The guest cannot be given what was asked for. `hint`: what to do instead; `status`: exit code of `agentfw run`."""

    def __init__(self, message: str, hint: str = "", status: int = 125) -> None:
        self.hint = hint
        self.status = status
        super().__init__(message)


@dataclass(frozen=True)
class Interpreter:
    """A CPython as the guest will run it. `path`: its sys.path without a script's directory; `libraries`: what it maps."""

    executable: str
    version: tuple[int, int, int]
    full: str
    prefix: str
    base: str
    stdlib: str
    platstdlib: str
    path: tuple[str, ...]
    libraries: tuple[str, ...]


@dataclass(frozen=True)
class _Facts(Interpreter):
    """What `_PROBE` prints."""

    name: str
    free_threaded: bool
    machine: str


def find_interpreter(python: str, environment: Mapping[str, str]) -> Interpreter:
    """Ask `python` (a path) what it is, under the environment that its template will have. Of its code, its standard library's
    runs only. GuestError if it is of no use."""
    where = str(Path(python).absolute()) if "/" in python else python
    told = {name: value for name, value in environment.items() if name not in _NOT_ASKED_WITH}
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    try:
        status, out, err = _run([where, "-S", "-c", _PROBE, *paths], told)
        facts = msgspec.convert(json.loads(out), _Facts) if status == 0 else None  # (msgspec takes no surrogates, paths may have)
    except (ValueError, RecursionError, OverflowError):
        raise GuestError(f"`{python}` is no Python", status=126) from None
    except OSError as error:
        raise GuestError(f"cannot run the interpreter `{python}`: {error.strerror or error}", status=126) from None
    if facts is None:
        lines = err.decode("utf-8", "replace").strip().splitlines() or [f"status {status}"]
        line = next((line for line in lines if line.startswith("Fatal Python error: ")), lines[-1])
        if "import json, sys" in line:  # it says again what it was given: another program
            raise GuestError(f"`{python}` is no Python", status=126)
        raise GuestError(f"the interpreter `{python}` does not start: {shown(line, 160)}", status=126)
    name = f"`{python}` is {shown(facts.name, 40)} {'.'.join(map(str, facts.version))}"
    first, last = PYTHONS
    if facts.name != "cpython" or not first <= facts.version[:2] <= last:
        wanted = f"agents need CPython {first[0]}.{first[1]} to {last[0]}.{last[1]}"
        raise GuestError(f"{name}, and {wanted}", "name another one with `--python`", 126)
    if facts.free_threaded or not facts.machine.endswith("x86_64"):
        kind = "free-threaded" if facts.free_threaded else shown(facts.machine, 40)
        raise GuestError(
            f"{name} ({kind}), and agents need an x86-64 build with the GIL", "name another one with `--python`", 126
        )
    return Interpreter(**{each.name: getattr(facts, each.name) for each in fields(Interpreter)})


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    """-> status, stdout, stderr of a program that may be any. OSError: it cannot be run, says too much, or does not end."""
    with (
        subprocess.Popen(
            command,
            env=dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process,
        selectors.DefaultSelector() as selector,
    ):
        said: dict[int, bytearray] = {}
        try:
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                selector.register(pipe, selectors.EVENT_READ)
                said[pipe.fileno()] = bytearray()
            end = time.monotonic() + _ANSWER_SECONDS
            while selector.get_map():
                ready = selector.select(max(0.0, end - time.monotonic()))
                if not ready:
                    raise TimeoutError(0, f"no answer within {_ANSWER_SECONDS} s")
                for key, _ in ready:
                    data = os.read(key.fd, 65536)
                    if not data:
                        selector.unregister(key.fileobj)
                    said[key.fd] += data
                    if len(said[key.fd]) > _ANSWER_MAX:
                        raise OSError(0, f"it prints more than {_ANSWER_MAX >> 20} MiB")
            status = process.wait(max(0.0, end - time.monotonic()))
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # with what it started
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError(0, f"no answer within {_ANSWER_SECONDS} s") from None
            raise
    out, err = said.values()
    return status, bytes(out), bytes(err)


# ---- what must not be shown


def _homes() -> set[str]:
    homes = {os.path.expanduser("~")}
    for user in pwd.getpwall():
        if user.pw_uid == 0 or 1000 <= user.pw_uid < 60000:
            homes.add(user.pw_dir)
    return {os.path.realpath(home) for home in homes if len(home) > 1 and os.path.isdir(home)}


def _inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def exposes(path: str) -> str | None:
    """Why the host path `path` must not be mounted: one clause ("it holds ..."), or None if it may be."""
    real = os.path.realpath(path)
    if real == "/":
        return "it is the whole machine"
    for home in _homes():
        if _inside(home, real):
            return "it is a home directory" if home == real else f"it holds the home directory {home}"
        for name in _SECRETS:
            secret = os.path.join(home, name)
            if _inside(real, secret):
                return f"it is in {secret}"
            if _inside(secret, real) and os.path.exists(secret):
                return f"it holds {secret}"
    for secret in _SYSTEM_SECRETS:
        if _inside(real, secret) or _inside(secret, real):
            return f"it is in {secret}" if _inside(real, secret) else f"it holds {secret}"
    return None


def _is_secret(path: str) -> str | None:
    """The place of secrets that the host path `path` leads into, by links too. A script may lie in memory (/dev/shm,
    /run/user)."""
    real = os.path.realpath(path)
    in_memory = _inside(real, "/dev/shm") or _inside(real, "/run/user")
    system = () if in_memory else _SYSTEM_SECRETS
    places = (*(os.path.join(home, name) for home in _homes() for name in _SECRETS), *system)
    return next((place for place in places if _inside(real, place)), None)


# ---- the view


@dataclass
class View:
    """What the VMs of a cell see. `cwd`: where the agent starts; `notes`: lines for the operator."""

    mounts: dict[str, Mount] = field(default_factory=dict)
    files: dict[str, bytes | tuple[int, bytes]] = field(default_factory=dict)
    symlinks: dict[str, str] = field(default_factory=dict)
    private: list[str] = field(default_factory=lambda: [HOME])
    cwd: str = HOME
    notes: list[str] = field(default_factory=list)

    def show(self, path: str, *, system: bool = False) -> None:
        """Let the guest see the host path `path` at its own place, read-only, with the symlinks on the way. Nothing if it is not
        there."""
        rest = [part for part in path.split("/") if part]
        current = ""
        links = 0
        while rest:
            part = rest.pop(0)
            if part == "..":
                current = os.path.dirname(current)
                continue
            if part == ".":
                continue
            candidate = f"{current}/{part}"
            try:
                target = os.readlink(candidate)
            except OSError:
                current = candidate
                continue
            links += 1
            if links > 40:
                return
            self.symlinks.setdefault(candidate, target)
            rest = [piece for piece in target.split("/") if piece] + rest
            if target.startswith("/"):
                current = ""
        if current and os.path.exists(current) and current not in self.mounts:
            self.mounts[current] = Mount(current, current, system=system)

    def covered(self, path: str) -> bool:
        """Is the guest path in a mount or a private directory?"""
        return any(_inside(path, place) for place in (*self.mounts, *self.private, *PRIVATE))

    def visible(self, path: str) -> bool:
        """Does the guest path exist as a directory when a program starts: in a mount, a private directory, or above something?"""
        names = (*self.mounts, *self.private, *PRIVATE, *self.files, *self.symlinks)
        return path == "/" or any(_inside(path, place) for place in self.mounts) or any(_inside(name, path) for name in names)

    def shows(self, path: str | Path) -> bool:
        """May a guest read the host's file `path` (by whatever name)?"""
        real = os.path.realpath(path)
        return any(_inside(real, os.path.realpath(mount.host_path)) for mount in self.mounts.values())

    def resolve(self, path: str) -> str:
        """Where the guest path `path` leads, by the links of the view (those inside mounts are the host's own)."""
        rest = [part for part in path.split("/") if part]
        current = ""
        links = 0
        while rest:
            candidate = f"{current}/{rest.pop(0)}"
            target = self.symlinks.get(candidate)
            if target is None:
                current = candidate
                continue
            links += 1
            if links > 40:
                raise GuestError(f"cannot mount on the guest's `{path}`: a loop of links leads there")
            rest = [piece for piece in target.split("/") if piece] + rest
            if target.startswith("/"):
                current = ""
        return os.path.normpath(current) if current else ""

    def check_mounts(self) -> None:
        """Nothing can be mounted below a file. GuestError."""
        for path, mount in self.mounts.items():
            for above in map(str, Path(path).parents):
                file = self.mounts.get(above)
                if above in self.files or (file is not None and os.path.isfile(file.host_path)):
                    raise GuestError(f"cannot mount `{mount.host_path}` on the guest's `{path}`: `{above}` is a file there")

    def tidy(self) -> None:
        """Drop what a mount above shows anyway."""
        for path, mount in list(self.mounts.items()):
            for above in self._mounts_above(path):
                if above.writable == mount.writable and above.system == mount.system and _same(above, mount):
                    del self.mounts[path]
                    break
        for path in list(self.symlinks):
            if self._mounts_above(path) or path in self.files or path in self.mounts:
                del self.symlinks[path]

    def _mounts_above(self, path: str) -> list[Mount]:
        return [mount for place, mount in self.mounts.items() if place != path and _inside(path, place)]


def _same(above: Mount, mount: Mount) -> bool:
    below = os.path.relpath(mount.guest_path, above.guest_path)
    return os.path.normpath(os.path.join(above.host_path, below)) == os.path.normpath(mount.host_path)


def base_view(interpreter: Interpreter) -> View:
    """The interpreter, what it links to, and an /etc."""
    view = View()
    for path, text in _FILES.items():
        view.files[path] = text.encode("ascii")
    view.mounts["/run/agentfw"] = Mount("/run/agentfw", str(GUEST_CODE))
    view.show(interpreter.executable)
    for path in (interpreter.prefix, interpreter.base):
        if path not in ("/", "/usr", "/usr/local") and not exposes(path):
            view.show(path)
    system = {"/usr", "/usr/local"}
    for path in (interpreter.stdlib, interpreter.platstdlib, *interpreter.path):
        if os.path.isabs(path) and not exposes(path):
            view.show(path, system=any(_inside(path, place) for place in system))
    for path in (*_LIBRARIES, *_loader_directories(), *_SHARED):
        view.show(path, system=True)
    for path in interpreter.libraries:
        if not view.covered(os.path.realpath(path)):
            view.show(path, system=True)
    view.tidy()
    return view


def _loader_directories() -> list[str]:
    found = []
    for name in sorted(glob.glob("/etc/ld.so.conf.d/*.conf")):
        try:
            lines = Path(name).read_text().split()
        except (OSError, UnicodeDecodeError):
            continue
        found += [line for line in lines if line.startswith("/") and line != "/usr/local/lib" and not exposes(line)]
    return found


def parse_mount(text: str) -> Mount:
    """`HOST:GUEST[:rw]`, or `HOST` alone for its own path. GuestError with what is wrong."""
    parts = text.split(":")
    writable = False
    if len(parts) > 1 and parts[-1] in ("rw", "ro"):
        writable = parts.pop() == "rw"
    if len(parts) > 2 or not parts[0]:
        raise GuestError(f"bad mount `{text}`", "write `--mount HOST:GUEST` or `--mount HOST:GUEST:rw`")
    host = os.path.abspath(os.path.expanduser(parts[0]))
    guest = os.path.normpath(parts[1]) if len(parts) == 2 else host
    if not os.path.exists(host):
        raise GuestError(f"cannot mount `{parts[0]}`: it does not exist")
    if not (os.path.isdir(host) or os.path.isfile(host)):
        raise GuestError(f"cannot mount `{parts[0]}`: it is neither a directory nor a file")
    if not os.access(host, os.R_OK | (os.X_OK if os.path.isdir(host) else 0)):
        raise GuestError(f"cannot mount `{parts[0]}`: permission denied")
    why = exposes(host)
    if why:
        raise GuestError(f"refusing to mount `{parts[0]}`: {why}", "mount just the directory that the agent needs")
    if not guest.startswith("/"):
        raise GuestError(f"bad mount `{text}`: the guest's path must be absolute")
    encoded = os.fsencode(guest)
    if "\0" in guest or len(encoded) > _PATH_MAX or max(map(len, encoded.split(b"/"))) > _NAME_MAX:
        raise GuestError(f"bad mount `{text[:80]}...`: no such path is possible in the guest")
    guest = "/" + guest.lstrip("/")
    if guest in ("/", "/etc", "/usr", "/lib", *PRIVATE, HOME) or any(
        _inside(guest, place) for place in ("/proc", "/sys", "/dev", "/run/agentfw")
    ):
        raise GuestError(f"cannot mount on the guest's `{guest}`", "choose a directory of its own, such as `/data`")
    return Mount(guest, host, writable)


def add_mounts(view: View, mounts: Sequence[Mount]) -> None:
    """The operator's mounts; they win over what stands at the same place. GuestError if something of another kind stands on the
    way."""
    for mount in mounts:
        above, _, name = mount.guest_path.rpartition("/")
        path = f"{view.resolve(above)}/{name}"  # /lib may be a link to usr/lib, and what is below it lies there
        view.symlinks.pop(path, None)
        view.files.pop(path, None)
        view.mounts[path] = Mount(path, mount.host_path, mount.writable)
    view.check_mounts()


def add_program(view: View, script: str | None, cwd: str) -> None:
    """Show the agent's directory: the script's, or the working directory if `script` is None. Sets `view.cwd`.

    A directory that must not be shown (a home directory, /tmp) is left out with a note; of a script in it only the file is shown.
    """
    if script is None:
        _show_directory(view, cwd, None)
    else:
        path = os.path.abspath(script)
        secret = _is_secret(path)
        if secret:
            raise GuestError(f"refusing to show `{script}` to the agent: it is in {secret}", "run a copy of it", 126)
        for place in dict.fromkeys((path, os.path.realpath(path))):
            _show_directory(view, place if os.path.isdir(place) else os.path.dirname(place), place)
    view.cwd = cwd
    if not view.visible(cwd):
        view.private.append(cwd)
    view.tidy()


def _show_directory(view: View, directory: str, file: str | None) -> None:
    if view.covered(directory) and directory not in PRIVATE and any(_inside(directory, place) for place in view.mounts):
        return
    why = "it is shared by all users" if os.path.realpath(directory) in PRIVATE else exposes(directory)
    if why is None:
        view.show(directory)
    elif file is not None and file != directory:
        view.show(file)
        view.notes.append(f"the agent sees {os.path.basename(file)} only, not the rest of {directory}: {why}")
    elif directory != "/":
        view.notes.append(f"the agent does not see {directory}: {why}")
