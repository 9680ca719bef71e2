"""The hooks alone, an exchange without a virtual machine, and a program in one."""

from __future__ import annotations

import asyncio

import pytest
from agentfw import ConfigError, Denied, Destination
from agentfw.config import Config as File
from agentfw.testing import FakeServer, PathError, fetch, make_agent, make_runtime, run_agent, running

from my_plugin import Config, Plugin


def test_closed_hosts_are_refused() -> None:
    async def body() -> None:
        runtime = make_runtime(Plugin(Config(closed=("Example.com.",))))
        await runtime.plugins.allow(make_agent(), Destination.make("https", "example.org"))
        with pytest.raises(Denied, match="my_plugin"):
            await runtime.plugins.allow(make_agent(), Destination.make("https", "example.com"))
        assert runtime.statistics()["my_plugin.denied"] == 1

    asyncio.run(body())


def test_mistakes_in_the_table_name_their_key() -> None:
    with pytest.raises(ConfigError) as caught:
        Plugin(Config(closed=("example.com", "no host")))
    assert caught.value.key == "closed.1"


def test_what_an_agent_sees() -> None:
    async def body() -> None:
        async with running(Plugin(Config(closed=("example.com",))), FakeServer()) as runtime:
            assert (await fetch(runtime, "https://example.org/")).body == b"ok"
            with pytest.raises(PathError, match="dns: REFUSED"):
                await fetch(runtime, "https://example.com/")

    asyncio.run(body())


def test_a_changed_table_takes_effect() -> None:
    async def body() -> None:
        async with running(Plugin(Config()), FakeServer()) as runtime:
            await fetch(runtime, "https://example.com/")
            await runtime.reload(File({"my_plugin": {"closed": ["example.com"]}}))
            with pytest.raises(PathError):
                await fetch(runtime, "https://example.com/")
            with pytest.raises(ConfigError):
                await runtime.reload(File({"my_plugin": {"closed": ["no host"]}}))

    asyncio.run(body())


def test_a_program_in_a_virtual_machine() -> None:
    code = "import urllib.request as u; print(u.urlopen('https://example.org/').read()); u.urlopen('https://example.com/')"
    run = run_agent(code, plugins=["my_plugin", FakeServer()], config={"my_plugin": {"closed": ["example.com"]}})
    assert run.stdout == "b'ok'\n" and run.status == 1 and "URLError" in run.stderr
    assert run.statistics["my_plugin.denied"] >= 1
