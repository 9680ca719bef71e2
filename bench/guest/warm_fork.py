"""The opponent: a Python that has imported what the template has, and forks for each job.

    python warm_fork.py SCRIPT JOBS

Prints `{"wall_ms": [...], "cpu_ms": [...]}`: from before the fork to the first bytes that the script in the child prints; CPU
time of both processes until then.
"""

import ast
import gc
import importlib
import json
import os
import sys
import time
from pathlib import Path

BOOTSTRAP = Path(__file__).parents[2] / "core/agentfw/guest/bootstrap.py"


def modules() -> list[str]:
    """What the bootstrap imports, but for its own parts."""
    names = []
    for node in ast.parse(BOOTSTRAP.read_text()).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return [name for name in names if not BOOTSTRAP.with_name(f"{name}.py").exists()]


def child(script: str, out: int, held: int) -> None:
    """As a forking server runs a script: its streams, its argv, a namespace of its own; then it stands still."""
    os.dup2(out, 1)
    os.dup2(held, 0)
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/", "LANG": "C.UTF-8"}
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = [script]
    sys.path.insert(0, os.path.dirname(script))
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    exec(code, {"__name__": "__main__", "__file__": script, "__builtins__": __builtins__})
    os._exit(0)


def main() -> None:
    script, jobs = sys.argv[1], int(sys.argv[2])
    for name in modules():
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    walls, cpus = [], []
    for _ in range(jobs):
        read, out = os.pipe()
        held, release = os.pipe()
        at, cpu = time.perf_counter(), time.process_time()
        pid = os.fork()
        if not pid:
            os.close(release)
            child(script, out, held)
        os.close(out)
        if not os.read(read, 100):
            raise SystemExit("the child printed nothing")
        walls.append((time.perf_counter() - at) * 1e3)
        cpu = time.process_time() - cpu
        time.sleep(0.005)
        cpus.append(cpu * 1e3 + int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6)
        for descriptor in (release, read, held):
            os.close(descriptor)
        os.waitpid(pid, 0)
    print(json.dumps({"wall_ms": walls, "cpu_ms": cpus}))


if __name__ == "__main__":
    main()
