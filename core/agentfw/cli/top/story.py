"""One agent's page of `agentfw top`."""

from __future__ import annotations

from collections.abc import Sequence

from ...texts import Tamed, fitted, shown
from ...views import AgentRow, AgentStory, OpenedFile, SeenDestination, SeenModelCall, SeenName, Step, Syscall
from . import words
from .pages import Line, Span, denials
from .rows import seconds_of, state_of
from .source import TAIL, Tail
from .words import Glyphs

TAIL_LINES = 200

SECTIONS = {
    "t": "timeline",
    "s": "syscalls",
    "f": "files",
    "n": "names",
    "d": "destinations",
    "m": "model calls",
    "x": "denials",
    "e": "exit",
    "o": "output",
}
"""The key that leads there, and the section."""


def story_page(story: AgentStory, tail: Tail, now: float, columns: int, glyphs: Glyphs) -> tuple[list[Line], dict[str, int]]:
    """Its lines, and in which of them each section begins."""
    lines: list[Line] = _summary(story.row, now, columns)
    starts: dict[str, int] = {}

    def section(name: str, count: int | None, body: Sequence[Line]) -> None:
        lines.append(())
        starts[name] = len(lines)
        more = story.dropped.get(name.replace(" ", "_"), 0)
        whole = "" if not more else f" of {words.number((count or 0) + more)}"
        many = "" if count is None else f" ({words.number(count)}{whole})"
        lines.append(((f"{name}{many}", "head"),))
        lines.extend(body or [(("  nothing", "dim"),)])

    section("timeline", len(story.timeline), _timeline(story.timeline, columns, glyphs))
    section("syscalls", len(story.syscalls), _syscalls(story.syscalls))
    section("files", len(story.files), _files(story.files))
    section("names", len(story.names), _names(story.names))
    section("destinations", len(story.destinations), _destinations(story.destinations))
    section("model calls", len(story.model_calls), _calls(story.model_calls))
    section("denials", len(story.denials), denials(story.denials, columns, agent=False))
    section("exit", None, _exit(story))
    section("output", None, output(tail))
    return lines, starts


def _summary(row: AgentRow, now: float, columns: int) -> list[Line]:
    role = "good" if row.state == "running" or row.how == "code 0" else "bad" if row.state == "done" else "warn"
    labels = " ".join(f"{shown(name, 64)}={shown(value, 128)}" for name, value in row.labels.items())
    where = "" if row.worker is None else f", worker {row.worker}"
    return [
        ((f"{shown(row.name, 200)} ", "b"), (shown(row.id, 40), "dim"), ("  ", ""), (shown(state_of(row), 60), role),
         (f" for {words.ago(seconds_of(row, now))}", "")),
        (("tenant ", "key"), (shown(row.tenant, 64), ""), ("  template ", "key"), (shown(row.template, 64) + where, ""),
         ("  labels ", "key"), (shown(labels, 400) or "-", "")),
        (("CPU ", "key"), (words.took(row.cpu_seconds), ""), ("  memory ", "key"), (words.size(row.memory), ""),
         ("  VM exits ", "key"), (words.number(row.exits), ""), ("  traffic ", "key"),
         (f"{words.size(row.bytes_up)} up {words.size(row.bytes_down)} down", "")),
        (("names ", "key"), (words.number(row.questions), ""), ("  connections ", "key"), (words.number(row.connections), ""),
         ("  requests ", "key"), (words.number(row.requests), ""), ("  model calls ", "key"), (words.number(row.model_calls), ""),
         ("  tokens ", "key"), (f"{words.number(row.input_tokens)} in {words.number(row.output_tokens)} out", ""),
         ("  cost ", "key"), (words.money(row.cost), ""), ("  denied ", "key"),
         (words.number(row.denials), "bad" if row.denials else "")),
    ]  # fmt: skip


def _timeline(steps: Sequence[Step], columns: int, glyphs: Glyphs) -> list[Line]:
    """Each step with its place in the life, to scale."""
    wide = max(min(columns - 70, 50), 10)
    whole = max((step.at + (step.seconds or 0.0) for step in steps), default=0.0) or 1.0
    lines: list[Line] = []
    for step in steps:
        at = min(max(int(step.at / whole * wide), 0), wide - 1)
        long = max(min(round((step.seconds or 0.0) / whole * wide), wide - at), 1)
        bar = glyphs.rest * at + glyphs.full * long + glyphs.rest * (wide - at - long)
        role = "" if step.ok else "bad"
        spans: list[Span] = [
            (fitted(words.took(step.at), 9, right=True) + " ", "dim"),
            (bar + " ", "bar"),
            (fitted(step.kind, 13) + " ", role or "key"),
            (fitted("" if step.seconds is None else words.took(step.seconds), 8, right=True) + "  ", ""),
            (shown(step.text, 400), role),
        ]
        lines.append(tuple(spans))
    return lines


def _syscalls(found: Sequence[Syscall]) -> list[Line]:
    if not found:
        return []
    lines: list[Line] = [(("  calls   in the host   seconds  errors  name", "dim"),)]
    for each in found:
        cells = (words.number(each.count), words.number(each.host_count), words.took(each.host_seconds), str(each.errors or ""))
        text = "".join(fitted(cell, wide, right=True) for cell, wide in zip(cells, (7, 14, 10, 8), strict=True))
        lines.append(((text + "  ", ""), (shown(each.name, 60), "key")))
    return lines


def _files(found: Sequence[OpenedFile]) -> list[Line]:
    lines: list[Line] = []
    for each in found:
        times = f"  x{words.number(each.count)}" if each.count > 1 else ""
        rule = f"  by {shown(each.rule, 200)}" if each.rule else ""
        lines.append(((fitted(each.error or each.mode or "-", 8) + " ", "bad" if each.error else "key"),
                      (shown(each.path, 500) + times, ""), (rule, "bad")))  # fmt: skip
    return lines


def _names(found: Sequence[SeenName]) -> list[Line]:
    lines: list[Line] = []
    for each in found:
        denied = f"  denied by {shown(each.denied_rule, 200)}" if each.denied_rule else ""
        about = fitted(each.qtype, 6) + fitted(f"x{words.number(each.count)}", 7) + fitted(words.took(each.seconds), 8)
        spans: list[Span] = [
            (about, "dim"),
            (shown(each.name, 260) + "  ", ""),
            (shown(each.answer, 300), "key"),
            (denied, "bad"),
        ]
        lines.append(tuple(spans))
    return lines


def _destinations(found: Sequence[SeenDestination]) -> list[Line]:
    lines: list[Line] = []
    for each in found:
        spans: list[Span] = [(fitted(each.destination, 40) + " ", "")]
        counts = f"{words.number(each.connections)} connections, {words.number(each.requests)} requests, "
        spans.append((counts + f"{words.size(each.bytes_up)} up {words.size(each.bytes_down)} down", "dim"))
        if each.errors:
            spans.append((f", {words.number(each.errors)} failed", "warn"))
        if each.denials:
            spans.append((f", {words.number(each.denials)} denied", "bad"))
        lines.append(tuple(spans))
    return lines


def _calls(found: Sequence[SeenModelCall]) -> list[Line]:
    lines: list[Line] = []
    for each in found:
        bad = bool(each.error) or each.status >= 400
        about = "~" if each.estimated else ""
        tokens = f"{about}{words.number(each.input_tokens)} in {about}{words.number(each.output_tokens)} out"
        spans: list[Span] = [
            (fitted(words.took(each.at), 9, right=True) + " ", "dim"),
            (fitted(str(each.status), 4), "bad" if bad else "good"),
            (fitted(words.took(each.seconds), 8, right=True), ""),
            (fitted(f" first {words.took(each.first_token)}", 14), "dim"),
            (fitted(tokens, 24), ""),
            (fitted(words.money(each.cost), 9) + " ", ""),
            (f"{shown(each.provider, 40)} {shown(each.model, 120)} {shown(each.operation, 40)}", "key"),
            (f"  {shown(each.error, 300)}" if each.error else "", "bad"),
        ]
        lines.append(tuple(spans))
    return lines


def _exit(story: AgentStory) -> list[Line]:
    if not story.exit_kind and not story.row.how:
        return [(("  it has not ended", "dim"),)]
    what = {"code": f"status {story.exit_code}", "signal": f"signal {story.exit_signal}"}
    kind = what.get(story.exit_kind, shown(story.exit_kind, 40)) or shown(story.row.how, 60)
    good = story.exit_kind == "code" and not story.exit_code
    lines: list[Line] = [((f"  {kind}", "good" if good else "bad"), (f"  {shown(story.exit_text, 500)}", ""))]
    counters = [f"{shown(name, 40)} {words.number(value)}" for name, value in story.counters.items() if value]
    for at in range(0, len(counters), 5):
        lines.append((("  " + "  ".join(counters[at : at + 5]), "dim"),))
    return lines


def output(tail: Tail) -> list[Line]:
    """The last lines that it wrote, without colours: they are its own."""
    tamed = Tamed(colours=False)
    text = tamed.feed(tail.data[-2 * TAIL :]) + tamed.end()
    lines = text.removesuffix("\n").expandtabs().split("\n") if text else []
    before = tail.before > 0 or len(tail.data) > 2 * TAIL or len(lines) > TAIL_LINES
    told: list[Line] = [(("  ...", "dim"),)] if before else []
    for line in lines[-TAIL_LINES:]:
        # What joins letters has no width that terminals agree on.
        plain = "".join(letter for letter in line[:2000] if letter not in "\u200c\u200d\ufe0e\ufe0f")
        told.append((("  " + shown(plain, 1000), ""),))
    return told
