"""What the control API says beyond the pool's own types: bodies, queries, errors, versions. Server and client share it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from .jobs import MAX_PAYLOAD, JobInfo, PoolError, PoolInfo, State, Tenant, Usage

API_VERSION = "1.1"
"""Of the paths under /v1: the first number changes when a client must, the second when something is added."""
VERSION_HEADER = "Agentfw-Api"

HEARTBEAT = 5.0
"""Seconds after which a stream without output gets an empty line."""
LONGEST_WAIT = 300.0
"""Seconds that one request may wait for a job or a drain; who wants longer asks again."""
MAX_BODY = MAX_PAYLOAD * 4 // 3 + (4 << 20)
"""Bytes of a request's JSON: the payload is base64 in it."""
PIECE = 192 << 10
"""Bytes of output in one line at most (before base64)."""
MAX_LINE = 1 << 20
"""Bytes of a line that a client takes."""

Seconds = Annotated[float, Meta(ge=0, le=LONGEST_WAIT)]

ERRORS = {
    "bad_request": (400, "not HTTP, or a parameter or body that is wrong"),
    "bad_job": (400, "the job cannot be one"),
    "unauthorized": (401, "no token, or a wrong one"),
    "forbidden": (403, "another user, a web page (`Origin`), or a `Host` that is not the pool's"),
    "not_found": (404, "no such path; no such plugin, or it knows no such thing"),
    "no_such_job": (404, "no job has this id, or it ended long ago"),
    "method_not_allowed": (405, "the path is there, for other methods"),
    "timeout": (408, "the body did not come in time"),
    "unsupported": (409, "not of this job, or not in its state"),
    "too_large": (413, "the body is longer than the pool takes"),
    "bad_config": (422, "agentfw.toml is wrong, and all stays as it was"),
    "internal": (500, "our fault; the log says more"),
    "worker_lost": (502, "a worker process died"),
    "pool_full": (503, "too many jobs wait"),
    "draining": (503, "the pool takes no more jobs"),
    "unavailable": (503, "too many requests at once, or the pool is going, or nobody answers"),
}
"""HTTP status and meaning of each error code."""
STATUS = {code: status for code, (status, _) in ERRORS.items()}


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """`code` is stable; `message` and `hint` are for people."""

    code: str
    message: str
    hint: str = ""


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorDetail

    @staticmethod
    def of(error: PoolError) -> ErrorBody:
        return ErrorBody(error=ErrorDetail(code=error.code, message=str(error), hint=error.hint))

    def exception(self) -> PoolError:
        return PoolError(self.error.code, self.error.message, self.error.hint)


class JobList(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[JobInfo]


class SignalRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    signal: Annotated[int, Meta(ge=1, le=64)]


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=1000)]


class StopRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: Annotated[float, Meta(ge=0, le=30 * 86400)] | None = None
    """How long running jobs may go on; 0: they are killed now; null: ten seconds."""


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    done: bool
    """No job is left."""
    pool: PoolInfo


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    changed: list[str]
    """Tables of agentfw.toml."""


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    metrics: dict[str, float]


class UsageList(msgspec.Struct, frozen=True, kw_only=True):
    usage: dict[str, Usage]
    """By the job's id."""


class ListQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: State | None = None
    tenant: Tenant | None = None
    label: list[str] = []
    """NAME=VALUE; repeated: all of them"""
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 1000


class WaitQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: Seconds = 30.0


class OutputQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    follow: bool = False
    """until the job's end"""
    stdout: Annotated[int, Meta(ge=0, le=1 << 62)] = 0
    """offset to begin at"""
    stderr: Annotated[int, Meta(ge=0, le=1 << 62)] = 0
    """offset to begin at"""


class StdinQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    end: bool = False
    """no more comes"""


class MetricsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Annotated[str, Meta(pattern="^(json|prometheus)$")] = "json"
