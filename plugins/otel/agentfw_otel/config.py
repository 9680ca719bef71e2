"""Table [otel]."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, urlsplit

import msgspec
from agentfw import ConfigError
from agentfw.addresses import is_loopback
from agentfw.config import path_beside

TRACES = "/v1/traces"


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table [otel]: where traces go. What is left out is as OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_ENDPOINT`,
    `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_SCHEDULE_DELAY`, ...) say."""

    endpoint: str | None = None
    """The collector, `"http://127.0.0.1:4318"`; `/v1/traces` is added unless it ends so. Left out: port 4318 of this machine."""
    headers_file: str | None = None
    """A file with headers for it, `NAME: VALUE` a line (an API key, as a rule), relative to agentfw.toml, and nowhere that agents
    see. Read again when it changes."""
    headers_command: tuple[str, ...] = ()
    """A program that prints such lines instead; run at the start, and again when the collector answers 401 or 403."""
    certificate: str | None = None
    """A file with the authority of the collector, relative to agentfw.toml; left out: the system's."""
    compression: Literal["gzip", "none"] = "gzip"
    """Of what is sent."""
    timeout: float = 10.0
    """Seconds for sending a batch, further attempts included."""
    service: str | None = None
    """`service.name`; left out: `"agentfw"`."""
    resource: dict[str, str] = {}
    """Further attributes of all spans: `{"deployment.environment.name" = "production"}`."""
    sample: float | None = None
    """The part of the jobs that is traced, 0 to 1; a job with a parent goes as that says. Left out: all."""
    labels: tuple[str, ...] | None = None
    """Of jobs, which become attributes (`agentfw.label.NAME`); left out: all."""
    parent_label: str = "traceparent"
    """A job's label that has the span that it belongs to, as W3C's `traceparent` has it."""
    propagate: bool = False
    """Agents are told their span in the variable `TRACEPARENT`, so that what they trace themselves belongs to it."""
    queue: int = 4096
    """Spans that wait to be sent; further ones are dropped."""

    def beside(self, directory: Path) -> Config:
        """Relative paths begin in this directory."""
        file, certificate = self.headers_file, self.certificate
        return msgspec.structs.replace(
            self,
            headers_file=None if file is None else path_beside(directory, file),
            certificate=None if certificate is None else path_beside(directory, certificate),
        )

    def __post_init__(self) -> None:
        if self.endpoint is not None:
            _check_endpoint(self.endpoint)
        if self.headers_file is not None and self.headers_command:
            raise ConfigError("headers_command", "headers come from a file or from a program, not from both")
        for name, text in (("headers_file", self.headers_file), ("certificate", self.certificate)):
            if text is not None and (not text or "\0" in text):
                raise ConfigError(name, "must be a path")
        if any("\0" in word for word in self.headers_command) or (self.headers_command and not self.headers_command[0]):
            raise ConfigError("headers_command", "must be a program and its arguments")
        if self.sample is not None and not 0 <= self.sample <= 1:
            raise ConfigError("sample", "must be from 0 to 1")
        for key, value, least, most in (("timeout", self.timeout, 0.1, 300.0), ("queue", self.queue, 1, 1_000_000)):
            if not least <= value <= most:
                raise ConfigError(key, f"must be from {least} to {most}")

    @property
    def has_headers(self) -> bool:
        return self.headers_file is not None or bool(self.headers_command)

    @property
    def url(self) -> str | None:
        """Where spans are sent to."""
        if self.endpoint is None:
            return None
        base = self.endpoint.rstrip("/")
        return base if base.endswith(TRACES) else base + TRACES


def _check_endpoint(text: str) -> None:
    try:
        url = urlsplit(text)
        good = url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port > 0)
    except ValueError:
        good = None
    if not good or "@" in urlsplit(text).netloc or url.query or url.fragment or not text.isprintable() or " " in text:
        error = ConfigError("endpoint", "must be a URL without user, query and fragment")
        error.hint = 'write "http://HOST:PORT" or "https://HOST", and secrets into `headers_file`'
        raise error


def is_private(url: SplitResult) -> bool:
    """What is sent there cannot be read on the way."""
    return url.scheme == "https" or is_loopback(url.hostname or "")
