"""Agents that are alive all at once, each having made a model call over TLS: memory, and that all of them finish."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agentfw import Pool

from . import machine
from .book import Book
from .numbers import percentile, percentiles
from .warmed import held
from .world import GUEST, World, settled


async def stdlib(world: World, book: Book, pool: Pool, agents: int, rate: float, before: int) -> None:
    """`before`: MemAvailable before the pool was started."""
    found = await _alive(world, book, pool, "fleet_agent.py", "default", agents, rate, before)
    sends = [line["first_send"] / 1e6 for line in found["lines"]]
    calls = [line["first_call"] / 1e6 for line in found["lines"]]
    names = [line["resolve"] / 1e6 for line in found["lines"]]
    book.figures["connect"] = {"first_send_ms": sends, "first_call_ms": calls, "resolve_ms": names, "rate": rate}
    _memory_row(book, found, "the standard library")
    ps = percentiles(sends)
    book.row(
        f"connect to first send, {agents} agents, {rate:.0f} a second",
        "70 ms p50",
        "<= 5 ms p50",
        f"{ps['p50']:.2f} ms p50, {ps['p95']:.2f} p95, {ps['p99']:.2f} p99",
        ps["p50"] <= 5,
    )
    book.note(f"name p50 {percentile(names, 0.5):.2f} ms; connect to the first call's answer p50 {percentile(calls, 0.5):.2f} ms")


async def sdk(world: World, book: Book, pool: Pool, agents: int, rate: float, before: int) -> None:
    """The SDK is in the template."""
    found = await _alive(world, book, pool, "fleet_sdk.py", "sdk", agents, rate, before)
    _memory_row(book, found, "an SDK in the template")


async def importing(world: World, book: Book, pool: Pool, agents: int, rate: float, before: int) -> None:
    """The SDK is imported by each."""
    found = await _alive(world, book, pool, "fleet_sdk.py", "default", agents, rate, before)
    spent = found["cpu"] * 1e3
    times = percentiles([line["import"] / 1e6 for line in found["lines"]])
    book.figures["importing"] = {
        "agents": agents,
        "core_ms": spent,
        "memory": found["used"] / agents,
        **times,
    }
    book.row(
        f"{agents} agents that import an SDK after restore",
        "",
        "printed",
        f"{spent:.0f} core-ms, {found['used'] / agents / 1e6:.1f} MB each; import p50 {times['p50']:.0f} ms",
    )


def _memory_row(book: Book, found: dict[str, Any], what: str) -> None:
    agents, used, finished = found["agents"], found["used"], found["finished"]
    dense = agents / (used / 2**30)
    book.figures[f"alive: {what}"] = {
        "agents": agents,
        "bytes": used,
        "finished": finished,
        "per_gib": dense,
        "cpu": found["cpu"],
    }
    book.row(
        f"{agents} agents alive, each with TLS calls ({what})",
        "139 GB, 10.8 a GB",
        ">= 150 a GB (1,500 in 10 GiB), all finish",
        f"{used / 2**30:.2f} GiB, {dense:.0f} a GiB ({used / agents / 1e6:.2f} MB each); {finished} of {agents} finished",
        dense >= 150 and finished == agents,
    )


async def _alive(
    world: World, book: Book, pool: Pool, script: str, template: str, agents: int, rate: float, before: int
) -> dict[str, Any]:
    args = world.agent(hold=True)
    path = GUEST / script

    async def submit() -> Any:
        return await pool.submit(path, args, env=world.env, template=template, interactive=True)

    asked, seen = world.dns.asked("api.openai.com", "A"), world.served()
    begun, inside = machine.cpu().ours - machine.cpu(world.server.pid).ours, machine.cells()
    waiting = before - machine.available()
    handles, lines = await held(pool, agents, rate, submit)
    spent = machine.cpu().ours - machine.cpu(world.server.pid).ours - begun
    inside = (machine.cells() - inside) / agents * 1e3
    book.note(f"to run up to the first call's answer: {spent / agents * 1e3:.1f} core-ms each, {inside:.1f} of it in the cells")
    await settled(2)
    used = before - machine.available()
    own = (used - waiting) / agents / 1e6
    book.note(f"the pool before its first agent: {waiting / 2**30:.2f} GiB; what each agent added: {own:.2f} MB")
    metrics = await pool.metrics()
    now = world.served()
    network = {
        "agents": agents,
        "asked": world.dns.asked("api.openai.com", "A") - asked,
        "handshakes": now["handshakes"] - seen["handshakes"],
        "connections": now.get("open", 0),
        "served": now["requests"] - seen["requests"],
        "metrics": {name: value for name, value in metrics.items() if name.startswith(("dns.", "tls."))},
    }
    book.figures.setdefault("network", {})[f"{script} {template}"] = network
    await asyncio.gather(*(handle.feed("go on\n", end=True) for handle in handles))
    results = await asyncio.gather(*(handle.wait() for handle in handles))
    bad = [result for result in results if not result.ok]
    for result in bad[:3]:
        book.note(f"failed: {result!r}: {result.ended.text} {result.stderr[-300:]}")
    for result in results:
        if result.ok:
            json.loads(result.stdout.splitlines()[-1])
    return {"agents": agents, "used": used, "finished": len(results) - len(bad), "lines": lines, "cpu": spent / agents}


def network_rows(book: Book) -> None:
    """What name server and model server saw of the agents that were alive at once."""
    for what, found in book.figures.get("network", {}).items():
        metrics, agents = found["metrics"], found["agents"]
        hits, misses, asked = metrics.get("dns.hits", 0), metrics.get("dns.misses", 0), found["asked"]
        told = f"{asked} at the name server for its address; {hits:.0f} hits, {misses:.0f} misses of A and AAAA in the workers"
        book.row(f"DNS: queries for {agents} agents ({what})", "", "one a name and TTL", told, asked <= 1)
        held = metrics.get("tls.held", 0) + metrics.get("tls.leased", 0)
        told = f"{held:.0f} held; {found['handshakes']} handshakes for {found['served']} calls"
        book.row(f"TLS sessions for {agents} agents ({what})", "338 for 1,500", "<= 338", told, held <= 338)
