"""One upstream query a question and TTL for the whole pool, whoever asks: in worker processes, and step by step."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import dns.edns
import dns.message
import dns.rcode
from agentfw.errors import AgentfwError
from agentfw.mock_dns import MockDNS
from agentfw.pool.jobs import PoolError
from agentfw.pool.router import Router
from agentfw.runtime import Runtime
from agentfw.testing import make_agent
from agentfw.views import dns_cache
from agentfw_dns_cache import DnsConfig, Plugin

from .routers import finish, job, pool_test, running, stdout


async def everywhere(router: Router, name: str, times: int = 2) -> list[Any]:
    """Ask for it in each worker, several times at once; -> the answers."""
    infos = [await router.submit(job(["sleep", 0.1], ["resolve", name])) for _ in range(times * len(router.workers))]
    done = [await router.wait(info.id) for info in infos]
    assert {info.worker for info in done} == {worker.number for worker in router.workers}
    assert all(info.result is not None and info.result.status == 0 for info in done), done
    return [json.loads(await stdout(router, info.id)) for info in done]


@pool_test
async def test_workers_ask_once_for_all() -> None:
    async with MockDNS({"api.test": "192.0.2.1"}) as server:
        server.set("slow.test", "A", "192.0.2.2", delay=0.3)
        server.set("broken.test", "A", rcode=2)
        dns_table = {"upstream": [server.address], "failure_ttl": 30, "timeout": 2.0}
        async with running(workers=3, size=12, plugins=("dns",), tables={"dns": dns_table}) as router:
            for name, rcode, addresses in (
                ("api.test", 0, ["192.0.2.1"]),
                ("slow.test", 0, ["192.0.2.2"]),
                ("nothing.test", 3, []),
                ("broken.test", 2, []),
            ):
                for _ in range(2):
                    for answer in await everywhere(router, name):
                        assert (answer[0], [each[0] for each in answer[1:]]) == (rcode, addresses)
                once = 2 if name == "broken.test" else 1  # it is asked in two rounds
                assert server.asked(name) <= once, name
            numbers = await router.metrics()
            assert numbers["dns.upstream_queries"] == sum(server.queries.values()) <= 5
            assert numbers["dns.pool_asked"] == numbers["dns.pool_answered"] == 3 * 4 and numbers["dns.pool_silent"] == 0


@pool_test
async def test_a_router_without_the_plugin_says_so() -> None:
    async with running(plugins=("dns",), tables={"dns": {"upstream": ["127.0.0.1:1"]}}) as router:
        for plugin in ("nobody", "x" * 1000):
            info = await finish(router, ["ask", plugin, "x"])
            assert info.result is not None and "unsupported" in info.result.text
        info = await finish(router, ["ask", "dns", "nonsense"])
        assert info.result is not None and info.result.text.startswith("internal: plugin `dns` failed in answer_pool()")
        assert all(worker.restarts == 0 for worker in router.workers)


class Pool:
    """A router's plugin and workers' plugins, with one clock."""

    role = "worker"

    def __init__(self, server: MockDNS, workers: int = 2, **config: Any) -> None:
        self.now = 1000.0
        self.gone = False
        made = DnsConfig(**{"upstream": (server.address,), "timeout": 0.3, **config})
        self.router = Plugin(made, lambda: self.now)
        self.workers = [Plugin(made, lambda: self.now) for _ in range(workers)]
        for plugin in self.workers:
            plugin.start(cast(Runtime, SimpleNamespace(pool=self, config=SimpleNamespace(file=None))))

    async def ask(self, plugin: str, body: bytes) -> bytes:
        if self.gone:
            raise PoolError("unavailable", "the link was closed")
        assert plugin == "dns"
        return await self.router.answer_pool(body)

    async def answer(self, worker: int, name: str, agent: str = "a") -> dns.message.Message:
        query = dns.message.make_query(name, "A", use_edns=0)
        reply = self.workers[worker].resolve(make_agent(agent), name, 1, query.to_wire())
        found = dns.message.from_wire(reply if isinstance(reply, bytes) else cast(bytes, await cast(Any, reply)))
        assert query.is_response(found)
        for plugin in (self.router, *self.workers):
            await asyncio.gather(*plugin._inflight.values())
        return found

    async def ttl(self, worker: int, name: str, agent: str = "a") -> int:
        return (await self.answer(worker, name, agent)).answer[0].ttl


def code(reply: dns.message.Message) -> int | None:
    """Of the extended error."""
    return next((option.code for option in reply.options if isinstance(option, dns.edns.EDEOption)), None)


@pool_test
async def test_ttls_go_on_where_they_stand() -> None:
    async with MockDNS() as server:
        server.set("api.test", "A", "192.0.2.1", ttl=100)
        pool = Pool(server)
        assert await pool.ttl(0, "api.test") == 100
        pool.now += 40
        assert await pool.ttl(1, "api.test") == await pool.ttl(0, "api.test") == 60
        pool.now += 59.5
        assert await pool.ttl(1, "api.test") == 1
        pool.now += 1
        assert await pool.ttl(1, "api.test") == await pool.ttl(0, "api.test") == 100
        assert server.asked("api.test") == 2


@pool_test
async def test_one_worker_renews_for_all() -> None:
    async with MockDNS() as server:
        server.set("api.test", "A", "192.0.2.1", ttl=100)
        pool = Pool(server)
        for worker in (0, 1):
            assert await pool.ttl(worker, "api.test") == 100
        pool.now += 95
        for worker in (0, 0, 0, 1, 1, 1):  # used, and soon to expire
            await pool.answer(worker, "api.test")
        assert server.asked("api.test") == 2
        pool.now += 50
        assert await pool.ttl(0, "api.test") == await pool.ttl(1, "api.test") == 50
        assert server.asked("api.test") == 2


@pool_test
async def test_what_the_router_had_is_a_hit() -> None:
    """As people are shown it: of ten questions one had to be asked, though each worker had to ask its router."""
    async with MockDNS() as server:
        server.set("api.test", "A", "192.0.2.1", ttl=100)
        pool = Pool(server, workers=3)
        for worker in (0, 1, 2, 0, 1, 2, 0, 1, 2, 0):
            await pool.answer(worker, "api.test")
        numbers: Counter[str] = Counter()
        for plugin in (pool.router, *pool.workers):
            numbers.update({f"dns.{name}": int(value) for name, value in plugin.statistics().items()})
        assert numbers["dns.misses"] == 3 and dns_cache(numbers) == (9, 1)
        pool.now += 95
        for worker in (0, 0, 1, 1):  # what is renewed in advance was nobody's question
            await pool.answer(worker, "api.test")
        assert pool.router.statistics()["pool_hits"] == 2


@pool_test
async def test_expired_answers_are_shared_when_upstream_fails() -> None:
    async with MockDNS() as server:
        server.set("api.test", "A", "192.0.2.1", ttl=10)
        pool = Pool(server, failure_ttl=5)
        await pool.answer(0, "api.test")
        pool.now += 60
        server.set("api.test", "A", rcode=2)
        for worker in (1, 0):  # the first of them never had it
            reply = await pool.answer(worker, "api.test")
            assert reply.rcode() == 0 and code(reply) == dns.edns.EDECode.STALE_ANSWER and len(reply.answer) == 1
        asked = server.asked("api.test")
        pool.now += 2
        assert code(await pool.answer(1, "api.test")) == dns.edns.EDECode.STALE_ANSWER
        assert server.asked("api.test") == asked, "the failure is remembered"
        pool.now += 10
        server.set("api.test", "A", "192.0.2.7", ttl=10)
        assert (await pool.answer(1, "api.test")).answer[0][0].to_text() == "192.0.2.7"


@pool_test
async def test_a_slow_upstream_does_not_keep_an_expired_answer_back() -> None:
    async with MockDNS() as server:
        server.set("api.test", "A", "192.0.2.1", ttl=10)
        pool = Pool(server, stale_wait=0.05, timeout=2.0)
        await pool.answer(0, "api.test")
        pool.now += 60
        server.set("api.test", "A", "192.0.2.9", delay=0.3)
        reply = await pool.answer(1, "api.test")
        assert reply.answer[0][0].to_text() == "192.0.2.1" and code(reply) == dns.edns.EDECode.STALE_ANSWER
        assert (await pool.answer(1, "api.test")).answer[0][0].to_text() == "192.0.2.9"
        assert server.asked("api.test") == 2


@pool_test
async def test_what_is_not_kept_is_coalesced_only() -> None:
    async with MockDNS() as server:
        server.set("api.test", "A", soa=None, delay=0.1)  # "no", without a SOA: not to be kept
        pool = Pool(server)
        replies = await asyncio.gather(*(pool.answer(worker, "api.test", agent) for worker in (0, 1) for agent in "ab"))
        assert [(reply.rcode(), len(reply.answer)) for reply in replies] == [(0, 0)] * 4
        assert server.asked("api.test") == 1
        await pool.answer(0, "api.test")
        assert server.asked("api.test") == 2


@pool_test
async def test_a_question_is_counted_once_in_the_whole_pool() -> None:
    """The router has workers' questions, which have counted them: two that it asks for at once are no third lookup."""
    async with MockDNS() as server:
        server.set("api.test", "A", "192.0.2.1", delay=0.1)
        pool = Pool(server, workers=3)
        await asyncio.gather(*(pool.answer(worker, "api.test", agent) for worker in (0, 1, 2) for agent in "ab"))
        numbers: Counter[str] = Counter()
        for plugin in (pool.router, *pool.workers):
            numbers.update({f"dns.{name}": int(value) for name, value in plugin.statistics().items()})
        assert server.asked("api.test") == 1 and sum(dns_cache(numbers)) == 6


@pool_test
async def test_a_worker_whose_router_is_gone_asks_itself() -> None:
    async with MockDNS({"api.test": "192.0.2.1"}) as server:
        pool = Pool(server)
        pool.gone = True
        for worker in (0, 1):
            assert await pool.ttl(worker, "api.test") == 60
        assert server.asked("api.test") == 2
        assert [plugin.statistics()["pool_silent"] for plugin in pool.workers] == [1, 1]
        pool.gone = False
        await pool.answer(0, "other.test")
        assert pool.router.statistics()["pool_answered"] == 1


@pool_test
async def test_too_many_questions_at_once() -> None:
    async with MockDNS() as server:
        for name in ("a.test", "b.test"):
            server.set(name, "A", "192.0.2.1", delay=0.2)
        pool = Pool(server, pending=1, failure_ttl=30)
        one, two = await asyncio.gather(pool.answer(0, "a.test"), pool.answer(1, "b.test"))
        assert (one.rcode(), two.rcode()) == (dns.rcode.NOERROR, dns.rcode.SERVFAIL)
        assert (await pool.answer(1, "b.test")).rcode() == dns.rcode.NOERROR, "that was no failure of the name's"


@pool_test
async def test_nonsense_from_a_worker_is_refused() -> None:
    async with MockDNS() as server:
        pool = Pool(server)
        for body in (b"", b"\x93\xc4\x00\xa0\xc2", b"\x93\xc4\x0cabcdefghijkl\xa1a\xc2", b"\xff" * 50):
            try:
                await pool.router.answer_pool(body)
            except (AgentfwError, ValueError):
                continue
            raise AssertionError(body)
        assert not server.queries
