"""How upstream servers are asked: UDP, TCP, the next one; whose replies are believed."""

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
from agentfw.mock_dns import MockDNS
from agentfw.testing import make_runtime
from agentfw_dns_cache import DnsConfig, Plugin
from agentfw_dns_cache.config import system_servers

from .support import ALICE, Bench, addresses, bench


@bench
async def test_truncated_goes_to_tcp(b: Bench) -> None:
    b.dns.set("big.test", "A", *(f"192.0.2.{i}" for i in range(200)), truncate=True)
    assert len(addresses(await b.ask("big.test"))) == 200
    assert (b.dns.udp_queries, b.dns.tcp_queries) == (1, 1)


@pytest.mark.parametrize("fault", ["wrong_id", "other_question", "garbage"])
def test_a_reply_that_is_not_ours_is_not_believed_and_tcp_decides(fault: str) -> None:
    @bench
    async def run(b: Bench) -> None:
        b.dns.set("api.test", "A", "192.0.2.1", **{fault: True})
        assert addresses(await b.ask("api.test")) == ["192.0.2.1"]
        assert b.dns.tcp_queries == 1
        assert b.statistics()["upstream_mismatched"] == 1

    run()


@bench
async def test_ids_and_ports_are_random(b: Bench) -> None:
    for i in range(40):
        b.dns.set(f"n{i}.test", "A", "192.0.2.1")
        await b.ask(f"n{i}.test", id=7)
    assert len({query[:2] for query in b.dns.seen}) > 35
    assert len(set(b.dns.ports)) > 30


@bench(timeout=0.3)
async def test_a_lost_datagram_is_sent_again(b: Bench) -> None:
    b.dns.set("api.test", "A", "192.0.2.1", drop=1)
    assert addresses(await b.ask("api.test")) == ["192.0.2.1"]
    assert b.dns.asked("api.test") >= 2


@bench
async def test_without_edns_for_old_servers(b: Bench) -> None:
    b.dns.set("api.test", "A", "192.0.2.1", no_edns=True)
    assert addresses(await b.ask("api.test")) == ["192.0.2.1"]
    assert b.dns.asked("api.test") == 2
    b.dns.set("b.test", "A", "192.0.2.1")
    await b.ask("b.test")
    assert dns.message.from_wire(b.dns.seen[-1]).edns == -1  # it is remembered,
    b.plugin.exchange.servers[0].plain_until -= 3600
    b.dns.set("c.test", "A", "192.0.2.1")
    await b.ask("c.test")
    assert dns.message.from_wire(b.dns.seen[-1]).edns == 0  # but not for ever: a forged FORMERR must not be


def test_the_next_server_is_asked() -> None:
    async def run() -> None:
        async with MockDNS() as broken, MockDNS({"api.test": "192.0.2.5"}) as good:
            broken.set("api.test", "A", rcode=2)
            broken.set("api.test", "AAAA", rcode=5)
            b = Bench(good, upstream=("127.0.0.1:1", broken.address, good.address))
            assert addresses(await b.ask("api.test")) == ["192.0.2.5"]
            assert (await b.ask("api.test", "AAAA")).rcode() == dns.rcode.NOERROR
            assert (broken.asked("api.test"), broken.asked("api.test", "AAAA")) == (1, 0)  # once it failed it is asked last

    asyncio.run(run())


def test_no_server_answers() -> None:
    async def run() -> None:
        async with MockDNS() as server:
            server.set("api.test", "A", "192.0.2.1", drop=99)
            b = Bench(server, upstream=("127.0.0.1:1", server.address), timeout=0.05)
            reply = await b.ask("api.test", use_edns=0)
            assert reply.rcode() == dns.rcode.SERVFAIL
            assert b.statistics()["upstream_failures"] == 4
            none = Bench(server, upstream=())
            assert (await none.ask("api.test")).rcode() == dns.rcode.SERVFAIL

    asyncio.run(run())


def test_through_the_runtime() -> None:
    """`Runtime.resolve_addresses()` gets its addresses from the plugin, twice from one upstream query."""

    class Anywhere:
        name = "anywhere"

        from agentfw.hookspecs import hookimpl

        @hookimpl
        def dial(self) -> bool:
            return True

    async def run() -> None:
        from agentfw.destination import Destination

        async with MockDNS({"api.test": "192.0.2.1"}) as server:
            plugin = Plugin(DnsConfig(upstream=(server.address,)))
            runtime = make_runtime(plugin, Anywhere())
            await runtime.start()
            for _ in range(2):
                assert await runtime.resolve_addresses(ALICE, Destination.make("https", "API.test")) == ["192.0.2.1"]
            assert server.asked("api.test") == 1
            assert runtime.statistics()["dns.upstream_queries"] == 2  # A and AAAA
            await runtime.stop()

    asyncio.run(run())


def test_system_servers(tmp_path: Any) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text("# x\nnameserver 192.0.2.1\nsearch a b\nnameserver fe80::1%eth0\nnameserver bad\nnameserver\n")
    assert [(server.address, server.port) for server in system_servers(file)] == [("192.0.2.1", 53), ("fe80::1%eth0", 53)]
    assert system_servers(tmp_path / "none") == []
