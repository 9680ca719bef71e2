"""agentfw.Pool in real VMs: embedded, with worker processes, interrupted, left, forked from. Nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import agentfw
import pytest
from agentfw import Code, Module, Pool, PoolError, SyncPool

from tests.conftest import COMMAND
from tests.descriptors import left, opened

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.kvm, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, agentfw_environment: dict[str, str], tmp_path: Path) -> None:
    """The session's snapshots, and no agentfw.toml of anybody's."""
    monkeypatch.setenv("XDG_CACHE_HOME", agentfw_environment["XDG_CACHE_HOME"])
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("workers", [None, 1])
def test_a_pool_of_ones_own(workers: int | None, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "import os, sys, helper\n"
        "print(sys.argv[1:], helper.WORD, os.environ['WHO'], os.getcwd(), open('data/x').read(), sys.stdin.read())\n"
        "print('noted', file=sys.stderr); sys.exit(3)\n"
    )
    (tmp_path / "helper.py").write_text("WORD = 'help'\n")

    async def main() -> None:
        async with Pool({}, workers=workers, size=4, idle=2) as pool:
            result = await pool.run(
                "agent.py", ["a"], files={"helper.py": Path("helper.py"), "data/x": "X"}, env={"WHO": "me"}, stdin="in"
            )
            assert (result.exit_code, result.stdout, result.stderr) == (3, "['a'] help me /job X in\n", "noted\n")
            assert 0 < result.usage.seconds < 60 and result.usage.memory > 0 and not result.truncated
            module = await pool.run(Module("helper"), files=["helper.py"], check=True)
            assert module.stdout == ""
            with pytest.raises(agentfw.JobTimeout):
                await pool.run(Code("while True: pass"), timeout=0.2, check=True)
            with pytest.raises(agentfw.TooMuchOutput):
                await pool.run(Code("while True: print('x' * 1000)"), limits={"output": 5000}, check=True)
            with pytest.raises(agentfw.JobSignaled, match="signal 11"):
                await pool.run(Code("import ctypes; ctypes.string_at(8)"), check=True)
            squares = await pool.map(Code("import sys; print(int(sys.argv[1]) ** 2)"), map(str, range(12)), check=True)
            assert [int(each.stdout) for each in squares] == [n * n for n in range(12)]

            run = asyncio.ensure_future(pool.run(Code("import time; time.sleep(1000)"), name="sleeper"))
            async with asyncio.timeout(20):
                while not await pool.jobs(state="running"):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            killed = (await pool.jobs(limit=1))[0]
            ended = await pool.job(killed.id).wait(20)
            assert (ended.name, ended.ended.kind) == ("sleeper", "killed")
            await pool.submit(Code("import time; time.sleep(1000)"))

    before = opened()
    asyncio.run(main())
    assert not left(before)


BRANCH = """
import os, random, time
pid, found = os.getpid(), ["some", "state"]
print("thinking", flush=True)
while os.getpid() == pid:
    time.sleep(0.02)
print(*found, random.random())
"""


def test_copies_of_a_running_job_go_on_from_where_it_stands() -> None:
    async def main() -> None:
        async with Pool({}, size=6, idle=1) as pool:
            job = await pool.submit(Code(BRANCH), name="thinker")
            async for line in job.lines():
                assert line == "thinking"
                break
            copies = await job.fork(2)
            told = [(await copy.wait(60, check=True)).stdout.split() for copy in copies]
            assert [words[:-1] for words in told] == [["some", "state"]] * 2
            assert told[0][-1] != told[1][-1], "their random numbers are their own"
            assert (await job.info()).state == "running"
            assert [(await copy.info()).parent for copy in copies] == [job.id] * 2

    asyncio.run(main())


RANDOM = """
import hashlib, os, random, secrets, ssl, uuid
print(os.getpid(), random.random(), secrets.token_hex(8), os.urandom(8).hex(), ssl.RAND_bytes(8).hex(), uuid.uuid4())
"""


def test_no_two_agents_have_the_same_random_numbers() -> None:
    """In new VMs, in VMs that are used again, and in two pools from one template."""

    async def main() -> None:
        told = []
        for _ in range(2):
            async with Pool({}, size=4, idle=2) as pool:
                told += [each.stdout.split() for each in await pool.map(Code(RANDOM), ([] for _ in range(10)), check=True)]
        for column in list(zip(*told, strict=True))[1:]:
            assert len(set(column)) == 20

    asyncio.run(main())


def test_without_asyncio_while_a_loop_runs_and_after_a_fork() -> None:
    async def main() -> None:
        with SyncPool({}, size=2, idle=1) as pool:  # what a first loop opens for good, is open from here on
            pool.describe()
        before = opened()
        with SyncPool({}, size=2, idle=1) as pool:
            assert pool.run(Code("print(1)"), check=True).stdout == "1\n"
            job = pool.submit(Code("print(input()[::-1])"), interactive=True)
            job.feed("abc\n", end=True)
            assert list(job.lines()) == ["cba"]
            child = os.fork()
            if not child:
                try:
                    pool.run(Code("print(1)"))
                except PoolError:
                    pool.close()
                    os._exit(7)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7  # noqa: ASYNC222  # nothing else shall run here
            assert [each.stdout for each in pool.map(Code("import sys; print(sys.argv[1])"), "ab")] == ["a\n", "b\n"]
        assert not left(before)

    asyncio.run(main())


SCRIPT = """
import asyncio, sys, agentfw
SLEEP = agentfw.Code("print('begun', flush=True); import time; time.sleep(1000)")
def sync():
    with agentfw.SyncPool({{}}, workers={workers}, size=2, idle=1) as pool:
        job = pool.submit(SLEEP)
        print(next(job.lines()), flush=True)
        pool.run(SLEEP)
async def native():
    async with agentfw.Pool({{}}, workers={workers}, size=2, idle=1) as pool:
        job = await pool.submit(SLEEP)
        async for line in job.lines():
            print(line, flush=True)
            await pool.run(SLEEP)
def forgotten():
    pool = agentfw.SyncPool({{}}, workers={workers}, size=2, idle=1)
    pool.start()
    print(next(pool.submit(SLEEP).lines()), flush=True)
{call}
"""


@pytest.mark.parametrize("workers", [None, 1])
@pytest.mark.parametrize(
    ("call", "number", "status"),
    [
        ("sync()", signal.SIGINT, -signal.SIGINT),
        ("asyncio.run(native())", signal.SIGINT, -signal.SIGINT),
        ("asyncio.run(native())", signal.SIGKILL, -signal.SIGKILL),
        ("forgotten()", None, 0),
    ],
)
def test_nothing_stays_behind(call: str, number: signal.Signals | None, status: int, workers: int | None) -> None:
    """As a terminal's Ctrl-C does it: the signal goes to all processes of the group."""
    code = SCRIPT.format(call=call, workers=workers)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if number == signal.SIGINT:
            time.sleep(0.1)
            os.killpg(process.pid, number)
        elif number is not None:
            process.kill()
        _, told = process.communicate(timeout=60)
    assert line == "begun\n", told
    assert process.returncode == status, told
    assert number != signal.SIGINT or "KeyboardInterrupt" in told


def test_a_service(tmp_path: Path, agentfw_environment: dict[str, str]) -> None:
    command = [
        *COMMAND,
        "pool",
        "start",
        "--no-config",
        "--size",
        "4",
        "--idle",
        "1",
        "--workers",
        "1",
        "--socket",
        str(tmp_path / "s"),
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=agentfw_environment) as service:
        try:
            assert service.stdout is not None
            service.stdout.readline()
            with SyncPool.connect(tmp_path / "s") as pool:
                assert [each.stdout for each in pool.map(Code("import sys; print(sys.argv[1])"), "abc", check=True)] == [
                    "a\n",
                    "b\n",
                    "c\n",
                ]
                kept = pool.submit(Code("print(input())"), interactive=True)
            with SyncPool.connect(tmp_path / "s") as pool:
                pool.job(kept.id).feed("still there\n", end=True)
                assert pool.job(kept.id).wait(60, check=True).stdout == "still there\n"
        finally:
            service.terminate()
    assert service.returncode == 0 and not (tmp_path / "s").exists()


def test_the_example_runs(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, ROOT / "examples/pool.py"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'Oslo': echo: Oslo" in done.stdout


def test_what_a_job_wrote_before_the_pool_was_closed_is_there() -> None:
    async def main() -> None:
        pool = Pool({}, size=2, idle=1)
        await pool.start()
        job = await pool.submit(Code("n = 0\nwhile True:\n n += 1\n print(n, flush=not n % 50)"))
        said: list[bytes] = []
        begun = asyncio.Event()

        async def read() -> None:
            async for piece in job:
                said.append(piece.data)
                begun.set()

        reading = asyncio.ensure_future(read())
        await begun.wait()
        backend = pool.backend
        await pool.close()
        await asyncio.wait_for(reading, 20)
        result = (await backend.info(job.id)).result
        assert result is not None and result.kind == "killed"
        assert sum(map(len, said)) == result.usage.stdout > 0

    asyncio.run(main())
