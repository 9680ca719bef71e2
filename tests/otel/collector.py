"""A collector on 127.0.0.1 that keeps what it is sent, and may be told to misbehave."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    def __init__(self) -> None:
        self.port = 0
        self.requests: list[tuple[str, dict[str, str], ExportTraceServiceRequest]] = []
        """Path, headers (names in lower case), what was in it."""
        self.answer: Callable[[BaseHTTPRequestHandler], None] = good
        self.go_on = threading.Event()
        self.go_on.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def spans(self) -> list[Any]:
        return [span for _, _, request in self.requests for each in request.resource_spans for scope in each.scope_spans
                for span in scope.spans]  # fmt: skip

    @property
    def resource(self) -> dict[str, Any]:
        return values(self.requests[-1][2].resource_spans[0].resource.attributes)

    def span(self, name: str) -> Any:
        (found,) = [span for span in self.spans if span.name == name]
        return found


def values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def good(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def status(code: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            collector.go_on.wait(10)
            headers = {name.lower(): value for name, value in self.headers.items()}
            collector.requests.append((self.path, headers, ExportTraceServiceRequest.FromString(data)))
            collector.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    collector.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield collector
    finally:
        collector.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()
