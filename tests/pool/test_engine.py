"""The engine with real VMs: jobs in, their output and ends out, nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest

from .engines import engine, in_loop, run

pytestmark = [pytest.mark.kvm, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture
def store(agentfw_environment: dict[str, str]) -> Path:
    return Path(agentfw_environment["XDG_CACHE_HOME"]) / "agentfw/snapshots"


def test_what_a_job_is_given_and_tells(store: Path) -> None:
    async def main() -> None:
        async with engine(store) as pool:
            assert pool.counts().idle == 1
            code = "import sys; print(sys.argv, input()); sys.exit(3)"
            result, heard = await run(pool, code, args=("a", "b"), stdin=b"hello\n")
            assert (result.kind, result.code, heard.out, heard.err) == ("code", 3, "['-c', 'a', 'b'] hello\n", ""), result
            assert result.usage.dispatch_seconds == heard.dispatch and heard.dispatch is not None
            assert result.usage.stdout == len(heard.out) and result.usage.cpu_seconds > 0
            files = {"main.py": b"import os, deep.er\nprint(os.getcwd(), __file__, deep.er.x)", "deep/er.py": b"x = 1"}
            result, heard = await run(pool, mode="script", target="main.py", files=files)
            assert heard.out == "/job /job/main.py 1\n", (result, heard.err)
            result, heard = await run(pool, "import os; print(os.listdir('/job'), os.listdir('.'))")
            assert heard.out == "[] []\n", "files of one job are not the next one's"

    in_loop(main)
