"""What `inspect` and `audit` add to a model call, in one run with calls that do not meet them; and how fast streams are read.

    python bench/inspection.py [--calls 3000]

Three runtimes in one process, blocks of calls taking turns: without, with `inspect`, with `inspect` and `audit`. CPU is that of
this process: client, runtime and the log's thread. Then the hooks of `inspect` alone. Then streams and documents through the
reader, in pieces as TLS gives them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

import uvloop
from agentfw import Agent, Destination, Headers, RequestHead, ResponseHead
from agentfw.config import load_config
from agentfw.plugins import load_plugins
from agentfw.reports import ExchangeReport
from agentfw.runtime import Runtime
from agentfw_inspect import Config, Plugin
from agentfw_inspect.bodies import ResponseWatch
from agentfw_inspect.reading import Reading
from path import BODY, HOST, KEY, ThroughPath, all_told, serve

PLAIN = "dns,tls,policy,credentials,native"
SIDES = {"without": PLAIN, "inspect": f"{PLAIN},inspect", "+ audit": f"{PLAIN},inspect,audit"}
PIECE = 16384


async def path(options: argparse.Namespace, port: int, ca: str) -> None:
    """Calls through whole runtimes."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "ca.pem").write_text(ca)
        (place / "key").write_text(KEY)
        runtimes: dict[str, Runtime] = {}
        clients: dict[str, ThroughPath] = {}
        for name, plugins in SIDES.items():
            (place / "agentfw.toml").write_text(
                f'[dns]\nhosts = {{"{HOST}" = "127.0.0.1"}}\n[tls]\nca_files = ["ca.pem"]\nshared = ["{HOST}"]\n'
                f'[policy]\nallow = ["{HOST}"]\nallow_addresses = ["127.0.0.1/32"]\n[audit]\nfile = "audit.jsonl"\n'
                f'[[credentials.rule]]\nhost = "{HOST}:{port}"\nheader = "authorization"\n'
                f'value = "Bearer ${{file:{place}/key}}"\n[inspect.prices.m]\ninput = 1.0\n'
            )
            config = load_config(place / "agentfw.toml")
            runtime = runtimes[name] = Runtime(asyncio.get_running_loop(), load_plugins(plugins.split(","), config), config)
            await runtime.start()
            clients[name] = ThroughPath(runtime, port, Agent(name, name, {"team": "red"}))
        try:
            for client in clients.values():
                await client.open()
                for _ in range(50):
                    await client.call()
            times: dict[str, list[float]] = {name: [] for name in clients}
            cpu: dict[str, list[float]] = {name: [] for name in clients}
            for _ in range(max(1, options.calls // 20)):
                for name, client in clients.items():
                    began = time.process_time()
                    for _ in range(20):
                        start = time.perf_counter()
                        await client.call()
                        times[name].append(time.perf_counter() - start)
                    await all_told(runtimes[name])
                    cpu[name].append((time.process_time() - began) / 20)
            assert runtimes["+ audit"].statistics()["inspect.calls"] == len(times["+ audit"]) + 50
        finally:
            for client in clients.values():
                with contextlib.suppress(AttributeError):
                    await client.close()
            for runtime in runtimes.values():
                await runtime.stop()
    base, base_cpu = statistics.median(times["without"]), statistics.median(cpu["without"])
    for name, seconds in times.items():
        middle, used = statistics.median(seconds), statistics.median(cpu[name])
        p99 = sorted(seconds)[int(len(seconds) * 0.99)]
        cpu_text = f"CPU {1e6 * used:6.1f} us, {1e6 * (used - base_cpu):+6.1f} us, ratio {used / base_cpu:.3f}"
        text = f"p50 {1000 * middle:7.3f} ms   p99 {1000 * p99:7.3f} ms   ratio {middle / base:.3f}"
        print(f"{name:8}  {text}   {cpu_text}   ({len(seconds)} calls)")


ANSWER = json.dumps({
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "echo: hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6, "prompt_tokens_details": {"cached_tokens": 0}},
}).encode()  # fmt: skip


def hooks(calls: int) -> None:
    """One call's hooks, without any I/O."""
    plugin = Plugin(Config())
    plugin._clock = time.monotonic
    agent, destination = Agent("a", "a", {"team": "red"}), Destination("https", HOST, 443)
    sent = Headers([("content-length", str(len(BODY))), ("accept-encoding", "gzip, deflate")])
    got = Headers([("Content-Type", "application/json"), ("x-ratelimit-remaining-tokens", "5"), ("x-request-id", "r")])
    took = []
    for number in range(calls):
        request = RequestHead("POST", "/v1/chat/completions", sent.copy(), exchange=number)
        response = ResponseHead(200, "OK", got)
        start = time.perf_counter()
        plugin.request(agent, destination, request)
        for transform in request.transforms:
            transform(BODY, True)
        plugin.response(request, response)
        for observer in response.observers:
            observer(ANSWER, True)
        report = ExchangeReport(
            exchange=number,
            destination=destination,
            method="POST",
            target="/v1/chat/completions",
            status=200,
            bytes_up=len(BODY),
            bytes_down=len(ANSWER),
            started=start,
            first_byte=0.001,
            seconds=0.002,
        )
        plugin.exchange_end(agent, report)
        took.append(time.perf_counter() - start)
    assert plugin.statistics()["input_tokens"] == 4 * calls
    print(f"the hooks of inspect alone: {1e6 * statistics.median(took):.1f} us a call")


def read(kind: str, operation: str, body: bytes, piece: int, seconds: float) -> tuple[float, float]:
    """(MB/s, events/s) of one reader."""
    pieces = [body[i : i + piece] for i in range(0, len(body), piece)]
    rounds, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        watch = ResponseWatch("anthropic" if operation == "message" else "openai", operation, False, Reading(), time.monotonic)
        watch.begin(kind, [])
        for each in pieces:
            watch(each, False)
        watch(b"", True)
        assert watch.reading.output == 7, watch.reading.output
        rounds += 1
    return rounds * len(body) / spent / 1e6, rounds * body.count(b"\n\n") / spent


def streams(seconds: float) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 7}
    choice = {"index": 0, "delta": {"content": " token"}, "logprobs": None, "finish_reason": None}
    chunk = {"id": "chatcmpl-0123456789abcdef01234567", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m",
             "service_tier": "default", "system_fingerprint": "fp_mock", "choices": [choice], "usage": None}  # fmt: skip
    chat = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in [chunk] * 4000 + [{**chunk, "usage": usage}])
    wide = {**chunk, "choices": [{**choice, "delta": {"content": "x" * 4000}}]}
    large = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in [wide] * 400 + [{**chunk, "usage": usage}])
    delta = {"index": 0, "delta": {"type": "text_delta", "text": " token"}}
    kinds = [("content_block_delta", delta)] * 4000 + [("message_delta", {"delta": {}, "usage": {"output_tokens": 7}})]
    message = b"".join(f"event: {kind}\ndata: {json.dumps({'type': kind, **facts})}\n\n".encode() for kind, facts in kinds)
    document = json.dumps({"model": "m", "choices": [{"message": {"content": "x" * 500_000}}], "usage": usage}).encode()
    embedding = json.dumps({"data": [{"embedding": "A" * 8192}] * 1000, "model": "m", "usage": usage}).encode()
    event_kind = "text/event-stream"
    for name, kind, operation, body in (
        ("chat events, a token each", event_kind, "chat", chat),
        ("chat events of 4 KB", event_kind, "chat", large),
        ("message events, a token each", event_kind, "message", message),
        ("a document of 500 KB", "application/json", "chat", document),
        ("embeddings, 8 MB", "application/json", "embedding", embedding),
    ):
        speed, events = read(kind, operation, body, PIECE, seconds)
        print(f"{name:30} {speed:7.0f} MB/s" + (f"   {events:9,.0f} events/s" if kind == event_kind else ""))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=3000, help="through each runtime")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each reader")
    arguments = parser.parse_args()
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        ports, authorities = ours.recv()
        uvloop.run(path(arguments, ports[0], authorities[0]))
    finally:
        ours.send(None)
        process.join(5)
        if process.is_alive():
            process.terminate()
    hooks(20_000)
    streams(arguments.seconds)
