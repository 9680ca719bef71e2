"""The pages of `agentfw top` as lines: whatever a pool tells, they can be drawn, and what is on them is harmless."""

from __future__ import annotations

import types
import typing
from typing import Any

import msgspec
import pytest
from agentfw.cli.top.pages import heading, loaded_page, numbers, overview_page, plain
from agentfw.cli.top.rows import COLUMNS, Agents
from agentfw.cli.top.source import Tail
from agentfw.cli.top.story import SECTIONS, story_page
from agentfw.cli.top.words import COARSE, FINE
from agentfw.texts import fitted, width
from agentfw.views import AgentRow, AgentStory, AgentTable, Loaded, Overview, Sample

from tests.hostile import TEXTS, harmful_page

NUMBERS = [0, 1, -1, 2**63, -(2**63), 1e308, -1e308, 5e-324]


def filled(kind: Any, number: float, text: str) -> Any:
    """A value of a type of `agentfw.views` in which each number is `number` and each text `text`."""
    if kind is float:
        return float(number)
    if kind is int:
        return int(max(min(number, 2**63), -(2**63)))
    if kind is bool:
        return True
    if kind is str:
        return text
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return [filled(arguments[0], number, text)] * 3
    if origin is dict:
        return {filled(arguments[0], number, text)[:99]: filled(arguments[1], number, text)}
    if origin in (types.UnionType, typing.Union):
        return filled(arguments[0], number, text)
    if origin is typing.Literal:
        return arguments[0]
    assert issubclass(kind, msgspec.Struct), kind
    return kind(**{name: filled(each, number, text) for name, each in typing.get_type_hints(kind).items()})


def drawn(number: float, text: str) -> str:
    overview = filled(Overview, number, text)
    agents = Agents()
    agents.take(filled(AgentTable, number, text))
    agents.take(filled(AgentTable, number, text))
    pages = [plain([heading(overview, text, "", 80), heading(None, text, "", 80), heading(overview, text, text, 80)])]
    for glyphs in (FINE, COARSE):
        pages.append(plain(numbers(overview, 80, glyphs)))
        assert all(width(line) <= 80 for line in pages[-1].split("\n"))
        pages.append(plain(overview_page(overview, text, 80, glyphs)))
        lines, starts = story_page(filled(AgentStory, number, text), Tail(text.encode("utf-8", "replace"), 9), 1e9, 80, glyphs)
        assert list(starts) == list(SECTIONS.values())
        pages.append(plain(lines))
    pages.append(plain(loaded_page(filled(Loaded, number, text), 80)))
    for column in COLUMNS:
        for id in agents.ids(sort=column.name, ended=True):
            known = agents.known[id]
            pages.append(fitted(column.text(known, agents.now), column.width, column.right))
            assert width(pages[-1]) == column.width
    return "\n".join(pages)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_that_cannot_be(number: float) -> None:
    assert drawn(number, "text")


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_texts_of_others(text: str) -> None:
    page = drawn(1, text)
    assert not harmful_page("." + page.replace("\n", "\n.")) and len(page) < 500_000


def test_a_bar_takes_no_room_from_its_number() -> None:
    history = [Sample(time=float(each), bytes_up=1e6, denials=1.0) for each in range(60)]
    overview = Overview(time=60.0, started=0.0, bytes_up=123 << 20, bytes_down=456 << 20, denials=9_999, history=history)
    for columns in range(80, 200):
        page = plain(numbers(overview, columns, FINE))
        assert "traffic  123M up 456M down, " in page and "denials  9,999 " in page and "…" not in page, columns
    assert "█" in page


def test_nothing_yet() -> None:
    empty = Overview(time=0.0, started=0.0)
    row = AgentRow(id="a", name="a")
    lines, _ = story_page(AgentStory(row=row), Tail(), 0.0, 80, FINE)
    text = plain([*numbers(empty, 80, FINE), *overview_page(empty, "", 80, FINE), *lines, *loaded_page(None, 80)])
    assert "it has not ended" in text and "no seconds yet" in text and "was not told" in text
