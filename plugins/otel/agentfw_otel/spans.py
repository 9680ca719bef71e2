"""What spans say of jobs and model calls. Imports OpenTelemetry."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from importlib.metadata import version

from agentfw import Agent, AgentfwError, ExitReport
from agentfw.model_calls import ModelCall
from agentfw.reports import AuditEvent, DispatchReport, shown
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from . import names
from .config import Config
from .sending import Sending, Way

MAX_EVENTS = 64
"""Of a job; OpenTelemetry counts what is dropped."""
MAX_TEXT = 512
MAX_MODEL = 128
MAX_LABELS = 32
MAX_PARENT = 512
HIDDEN = "(hidden)"

_propagator = TraceContextTextMapPropagator()


class Spans:
    """A provider of its own: a program that embeds a pool may have another, for itself. What ends goes `way`."""

    def __init__(self, config: Config, way: Way) -> None:
        self.sending = Sending(config)
        self.begun = 0
        self.redact: Callable[[bytes], bytes] | None = None
        """Masks what nobody must see."""
        self._labels = config.labels
        self._parent_label = config.parent_label
        self._provider = TracerProvider(
            sampler=_sampler(config),  # None: as OTEL_TRACES_SAMPLER says
            resource=_resource(config),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_events=MAX_EVENTS, max_span_attributes=128, max_attribute_length=MAX_TEXT),
        )
        self._provider.add_span_processor(way)
        self._tracer = self._provider.get_tracer("agentfw", version("agentfw"))

    def job(self, agent: Agent) -> Span:
        """Begins now."""
        labels = agent.labels if self._labels is None else [name for name in self._labels if name in agent.labels]
        chosen = [name for name in sorted(labels) if name != self._parent_label][:MAX_LABELS]
        texts = {f"agentfw.label.{shown(name, 64)}": agent.labels[name] for name in chosen}
        texts = self.clean({names.AGENT_NAME: agent.name, names.AGENT_ID: agent.id, **texts})
        span = self._tracer.start_span(
            f"{names.INVOKE_AGENT} {texts.get(names.AGENT_NAME, '')}".rstrip(),
            context=self.parent(agent.labels),
            kind=SpanKind.INTERNAL,
            attributes={names.OPERATION: names.INVOKE_AGENT, **texts},
        )
        self.begun += span.is_recording()
        return span

    def parent(self, labels: Mapping[str, str]) -> Context:
        """What a job's label says that it belongs to; nothing, if that is no `traceparent` (W3C Trace Context, 3.2)."""
        text = labels.get(self._parent_label, "")
        return _propagator.extract({"traceparent": text}, Context()) if 0 < len(text) <= MAX_PARENT else Context()

    def clean(self, texts: Mapping[str, str]) -> dict[str, str]:
        """Others' words as they may be shown: cut, printable, without secrets; those that are empty are left out."""
        found = {name: shown(text, MAX_TEXT) for name, text in texts.items() if text}
        if self.redact is None or not found:
            return found
        parts = [text.encode() for text in found.values()]
        whole = b"\n".join(parts)
        try:
            masked = self.redact(whole)
        except AgentfwError:
            return dict.fromkeys(found, HIDDEN)
        if masked == whole:
            return found
        at = 0
        for name, part in zip(found, parts, strict=True):
            found[name] = masked[at : at + len(part)].decode(errors="replace")
            at += len(part) + 1
        return found

    def dispatched(self, span: Span, report: DispatchReport) -> None:
        if not span.is_recording():
            return
        facts = {"agentfw.job.id": report.job, "agentfw.tenant": report.tenant, "agentfw.template": report.template,
                 "agentfw.parent.id": report.parent}  # fmt: skip
        span.set_attributes(self.clean(facts))
        if report.worker is not None:
            span.set_attribute("agentfw.worker", report.worker)
        span.add_event("dispatched", {"agentfw.queued_seconds": report.queued, "agentfw.dispatch_seconds": report.dispatch})

    def denied(self, span: Span, event: AuditEvent) -> None:
        facts = {"agentfw.destination": event.destination, "agentfw.rule": event.rule, "agentfw.plugin": event.plugin,
                 "agentfw.reason": event.reason}  # fmt: skip
        span.add_event(f"agentfw.{event.kind}", self.clean(facts))

    def call(self, job: Span, call: ModelCall, now: float) -> None:
        """One that is over, perhaps for a moment: who tells of it may be told later itself. `now`: as `call.started`."""
        if not job.is_recording():
            return
        operation = names.OPERATIONS.get(call.operation, shown(call.operation, 64))
        texts = {
            names.REQUEST_MODEL: call.requested_model[:MAX_MODEL],
            names.RESPONSE_MODEL: call.model[:MAX_MODEL],
            names.ERROR_TYPE: call.error_type[:MAX_MODEL],
            names.SERVER_ADDRESS: call.destination.host,
            "error": call.error,
        }
        texts = self.clean(texts)
        error = texts.pop("error", None)
        attributes: dict[str, str | int | float | bool | None] = {
            names.OPERATION: operation,
            names.PROVIDER: shown(names.provider(call.provider, call.destination.host), 64),
            names.REQUEST_STREAM: call.streamed or None,
            names.FIRST_CHUNK: call.first_token,
            names.INPUT_TOKENS: call.input_tokens,
            names.OUTPUT_TOKENS: call.output_tokens,
            names.CACHE_READ: call.cache_read_tokens or None,
            names.CACHE_WRITE: call.cache_write_tokens or None,
            names.REASONING: call.reasoning_tokens,
            names.SERVER_PORT: call.destination.port,
            names.STATUS: call.status or None,
            "agentfw.cost": call.cost,
            "agentfw.currency": call.currency,
            "agentfw.usage.estimated": call.estimated or None,
            **texts,
        }
        end = time.time_ns() - int(max(0.0, now - call.started - call.seconds) * 1e9)
        span = self._tracer.start_span(
            f"{operation} {texts.get(names.REQUEST_MODEL, '')}".rstrip(),
            context=set_span_in_context(job, Context()),
            kind=SpanKind.CLIENT,
            attributes={name: value for name, value in attributes.items() if value is not None and value != ""},
            start_time=end - int(max(0.0, call.seconds) * 1e9),
        )
        if call.failed:
            span.set_status(Status(StatusCode.ERROR, error))
        self.begun += span.is_recording()
        span.end(end)

    def exit(self, span: Span, report: ExitReport, up: int, down: int, began: int) -> None:
        """`began`: as for `end()`."""
        if span.is_recording():
            span.set_attributes({"agentfw.exit.kind": report.kind, "agentfw.bytes_up": up, "agentfw.bytes_down": down})
            if report.kind == "code":
                span.set_attribute(names.EXIT_CODE, report.code)
            if report.signal:
                span.set_attribute("agentfw.exit.signal", report.signal)
            if report.kind != "code" or report.code:
                span.set_attribute(names.ERROR_TYPE, report.kind if report.kind != "code" else "exit_code")
                span.set_status(Status(StatusCode.ERROR, self.clean({"text": report.text}).get("text")))
        self.end(span, began)

    @staticmethod
    def end(span: Span, began: int) -> None:
        """`began`: time.monotonic_ns() then. The clock may have been set since, and a span that ends before it begins is thrown
        away, or lasts for centuries."""
        passed = time.monotonic_ns() - began
        span.end(span.start_time + passed if isinstance(span, ReadableSpan) and span.start_time is not None else None)

    @staticmethod
    def traceparent(span: Span) -> str:
        """For who is to be its child; "" if there is none."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, set_span_in_context(span, Context()))
        return carrier.get("traceparent", "")


def _sampler(config: Config) -> Sampler | None:
    return None if config.sample is None else ParentBased(TraceIdRatioBased(config.sample))


def _resource(config: Config) -> Resource:
    attributes = {SERVICE_VERSION: version("agentfw"), "service.instance.id": str(uuid.uuid4()), **config.resource}
    if config.service is not None:
        attributes[SERVICE_NAME] = config.service
    elif not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        attributes.setdefault(SERVICE_NAME, "agentfw")
    return Resource.create(attributes)
