"""Errors as HTTP answers: the same of the control API and of what else serves operators (the dashboard's page)."""

from __future__ import annotations

import msgspec
from aiohttp import web

from .jobs import PoolError
from .wire import STATUS, ErrorBody


def error_answer(error: PoolError) -> web.Response:
    """Its status by code (500 for one that is not known), its body an `ErrorBody`."""
    status = STATUS.get(error.code, 500)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {"Retry-After": "1"} if status == 503 else {}
    body = msgspec.json.encode(ErrorBody.of(error))
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def refusal(request: web.Request, error: web.HTTPException, hint: str = "") -> web.Response:
    """Of aiohttp's own errors those that can come up in its routing and reading. `hint`: where it is told what there is."""
    if error.status == 404:
        return error_answer(PoolError("not_found", f"nothing at {request.path}", hint))
    if error.status == 405:
        response = error_answer(PoolError("method_not_allowed", f"not by {request.method}"))
        response.headers["Allow"] = error.headers.get("Allow", "")
        return response
    if error.status == 413:
        return error_answer(PoolError("too_large", "the body is too large"))
    response = error_answer(PoolError("bad_request", error.reason))
    response.set_status(error.status)
    return response
