"""`agentfw.texts`: the one place that makes others' text fit for a terminal."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from agentfw.texts import MAX_TEXT, Tamed, fitted, plain_json, shown, shown_lines, why, width
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.hostile import TEXTS, harmful, harmful_page, hostile


@settings(deadline=None)
@given(hostile, st.integers(4, 2000))
def test_a_line_is_harmless_and_short(text: str, limit: int) -> None:
    line = shown(text, limit)
    assert not harmful(line) and len(line) <= limit
    assert shown(line, limit) == line, "shown twice is shown once"


@settings(deadline=None)
@given(hostile)
def test_a_page_is_harmless(text: str) -> None:
    assert not harmful_page(shown_lines(text)) and shown_lines(text).count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "text",
    ["agent-1", "Zoë", "naïve café", "Nguyễn", "Nguye\u0302\u0303n", "漢字", "שָׁלוֹם", "สวัสดี", "emoji 👍", "a\\b", "x" * MAX_TEXT],
)
def test_what_people_write_stays(text: str) -> None:
    assert shown(text) == text


def test_what_is_escaped_can_be_seen() -> None:
    assert shown("\x1b[31m\u202e\u200b\x9b\ud800\udc80\n") == r"\x1b[31m\u202e\u200b\x9b\ud800\x80\n"
    assert shown("e\u0301\u0301\u0301\u0301") == "e\u0301\u0301\u0301\\u0301"
    assert shown("x" * 2000) == "x" * (MAX_TEXT - 3) + "..."


@settings(deadline=None)
@given(hostile, st.integers(1, 100), st.booleans())
def test_a_cell_has_its_columns(text: str, columns: int, right: bool) -> None:
    cell = fitted(text, columns, right)
    assert not harmful(cell.lstrip()) and width(cell) == columns
    assert cell_len(cell) == columns, "as textual's library counts them"


def test_a_cell() -> None:
    assert (
        fitted("漢字漢字", 6) == "漢字 …"
        and fitted("ab", 4) == "ab  "
        and fitted("ab", 4, True) == "  ab"
        and fitted("abc", 2) == "a…"
    )


def test_of_exceptions() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert why(Odd()) == "Odd" and why(ValueError("\x1b]0;t\x07\nx")) == r"ValueError: \x1b]0;t\x07 x"


@settings(deadline=None)
@given(
    st.recursive(
        hostile.map(lambda text: text[:2000].encode("utf-8", "replace").decode()), lambda inner: st.lists(inner, max_size=3)
    )
)
def test_json_is_the_same_and_plain(value: object) -> None:
    for data in (msgspec.json.encode(value), json.dumps(value, ensure_ascii=False, indent=1).encode()):
        plain = plain_json(data)
        assert plain.isascii() and plain.decode().isprintable() and json.loads(plain) == value


COLOUR = re.compile(r"\x1b\[[0-9;:]{0,64}m")
JOINING = re.compile("[\u200c\u200d\ufe0e\ufe0f]")


@settings(deadline=None)
@given(st.lists(st.one_of(hostile.map(lambda text: text.encode("utf-8", "surrogatepass")), st.binary(max_size=30)), max_size=6))
def test_output_is_tame_however_it_is_cut(pieces: list[bytes]) -> None:
    tamed = Tamed()
    text = "".join(map(tamed.feed, pieces)) + tamed.end()
    assert not harmful_page(JOINING.sub("", COLOUR.sub("", text.replace("\t", "."))))
    whole = Tamed()
    assert whole.feed(b"".join(pieces)) + whole.end() == text
    plain = Tamed(colours=False)
    assert "\x1b" not in plain.feed(b"".join(pieces)) + plain.end()
    text.encode()


@settings(deadline=None)
@given(st.text(st.characters(min_codepoint=32, max_codepoint=126) | st.sampled_from("\n\té漢"), max_size=200))
def test_plain_output_passes(text: str) -> None:
    tamed = Tamed()
    assert tamed.feed(text.encode()) + tamed.end() == text


def test_output() -> None:
    def tame(*pieces: bytes, colours: bool = True) -> str:
        tamed = Tamed(colours)
        return "".join(map(tamed.feed, pieces)) + tamed.end()

    assert tame(b"\x1b[1;31mred\x1b[0m\n") == "\x1b[1;31mred\x1b[0m\n\x1b[0m"
    assert tame(b"\x1b[3", b"1mred") == "\x1b[31mred\x1b[0m" and tame(b"\x1b[31mred", colours=False) == "red"
    assert tame(b"50%\r", b"\n100%\rdone\x08\x1b[2K") == "50%\n100%\ndone\\x08\\x1b[2K"
    assert tame(b"\x1b]0;ti", b"tle\x07\x1b") == r"\x1b]0;title\x07\x1b"
    assert tame(b"\xc3", b"\xa9 \xff \xf0\x9f") == "é \\xff \\xf0\\x9f"
    assert tame("👩\u200d🚀 ❤\ufe0f \u202e".encode()) == "👩\u200d🚀 ❤\ufe0f \\u202e"
    assert tame(b"\x1b[" + b"1" * 100 + b"m").startswith("\\x1b[111")
    mark, seen = "\u0301", "\\u0301"
    assert tame(f"{mark}e{mark}{mark}{mark}{mark}".encode()) == f"{seen}e{mark}{mark}{mark}{seen}"
    assert tame(f"e{mark}{mark}{mark}x".encode(), mark.encode()) == f"e{mark}{mark}{mark}x{mark}"
    for end in ("\n", "\r", "\r\n", "\n\x1b[1m"):
        assert tame(f"a{end}{mark}".encode()) == tame(f"a{end}".encode(), mark.encode()) != ""
        assert seen in tame(f"a{end}{mark}".encode()), "nothing is put over the line before"
    tamed = Tamed()
    assert tamed.feed(b"a") + tamed.end() + tamed.feed(mark.encode()) == f"a{seen}", "what comes then stands elsewhere"


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_megabytes_take_no_time_worth_naming(text: str) -> None:
    """Work is bounded by what is shown (the suite's time limit is the measure: without that it is seconds each)."""
    for _ in range(200):
        assert len(shown(text)) <= MAX_TEXT and not harmful(shown(text, 60))
