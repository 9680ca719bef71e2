"""Another table [dns] while agents run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import dns.message
import dns.rcode
import msgspec
import pytest
from agentfw.config import load_config
from agentfw.errors import ConfigError
from agentfw.mock_dns import MockDNS

from .support import BOB, Bench, addresses, bench
from .test_overrides import resolved, runtime_with


def change(b: Bench, **config: Any) -> None:
    b.plugin.reconfigure(msgspec.structs.replace(b.plugin.config, **config))()


@bench
async def test_changed_overrides_hold_at_once_and_the_cache_survives(b: Bench) -> None:
    b.dns.set("kept.test", "A", "192.0.2.8")
    for _ in range(2):
        assert addresses(await b.ask("api.test")) == ["192.0.2.1"]
        await b.ask("kept.test")
    change(b, hosts={"api.test": "192.0.2.77"})
    assert addresses(await b.ask("api.test")) == ["192.0.2.77"]
    change(b, hosts={"api.test": "192.0.2.78"})
    assert addresses(await b.ask("api.test")) == ["192.0.2.78"]
    change(b, hosts={})
    assert addresses(await b.ask("api.test")) == ["192.0.2.1"]
    await b.ask("kept.test")
    assert b.dns.asked("api.test") == b.dns.asked("kept.test") == 1


@bench
async def test_an_override_holds_for_questions_under_way(b: Bench) -> None:
    b.dns.set("api.test", "A", "192.0.2.1", delay=0.2)
    waiting = asyncio.ensure_future(b.ask("api.test"))
    await asyncio.sleep(0.05)
    change(b, hosts={"api.test": "192.0.2.77"})
    assert addresses(await waiting) == ["192.0.2.77"]
    assert addresses(await b.ask("api.test")) == ["192.0.2.77"]


@bench
async def test_upstreams_change_from_the_next_question_on(b: Bench) -> None:
    b.dns.set("slow.test", "A", "192.0.2.3", delay=0.2)
    waiting = asyncio.ensure_future(b.ask("slow.test"))
    await asyncio.sleep(0.05)
    async with MockDNS({"new.test": "192.0.2.5"}) as other:
        change(b, upstream=(other.address,))
        assert addresses(await b.ask("new.test")) == ["192.0.2.5"]
        assert addresses(await waiting) == ["192.0.2.3"]
        assert (b.dns.asked("new.test"), other.asked("slow.test")) == (0, 0)


@bench(agent_burst=3, agent_rate=0.001)
async def test_limits_change_and_shrink_the_cache(b: Bench) -> None:
    for i in range(3):
        await b.ask(f"n{i}.test")
    assert (await b.denied("n3.test")).rule == "dns.agent_rate"
    assert b.statistics()["entries"] == 3
    change(b, agent_burst=100, agent_rate=100.0, entries=2, agent_entries=2)
    b.clock.now += 1
    assert (await b.ask("n3.test")).rcode() == dns.rcode.NXDOMAIN
    assert b.statistics()["entries"] == 2
    change(b, agent_entries=1)
    assert b.statistics()["entries"] == 1
    change(b, name_length=8)
    assert (await b.denied("longer.test", agent=BOB)).rule == "dns.name_length"


@bench
async def test_ttls_of_what_is_there_are_clamped_anew(b: Bench) -> None:
    b.dns.set("api.test", "A", "192.0.2.1", ttl=3000)
    assert (await b.ask("api.test")).answer[0].ttl == 3000
    change(b, max_ttl=100)
    assert (await b.ask("api.test")).answer[0].ttl == 100
    b.clock.now += 101
    await b.ask("api.test")
    assert b.dns.asked("api.test") == 2


@pytest.mark.parametrize("config", [{"synthetic_networks": ("10.128.0.0/12",)}, {"hosts_files": ("/nowhere/hosts",)}])
def test_what_cannot_be_is_refused_and_changes_nothing(config: dict[str, Any]) -> None:
    @bench
    async def run(b: Bench) -> None:
        before = b.plugin.config
        with pytest.raises(ConfigError) as caught:
            change(b, hosts={"api.test": "192.0.2.77"}, **config)
        assert caught.value.key.startswith(next(iter(config)))
        assert b.plugin.config is before
        assert addresses(await b.ask("api.test")) == ["192.0.2.1"]

    run()


def test_files_are_read_again_and_a_bad_one_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Through `Runtime.reload()`, the table being the same."""

    async def run() -> None:
        (tmp_path / "hosts").write_text("192.0.2.10 one.test\n")
        runtime = runtime_with(tmp_path, "[dns]\nupstream = []\nhosts_files = ['hosts']\n")
        await runtime.start()

        async def told() -> list[str]:
            return addresses(dns.message.from_wire(await resolved(runtime, "one.test")))

        assert await told() == ["192.0.2.10"]
        (tmp_path / "hosts").write_text("192.0.2.11 one.test\n")
        assert await told() == ["192.0.2.10"]
        await runtime.reload(load_config(tmp_path / "agentfw.toml"))
        assert await told() == ["192.0.2.11"]
        (tmp_path / "hosts").write_text("nonsense one.test\n")
        await runtime.reload(load_config(tmp_path / "agentfw.toml"))
        assert await told() == ["192.0.2.11"] and "hosts:1: bad" in caplog.text
        (tmp_path / "agentfw.toml").write_text("[dns]\nupstream = []\nhosts = { 'one.test' = '192.0.2.12' }\n")
        assert (await runtime.reload(load_config(tmp_path / "agentfw.toml"))).tables == ("dns",)
        assert await told() == ["192.0.2.12"]
        (tmp_path / "agentfw.toml").write_text("[dns]\nupstream = ['x']\n")
        with pytest.raises(ConfigError) as caught:
            await runtime.reload(load_config(tmp_path / "agentfw.toml"))
        assert (caught.value.key, caught.value.line) == ("dns.upstream.0", 2)
        assert await told() == ["192.0.2.12"]
        await runtime.stop()

    asyncio.run(run())
