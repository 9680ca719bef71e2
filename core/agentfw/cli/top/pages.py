"""What `agentfw top` shows besides the table of agents, as lines of spans: (text, role). Knows no terminal.

Roles: "" plain, "b" bold, "dim", "good", "warn", "bad", "key" (a number's name), "bar", "head" (a section's).
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Sequence

from ...texts import fitted, shown, width
from ...views import WARMUP_BUCKET, Denial, Loaded, Overview, Sample, Spread
from . import words
from .words import Glyphs

Span = tuple[str, str]
Line = tuple[Span, ...]

STRIP = 6
"""Lines of `numbers()`."""


def plain(lines: Sequence[Line]) -> str:
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def heading(overview: Overview | None, where: str, trouble: str, columns: int) -> Line:
    """The first line: what the pool is, or why nothing is known of it."""
    if trouble:
        return (("agentfw top ", "b"), (fitted(trouble, max(columns - 12, 1)).rstrip(), "bad"))
    if overview is None:
        return (("agentfw top ", "b"), (f"asks the pool at {shown(where, 200)}", "dim"))
    state = shown(overview.state, 20)
    spans: list[Span] = [("pool ", "b"), (state, "good" if state == "ready" else "warn")]
    spans.append((f", up {words.ago(overview.time - overview.started)}, {overview.workers} workers", ""))
    if overview.workers_missing:
        which = f"worker {overview.silent[0]}" if len(overview.silent) == 1 else str(overview.workers_missing)
        spans.append((f" ({which} silent)", "warn"))
    # Those that go first when there is no room come last.
    counts = [(overview.running, "running", "b"), (overview.queued, "queued", "warn" if overview.queued else "")]
    counts += [(overview.failed, "failed", "bad"), (overview.done, "done", ""), (overview.idle, "warm", "")]
    counts += [(overview.warming, "warming", "")]
    room = columns - sum(width(text) for text, _ in spans)
    kept = [each for each in counts if each[0] or each[1] in ("running", "queued")]
    while kept and sum(len(words.number(each[0])) + len(each[1]) + 3 for each in kept) > room:
        kept.pop()
    order = ("running", "warm", "warming", "queued", "done", "failed")
    for count, name, role in sorted(kept, key=lambda each: order.index(each[1])):
        spans.append((f"  {words.number(count)} {name}", role))
    return tuple(spans)


def numbers(overview: Overview, columns: int, glyphs: Glyphs) -> list[Line]:
    """The six numbers and what came of them, in STRIP lines of two cells each."""
    half = max(columns // 2 - 2, 30)
    bars = max(half - 32, 6)
    history = overview.history
    spread = "p50 {} p95 {} p99 {}".format
    slow = sum(overview.warmup[20:])
    made = sum(overview.warmup)
    warm = f"{words.number(made)} VMs, {words.number(slow)} over 2s" if made else "-"
    left = [
        ("warm-up", warm, words.spark(overview.warmup[:20], min(bars, 20), glyphs) if overview.warmup else ""),
        ("density", f"{words.number(overview.agents_per_gb)} a GiB of {words.size(overview.memory or None)}",
         words.spark([s.memory for s in history], bars, glyphs)),
        ("DNS hits", f"{words.share(overview.dns_hit_rate)} of {words.number(overview.dns_hits + overview.dns_misses)}",
         words.spark([s.questions for s in history], bars, glyphs)),
        ("TLS", f"{words.number(overview.tls_sessions)} sessions, "
                f"{'-' if overview.agents_per_session is None else f'{overview.agents_per_session:.1f}'} agents each", ""),
        ("traffic", f"{words.size(overview.bytes_up)} up {words.size(overview.bytes_down)} down{_rate(history)}",
         words.spark([s.bytes_up + s.bytes_down for s in history], bars, glyphs)),
        ("denials", words.number(overview.denials), words.spark([s.denials for s in history], bars, glyphs)),
    ]  # fmt: skip
    right = [
        ("dispatch", spread(*_percentiles(overview.dispatch)), ""),
        ("connect", spread(*_percentiles(overview.connect)), ""),
        ("first call", spread(*_percentiles(overview.first_call)), ""),
        ("LLM calls", f"{words.number(overview.model_calls)}, {words.number(overview.model_calls_failed)} failed",
         words.spark([s.model_calls for s in history], bars, glyphs)),
        ("tokens", f"{words.number(overview.input_tokens)} in {words.number(overview.output_tokens)} out",
         words.spark([s.tokens for s in history], bars, glyphs)),
        ("cost", words.money(overview.cost, shown(overview.currency, 8)), ""),
    ]  # fmt: skip
    lines = []
    for (a, value_a, bar_a), (b, value_b, bar_b) in zip(left, right, strict=True):
        bad = "bad" if a == "denials" and overview.denials else ""
        line = [*_cell(a, value_a, bar_a, half, 9, bad), ("  ", ""), *_cell(b, value_b, bar_b, columns - half - 2, 11, "")]
        lines.append(tuple(line))
    return lines


def _cell(name: str, value: str, bar: str, columns: int, names: int, role: str) -> list[Span]:
    room = max(columns - names, 1)
    bar = bar if width(value) + 1 + width(bar) <= room else ""
    return [(fitted(name, names), "key"), (fitted(value, room - width(bar)), role), (bar, "bar")]


def _percentiles(spread: Spread) -> tuple[str, str, str]:
    return words.took(spread.p50), words.took(spread.p95), words.took(spread.p99)


def _rate(history: Sequence[Sample]) -> str:
    last = history[-5:]
    return f", {words.size(sum(s.bytes_up + s.bytes_down for s in last) / len(last))}/s" if last else ""


def overview_page(overview: Overview, workers: str, columns: int, glyphs: Glyphs) -> list[Line]:
    """All of it: numbers, their courses, the warm-up histogram, workers, what was denied of late."""
    wide = max(min(columns - 26, 120), 10)
    lines: list[Line] = [*numbers(overview, columns, glyphs), ()]
    history = overview.history
    shown_seconds = min(len(history), wide)
    lines.append(_head(f"the last {words.ago(float(shown_seconds))}, a second a bar" if shown_seconds else "no seconds yet"))
    courses: list[tuple[str, list[float], Callable[[float], str]]] = [
        ("running", [s.running for s in history], words.number),
        ("started/s", [s.started for s in history], _rated),
        ("ended/s", [s.ended for s in history], _rated),
        ("names/s", [s.questions for s in history], _rated),
        ("requests/s", [s.requests for s in history], _rated),
        ("model calls/s", [s.model_calls for s in history], _rated),
        ("tokens/s", [s.tokens for s in history], _rated),
        ("denials/s", [s.denials for s in history], _rated),
        ("up/s", [s.bytes_up for s in history], words.size),
        ("down/s", [s.bytes_down for s in history], words.size),
        ("memory", [s.memory for s in history], words.size),
    ]
    for name, values, form in courses:
        last = form(values[-1]) if values else "-"
        lines.append(((fitted(name, 14), "key"), (fitted(last, 8, right=True), ""), ("  ", ""),
                      (words.spark(values, wide, glyphs), "bar")))  # fmt: skip
    lines += [(), _head("warm-up: VMs by the time until they were warm")]
    bars = words.columns(overview.warmup, 6, glyphs) if sum(overview.warmup) else []
    lines += [
        ((f"{words.number(max(overview.warmup)) if row == 0 else '':>8} ", "dim"), (bar, "bar")) for row, bar in enumerate(bars)
    ]
    if bars:
        marks = "".join(f"{at * WARMUP_BUCKET:.0f}s".ljust(10) for at in range(0, len(overview.warmup), 10))
        lines.append((("         " + marks.rstrip(), "dim"), (f"   ({words.number(overview.warmup[-1])} longer)", "dim")))
    lines += [(), _head("to the program, to a connection, to the first request: p50, p95, p99, most")]
    for name, spread in (("dispatch", overview.dispatch), ("connect", overview.connect), ("first call", overview.first_call)):
        cells = [fitted(words.took(value), 9, right=True) for value in (spread.p50, spread.p95, spread.p99, spread.most)]
        lines.append(((fitted(name, 14), "key"), ("".join(cells), ""), (f"  of {words.number(spread.count)}", "dim")))
    if workers:
        lines += [(), *(((shown(line, 300), "head" if at == 0 else ""),) for at, line in enumerate(workers.split("\n")))]
    lines += [(), _head(f"denied: {words.number(overview.denials)}, the last of them")]
    lines += denials(overview.recent_denials, columns) or [(("  nothing", "dim"),)]
    return lines


def _rated(value: float) -> str:
    return f"{value:.1f}" if value < 100 else words.number(value)


def _head(text: str) -> Line:
    return ((text, "head"),)


def clock(seconds: float) -> str:
    try:
        return time.strftime("%H:%M:%S", time.localtime(seconds))
    except (OverflowError, OSError, ValueError):
        return "?"


def denials(found: Sequence[Denial], columns: int, agent: bool = True) -> list[Line]:
    lines: list[Line] = []
    for each in found:
        times = f" x{each.count}" if each.count > 1 else ""
        rule = f"{shown(each.plugin, 40)}: {shown(each.rule, 200)}" if each.rule else shown(each.plugin, 40)
        if each.rule.startswith(f"{each.plugin}."):  # it says whose it is
            rule = shown(each.rule, 200)
        spans: list[Span] = [(f"{clock(each.time)} ", "dim")]
        if agent:
            spans.append((fitted(each.agent or each.agent_id, 16) + " ", ""))
        spans.append((fitted(each.destination, max(20, min(columns - 56, 40))) + times + " ", "bad"))
        spans.append((f"{rule}  ", "warn"))
        spans.append((shown(each.reason, 300), "dim"))
        lines.append(tuple(spans))
    return lines


def loaded_page(loaded: Loaded | None, columns: int) -> list[Line]:
    """Policy and plugins, as they are in force. None: it is not known."""
    if loaded is None:
        return [(("what is loaded is told by the plugin `dashboard`, and was not told", "dim"),)]
    lines: list[Line] = [(("file     ", "key"), (shown(loaded.file, 400) or "none: the defaults", ""))]
    lines += [(), _head("policy")]
    lines += [(("  " + shown(line, 400), ""),) for line in loaded.policy.rstrip("\n").split("\n")]
    lines += [(), _head("plugins, in the order in which they are called")]
    for plugin in loaded.plugins:
        lines.append(((f"{shown(plugin.name, 60)} ", "b"), (shown(plugin.version, 40), "dim")))
        lines += _wrapped(", ".join(plugin.hooks), columns, "")
        lines += [(("    " + shown(line, 400), "dim"),) for line in plugin.table.rstrip("\n").split("\n") if line]
        told = [f"{shown(name, 60)} {words.number(value)}" for name, value in plugin.counters.items() if value]
        lines += _wrapped(", ".join(told), columns, "key")
    return lines


def _wrapped(text: str, columns: int, role: str) -> list[Line]:
    return [(("    " + line, role),) for line in textwrap.wrap(shown(text, 2000), max(columns - 6, 20))]
