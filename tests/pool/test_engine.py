"""The engine with real VMs: jobs in, their output and ends out, nothing left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agentfw.pool.config import LimitsConfig
from agentfw.pool.jobs import Job, Limits

from .engines import Heard, engine, in_loop, run

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


def test_many_at_once_of_two_tenants(store: Path) -> None:
    """More jobs than VMs; VMs of one tenant are never in the cell of another."""

    async def main() -> None:
        async with engine(store, size=6, idle=2) as pool:
            seen: dict[str, set[int]] = {"a": set(), "b": set()}

            async def one(number: int) -> None:
                tenant = "ab"[number % 2]
                result, heard = await run(pool, f"print({number} * 2)", tenant=tenant)
                assert (result.status, heard.out) == (0, f"{number * 2}\n"), result
                for key, group in pool._stock.groups.items():
                    if key.tenant in seen:
                        seen[key.tenant] |= {cell.pid for cell in group.cells}
                assert sum(pool._stock.count.values()) - pool._stock.count["empty"] <= 6

            await asyncio.gather(*(one(number) for number in range(60)))
            assert seen["a"] and seen["b"] and not seen["a"] & seen["b"]
            counted = pool.counts().counters
            assert counted["dispatched"] == 60 and counted["recycled"] > 10, counted

    in_loop(main)


def test_limits(store: Path) -> None:
    async def main() -> None:
        async with engine(store, size=4, idle=2, limits=LimitsConfig(output=1000)) as pool:
            loop = "while True: pass"
            result, _ = await run(pool, loop, limits=Limits(seconds=0.3))
            assert (result.kind, result.status) == ("timeout", 124) and "0.3 s" in result.text
            result, _ = await run(pool, loop, limits=Limits(cpu_seconds=0.2))
            assert result.kind == "timeout" and "CPU" in result.text and 0.15 < result.usage.cpu_seconds < 2
            result, heard = await run(pool, "while True: print('x' * 99)", limits=Limits(output=12345))
            assert (result.kind, len(heard.out), result.usage.stdout) == ("output", 1000, 1000), "the pool's limit is a maximum"
            result, heard = await run(pool, "print('x' * 999, flush=True)")
            assert (result.kind, len(heard.out)) == ("code", 1000), "just as much as it may"
            result, heard = await run(pool, "import sys; print('y' * 400, file=sys.stderr); print('x' * 999)")
            assert result.kind == "output" and len(heard.out) + len(heard.err) == 1000
            result, heard = await run(pool, "x = bytearray(10**9)", limits=Limits(seconds=30))
            assert result.status == 1 and "MemoryError" in heard.err

    in_loop(main)


def test_signals_and_stdin(store: Path) -> None:
    async def main() -> None:
        async with engine(store, size=1, idle=1) as pool:
            lines: asyncio.Queue[bytes] = asyncio.Queue()

            async def stdin() -> AsyncIterator[bytes]:
                while data := await lines.get():
                    yield data

            heard = Heard()
            code = """import signal, sys
signal.signal(15, lambda *a: print("term", flush=True))
print("on", flush=True)
print(sys.stdin.read())"""
            job = Job(mode="code", target=code, stdin=b"a", interactive=True)
            first = asyncio.create_task(pool.run(job, "i", heard, stdin()))
            await heard.line.wait()
            waiting = Heard()
            second = asyncio.create_task(pool.run(Job(mode="code", target="print(1)"), "j", waiting, None))
            await asyncio.sleep(0)
            assert pool.counts().waiting == 1
            pool.signal("j", 9)
            result = await second
            assert result.kind == "killed" and not waiting.began.is_set() and result.status == 137
            heard.line.clear()
            pool.signal("i", 15)
            await heard.line.wait()
            for data in (b"b", b"c", b""):
                lines.put_nowait(data)
            assert (await first).status == 0 and heard.out == "on\nterm\nabc\n"
            third = asyncio.create_task(
                pool.run(Job(mode="code", target="import time; print(flush=True); time.sleep(99)"), "k", heard, None)
            )
            heard.line.clear()
            await heard.line.wait()
            pool.signal("k", 9)
            assert (await third).kind == "killed"
            pool.signal("nobody", 15)

    in_loop(main)


def test_large_jobs(store: Path) -> None:
    async def main() -> None:
        async with engine(store, size=2, idle=1) as pool:
            large = bytes(range(256)) * 40_000
            code = "import sys\nprint(len(open('a/b/large', 'rb').read()), len(sys.stdin.buffer.read()))\n#" + "é" * 1_000_000
            result, heard = await run(pool, code, files={"a/b/large": large, "empty": b""}, stdin=large)
            assert heard.out == f"{len(large)} {len(large)}\n", (result, heard.err)
            many = {"a" * 200 + "/" + "b" * 200: b"", **{str(number): b"x" for number in range(1000)}}
            result, heard = await run(pool, "print(1)", files=many)
            assert heard.out == "1\n", (result, heard.err)

    in_loop(main)
