"""A pool from Python: one agent, many inputs, an agent that is talked to while it runs, and what a failure looks like.

Starts a name server and a model server of its own, and a pool in this process; needs nothing else. With a pool that runs already
it would be `agentfw.Pool.connect()`. Exit status 1 if something is not as it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
import tempfile
from pathlib import Path

import agentfw
from agentfw.mock_dns import MockDNSThread
from agentfw.mock_llm import MockLLMThread, MockOptions

AGENT = Path(__file__).with_name("agent_stdlib.py")

TALK = agentfw.Code("""
import sys
for line in sys.stdin:
    print("you said", line.strip(), flush=True)
""")


def tables(port: int, dns: str, ca: Path) -> dict[str, object]:
    """What an agentfw.toml would say: whom agents may talk to, and which key goes into their requests."""
    host = f"api.openai.com:{port}"
    rule = {"host": host, "header": "authorization", "value": "Bearer ${env:MODEL_KEY}"}
    return {
        "policy": {"allow": [host], "allow_addresses": ["127.0.0.1/32"]},
        "dns": {"upstream": [dns]},
        "tls": {"ca_files": [str(ca)], "shared": [host]},
        "credentials": {"rule": [rule]},
    }


async def use(config: dict[str, object], port: int, questions: list[str]) -> list[str]:
    """-> what is wrong."""
    wrong = []
    env = {"OPENAI_BASE_URL": f"https://api.openai.com:{port}/v1", "OPENAI_API_KEY": "sk-agentfw-placeholder"}
    async with agentfw.Pool(config, size=8, idle=4) as pool:
        result = await pool.run(AGENT, ["Say", "hello."], env=env, timeout=60, check=True)
        print(f"one agent: {result.stdout.strip()} ({result.usage.seconds:.3f} s)")
        if "hello" not in result.stdout:
            wrong.append(f"no answer: {result!r}")

        async for result in pool.map(AGENT, questions, env=env, timeout=60):
            print(f"{result.input!r}: {result.stdout.strip() or result.stderr.strip()}")
            if result.input not in result.stdout:
                wrong.append(f"no answer to {result.input!r}: {result!r}")

        job = await pool.submit(TALK, interactive=True)
        await job.feed("one\n")
        await job.feed("two\n", end=True)
        said = [line async for line in job.lines()]
        print(f"a conversation: {said}")
        if said != ["you said one", "you said two"]:
            wrong.append(f"it said {said}")

        try:
            await pool.run(agentfw.Code("raise LookupError('nothing there')"), check=True)
            wrong.append("an agent that raises did not fail")
        except agentfw.JobFailed as error:
            print(f"a failure: {error}")
        try:
            await pool.run(agentfw.Code("while True: pass"), timeout=0.5, check=True)
            wrong.append("an agent without an end ended")
        except TimeoutError as error:
            print(f"a limit: {error}")

        metrics = await pool.metrics()
        print(f"{len(await pool.jobs())} jobs, {metrics.get('tls.handshakes', 0):.0f} TLS handshakes")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("questions", nargs="*", default=["Berlin", "Rome", "Oslo", "Lima", "Accra", "Hanoi"])
    options = parser.parse_args()
    os.environ["MODEL_KEY"] = key = "sk-mock-" + secrets.token_hex(16)
    with (
        tempfile.TemporaryDirectory(prefix="agentfw-example-") as name,
        MockDNSThread({"api.openai.com": "127.0.0.1"}) as dns,
        MockLLMThread(MockOptions(keys=(key,), latency=0.02)) as model,
    ):
        ca = Path(name, "ca.pem")
        ca.write_text(model.ca_pem)
        wrong = asyncio.run(use(tables(model.port, dns.address, ca), model.port, options.questions))
    for line in wrong:
        print("WRONG:", line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
