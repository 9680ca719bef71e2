"""What the fleet's agents talk to, all on 127.0.0.1: a model server in its own process, a name server; and pools beside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from agentfw import Pool
from agentfw.mock_dns import MockDNSThread

HOST = "api.openai.com"
TTL = 900
"""Seconds: longer than any phase, so that one query is all that there need be."""
GUEST = Path(__file__).parents[1] / "guest"

CONFIG = """\
[policy]
allow = ["{host}:{port}"]
allow_addresses = ["127.0.0.1/32"]

[dns]
upstream = ["{dns}"]

[tls]
ca_files = ["{ca}"]
shared = ["{host}:{port}"]

[[credentials.rule]]
host = "{host}:{port}"
header = "authorization"
value = "Bearer ${{env:MODEL_KEY}}"
"""

SDK: dict[str, Any] = {"preload": ["openai", "fleet_preload"], "mount": [str(GUEST)], "env": {"PYTHONPATH": str(GUEST)}}
"""The template "sdk": the SDK, and a module that uses it once."""


class World:
    """Open while the benchmark runs."""

    def __init__(self, directory: Path, server: subprocess.Popen[str], port: int, dns: MockDNSThread, workers: int) -> None:
        self.directory, self.server, self.port, self.dns, self.workers = directory, server, port, dns, workers
        self.env = {"OPENAI_BASE_URL": f"https://{HOST}:{port}/v1", "OPENAI_API_KEY": "sk-agentfw-placeholder"}
        self._tls = ssl.create_default_context(cafile=directory / "ca.pem")

    def pool(self, **keys: Any) -> Pool:
        """As an operator would start it: worker processes, unless `workers=None`. `sdk`: VMs warm of that template."""
        templates = {"sdk": {**SDK, "idle": keys.pop("sdk", 0)}}
        return Pool(self.directory / "agentfw.toml", **{"workers": self.workers, "templates": templates, **keys})

    def agent(self, hold: bool, seconds: float = 0, interval: float = 0) -> list[str]:
        """Arguments of fleet_agent.py."""
        return [HOST, str(self.port), str(int(hold)), str(seconds), str(interval)]

    def served(self) -> dict[str, Any]:
        """The model server's counters."""
        with urllib.request.urlopen(f"https://localhost:{self.port}/_mock/stats", context=self._tls, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


@contextlib.contextmanager
def world(directory: Path, workers: int, latency: float) -> Iterator[World]:
    key = "sk-mock-" + secrets.token_hex(16)
    os.environ["MODEL_KEY"] = key
    command = [sys.executable, "-P", "-m", "agentfw", "mock-llm", "--json", "--key", key, "--ca-out", str(directory / "ca.pem"),
               "--latency", str(latency), "--idle-timeout", "600"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, MockDNSThread({HOST: "127.0.0.1"}) as dns:
        dns.set(HOST, "A", "127.0.0.1", ttl=TTL)
        try:
            assert server.stdout is not None
            port = json.loads(server.stdout.readline())["port"]
            (directory / "agentfw.toml").write_text(CONFIG.format(host=HOST, port=port, dns=dns.address, ca=directory / "ca.pem"))
            yield World(directory, server, port, dns, workers)
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()


async def settled(seconds: float = 1.0) -> None:
    """What ended gives its memory back, what was begun is done."""
    await asyncio.sleep(seconds)


async def paced(rate: float, count: int) -> AsyncIterator[int]:
    """0, 1, ... at this rate a second; who is late does not wait."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    for number in range(count):
        await asyncio.sleep(max(0.0, start + number / rate - loop.time()))
        yield number
