"""The generated parts of the documentation are what the code says today."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import ROOT


def generate(*arguments: str, script: Path = ROOT / "docs/generate.py") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, timeout=100)


def test_nothing_is_stale() -> None:
    done = generate("--check")
    assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr}\nto mend it: python docs/generate.py"


def test_what_is_stale_is_found_and_mended(tmp_path: Path) -> None:
    for name in ("generate.py", "generator", "reference"):
        copy = shutil.copytree if (ROOT / "docs" / name).is_dir() else shutil.copy
        copy(ROOT / "docs" / name, tmp_path / name)
    page, script = tmp_path / "reference/configuration.md", tmp_path / "generate.py"
    text = page.read_text()
    page.write_text(text.replace("| `workers` |", "| `wrkers` |"))
    done = generate("--check", script=script)
    assert done.returncode == 1 and "+| `workers` |" in done.stdout and "python docs/generate.py" in done.stdout
    assert generate(script=script).returncode == 0 and page.read_text() == text
    page.write_text(text.replace("<!-- generated: config pool -->", ""))
    assert generate("--check", script=script).stderr.startswith("error: a generated part without an end")


@pytest.mark.parametrize(
    ("part", "says"), [("config nothing", "no table `nothing`"), ("command rnu", "no command `rnu`"), ("x", "no part `x`")]
)
def test_a_page_that_asks_for_what_there_is_not(tmp_path: Path, part: str, says: str) -> None:
    for name in ("generate.py", "generator"):
        copy = shutil.copytree if (ROOT / "docs" / name).is_dir() else shutil.copy
        copy(ROOT / "docs" / name, tmp_path / name)
    (tmp_path / "page.md").write_text(f"<!-- generated: {part} -->\n<!-- end of generated -->\n")
    done = generate(script=tmp_path / "generate.py")
    assert done.returncode == 1 and says in done.stderr
