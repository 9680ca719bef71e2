"""The log of a pool in the background is bounded, and nobody else's file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from agentfw.cli import daemon
from agentfw.cli.options import RunError


def test_a_log_that_is_too_long_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "LOG_MOST", 10)
    path = tmp_path / "state" / "pool.log"
    ours, workers = daemon._open_log(path), daemon._open_log(path)
    try:
        assert path.stat().st_mode & 0o777 == 0o600
        os.write(workers, b"x" * 8)
        daemon._cut(path, ours)
        assert path.read_bytes() == b"x" * 8
        os.write(ours, b"y" * 8)
        daemon._cut(path, ours)
        os.write(workers, b"new")
        assert path.read_bytes() == b"new" and path.with_suffix(".log.1").read_bytes() == b"x" * 8 + b"y" * 8
    finally:
        os.close(ours)
        os.close(workers)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "pool.log").symlink_to(tmp_path / "other")
    with pytest.raises(RunError) as caught:
        daemon._open_log(tmp_path / "pool.log")
    assert "cannot be written" in str(caught.value) and not (tmp_path / "other").exists()
