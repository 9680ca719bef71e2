"""A system call that the shim answers in the guest against the native one: `python bench/syscalls.py`. Must: cheaper."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import common

GUEST = Path(__file__).parent / "guest"


def main() -> None:
    common.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "loop.so")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, GUEST / "syscalls.c"], check=True)
        mount = ("--mount", f"{folder}:/bench")
        common.in_vm(GUEST / "syscalls.py", "/bench/loop.so", options=mount)
        rows = [
            (
                common.native(GUEST / "syscalls.py", str(library)),
                common.in_vm(GUEST / "syscalls.py", "/bench/loop.so", options=mount),
            )
            for _ in range(5)
        ]
    native, inside = common.median_rows([row[0] for row in rows]), common.median_rows([row[1] for row in rows])
    for name in native:
        print(f"{name:14} native {native[name]:7.1f} ns   shim {inside[name]:7.1f} ns   ratio {inside[name] / native[name]:.2f}")


if __name__ == "__main__":
    main()
