"""What a HAR 1.2 file must be, by its specification (http://www.softwareishard.com/blog/har-12-spec/)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

MOMENT = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$"


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """Custom fields begin with `_`; others there are none."""
    return {
        "type": "object", "required": list(required), "properties": {**required, **optional, "comment": {"type": "string"}},
        "patternProperties": {"^_": {}}, "additionalProperties": False,
    }  # fmt: skip


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


TEXT = {"type": "string"}
NUMBER = {"type": "number", "minimum": -1}
INTEGER = {"type": "integer", "minimum": -1}
WHEN = {"type": "string", "pattern": MOMENT}
PAIR = _object({"name": TEXT, "value": TEXT})
COOKIE = _object(
    {"name": TEXT, "value": TEXT}, path=TEXT, domain=TEXT, expires=TEXT, httpOnly={"type": "boolean"}, secure={"type": "boolean"}
)
POST = {**_object({"mimeType": TEXT}, params=_list(PAIR), text=TEXT), "anyOf": [{"required": ["params"]}, {"required": ["text"]}]}
REQUEST = _object(
    {"method": TEXT, "url": {"type": "string", "pattern": "^https?://[^/]+/"}, "httpVersion": TEXT, "cookies": _list(COOKIE),
     "headers": _list(PAIR), "queryString": _list(PAIR), "headersSize": INTEGER, "bodySize": INTEGER},
    postData=POST,
)  # fmt: skip
CONTENT = _object({"size": INTEGER, "mimeType": TEXT}, compression={"type": "integer"}, text=TEXT, encoding=TEXT)
RESPONSE = _object(
    {"status": INTEGER, "statusText": TEXT, "httpVersion": TEXT, "cookies": _list(COOKIE), "headers": _list(PAIR),
     "content": CONTENT, "redirectURL": TEXT, "headersSize": INTEGER, "bodySize": INTEGER},
)  # fmt: skip
TIMINGS = _object({"send": NUMBER, "wait": NUMBER, "receive": NUMBER}, blocked=NUMBER, dns=NUMBER, connect=NUMBER, ssl=NUMBER)
ENTRY = _object(
    {"startedDateTime": WHEN, "time": {"type": "number", "minimum": 0}, "request": REQUEST, "response": RESPONSE,
     "cache": {"type": "object"}, "timings": TIMINGS},
    pageref=TEXT, serverIPAddress=TEXT, connection=TEXT,
)  # fmt: skip
PAGE = _object(
    {"startedDateTime": WHEN, "id": TEXT, "title": TEXT, "pageTimings": _object({}, onContentLoad=NUMBER, onLoad=NUMBER)}
)
CREATOR = _object({"name": TEXT, "version": TEXT})
HAR = _object({"log": _object({"version": {"const": "1.2"}, "creator": CREATOR, "entries": _list(ENTRY)}, browser=CREATOR,
                              pages=_list(PAGE))})  # fmt: skip


def load(path: Path) -> dict[str, Any]:
    """The log of a file that is one."""
    found = json.loads(path.read_bytes())
    jsonschema.Draft202012Validator(HAR).validate(found)
    log: dict[str, Any] = found["log"]
    pages = [page["id"] for page in log["pages"]]
    assert len(set(pages)) == len(pages) and all(entry["pageref"] in pages for entry in log["entries"])
    for entry in log["entries"]:
        timings = entry["timings"]
        total = sum(value for value in timings.values() if isinstance(value, (int, float)) and value > 0)
        assert abs(entry["time"] - total) < 0.01
    return log


def pairs(rows: list[dict[str, str]]) -> dict[str, str]:
    return {row["name"].lower(): row["value"] for row in rows}
