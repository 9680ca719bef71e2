"""Microseconds a file operation; JSON. argv[1]: a directory with the files f0 to f999."""

import json
import os
import sys
import time


def best(count, call):
    """The best of seven rounds, a call."""
    rounds = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(count):
            call()
        rounds.append((time.perf_counter() - start) / count)
    return min(rounds) * 1e6


os.chdir(sys.argv[1])
deep = "d/" * 8 + "leaf"
print(
    json.dumps(
        {
            "stat": best(300, lambda: os.stat("f1")),
            "stat, 8 deeper": best(300, lambda: os.stat(deep)),
            "open, close": best(300, lambda: os.close(os.open("f2", os.O_RDONLY))),
            "list 1,000": best(20, lambda: os.listdir(".")),
        }
    )
)
