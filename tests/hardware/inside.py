"""Runs inside the emulated machine (run.py): restore, snapshots that travel, the network, recycling. Prints run.py's verdict."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import tty
from pathlib import Path

import still

ROOT = Path(__file__).resolve().parents[2]
AGENTFW = [str(Path(sys.executable).with_name("agentfw"))]


def ended(title: str, command: list[str], limit: float) -> subprocess.CompletedProcess[str]:
    """A step: what `command` gave. One that takes more than `limit` seconds ends the test, saying where it stood still."""
    print(f"-- {title}: begins, has {limit:.0f} s", flush=True)  # (by this line run.py knows how long to wait for the next)
    start = time.monotonic()
    try:
        done = still.run(command, ROOT, limit)
    except still.StoodStill as error:
        for key in "9lw":  # the console tells what each CPU does and who waits for the kernel
            Path("/proc/sysrq-trigger").write_text(key)
        raise SystemExit(f"{title} stood still: {error}") from None
    print(f"-- {title}: exit {done.returncode}, {time.monotonic() - start:.1f} s", flush=True)
    return done


def run(title: str, command: list[str], limit: float) -> str:
    """A step that must succeed: what it printed."""
    done = ended(title, command, limit)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", flush=True)
        raise SystemExit(f"{title} failed")
    return done.stdout


ARCHIVE = Path("/snapshots/from-here.agentfw")


def refused(lacking: str) -> None:
    """This machine has not that feature, and the snapshot needs it."""
    done = ended("import for another CPU", [*AGENTFW, "snapshot", "import", str(ARCHIVE)], 600)
    print(done.stderr, flush=True)
    if done.returncode != 125 or not re.search(rf"with {lacking}, which this host \(.*\) has not", done.stderr):
        raise SystemExit(f"import gave {done.returncode} and {done.stderr!r}")
    print("AGENTFW-HARDWARE: refused", flush=True)


def travelling() -> None:
    """A snapshot of another KVM runs here; one made here goes to the serial line."""
    run("import of a snapshot made on another KVM", [*AGENTFW, "snapshot", "import", str(ARCHIVE)], 600)
    for _ in range(2):
        told = run("run from it", [*AGENTFW, "run", "--snapshot", "from-here", "tests/hardware/travelled.py"], 300)
        if "travelled: " not in told:
            raise SystemExit(f"unexpected output: {told!r}")
        print(told.strip(), flush=True)
    run("making one for the other", [*AGENTFW, "snapshot", "build", "from-there"], 600)
    run("export", [*AGENTFW, "snapshot", "export", "from-there", "/tmp/from-there"], 600)
    data = Path("/tmp/from-there").read_bytes()
    print("-- sending: begins, has 300 s", flush=True)
    with Path("/dev/ttyS1").open("wb", buffering=0) as line:
        tty.setraw(line)
        sent = 0
        while sent < len(data):
            sent += line.write(data[sent : sent + 65536]) or 0
    print(f"-- {len(data) >> 20} MiB sent", flush=True)


def main() -> None:
    lacking = re.search(r"agentfw\.lacking=(\w+)", Path("/proc/cmdline").read_text())
    if lacking:
        refused(lacking[1])
        return
    with Path("/proc/cpuinfo").open() as cpuinfo:
        if " svm" not in cpuinfo.read():
            raise SystemExit("this machine has no svm: the point of the test is a hardware KVM")
    if not Path("/dev/kvm").exists():
        raise SystemExit("no /dev/kvm: the kvm-amd module did not load")
    pid = "import os, random, sys; print('hello', sys.version_info[:2], os.getpid(), random.random())"
    first = run("hello, making the snapshot", [*AGENTFW, "run", "-c", pid], 600)
    second = run("hello, restored from it", [*AGENTFW, "run", "-c", pid], 120)
    if not (first.startswith("hello") and second.startswith("hello")):
        raise SystemExit(f"unexpected output: {first!r} {second!r}")
    if first.split()[4] == second.split()[4]:
        raise SystemExit(f"two VMs drew the same random number: {first!r} {second!r}")
    run("threads and time slices", [*AGENTFW, "run", "-c", THREADS], 120)
    fault = ended("null dereference", [*AGENTFW, "run", "-c", "import ctypes; ctypes.string_at(0)"], 120)
    if fault.returncode != 139 or "SIGSEGV" not in fault.stderr:
        raise SystemExit(f"a null dereference gave exit {fault.returncode} and {fault.stderr!r}")
    if ARCHIVE.exists():
        travelling()
    print(run("network slice", [sys.executable, "examples/run_fleet.py", "--count", "8", "--slow", "20"], 600), flush=True)
    print(run("a pool", [sys.executable, "tests/hardware/pooled.py"], 600), flush=True)
    print(run("recycling", [sys.executable, "tests/hardware/recycling.py"], 600), flush=True)
    print(run("fork of a running agent", [sys.executable, "tests/hardware/forked.py"], 600), flush=True)
    print("AGENTFW-HARDWARE: passed", flush=True)


THREADS = """
import threading, time, asyncio
def spin():
    end = time.monotonic() + 1
    while time.monotonic() < end: pass
spinners = [threading.Thread(target=spin) for _ in range(2)]
for t in spinners: t.start()
async def main(): await asyncio.sleep(0.2); return 'slept'
assert asyncio.run(main()) == 'slept'
for t in spinners: t.join()
print('ok')
"""

if __name__ == "__main__":
    main()
