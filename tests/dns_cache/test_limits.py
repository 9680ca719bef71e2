"""Questions that go nowhere, and how many go anywhere; configuration."""

from __future__ import annotations

import asyncio
from typing import Any

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest
from agentfw.config import Config
from agentfw.errors import ConfigError
from agentfw_dns_cache import DnsConfig

from .support import BOB, Bench, bench


@pytest.mark.parametrize(
    ("raw", "rcode"),
    [
        (b"\0\1\x28\0\0\1\0\0\0\0\0\0\3api\4test\0\0\1\0\1", 4),  # UPDATE
        (b"\0\1\1\0\0\2\0\0\0\0\0\0\3api\4test\0\0\1\0\1\3api\4test\0\0\1\0\1", 1),
        (b"\0\1\1\0\0\0\0\0\0\0\0\0", 1),
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\3api\4test", 1),
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\3api\4test\0\0\1\0\1junk", 1),
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\xc0\x0c\0\1\0\1", 1),
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\3api\4test\0\0\1\0\3", 5),  # CHAOS
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\3api\4test\0\0\xff\0\1", 5),  # ANY
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\3api\4test\0\0\xfc\0\1", 5),  # AXFR
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\x08api.test\0\0\1\0\1", 5),  # a dot inside a label
        (b"\0\1\1\0\0\1\0\0\0\0\0\1\3api\4test\0\0\1\0\1\0\0\x29\4\xd0\0\1\0\0\0\0", 16),  # EDNS version 1
        (b"\0\1\1\0\0\1\0\0\0\0\0\1\3api\4test\0\0\1\0\1\0\0\x10\0\1\0\0\0\0\0\0", 1),  # a record that is not OPT
    ],
)
def test_odd_questions_go_nowhere(raw: bytes, rcode: int) -> None:
    @bench
    async def run(b: Bench) -> None:
        reply = dns.message.from_wire(await b.raw(raw, name="api.test"))
        assert reply.rcode() == rcode
        assert reply.id == 1
        assert b.dns.seen == []

    run()


@bench
async def test_the_judged_name_is_the_one_that_is_asked(b: Bench) -> None:
    query = dns.message.make_query("secret.evil.test", "A").to_wire()
    with pytest.raises(ValueError, match="another name"):
        await b.raw(query, name="api.test")
    api = dns.message.make_query("api.test", "A").to_wire()
    await b.raw(api, name="api.test")
    await b.raw(api, name="api.test")
    with pytest.raises(ValueError, match="another name"):
        await b.raw(api, name="other.test")
    assert b.dns.asked("secret.evil.test") == 0


@bench(agent_burst=20, agent_rate=1.0, name_length=60)
async def test_floods_and_long_names_are_limited(b: Bench) -> None:
    for i in range(20):
        await b.ask(f"n{i}.test")
    assert (await b.ask("n20.test")).rcode() == dns.rcode.REFUSED
    assert (await b.ask("n0.test")).rcode() == dns.rcode.NXDOMAIN  # what is in the cache costs nothing
    assert (await b.ask("api.test", agent=BOB)).rcode() == dns.rcode.NOERROR
    b.clock.now += 1
    assert (await b.ask("n21.test")).rcode() == dns.rcode.NXDOMAIN
    assert (await b.ask("x" * 63 + ".test", agent=BOB)).rcode() == dns.rcode.REFUSED
    assert sum(b.dns.queries.values()) == 22


@bench(agent_pending=4)
async def test_one_agent_waits_for_a_bounded_number(b: Bench) -> None:
    for i in range(6):
        b.dns.set(f"slow{i}.test", "A", "192.0.2.1", delay=0.1)
    replies = await asyncio.gather(*(b.ask(f"slow{i}.test") for i in range(6)))
    assert sorted(reply.rcode() for reply in replies) == [0, 0, 0, 0, 2, 2]


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"upstream": ["example.com"]}, "dns.upstream.0"),
        ({"upstream": ["[::1]x"]}, "dns.upstream.0"),
        ({"hosts": {"a b": "127.0.0.1"}}, "dns.hosts.a b"),
        ({"hosts": {"a": "localhost"}}, "dns.hosts.a"),
        ({"nonsense": 1}, "dns.nonsense"),
        ({"entries": 0}, "dns.entries"),
        ({"entries": 10}, "dns.agent_entries"),
    ],
)
def test_bad_configuration_names_the_key(table: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config({"dns": table}).plugin("dns", DnsConfig)
    assert caught.value.key == key
