"""Held connections follow policy, configuration and names: what is no longer right is not lent again."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dnslib
import pytest
import trustme
from agentfw.agents import Agent
from agentfw.config import Config, load_config
from agentfw.destination import Destination
from agentfw.errors import ConfigError, Denied, ResolveError, TlsError
from agentfw.hookspecs import hookimpl
from agentfw.mock_llm import CertificateAuthority
from agentfw.plugins import load_plugins
from agentfw.runtime import Runtime
from agentfw.testing import make_agent
from agentfw.upstream import TlsRequest
from agentfw_tls_pool import Plugin, TlsConfig, drain
from agentfw_tls_pool.config import ClientCertificateConfig

from .hostile import Client, Line, hostile
from .support import ALICE, BOB, HOST, HTTP, Bench, Loopback, bench, echo, eventually, exchange, run, serve


class Policy:
    """Denies by (agent's name, host) or host; with `status`."""

    name = "a_policy"

    def __init__(self) -> None:
        self.denied: set[object] = set()
        self.status = 403
        self.fails = False

    @hookimpl
    def allow(self, agent: Agent, destination: Destination) -> None:
        if self.fails:
            raise RuntimeError("policy is broken")
        if {destination.host, (agent.name, destination.host)} & self.denied:
            raise Denied("test", "by the test", status=self.status)


class Names:
    """A resolver whose answer for HOST changes."""

    name = "names"

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.fails = False
        self.asked = 0

    @hookimpl
    def resolve(self, name: str, qtype: int, query: bytes) -> bytes | None:
        if name != HOST:
            return None
        self.asked += 1
        if self.fails:
            raise ResolveError(name, "no answer")
        reply = dnslib.DNSRecord.parse(query).reply()
        for address in self.addresses if qtype == dnslib.QTYPE.A else []:
            reply.add_answer(dnslib.RR(reply.q.qname, qtype, ttl=1, rdata=dnslib.A(address)))
        return bytes(reply.pack())


async def use(b: Bench, agent: Agent = ALICE, host: str = HOST) -> bool:
    """One exchange; whether it was on a connection used before."""
    upstream = await b.lease(agent, TlsRequest(host, ("http/1.1",)), host)
    assert await exchange(upstream, b"x") == b"x"
    upstream.release(reusable=True)
    return upstream.reused


# ---- policy ----


def test_what_policy_denies_after_a_reload_is_closed_and_the_rest_stays(tmp_path: Path) -> None:
    async def main() -> None:
        policy = Policy()
        names = (HOST, "other.test")
        async with serve(echo, names=names) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, policy) as b:
            for host in names:
                await use(b, ALICE, host)
            await use(b, BOB, "other.test")
            assert b.held == 3
            policy.denied = {HOST, ("alice", "other.test")}
            await b.plugin.reloaded(b.runtime)
            assert (b.held, b.retired_denied) == (1, 2)
            assert await use(b, BOB, "other.test")
            with pytest.raises(Denied):
                await b.lease(ALICE)
            policy.denied = set()
            await b.plugin.reloaded(b.runtime)
            assert not await use(b, ALICE)
            assert b.resumed == 0  # nothing of a session with what was denied is left either

    run(main)


def test_a_shared_connection_stays_while_anyone_may_use_it(tmp_path: Path) -> None:
    async def main() -> None:
        policy = Policy()
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, policy) as b:
            await use(b, ALICE)
            await use(b, BOB)
            policy.denied = {("bob", HOST)}
            await b.plugin.reloaded(b.runtime)
            assert b.held == 1
            assert await use(b, ALICE)
            policy.denied |= {("alice", HOST)}
            await b.plugin.reloaded(b.runtime)
            assert (b.held, b.retired_denied) == (0, 1)

    run(main)


@pytest.mark.parametrize("what", ["name", "address", "broken", "rate"])
def test_leased_connections_of_the_denied_are_not_lent_again(tmp_path: Path, what: str) -> None:
    async def main() -> None:
        policy = Policy()
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, policy) as b:
            mine, theirs = await b.lease(ALICE), await b.lease(BOB)
            if what == "name":
                policy.denied = {("alice", HOST)}
            elif what == "address":
                b.loopback.denied = {("alice", "127.0.0.1")}
            elif what == "broken":
                policy.fails = True  # fails closed, for all
            else:
                policy.denied, policy.status = {HOST}, 429  # too often is no reason to close anything
            await b.plugin.reloaded(b.runtime)
            for upstream in (mine, theirs):
                await exchange(upstream, b"to its end")
                upstream.release(reusable=True)
            kept = {"broken": 0, "rate": 2}.get(what, 1)
            assert (b.held, b.retired_denied) == (kept, 2 - kept)

    run(main)


def test_who_waited_during_a_reload_is_asked_about_again(tmp_path: Path) -> None:
    async def main() -> None:
        policy = Policy()
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, policy, max_connections=1) as b:
            first = await b.lease(ALICE)
            waiting = asyncio.ensure_future(b.lease(BOB))
            await asyncio.sleep(0.01)
            policy.denied = {("bob", HOST)}
            await b.runtime.reload(Config())
            first.release(reusable=True)
            with pytest.raises(Denied):
                await waiting
            assert (b.leased, b.waiting) == (0, 0)

    run(main)


# ---- names ----


def age(b: Bench, seconds: float) -> None:
    """As if the name's addresses had been looked up that much earlier."""
    assert b.plugin.pool
    for cluster in b.plugin.pool.clusters.values():
        cluster.resolved_at -= seconds
        for address in cluster.addresses:
            cluster.addresses[address] -= seconds


def test_connections_to_addresses_that_the_name_no_longer_has_are_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        names = Names("127.0.0.1")
        both = ["127.0.0.1", "127.0.0.2"]
        async with serve(echo, addresses=both) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, names) as b:
            pool = b.plugin.pool
            assert pool
            await use(b)
            leased = await b.lease()
            await use(b)  # one idle, one leased
            assert (b.held, b.leased) == (1, 1)
            names.addresses = ["127.0.0.2"]
            age(b, 20)
            await drain.check_addresses(b.runtime, pool)
            assert b.held == 1  # an answer without it is not enough: many names have more addresses than one answer shows
            asked = names.asked
            await drain.check_addresses(b.runtime, pool)
            assert names.asked == asked  # not at each sweep
            age(b, 70)
            names.fails = True
            await drain.check_addresses(b.runtime, pool)
            assert b.held == 1  # nor is no answer
            names.fails = False
            await drain.check_addresses(b.runtime, pool)
            assert (b.held, b.retired_drained) == (0, 1)
            assert await exchange(leased, b"goes on") == b"goes on"
            leased.release(reusable=True)
            assert (b.held, b.retired_drained) == (0, 2)
            upstream = await b.lease()
            assert upstream.address == "127.0.0.2"
            upstream.release(reusable=True)
            age(b, 70)
            await drain.check_addresses(b.runtime, pool)
            assert b.held == 1

    run(main)


def test_the_sweep_looks_at_addresses_and_kept_connections_are_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentfw_tls_pool.plugin.SWEEP", 0.02)
    monkeypatch.setattr(drain, "RESOLVE_EVERY", 0.0)

    async def main() -> None:
        names = Names("127.0.0.1")
        both = ["127.0.0.1", "127.0.0.2"]
        async with serve(echo, addresses=both) as peer:
            config: dict[str, Any] = {"preconnect": (f"{HOST}:{peer.port}",), "preconnect_count": 2, "dns_drain": 0.0}
            async with bench(peer.port, peer.authority.ca_pem, tmp_path, names, **config) as b:
                await eventually(lambda: b.held == 2)
                names.addresses = ["127.0.0.2"]
                await eventually(lambda: b.retired_drained == 2 and b.held == 2)
                upstream = await b.lease()
                assert upstream.address == "127.0.0.2"

    run(main)


# ---- configuration ----


def reload(b: Bench, **changes: Any) -> None:
    config = b.plugin.config
    table = {name: getattr(config, name) for name in TlsConfig.__struct_fields__} | changes
    b.plugin.reconfigure(TlsConfig(**table))()


def test_limits_change_in_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, max_connections=1) as b:
            first = await b.lease(ALICE)
            waiting = asyncio.ensure_future(b.lease(BOB))
            await asyncio.sleep(0.01)
            assert b.waiting == 1
            reload(b, max_connections=2)
            second = await waiting
            for upstream in (first, second):
                await exchange(upstream, b"x")
                upstream.release(reusable=True)
            assert (b.held, b.handshakes, b.retired_drained) == (2, 2, 0)

    run(main)


def test_a_bad_table_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            await use(b)
            before = b.plugin.config
            for changes in (
                {"ca_files": (str(tmp_path / "missing.pem"),)},
                {"client_certificate": (ClientCertificateConfig(host=HOST, cert="missing", key="missing"),)},
            ):
                with pytest.raises(ConfigError, match="missing"):
                    reload(b, max_connections=1, **changes)
            assert b.plugin.config is before
            assert b.held == 1
            assert await use(b)

    run(main)


def own_certificate(b: Bench, tmp_path: Path) -> dict[str, Any]:
    made = trustme.CA().issue_cert("fleet@agents.test")
    (tmp_path / "c.pem").write_bytes(made.private_key_and_cert_chain_pem.bytes())
    file = str(tmp_path / "c.pem")
    return {"client_certificate": (ClientCertificateConfig(host=f"{HOST}:{b.port}", cert=file, key=file),)}


CHANGES: dict[str, Callable[[Bench, Path], dict[str, Any]]] = {
    "min_version": lambda b, _: {"min_version": "1.3"},
    "authorities": lambda b, _: {"ca_files": (*b.plugin.config.ca_files, *b.plugin.config.ca_files)},
    "system's": lambda b, _: {"system_ca": True},
    "not shared": lambda b, _: {"shared": ()},
    "who shares": lambda b, _: {"separate_by": ("team",)},
    "client certificate": own_certificate,
}


@pytest.mark.parametrize("what", CHANGES)
def test_connections_made_under_another_configuration_are_drained(tmp_path: Path, what: str) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, max_connections=2) as b:
            await use(b)
            leased = await b.lease(ALICE)
            await use(b, BOB)
            last = await b.lease(BOB)
            waiting = asyncio.ensure_future(b.lease(make_agent("carol")))
            await asyncio.sleep(0.01)
            assert (b.held, b.leased, b.waiting) == (0, 2, 1)
            reload(b, **CHANGES[what](b, tmp_path))
            assert await exchange(leased, b"goes on") == b"goes on"
            leased.release(reusable=True)
            last.release(reusable=True)
            carol = await waiting  # on a connection of the new kind
            assert not carol.reused
            assert not carol._connection.resumed  # type: ignore[attr-defined]
            carol.release(reusable=True)
            assert (b.retired_drained, b.held, b.handshakes) == (2, 1, 3)

    run(main)


def test_the_same_configuration_drains_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(echo) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path) as b:
            await use(b)
            reload(b)
            await b.plugin.reloaded(b.runtime)
            assert await use(b)
            assert b.handshakes == 1

    run(main)


def test_authorities_are_read_again_though_the_table_is_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        private = CertificateAuthority()
        async with (
            serve(echo) as peer,
            serve(echo, private.server_context(["other.test"])) as new,
            bench(peer.port, peer.authority.ca_pem, tmp_path) as b,
        ):
            await use(b)
            (tmp_path / "ca.pem").write_text("half a file")
            await b.plugin.reloaded(b.runtime)
            assert await use(b)  # what was good stays
            (tmp_path / "ca.pem").write_text(private.ca_pem)
            await b.plugin.reloaded(b.runtime)
            assert (b.held, b.retired_drained) == (0, 1)
            with pytest.raises(TlsError) as caught:
                await b.lease()
            assert caught.value.verify_code == 19
            b.port = new.port
            await use(b, ALICE, "other.test")

    run(main)


def test_preconnect_changes(tmp_path: Path) -> None:
    async def main() -> None:
        names = (HOST, "other.test")
        async with serve(echo, names=names) as peer:
            targets = tuple(f"{host}:{peer.port}" for host in names)
            async with bench(
                peer.port, peer.authority.ca_pem, tmp_path, shared=names, preconnect=targets[:1], preconnect_count=1
            ) as b:
                await eventually(lambda: b.held == 1)
                reload(b, preconnect=targets[1:], preconnect_count=3)
                await eventually(lambda: b.held == 4)
                pool = b.plugin.pool
                assert pool
                assert {group.key.destination.host: group.keep for group in pool.groups.values()} == {HOST: 0, "other.test": 3}

    run(main)


def test_agents_own_authorities_may_be_taken_away(tmp_path: Path) -> None:
    async def main() -> None:
        private = CertificateAuthority()
        mine = TlsRequest("other.test", ("http/1.1",), cas=(ssl.PEM_cert_to_DER_cert(private.ca_pem),))
        context = private.server_context(["other.test"])
        async with serve(echo, context) as peer, bench(peer.port, peer.authority.ca_pem, tmp_path, agent_ca=True) as b:
            (await b.lease(ALICE, mine, "other.test")).release(reusable=True)
            reload(b, agent_ca=False)
            assert b.held == 0
            with pytest.raises(TlsError):
                await b.lease(ALICE, mine, "other.test")
            assert HTTP.cas == ()

    run(main)


def test_a_reload_of_the_file_reaches_the_pool_and_a_bad_one_names_the_key(tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "agentfw.toml"
        authority, other = CertificateAuthority(), CertificateAuthority()
        (tmp_path / "good.pem").write_text(authority.ca_pem)
        (tmp_path / "other.pem").write_text(other.ca_pem)

        def config(text: str) -> Config:
            rest = f"[dns]\nupstream = []\nhosts.'{HOST}' = '127.0.0.1'"
            file.write_text(f"[tls]\nsystem_ca = false\nshared = ['{HOST}']\n{text}\n{rest}")
            return load_config(file)

        async with serve(echo, authority.server_context([HOST])) as peer:
            first = config("ca_files = ['good.pem']")
            runtime = Runtime(
                asyncio.get_running_loop(), load_plugins(["dns", "tls", str(tmp_path / "loopback.py")], first), first
            )
            await runtime.start()
            try:
                plugin = runtime.plugins.get("tls")
                assert isinstance(plugin, Plugin)
                b = Bench(runtime, plugin, Loopback(), peer.port)
                await use(b)
                for text, key in (
                    ("ca_files = ['missing.pem']", "tls.ca_files.0"),
                    ("ca_files = ['good.pem']\nmax_connections = 0", "tls.max_connections"),
                    ("client_certificate = [{host = 'a.test', cert = 'good.pem', key = 'none'}]", "tls.client_certificate.0.key"),
                ):
                    with pytest.raises(ConfigError) as caught:
                        await runtime.reload(config(text))
                    assert (caught.value.key, caught.value.file) == (key, str(file))
                assert await use(b)
                await runtime.reload(config("ca_files = ['good.pem']\nmax_connections = 7"))
                assert plugin.pool and plugin.pool.limits.max_connections == 7
                assert await use(b)
                await runtime.reload(config("ca_files = ['other.pem']"))
                assert (b.held, b.retired_drained) == (0, 1)
                with pytest.raises(TlsError):
                    await b.lease()
            finally:
                await runtime.stop()

    (tmp_path / "loopback.py").write_text(LOOPBACK)
    run(main)


LOOPBACK = """
from agentfw import hookimpl


class Plugin:
    @hookimpl
    def dial(self):
        return True
"""


def test_flows_that_a_reload_forbids_are_cut_and_their_connections_with_them(tmp_path: Path) -> None:
    """Amid an answer, and between two requests; the other agent's flows go on, on connections that nobody has touched."""

    async def main() -> None:
        policy = Policy()
        half = asyncio.Event()

        async def speak(line: Line, request: bytes) -> None:
            await line.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
            half.set()
            await line.read()

        async with hostile(speak, tmp_path, None, policy) as stage:
            b = stage.bench
            busy, idle, other, patient = (Client(b, agent) for agent in (ALICE, ALICE, BOB, BOB))
            for client in (busy, idle, other, patient):
                assert (await client.open())["ok"]
            await idle.good("before")
            await other.good("before")
            waiting = asyncio.ensure_future(patient.good("patience", "slow"))
            await busy.send("/bad")
            await half.wait()
            policy.denied = {("alice", HOST)}
            await b.runtime.reload(Config())
            for client in (busy, idle):
                async with asyncio.timeout(10):
                    await client.task
            assert (await busy.judge())[0] == "reset"
            await eventually(lambda: b.leased == 1)
            await other.good("after")
            stage.server.go.set()
            await waiting
            bad = [line for line in stage.server.lines if any(b" /bad " in each for each in line.requests)]
            await eventually(lambda: [line.over for line in bad] == [True])
            for client in (other, patient):
                await client.close()

    run(main)
