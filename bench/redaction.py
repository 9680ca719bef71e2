"""Looking for secrets in what servers send: 50 values of 56 characters, in all forms, in pieces of 64 KiB; beside one `re`
alternation of the values alone. And what it costs for a stream's event and for a request's head. Medians of 7 runs.

    python bench/redaction.py [--json]
"""

from __future__ import annotations

import base64
import json
import random
import re
import statistics
import string
import time
from collections.abc import Callable
from functools import partial

import common
from agentfw import Destination, Headers, RequestHead, ResponseHead, TlsInfo
from agentfw.testing import make_agent
from agentfw_credentials import Config, Plugin, RuleConfig
from agentfw_credentials.redact import Redactor
from agentfw_credentials.search import Needles

RUNS = 7
VALUES = 50
PIECE = 65536


def per_call(function: Callable[[], object], calls: int) -> float:
    """Nanoseconds of this thread's time, the median of RUNS: it computes only, and the machine may be busy."""
    runs = []
    for _ in range(RUNS):
        start = time.thread_time_ns()
        for _ in range(calls):
            function()
        runs.append((time.thread_time_ns() - start) / calls)
    return statistics.median(runs)


def speed(function: Callable[[], object]) -> float:
    """MB/s of a call that looks through one piece."""
    start = time.thread_time_ns()
    function()
    once = time.thread_time_ns() - start
    return PIECE * 1000 / per_call(function, max(1, 20_000_000 // once))


def texts(draw: random.Random) -> dict[str, bytes]:
    words = ["The quick brown fox jumps over the lazy dog", "while the model streams its answer"]
    event = json.dumps({"choices": [{"index": 0, "delta": {"content": " ".join(words)}, "finish_reason": None}]})
    made = {
        "streamed JSON": f"data: {event}\n\n",
        "JSON in JSON": json.dumps(event) + "\n",
        "base64": base64.b64encode(draw.randbytes(48_000)).decode(),
        "every byte percent-encoded": "".join(f"%{byte:02x}" for byte in draw.randbytes(1000)),
    }
    return {name: (text.encode() * (PIECE // len(text) + 1))[:PIECE] for name, text in made.items()}


def main() -> None:
    options = common.parser(__doc__, "--json: one object instead of the table").parse_args()
    draw = random.Random(1)
    letters = string.ascii_letters + string.digits + "_-"
    values = ["".join(draw.choices(letters, k=56)) for _ in range(VALUES)]
    prefixed = [f"sk-proj-{value[8:]}" for value in values]
    needles = Needles(value.encode() for value in values)
    redact = Redactor(lambda: needles, lambda number: None)
    few = Needles([values[0].encode()])
    one = Redactor(lambda: few, lambda number: None)
    found: dict[str, float] = {}
    data = texts(draw)
    for name, piece in data.items():
        found[f"{VALUES} values, {name}, MB/s"] = speed(partial(redact, piece, True))
        found[f"one value, {name}, MB/s"] = speed(partial(one, piece, True))
    text = data["streamed JSON"]
    for name, plain in (("with a common prefix", prefixed), ("without one", values)):
        pattern = re.compile("|".join(map(re.escape, plain)).encode())
        what = f"re alternation of {VALUES} values {name}, as they are only, streamed JSON, MB/s"
        found[what] = speed(partial(pattern.sub, b"", text))
    event = text[: text.index(b"\n\n") + 2]
    found["one event of a stream, µs"] = per_call(partial(redact, event, False), 2000) / 1000

    rules = tuple(RuleConfig(f"api{number}.example", "authorization", f"Bearer {value}") for number, value in enumerate(values))
    plugin = Plugin(Config(rule=rules), {})
    agent, where = make_agent(), Destination.make("https", "api7.example")
    info = TlsInfo("TLSv1.3", ("c", "TLSv1.3", 256), None, b"", True)
    usual = [("Accept", "application/json"), ("Content-Type", "application/json"), ("User-Agent", "OpenAI/Python 2.3.0"),
             ("Authorization", "Bearer sk-agentfw-placeholder"), *((f"X-Stainless-{n}", "value") for n in range(8))]  # fmt: skip

    def request() -> None:
        plugin.request(agent, where, RequestHead("POST", "/v1/chat/completions", Headers(usual)), info)

    sent = RequestHead("POST", "/v1/chat/completions", Headers(usual))
    plugin.request(agent, where, sent, info)
    told = [("Content-Type", "text/event-stream"), *((f"X-RateLimit-{n}", "12345") for n in range(10))]

    def response() -> None:
        plugin.response(agent, where, sent, ResponseHead(200, "OK", Headers(told)))

    found["the request hook, µs"] = per_call(request, 500) / 1000
    found["the response hook, µs"] = per_call(response, 500) / 1000
    if options.json:
        print(json.dumps(found))
        return
    for name, number in found.items():
        print(f"{name:95} {number:10.1f}")


if __name__ == "__main__":
    main()
