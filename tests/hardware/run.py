"""`make test-hardware`: agentfw on a real kvm_amd (nested paging), which QEMU's TCG emulates.

Boots Debian's cloud kernel with an initramfs that holds busybox, the three KVM modules, this interpreter, this checkout and
its virtual environment, runs `inside.py` in it and passes its verdict on. Slow (minutes: every instruction is emulated), so
it is no part of `make test`. Needs Debian's packages qemu-system-x86, busybox-static, kmod, cpio; root installs what is missing.

Where this machine has a KVM of its own, snapshots travel, too: one made here is restored there; one made there comes back over a
serial line and is restored here; and a second machine, without one CPU feature, refuses the first by that feature's name.

Each step has a time limit and says when it begins. One that stands still is ended in the machine (still.py), with what
its processes wait for; if the machine itself stands still, this side asks it what its CPUs do, and stops it.

    run.py [--keep] [--timeout SECONDS] [--shell COMMAND]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "hardware"
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "cpio": "cpio", "dpkg-deb": "dpkg"}
MODULES = ["virt/lib/irqbypass.ko", "arch/x86/kvm/kvm.ko", "arch/x86/kvm/kvm-amd.ko"]
PASSED = "AGENTFW-HARDWARE: passed"
REFUSED = "AGENTFW-HARDWARE: refused"
LACKING = "movbe"
"""What the second machine has not."""
FROM_HERE, FROM_THERE = WORK / "from-here.agentfw", WORK / "from-there.agentfw"
CPU = "max,+svm,+npt"
MONITOR = WORK / "monitor"
BEGINS = re.compile(r"-- (.+): begins, has (\d+) s")
"""What inside.py says before a step."""
BOOT, GRACE = 300, 60
"""Seconds until the first step begins, and beyond a step's own limit."""
SKIP_DIRS = {
    "__pycache__",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "ensurepip",
    ".git",
    "build",
    ".mypy_cache",
}
#: Test tools and build tools that the run inside does not import.
SKIP_PACKAGES = {"mypy", "mypyc", "ruff", "hypothesis", "setuptools", "pip", "_pytest", "pygments"}

INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp /bin /root
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; chmod 1777 /tmp
mkdir -p /dev/shm /dev/pts; mount -t tmpfs shm /dev/shm; mount -t devpts pts /dev/pts
ip link set lo up
for m in irqbypass kvm kvm-amd; do insmod /modules/$m.ko || echo "insmod $m failed"; done
export HOME=/root PATH={bin}:/bin:/usr/bin TERM=dumb PYTHONUNBUFFERED=1 AGENTFW_NO_PROGRESS=1
cd {root}
{command}
status=$?
echo "exit status $status"
[ $status = 0 ] || dmesg | tail -n 150
poweroff -f
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", action="store_true", help="use the initramfs of the last run")
    parser.add_argument("--timeout", type=float, default=1500, help="seconds until the machine is stopped")
    parser.add_argument("--shell", default="", help="run this shell command in the machine instead of the tests")
    parser.add_argument("--memory", default="3072", help="MiB of the machine")
    options = parser.parse_args()
    tools()
    WORK.mkdir(parents=True, exist_ok=True)
    kernel, modules = debian_kernel()
    initramfs = WORK / "initramfs.cpio"
    travels = os.access("/dev/kvm", os.R_OK | os.W_OK) and not options.shell
    if not (options.keep and initramfs.exists()):
        FROM_HERE.unlink(missing_ok=True)
        if travels:
            agentfw("snapshot", "build", "--replace", "from-here")
            agentfw("snapshot", "export", "from-here", str(FROM_HERE))
        build(initramfs, modules, options.shell or f"{sys.executable} tests/hardware/inside.py")
    machine = Machine(kernel, initramfs, options.timeout, options.memory)
    if options.shell:
        machine.boot()
        return 0
    if not machine.boot(PASSED):
        return 1
    if not travels:
        print("no /dev/kvm here: snapshots did not travel", flush=True)
        return 0
    agentfw("snapshot", "import", "--replace", str(FROM_THERE))
    for _ in range(2):
        output = agentfw(
            "run", "-q", "--no-config", "--snapshot", "from-there", str(WORK.parents[1] / "tests/hardware/travelled.py")
        )
        if "travelled: " not in output:
            print(f"error: a snapshot made there printed {output!r} here", file=sys.stderr)
            return 1
        print(f"a snapshot made there, here: {output.strip()}", flush=True)
    return 0 if machine.boot(REFUSED, cpu=f"{CPU},-{LACKING}", extra=f"agentfw.lacking={LACKING}") else 1


def agentfw(*arguments: str) -> str:
    """The command of this environment, with a library and a cache of its own."""
    program = str(Path(sys.executable).with_name("agentfw"))
    env = {**os.environ, "XDG_DATA_HOME": str(WORK / "data"), "XDG_CACHE_HOME": str(WORK / "cache")}
    done = subprocess.run(
        [program, *arguments], stdout=subprocess.PIPE, text=True, env=env, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise SystemExit(f"error: `agentfw {' '.join(arguments)}` exited with {done.returncode}")
    return done.stdout


def tools() -> None:
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if not missing:
        return
    if os.geteuid() != 0:
        raise SystemExit(f"error: missing {', '.join(missing)}\n\nhint: `apt-get install {' '.join(missing)}`")
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], check=True, stdout=subprocess.DEVNULL
    )


def debian_kernel() -> tuple[Path, Path]:
    """Debian's cloud kernel and its modules, fetched as a package and unpacked, not installed."""
    tree = WORK / "kernel"
    if not list(tree.glob("boot/vmlinuz-*")):
        if not subprocess.run(["apt-cache", "show", "linux-image-cloud-amd64"], capture_output=True, check=False).stdout:
            subprocess.run(["apt-get", "update", "-qq"], check=True)
        depends = subprocess.run(
            ["apt-cache", "depends", "linux-image-cloud-amd64"], capture_output=True, text=True, check=True
        ).stdout
        found = re.search(r"Depends: (linux-image-\S+)", depends)
        if not found:
            raise SystemExit("error: apt knows no kernel package behind linux-image-cloud-amd64\n\nhint: `apt-get update`")
        subprocess.run(["apt-get", "download", "-qq", found[1]], cwd=WORK, check=True, stderr=subprocess.DEVNULL)
        package = next(WORK.glob(f"{found[1]}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", package, tree], check=True)
        package.unlink()
    kernel = next(tree.glob("boot/vmlinuz-*"))
    return kernel, next(tree.glob("lib/modules/*/kernel"))


def build(initramfs: Path, modules: Path, command: str) -> None:
    tree = WORK / "root"
    shutil.rmtree(tree, ignore_errors=True)
    (tree / "modules").mkdir(parents=True)
    (tree / "bin").mkdir()
    shutil.copy2(shutil.which("busybox") or "busybox", tree / "bin/busybox")
    for module in MODULES:
        shutil.copy2(modules / module, tree / "modules")
    for library in interpreter_files():
        copy(tree, library)
    for top in ["core", "vmm", "plugins", "examples", "bench", "tests/hardware", "pyproject.toml", "README.md"]:
        if (ROOT / top).exists():
            copy(tree, ROOT / top)
    for config in [
        "/etc/passwd",
        "/etc/group",
        "/etc/nsswitch.conf",
        "/etc/ld.so.cache",
        "/etc/protocols",
        "/etc/services",
        "/etc/ssl/certs",
        "/etc/localtime",
    ]:
        if Path(config).exists():
            copy(tree, Path(config))
    if FROM_HERE.exists():
        (tree / "snapshots").mkdir()
        shutil.copy2(FROM_HERE, tree / "snapshots/from-here.agentfw")
    (tree / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    (tree / "etc/resolv.conf").write_text("nameserver 127.0.0.1\n")
    binaries = [path for path in tree.rglob("*") if path.is_file() and (".so" in path.name or os.access(path, os.X_OK))]
    for library in needed(binaries):
        if not (tree / str(library)[1:]).exists():
            copy(tree, library)
    for link in ["lib", "lib64"]:  # a merged /usr: the loader is looked for at /lib64
        place = tree / link
        if Path("/", link).is_symlink() and not place.is_symlink():
            if place.is_dir():
                target = tree / Path("/", link).readlink()
                shutil.copytree(place, target, symlinks=True, dirs_exist_ok=True)
                shutil.rmtree(place)
            place.symlink_to(Path("/", link).readlink())
    init = tree / "init"
    init.write_text(INIT.format(bin=Path(sys.executable).parent, root=ROOT, command=command))
    init.chmod(0o755)
    with initramfs.open("wb") as out:
        names = subprocess.run(["find", ".", "-print0"], cwd=tree, capture_output=True, check=True).stdout
        subprocess.run(["cpio", "--null", "-o", "-H", "newc", "--quiet"], cwd=tree, input=names, stdout=out, check=True)
    print(f"initramfs: {initramfs.stat().st_size >> 20} MiB", flush=True)


def interpreter_files() -> list[Path]:
    """This virtual environment and the Python beneath it."""
    paths = {key: Path(value) for key, value in sysconfig.get_paths().items()}
    base = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    files = [Path(sys.executable), Path(os.path.realpath(sys.executable)), base / "lib" / version, paths["purelib"]]
    files += [
        Path(sys.prefix) / "pyvenv.cfg",
        Path(sys.prefix) / "bin/agentfw",
        Path(sys.prefix) / "bin/python3",
        Path(sys.prefix) / "bin/python",
    ]
    return [file for file in files if file.exists()]


def copy(tree: Path, source: Path) -> None:
    """Put `source` into the tree at its own path. Links in the path become directories; one at its end is kept and followed."""
    target = tree / str(source)[1:]
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() or target.is_symlink():
        return
    if source.is_symlink():
        link = source.readlink()
        target.symlink_to(link)
        copy(tree, Path(os.path.normpath(source.parent / link)))
    elif source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=skip, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


def skip(folder: str, names: list[str]) -> set[str]:
    out = {name for name in names if name in SKIP_DIRS or name.endswith(".a") or name.startswith("config-3")}
    if folder.endswith("site-packages"):
        out |= SKIP_PACKAGES & set(names)
    elif sys.prefix != sys.base_prefix and Path(folder).parent.parent == Path(sys.base_prefix):
        out.add("site-packages")  # the base interpreter's own: the virtual environment does not see them
    return out


def needed(binaries: list[Path]) -> set[Path]:
    """Shared libraries that these need, by ldd, as the paths it prints and the files behind them."""
    found: set[Path] = set()
    for start in range(0, len(binaries), 50):
        out = subprocess.run(["ldd", *binaries[start : start + 50]], capture_output=True, text=True, check=False).stdout
        for match in re.finditer(r"(?:=> |^\s+)(/\S+) \(0x", out, re.MULTILINE):
            found.add(Path(match[1]))
    return {path for path in found if WORK not in path.parents}


class Machine:
    def __init__(self, kernel: Path, initramfs: Path, timeout: float, memory: str) -> None:
        self._kernel = kernel
        self._initramfs = initramfs
        self._timeout = timeout
        self._memory = memory

    def boot(self, wanted: str = "", cpu: str = CPU, extra: str = "") -> bool:
        """Whether it says `wanted` before it powers off. Its second serial line goes to FROM_THERE."""
        # Both CPUs in one thread of the host: with a thread each (thread=multi), QEMU 7.2 now and then runs an int3 on that the
        # kernel has taken out of its code again (static keys, which KVM changes for each VM), and both CPUs do nothing else.
        command = ["qemu-system-x86_64", "-accel", "tcg,thread=single", "-cpu", cpu, "-smp", "2", "-m", self._memory]
        command += ["-display", "none", "-no-reboot", "-nic", "none", "-qmp", f"unix:{MONITOR},server=on,wait=off"]
        command += ["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]
        command += ["-serial", f"file:{FROM_THERE}" if not extra else "null"]
        command += ["-kernel", str(self._kernel), "-initrd", str(self._initramfs)]
        # Whether the timer ticks is not to be tried out: on a busy host it does so too late, and the kernel panics.
        command += ["-append", f"console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check sysrq_always_enabled {extra}"]
        start = time.monotonic()
        end = start + self._timeout
        said, step, until = False, "boot", [min(end, start + BOOT) if wanted else end]
        machine = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            for line in lines(machine, until):
                print(f"[{time.monotonic() - start:6.1f}] {line}", flush=True)
                said = said or (wanted != "" and wanted in line)
                if begun := BEGINS.search(line):
                    step, until[0] = begun[1], min(end, time.monotonic() + float(begun[2]) + GRACE)
        except TimeoutError:
            print(f"error: the machine stood still in `{step}`; what its CPUs do:", file=sys.stderr, flush=True)
            self._ask(machine)
            return False
        finally:
            machine.kill()
            machine.wait()
        if wanted and not said:
            print(f"error: the machine ended in `{step}` and did not report `{wanted}`", file=sys.stderr)
        return said

    def _ask(self, machine: subprocess.Popen[bytes]) -> None:
        """Prints its CPUs' registers, by QEMU, and what its kernel says of them, if that still hears (by SysRq)."""
        assert machine.stdin
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(10)
            monitor.connect(str(MONITOR))
            file = monitor.makefile("rw")
            file.readline()  # a greeting
            commands: list[tuple[str, dict[str, str], bytes]] = [
                ("qmp_capabilities", {}, b""),
                ("human-monitor-command", {"command-line": "info registers -a"}, b""),
                *(("chardev-send-break", {"id": "console"}, key) for key in (b"9", b"l", b"w")),
            ]
            for name, arguments, key in commands:
                file.write(json.dumps({"execute": name, "arguments": arguments}) + "\n")
                file.flush()
                answer = json.loads(file.readline())
                print(str(answer.get("return") or "").replace("\r\n", "\n"), flush=True)
                machine.stdin.write(key)
                machine.stdin.flush()
        with contextlib.suppress(TimeoutError):
            for line in lines(machine, [time.monotonic() + 20]):
                print(line, flush=True)


def lines(machine: subprocess.Popen[bytes], until: list[float]) -> Iterator[str]:
    """What it prints, line by line, to its end; TimeoutError at the time `until[0]`, which who takes the lines may move on."""
    assert machine.stdout
    os.set_blocking(machine.stdout.fileno(), False)
    rest = b""
    while True:
        if not select.select([machine.stdout], [], [], max(0.0, until[0] - time.monotonic()))[0]:
            raise TimeoutError
        data = machine.stdout.read(65536)
        *whole, rest = (rest + (data or b"")).split(b"\n")
        for line in whole if data else [*whole, rest]:
            yield line.decode("utf-8", "replace").rstrip()
        if not data:
            return


if __name__ == "__main__":
    sys.exit(main())
