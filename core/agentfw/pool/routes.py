"""The control API's operations as data: the server registers them, the OpenAPI document is made of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .jobs import Job, JobInfo, Output, PoolInfo
from .wire import (
    API_VERSION,
    STATUS,
    VERSION_HEADER,
    Drained,
    ErrorBody,
    ForkRequest,
    JobList,
    ListQuery,
    Metrics,
    MetricsQuery,
    OutputQuery,
    Reloaded,
    SignalRequest,
    StdinQuery,
    StopRequest,
    UsageList,
    WaitQuery,
)


@dataclass(frozen=True)
class Route:
    """One operation. `name`: the server's method for it. `body`: what the JSON is decoded into, or bytes as they come."""

    name: str
    method: str
    path: str
    summary: str
    query: type[msgspec.Struct] | None = None
    free_query: bool = False
    """Any parameters, each once."""
    body: type[Any] | None = None
    optional_body: bool = False
    answer: Any = None
    lines: bool = False
    """The answer is one JSON text a line."""
    text: bool = False
    """The answer is (or, if it has an `answer`, may be) text in the one of Prometheus' formats that the request accepts."""
    status: int = 200
    errors: tuple[str, ...] = field(default=())


ROUTES = (
    Route("submit", "POST", "/v1/jobs", "Submit a job", body=Job, answer=JobInfo, status=201,
          errors=("bad_job", "too_large", "pool_full", "draining")),
    Route("jobs", "GET", "/v1/jobs", "List jobs, newest first", query=ListQuery, answer=JobList),
    Route("info", "GET", "/v1/jobs/{id}", "A job as it stands", answer=JobInfo, errors=("no_such_job",)),
    Route("wait", "GET", "/v1/jobs/{id}/wait", "A job at its end, or as it stands after some seconds", query=WaitQuery,
          answer=JobInfo, errors=("no_such_job",)),
    Route("output", "GET", "/v1/jobs/{id}/output",
          "What a job wrote, a JSON text a line; an empty line is a heartbeat; `{\"error\": ...}` ends what cannot go on",
          query=OutputQuery, answer=Output, lines=True, errors=("no_such_job",)),
    Route("feed", "POST", "/v1/jobs/{id}/stdin", "More standard input of an interactive job", query=StdinQuery, body=bytes,
          status=204, errors=("no_such_job", "unsupported")),
    Route("signal", "POST", "/v1/jobs/{id}/signal", "Send a signal; nothing if the job has ended", body=SignalRequest,
          status=204, errors=("no_such_job",)),
    Route("kill", "DELETE", "/v1/jobs/{id}", "Kill a job, also while it waits; nothing if it has ended", status=204,
          errors=("no_such_job",)),
    Route("fork", "POST", "/v1/jobs/{id}/fork", "Copies of a running job, each from where it stands", body=ForkRequest,
          answer=JobList, status=201, errors=("no_such_job", "unsupported", "pool_full", "draining")),
    Route("describe", "GET", "/v1/pool", "The pool and its workers", answer=PoolInfo),
    Route("metrics", "GET", "/v1/metrics", "Counters and gauges; with `format=prometheus` as `GET /metrics`",
          query=MetricsQuery, answer=Metrics, text=True),
    Route("prometheus", "GET", "/metrics", "The same as Prometheus reads it; OpenMetrics if `Accept` prefers that", text=True),
    Route("usage", "GET", "/v1/usage", "What the jobs that run have used so far", answer=UsageList),
    Route("plugin", "GET", "/v1/plugins/{plugin}/{what}",
          "What a plugin tells; which things there are, and which parameters, is the plugin's", free_query=True, answer=Any,
          errors=("not_found",)),
    Route("drain", "POST", "/v1/pool/drain", "Take no more jobs; answers when the last has ended, or after some seconds",
          query=WaitQuery, answer=Drained),
    Route("reload", "POST", "/v1/pool/reload", "Read the configuration again", answer=Reloaded, errors=("bad_config",)),
    Route("stop", "POST", "/v1/pool/stop", "End the pool, its jobs first", body=StopRequest, optional_body=True, status=202),
    Route("openapi", "GET", "/v1/openapi.json", "This description", answer=dict[str, Any]),
)  # fmt: skip


_ERROR = {"$ref": "#/components/schemas/ErrorBody"}


def openapi() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    shapes = [route.answer for route in ROUTES if route.answer is not None]
    shapes += [route.body for route in ROUTES if route.body not in (None, bytes)]
    queries = [route.query for route in ROUTES if route.query is not None]
    found, components = msgspec.json.schema_components([*shapes, ErrorBody, *queries], ref_template="#/components/schemas/{name}")
    schema = dict(zip(map(id, [*shapes, ErrorBody, *queries]), found, strict=True))
    names = {query.__name__ for query in queries}
    parameters = {query: _parameters(components[query.__name__]) for query in queries}
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema, parameters)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "agentfw pool",
            "version": API_VERSION,
            "description": f"Every answer has the header `{VERSION_HEADER}`. Sizes are bytes, durations seconds, times seconds "
            "since the epoch; bytes in JSON are base64.",
        },
        "servers": [{"url": "http://localhost", "description": "over the pool's Unix socket, or its address and port"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": {name: _plain(part) for name, part in components.items() if name not in names},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "over TCP only"}},
        },
    }


def _parameters(component: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name, part in component["properties"].items():
        part = _plain(part)
        row = {"name": name, "in": "query", "required": False, "schema": part}
        if part.get("type") == "array":
            row["explode"] = True
        rows.append(row)
    return rows


def _operation(route: Route, schema: dict[int, Any], parameters: dict[Any, Any]) -> dict[str, Any]:
    kind = "application/x-ndjson" if route.lines else "application/json"
    answer: dict[str, Any] = {"description": route.summary if route.status != 204 else "Done"}
    if route.answer is not None:
        part = _plain(schema[id(route.answer)])
        answer["content"] = {kind: {"schema": {"anyOf": [part, _ERROR]} if route.lines else part}}
    if route.text:
        for media in ("text/plain", "application/openmetrics-text"):
            answer.setdefault("content", {})[media] = {"schema": {"type": "string"}}
    answers: dict[str, Any] = {str(route.status): answer}
    codes = {"unauthorized", "forbidden", "unavailable", "internal", *route.errors}
    codes |= {"bad_request"} if route.query or route.free_query or route.body else set()
    for code in sorted(codes, key=lambda code: (STATUS[code], code)):
        row = answers.setdefault(str(STATUS[code]), {"description": "", "content": _error_content()})
        row["description"] += f"{' or ' if row['description'] else ''}`{code}`"
    found: dict[str, Any] = {"operationId": route.name, "summary": route.summary, "responses": answers}
    rows = list(parameters.get(route.query, []))
    for name in reversed(re.findall(r"{(\w+)}", route.path)):
        rows.insert(0, {"name": name, "in": "path", "required": True, "schema": {"type": "string"}})
    if route.free_query:
        free = {"type": "object", "additionalProperties": {"type": "string"}}
        rows.append({"name": "query", "in": "query", "required": False, "style": "form", "explode": True, "schema": free})
    if rows:
        found["parameters"] = rows
    if route.body is bytes:
        found["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": {}}}}
    elif route.body is not None:
        content = {"application/json": {"schema": _plain(schema[id(route.body)])}}
        found["requestBody"] = {"required": not route.optional_body, "content": content}
    return found


def _error_content() -> dict[str, Any]:
    return {"application/json": {"schema": _ERROR}}


def _plain(part: Any) -> Any:
    """A schema as other languages read it: their patterns end with `$` where Python's do with `\\Z`."""
    if isinstance(part, dict):
        return {key: re.sub(r"\\Z\Z", "$", value) if key == "pattern" else _plain(value) for key, value in part.items()}
    return [_plain(each) for each in part] if isinstance(part, list) else part
