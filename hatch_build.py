"""Build hook: the shim (a flat blob), the cell (an executable that carries it) and the worker's cffi library.

`AGENTFW_SANITIZE=1` in the environment builds cell and library with AddressSanitizer and UBSan.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WARN = ["-Wall", "-Wextra", "-Werror"]
SANITIZE = (
    ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g"]
    if os.environ.get("AGENTFW_SANITIZE")
    else []
)


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version, build_data):
        if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
            raise SystemExit(f"agentfw runs on x86-64 Linux only; this is {sys.platform} on {platform.machine()}")
        root = Path(self.root)
        out = root / "build/native"
        out.mkdir(parents=True, exist_ok=True)
        shim_blob(root / "shim", out)
        built = [cell_program(root, out), worker_library(root, out)]
        for file in built:
            if version == "editable":  # the .pth points at the sources: what was built must lie there
                place = root / "vmm/agentfw_vmm" / file.name
                place.unlink(missing_ok=True)  # a running cell keeps the old file
                shutil.copy(file, place)
            else:
                build_data["force_include"][str(file)] = f"agentfw_vmm/{file.name}"
        build_data["pure_python"] = False
        build_data["tag"] = "cp311-abi3-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def run(*command):
    try:
        subprocess.run([str(part) for part in command], check=True)
    except FileNotFoundError:
        raise SystemExit(
            f"agentfw is built with a C compiler and binutils; {command[0]} is missing (Debian: apt install gcc libc6-dev)"
        ) from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"agentfw: {command[0]} failed with status {error.returncode}; its messages are above") from None


#: What makes the shim smallest with gcc 12, found by trying: 10 % under plain -Oz.
SMALL = [
    *("-fno-jump-tables", "-fno-expensive-optimizations", "-fno-thread-jumps", "-fno-inline-functions-called-once"),
    *("-fno-tree-dominator-opts", "-fno-caller-saves", "-fno-tree-tail-merge", "-fno-move-loop-invariants"),
    *("-fno-tree-loop-im", "-fno-shrink-wrap", "-fno-schedule-insns2", "-fno-guess-branch-probability"),
    *("-fno-tree-pta", "-fno-ipa-modref", "-fno-optimize-sibling-calls", "-fno-tree-phiprop", "-fno-ipa-sra"),
]
LTO = ["-flto=1", "-flto-partition=one"]


def shim_blob(shim, out):
    """shim.ld refuses a blob over 36 KiB at link time. Compilers differ in what is small: the first way that fits is taken."""
    flags = [
        *("-m64", "-std=gnu11", "-ffreestanding", "-fno-pic", "-no-pie", "-mcmodel=small", "-mno-red-zone"),
        *("-mgeneral-regs-only", "-mpreferred-stack-boundary=3", "-fno-strict-aliasing", "-fno-stack-protector"),
        *("-fcf-protection=none", "-fno-asynchronous-unwind-tables", "-fomit-frame-pointer", "-malign-data=abi"),
        *("-ffunction-sections", "-fdata-sections", *WARN),
    ]
    link = ["-nostdlib", "-static", "-Wl,--gc-sections", "-Wl,--build-id=none", "-Wl,-z,noexecstack"]
    link += ["-Wl,--no-warn-rwx-segments", f"-Wl,-T,{shim}/shim.ld"]
    sources = sorted([*shim.glob("*.c"), *shim.glob("*.S")])
    rest = [*flags, *link, f"-I{shim}", "-o", out / "shim.elf", *sources]
    ways = [["-Oz", *LTO, *SMALL], ["-Oz", *LTO], ["-Os", *LTO, *SMALL], ["-Oz", *SMALL], ["-Os", *SMALL]]
    for way in ways:
        tried = subprocess.run(["cc", *way, *map(str, rest)], capture_output=True) if shutil.which("cc") else None
        if tried and tried.returncode == 0:
            break
    else:
        run("cc", *ways[0], *rest)  # says what is wrong
    run("objcopy", "-O", "binary", out / "shim.elf", out / "shim.bin")
    (out / "shim_places.h").write_text(places(out / "shim.elf"))


def places(elf):
    """Addresses in the shim that its header does not name, as a header for the cell (tracing.c)."""
    try:
        symbols = subprocess.run(["nm", str(elf)], check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise SystemExit("agentfw is built with binutils; nm is missing (Debian: apt install binutils)") from None
    lines = []
    for name in ("traced_entry", "traced_exit", "current", "signals_deliver", "take_any"):
        found = re.findall(rf"^([0-9a-f]+) \w {name}$", symbols, re.MULTILINE)
        if len(found) != 1:
            raise SystemExit(f"agentfw: the shim has {len(found)} symbols named {name}")
        lines.append(f"#define SHIM_{name.upper()} 0x{found[0].lstrip('0')}ull\n")
    return "".join(lines)


def cell_program(root, out):
    cell = root / "vmm/native/cell"
    target = out / "agentfw-cell"
    flags = ["-O2", "-g", "-std=gnu11", "-D_GNU_SOURCE", "-pthread", *WARN, *SANITIZE]
    places = [f"-I{root}/shim", f"-I{root}/vmm/native", f"-I{out}", f"-Wa,-I{out}"]
    run("cc", *flags, *places, "-o", target, *sorted(cell.glob("*.c")))
    return target


def worker_library(root, out):
    from cffi import FFI

    native = root / "vmm/native"
    headers = [root / "shim/abi.h", native / "cell.h", native / "lib/worker.h"]
    ffi = FFI()
    ffi.cdef("\n".join(declarations(header) for header in headers))
    ffi.set_source(
        "agentfw_vmm._vmm",
        '#include "abi.h"\n#include "cell.h"\n#include "worker.h"\n',
        sources=sorted(map(str, (native / "lib").glob("*.c"))),
        include_dirs=[str(root / "shim"), str(native), str(native / "lib")],
        extra_compile_args=["-std=gnu11", "-O2", "-D_GNU_SOURCE", *WARN, *SANITIZE],
        extra_link_args=SANITIZE,
        py_limited_api=True,
    )
    compiled = Path(ffi.compile(tmpdir=str(out)))
    target = out / "_vmm.abi3.so"  # setuptools releases differ in what they name a limited-API extension
    return compiled if compiled == target else compiled.replace(target)


def declarations(header):
    """A header as cffi's parser takes it: integer defines and declarations, no other preprocessor lines."""
    lines = []
    for line in header.read_text().splitlines():
        if line.startswith("#"):
            define = re.match(r"#define (\w+) (0x[0-9a-fA-F]+|\d+)\s*(/\*.*)?$", line)
            if define:
                lines.append(f"#define {define[1]} {define[2]}")
                if define[3] and "*/" not in define[3]:
                    lines.append(define[3])
        else:
            lines.append(line)
    return "\n".join(lines)
