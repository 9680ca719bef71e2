"""docs/benchmarks.md and bench/: each figure names a benchmark that there is, and each says what it does if asked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(file for file in (ROOT / "bench").glob("*.py") if file.name != "common.py")


def test_help() -> None:
    started = [subprocess.Popen([sys.executable, script, "--help"], stdout=subprocess.PIPE, text=True) for script in SCRIPTS]
    told = [(process.communicate(timeout=60)[0], process.returncode) for process in started]
    for script, (text, status) in zip(SCRIPTS, told, strict=True):
        assert status == 0 and script.read_text().split('"""')[1].splitlines()[0] in text, script


def test_figures_are_those_of_benchmarks_that_there_are() -> None:
    text = (ROOT / "docs/benchmarks.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| what ")]
    for row in rows:
        command = re.search(r"`((?:bench|examples)/\w+\.py)[^`]*` \|$", row)
        assert command and (ROOT / command[1]).is_file(), row
    untold = {script.name for script in SCRIPTS} - set(re.findall(r"bench/(\w+\.py)", text))
    assert not untold
