"""What tests of pages share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .shell import Shell


@pytest.fixture
def reader(tmp_path: Path, agentfw_environment: dict[str, str], nothing_left: None) -> Iterator[Shell]:
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "agentfw").write_text(f'#!/bin/sh\nexec {sys.executable} -P -c "from agentfw.cli import main; main()" "$@"\n')
    (binaries / "agentfw").chmod(0o755)
    (tmp_path / "run").mkdir(mode=0o700)
    environment = {
        **agentfw_environment, "PATH": f"{binaries}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(tmp_path / "run"), "XDG_STATE_HOME": str(tmp_path / "state"),
    }  # fmt: skip
    (tmp_path / "work").mkdir()
    shell = Shell(tmp_path / "work", tmp_path, environment)
    yield shell
    shell.close()
