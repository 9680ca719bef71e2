"""docs/reference/api.md: its calls work, its tables have what there is."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest
from agentfw.pool import api, wire
from agentfw.pool.jobs import MAX_PAYLOAD

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
