"""A small real HTTPS server with its own CA."""

from __future__ import annotations

import http.server
import json
import ssl
import threading

import trustme


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/big":
            body = bytes(range(256)) * 4096
        elif self.path == "/close":
            self.close_connection = True
            self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\nuntil the end")
            return
        else:
            body = b"hello"
        self._reply(200, "text/plain", body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/echo"):
            self._reply(200, "application/octet-stream", body)
            return
        request = json.loads(body)
        said = request["messages"][-1]["content"]
        if self.path.endswith("/chat/completions"):
            if request.get("stream"):
                self._stream([json.dumps({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [
                    {"index": 0, "delta": {"content": word}, "finish_reason": None}]}) for word in ("you ", "said ", said)] + ["[DONE]"])  # fmt: skip
                return
            self._json({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [
                {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": f"you said {said}"}}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})  # fmt: skip
        else:
            self._json({"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn", "stop_sequence": None,
                        "content": [{"type": "text", "text": f"you said {said}"}],
                        "usage": {"input_tokens": 1, "output_tokens": 1}})  # fmt: skip

    def _stream(self, events: list[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            data = f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def _json(self, value: object) -> None:
        self._reply(200, "application/json", json.dumps(value).encode())

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class TlsServer:
    def __init__(self, name: str = "model.test") -> None:
        self.authority = trustme.CA()
        self.ca: bytes = self.authority.cert_pem.bytes()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        self.authority.issue_cert(name).configure_cert(context)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.address = ("127.0.0.1", self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
