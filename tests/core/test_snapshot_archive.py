"""Archives of snapshots: what is taken, and that nothing is believed which whoever made one may have made up."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import random
import re
import stat
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import msgspec
import pytest
from agentfw.dispatch import template_environment
from agentfw.guestfs import View, find_interpreter
from agentfw.manifests import Manifest, PythonFacts, differences, file_digest, same_python
from agentfw.snapshot_archive import HEAD_MAX, MAGIC, read_head, unpack, write_archive
from agentfw.snapshot_library import Library, Named
from agentfw.snapshots import SnapshotStore, Template, TemplateError, quiet
from agentfw_vmm import _lib
from agentfw_vmm.heads import SnapshotError, parse_head
from hypothesis import given, settings
from hypothesis import strategies as st

C = _lib.constants()
HEADER, FIELDS = _lib.structs()["afw_snapshot_header"]
ENVIRONMENT = template_environment({})
NEEDS = ("sse3", "fpu", "lm")


def head(size: int, **changes: int) -> bytearray:
    """Of a snapshot file with no pages."""
    values = {
        "magic": C["AFW_SNAPSHOT_MAGIC"],
        "format": C["AFW_SNAPSHOT_FORMAT"],
        "abi": C["AFW_ABI"],
        "file_size": size,
        "memory_limit": 512 << 20,
        "vcpu_offset": HEADER,
        "n_extents": 1,
        **changes,
    }
    data = bytearray(HEADER)
    for name, value in values.items():
        offset, width = FIELDS[name]
        data[offset : offset + width] = value.to_bytes(width, "little")
    offset, _ = FIELDS["needs"]
    struct.pack_into("<4Q", data, offset, 1 | 1 << 32, 0, 1 << 61, 0)
    offset, _ = FIELDS["cpu_vendor"]
    data[offset : offset + 12] = b"GenuineIntel"
    offset, _ = FIELDS["extent"]
    struct.pack_into("<3Q", data, offset, 0, size - HEADER, HEADER)
    return data


CONTENT = bytes(head(1 << 20)) + os.urandom(1000) + bytes((1 << 20) - HEADER - 1000)


@pytest.fixture(scope="module")
def python() -> PythonFacts:
    return PythonFacts.of(find_interpreter(sys.executable, ENVIRONMENT))


@pytest.fixture(scope="module")
def manifest(python: PythonFacts) -> Manifest:
    files = [file for file in (os.path.realpath(sys.executable), f"{python.stdlib}/os.py", "/run/agentfw/bootstrap.py")]
    return Manifest(
        version=1,
        digest=hashlib.sha256(CONTENT).hexdigest(),
        size=len(CONTENT),
        created=1_700_000_000,
        agentfw="1.0",
        format=C["AFW_SNAPSHOT_FORMAT"],
        abi=C["AFW_ABI"],
        python=python,
        environment=ENVIRONMENT,
        preload=("json",),
        memory=512 << 20,
        cpu_vendor="GenuineIntel",
        needs=NEEDS,
        modules=("json", "os"),
        files={file: file_digest(file) or "" for file in files},
    )


def pack(manifest: Manifest, content: bytes = CONTENT, name: str = "theirs", *, raw: bytes | None = None) -> bytes:
    """An archive, by hand."""
    body = b'{"name":%b,"manifest":%b}' % (msgspec.json.encode(name), raw if raw is not None else manifest.json())
    first = MAGIC + struct.pack("<II", 1, len(body)) + body
    return first + hashlib.sha256(first).digest() + zlib.compress(content)


async def bring(library: Library, archive: bytes, **more: object) -> Named:
    with library.part() as (part, out):
        source = io.BytesIO(archive)
        name, manifest = read_head(source)
        unpack(source, manifest, out)
        settings = {"python": sys.executable, "env": {}, "replace": False, "trial": False, **more}
        return await library.take(name, part, manifest, **settings)  # type: ignore[arg-type]


def bring_now(library: Library, archive: bytes, **more: object) -> Named:
    return asyncio.run(bring(library, archive, **more))


def test_there_and_back(manifest: Manifest, tmp_path: Path) -> None:
    library = Library(tmp_path / "library")
    named = bring_now(library, pack(manifest))
    assert (named.name, named.path.read_bytes()) == ("theirs", CONTENT)
    assert named.disk < len(CONTENT)  # zeros are holes
    again = io.BytesIO()
    write_archive(named, again)
    once_more = io.BytesIO()
    write_archive(named, once_more)
    assert again.getvalue() == once_more.getvalue()
    assert read_head(io.BytesIO(again.getvalue())) == ("theirs", manifest)
    for file in (tmp_path / "library").rglob("*"):
        assert stat.S_IMODE(file.stat().st_mode) == (0o700 if file.is_dir() else 0o600), file
    library.verify(named)
    assert [each.name for each in library.all()] == ["theirs"]
    assert library.find(manifest.digest[:8]).path == named.path
    template = library.template("theirs")
    assert template.ready is not None and template.memory == manifest.memory and template.interpreter.full == manifest.python.full
    assert library.remove("theirs") > 0 and not library.all()
    assert {file.name for file in (tmp_path / "library").iterdir()} == {"lock", "names"}


LIES = {
    "size": {"size": len(CONTENT) + 1},
    "smaller": {"size": len(CONTENT) - 1},
    "digest": {"digest": "0" * 64},
    "memory": {"memory": 1 << 30},
    "needs": {"needs": ("sse3",)},
    "vendor": {"cpu_vendor": "AuthenticAMD"},
    "format": {"format": 7},
    "abi": {"abi": 77},
    "version": {"version": 2},
    "huge": {"size": 15 << 30},
    "file": {"files": {"/etc/../etc/passwd": "0" * 64}},
    "relative": {"files": {"etc/passwd": "0" * 64}},
    "not_shown": {"files": {"/etc/shadow": "0" * 64}},
    "device": {"files": {"/dev/zero": "0" * 64}},
    "gone": {"files": {"/usr/lib/x86_64-linux-gnu/nothing.so": "0" * 64}},
    "no_digest": {"files": {"/usr/lib/os.py": "yes"}},
    "variable": {"environment": {**ENVIRONMENT, "LD_PRELOAD": "/tmp/evil.so"}},
    "fewer_variables": {"environment": {}},
    "module": {"preload": ("os; import evil",)},
    "terminal": {"modules": ("os", "\x1b[2J")},
    "agentfw": {"agentfw": "1\n2"},
}


@pytest.mark.parametrize("lie", LIES)
def test_what_an_archive_tells_is_checked(manifest: Manifest, tmp_path: Path, lie: str) -> None:
    library = Library(tmp_path / "library")
    with pytest.raises(TemplateError):
        bring_now(library, pack(msgspec.structs.replace(manifest, **LIES[lie])))
    assert not [file for file in (tmp_path / "library").rglob("*") if file.is_file() and file.name != "lock"]


def test_its_python_is_never_run_nor_shown(manifest: Manifest, tmp_path: Path) -> None:
    """Nothing in an archive names what is executed here, or mounted: it must be what the operator says."""
    marker = tmp_path / "ran"
    evil = tmp_path / "python3"
    evil.write_text(f'#!/bin/sh\ntouch {marker}\nexec {sys.executable} "$@"\n')
    evil.chmod(0o755)
    for change in ({"executable": str(evil)}, {"prefix": "/root"}, {"path": ("/home",)}, {"full": "3.99"}):
        lie = msgspec.structs.replace(manifest, python=msgspec.structs.replace(manifest.python, **change))
        with pytest.raises(TemplateError, match="does not fit the Python"):
            bring_now(Library(tmp_path / "library"), pack(lie))
    assert not marker.exists()
    lie = msgspec.structs.replace(manifest, python=msgspec.structs.replace(manifest.python, libraries=("/etc/shadow",)))
    named = bring_now(Library(tmp_path / "library"), pack(lie))
    assert "/etc/shadow" not in named.manifest.python.libraries


def test_files_that_differ_are_named(manifest: Manifest, tmp_path: Path) -> None:
    stdlib = f"{manifest.python.stdlib}/os.py"
    lie = msgspec.structs.replace(manifest, files={**manifest.files, stdlib: "1" * 64})
    with pytest.raises(TemplateError, match="/os\\.py: other content"):
        bring_now(Library(tmp_path / "library"), pack(lie))


@pytest.mark.parametrize(
    ("archive", "text"),
    [
        (b"", "empty"),
        (b"agentfw", "too early"),
        (b"x" * 100, "no archive"),
        (MAGIC + struct.pack("<II", 2, 10), "version 2"),
        (MAGIC + struct.pack("<II", 1, HEAD_MAX + 1), "manifest of"),
        (MAGIC + struct.pack("<II", 1, 1000) + b"{}", "too early"),
    ],
)
def test_what_is_no_archive(archive: bytes, text: str) -> None:
    with pytest.raises(TemplateError, match=text):
        read_head(io.BytesIO(archive))


def test_bombs_and_rests(manifest: Manifest, tmp_path: Path) -> None:
    """No more is written than the manifest tells, and nothing follows."""
    library = Library(tmp_path / "library")
    bomb = pack(manifest, CONTENT + bytes(1 << 28))
    assert len(bomb) < 1 << 20
    for archive in (bomb, pack(manifest) + b"x", pack(manifest)[:-5], pack(manifest)[:-2000], pack(manifest, CONTENT[:-4096])):
        with pytest.raises(TemplateError, match="damaged"):
            bring_now(library, archive)
    for name in ("", "../up", "a/b", ".hidden", "x" * 64, "a\nb"):
        with pytest.raises(TemplateError, match="bad name"):
            bring_now(library, pack(manifest, name=name))
    for raw in (
        b"[" * 100_000,
        b'{"version": 1}',
        b"null",
        b'{"version": 1, "version": "x"}',
        manifest.json()[:-1] + b',"more":1}',
    ):
        with pytest.raises(TemplateError):
            bring_now(library, pack(manifest, raw=raw))
    assert not library.all()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_damage_goes_unnoticed(manifest: Manifest, data: st.DataObject) -> None:
    archive = pack(manifest)
    at = data.draw(st.integers(0, len(archive) - 1))
    broken = bytearray(archive)
    broken[at] ^= 1 << data.draw(st.integers(0, 7))
    source = io.BytesIO(broken)
    with pytest.raises(TemplateError), Path(os.devnull).open("r+b") as out:
        _, told = read_head(source)
        unpack(source, told, _Sink(out))  # type: ignore[arg-type]


class _Sink(io.BytesIO):
    """Memory that has a descriptor, for statvfs()."""

    def __init__(self, file: io.BufferedRandom) -> None:
        super().__init__()
        self._file = file

    def fileno(self) -> int:
        return self._file.fileno()


def test_names(manifest: Manifest, tmp_path: Path) -> None:
    library = Library(tmp_path / "library")
    bring_now(library, pack(manifest))
    bring_now(library, pack(manifest))  # the same once more
    bring_now(library, pack(manifest, name="also"))
    other = bytes(head(1 << 20)) + os.urandom((1 << 20) - HEADER)
    changed = msgspec.structs.replace(manifest, digest=hashlib.sha256(other).hexdigest())
    with pytest.raises(TemplateError, match="another snapshot `theirs`"):
        bring_now(library, pack(changed, other))
    bring_now(library, pack(changed, other), replace=True)
    assert [(each.name, each.manifest.digest) for each in library.all()] == [
        ("also", manifest.digest),
        ("theirs", changed.digest),
    ]
    with pytest.raises(TemplateError) as caught:
        library.find("their")
    assert caught.value.hint == "did you mean `theirs`?"
    library.remove("also")
    assert not (tmp_path / "library" / f"{manifest.digest}.snapshot").exists()
    with pytest.raises(TemplateError):
        library.remove("also")


def test_what_was_damaged_in_the_library(manifest: Manifest, tmp_path: Path) -> None:
    library = Library(tmp_path / "library")
    named = bring_now(library, pack(manifest))
    with named.path.open("r+b") as file:
        file.seek(HEADER + 10)
        file.write(b"!")
    with pytest.raises(TemplateError, match="not that of its digest"):
        library.verify(library.find("theirs"))
    with pytest.raises(TemplateError, match="not that of its digest"):
        write_archive(named, io.BytesIO())
    named.path.chmod(0o666)
    with pytest.raises(TemplateError, match="others may write"):
        library.find("theirs")
    named.path.chmod(0o600)
    named.path.with_suffix(".json").write_bytes(b"{")
    with pytest.raises(TemplateError, match="damaged"):
        library.find("theirs")
    assert library.all() == []
    named.path.unlink()
    with pytest.raises(TemplateError, match="damaged"):
        library.find("theirs")


def test_a_run_must_want_what_the_snapshot_is(manifest: Manifest, tmp_path: Path) -> None:
    library = Library(tmp_path / "library")
    bring_now(library, pack(manifest))
    library.template(
        "theirs", env={"MODEL": "x", "LANG": "C.UTF-8"}, preload=["json", "os"], memory=512 << 20, python=sys.executable
    )
    for more, text in (
        ({"env": {"PYTHONHASHSEED": "1"}}, "PYTHONHASHSEED"),
        ({"env": {"LANG": "de_DE"}}, "LANG"),
        ({"preload": ["json", "csv"]}, "csv"),
        ({"memory": 1 << 30}, "1024"),
        ({"python": "/usr/bin/other"}, "/usr/bin/other"),
    ):
        with pytest.raises(TemplateError, match=text):
            library.template("theirs", **more)  # type: ignore[arg-type]


def test_a_host_that_changed(manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read again when they were touched, and only then."""
    from agentfw import manifests, snapshot_library

    library = Library(tmp_path / "library")
    bring_now(library, pack(manifest))
    library.template("theirs")
    code = tmp_path / "guest"
    code.mkdir()
    (code / "bootstrap.py").write_bytes((manifests.GUEST_CODE / "bootstrap.py").read_bytes())
    monkeypatch.setattr(manifests, "GUEST_CODE", code)
    library.template("theirs")  # another file, the same content
    (code / "bootstrap.py").write_text("print('other')")
    with pytest.raises(TemplateError, match="bootstrap\\.py: other content"):
        library.template("theirs")
    (code / "bootstrap.py").unlink()
    with pytest.raises(TemplateError, match="bootstrap\\.py: not here"):
        library.template("theirs")
    monkeypatch.undo()
    library.template("theirs")
    monkeypatch.setattr(snapshot_library, "differences", lambda files, view: pytest.fail("read again"))
    library.template("theirs")


def test_digests_wait_for_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert file_digest(str(tmp_path / "pipe")) is None
    assert file_digest(str(tmp_path)) is None and file_digest("/dev/zero") is None and file_digest("/no\0pe") is None


def test_heads() -> None:
    size = 1 << 20
    found = parse_head(bytes(head(size)), size)
    assert (found.needs, found.cpu_vendor, found.memory, found.stored) == (NEEDS, "GenuineIntel", 512 << 20, size - HEADER)
    for change, text in (
        ({"magic": 1}, "not a snapshot"),
        ({"format": 99}, "format 99"),
        ({"abi": 99}, "ABI 99"),
        ({"file_size": 5}, "damaged"),
        ({"n_extents": 257}, "out of bounds"),
        ({"n_extents": 2**32 - 1}, "out of bounds"),
        ({"memory_limit": 1 << 60}, "out of bounds"),
        ({"vcpu_size": size + 1}, "out of bounds"),
        ({"commit_chunks": (1 << 480) - 1}, "out of bounds"),  # more memory than its limit
    ):
        with pytest.raises(SnapshotError, match=text):
            parse_head(bytes(head(size, **change)), size)
    with pytest.raises(SnapshotError, match="not a snapshot"):
        parse_head(b"AAFWSNP1", 8)
    strange = head(size)
    struct.pack_into("<Q", strange, FIELDS["needs"][0] + 8, 1 << 63)
    assert "feature 1.63" in parse_head(bytes(strange), size).needs


@given(st.integers(), st.integers(0, 1 << 40))
@settings(max_examples=50)
def test_no_head_makes_a_fault(seed: int, size: int) -> None:
    data = random.Random(seed).randbytes(HEADER)
    fixed = struct.pack("<QII", C["AFW_SNAPSHOT_MAGIC"], C["AFW_SNAPSHOT_FORMAT"], C["AFW_ABI"]) + struct.pack("<Q", size)
    try:
        found = parse_head(fixed + data[len(fixed) :], size)
    except SnapshotError:
        return
    assert found.cpu_vendor.isprintable()


def test_features_have_the_names_of_the_headers() -> None:
    text = Path(__file__).parents[2].joinpath("vmm/native/cell/needs.h").read_text().split("needs_must")[0]
    assert [(name, int(word), int(bit)) for word, bit, name in re.findall(r'\{(\d+), (\d+), "([^"]+)"\}', text)] == _lib.needs()


def test_pythons_that_differ(python: PythonFacts) -> None:
    here = python.interpreter()
    assert same_python(python, here) is None
    other = msgspec.structs.replace(python, version=(3, 99, 1))
    assert same_python(other, here) == f"its version is 3.99.1, here {'.'.join(map(str, python.version))}"
    assert differences({"/dev/full": "0" * 64}, View()) == ["/dev/full: agents do not see it here"]


def test_left_overs_go(manifest: Manifest, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    library = Library(tmp_path / "library")
    bring_now(library, pack(manifest))
    old = tmp_path / "library" / f"{done.stdout.strip()}.1.part"
    mine = tmp_path / "library" / f"{os.getpid()}.1.part"
    old.touch()
    mine.touch()
    bring_now(library, pack(manifest))
    assert mine.exists() and not old.exists()


def test_a_templates_files_are_looked_at_beside_the_loop(tmp_path: Path) -> None:
    """Thousands of them: what else runs on the loop goes on."""
    threads: list[threading.Thread] = []
    store = SnapshotStore(tmp_path)
    store.path(bytes(32)).write_bytes(b"x")
    store.path(bytes(32)).chmod(0o600)

    class Slow(Template):
        def key(self) -> bytes:
            threads.append(threading.current_thread())
            return bytes(32)

    template = Slow(None, None)  # type: ignore[arg-type]
    assert asyncio.run(store.get(template, quiet)) == (store.path(bytes(32)), bytes(32))
    assert threads and threads[0] is not threading.current_thread()
