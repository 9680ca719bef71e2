"""What stat() leaves with the guest: what it found, and will find of files looked at in order (kept.c, ahead.c)."""

import errno
import os
import stat
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from agentfw_vmm.rules import FileRule, compile_rules

from .conftest import MakeVfs
from .driver import CWD, OUT, PATH1, WRITABLE, Vfs

KEPT = 0x260000  # struct afw_kept
NAMES = [f"{kind}{n}" for kind in "ab" for n in range(150)]


def kept(vfs: Vfs) -> dict[str, tuple[int, int]]:
    """Path -> (result, inode)"""
    _, _, n = struct.unpack("<3Q", vfs.peek(KEPT, 24))
    found, at = {}, KEPT + 24
    for _ in range(n):
        size, key, result = struct.unpack("<IIq", vfs.peek(at, 16))
        ino = struct.unpack("<Q", vfs.peek(at + 24, 8))[0]
        path = vfs.peek(at + 160, size - 160).split(b"\0")[0]
        hashed = 0
        for byte in path:
            hashed = (hashed * 31 + byte) % 2**32
        assert key == hashed
        found[path.decode()] = result, ino
        at += size
    assert at <= KEPT + 0x8000
    return found


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """many/{a0 .. a149, b0 .. b149}, a57 a link, and b10 a directory; none of it is new"""
    (tmp_path / "many").mkdir()
    for name in NAMES:
        (tmp_path / "many" / name).touch()
    (tmp_path / "many/a57").unlink()
    (tmp_path / "many/a57").symlink_to("a58")
    (tmp_path / "many/b10").unlink()
    (tmp_path / "many/b10").mkdir()
    time.sleep(0.05)
    return tmp_path / "many"


def go_through(vfs: Vfs, host: Path, names: list[str]) -> int:
    """Stats all, those that are kept not; -> how many were asked for. What is kept must be true."""
    asked = 0
    for name in names:
        there = kept(vfs)
        if f"/m/{name}" not in there:
            vfs.stat(f"/m/{name}")
            asked += 1
            there = kept(vfs)
        for path, (result, ino) in there.items():
            assert (result, ino) == (0, (host / path.removeprefix("/m/")).stat().st_ino)
    return asked


@pytest.mark.parametrize("order", ["listed", "sorted", "numbered", "some"])
def test_in_order(order: str, make: MakeVfs, many: Path) -> None:
    vfs = make(mounts={"/m": (many, WRITABLE)})
    names: list[str] = []
    if order != "numbered":
        handle = vfs.open("/m", os.O_RDONLY | os.O_DIRECTORY)
        names = [entry.name for entry in vfs.entries(handle) if entry.name not in (".", "..", "a57")]
        vfs.close_handle(handle)
    if order == "sorted":
        names.sort()
    elif order == "numbered":
        names = [name for name in NAMES if name != "a57"]
    elif order == "some":
        names = sorted(name for name in names if not name.endswith(("0", "5")))
    assert go_through(vfs, many, names) < 60
    assert "/m/a57" not in kept(vfs)


def test_in_no_order(make: MakeVfs, many: Path) -> None:
    vfs = make(mounts={"/m": (many, WRITABLE)})
    for name in ("b77", "a149", "a20", "b3", "a2"):
        vfs.stat(f"/m/{name}")
        assert len([path for path in kept(vfs) if path.startswith("/m/")]) <= 5


@pytest.mark.parametrize("top", ["/m", "/m/alias", "m"])
def test_a_directory_asked_for_before_each_of_its_files(top: str, make: MakeVfs, many: Path) -> None:
    """As importlib does: it need not ask again before the next one."""
    (many / "alias").symlink_to(".")
    time.sleep(0.05)
    vfs = make(mounts={"/m": (many, WRITABLE)})
    asked = 0
    for name in ("b77", "a149", "a20", "b3"):
        if top not in kept(vfs):
            vfs.stat(top)
            asked += 1
        time.sleep(0.002)  # what was kept is old: another table begins
        vfs.stat(f"{top}/{name}")
        there = kept(vfs)
        assert there.keys() == {top, f"{top}/{name}"}
        assert there[top] == (0, many.stat().st_ino)
    assert asked == 1
    vfs.stat("/m/b10")
    time.sleep(0.002)
    vfs.stat(f"{top}/a2")  # the last one asked for was another
    assert kept(vfs).keys() == {f"{top}/a2"}


MODULES = ["a.py", "bb.py", "ccc.py", "dddd.py", "e.py", "ff.py", "ggg.py", "h.py", "ii.py", "j.py", "kk.py"]


def a_package(top: Path, names: list[str]) -> Path:
    top.mkdir(parents=True)
    for name in (*names, "__init__.py", "data.txt"):
        (top / name).touch()
    time.sleep(0.05)
    return top


def truly(vfs: Vfs, host: Path) -> dict[str, tuple[int, int]]:
    there = kept(vfs)
    for path, (result, ino) in there.items():
        on_host = host / path.removeprefix("/m").removeprefix("/")
        assert (result, ino) == ((0, on_host.stat().st_ino) if on_host.exists() else (-errno.ENOENT, 0)), path
    return there


def test_modules_that_may_be_imported_next(make: MakeVfs, tmp_path: Path) -> None:
    """In both orders in which import statements are sorted; of several packages, of which one alone was listed last."""
    for name in ("m/x", "m/y"):
        a_package(tmp_path / name, MODULES)
    vfs = make(mounts={"/m": (tmp_path / "m", WRITABLE)})
    for package in ("/m/x", "/m/y"):
        vfs.listdir(package)
        vfs.stat(package)
        vfs.stat(f"{package}/a.py")
        time.sleep(0.002)
    for package in ("/m/x", "/m/y"):
        vfs.stat(f"{package}/e.py")
        expected = {"e.py", "ff.py", "ggg.py", "h.py", "ii.py", "j.py", "bb.py"}
        assert truly(vfs, tmp_path / "m").keys() == {package, *(f"{package}/{name}" for name in expected)}
        time.sleep(0.002)


def test_files_of_directories_that_nobody_imports_from(make: MakeVfs, tmp_path: Path) -> None:
    vfs = make(mounts={"/m": (a_package(tmp_path / "m", MODULES), WRITABLE)})
    vfs.listdir("/m")
    vfs.stat("/m/e.py")
    assert kept(vfs).keys() == {"/m/e.py"}


def test_a_package_is_looked_at_under_each_suffix(make: MakeVfs, tmp_path: Path) -> None:
    a_package(tmp_path / "m/x", MODULES)
    (tmp_path / "m/plain").mkdir()
    time.sleep(0.05)
    vfs = make(mounts={"/m": (tmp_path / "m", WRITABLE)})
    names = ("abi3.so", "cpython-311-x86_64-linux-gnu.so", "py", "so")
    assert vfs.error("stat", "/m/x/__init__.cpython-311-x86_64-linux-gnu.so") == "ENOENT"
    assert sorted(truly(vfs, tmp_path / "m")) == ["/m/x", *(f"/m/x/__init__.{name}" for name in names)]
    time.sleep(0.002)
    vfs.stat("/m/x/bb.py")  # as if the directory had been asked for
    assert "/m/x" in kept(vfs)
    time.sleep(0.002)
    assert vfs.error("stat", "/m/plain/__init__.cpython-311-x86_64-linux-gnu.so") == "ENOENT"
    assert sorted(truly(vfs, tmp_path / "m")) == [f"/m/plain/__init__.{name}" for name in names]
    time.sleep(0.002)
    (tmp_path / "m/x/__init__.py").chmod(0o1644)  # a bound socket's name
    time.sleep(0.05)
    assert vfs.error("stat", "/m/x/__init__.cpython-311-x86_64-linux-gnu.so") == "ENOENT"
    assert not kept(vfs).keys() & {"/m/x", "/m/x/__init__.py"}


def test_modules_that_rules_hide_are_left_out(make: MakeVfs, tmp_path: Path) -> None:
    vfs = make(mounts={"/m": (a_package(tmp_path / "m", MODULES), WRITABLE)})
    rules = [FileRule("/m/ff.py", "hide"), FileRule("/m/h.py", "deny"), FileRule("/m/__init__.py", "hide")]
    assert vfs.rules(compile_rules(rules)) == 0
    vfs.listdir("/m")
    vfs.stat("/m")
    vfs.stat("/m/e.py")
    there = truly(vfs, tmp_path / "m").keys()
    assert "/m/ggg.py" in there
    assert not there & {"/m/ff.py", "/m/h.py"}
    assert vfs.error("stat", "/m/__init__.abi3.so") == "ENOENT"
    assert kept(vfs).keys() == there


def test_many_packages_and_many_modules(make: MakeVfs, tmp_path: Path) -> None:
    for n in range(20):
        a_package(tmp_path / f"m/{n}", MODULES)
    a_package(tmp_path / "m/long", [f"{n:03}{'x' * 240}.py" for n in range(300)])
    a_package(tmp_path / "m/many", [f"{n}.py" for n in range(4200)])
    vfs = make(mounts={"/m": (tmp_path / "m", WRITABLE)})
    for name in (*map(str, range(20)), "long", "many", *map(str, range(20))):
        vfs.listdir(f"/m/{name}", 32768)
        vfs.stat(f"/m/{name}")
        vfs.stat(f"/m/{name}/__init__.py")
        there = truly(vfs, tmp_path / "m")
        assert (f"/m/{name}/a.py" in there) == name.isdigit()
        time.sleep(0.002)


def test_a_directory_that_is_new_or_ruled_is_not_kept_with_its_files(make: MakeVfs, many: Path) -> None:
    vfs = make(mounts={"/m": (many, WRITABLE)})
    vfs.stat("/m")
    at_once(lambda: tempfile.mkdtemp(dir=many), lambda: vfs.stat("/m/a2"))
    assert kept(vfs).keys() == {"/m/a2"}
    time.sleep(0.05)
    assert vfs.rules(compile_rules([FileRule("/m", "read")])) == 0
    vfs.stat("/m")
    vfs.stat("/m/a2")
    assert "/m" not in kept(vfs)


def test_links_and_mounts_are_left_out(make: MakeVfs, many: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    vfs = make(mounts={"/m": (many, WRITABLE), "/m/b10": (tmp_path / "other", 0)})
    for name in ("a54", "a55", "b7", "b8"):
        vfs.stat(f"/m/{name}")
        assert not kept(vfs).keys() & {"/m/a57", "/m/b10"}
    assert "/m/b9" in kept(vfs)
    assert "/m/b11" in kept(vfs)


def test_what_rules_speak_of_is_left_out(make: MakeVfs, many: Path) -> None:
    vfs = make(mounts={"/m": (many, WRITABLE)})
    assert vfs.rules(compile_rules([FileRule("/m/a4", "hide"), FileRule("/m/a5", "deny"), FileRule("/m/a6", "read")])) == 0
    for name in ("a1", "a2"):
        vfs.stat(f"/m/{name}")
    assert "/m/a7" in kept(vfs)
    assert vfs.error("stat", "/m/a4") == "ENOENT"
    vfs.stat("/m/a5")
    vfs.stat("/m/a6")
    assert not kept(vfs).keys() & {"/m/a4", "/m/a5", "/m/a6"}


def at_once(change: Callable[[], object], look: Callable[[], object]) -> None:
    """One after the other, until they come within 10 ms: what is older is no news."""
    start = 0.0
    while time.monotonic() - start > 0.01:
        start = time.monotonic()
        change()
        look()


def test_news_makes_all_else_void(make: MakeVfs, many: Path) -> None:
    vfs = make(mounts={"/m": (many, WRITABLE)})
    assert vfs.error("stat", "/m/none") == "ENOENT"
    assert "/m/none" in kept(vfs)
    at_once(lambda: (many / "a3").write_text("new"), lambda: vfs.stat("/m/a3"))  # the directory is not
    assert kept(vfs).keys() == {"/m/a3"}
    vfs.stat("/m/a1")
    at_once(lambda: tempfile.mkdtemp(dir=many), lambda: vfs.stat("/m/a2"))  # the directory is new
    assert kept(vfs).keys() == {"/m/a2"}  # and nothing is looked at beside it


def test_what_is_outside_is_no_news(make: MakeVfs, many: Path) -> None:
    """Behind a link out of the mount, it cannot be told from what is kept whether there is something."""
    (many.parent / "outside").mkdir()
    (many / "out").symlink_to(many.parent / "outside")
    time.sleep(0.05)
    vfs = make(mounts={"/m": (many, WRITABLE)})
    after = []
    for path in ("/m/out/there/x", "/m/out/gone/x"):
        (many.parent / "outside/there").mkdir(exist_ok=True)
        time.sleep(0.05)
        assert vfs.error("stat", "/m/none") == "ENOENT"
        assert vfs.error("stat", path) == "ENOENT"
        after.append("/m/none" in kept(vfs))
    assert after[0] == after[1]


def test_paths_that_are_not_kept(make: MakeVfs, many: Path) -> None:
    vfs = make(mounts={"/m": (many, WRITABLE)}, tmp=(1 << 20, 100, ["/tmp"]))
    base = vfs.open("/m", os.O_RDONLY | os.O_DIRECTORY)
    vfs.op("stat", *vfs.path("a1"), 0, OUT, base)
    vfs.stat("/proc/self/status")
    vfs.op("stat", PATH1, 0, 0x1000, OUT, CWD)
    assert kept(vfs) == {}
    vfs.write("/tmp/x", b"")
    assert stat.S_ISREG(vfs.stat("/tmp/x").mode)
    assert kept(vfs).keys() == {"/tmp/x"}


def test_the_memory_for_names_is_bounded(make: MakeVfs, tmp_path: Path) -> None:
    folder = tmp_path / "long"
    folder.mkdir()
    for n in range(2500):
        (folder / f"{n:04}{'x' * 240}").touch()
    vfs = make(mounts={"/m": (folder, WRITABLE)})
    time.sleep(0.05)
    names = vfs.listdir("/m", 32768)
    assert len(names) == 2500
    assert go_through(vfs, folder, names[:40]) < 40
    assert go_through(vfs, folder, names[-40:]) <= 40
