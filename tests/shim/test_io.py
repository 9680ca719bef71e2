"""The shim's I/O half: C programs whose output must be the same natively, on the shim without KVM (harness.c), and in a VM."""

import asyncio
import difflib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from agentfw_vmm import Cell, CellConfig, Mount, VmExit

from .test_core import Handler, built, on_harness

__all__ = ["built"]
HERE = Path(__file__).parent
SHIM = HERE.parents[1] / "shim"
PROGRAMS = ["io_pipes", "io_poll", "io_sockets", "io_random", "io_files"]


def native(built: Path, program: str) -> list[str]:
    run = subprocess.run([str(built / program)], capture_output=True, timeout=60, check=True)
    return run.stdout.decode().splitlines()


def in_vm_output(built: Path, program: str, tmp_bytes: int = 256 << 20) -> tuple[VmExit, bytes]:
    async def main() -> tuple[VmExit, bytes]:
        path = f"/t/{program}"
        handler = Handler()
        config = CellConfig(memory=1 << 28, mounts=[Mount("/t", built)], program=path, argv=[path], tmp_bytes=tmp_bytes)
        cell = await Cell.start(config, handler)
        try:
            cell.boot(0)
            out = bytearray()
            stdout = cell.stream(0, 1)
            while chunk := await asyncio.wait_for(stdout.receive(), 60):
                out += chunk
            return await handler.exit(60), bytes(out)
        finally:
            await cell.close()

    return asyncio.run(main())


def same(expected: list[str], got: list[str]) -> None:
    assert expected == got, "\n".join(difflib.unified_diff(expected, got, "native", "shim", lineterm="", n=1))


@pytest.mark.parametrize("program", PROGRAMS[:4])
def test_on_harness(built: Path, program: str) -> None:
    run = on_harness(built, program)
    assert run.returncode == 0, run.stderr.decode()
    same(native(built, program), run.stdout.decode().splitlines())


@pytest.mark.kvm
@pytest.mark.parametrize("program", PROGRAMS)
def test_in_vm(built: Path, program: str) -> None:
    report, out = in_vm_output(built, program)
    assert (report.kind, report.code, report.text) == ("code", 0, report.text)
    same(native(built, program), out.decode().splitlines())


@pytest.mark.kvm
@pytest.mark.parametrize(("tmp_bytes", "said"), [(480_000, b"ENOSPC\n"), (700_000, b"all\n")])
def test_sendfile_counts_what_was_written(built: Path, tmp_bytes: int, said: bytes) -> None:
    report, out = in_vm_output(built, "full", tmp_bytes)
    assert (report.kind, report.code, out) == ("code", 0, said), report.text


@pytest.fixture(scope="session")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The I/O half as a program under AddressSanitizer and UBSan; the I/O window where the sanitizer leaves room for it."""
    out = tmp_path_factory.mktemp("fuzz")
    shutil.copytree(SHIM, out / "shim")
    abi = out / "shim/abi.h"
    text = abi.read_text()
    assert "#define AFW_WINDOW 0x3c0000000 " in text
    abi.write_text(text.replace("#define AFW_WINDOW 0x3c0000000 ", "#define AFW_WINDOW 0x200000000000 "))
    names = ["uio", "fd", "pipe", "pass", "event", "poll", "dev", "file", "addr", "flow", "sock", "sockio", "sockopt"]
    flags = ["-g", "-O1", "-std=gnu11", "-fno-omit-frame-pointer", "-fno-strict-aliasing", "-no-pie"]
    flags += ["-Wl,--defsym=ctl_page=0x204000"]
    checks = ["-fsanitize=address,undefined", "-fno-sanitize=alignment,nonnull-attribute", "-fno-sanitize-recover=all"]
    sources = [HERE / "native/io_fuzz.c", *(out / f"shim/{name}.c" for name in names)]
    command = ["cc", *flags, *checks, f"-I{out / 'shim'}", "-o", str(out / "io_fuzz"), *map(str, sources)]
    subprocess.run(command, check=True)
    return out / "io_fuzz"


@pytest.mark.parametrize("seed", range(1, 7))
def test_random_calls_sanitized(fuzzer: Path, seed: int) -> None:
    travel = ["sockets travel"] if seed % 2 else []  # which may end in circles that nobody frees
    env = {**os.environ, "ASAN_OPTIONS": f"detect_leaks={seed % 2 ^ 1}"}
    command = [str(fuzzer), str(seed), "30000", *travel]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=env)
    assert run.returncode == 0, run.stderr[-4000:]
