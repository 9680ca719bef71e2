"""`agentfw doctor`: can this machine run agents, and if not, what mends it. Checks are data; the command only renders them."""

from __future__ import annotations

import fcntl
import grp
import json
import os
import platform
import resource
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from .output import put

_KVM_GET_API_VERSION = 0xAE00
_KVM_CREATE_VM = 0xAE01
_KVM_CHECK_EXTENSION = 0xAE03
_CAPABILITIES = {"user memory": 3, "SET_TSS_ADDR": 4, "CPUID": 7, "XSAVE": 55, "XCRS": 56, "SYNC_REGS": 74, "IMMEDIATE_EXIT": 136}


@dataclass(frozen=True)
class Check:
    """One finding. `detail`: what was seen; `hint`: the command or change that mends it."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    hint: str = ""


def all_checks() -> list[Check]:
    """Every check, in the order to mend them."""
    checks: list[Check] = []
    sources: tuple[Callable[[], Iterator[Check] | list[Check]], ...] = (
        _platform, kvm_checks, _processor, _kernel, _memory, _limits, _native, _cache, _variables, _plugins,
    )  # fmt: skip
    for source in sources:
        checks += source()
    return checks


def _platform() -> Iterator[Check]:
    machine = platform.machine()
    if sys.platform != "linux" or not _is_x86(machine):
        yield Check("platform", "fail", f"{sys.platform} on {machine}: agentfw runs on x86-64 Linux only")
    else:
        yield Check("platform", "ok", f"Linux {platform.release()} on {machine}")
    version = ".".join(map(str, sys.version_info[:3]))
    ok = (3, 11) <= sys.version_info[:2] <= (3, 14) and sys.implementation.name == "cpython"
    yield Check(
        "python", "ok" if ok else "fail", f"{sys.implementation.name} {version}", "" if ok else "use CPython 3.11 to 3.14"
    )


def _is_x86(machine: str) -> bool:
    return machine in ("x86_64", "AMD64")


def kvm_checks(device: str = "/dev/kvm") -> list[Check]:
    """Opening is the only proof: `test -w` lies in containers."""
    try:
        descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return [Check("kvm", "fail", f"{device} does not exist", _no_device())]
    except OSError as error:
        return [Check("kvm", "fail", f"cannot open {device}: {(error.strerror or '').lower()}", _no_permission(device))]
    try:
        return list(_kvm_device(device, descriptor))
    finally:
        os.close(descriptor)


def _no_device() -> str:
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return "start the container with `--device /dev/kvm`"
    flags = _cpu_flags()
    if "vmx" in flags or "svm" in flags:
        return f"load the module: `sudo modprobe kvm_{'intel' if 'vmx' in flags else 'amd'}`"
    return "turn on virtualization in the firmware, or nested virtualization for this VM"


def _no_permission(device: str) -> str:
    try:
        found = Path(device).stat()
        group = grp.getgrgid(found.st_gid).gr_name
    except (OSError, KeyError):
        return "run as a user who may open it"
    if found.st_mode & stat.S_IWGRP and group != "root":
        return f"join its group: `sudo usermod -aG {group} $USER`, then log in again"
    return "give it to a group: `sudo groupadd -f kvm && sudo chgrp kvm /dev/kvm && sudo chmod g+rw /dev/kvm`, and join that"


def _kvm_device(device: str, descriptor: int) -> Iterator[Check]:
    try:
        version = fcntl.ioctl(descriptor, _KVM_GET_API_VERSION, 0)
    except OSError as error:
        yield Check("kvm", "fail", f"{device} is no KVM device: {error.strerror}")
        return
    if version != 12:
        yield Check("kvm", "fail", f"{device} has API version {version}, not 12", "boot a newer kernel")
        return
    missing = [name for name, number in _CAPABILITIES.items() if fcntl.ioctl(descriptor, _KVM_CHECK_EXTENSION, number) <= 0]
    if missing:
        yield Check("kvm", "fail", f"{device} lacks {', '.join(missing)}", "boot a newer kernel")
        return
    try:
        os.close(fcntl.ioctl(descriptor, _KVM_CREATE_VM, 0))
    except OSError as error:
        yield Check("kvm", "fail", f"{device} makes no VM: {error.strerror}", "see `dmesg`")
        return
    yield Check("kvm", "ok", f"{device} opens, API 12, makes a VM")


def _cpu_flags() -> set[str]:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return set(line.partition(":")[2].split())
    except OSError:
        pass
    return set()


def _processor() -> Iterator[Check]:
    flags = _cpu_flags()
    missing = [flag for flag in ("fxsr", "sse4_2", "popcnt", "xsave", "fsgsbase") if flag not in flags]
    if missing:
        yield Check("processor", "fail", f"no {', '.join(missing)}", "use a machine with an x86-64-v2 processor")
    elif not {"constant_tsc", "nonstop_tsc"} & flags:
        yield Check("processor", "warn", "the time stamp counter may change its rate: guests' clocks may drift")
    else:
        yield Check("processor", "ok", "x86-64-v2, xsave, fsgsbase, steady time stamp counter")


def _kernel() -> Iterator[Check]:
    release = platform.release().split("-")[0].split(".")
    version = tuple(int(part) for part in release[:2] if part.isdigit())
    if version < (5, 6):
        yield Check("kernel", "fail", f"Linux {platform.release()}: 5.6 is the oldest that has openat2", "boot a newer kernel")
    try:
        modules = Path("/sys/kernel/security/lsm").read_text()
    except OSError:
        modules = ""
    if "landlock" in modules:
        yield Check("landlock", "ok", "the kernel has it")
    elif _landlock_abi() > 0:
        yield Check("landlock", "ok", f"ABI {_landlock_abi()}")
    else:
        yield Check("landlock", "warn", "not in this kernel: cells are jailed by seccomp alone", "boot with `lsm=landlock,...`")
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    found = actions.read_text() if actions.exists() else ""
    if "errno" in found:
        yield Check("seccomp", "ok", "filters work")
    else:
        yield Check("seccomp", "fail", "the kernel has no seccomp filters", "boot a kernel with CONFIG_SECCOMP_FILTER")


def _landlock_abi() -> int:
    import ctypes

    result: int = ctypes.CDLL(None, use_errno=True).syscall(444, 0, 0, 1)  # landlock_create_ruleset(VERSION)
    return result


def _memory() -> Iterator[Check]:
    values = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) * 1024
    free = values.get("MemAvailable", 0)
    status: Literal["ok", "warn"] = "ok" if free > 1 << 30 else "warn"
    yield Check("memory", status, f"{free >> 20} MiB available", "" if status == "ok" else "free some: a run needs about 1 GiB")
    mode = Path("/proc/sys/vm/overcommit_memory").read_text().strip()
    if mode == "2":
        hint = "`sudo sysctl vm.overcommit_memory=0`"
        yield Check("overcommit", "warn", "vm.overcommit_memory is 2: few VMs will fit", hint)


def _limits() -> Iterator[Check]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= 1024
    hint = "" if enough else "`ulimit -n 4096`"
    yield Check("open files", "ok" if enough else "warn", f"limit {soft} (hard {hard})", hint)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        yield Check("address space", "fail", f"limited to {space >> 20} MiB; a VM reserves 16 GiB", "`ulimit -v unlimited`")
    maps = int(Path("/proc/sys/vm/max_map_count").read_text())
    if maps < 65530:
        yield Check("memory maps", "warn", f"vm.max_map_count is {maps}", "`sudo sysctl vm.max_map_count=262144`")


def _native() -> Iterator[Check]:
    try:
        import agentfw_vmm

        program = Path(agentfw_vmm.__file__).with_name("agentfw-cell")
        if not os.access(program, os.X_OK):
            yield Check("native parts", "fail", f"{program} is missing", "`pip install --force-reinstall agentfw`")
            return
        with program.open("rb") as file:
            head = file.read(20)
        if head[:4] != b"\x7fELF" or struct.unpack_from("<H", head, 18)[0] != 62:
            yield Check("native parts", "fail", f"{program} is not an x86-64 program", "`pip install --force-reinstall agentfw`")
            return
    except ImportError as error:
        yield Check("native parts", "fail", f"they do not import: {error}", "`pip install --force-reinstall agentfw`")
        return
    yield Check("native parts", "ok", "cell and library are there")


def _cache() -> Iterator[Check]:
    from ..errors import ConfigError
    from ..snapshots import cache_directory

    try:
        directory = cache_directory()
    except ConfigError as error:
        yield Check("cache", "fail", str(error), error.hint)
        return
    place = directory
    while not place.exists():
        place = place.parent
    if os.access(place, os.W_OK | os.X_OK):
        found = os.statvfs(place)
        free = found.f_bavail * found.f_frsize
        yield Check("cache", "ok" if free > 1 << 29 else "warn", f"{directory}, {free >> 20} MiB free")
    else:
        yield Check("cache", "fail", f"cannot write to {directory}", "set XDG_CACHE_HOME to a directory you can write to")


def _variables() -> Iterator[Check]:
    from . import cli
    from .variables import misspelt

    for name, near in misspelt(cli):
        yield Check("environment", "warn", f"{name} is no option's variable: it is not read", near or "`--help` has the options")


def _plugins() -> Iterator[Check]:
    """Whether plugins of a pool here are configured, and all that is configured is of one of them; and what they find of this
    machine: their classes' `check_machine(config)` gives status, text and hint."""
    import msgspec

    from ..config import load_config
    from ..errors import AgentfwError
    from ..plugins import available, plugin_name, pool_plugins, without_effect
    from ..plugins.fitting import Registry
    from ..plugins.limits import Limits
    from ..plugins.loading import make_plugin
    from ..texts import why

    try:
        config = load_config()
        chosen = pool_plugins(config)
    except AgentfwError as error:
        yield Check("configuration", "warn", str(error), getattr(error, "hint", ""))
        return
    names = []
    for given in chosen:
        name = plugin_name(given)
        try:
            name, plugin = make_plugin(given, config)
            Registry().take(name, plugin)
            check = getattr(plugin, "check_machine", None)
            for status, detail, hint in check(config) if check is not None else ():
                yield msgspec.convert({"name": name, "status": status, "detail": detail, "hint": hint}, Check)
        except AgentfwError as error:
            yield Check("configuration", "warn", str(error), getattr(error, "hint", ""))
        except (Exception, SystemExit) as error:  # anybody's code
            yield Check(name, "warn", f"the plugin failed in check_machine(): {why(error)}")
        names.append(name)
    try:
        config.check_tables({*available(), *names})
        Limits(config, names)
    except AgentfwError as error:
        yield Check("configuration", "warn", str(error), getattr(error, "hint", ""))
    else:
        for note in without_effect(config, names):
            yield Check("configuration", "warn", note, "name it in `[run] plugins`, or take the table out")


@click.command(short_help="Check whether this machine can run agents.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> int:
    """Check whether this machine can run agents, and say how to mend what is wrong.

    Exit status 0: it can (warnings included); 1: it cannot.
    """
    checks = all_checks()
    failed = any(check.status == "fail" for check in checks)
    if as_json:
        click.echo(json.dumps({"version": 1, "ok": not failed, "checks": [asdict(check) for check in checks]}))
    else:
        for check in checks:
            put(f"{check.status:<4}  {check.name:<14} {check.detail}")
            if check.hint:
                put(f"      {'':<14} mend: {check.hint}")
    return int(failed)
