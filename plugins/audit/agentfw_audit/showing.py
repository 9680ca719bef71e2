"""Lines as people and programs want them: a table, JSON lines, CSV, or how many there are of each kind."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec
from agentfw.texts import fitted, plain_json, shown

from .choosing import value_of

Format = Literal["table", "jsonl", "csv"]
FORMATS = ("table", "jsonl", "csv")

COLUMNS = ("time", "event", "agent_id", "agent", "tenant", "job", "what", "by", "allowed", "destination", "method", "target",
           "status", "rule", "plugin", "reason", "model", "input_tokens", "output_tokens", "cost", "bytes_up", "bytes_down",
           "seconds", "count", "error", "text")  # fmt: skip
"""Of CSV, unless others are asked for."""
MAX_KINDS = 100_000
"""Counted apart; further ones go into one."""
OTHERS = "(others)"

_FORMULA = re.compile(r"[=+\-@\t\r]")
_BOOKKEEPING = frozenset({"time", "event", "agent_id", "agent", "labels"})


def when(seconds: float) -> str:
    """Local time, to the millisecond."""
    try:
        return datetime.fromtimestamp(seconds).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return shown(str(seconds), 23)


class Jsonl:
    """Lines as they stand in the file. On a terminal what is not ASCII is escaped, as JSON can: the same text, and nothing in it
    does anything to the terminal."""

    title = b""

    def __init__(self, *, terminal: bool = False) -> None:
        self._terminal = terminal

    def line(self, data: bytes, found: Mapping[str, Any]) -> bytes:
        if not self._terminal:
            return data + b"\n"
        return plain_json(data) + b"\n"


class Csv:
    """As RFC 4180 has it, with a title line, but that lines end as others here do. Texts
    that a spreadsheet would take for formulas get a `'` before them."""

    def __init__(self, names: Sequence[str] = COLUMNS) -> None:
        self._names = tuple(names)
        self.title = self._row(self._names)

    def line(self, data: bytes, found: Mapping[str, Any]) -> bytes:
        return self._row([_cell(value_of(found, name)) for name in self._names])

    def _row(self, cells: Sequence[str]) -> bytes:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerow(cells)
        return out.getvalue().encode("utf-8", "backslashreplace")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        text = shown(value, 1 << 16)
        return "'" + text if _FORMULA.match(text) else text
    return shown(msgspec.json.encode(value).decode(), 1 << 16)


class Table:
    """For people: time, event, agent, and the rest in words. `names`: these fields instead. `width`: columns of a terminal, to
    which it is cut; None: it is not."""

    def __init__(self, names: Sequence[str] = (), width: int | None = None) -> None:
        self._names = tuple(names)
        self._widths = [23 if name == "time" else 28 for name in names]
        self._rest = None if width is None else max(20, width - 23 - 2 - 12 - 2 - 20 - 2)
        heads = names or ("time", "event", "agent", "what")
        widths = self._widths or [23, 12, 20, 4]
        self.title = ("  ".join(fitted(name.upper(), w) for name, w in zip(heads, widths, strict=True)).rstrip() + "\n").encode()

    def line(self, data: bytes, found: Mapping[str, Any]) -> bytes:
        if self._names:
            values = [(name, value_of(found, name)) for name in self._names]
            cells = [
                when(value) if name == "time" and isinstance(value, (int, float)) else _text(value) for name, value in values
            ]
            text = "  ".join(fitted(shown(cell, 256), width) for cell, width in zip(cells, self._widths, strict=True))
        else:
            event, agent = str(found.get("event", "")), str(found.get("agent", ""))
            words = shown(in_words(found), 4096)
            words = words if self._rest is None else fitted(words, self._rest)
            text = f"{when(found['time'])}  {fitted(shown(event), 12)}  {fitted(shown(agent), 20)}  {words}"
        return (text.rstrip() + "\n").encode("utf-8", "backslashreplace")


def in_words(found: Mapping[str, Any]) -> str:
    """What a line says besides its time, event and agent."""
    tell = _WORDS.get(str(found.get("event", "")))
    if tell is not None:
        return " ".join(part for part in tell(found) if part)
    return " ".join(
        f"{name}={_plain(value)}" for name, value in found.items() if name not in _BOOKKEEPING and value not in ("", None)
    )


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _text(value: Any) -> str:
    return "" if value is None else _plain(value)


def _get(found: Mapping[str, Any], name: str, form: str = "{}") -> str:
    value = found.get(name)
    return "" if value is None or value == "" else form.format(_plain(value))


def _why(found: Mapping[str, Any]) -> str:
    """The rule, and what it says: "by RULE: REASON"."""
    return ": ".join(part for part in (_get(found, "rule", "by {}"), _get(found, "reason")) if part)


def _decision(found: Mapping[str, Any]) -> tuple[str, ...]:
    count = found.get("count", 1)
    return (
        "allowed" if found.get("allowed") else "DENIED",
        *(_get(found, name) for name in ("destination", "address", "method", "target")),
        f"({count} times)" if count != 1 else "", _why(found),
    )  # fmt: skip


def _refused(found: Mapping[str, Any]) -> tuple[str, ...]:
    names = ("destination", "method", "target")
    return (*(_get(found, name) for name in names), _why(found))


def _exchange(found: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        _get(found, "method"), f"{_get(found, 'destination')}{_get(found, 'target')}", _get(found, "status", "-> {}"),
        _get(found, "bytes_up", "{} up"), _get(found, "bytes_down", "{} down"), _get(found, "seconds", "{} s"),
        _get(found, "error"),
    )  # fmt: skip


def _flow(found: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        _get(found, "kind"), _get(found, "destination") or _get(found, "port", "port {}"), _get(found, "bytes_up", "{} up"),
        _get(found, "bytes_down", "{} down"), _get(found, "seconds", "{} s"), _get(found, "error"),
    )  # fmt: skip


def _model_call(found: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        _get(found, "provider"), _get(found, "model"), _get(found, "operation"), _get(found, "status", "-> {}"),
        _get(found, "input_tokens", "{} in"), _get(found, "output_tokens", "{} out"), _get(found, "seconds", "{} s"),
        " ".join(part for part in (_get(found, "cost"), _get(found, "currency")) if part), _get(found, "error"),
    )  # fmt: skip


def _question(found: Mapping[str, Any]) -> tuple[str, ...]:
    addresses = found.get("addresses")
    told = ", ".join(map(str, addresses)) if isinstance(addresses, list) else ""
    return (
        _get(found, "name"),
        _get(found, "qtype", "type {}"),
        _get(found, "rcode", "rcode {}"),
        told,
        _get(found, "rule", "by {}"),
    )


def _exit(found: Mapping[str, Any]) -> tuple[str, ...]:
    how = _get(found, "how")
    number = _get(found, "code") if how == "code" else _get(found, "signal") if how == "signal" else ""
    return how, number, _get(found, "seconds", "after {} s"), _get(found, "text")


def _job(found: Mapping[str, Any]) -> tuple[str, ...]:
    what = _get(found, "what")
    signal = _get(found, "signal", "signal {}") if what == "signalled" else ""
    return (
        what, _get(found, "job"), signal, _get(found, "how"), _get(found, "code"), _get(found, "parent", "copy of {}"),
        _get(found, "worker", "worker {}"), _get(found, "by", "by {}"), _get(found, "text"),
    )  # fmt: skip


def _pool(found: Mapping[str, Any]) -> tuple[str, ...]:
    names = ("what", "how")
    return (
        *(_get(found, name) for name in names),
        _get(found, "worker", "worker {}"),
        _get(found, "text"),
        _get(found, "by", "by {}"),
    )


_WORDS: dict[str, Callable[[Mapping[str, Any]], tuple[str, ...]]] = {
    "decision": _decision, "denied": _refused, "report_only": _refused, "exchange": _exchange, "flow": _flow,
    "question": _question, "model_call": _model_call, "exit": _exit, "job": _job, "pool": _pool,
}  # fmt: skip


class Counts:
    """How many there are of each combination of these fields' values. A line that stands for several counts as these."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.found: Counter[tuple[str, ...]] = Counter()

    def add(self, found: Mapping[str, Any]) -> None:
        values = tuple(shown(_text(value_of(found, name)), 256) for name in self.names)
        if values not in self.found and len(self.found) >= MAX_KINDS:
            values = (OTHERS,) * len(self.names)
        count = found.get("count", 1)
        self.found[values] += count if isinstance(count, int) and count > 0 else 1

    def nowhere(self) -> list[str]:
        """Fields that no line had, where there were lines."""
        return [name for k, name in enumerate(self.names) if self.found and not any(values[k] for values in self.found)]

    def text(self, format_: str, limit: int | None) -> bytes:
        """Most first."""
        rows = sorted(self.found.items(), key=lambda item: (-item[1], item[0]))[:limit]
        if format_ == "jsonl":
            return b"".join(
                msgspec.json.encode({**dict(zip(self.names, values, strict=True)), "count": n}) + b"\n" for values, n in rows
            )
        if format_ == "csv":
            made = Csv((*self.names, "count"))
            return made.title + b"".join(made._row([*(map(_cell, values)), str(n)]) for values, n in rows)
        widths = [max([len(name), *(min(len(values[k]), 60) for values, _ in rows)]) for k, name in enumerate(self.names)]
        title = "  ".join(["  COUNT", *(fitted(name.upper(), w) for name, w in zip(self.names, widths, strict=True))])
        lines = [
            f"{n:7}  " + "  ".join(fitted(value or "-", w) for value, w in zip(values, widths, strict=True)) for values, n in rows
        ]
        return "".join(line.rstrip() + "\n" for line in (title, *lines)).encode("utf-8", "backslashreplace")
