"""What the fuzzers begin with and what they found, and a bounded number of damaged copies. `make fuzz` goes on for longer."""

import os
import subprocess
from pathlib import Path

import pytest

from . import run

ROUNDS = {"elf": 3000, "sites": 1500, "ring": 1000, "flow": 1500}


@pytest.mark.parametrize("target", run.TARGETS)
def test_inputs_of_the_tree(target: str, tmp_path: Path) -> None:
    program = run.build(target, tmp_path)
    assert list(run.inputs(target)[0].iterdir())
    command = [program, f"-rounds={ROUNDS[target]}", "-seed=1", *run.inputs(target)]
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"{ROUNDS[target]} rounds" in done.stdout
    if target == "elf":  # some damage is harmless: otherwise nothing behind the checks is reached
        assert int(done.stdout.partition(" loaded")[0].split()[-1]) > 100, done.stdout
