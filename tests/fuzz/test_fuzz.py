"""What the fuzzers begin with and what they found, and a bounded number of damaged copies. `make fuzz` goes on for longer."""

import base64
import os
import secrets
import subprocess
from pathlib import Path

import pytest

from . import run

ROUNDS = {"elf": 3000, "sites": 1500, "ring": 1000, "flow": 1500, "sight": 3000}
MORE = 20 if os.environ.get("CI") else 1
"""In CI, so many times as many, and others each time."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", run.TARGETS)
def test_inputs_of_the_tree(target: str, tmp_path: Path) -> None:
    program = run.build(target, tmp_path)
    assert list(run.inputs(target)[0].iterdir())
    rounds, seed = ROUNDS[target] * MORE, 1 if MORE == 1 else secrets.randbits(32)
    command = [program, f"-rounds={rounds}", f"-seed={seed}", *run.inputs(target)]
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500, check=False)
    bad = tmp_path / "crash-input"
    case = base64.b64encode(bad.read_bytes()).decode() if bad.exists() else "none: an input of the tree"
    assert done.returncode == 0, f"{done.stderr[-4000:]}\nseed {seed}, input in base64: {case}"
    assert f"{rounds} rounds" in done.stdout
    if target == "elf":  # some damage is harmless: otherwise nothing behind the checks is reached
        assert int(done.stdout.partition(" loaded")[0].split()[-1]) > 100, done.stdout
