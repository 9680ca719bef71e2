"""What `audit` and `capture` add to a model call, by what is written; and how fast the log is read again.

    python bench/auditing.py [--calls 2000] [--lines 500000]

Runtimes in one process, blocks of calls taking turns: without a log, with one of each kind of lines, with all of them (the
default), with the agent captured besides. CPU time is that of this process: client, runtime and threads, until all is written.
Then the hooks of `audit` alone, with nobody who wants them too. Then `agentfw audit query` over a log, in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import uvloop
from agentfw import Agent, Destination
from agentfw.config import load_config
from agentfw.model_calls import ModelCall
from agentfw.plugins import load_plugins
from agentfw.reports import Decision, ExchangeReport
from agentfw.runtime import Runtime
from agentfw.testing import make_agent, make_runtime
from agentfw_audit import Config, Plugin
from path import HOST, KEY, ThroughPath, serve

BLOCK = 50
WRITTEN = 0.3
"""Seconds in which what a block tells gets to the disk."""
PLAIN = "dns,tls,policy,credentials,inspect"
SIDES = {
    "without": (PLAIN, []),
    "decisions": (f"{PLAIN},audit", ["decisions"]),
    "exchanges": (f"{PLAIN},audit", ["exchanges"]),
    "model calls": (f"{PLAIN},audit", ["model_calls"]),
    "all": (f"{PLAIN},audit", ["events", "decisions", "exchanges", "flows", "model_calls", "exits", "jobs"]),
    "all, captured": (f"{PLAIN},audit,capture", ["events", "decisions", "exchanges", "flows", "model_calls", "exits", "jobs"]),
}


async def path(options: argparse.Namespace, port: int, ca: str) -> None:
    """Calls through whole runtimes."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "ca.pem").write_text(ca)
        (place / "key").write_text(KEY)
        (place / "har").mkdir()
        runtimes: dict[str, Runtime] = {}
        clients: dict[str, ThroughPath] = {}
        for number, (name, (plugins, events)) in enumerate(SIDES.items()):
            (place / "agentfw.toml").write_text(
                f'[dns]\nhosts = {{"{HOST}" = "127.0.0.1"}}\n[tls]\nca_files = ["ca.pem"]\nshared = ["{HOST}"]\n'
                f'[policy]\nallow = ["{HOST}"]\nallow_addresses = ["127.0.0.1/32"]\n[capture]\ndirectory = "har"\n'
                f'[audit]\nfile = "audit-{number}.jsonl"\nevents = {json.dumps(events)}\n'
                f'[[credentials.rule]]\nhost = "{HOST}:{port}"\nheader = "authorization"\n'
                f'value = "Bearer ${{file:{place}/key}}"\n[inspect.prices.m]\ninput = 1.0\n'
            )
            config = load_config(place / "agentfw.toml")
            runtime = runtimes[name] = Runtime(asyncio.get_running_loop(), load_plugins(plugins.split(","), config), config)
            await runtime.start()
            agent = Agent(f"agent-{number}", name, {"team": "red"}, capture="capture" in plugins)
            await runtime.admit(agent)
            clients[name] = ThroughPath(runtime, port, agent)
        try:
            for client in clients.values():
                await client.open()
                for _ in range(50):
                    await client.call()
            cpu: dict[str, list[float]] = {name: [] for name in clients}
            order = list(clients.items())
            for _ in range(max(1, options.calls // BLOCK)):
                order = [*order[1:], order[0]]
                for name, client in order:
                    began = time.process_time()
                    for _ in range(BLOCK):
                        await client.call()
                    await asyncio.sleep(WRITTEN)
                    cpu[name].append((time.process_time() - began) / BLOCK)
        finally:
            for client in clients.values():
                with contextlib.suppress(AttributeError):
                    await client.close()
            for runtime in runtimes.values():
                await runtime.stop()
    base = cpu["without"]
    for name, values in cpu.items():  # each block against the one of the same round, since others use this machine, too
        more = statistics.median(value - without for value, without in zip(values, base, strict=True))
        print(f"{name:14} {statistics.median(values) * 1e6:7.1f} us CPU a call   {more * 1e6:+6.1f} us")


async def hooks(calls: int = 20_000) -> None:
    """One after the other, nothing in between."""
    agent, where = make_agent("bench", team="red"), Destination.make("https", HOST)
    exchange = ExchangeReport(
        exchange=1, destination=where, method="POST", target="/v1/chat/completions", status=200, bytes_up=100, bytes_down=500,
        started=1.0, first_byte=0.01, seconds=0.02, connected=0.001,
    )  # fmt: skip
    call = ModelCall(
        exchange=1, provider="openai", operation="chat", destination=where, requested_model="m", model="m", streamed=False,
        status=200, started=1.0, seconds=0.02, first_token=None, input_tokens=10, output_tokens=20,
    )  # fmt: skip
    decision = Decision(allowed=True, rule="policy.allow: api.openai.com", plugin="policy")
    with tempfile.TemporaryDirectory() as directory:
        for events in ((), ("decisions", "exchanges", "model_calls")):
            plugin = Plugin(Config(f"{directory}/audit.jsonl", events=events, agent_burst=1 << 40, buffer_bytes=1 << 32))  # type: ignore[arg-type]
            runtime = make_runtime(plugin)
            await runtime.start()
            plugins = runtime.plugins
            told: dict[str, Callable[[], None]] = {
                "decided": lambda p=plugins: p.decided(agent, where, decision),  # type: ignore[misc]
                "exchange_end": lambda p=plugins: p.exchange_end(agent, exchange),  # type: ignore[misc]
                "model_call": lambda p=plugins: p.model_call(agent, call),  # type: ignore[misc]
            }
            for name, tell in told.items():
                began = time.process_time()
                for _ in range(calls):
                    tell()
                plugins.later.deliver()
                took = (time.process_time() - began) / calls
                print(f"{name:14} {took * 1e6:7.2f} us{'' if events else '   (not wanted)'}")
            await runtime.stop()


def query(lines: int) -> None:
    """As a command, into nothing."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "audit.jsonl"
        line = (
            '{"time":%.6f,"event":"exchange","agent_id":"7k2m9q4d1x-%d","agent":"crawl","labels":{"tenant":"red"},"destination":'
            '"https://api.openai.com:443","method":"POST","target":"/v1/chat/completions","status":200,"bytes_up":100,'
            '"bytes_down":500,"seconds":0.0123,"exchange":%d,"first_byte":0.01}\n'
        )
        with log.open("w") as file:
            for number in range(lines):
                file.write(line % (1764500000 + number / 1000, number % 1000, number))
        size = log.stat().st_size
        for title, arguments in {
            "a filter that fits nothing": ["--agent", "nobody"],
            "one agent of 1,000, as JSON lines": ["--agent", "7k2m9q4d1x-7", "--format", "jsonl"],
            "counts by agent": ["--by", "agent_id"],
            "all, as a table": [],
        }.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "agentfw", "audit", "query", "--file", str(log), *arguments]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "AGENTFW_NO_PROGRESS": "1"})
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(f"query, {title:34} {size / took / 1e6:6.0f} MB/s of CPU time   at most {after.ru_maxrss / 1024:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--lines", type=int, default=500_000)
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(theirs,))
    server.start()
    try:
        ports, authorities = ours.recv()
        uvloop.run(path(options, ports[0], authorities[0]))
    finally:
        ours.send(None)
        server.join(10)
    uvloop.run(hooks())
    query(options.lines)


if __name__ == "__main__":
    main()
