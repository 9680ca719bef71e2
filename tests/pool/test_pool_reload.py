"""The configuration read again: in the router and in all workers, or nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentfw.config import Config, load_config
from agentfw.pool.jobs import PoolError
from agentfw.pool.router import Router

from .routers import ENGINE, QUICK, finish, job, pool_test, stdout, until_running

TEXT = """
[run]
plugins = ["./watcher.py"]
[pool]
workers = 2
size = 4
idle = 0
[watcher]
says = "%s"
%s
"""
PLUGIN = """
import os
import msgspec
from agentfw import hookimpl
from agentfw.errors import ConfigError

class Config(msgspec.Struct, forbid_unknown_fields=True):
    says: str
    worker_refuses: bool = False
    worker_breaks: bool = False

class Plugin:
    name = "watcher"
    config_type = Config

    def __init__(self, config):
        self.config = config
        self.runtime = None

    @hookimpl
    def start(self, runtime):
        self.runtime = runtime

    def reconfigure(self, config):
        if config.worker_refuses and self.runtime.pool is not None and self.runtime.pool.role == "worker":
            raise ConfigError("worker_refuses", "not in a worker")
        def commit():
            self.config = config
            if config.worker_breaks and self.runtime.pool is not None and self.runtime.pool.role == "worker":
                raise RuntimeError("amid it")
        return commit

    @hookimpl
    def admit(self, agent):
        if agent.labels.get("want") not in (None, self.config.says):
            raise ValueError(f"it says {self.config.says}")

    @hookimpl
    def statistics(self):
        return {self.config.says: 1}
"""


def routed(place: Path, local: bool = False) -> Router:
    (place / "watcher.py").write_text(PLUGIN)
    file = place / "agentfw.toml"
    file.write_text(TEXT % ("one", ""))
    config = load_config(file)
    assert config.run.plugins
    return Router(config, config.run.plugins, load=lambda: load_config(file), local=local, patience=QUICK, engine=ENGINE)


@pytest.mark.parametrize("local", [False, True], ids=["processes", "local"])
def test_all_take_it_or_none(tmp_path: Path, local: bool) -> None:
    @pool_test
    async def body() -> None:
        router = routed(tmp_path, local)
        file = tmp_path / "agentfw.toml"
        everywhere = 1 if local else 3

        async def says(text: str) -> bool:
            return (await router.metrics()).get(f"watcher.{text}") == everywhere

        try:
            await router.start()
            assert await says("one") and await router.reload() == []
            file.write_text((TEXT % ("two", "")).replace("size = 4", "size = 6"))
            assert sorted(await router.reload()) == ["pool", "watcher"]
            assert await says("two")
            assert (await finish(router, labels={"want": "two"})).result.status == 0  # type: ignore[union-attr]
            for text, about in (
                (TEXT % ("three", "[nobody]"), "nobody"),
                (TEXT % ("three", "nothing = 1"), "nothing"),
                ((TEXT % ("three", "")).replace("workers = 2", "workers = 3"), "restart"),
                ((TEXT % ("three", "")).replace("idle = 0", "idle = -1"), "idle"),
                ((TEXT % ("three", "")).replace("[run]", '[run]\nmemory = "none"'), "memory"),
                (TEXT % ("three", '[pool.templates.x]\nmount = ["/no/such/place:/data"]'), "template `x`"),
                ((TEXT % ("three", "")).replace("[", "", 1), "TOML"),
                *([(TEXT % ("three", "worker_refuses = true"), "not in a worker")] if not local else []),
            ):
                file.write_text(text)
                with pytest.raises(PoolError, match=about) as caught:
                    await router.reload()
                assert caught.value.code == "bad_config"
                assert await says("two"), "all as before"
            assert (await router.metrics())["pool.reloads"] == 2
        finally:
            await router.close()

    body()


def test_a_worker_that_breaks_its_word_is_replaced(tmp_path: Path) -> None:
    @pool_test
    async def body() -> None:
        router = routed(tmp_path)
        try:
            await router.start()
            before = {worker.pid for worker in router.workers}
            info = await router.submit(job(["sleep", 60]))
            await until_running(router, info.id)
            (tmp_path / "agentfw.toml").write_text(TEXT % ("two", "worker_breaks = true"))
            assert await router.reload() == ["watcher"]
            ended = (await router.wait(info.id)).result
            assert ended is not None and "did not take the configuration" in ended.text
            for _ in range(4):
                assert (await finish(router, labels={"want": "two"})).result.status == 0  # type: ignore[union-attr]
            assert not before & {worker.pid for worker in router.workers if worker.state == "ready"}
        finally:
            await router.close()

    body()


@pool_test
async def test_bounds_of_what_is_kept_change_with_it() -> None:
    config = Config({"pool": {"workers": 1, "size": 4, "idle": 0}})
    router = Router(config, (), load=lambda: config, local=True, engine=ENGINE)
    await router.start()
    try:
        infos = [await finish(router, ["out", "x"]) for _ in range(5)]
        router.book._moment = 0.0
        config = Config({"pool": {"workers": 1, "size": 4, "idle": 0, "keep_jobs": 3, "keep_output": 300}})
        assert await router.reload() == ["pool"]
        assert [info.id for info in await router.jobs()] == [info.id for info in reversed(infos[2:])]
        assert [await stdout(router, info.id) for info in infos[2:]] == [b"", b"", b"x"]
        with pytest.raises(PoolError, match="no job"):
            await router.info(infos[0].id)
        assert (await router.describe()).done == 5
    finally:
        await router.close()


@pool_test
async def test_a_table_that_nobody_reads_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    router = routed(tmp_path, local=True)
    note = "[%s] has no effect: `%s` is not among the plugins"
    (tmp_path / "agentfw.toml").write_text(TEXT % ("one", "[policy]"))
    router.config = router._load()
    try:
        await router.start()
        assert caplog.messages.count(note % ("policy", "policy")) == 1
        (tmp_path / "agentfw.toml").write_text(TEXT % ("two", "[policy]\n[native]"))
        assert await router.reload() == ["watcher"]
        assert caplog.messages.count(note % ("policy", "policy")) == 1, "it was said"
        assert caplog.messages.count(note % ("native", "native")) == 1
    finally:
        await router.close()
