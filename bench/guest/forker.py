"""The opponent: a Python with an agent's state forks itself; each child says its count as soon as it runs.

    python forker.py COUNT MEGABYTES

Prints `{"wall_ms": [...], "cpu_ms": [...], "pages": [...]}`: from before fork() to the child's first bytes, CPU time of both
until then, private pages of a child that stands still after that.
"""

import json
import os
import sys
import time
from pathlib import Path

STATE = Path(__file__).with_name("branching.py")


def main() -> None:
    namespace: dict[str, object] = {"__name__": "state", "MEGABYTES": int(sys.argv[2])}
    exec(STATE.read_text().split("# -- ", 1)[0], namespace)
    walls, cpus, pages = [], [], []
    for _ in range(int(sys.argv[1])):
        read, out = os.pipe()
        held, release = os.pipe()
        at, cpu = time.perf_counter(), time.process_time()
        pid = os.fork()
        if not pid:
            os.close(release)
            os.write(out, b"x")
            os.read(held, 1)
            os._exit(0)
        os.read(read, 1)
        walls.append((time.perf_counter() - at) * 1e3)
        time.sleep(0.005)
        cpu = time.process_time() - cpu
        cpus.append(cpu * 1e3 + int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6)
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        pages.append(sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:")) // 4)
        for descriptor in (release, read, held, out):
            os.close(descriptor)
        os.waitpid(pid, 0)
    print(json.dumps({"wall_ms": walls, "cpu_ms": cpus, "pages": pages}))


if __name__ == "__main__":
    main()
