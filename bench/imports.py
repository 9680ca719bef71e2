"""How long it takes to import what agents import, in a VM against natively.

    python bench/imports.py [MODULE...] [--rounds 5] [--json]

Each module in a fresh interpreter and in a fresh VM of one template, in turn, ROUNDS times after one that is not counted (caches
are filled then: compiled files, system call sites). Printed: the least time of each, wall clock and CPU time as the program sees
them, and VM / native; modules that are not installed are left out and named. A ratio below 1 means that the template has loaded
much of what is imported already: programs do not wait for it, and nothing is said of how fast a VM would load it. CPU time over
its limit is marked.
"""

from __future__ import annotations

import json
import subprocess
import sys

import common

LIMIT = 1.5  # VM / native, of CPU time
MODULES = [
    *("numpy", "pandas", "pydantic", "orjson", "cryptography.fernet", "lxml.etree", "PIL.Image", "aiohttp", "httpx", "requests"),
    *("openai", "anthropic", "tiktoken", "sqlite3", "uvloop"),
]
CODE = """
from time import perf_counter as wall, process_time as cpu
a, b = wall(), cpu()
try:
    import {module}
except ModuleNotFoundError:
    print('[]')
else:
    print([wall() - a, cpu() - b])
"""


def timed(command: list[str], module: str) -> list[float]:
    """[wall clock, CPU time] in seconds, or [] if there is no such module."""
    done = subprocess.run([*command, "-c", CODE.format(module=module)], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command)}: {done.stderr}")
    result: list[float] = json.loads(done.stdout)
    return result


def measure(module: str, rounds: int) -> dict[str, float]:
    native = [sys.executable]
    vm = [*common.AGENTFW, "--no-config", "--plugins", ""]
    runs: dict[str, list[list[float]]] = {"native": [], "vm": []}
    for number in range(rounds + 1):
        for name, command in (("native", native), ("vm", vm)):
            found = timed(command, module)
            if not found:
                return {}
            if number:
                runs[name].append(found)
    least = {
        f"{name}_{kind}": min(run[at] for run in each) for name, each in runs.items() for at, kind in enumerate(("wall", "cpu"))
    }
    return {**least, "ratio_wall": least["vm_wall"] / least["native_wall"], "ratio_cpu": least["vm_cpu"] / least["native_cpu"]}


def main() -> None:
    parser = common.parser(__doc__, "--json: one object instead of the table")
    parser.add_argument("modules", nargs="*", default=MODULES, metavar="MODULE")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    found = {module: measure(module, arguments.rounds) for module in arguments.modules}
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{'import':22} {'native':>18} {'VM':>18} {'VM / native':>14}   (wall, CPU)")
    for module, row in found.items():
        if row:
            times = "".join(f" {row[f'{name}_{kind}'] * 1e3:6.0f} ms" for name in ("native", "vm") for kind in ("wall", "cpu"))
            mark = f"   (must: <= {LIMIT})" if row["ratio_cpu"] > LIMIT else ""
            print(f"{module:22}{times} {row['ratio_wall']:7.2f} {row['ratio_cpu']:6.2f}{mark}")
    missing = [module for module, row in found.items() if not row]
    if missing:
        print(f"not installed: {', '.join(missing)}")


if __name__ == "__main__":
    main()
