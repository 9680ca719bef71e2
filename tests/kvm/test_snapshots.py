"""Named snapshots from the command line to running agents: made, shown, used, moved, refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import iced_x86 as ix
import pytest
from agentfw_vmm import _lib

from ..conftest import Agentfw

pytestmark = pytest.mark.kvm
HEADER, FIELDS = _lib.structs()["afw_snapshot_header"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"XDG_DATA_HOME": str(tmp_path_factory.mktemp("data"))}


def files(library: dict[str, str]) -> list[Path]:
    return [file for file in Path(library["XDG_DATA_HOME"]).rglob("*") if file.is_file()]


def test_a_snapshots_life(agentfw: Agentfw, library: dict[str, str], tmp_path: Path) -> None:
    made = agentfw("snapshot", "build", "mine", "--preload", "wave", env=library)
    assert made.returncode == 0, made.stderr
    name, digest = made.stdout.split()
    assert name == "mine" and len(digest) == 64
    assert agentfw("snapshot", "build", "mine", env=library).returncode == 125

    row = agentfw("snapshot", "ls", env=library).stdout.splitlines()[1].split()
    assert row[:2] == ["mine", digest[:12]] and row[-1] == "wave"
    shown = agentfw("snapshot", "show", digest[:10], "--verify", env=library)
    assert shown.returncode == 0 and "this host has the same files" in shown.stdout and "sse2" in shown.stdout, shown.stderr
    document = json.loads(agentfw("snapshot", "show", "mine", "--json", env=library).stdout)["snapshot"]
    assert document["digest"] == digest and "wave" in document["modules"] and "os" in document["modules"]
    assert document["python"]["executable"] in ("", document["python"]["executable"]) and document["memory"] == 512 << 20
    assert any(path.endswith("/wave.py") for path in document["files"]) and "/run/agentfw/bootstrap.py" in document["files"]

    code = "import sys; print('wave' in sys.modules)"
    for arguments in (["--snapshot", "mine"], ["--snapshot", "mine", "-n", "2"]):
        ran = agentfw("run", "-q", "--no-config", *arguments, "-c", code, env=library)
        assert set(ran.stdout.split()) == {"True"} and ran.returncode == 0, ran.stderr
    assert agentfw("run", "-q", "--no-config", "-c", code, env=library).stdout == "False\n"

    archive = tmp_path / "mine.agentfw"
    assert agentfw("snapshot", "export", "mine", archive, env=library).returncode == 0
    again = tmp_path / "again.agentfw"
    agentfw("snapshot", "export", "mine", again, env=library)
    assert archive.read_bytes() == again.read_bytes() and archive.stat().st_mode & 0o777 == 0o600
    removed = agentfw("snapshot", "rm", "mine", env=library)
    assert removed.stdout.startswith("removed 1 snapshot, ") and [file.name for file in files(library)] == ["lock"]
    gone = agentfw("run", "-q", "--no-config", "--snapshot", "mine", "-c", code, env=library)
    assert gone.returncode == 125 and gone.stderr.startswith("error: there is no snapshot `mine`")

    brought = agentfw("snapshot", "import", archive, "--name", "yours", env=library)
    assert brought.stdout.split() == ["yours", digest], brought.stderr
    ran = agentfw("run", "-q", "--no-config", "--snapshot", "yours", "-c", code, env=library)
    assert ran.stdout == "True\n" and ran.returncode == 0, ran.stderr


def test_what_a_run_asks_for_must_be_in_it(agentfw: Agentfw, library: dict[str, str]) -> None:
    agentfw("snapshot", "build", "plain", "--replace", env=library)
    for options, text in (
        (["--memory", "1G"], "512 MiB"),
        (["--preload", "cmd"], "module cmd"),
        (["--python", "/usr/bin/env"], "/usr/bin/env"),
        (["--env", "PYTHONHASHSEED=1"], "PYTHONHASHSEED"),
    ):
        ran = agentfw("run", "-q", "--no-config", "--snapshot", "plain", *options, "-c", "pass", env=library)
        assert ran.returncode == 125 and text in ran.stderr and "hint: " in ran.stderr, (options, ran.stderr)
    ran = agentfw(
        "run", "-q", "--no-config", "--snapshot", "plain", "--memory", "512M", "--env", "A=b", "-c", "pass", env=library
    )
    assert ran.returncode == 0, ran.stderr


def crc64(data: bytes) -> int:
    """As digest.c: ECMA-182, reflected."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0xC96C5795D7870F42 if value & 1 else 0)
        table.append(value)
    crc = 0xFFFFFFFFFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFFFFFFFFFF


def reseal(data: bytearray) -> None:
    """After a change to head or state: the checksum again."""
    at = FIELDS["crc"][0]
    (size,) = struct.unpack_from("<I", data, FIELDS["vcpu_size"][0])
    old = bytes(data[at : at + 8])
    data[at : at + 8] = bytes(8)
    data[at : at + 8] = crc64(bytes(data[: HEADER + size])).to_bytes(8, "little") if old else b""


def test_what_does_not_fit_or_is_damaged_says_so(agentfw: Agentfw, library: dict[str, str]) -> None:
    agentfw("snapshot", "build", "plain", "--replace", env=library)
    document = json.loads(agentfw("snapshot", "show", "plain", "--json", env=library).stdout)["snapshot"]
    file = Path(document["file"])
    good = file.read_bytes()
    sealed = bytearray(good)
    reseal(sealed)
    assert sealed == good  # the checksum is the one that the cell computes

    unknown = bytearray(good)
    unknown[FIELDS["needs"][0] + 15] |= 0x80
    reseal(unknown)
    state = bytearray(good)
    state[HEADER + 100] ^= 1
    for data, text in (
        (unknown, "a feature unknown to this version"),
        (state, "wrong checksum"),
        (b"x" * len(good), "not a snapshot"),
    ):
        file.write_bytes(data)
        ran = agentfw("run", "-q", "--no-config", "--snapshot", "plain", "-c", "print('ran')", env=library)
        assert ran.returncode == 125 and text in ran.stderr and not ran.stdout, (text, ran.stderr)
        assert "snapshot show --verify plain" in ran.stderr or "make it anew" in ran.stderr
        looked = agentfw("snapshot", "show", "plain", "--verify", env=library)
        assert looked.returncode == 125 and "damaged" in looked.stderr
    file.write_bytes(good)
    assert agentfw("run", "-q", "--no-config", "--snapshot", "plain", "-c", "print('ran')", env=library).stdout == "ran\n"


def test_a_pools_template_may_be_one(
    agentfw: Agentfw, library: dict[str, str], agentfw_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentfw.config import RunConfig
    from agentfw.pool.config import TemplateConfig
    from agentfw.pool.templates import template_of
    from agentfw.snapshots import TemplateError

    agentfw("snapshot", "build", "plain", "--replace", env=library)
    monkeypatch.setenv("XDG_DATA_HOME", library["XDG_DATA_HOME"])
    template, _ = template_of(TemplateConfig(snapshot="plain"), RunConfig(memory="1G", preload=("cmd",)))
    assert template.ready is not None and template.ready.name == "plain" and template.memory == 512 << 20
    assert template.key() == template.ready.key and template.view.cwd == "/job"
    with pytest.raises(TemplateError, match="module cmd"):
        template_of(TemplateConfig(snapshot="plain", preload=("cmd",)), RunConfig())
    with pytest.raises(TemplateError, match="no snapshot"):
        template_of(TemplateConfig(snapshot="other"), RunConfig())


CHOSEN = """
import ctypes
libc = ctypes.CDLL(None)
for name in ('memset', 'memcpy', 'memmove', 'memchr', 'memcmp', 'strlen', 'strchr', 'strcmp', 'strcpy', 'strnlen', 'wcslen'):
    at = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
    print(name, ctypes.string_at(at, 256).hex())
"""


def test_a_template_uses_no_cpu_feature_beyond_the_baseline(agentfw: Agentfw) -> None:
    """What the C library chose: code that any host of snapshots has. (Where the CPU has AVX-512; elsewhere it cannot fail.)"""
    ran = agentfw("run", "-q", "--no-config", "-c", CHOSEN)
    assert ran.returncode == 0, ran.stderr
    rows = [line.split() for line in ran.stdout.splitlines()]
    assert len(rows) == 11
    for name, code in rows:
        decoder = ix.Decoder(64, bytes.fromhex(code))
        encodings = [instruction.encoding for instruction in [decoder.decode() for _ in range(30)]]
        assert ix.EncodingKind.EVEX not in encodings, name


def test_an_agent_does_not_see_how_its_template_started(agentfw: Agentfw) -> None:
    code = "import os; print([name for name in os.environ if name.startswith(('GLIBC', 'OPENSSL'))])"
    assert agentfw("run", "-q", "--no-config", "-c", code).stdout == "[]\n"
