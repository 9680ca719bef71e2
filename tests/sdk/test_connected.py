"""agentfw.Pool.connect() over the control API, of a pool whose jobs are processes of this machine."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import agentfw
import pytest
from agentfw import Code, Pool, PoolError, SyncPool
from agentfw.pool.jobs import Job

from tests.core.support import async_test
from tests.pool.support import TOKEN, served

SLEEP = Code("print('begun', flush=True); import time; time.sleep(1000)")


@async_test
async def test_over_the_socket(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("import sys; print(sys.argv[1:], open('f').read()); sys.exit(len(sys.argv) > 2)")
    async with served(tmp_path / "s") as there:
        async with Pool.connect(tmp_path / "s") as pool:
            result = await pool.run(tmp_path / "agent.py", ["a", "b"], files={"f": "F"})
            assert (result.exit_code, result.stdout, result.ok) == (1, "['a', 'b'] F\n", False)
            with pytest.raises(agentfw.JobFailed):
                result.check()
            found = await pool.map(Code("import sys; print(sys.argv[1])"), "abcdef", concurrency=3, check=True)
            assert [each.stdout for each in found] == [f"{each}\n" for each in "abcdef"]
            job = await pool.submit(Code("print(input()[::-1])"), interactive=True)
            await job.feed("abc\n", end=True)
            assert [line async for line in job.lines()] == ["cba"] and (await job.wait()).ok
            run = asyncio.ensure_future(pool.run(SLEEP, name="run"))
            kept = await pool.submit(SLEEP, name="submitted")
            async for line in kept.lines():
                assert line == "begun"
                break
            while len(await pool.jobs(state="running")) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            ids = {info.name: info.id for info in await pool.jobs(state="running")}
        with pytest.raises(PoolError, match="closed before"):
            await run
        ended = await there.client.wait(ids["run"], 10)
        assert ended.result is not None and ended.result.kind == "killed"
        assert (await there.client.info(ids["submitted"])).state == "running", "it is the service's"
        async with Pool.connect(tmp_path / "s") as pool:
            await pool.job(kept.id).kill()
            with pytest.raises(agentfw.JobKilled):
                await pool.job(kept.id).wait(10, check=True)


@async_test
async def test_over_tcp_and_without_asyncio(tmp_path: Path) -> None:
    async with served(tmp_path / "s", tcp=True) as there:
        url = f"http://127.0.0.1:{there.port}"
        told: list[str] = []

        def use() -> None:
            with SyncPool.connect(url=url, token=TOKEN.decode()) as pool:
                told.append(pool.run(Code("print(1)"), check=True).stdout)
                told.extend(each.stdout for each in pool.map(Code("import sys; print(sys.argv[1])"), "ab"))

        thread = threading.Thread(target=use)
        thread.start()
        await asyncio.to_thread(thread.join)
        assert told == ["1\n", "a\n", "b\n"]
        with pytest.raises(PoolError) as raised:
            async with Pool.connect(url=url, token="another-token-of-some-length"):
                raise AssertionError
        assert raised.value.code == "unauthorized"


@async_test
async def test_it_is_found_as_the_commands_find_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SOCKET", "URL", "TOKEN_FILE"):
        monkeypatch.delenv(f"AGENTFW_POOL_{name}", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nowhere"))

    async def found() -> int:
        async with Pool.connect() as pool:
            return len(await pool.jobs())

    async with served(tmp_path / "s", tcp=True) as there:
        await there.client.submit(Job(mode="code", target="pass"))
        (tmp_path / "agentfw.toml").write_text('[pool]\nsocket = "s"\n')
        assert await found() == 1
        (tmp_path / "agentfw.toml").write_text("")
        with pytest.raises(PoolError):
            await found()
        monkeypatch.setenv("AGENTFW_POOL_SOCKET", str(tmp_path / "s"))
        assert await found() == 1
        monkeypatch.setenv("AGENTFW_POOL_URL", f"http://127.0.0.1:{there.port}")
        with pytest.raises(PoolError, match="two pools"):
            await found()
        monkeypatch.delenv("AGENTFW_POOL_SOCKET")
        (tmp_path / "token").write_bytes(TOKEN)
        (tmp_path / "token").chmod(0o600)
        monkeypatch.setenv("AGENTFW_POOL_TOKEN_FILE", str(tmp_path / "token"))
        assert await found() == 1
        monkeypatch.setenv("AGENTFW_POOL_URL", "http://127.0.0.1:1")
        async with Pool.connect(url=f"http://127.0.0.1:{there.port}", token_file=tmp_path / "token") as pool:
            assert len(await pool.jobs()) == 1


@async_test
async def test_nobody_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PoolError) as raised:
        async with Pool.connect():
            raise AssertionError
    assert raised.value.code == "unavailable" and "agentfw pool start" in raised.value.hint
