"""The agents as `agentfw top` keeps, filters and sorts them, and the numbers that it writes."""

from __future__ import annotations

import asyncio

import pytest
from agentfw.cli.top import words
from agentfw.cli.top.rows import COLUMNS, Agents, fitting
from agentfw.texts import width
from agentfw.views import AgentRow, AgentTable
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.dashboard.fake import FakeObservatory


def row(id: str, **fields: object) -> AgentRow:
    return AgentRow(id=id, **{"name": f"name of {id}", "state": "running", **fields})  # type: ignore[arg-type]


def table(*rows: AgentRow, time: float = 100.0, since: int = 1, whole: bool = True, gone: tuple[str, ...] = ()) -> AgentTable:
    return AgentTable(time=time, since=since, whole=whole, rows=list(rows), gone=list(gone), total=len(rows))


def test_only_what_changed_is_taken_over() -> None:
    agents = Agents()
    agents.take(table(row("a"), row("b"), row("c")))
    agents.take(table(row("b", name="new"), since=2, whole=False, gone=("a",)))
    assert {id: known.row.name for id, known in agents.known.items()} == {"b": "new", "c": "name of c"} and agents.since == 2
    agents.take(table(row("d"), since=3))
    assert list(agents.known) == ["d"], "a whole table: what is not in it is gone"


def test_more_than_were_told_of_are_counted() -> None:
    agents = Agents()
    agents.take(replace(table(row("a")), total=2500))
    assert agents.total == 2500 and len(agents.known) == 1, "a pool without a dashboard is asked for 2,000 jobs"
    agents.take(table(row("b"), whole=False, since=2))
    assert agents.total == 2


def test_changes_come_to_the_same_as_all_of_it() -> None:
    async def body() -> None:
        fake = FakeObservatory(60, now=1e9)
        agents = Agents()
        for number in range(30):
            fake.step()
            if number % 5 == 2:
                fake.forget(fake.rows()[number % 7].id)
            if number % 7 == 3:
                fake.add()
            agents.take(await fake.agents(agents.since))
            assert {id: known.row for id, known in agents.known.items()} == {row.id: row for row in fake.rows()}

    asyncio.run(body())


def test_cores_are_what_cpu_time_grew_by() -> None:
    agents = Agents()
    agents.take(table(row("a", cpu_seconds=1.0), time=100.0))
    agents.take(table(row("a", cpu_seconds=2.0), time=102.0, whole=False))
    assert agents.known["a"].busy == 0.5
    agents.take(table(time=106.0, whole=False))
    assert agents.known["a"].busy == 0.5, "a pool does not measure each second"
    agents.take(table(time=109.0, whole=False))
    assert agents.known["a"].busy == 0.0
    agents.take(table(row("a", cpu_seconds=0.1), time=110.0, whole=False))
    assert agents.known["a"].busy == 0.0, "begun again, not of negative use"
    agents.take(table(row("a", cpu_seconds=1.1), time=111.0, whole=False))
    agents.take(table(row("a", cpu_seconds=2.1, state="done"), time=112.0, whole=False))
    assert agents.known["a"].busy == 0.0, "ended"


def test_filters() -> None:
    agents = Agents()
    agents.take(table(
        row("a", name="Browse 1", labels={"task": "x"}), row("b", name="browse 2", state="queued"),
        row("c", name="other", tenant="evals", denials=3), row("d", state="done", how="signal 11"),
    ))  # fmt: skip
    for words_, ended, expected in (
        ("", False, "abc"), ("", True, "abcd"), ("browse", False, "ab"), ("BROWSE task=x", False, "a"), ("!browse", False, "c"),
        ("browse !queued", False, "a"), ("evals", False, "c"), ("signal", True, "d"), ("nothing", True, ""), ("!", False, "abc"),
    ):  # fmt: skip
        assert "".join(sorted(agents.ids(words_, ended=ended))) == expected, words_


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_every_column_sorts(column: object) -> None:
    async def body() -> None:
        fake = FakeObservatory(200, now=1e9)
        agents = Agents()
        agents.take(await fake.agents(0))
        one = agents.ids(sort=column.name, ended=True)  # type: ignore[attr-defined]
        other = agents.ids(sort=column.name, reverse=True, ended=True)  # type: ignore[attr-defined]
        values = [column.value(agents.known[id], agents.now) for id in one]  # type: ignore[attr-defined]
        assert values == sorted(values) or values == sorted(values, reverse=True)
        assert [column.value(agents.known[id], agents.now) for id in other] == values[::-1]  # type: ignore[attr-defined]
        assert len(one) == len(set(one)) == 200

    asyncio.run(body())


@given(st.integers(1, 400))
def test_columns_fit(columns: int) -> None:
    chosen = fitting(columns)
    assert sum(wide for _, wide in chosen) + len(chosen) - 1 <= max(columns, 1) and all(wide > 0 for _, wide in chosen)
    assert chosen[0][0].name == "name"
    if columns >= 80:
        assert {"state", "time", "cores", "memory", "calls", "tokens", "cost", "denials"} <= {column.name for column, _ in chosen}
        assert sum(wide for _, wide in chosen) + len(chosen) - 1 == columns
    if columns >= 150:
        assert len(chosen) == len(COLUMNS)


def test_keys_are_each_columns_own() -> None:
    assert len({column.key for column in COLUMNS}) == len(COLUMNS) == len({column.name for column in COLUMNS})


@given(st.floats(0, 1e15))
def test_numbers_keep_their_columns(value: float) -> None:
    assert len(words.number(value)) <= 6 and len(words.size(value)) <= 5 and len(words.took(min(value, 3e6))) <= 6


def test_numbers() -> None:
    assert [words.number(v) for v in (None, 0, 9999, 10_000, 123_456, 1_234_567, 99_960_000)] == [
        "-", "0", "9,999", "10.0k", "123k", "1.23M", "100M"]  # fmt: skip
    sizes = (None, 0, 1023, 1024, 20_000, 1 << 20, 5 << 30)
    assert [words.size(v) for v in sizes] == ["-", "0", "1023", "1.0K", "20K", "1.0M", "5.0G"]
    assert [words.took(v) for v in (None, 0, 3.1e-6, 0.00082, 0.012, 1.236, 12.3, 61, 7200)] == [
        "-", "0", "3.1us", "820us", "12ms", "1.24s", "12.3s", "1m01s", "2h00m"]  # fmt: skip
    assert [words.money(v, "USD") for v in (None, 0.0, 0.0000041, 0.0123, 12.346)] == [
        "-",
        "0.0000 USD",
        "<0.0001 USD",
        "0.0123 USD",
        "12.35 USD",
    ]
    assert words.share(0.987) == "98.7 %"


@given(st.lists(st.floats(0, 1e12), max_size=80), st.integers(0, 60))
def test_bars_are_as_wide_as_they_must_be(values: list[float], columns: int) -> None:
    for glyphs in (words.FINE, words.COARSE):
        bar = words.spark(values, columns, glyphs)
        assert width(bar) == columns
        seen = bar.strip() if columns else ""
        assert (seen != "") == any(values[-columns:] if columns else []), "what is there is seen"
        lines = words.columns(values, 4, glyphs)
        assert len(lines) == 4 and all(len(line) == len(values) for line in lines)
    assert words.spark([0.0, 5.0, 1e-9], 5) == "   █▁" and words.spark([0.0, 0.0], 2) == "  "
    assert words.glyphs("latin-1", "xterm") is words.COARSE and words.glyphs("utf-8", "linux") is words.COARSE
    assert words.COARSE.rising.isascii()
