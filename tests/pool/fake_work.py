"""What agents do, told to the plugins' hooks as the core would: for tests without VMs."""

from __future__ import annotations

import time
from typing import Any

from agentfw import dns_wire
from agentfw.agents import Agent
from agentfw.destination import Destination
from agentfw.model_calls import ModelCall
from agentfw.reports import AuditEvent, ExchangeReport, FlowReport, QuestionReport

HOST = "api.example"


def do(runtime: Any, agent: Agent, what: str, times: int = 1) -> None:
    """`what`: "ask", "get", "call", "deny" or "connect"."""
    for number in range(times):
        _DOINGS[what](runtime, agent, number)


def question(name: str, *, rcode: int = 0, seconds: float = 0.001, rule: str = "", error: str = "") -> QuestionReport:
    query = dns_wire.make_query("asked.example", dns_wire.A)
    read = dns_wire.parse_query(query)
    reply = dns_wire.make_error(query, read, rcode) if rcode else dns_wire.make_reply(query, read, [("192.0.2.7", 60)])
    return QuestionReport(
        name=name, qtype=1, rcode=rcode, reply=reply, began=time.perf_counter() - seconds, seconds=seconds, error=error,
        denied_rule=rule,
    )  # fmt: skip


def exchange(host: str = HOST, target: str = "/v1?q=1", **more: Any) -> ExchangeReport:
    fields: dict[str, Any] = {
        "exchange": 1, "destination": Destination("https", host, 443), "method": "GET", "target": target, "status": 200,
        "bytes_up": 10, "bytes_down": 1000, "started": 0.0, "first_byte": 0.02, "seconds": 0.03,
        "began": time.perf_counter() - 0.03, "connected": 0.004, "reused": True,
    }  # fmt: skip
    return ExchangeReport(**{**fields, **more})


def call(**more: Any) -> ModelCall:
    fields: dict[str, Any] = {
        "exchange": 1, "provider": "openai", "operation": "chat", "destination": Destination("https", HOST, 443),
        "requested_model": "m", "model": "m-1", "streamed": True, "status": 200, "started": 0.0, "seconds": 0.5,
        "first_token": 0.1, "input_tokens": 12, "output_tokens": 5, "cost": 0.25, "currency": "USD", "complete": True,
    }  # fmt: skip
    return ModelCall(**{**fields, **more})


def flow(**more: Any) -> FlowReport:
    fields: dict[str, Any] = {
        "kind": "http", "destination": Destination("https", HOST, 443), "port": 443, "bytes_up": 100, "bytes_down": 2000,
        "started": 0.0, "seconds": 1.0,
    }  # fmt: skip
    return FlowReport(**{**fields, **more})


def denial(agent: Agent, rule: str = "policy: nobody", host: str = "evil.example") -> AuditEvent:
    return AuditEvent.about("denied", agent, Destination("https", host, 443), rule=rule, plugin="policy", reason="not this one")


_DOINGS = {
    "ask": lambda runtime, agent, number: runtime.plugins.question_end(agent, question(f"n{number}.example")),
    "get": lambda runtime, agent, number: runtime.plugins.exchange_end(agent, exchange()),
    "call": lambda runtime, agent, number: runtime.plugins.model_call(agent, call()),
    "deny": lambda runtime, agent, number: runtime.audit(denial(agent)),
    "connect": lambda runtime, agent, number: runtime.plugins.flow_end(agent, flow()),
}
