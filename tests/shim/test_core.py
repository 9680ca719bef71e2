"""The shim's core half: C programs that must end with 0 natively, on the shim without KVM (harness.c), and in a VM."""

import asyncio
import difflib
import subprocess
import sys
from pathlib import Path

import pytest
from agentfw_vmm import Cell, CellConfig, Mount, VmExit

from tests.cell_peer import Handler

HERE = Path(__file__).parent
CELL = HERE.parents[1] / "vmm/native/cell"
BLOB = HERE.parents[1] / "build/native/shim.bin"
PROGRAMS = [
    "threads",
    "memory",
    "signals",
    "clocks",
    "futex",
    "random",
    "filemap",
    "vectors",
    "crowd",
    "registers",
    "faults",
    "fair",
]
KVM = pytest.mark.kvm


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the harness and the guest programs."""
    out = tmp_path_factory.mktemp("shim")
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    harness = [
        "-O1",
        "-fno-stack-protector",
        "-static-pie",
        "-mgeneral-regs-only",
        "-D_GNU_SOURCE",
        f"-I{HERE.parents[1] / 'shim'}",
        f"-I{CELL}",
    ]
    sources = [
        HERE / "harness.c",
        *(CELL / name for name in ("calls.c", "filecalls.c", "fdcalls.c", "sockopt.c", "callproc.c", "inside.c")),
    ]
    command = ["cc", *harness, *flags, "-o", str(out / "harness"), *map(str, sources)]
    subprocess.run(command, check=True)
    for source in HERE.glob("*.c"):
        if source.stem != "harness":
            command = ["cc", "-O1", "-g", *flags, "-static", "-no-pie", "-pthread", "-o", str(out / source.stem), str(source)]
            subprocess.run(command, check=True)
    return out


def on_harness(built: Path, program: str, *args: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[bytes]:
    run = subprocess.run(
        [str(built / "harness"), *options, str(BLOB), str(built / program), *args], capture_output=True, timeout=60, check=False
    )
    if run.returncode == 98 and b"syscall dispatch" in run.stderr:
        pytest.skip("this kernel has no syscall user dispatch")
    return run


def in_vm(
    built: Path, program: str, *args: str, memory: int = 1 << 30, slice_ns: int = 0, output: list[bytes] | None = None
) -> VmExit:
    """Boots the program. `output`: takes what it writes to stdout."""

    async def main() -> VmExit:
        path = f"/t/{program}"
        config = CellConfig(memory=memory, mounts=[Mount("/t", built)], program=path, argv=[path, *args], slice_ns=slice_ns)
        handler = Handler()
        cell = await Cell.start(config, handler)

        async def read(flow: int, to: list[bytes]) -> None:
            while data := await cell.stream(0, flow).receive():
                to.append(data)

        told: list[bytes] = []
        try:
            cell.boot(0)
            reading = asyncio.gather(read(1, [] if output is None else output), read(2, told))
            report = await handler.exit(60)
            await asyncio.wait_for(reading, 20)
            print(b"".join(told).decode(), file=sys.stderr)
            return report
        finally:
            await cell.close()

    return asyncio.run(main())


@pytest.mark.parametrize("program", PROGRAMS)
def test_native(built: Path, program: str) -> None:
    """The programs demand nothing that Linux does not do."""
    run = subprocess.run([str(built / program)], capture_output=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (0, b"")


@pytest.mark.parametrize("program", PROGRAMS)
def test_harness(built: Path, program: str) -> None:
    run = on_harness(built, program)
    assert (run.returncode, run.stderr) == (0, b"")


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_memory_by_chance(built: Path, seed: str) -> None:
    run = on_harness(built, "memory", seed)
    assert (run.returncode, run.stderr) == (0, b"")


@KVM
@pytest.mark.parametrize("program", PROGRAMS)
def test_vm(built: Path, program: str) -> None:
    report = in_vm(built, program)
    assert (report.kind, report.code) == ("code", 0), report.text


def same_lines(expected: bytes, got: bytes) -> None:
    lines = difflib.unified_diff(expected.decode().splitlines(), got.decode().splitlines(), "native", "here", lineterm="", n=2)
    assert not [*lines]


def test_maps_by_chance(built: Path) -> None:
    """What memory calls give, and what the pages are after each: as natively."""
    arguments = "1", "400", "6"  # seed, steps, seeds
    native = subprocess.run([str(built / "maps"), *arguments], capture_output=True, timeout=60, check=True).stdout
    run = on_harness(built, "maps", *arguments)
    assert (run.returncode, run.stderr) == (0, b"")
    assert native.count(b"\n") > 6 * 400
    same_lines(native, run.stdout)


@KVM
def test_maps_by_chance_in_a_vm(built: Path) -> None:
    arguments = "7", "400", "8"
    native = subprocess.run([str(built / "maps"), *arguments], capture_output=True, timeout=60, check=True).stdout
    output: list[bytes] = []
    report = in_vm(built, "maps", *arguments, output=output)
    assert (report.kind, report.code) == ("code", 0), report.text
    same_lines(native, b"".join(output))


def test_random_stream(built: Path) -> None:
    """The host's bytes, each handed out once: from the end of what lies ready, or, if many are wanted, at once in place."""
    given = bytes((n * 2654435761 >> 24) & 255 for n in range(256 + 300))  # as the harness has them
    run = on_harness(built, "random")
    assert run.returncode == 0, run.stderr
    few, fewer, many = (bytes.fromhex(line) for line in run.stdout.decode().split())
    assert [len(few), len(fewer), len(many)] == [100, 7, 300]
    end = given.index(few) + 100  # the C library may have asked before the program
    assert 128 < end <= 256 and fewer == given[end - 107 : end - 100]
    assert many == given[256:]


def test_restore(built: Path) -> None:
    run = on_harness(built, "restore")
    assert (run.returncode, run.stderr) == (0, b"")


@pytest.mark.parametrize("number", [2, 15])
def test_signal_from_outside(built: Path, number: int) -> None:
    """A sleeping program without a handler dies of it."""
    run = on_harness(built, "sleeper", options=("-s", f"{number}:50"))
    assert run.returncode == 128 + number


def test_deadlock_is_seen(built: Path) -> None:
    """The harness knows that nobody can run: the shim asked to wait without a deadline."""
    assert on_harness(built, "sleeper", "forever").returncode == 99


def test_memory_limit(built: Path) -> None:
    """mmap and brk say ENOMEM at the limit, and what was given back can be had again."""
    run = on_harness(built, "limit", options=("-m", "256"))
    assert (run.returncode, run.stderr) == (0, b"")


@pytest.mark.parametrize("seed", ["1", "2", "3", "4"])
def test_calls_by_chance(built: Path, seed: str) -> None:
    run = on_harness(built, "chance", seed, options=("-m", "512"))
    assert run.returncode == 0, run.stderr
