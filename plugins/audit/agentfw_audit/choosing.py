"""Which lines are wanted."""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

_AGO = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h|d|w)\Z")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SECONDS = re.compile(r"[0-9]{9,11}(?:\.[0-9]+)?\Z")


class Line(msgspec.Struct, gc=False):
    """What is asked about: PERF: the rest of a line is skipped, not made objects of."""

    time: float
    event: str
    agent_id: str = ""
    agent: str = ""
    labels: dict[str, str] = {}
    destination: str = ""
    name: str = ""
    rule: str = ""
    allowed: bool = True
    job: str = ""
    tenant: str = ""
    what: str = ""
    by: str = ""
    model: str = ""
    requested_model: str = ""


decode: Callable[[bytes], Line] = msgspec.json.Decoder(Line).decode
"""msgspec.DecodeError (a ValueError, as that for text that is no UTF-8) for what is no line."""


def moment(text: str, now: float | None = None) -> float:
    """ "90s", "30m", "1h", "2d" ago, "now", a date and time as ISO 8601 has it (local, unless it says another zone), or seconds
    since 1970 -> these. ValueError."""
    now = time.time() if now is None else now
    if match := _AGO.match(text):
        return now - float(match[1]) * _UNITS[match[2]]
    if text == "now":
        return now
    if _SECONDS.match(text):
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"`{text}` is no time: write 30m, 1h, 2d (ago), or 2026-01-31T12:00") from None


class Chooser:
    """All of what is given must hold; of what can be given several times, one of each. Texts may have `*` and `?`.

    `denied`: decisions that refuse. Each line `denied` has one that stands for it, so together they would count twice: only
    whoever names that event has those lines.
    """

    def __init__(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        agents: Sequence[str] = (),
        jobs: Sequence[str] = (),
        tenants: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        events: Sequence[str] = (),
        destinations: Sequence[str] = (),
        rules: Sequence[str] = (),
        models: Sequence[str] = (),
        by: Sequence[str] = (),
        denied: bool = False,
    ) -> None:
        self._checks: list[Callable[[Line], bool]] = []
        if since is not None:
            self._checks.append(lambda line: line.time >= since)
        if until is not None:
            self._checks.append(lambda line: line.time < until)
        if denied:
            told = "denied" in events
            self._checks.append(lambda line: (line.event == "decision" and not line.allowed) or (told and line.event == "denied"))
        if events:
            self._checks.append(_events(events))
        if agents:
            match = _matcher(agents)
            self._checks.append(lambda line: match(line.agent) or match(line.agent_id))
        if jobs:
            self._checks.append(_jobs(jobs))
        if tenants:
            tenant = _matcher(tenants)
            self._checks.append(lambda line: tenant(line.tenant or line.labels.get("tenant", "")))
        for name, value in (labels or {}).items():
            self._checks.append(_label(name, value))
        if destinations:
            self._checks.append(_destinations(destinations))
        if rules:
            rule = _matcher([f"*{text}*" for text in rules])
            self._checks.append(lambda line: rule(line.rule))
        if models:
            model = _matcher(models)
            self._checks.append(lambda line: model(line.model) or model(line.requested_model))
        if by:
            who = _matcher([f"{text}*" for text in by])
            self._checks.append(lambda line: who(line.by))

    def wants(self, line: Line) -> bool:
        return all(check(line) for check in self._checks)


def _matcher(texts: Sequence[str]) -> Callable[[str], bool]:
    """Whether a text that is not empty is one of these. Case counts, and brackets are themselves: addresses have some."""
    pattern = re.compile("|".join(fnmatch.translate(text.replace("[", "[[]")) for text in texts))
    return lambda text: bool(text) and pattern.match(text) is not None


def _events(texts: Sequence[str]) -> Callable[[Line], bool]:
    """ "job", or "job.ended"."""
    match = _matcher(texts)
    return lambda line: match(line.event) or (bool(line.what) and match(f"{line.event}.{line.what}"))


def _jobs(ids: Sequence[str]) -> Callable[[Line], bool]:
    """All attempts of each, and the agents that they were (`ID-7`, `ID.2-9`); what it is a copy of is not."""
    match = _matcher([text for job_id in ids for text in (job_id, f"{job_id}.*", f"{job_id}-*")])
    return lambda line: match(line.job) or match(line.agent_id)


def _label(name: str, value: str) -> Callable[[Line], bool]:
    match = _matcher([value])
    return lambda line: match(line.labels.get(name, ""))


def _destinations(texts: Sequence[str]) -> Callable[[Line], bool]:
    """ "api.example", "*.example", "api.example:443", "https://api.example:443"; of DNS questions the name. All of them stand in
    lines in lower case."""
    match = _matcher([text.lower() for text in texts])

    def fits(line: Line) -> bool:
        if line.event == "question":
            return match(line.name)
        _, _, authority = line.destination.partition("://")
        host, _, _ = authority.rpartition(":")
        return match(host.removeprefix("[").removesuffix("]")) or match(authority) or match(line.destination)

    return fits


def fields(data: bytes) -> dict[str, Any]:
    """All of a line. ValueError."""
    found = msgspec.json.decode(data)
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def value_of(line: Mapping[str, Any], name: str) -> Any:
    """A field; "labels.team" and "usage.memory" are one of those within. None: it is not there."""
    outer, dot, inner = name.partition(".")
    value = line.get(outer)
    if dot:
        return value.get(inner) if isinstance(value, dict) else None
    if name == "tenant" and value is None:
        labels = line.get("labels")
        return labels.get("tenant") if isinstance(labels, dict) else None
    if name == "host" and value is None:
        host = str(line.get("destination", "")).partition("://")[2].rpartition(":")[0]
        return host.removeprefix("[").removesuffix("]") or None
    return value
