"""Benchmarks of the package pyperformance without its runner, which starts processes: CPU seconds of each; JSON.

argv[1]: its directory of benchmarks; argv[2:]: names. What they want of pyperf is here: a Runner that calls them in this process.
"""

import argparse
import json
import os
import runpy
import sys
import time
import types
from collections.abc import Callable
from typing import Any

FOLDER, NAMES = sys.argv[1], sys.argv[2:]
LONG = 0.5  # seconds of each: the clock of CPU time is a few milliseconds' word
times: dict[str, float] = {}


class Runner:
    """As far as the benchmarks use pyperf's."""

    def __init__(self, **_: Any) -> None:
        self.metadata: dict[str, Any] = {}
        self.argparser = argparse.ArgumentParser()

    def parse_args(self) -> argparse.Namespace:
        self.args = self.argparser.parse_args([])
        return self.args

    def bench_func(self, name: str, function: Callable[..., Any], *args: Any, **_: Any) -> None:
        self.bench_time_func(name, lambda _loops, *given: function(*given), *args)

    def bench_time_func(self, name: str, function: Callable[..., Any], *args: Any, **_: Any) -> None:
        calls, start = 0, time.process_time()
        while (used := time.process_time() - start) < LONG:
            function(1, *args)
            calls += 1
        times[name] = used / calls


stand_in: Any = types.ModuleType("pyperf")
stand_in.Runner = Runner
stand_in.perf_counter = time.perf_counter
stand_in.python_implementation = lambda: sys.implementation.name
sys.modules["pyperf"] = stand_in
for name in NAMES:
    folder = os.path.join(FOLDER, f"bm_{name}")
    sys.path.insert(0, folder)
    sys.argv = [f"{folder}/run_benchmark.py"]
    runpy.run_path(f"{folder}/run_benchmark.py", run_name="__main__")
    sys.path.remove(folder)
print(json.dumps(times))
