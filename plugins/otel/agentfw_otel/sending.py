"""Spans on their way out: a bounded queue, a thread, a collector. Imports OpenTelemetry.

BatchSpanProcessor has queue and thread. Around it: what is beyond its queue is dropped here and counted, where it would push out
others; failures are counted, and told in the log once in a while, without a URL, a header or an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import requests
from agentfw import ConfigError
from agentfw.addresses import is_loopback
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from .config import Config, is_private
from .headers import Source

BATCH = 512
TELL_SECONDS = 300.0
"""Between two complaints in the log."""
MAX_ANSWER = 64 << 10
"""Bytes of a collector's answer that are read."""

log = logging.getLogger("agentfw.otel")
_ours = threading.local()
"""`active`: what is logged in this thread right now is about our own sending."""
_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.sdk._shared_internal", "urllib3.connectionpool",
)  # fmt: skip


def _is_others(record: logging.LogRecord) -> bool:
    """A filter: a program that embeds a pool may use OpenTelemetry, too, and hears of its own failures. It stays: after a reload
    another sends."""
    return not getattr(_ours, "active", False)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    _ours.active = True
    try:
        yield
    finally:
        _ours.active = False


class _Session(requests.Session):
    """Goes nowhere else than told: headers for one server are not for another. Answers are bounded."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self.direct = False
        """Past proxies that variables name."""
        self.auth = lambda request: request  # or ~/.netrc would go before headers

    def request(self, method: str, url: Any, *args: Any, **keywords: Any) -> requests.Response:
        keywords["allow_redirects"] = False
        keywords["stream"] = True
        if self.direct:
            keywords["proxies"] = {"no_proxy": "*"}
        # A batch has a connection of its own: what of an answer is not read must not be the beginning of the next.
        keywords["headers"] = {**(keywords.get("headers") or {}), **self._source.now(), "Connection": "close"}
        response = super().request(method, url, *args, **keywords)
        try:
            response._content = response.raw.read(MAX_ANSWER, decode_content=False)
            response._content_consumed = True
        finally:
            response.raw.close()
        if response.is_redirect or 300 <= response.status_code < 400:
            raise requests.TooManyRedirects("the collector is somewhere else")
        return response


class _Exporter(SpanExporter):
    """Called by BatchSpanProcessor's thread."""

    def __init__(self, inner: OTLPSpanExporter, source: Source, session: _Session, place: str) -> None:
        self.taken = 0
        """Spans that were taken out of the queue; written by that thread only, as the others."""
        self.exported = 0
        self.failed = 0
        self._inner = inner
        self._source = source
        self._place = place
        self._told = 0
        self._told_at = -TELL_SECONDS
        self._status = 0
        session.hooks["response"].append(self._answered)

    def _answered(self, response: requests.Response, *args: Any, **keywords: Any) -> None:
        self._status = response.status_code

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        self._status = 0
        result, why = SpanExportResult.FAILURE, ""
        try:
            with _quietly():
                result = self._inner.export(spans)
                if result is SpanExportResult.FAILURE and self._status in (401, 403):
                    self._source.refused()
                    result = self._inner.export(spans)
        except Exception as error:
            why = f"{type(error).__name__}" if not isinstance(error, ConfigError) else str(error)
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
        else:
            self.failed += len(spans)
            self._tell(f"status {self._status}" if self._status >= 300 else why or "no answer")
        return result

    def _tell(self, why: str) -> None:
        if time.monotonic() - self._told_at >= TELL_SECONDS:
            log.warning("otel: %d spans were not taken by %s: %s", self.failed - self._told, self._place, why)
            self._told, self._told_at = self.failed, time.monotonic()

    def shutdown(self) -> None:
        with _quietly(), contextlib.suppress(Exception):
            self._inner.shutdown()  # type: ignore[no-untyped-call]


class Sending:
    """`put()` in the loop's thread only. The sending thread begins with the first span."""

    def __init__(self, config: Config) -> None:
        self._most = config.queue
        self._put = 0
        self.dropped = 0
        self._source = Source(config)
        session = _Session(self._source)
        try:
            inner = OTLPSpanExporter(
                endpoint=config.url,
                certificate_file=config.certificate,
                timeout=config.timeout,
                compression=Compression.Gzip if config.compression == "gzip" else Compression.NoCompression,
                session=session,
            )
        except ValueError as error:  # of a variable of OpenTelemetry's
            raise ConfigError("endpoint", f"OpenTelemetry refuses it: {error}") from None
        url = urlsplit(str(inner._endpoint))  # which a variable may have named
        if config.has_headers and not is_private(url):
            raise ConfigError("endpoint", "headers would go over the network in the clear: use https")
        # A proxy would be sent what is for this machine only, in the clear maybe, and would look for it on its own.
        session.direct = is_loopback(url.hostname or "")
        place = url.netloc.rpartition("@")[2] or "the collector"
        self.exporter = _Exporter(inner, self._source, session, place)
        self._batches: BatchSpanProcessor | None = None

    def check(self) -> None:
        """ConfigError if there are no headers though there should be. May take a while."""
        self._source.first()

    @property
    def waiting(self) -> int:
        return self._put - self.exporter.taken

    def put(self, span: ReadableSpan) -> None:
        """One that has ended."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if self.waiting >= self._most:
            self.dropped += 1
            return
        if self._batches is None:
            for name in _LOGGERS:
                logging.getLogger(name).addFilter(_is_others)
            self._batches = BatchSpanProcessor(
                self.exporter, max_queue_size=self._most, max_export_batch_size=min(BATCH, self._most)
            )
        self._put += 1
        self._batches.on_end(span)

    def numbers(self) -> dict[str, int]:
        sent = self.exporter
        return {"exported": sent.exported, "dropped": self.dropped, "failed": sent.failed, "waiting": max(0, self.waiting)}

    def last_numbers(self) -> dict[str, int]:
        """After `close()`: what has not been taken by now is lost, whatever a thread still tries."""
        exported = self.exporter.exported
        return {"exported": exported, "dropped": self.dropped, "failed": self._put - exported}

    async def close(self, seconds: float) -> bool:
        """Send what waits, within so many seconds; False: not all of it was. Idempotent."""
        batches, self._batches, self._most = self._batches, None, 0
        if batches is None:
            self._source.close()  # or its thread would hold up the end of a start that is given up
            return True
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            batches.shutdown()  # type: ignore[no-untyped-call]
            with contextlib.suppress(RuntimeError):  # the loop is gone: it took too long
                loop.call_soon_threadsafe(ended.set)

        # A thread of its own: one of the loop's would be waited for, however long a collector takes.
        threading.Thread(target=end, name="otel end", daemon=True).start()
        try:
            async with asyncio.timeout(seconds):
                await ended.wait()
        except TimeoutError:
            self.exporter.shutdown()  # no further attempts
            self._source.close()
            return False
        return not self.waiting


class Way(SpanProcessor):
    """From providers to where spans are sent now. A reload makes another of each, and what began before it ends after it."""

    sending: Sending

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        pass

    def on_end(self, span: ReadableSpan) -> None:
        self.sending.put(span)

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True
