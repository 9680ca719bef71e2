"""The API's description: valid OpenAPI, of exactly the routes that are served, and true of what they answer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from agentfw.pool.jobs import Job
from agentfw.pool.routes import ROUTES, openapi
from agentfw.pool.wire import STATUS
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.core.support import async_test

from .support import answer, raw, request, served

DOCUMENT: dict[str, Any] = json.loads(json.dumps(openapi()))


def check(schema: dict[str, Any], value: object) -> None:
    Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(value)


def test_it_is_openapi() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()
    for part in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(part)
    for pattern in re.findall(r'"pattern": "([^"]*)"', json.dumps(DOCUMENT)):
        assert "\\\\Z" not in pattern and "(?P" not in pattern  # Python's own


@async_test
async def test_it_has_the_routes_and_no_others(tmp_path: Path) -> None:
    async with served(tmp_path / "s") as pool:
        app = pool.server._runner.app
        real = {(route.method.lower(), route.resource.canonical) for route in app.router.routes() if route.resource}
        described = {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}
        assert real == described and len(described) == len(ROUTES)
        assert answer(await raw(pool.path, request("GET", "/v1/openapi.json")))[2] == DOCUMENT


def test_errors_have_a_status_each() -> None:
    from agentfw.pool import jobs

    contracted = set(re.findall(r'"(\w+)"', str(jobs.PoolError.__doc__)))
    assert contracted <= set(STATUS)
    assert {code for route in ROUTES for code in route.errors} <= set(STATUS)


@async_test
async def test_answers_are_as_described(tmp_path: Path) -> None:
    """Each operation is used once well and once badly; what comes back has a status and a form that the document names."""
    program = "import sys; print('x' * 100, flush=True); print('e', file=sys.stderr); sys.stdin.read()"
    job = {"mode": "code", "target": program, "interactive": True, "files": {"a": "AAEC"}}
    check(DOCUMENT["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"], job)
    seen = set()
    async with served(tmp_path / "s") as pool:

        async def ask(name: str, target: str, body: bytes = b"") -> Any:
            (route,) = (each for each in ROUTES if each.name == name)
            data = await raw(pool.path, request(route.method, target, "Accept: */*", body=body).replace(b"HTTP/1.1", b"HTTP/1.0"))
            head, _, text = data.partition(b"\r\n\r\n")
            status = head.split()[1].decode()
            described = DOCUMENT["paths"][route.path][route.method.lower()]["responses"][status]
            seen.add((name, int(status) < 300))
            if not text:
                assert "content" not in described
                return None
            kind = re.search(rb"Content-Type: ([a-z/-]+)", head)
            assert kind is not None
            schema = described["content"][kind[1].decode()]["schema"]
            if route.text and kind[1] == b"text/plain":
                check(schema, text.decode())
                return text
            rows = [json.loads(line) for line in text.splitlines() if line] if b"ndjson" in head else [json.loads(text)]
            for row in rows:
                check(schema, row)
            return rows[0]

        job_id = (await ask("submit", "/v1/jobs", json.dumps(job).encode()))["id"]
        one = f"/v1/jobs/{job_id}"
        await anext(pool.client.output(job_id))
        await ask("fork", f"{one}/fork", b'{"count": 1}')
        await ask("feed", f"{one}/stdin?end=1", b"x")
        await pool.client.wait(job_id)
        for name, target, body in (
            ("jobs", "/v1/jobs?limit=5", b""),
            ("info", one, b""),
            ("wait", f"{one}/wait?seconds=0", b""),
            ("output", f"{one}/output", b""),
            ("signal", f"{one}/signal", b'{"signal": 2}'),
            ("kill", one, b""),
            ("describe", "/v1/pool", b""),
            ("metrics", "/v1/metrics", b""),
            ("prometheus", "/metrics", b""),
            ("usage", "/v1/usage", b""),
            ("plugin", "/v1/plugins/fake/state?since=7", b""),
            ("plugin", "/v1/plugins/nobody/state", b""),
            ("reload", "/v1/pool/reload", b""),
            ("stop", "/v1/pool/stop", b'{"seconds": 1}'),
            ("openapi", "/v1/openapi.json", b""),
            ("drain", "/v1/pool/drain?seconds=0.01", b""),
            ("submit", "/v1/jobs", json.dumps(job).encode()),  # draining
            ("submit", "/v1/jobs", b"{}"),
            ("info", "/v1/jobs/none", b""),
            ("output", "/v1/jobs/none/output", b""),
            ("fork", f"{one}/fork", b'{"count": 1}'),
            ("feed", "/v1/jobs/none/stdin", b""),
            ("jobs", "/v1/jobs?x=1", b""),
        ):
            await ask(name, target, body)
    assert {(route.name, True) for route in ROUTES} <= seen
    assert Job(mode="code", target=program).interactive is False
