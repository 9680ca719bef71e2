"""Fuzzes what guests can reach: `python tests/fuzz/run.py [SECONDS]`, for all targets together.

By clang's libFuzzer if it is there; else gcc and driver.c damage the corpus by chance. `corpus/TARGET/` has inputs to begin with,
`regressions/TARGET/` those that once broke something. New inputs go to build/fuzz/corpus/TARGET for the next run.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CELL, LIB = ROOT / "vmm/native/cell", ROOT / "vmm/native/lib"
#: The file system and the calls that are answered beside it, as they can be built without a VM (also for tests/vfs/driver.py)
FILES = "vfs walk filerules rules handles tmpfs tmpdata savefs readdir synth procself proccpu procfd fds inside locks kept ahead"
FILES += " modules sight openops pathops nameops fileops calls callproc filecalls fdcalls copyops"
VFS = [*(CELL / f"{name}.c" for name in FILES.split()), ROOT / "tests/vfs/guest_memory.c"]
TARGETS = {
    "elf": [CELL / "elf.c"],
    "sites": [CELL / "sites.c", LIB / "sites.c"],
    "ring": [*VFS, CELL / "ring.c", CELL / "sockopt.c", CELL / "flow.c"],
    "flow": [LIB / "flow.c", LIB / "worker.c"],
    "sight": [LIB / "sight.c"],
}
CHECKS = "address,undefined"


def clang() -> str | None:
    """The newest clang with libFuzzer, or None."""
    for name in ["clang", *(f"clang-{version}" for version in range(22, 12, -1))]:
        if shutil.which(name):
            where = subprocess.run([name, "-print-runtime-dir"], capture_output=True, text=True, check=True).stdout.strip()
            found = [*Path(where).glob("libclang_rt.fuzzer*"), *Path(where).parent.glob("linux/libclang_rt.fuzzer*")]
            if found:
                return name
    return None


def build(target: str, out: Path, compiler: str | None = None) -> Path:
    """Compiles a target, with libFuzzer of `compiler`, or with cc and driver.c; -> the program."""
    program = out / f"{target}_fuzz"
    flags = ["-g", "-O1", "-std=gnu11", "-D_GNU_SOURCE", "-pthread", "-Wall", "-Wextra", "-Werror", "-fno-omit-frame-pointer"]
    includes = [f"-I{ROOT}/shim", f"-I{ROOT}/vmm/native", f"-I{CELL}", f"-I{LIB}", f"-I{ROOT}/tests/vfs"]
    how = (
        [f"-fsanitize=fuzzer,{CHECKS}", "-Wno-gnu-variable-sized-type-not-at-end"]
        if compiler
        else [f"-fsanitize={CHECKS}", str(HERE / "driver.c")]
    )
    sources = [str(HERE / f"{target}_fuzz.c"), *map(str, TARGETS[target])]
    command = [compiler or "cc", *flags, "-fno-sanitize-recover=undefined", *how, *includes, "-o", str(program), *sources]
    subprocess.run(command, check=True)
    return program


def inputs(target: str) -> list[Path]:
    """The directories of a target's inputs that are in the tree."""
    return [place for kind in ("corpus", "regressions") if (place := HERE / kind / target).is_dir()]


def fuzz(target: str, out: Path, seconds: float, compiler: str | None) -> int:
    program = build(target, out, compiler)
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}
    found = out / "found"
    found.mkdir(parents=True, exist_ok=True)
    if compiler:
        grown = out / "corpus" / target
        grown.mkdir(parents=True, exist_ok=True)
        limits = [
            f"-max_total_time={max(1, round(seconds))}",
            "-timeout=20",
            "-rss_limit_mb=3000",
            "-max_len=20000",
            "-verbosity=1",
        ]
        command = [program, grown, *inputs(target), *limits, "-close_fd_mask=1", f"-artifact_prefix={found}/{target}-"]
        return subprocess.run(command, env=environment, check=False).returncode
    try:  # (a round takes some 0.1 ms; the time is the limit)
        command = [program, f"-rounds={round(seconds * 20000)}", f"-seed={os.getpid()}", *inputs(target)]
        return subprocess.run(command, cwd=found, env=environment, check=False, timeout=seconds + 60).returncode
    except subprocess.TimeoutExpired:
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float, nargs="?", default=120, help="for all targets together (120)")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all")
    given = parser.parse_args()
    chosen = given.targets or list(TARGETS)
    out = ROOT / "build/fuzz"
    out.mkdir(parents=True, exist_ok=True)
    compiler = clang()
    print("with", compiler or "cc and a driver of our own: no clang with libFuzzer (Debian: apt install clang)", flush=True)
    bad = [target for target in chosen if fuzz(target, out, given.seconds / len(chosen), compiler)]
    for target in bad:
        print(f"{target}: see above; the input is in {out}/found", file=sys.stderr)
    return len(bad)


if __name__ == "__main__":
    sys.exit(main())
