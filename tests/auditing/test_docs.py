"""docs/audit.md has each field of each line, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from agentfw.reports import Decision, JobEvent
from agentfw_audit.config import Kind
from agentfw_audit.lines import LINES, Line
from agentfw_audit.plugin import HOOKS

TEXT = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()


def section(event: str) -> str:
    return re.split(r"\n##+ ", TEXT.split(f"\n### {event}\n")[1])[0]


@pytest.mark.parametrize("event", LINES)
def test_fields_are_documented(event: str) -> None:
    rows = re.findall(r"^\| (`[^|]*`) \|", section(event), re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert documented == set(LINES[event].__struct_fields__) - set(Line.__struct_fields__)


@pytest.mark.parametrize("event", LINES)
def test_when_what_and_who_stand_before_all_else(event: str) -> None:
    """As in the documentation's own line: what an agent chose, as a target, comes behind, however long it is."""
    first = ("time", "event", "agent_id", "agent", "labels")
    assert LINES[event].__struct_encode_fields__[: len(first)] == first
    assert re.findall(r'"(\w+)":', TEXT.split("```json\n")[1])[: len(first)] == list(first)


def test_each_kind_of_line_has_a_section() -> None:
    lines = TEXT.split("\n## Lines\n")[1].split("\n## ")[0]
    assert set(re.findall(r"\n### (\w+)\n", lines)) == {*LINES, "others"}


@pytest.mark.parametrize("event", ["job", "pool"])
def test_what_can_become_of_a_job_or_pool_is_documented(event: str) -> None:
    """As the core's own definition lists it."""
    source = (Path(__file__).parents[2] / "core/agentfw/reports.py").read_text()
    kinds = source.split('    kind: str\n    """Of a job: ')[1].split('"""')[0]
    of_job, of_pool = kinds.split("Of the pool: ")
    row = next(line for line in section(event).splitlines() if line.startswith("| `what` |"))
    assert set(re.findall(r'"(\w+)"', of_job if event == "job" else of_pool)) <= set(re.findall(r"`(\w+)`", row))


def test_nothing_that_is_told_is_left_out() -> None:
    assert set(Decision.__struct_fields__) <= set(LINES["decision"].__struct_fields__)
    mapped = {"time", "kind", "name", "labels", "agent_id"}
    assert set(JobEvent.__struct_fields__) - mapped <= set(LINES["job"].__struct_fields__)
    assert set(HOOKS) | {"exits"} == set(get_args(Kind))
