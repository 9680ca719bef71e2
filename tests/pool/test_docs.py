"""docs/reference/api.md: its calls work, its tables have what there is."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest
from agentfw.pool import api, wire
from agentfw.pool.jobs import MAX_PAYLOAD
from agentfw.pool.routes import ROUTES
from agentfw.pool.wire import STATUS

from tests.core.support import async_test

from .support import served

TEXT = (Path(__file__).parents[2] / "docs/reference/api.md").read_text()


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
@async_test
async def test_the_calls_work(tmp_path: Path) -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "agentfw").mkdir(mode=0o700)
    async with served(tmp_path / "agentfw/pool.sock") as pool:
        process = await asyncio.create_subprocess_exec(
            "bash", "-euc", block, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0 and not err, (out, err)
        assert b'{"stream":1,"offset":0,"data":"NDIK"}\n' in out and b"\nagentfw_jobs_submitted_total 1.0\n" in out
        first, second = [await pool.client.wait(info.id) for info in (await pool.client.jobs())[::-1]]
        assert first.result is not None and first.result.status == 0
        assert second.result is not None and second.result.kind in ("signal", "killed")


def rows(section: str) -> list[list[str]]:
    text = TEXT.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]


def test_operations_are_those_that_there_are() -> None:
    found = {row[0].strip("`"): row[1] for row in rows("Operations")}
    assert set(found) == {f"{route.method} {route.path}" for route in ROUTES}
    for route in ROUTES:
        text = found[f"{route.method} {route.path}"]
        assert text.startswith(str(route.status)) == (route.status != 200)
        for field in getattr(route.query, "__struct_fields__", ()):
            assert re.search(rf"`{field}[`=]", text), (route.path, field)


def test_errors_are_those_that_there_are() -> None:
    assert {row[0].strip("`"): int(row[1]) for row in rows("Errors")} == STATUS


def test_numbers_are_the_real_ones() -> None:
    for number in (
        f"at most {wire.LONGEST_WAIT:.0f})",
        f"at most {wire.MAX_BODY >> 20} MiB",
        f"{MAX_PAYLOAD >> 20} MiB of files",
        f"every {wire.HEARTBEAT:.0f} s",
        f"within {api.BODY_SECONDS / 60:.0f} minutes",
        f"`{wire.VERSION_HEADER}: {wire.API_VERSION}`",
    ):
        assert number in TEXT, number
