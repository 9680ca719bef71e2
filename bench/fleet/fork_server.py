"""A warmed Python that forks: what a pool without isolation would do. Each line on stdin is a job.

`print`: fork, run a script that prints; answers with nanoseconds from before fork() to the child's first byte. `hold N`: fork N
children that print and wait; answers once all have; the next line ends them. The same modules are imported as in a template.
"""

from __future__ import annotations

import ast
import importlib
import os
import signal
import sys
import time
from pathlib import Path


def modules() -> list[str]:
    """What the template's bootstrap imports."""
    from agentfw.guestfs import GUEST_CODE

    tree = ast.parse(Path(GUEST_CODE, "bootstrap.py").read_text())
    names = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    own = {path.stem for path in GUEST_CODE.glob("*.py")}
    return [name for name in names if name not in {"_ssl", *own}]


def child(write: int) -> None:
    os.dup2(write, 1)
    space = {"__name__": "__main__"}
    exec(compile("print('hi')", "<string>", "exec"), space)
    sys.stdout.flush()


def main() -> None:
    for name in modules():
        importlib.import_module(name)
    print("ready", flush=True)
    answers = os.dup(1)
    while order := sys.stdin.readline().split():
        if order[0] == "print":
            read, write = os.pipe()
            start = time.monotonic_ns()
            pid = os.fork()
            if not pid:
                child(write)
                os._exit(0)
            os.close(write)
            os.read(read, 1)
            took = time.monotonic_ns() - start
            os.close(read)
            os.waitpid(pid, 0)
            os.write(answers, b"%d\n" % took)
            continue
        pids = []
        read, write = os.pipe()
        start = time.monotonic_ns()
        for _ in range(int(order[1])):
            pid = os.fork()
            if not pid:
                child(write)
                signal.pause()
            pids.append(pid)
        left = 3 * len(pids)
        while left:
            left -= len(os.read(read, left))
        os.write(answers, f"{time.monotonic_ns() - start} {' '.join(map(str, pids))}\n".encode())
        sys.stdin.readline()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        os.close(read)
        os.close(write)


if __name__ == "__main__":
    main()
