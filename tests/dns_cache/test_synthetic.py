"""Stand-ins: agents are told addresses that mean names; names are dialled, the addresses never."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import agentfw_native
import agentfw_policy
import dns.message
import dns.rcode
import dns.reversename
import pytest
from agentfw import Agent, Denied, Destination, hookimpl
from agentfw.agents import ExitReport
from agentfw.config import Config
from agentfw.errors import ConfigError
from agentfw.relay import dns as relay
from agentfw.runtime import Runtime
from agentfw.testing import make_agent, make_runtime
from agentfw_dns_cache import DnsConfig, Plugin
from agentfw_dns_cache.config import networks
from agentfw_dns_cache.synthetic import Full, Pool
from hypothesis import given, settings
from hypothesis import strategies as st

from ..core.support import guest

ALICE, BOB = make_agent("alice"), make_agent("bob")
POLICY = {"allow": ["*.test"], "deny": ["secret.test"], "allow_addresses": ["0.0.0.0/0", "::/0"]}
NETWORKS = networks(("198.18.0.0/15", "fd4c:8e1b:70a3::/64"))


@asynccontextmanager
async def running(*more: object, policy: dict[str, Any] | None = None, **config: Any) -> AsyncIterator[Runtime]:
    """There is no upstream at all, and a policy that permits every address that there is."""
    plugins = [
        Plugin(DnsConfig(**{"mode": "synthetic", "upstream": (), **config})),
        agentfw_policy.Plugin(Config({"policy": policy or POLICY}).plugin("policy", agentfw_policy.Config)),
        *more,
        agentfw_native.Plugin(agentfw_native.Config()),
    ]
    runtime = make_runtime(*plugins)
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()


async def ask(runtime: Runtime, name: str, qtype: str = "A", agent: Agent = ALICE) -> dns.message.Message:
    query = dns.message.make_query(name, qtype, use_edns=0)
    reply = await relay.answer(runtime, agent, query.to_wire(), udp=True)
    message = dns.message.from_wire(reply or b"")
    assert query.is_response(message)
    return message


async def told(runtime: Runtime, name: str, qtype: str = "A", agent: Agent = ALICE) -> str:
    (rrset,) = (await ask(runtime, name, qtype, agent)).answer
    (item,) = rrset
    return item.to_text()


def run(test: Callable[[], Any]) -> Callable[[], None]:
    def wrapped() -> None:
        asyncio.run(asyncio.wait_for(test(), 30))

    wrapped.__name__ = test.__name__
    return wrapped


@run
async def test_names_have_addresses_without_any_upstream_stable_and_each_its_own() -> None:
    async with running() as runtime:
        names = [f"n{i}.test" for i in range(200)]
        first = {name: (await told(runtime, name), await told(runtime, name, "AAAA")) for name in names}
        again = {name: (await told(runtime, name.upper(), agent=BOB), await told(runtime, name, "AAAA", BOB)) for name in names}
        assert first == again
        assert len({v4 for v4, _ in first.values()}) == len({v6 for _, v6 in first.values()}) == 200
        for v4, v6 in first.values():
            assert ipaddress.ip_address(v4) in NETWORKS[0] and ipaddress.ip_address(v6) in NETWORKS[1]
        assert runtime.hosts(ALICE, first["n7.test"][0]) == ["n7.test", first["n7.test"][0]]
        statistics = runtime.statistics()
        assert (statistics["dns.synthetic"], statistics["dns.synthetic_names"]) == (800, 200)
        assert statistics["dns.upstream_queries"] == statistics["native.names_resolved"] == 0


@run
async def test_policy_comes_first() -> None:
    async with running(name_length=20) as runtime:
        for name in ("secret.test", "example.com", "a" * 30 + ".test"):
            reply = await ask(runtime, name)
            assert reply.rcode() == dns.rcode.REFUSED and not reply.answer
        assert runtime.statistics()["dns.synthetic_names"] == 0


@run
async def test_a_connection_to_a_stand_in_is_one_to_the_name() -> None:
    """By an override here; the host's resolver and a proxy follow."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with running(hosts={"db.test": "127.0.0.1"}) as runtime:
        for qtype in ("A", "AAAA"):
            async with guest(runtime, await told(runtime, "db.test", qtype), port, agent=ALICE) as flow:
                assert await flow.guest_connected() == 0
                await flow.guest_send(b"hello\n")
                assert await flow.guest_read_until(b"\n") == b"hello\n"
    server.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readline())
    await writer.drain()
    writer.close()


@run
async def test_names_that_only_a_proxy_knows() -> None:
    seen: list[Destination] = []

    class Proxy:
        """Has the name, needs no address."""

        @hookimpl
        async def connect(self, agent: Agent, destination: Destination, tls: object) -> object:
            seen.append(destination)
            _, port = server.sockets[0].getsockname()
            sock = await runtime.dial(agent, Destination("tcp", "127.0.0.1", port))
            return await agentfw_native.connect_stream(sock, destination)

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with (
        running(Proxy(), policy={**POLICY, "allow": ["*.test", "127.0.0.1"]}) as runtime,
        guest(runtime, await told(runtime, "behind-a-proxy.test"), 5432, agent=ALICE) as flow,
    ):
        assert await flow.guest_connected() == 0
        await flow.guest_send(b"hello\n")
        assert await flow.guest_read_until(b"\n") == b"hello\n"
    assert seen == [Destination("tcp", "behind-a-proxy.test", 5432)]
    server.close()


@run
async def test_names_that_the_host_knows_when_there_are_no_resolvers() -> None:
    """With `upstream` left out and an empty resolv.conf, the plugin passes on to the native stack."""
    async with running(policy={**POLICY, "allow": ["*"]}) as runtime:
        plugin = runtime.plugins.get("dns")
        assert isinstance(plugin, Plugin)
        plugin.config = DnsConfig(mode="synthetic")
        plugin.exchange.servers = []
        query = dns.message.make_query("localhost.localdomain", "A").to_wire()
        assert plugin.resolve(ALICE, "localhost.localdomain", 1, query) is None
        assert runtime.statistics()["dns.passed"] == 1


@run
async def test_stand_ins_are_never_dialled_whatever_the_policy_says() -> None:
    async with running() as runtime:
        address = await told(runtime, "a.test")
        for where in (address, "198.18.77.77", "fd4c:8e1b:70a3::1234"):
            with pytest.raises(Denied, match="stands for a name"):
                await runtime.resolve_addresses(ALICE, Destination("tcp", where, 80))
            with pytest.raises(Denied):
                await runtime.dial(BOB, Destination("tcp", where, 80))
        async with guest(runtime, address, 80, agent=BOB) as flow:  # it was not told that one
            assert await flow.guest_connected() != 0
        upstream_says = Destination("dns", "a.test", 53)
        with pytest.raises(Denied):
            runtime.check_address(ALICE, upstream_says, "198.18.0.1")


@run
async def test_a_name_denied_later_is_denied_at_its_stand_in() -> None:
    class Later:
        denied = False

        @hookimpl
        def allow(self, destination: Destination) -> None:
            if self.denied:
                raise Denied("later", "")

    later = Later()
    async with running(later, hosts={"a.test": "127.0.0.1"}) as runtime:
        address = await told(runtime, "a.test")
        later.denied = True
        async with guest(runtime, address, 80, agent=ALICE) as flow:
            assert await flow.guest_connected() == 13


@run
async def test_hints_that_would_lead_past_the_stand_ins_are_not_told_and_reverses_are() -> None:
    async with running() as runtime:
        for qtype in ("HTTPS", "SVCB"):
            reply = await ask(runtime, "a.test", qtype)
            assert (reply.rcode(), reply.answer) == (dns.rcode.NOERROR, [])
        for qtype in ("A", "AAAA"):
            address = await told(runtime, "a.test", qtype)
            assert await told(runtime, str(dns.reversename.from_address(address)), "PTR") == "a.test."


@run
async def test_special_names_have_none() -> None:
    async with running(policy={**POLICY, "allow": ["*"]}) as runtime:
        for name in ("a.invalid", "a.onion"):
            assert (await ask(runtime, name)).rcode() == dns.rcode.NXDOMAIN
        reply = await ask(runtime, "_dns.resolver.arpa", "SVCB")
        assert (reply.rcode(), reply.answer) == (dns.rcode.NOERROR, [])
        assert runtime.statistics()["dns.synthetic_names"] == 0


@run
async def test_one_agents_names_are_bounded_and_others_still_have_theirs() -> None:
    async with running(agent_names=10, synthetic_names=15) as runtime:
        for i in range(10):
            await told(runtime, f"n{i}.test")
        full = await ask(runtime, "n10.test")
        assert full.rcode() == dns.rcode.SERVFAIL and "too many names" in full.options[0].to_text()
        kept = await told(runtime, "n3.test")
        for i in range(5):
            await told(runtime, f"m{i}.test", agent=BOB)
        assert (await ask(runtime, "m5.test", agent=BOB)).rcode() == dns.rcode.SERVFAIL
        runtime.agent_exited(ALICE, ExitReport("code"))
        assert await told(runtime, "n3.test", agent=BOB) == kept  # idle names keep theirs until they are needed
        for i in range(5, 9):
            await told(runtime, f"m{i}.test", agent=BOB)
        assert runtime.statistics()["dns.synthetic_names"] == 15


@run
async def test_a_hook_may_not_tell_addresses_that_are_not_reserved() -> None:
    class Wrong:
        name = "wrong"
        told: Any = ("93.184.216.34",)

        @hookimpl
        def stand_in(self) -> Any:
            return self.told

    wrong = Wrong()
    runtime = make_runtime(wrong)
    for each in (("93.184.216.34",), ("not an address",), ["198.18.0.1"], "198.18.0.1", ("::1",)):
        wrong.told = each
        assert (await ask(runtime, "a.test")).rcode() == dns.rcode.SERVFAIL
        assert runtime.hosts(ALICE, "93.184.216.34") == ["93.184.216.34"]


@pytest.mark.parametrize(
    "text",
    ["8.8.0.0/16", "10.0.0.0/8", "127.0.0.0/8", "192.168.0.0/24", "fd00::/64", "2001:db8:1::/128", "2600::/64", "224.0.0.0/8",
     "198.18.0.1/15", "fe80::/64", "::/64", "0.0.0.0/0", "x"],
)  # fmt: skip
def test_networks_that_hold_real_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DnsConfig(synthetic_networks=(text,))
    assert caught.value.key == "synthetic_networks.0"


def test_networks_may_be_chosen_and_one_kind_left_out() -> None:
    pool = Pool(networks(("10.64.0.0/10",)), 100, 100)
    assert ipaddress.ip_address(pool.addresses("a", "a.test", 1)[0]) in ipaddress.ip_network("10.64.0.0/10")
    assert pool.addresses("a", "a.test", 28) == ()
    with pytest.raises(ConfigError):
        DnsConfig(synthetic_networks=("10.64.0.0/10", "198.18.0.0/15"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 11), st.booleans()), max_size=200))
def test_the_pool_keeps_its_books(steps: list[tuple[int, int, bool]]) -> None:
    """No two names share an address; what a running agent was told stays so; no bound is passed."""
    pool = Pool(NETWORKS, 9, 6)
    known: dict[int, dict[str, str]] = {}
    for agent, number, leaves in steps:
        if leaves:
            pool.forget(str(agent))
            known.pop(agent, None)
            continue
        name = f"n{number}"
        try:
            (address,) = pool.addresses(str(agent), name, 1)
        except Full:
            mine = known.get(agent, {})
            assert name not in mine
            assert len(mine) == 6 or len({each for names in known.values() for each in names}) == 9
            continue
        assert known.setdefault(agent, {}).setdefault(name, address) == address
        by_name = {each: where for names in known.values() for each, where in names.items()}
        assert len(set(by_name.values())) == len(by_name) <= 9
        assert all(names.get(each, where) == where for names in known.values() for each, where in by_name.items())
        assert len(known[agent]) <= 6 and len(pool) <= 9
