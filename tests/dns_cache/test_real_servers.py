"""Real servers: what agents get through the cache is what the server itself says, and it is there when the server is not."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Iterator
from typing import Any

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest
from agentfw import hookimpl
from agentfw.relay import dns as relay
from agentfw.runtime import Runtime
from agentfw.testing import make_agent, make_runtime
from agentfw_dns_cache import DnsConfig, Plugin

from .servers import RealServer, dnsmasq, running, unbound
from .support import Clock, addresses

AGENT = make_agent()


@pytest.fixture(scope="module")
def bound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with running(unbound(tmp_path_factory.mktemp("unbound"))) as server:
        yield server


@pytest.fixture(scope="module")
def masq(tmp_path_factory: pytest.TempPathFactory, bound: RealServer) -> Iterator[RealServer]:
    with running(dnsmasq(tmp_path_factory.mktemp("dnsmasq"), bound)) as server:
        yield server


class Anywhere:
    @hookimpl
    def dial(self) -> bool:
        return True


class Path:
    """An agent's way to the server: relay, plugin, socket."""

    def __init__(self, server: RealServer, **config: Any) -> None:
        self.clock = Clock()
        given: dict[str, Any] = {"agent_burst": 100_000, "timeout": 5.0, **config}
        self.plugin = Plugin(DnsConfig(upstream=(server.address,), **given), self.clock)
        self.runtime: Runtime = make_runtime(self.plugin, Anywhere())

    async def ask(self, query: dns.message.Message, *, udp: bool = False) -> dns.message.Message:
        reply = await relay.answer(self.runtime, AGENT, query.to_wire(), udp=udp)
        message = dns.message.from_wire(reply or b"", ignore_trailing=False)
        assert query.is_response(message)
        return message


Sets = dict[tuple[str, int, int], tuple[frozenset[str], int]]


def sets(rrsets: list[dns.rrset.RRset], types: frozenset[int] | None = None) -> Sets:
    """By owner, type and type covered: data and TTL."""
    return {
        (str(each.name).lower(), int(each.rdtype), int(each.covers)): (
            frozenset(item.to_text().lower() for item in each),
            each.ttl,
        )
        for each in rrsets
        if types is None or int(each.rdtype) in types
    }


PROOFS = frozenset({6, 46, 47, 50})


def same(direct: dns.message.Message, ours: dns.message.Message, *, dnssec: bool, low: int = 1, high: int = 3600) -> None:
    """Same rcode, same answer, same TTLs but for the clamp; of the authority section what the cache keeps of it."""
    assert ours.rcode() == direct.rcode()
    theirs, own = sets(direct.answer), sets(ours.answer)
    assert {key: data for key, (data, _) in own.items()} == {key: data for key, (data, _) in theirs.items()}
    negative = not direct.answer or all(each.rdtype == dns.rdatatype.CNAME for each in direct.answer)
    for key, (_, ttl) in own.items():
        most = 300 if negative and ours.question[0].rdtype != dns.rdatatype.CNAME else high
        assert ttl == min(max(theirs[key][1], low), most), key
    kept = PROOFS if dnssec else frozenset({6}) if negative else frozenset()
    proofs = {key: data for key, (data, _) in sets(direct.authority, kept).items()}
    assert {key: data for key, (data, _) in sets(ours.authority).items()} == proofs
    assert not ours.additional


NAMES = [
    "corp.example", "www.corp.example", "WEB.Corp.Example", "c1.corp.example", "dangling.corp.example",
    "away.corp.example", "a.wild.corp.example", "b.c.wild.corp.example", "below.a.wild.corp.example",
    "alias.wild.corp.example", "wild.corp.example", "non.terminal.corp.example", "empty.non.terminal.corp.example",
    "mixed.corp.example", "long.corp.example", "zero.corp.example", "none.corp.example", "deep.none.corp.example",
    "svc.corp.example", "svcalias.corp.example", "_foo.svc.corp.example", "many.corp.example", "x.sub.corp.example",
    "www.other.example", "none.other.example",
]  # fmt: skip
OTHERS = [
    ("txt.corp.example", "TXT"), ("big.corp.example", "TXT"), ("mx.corp.example", "MX"), ("_sip._tcp.corp.example", "SRV"),
    ("caa.corp.example", "CAA"), ("naptr.corp.example", "NAPTR"), ("ptr.corp.example", "PTR"), ("corp.example", "NS"),
    ("corp.example", "SOA"), ("corp.example", "DNSKEY"), ("sub.corp.example", "DNAME"), ("unknown.corp.example", "TYPE65400"),
    ("web.corp.example", "NSEC"), ("none.corp.example", "MX"), ("x.wild.corp.example", "TXT"),
]  # fmt: skip


async def compare(path: Path, server: RealServer, name: str, qtype: str, **options: Any) -> None:
    query = dns.message.make_query(name, qtype, **options)
    direct = await asyncio.to_thread(server.ask, query)
    dnssec = bool(options.get("want_dnssec"))
    first = await path.ask(query)
    same(direct, first, dnssec=dnssec)
    second = await path.ask(dns.message.make_query(name.swapcase(), qtype, **options))
    same(direct, second, dnssec=dnssec)


@pytest.mark.parametrize("flags", ["plain", "edns", "dnssec", "cd"])
def test_answers_through_the_cache_are_the_servers_own(bound: RealServer, flags: str) -> None:
    """Aliases, wildcards, empty non-terminals, NXDOMAIN, NODATA, big ones by TCP, DNSSEC's records: cold and from the cache."""
    options: dict[str, Any] = {
        "plain": {"use_edns": False},
        "edns": {"use_edns": 0, "payload": 1232},
        "dnssec": {"want_dnssec": True, "payload": 1232},
        "cd": {"flags": dns.flags.RD | dns.flags.CD, "want_dnssec": True},
    }[flags]

    async def run() -> None:
        path = Path(bound)
        for name, qtype in [*itertools.product(NAMES, ("A", "AAAA", "CNAME", "HTTPS", "SVCB")), *OTHERS]:
            try:
                await compare(path, bound, name, qtype, **options)
            except AssertionError as error:
                raise AssertionError(f"{name} {qtype}: {error}") from error
        statistics = path.plugin.statistics()
        assert statistics["hits"] + statistics["negative_hits"] >= 60
        assert statistics["upstream_mismatched"] == 0
        assert statistics["upstream_truncated"] == statistics["upstream_tcp"] >= 2

    asyncio.run(run())


def test_dnsmasq_in_front_of_unbound(masq: RealServer) -> None:
    async def run() -> None:
        path = Path(masq)
        own = [("own.mas.example", "A"), ("own.mas.example", "AAAA"), ("alias.mas.example", "A"), ("txt.mas.example", "TXT"),
               ("_x._tcp.mas.example", "SRV")]  # fmt: skip
        for name, qtype in [*own, *itertools.product(NAMES[:12], ("A", "AAAA")), ("big.corp.example", "TXT")]:
            await compare(path, masq, name, qtype)
        nothing = await path.ask(dns.message.make_query("none.mas.example", "A"))
        assert nothing.rcode() == dns.rcode.NXDOMAIN

    asyncio.run(run())


@pytest.mark.parametrize("payload", [0, 512, 1232, 4096])
def test_over_udp_an_agent_gets_what_fits_and_the_rest_by_tcp(bound: RealServer, payload: int) -> None:
    async def run() -> None:
        path = Path(bound)
        for name, qtype, count in (
            ("many.corp.example", "A", 200),
            ("big.corp.example", "TXT", 40),
            ("web.corp.example", "A", 2),
        ):
            query = dns.message.make_query(name, qtype, use_edns=0 if payload else False, payload=payload or None)
            small = await path.ask(query, udp=True)
            assert len(small.to_wire()) <= max(payload, 512)
            whole = await path.ask(query)
            assert sum(map(len, whole.answer)) == count
            fits = len(whole.to_wire()) <= max(payload, 512)
            assert bool(small.flags & dns.flags.TC) == (not fits) and (not small.answer) == (not fits)
            assert (small.edns == 0) == bool(payload)

    asyncio.run(run())


@pytest.mark.parametrize("how", ["silent", "gone"])
def test_answers_outlive_the_server_and_are_fresh_when_it_is_back(tmp_path: Any, how: str) -> None:
    """RFC 8767, with a server that hangs (SIGSTOP) or is gone (its port is closed)."""

    async def run() -> None:
        server = unbound(tmp_path)
        with running(server):
            path = Path(server, timeout=0.2, rounds=1, stale_wait=0.5)
            query = dns.message.make_query("web.corp.example", "A", use_edns=0)

            async def fresh(query: dns.message.Message) -> dns.message.Message:
                """The server is there, and in 0.2 s at some time (what it was sent while it stood still comes first)."""
                for _ in range(50):
                    reply = await path.ask(query)
                    if reply.answer and reply.answer[0].ttl != 30:
                        break
                    path.clock.now += 6  # failures are remembered for five seconds
                return reply

            assert sorted(addresses(await fresh(query))) == ["198.51.100.2", "198.51.100.3"]
            cold = dns.message.make_query("mixed.corp.example", "A", use_edns=0)
            server.signal(signal.SIGSTOP) if how == "silent" else server.stop()
            path.clock.now += 78
            for _ in range(2):
                stale = await path.ask(query)
                assert sorted(addresses(stale)) == ["198.51.100.2", "198.51.100.3"] and stale.answer[0].ttl == 30
                assert [option.code for option in stale.options if isinstance(option, dns.edns.EDEOption)] == [3]
            assert (await path.ask(cold)).rcode() == dns.rcode.SERVFAIL
            server.signal(signal.SIGCONT) if how == "silent" else server.start()
            path.clock.now += 6
            again = await fresh(query)
            assert again.answer[0].ttl == 77 and not [each for each in again.options if isinstance(each, dns.edns.EDEOption)]
            assert addresses(await fresh(cold)) == ["198.51.100.7"]
            path.clock.now += 3700
            server.stop()
            assert (await path.ask(query)).rcode() == dns.rcode.SERVFAIL  # kept for an hour and no longer

    asyncio.run(run())
