"""OpenTelemetry traces: a span a job, a child of it a model call, sent to a collector by OTLP over HTTP.

    [otel]
    endpoint = "http://127.0.0.1:4318"

Needs packages of its own: `pip install 'agentfw[otel]'`. Spans wait in a bounded queue and are sent by a thread: what that cannot
keep up with is dropped, and counted; no agent waits for it. They hold names, durations, tokens and how it ended; never a header
or a byte of a body.
"""

from .config import Config
from .plugin import Plugin

__all__ = ["Config", "Plugin"]
