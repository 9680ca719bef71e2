"""Traces of an agent in a real VM: what it is told of its span, and what the collector is."""

from __future__ import annotations

import pytest
from agentfw.testing import FakeServer, Response, run_agent
from agentfw_inspect import Config as InspectConfig
from agentfw_inspect import Plugin as Inspect
from agentfw_otel import Config, Plugin

from ..otel.collector import collecting, values

pytestmark = pytest.mark.kvm

TRACE = "0af7651916cd43dd8448eb211c80319c"
AGENT = """
import json, os, urllib.request
ask = urllib.request.Request("https://api.openai.com/v1/chat/completions", json.dumps({"model": "gpt-4o"}).encode())
print(json.load(urllib.request.urlopen(ask))["usage"]["total_tokens"], os.environ["TRACEPARENT"])
raise SystemExit(3)
"""


def test_a_job_its_call_and_its_end() -> None:
    usage = b'{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}'
    body = b'{"object":"chat.completion","model":"gpt-4o","choices":[],"usage":' + usage + b"}"
    server = FakeServer(lambda request: Response(200, {"content-type": "application/json"}, body))
    with collecting() as collector:
        otel = Plugin(Config(endpoint=collector.url, propagate=True))
        labels = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        run = run_agent(AGENT, plugins=[otel, Inspect(InspectConfig()), server], labels=labels)
        assert run.status == 3, run
    job, call = sorted(collector.spans, key=lambda span: span.kind)
    assert run.stdout == f"9 00-{TRACE}-{job.span_id.hex()}-01\n"
    assert job.name.startswith("invoke_agent ") and call.name == "chat gpt-4o"
    assert job.trace_id.hex() == call.trace_id.hex() == TRACE and call.parent_span_id == job.span_id
    assert job.start_time_unix_nano < call.start_time_unix_nano < call.end_time_unix_nano < job.end_time_unix_nano
    assert values(call.attributes)["gen_ai.usage.output_tokens"] == 2
    found = values(job.attributes)
    assert found["process.exit.code"] == 3 and found["agentfw.bytes_up"] > 100
    assert [event.name for event in job.events] == ["dispatched"]
