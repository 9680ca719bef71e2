"""What agents, servers and clients call things is harmless wherever a command prints it."""

from __future__ import annotations

import ast
import asyncio
import logging
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agentfw import Agent, Destination
from agentfw.cli.connect import table
from agentfw.cli.following import explain
from agentfw.cli.jobs import jobs_table
from agentfw.cli.output import Harmless, Lines, complain, put, say
from agentfw.cli.statistics import statistics_of
from agentfw.cli.tables import as_text
from agentfw.cli.top import summary, workers_table
from agentfw.config_shown import value_text
from agentfw.errors import AgentfwError
from agentfw.log_lines import OneLine
from agentfw.plugins.tracing import line
from agentfw.pool.jobs import JobInfo, JobResult, PoolInfo, WorkerInfo
from agentfw.reports import AuditEvent, Table
from agentfw.strace import Strace
from agentfw.texts import shown_lines
from agentfw_audit.showing import Csv, Jsonl
from agentfw_audit.showing import Table as AuditTable
from hypothesis import HealthCheck, given, settings

from tests.hostile import TEXTS, harmful, harmful_page, hostile

ROOT = Path(__file__).parents[2]
COMMANDS = [*(ROOT / "core/agentfw/cli").rglob("*.py"), *ROOT.glob("plugins/*/*/cli.py"), *ROOT.glob("plugins/*/*/cli/*.py"),
            ROOT / "core/agentfw/mock_llm/cli.py"]  # fmt: skip
COMPLETION = "source.source_template % source.source_vars()"
JSON = {"document", "json.dumps(document)", COMPLETION, "shown_lines(text)"}
"""What else is given to click.echo(): JSON that is ready, a shell's script of click's, and put()'s own."""


@pytest.mark.parametrize("file", COMMANDS, ids=lambda file: str(file.relative_to(ROOT)))
def test_commands_print_by_put_and_say(file: Path) -> None:
    """click.echo() is for JSON; nothing else writes to a standard stream of ours."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        place = f"{file.name}:{node.lineno}"
        if called in ("click.echo", "echo"):
            text = ast.unparse(node.args[0])
            assert text.startswith(("json.dumps(", "stats_json(")) or text in JSON, place
        if called == "sys.stdout.buffer.write" and file.name == "output.py":
            continue  # put_json()
        assert called not in ("print", "click.secho", "sys.stdout.write", "sys.stdout.buffer.write"), place
        if called == "sys.stderr.write":
            assert file.name in ("output.py", "traced.py"), place


def info(text: str) -> JobInfo:
    result = JobResult(kind="internal", text=text)
    return JobInfo(
        id=text, name=text, tenant=text, template=text, labels={text: text}, state="done", submitted=0.0, result=result
    )


@settings(max_examples=60, deadline=None)
@given(hostile)
def test_tables(text: str) -> None:
    workers = [WorkerInfo(number=0, pid=1, state="ready", running=0, idle=0, cells=0, restarts=0)]
    pool = PoolInfo(
        version=text, api="1", pid=1, state=text, started=0.0, queued=0, running=0, done=0, templates=[text], workers=workers  # type: ignore[arg-type]
    )  # fmt: skip
    for page in (
        table([("A", False), ("B", True)], [[text, "1"], ["x", text]]),
        jobs_table([info(text)], 1.0),
        as_text(Table("name", "title", ["model", "calls"], [[text, 1], ["b", None]])),
        workers_table(pool),
    ):
        assert not harmful_page(page.replace("\n", "\n."))
        assert summary(pool)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_cells_of_a_megabyte_are_cut(text: str) -> None:
    for page in (table([("A", False), ("B", True)], [[text, "1"]]), as_text(Table("name", "title", ["model"], [[text]]))):
        assert len(page) < 1000 and not harmful_page(page.replace("\n", "\n."))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(hostile)
def test_messages(capfd: pytest.CaptureFixture[str], text: str) -> None:
    say(f"note: {text}")
    complain(text, text)
    complain(str(AgentfwError(text)))
    complain(*explain(JobResult(kind="internal", text=text)))
    say(statistics_of([], {text: 1, f"hooks.{text}.calls": 1, f"hooks.{text}.seconds": 1, f"hooks.{text}.longest": 1}, 1.0))
    put(f"name: {text}\n{text}")
    out, err = capfd.readouterr()
    assert not harmful_page(out.replace("\n", "\n.")) and not harmful_page(err.replace("\n", "\n.")) and "note: " in err


@settings(max_examples=60, deadline=None)
@given(hostile)
def test_lines_of_logs_traces_and_events(text: str) -> None:
    record = logging.LogRecord("agentfw.relay", logging.WARNING, "x.py", 1, "denied %s", (text,), None)
    lines = [OneLine("%(name)s: %(message)s").format(record)]
    agent = Agent("a-1", text.encode("utf-8", "replace")[:100].decode("utf-8", "ignore"), {})
    call: Any = type("Call", (), {"plugin": text, "hook": "allow", "names": ("agent", "name", "destination")})()
    lines.append(line(call, (agent, text, Destination("https", "example.com", 443)), text, 1000))
    written: list[str] = []
    sink: Any = type("Sink", (), {"write": lambda self, text: written.append(text)})()
    Strace(sink, several=True).line(f"[{text}] read(0, ...)".replace("\n", " "))
    event = AuditEvent.about("denied", agent, rule=text, plugin=text, reason=text, target=text)
    lines += [written[0].removesuffix("\n"), event.rule, event.plugin, event.reason, event.extra["target"]]
    for each in lines:
        assert not harmful(f".{each}"), each[:200]


@settings(max_examples=60, deadline=None)
@given(hostile)
def test_configuration_as_toml(text: str) -> None:
    import tomllib

    text = text[:5000].encode("utf-8", "replace").decode()
    line = shown_lines(f"x = {value_text(text)}")
    assert not harmful(line) and tomllib.loads(line) == {"x": text}, "what is escaped for the terminal is TOML still"


@settings(max_examples=60, deadline=None)
@given(hostile)
def test_lines_of_the_audit_log(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    found = {
        "time": 1.0,
        "event": text,
        "agent": text,
        "labels": {text[:99]: text},
        "destination": text,
        "reason": text,
        "target": [text],
    }
    data = msgspec.json.encode(found)
    names = ("agent", "labels", "reason", "target")
    for shape in (Jsonl(terminal=True), Csv(), Csv(names), AuditTable((), 160), AuditTable(), AuditTable(names)):
        assert not harmful_page((shape.title + shape.line(data, found)).decode().replace("\n", "\n.")), type(shape)
    assert msgspec.json.decode(Jsonl(terminal=True).line(data, found)) == found, "the same JSON"


def written_by(kind: Any, data: bytes) -> bytes:
    """What a sink puts out through a Writer."""

    async def body() -> bytes:
        out: list[bytes] = []

        class Kept:
            async def write(self, data: bytes) -> None:
                out.append(data)

        sink = kind(Kept())
        for at in range(0, len(data), 7):
            await sink.write(data[at : at + 7])
        await sink.close()
        return b"".join(out)

    return asyncio.run(body())


@pytest.mark.parametrize("text", [text[:5000] for text in TEXTS], ids=range(len(TEXTS)))
def test_output_on_a_terminal(text: str) -> None:
    data = (text + "\n\x1b[31mtail").encode("utf-8", "surrogatepass")
    colours = re.compile(r"\x1b\[[0-9;:]{0,64}m|\t|[\u200c\u200d\ufe0e\ufe0f]")
    seen = written_by(Harmless, data).decode()
    assert seen.endswith("\x1b[0m") and not harmful_page(colours.sub("", "." + seen.replace("\n", "\n.")))
    marked = written_by(lambda writer: Lines(writer, b"[agent-1] "), data).decode()
    assert all(line.startswith("[agent-1] ") for line in marked.removesuffix("\n").split("\n")), (
        "no line is passed off as another's"
    )
    assert not harmful_page(colours.sub("", marked.replace("[agent-1] ", ""))), "each line as if it were the first"
    assert written_by(Lines, data) == data + b"\n", "a file gets it byte for byte"


def test_an_agents_colours_end_with_its_line() -> None:
    data = b"\x1b[31mred\nplain\n\x1b[3\n1mno colour"
    marked = written_by(lambda writer: Lines(writer, b"[agent-1] "), data).decode()
    assert marked.split("\n") == [
        "[agent-1] \x1b[31mred\x1b[0m", "[agent-1] plain", "[agent-1] \\x1b[3", "[agent-1] 1mno colour", ""]  # fmt: skip


def test_lines_that_end_as_on_windows_are_one_line_each() -> None:
    marked = written_by(lambda writer: Lines(writer, b"[agent-1] "), b"one\r\n\r\n10%\r20%\r\nlast\r").decode()
    assert marked.split("\n") == [*(f"[agent-1] {line}" for line in ("one", "", "10%", "20%", "last")), ""]


def test_no_color_and_help_have_no_escapes(capfd: pytest.CaptureFixture[str]) -> None:
    from agentfw.cli import cli, status_of

    for words in (["--help"], ["top", "--help"], ["no\x1b]0;t\x07\nsuch"], ["top", "--\x1b[31m"], ["ps", "--state", "\x1b[31m"]):
        status_of(lambda words=words: cli.main(words, prog_name="agentfw", standalone_mode=False), words)
    out, err = capfd.readouterr()
    assert not harmful_page(out) and not harmful_page(err) and os.linesep in out


def test_put_is_for_lines(capfd: pytest.CaptureFixture[str]) -> None:
    put("a\x1b\nb")
    assert capfd.readouterr().out == "a\\x1b\nb\n"
