"""`agentfw har` against the control API over a fake pool: where it writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.pool.test_cli import Command, Pool, command, pool

__all__ = ["command", "pool"]

HAR = {"log": {"version": "1.2", "entries": []}}


@pytest.mark.parametrize("options", [("--stdout",), ("-o", "-"), ("--output=-",)])
def test_it_prints_it(pool: Pool, command: Command, tmp_path: Path, options: tuple[str, ...]) -> None:
    job = captured(pool)
    before = {*tmp_path.iterdir()}
    done = command("har", job, *options)
    assert (done.status, done.err, json.loads(done.out)) == (0, "", HAR)
    assert {*tmp_path.iterdir()} == before, "a file, named `-`"


def test_it_writes_it(pool: Pool, command: Command, tmp_path: Path) -> None:
    job = captured(pool)
    for options, name in (((), f"{job}.har"), (("-o", "a.har"), "a.har")):
        done = command("har", job, *options)
        file = tmp_path / name
        assert (done.status, done.out, json.loads(file.read_bytes())) == (0, b"", HAR)
        assert done.err == f"{name}: {file.stat().st_size} bytes\n" and file.stat().st_mode & 0o777 == 0o600
        file.unlink()
    assert command("har", job, "-o", "a.har", "--stdout").status == 2


def captured(pool: Pool) -> str:
    """A job, and a pool that tells what it said."""
    job = pool.submit("pass")

    async def plugin(name: str, what: str, query: Mapping[str, str] | None = None, *, local: bool = True) -> Any:
        assert (name, what, query) == ("capture", "har", {"id": job})
        return HAR

    pool.backend.plugin = plugin
    return job
