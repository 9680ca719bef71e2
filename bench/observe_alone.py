"""What seeing everything costs a worker's path alone: calls in one process by callers at once, with and without who watches.

    python bench/observe_alone.py [--calls 8000] [--callers 16]

A runtime each: without, with `inspect`, with the dashboard too, with all of `audit` too, and the last one once more, but told
all at once instead of a moment later (`later_hooks`). Short blocks of calls take turns; CPU time is this process's, both ends of
the calls included, the model server's not. Of each the twentieth part that took least counts: others use the machine, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import random
import tempfile
import time
from pathlib import Path
from typing import get_args

import uvloop
from agentfw import Agent
from agentfw.config import load_config
from agentfw.plugins import load_plugins
from agentfw.runtime import Runtime
from agentfw_audit.config import Kind
from path import HOST, KEY, ThroughPath, all_told, serve

PLAIN = "dns,tls,policy,credentials,native"
SIDES = {
    "without": PLAIN,
    "inspect": f"{PLAIN},inspect",
    "+ dashboard": f"{PLAIN},inspect,dashboard",
    "+ audit": f"{PLAIN},inspect,dashboard,audit",
    "told at once": f"{PLAIN},inspect,dashboard,audit",
}
BLOCK = 8
"""Calls of each caller in a block."""


async def block(runtime: Runtime, clients: list[ThroughPath], calls: int) -> float:
    """CPU seconds of a call, with all that its plugins are told later."""

    async def one(client: ThroughPath) -> None:
        for _ in range(calls):
            await client.call()

    began = time.process_time()
    await asyncio.gather(*map(one, clients))
    await all_told(runtime)
    return (time.process_time() - began) / calls / len(clients)


async def compare(port: int, ca: str, options: argparse.Namespace) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {name: [] for name in SIDES}
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "ca.pem").write_text(ca)
        (place / "key").write_text(KEY)
        async with contextlib.AsyncExitStack() as stack:
            clients: dict[str, list[ThroughPath]] = {}
            runtimes: dict[str, Runtime] = {}
            for number, (name, plugins) in enumerate(SIDES.items()):
                (place / "agentfw.toml").write_text(
                    f'[dns]\nhosts = {{"{HOST}" = "127.0.0.1"}}\n[tls]\nca_files = ["ca.pem"]\nshared = ["{HOST}"]\n'
                    f'[policy]\nallow = ["{HOST}"]\nallow_addresses = ["127.0.0.1/32"]\n[dashboard]\nlisten = ""\n'
                    f'[audit]\nfile = "audit-{number}.jsonl"\nevents = {json.dumps(get_args(Kind))}\n'
                    f'[[credentials.rule]]\nhost = "{HOST}:{port}"\nheader = "authorization"\n'
                    f'value = "Bearer ${{file:{place}/key}}"\n[inspect.prices.m]\ninput = 1.0\n'
                )
                config = load_config(place / "agentfw.toml")
                runtime = Runtime(asyncio.get_running_loop(), load_plugins(plugins.split(","), config), config)
                await runtime.start()
                stack.push_async_callback(runtime.stop)
                if name == "told at once":
                    runtime.plugins.later.end()
                agents = [Agent(f"{number}-{caller}", f"agent-{caller}", {"team": "red"}) for caller in range(options.callers)]
                clients[name] = [ThroughPath(runtime, port, agent) for agent in agents]
                for agent in agents:
                    await runtime.plugins.admit(agent)
                for client in clients[name]:
                    await client.open()
                    stack.push_async_callback(closed, client)
                runtimes[name] = runtime
                await block(runtime, clients[name], 30)
            order = random.Random(1)
            for _ in range(max(6, options.calls // BLOCK // options.callers)):
                for name in order.sample(list(SIDES), len(SIDES)):  # who follows itself would find its own in the caches
                    took[name].append(await block(runtimes[name], clients[name], BLOCK))
    return took


async def closed(client: ThroughPath) -> None:
    with contextlib.suppress(AttributeError):
        await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=8000, help="through each runtime")
    parser.add_argument("--callers", type=int, default=16)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        ports, authorities = ours.recv()
        took = uvloop.run(compare(ports[0], authorities[0], options))
    finally:
        ours.send(None)
        process.join(5)
        if process.is_alive():
            process.terminate()
    least = {name: sorted(found)[len(found) // 20] for name, found in took.items()}
    for name, seconds in least.items():
        print(f"{name:14} {1e6 * seconds:6.1f} us CPU a call, {1e6 * (seconds - next(iter(least.values()))):+6.1f} us")


if __name__ == "__main__":
    main()
