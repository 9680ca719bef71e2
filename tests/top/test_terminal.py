"""`agentfw top` on a (pseudo-)terminal, as pyte has it: what is written, how much of it, and that it does nothing else."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pytest

from .terminal import SIGNALS, Terminal

pytestmark = pytest.mark.usefixtures("nothing_left")

ALLOWED = re.compile(
    rb"\x1b\[\??[0-9;]*[mHhlJK]"  # colours, places, modes
    rb"|\x1b\[(?:\?2026\$p|\?2048\$p|>[0-9]*u|<u|c)"  # what textual asks a terminal
    rb"|[\r\n]"
)


@pytest.fixture
def drawn() -> Iterator[Terminal]:
    with Terminal("tests.top.drawn", "1500", "COMMANDS", "ANSWERS") as terminal:
        terminal.look("..")
        terminal.drawn("of 1500 agents")
        settled(terminal)
        yield terminal


def settled(terminal: Terminal) -> None:
    """Until five looks, at what does not change, have led to nothing: what came before is all written."""
    for _ in range(200):
        if terminal.look(".....") == 0:
            return
    raise AssertionError("it writes and writes")


def test_what_did_not_change_is_not_written(drawn: Terminal) -> None:
    assert drawn.look("." * 10) == 0, "not a byte for an unchanged screen, not even a cursor"
    drawn.type("j")
    before = len(drawn.raw)
    for _ in range(500):  # a key takes its way through textual's threads
        if drawn.look("."):
            break
    settled(drawn)
    assert 0 < len(drawn.raw) - before < 600, "two lines for a cursor that moves"
    drawn.look("s")
    settled(drawn)
    before = len(drawn.raw)
    drawn.look("s")
    settled(drawn)
    assert 0 < len(drawn.raw) - before < 2 * 80 * 24, "a second of 1,500 agents is less than the screen, styles included"
    assert b"\x1b[2J" not in drawn.raw[before:], "never cleared: that is flicker"


def test_the_screen_is_what_was_written(drawn: Terminal) -> None:
    """What pieces make of it is what a new screen would be."""
    drawn.look("s" * 10)
    drawn.type("M")
    drawn.look("s..")
    pieces = drawn.drawn("MEM▾")
    drawn.resize(81, 24)
    drawn.look("...")
    drawn.resize(80, 24)
    os.kill(drawn.process.pid, signal.SIGWINCH)
    drawn.look("....")
    assert drawn.page() == pieces


def test_resize(drawn: Terminal) -> None:
    for columns, lines in ((120, 40), (40, 10), (200, 60), (80, 24)):
        drawn.resize(columns, lines)
        os.kill(drawn.process.pid, signal.SIGWINCH)
        drawn.look("....")
        page = drawn.page().split("\n")
        assert len(page) == lines and page[0].startswith("pool ready") and " of 1500 agents" in page[-1]


def test_lost_and_found(drawn: Terminal) -> None:
    drawn.look("l")
    drawn.drawn("agentfw top no pool runs at /run/x/pool.sock; looking for it again")
    drawn.type(" ")
    drawn.look("..")
    drawn.drawn("pool ready")


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_give_the_screen_back(drawn: Terminal, number: int) -> None:
    assert drawn.end(number) == 128 + number
    assert b"\x1b[?1049l" in drawn.raw and b"\x1b[?25h" in drawn.raw


def test_keys_that_end_it(drawn: Terminal) -> None:
    drawn.type("\x03")
    assert drawn.end() == 130


def test_no_color() -> None:
    with Terminal("tests.top.drawn", "50", "COMMANDS", "ANSWERS", env={"NO_COLOR": "1"}) as terminal:
        terminal.look("..")
        terminal.drawn("of 50 agents")
        terminal.type("j2")
        terminal.look("s...")
        codes = {code for match in re.findall(rb"\x1b\[([0-9;]*)m", terminal.raw) for code in match.split(b";")}
        assert codes <= {b"", b"0", b"1", b"2", b"4", b"7", b"39", b"49"}, "bold, dim, underlined, reversed; and no colours"


def test_without_unicode() -> None:
    with Terminal("tests.top.drawn", "50", "COMMANDS", "ANSWERS", env={"TERM": "linux"}) as terminal:
        terminal.look("..")
        page = terminal.drawn("of 50 agents", "CORESv")
        assert not re.search("[▁-█▴▾]", page)


def test_hostile_names_do_nothing() -> None:
    """Not one byte of an escape sequence of theirs: no title, no clipboard, no cursor, no link, and each line in its place."""
    with Terminal("tests.top.drawn", "40", "COMMANDS", "ANSWERS", "hostile", size=(160, 50)) as terminal:
        terminal.look("..")
        page = terminal.drawn("of 40 agents")
        assert "\\x1b]0;pwned\\x07title" in page and "\\u202egnp.txt.exe\\u202c" in page and "<img src=x onerror" in page
        for keys in ("\r", "fffnnn", "xo", "G", "\x1b", "2", "G", "3", "G"):
            terminal.type(keys)
            terminal.look("s...")
        assert terminal.screen.title == "" and terminal.screen.icon_name == ""
        steering = re.sub(ALLOWED, b"", terminal.raw)
        assert b"\x1b" not in steering and all(byte >= 32 and byte != 127 for byte in steering)
        text = steering.decode()
        assert all(letter.isprintable() for letter in text) and "\u0301" * 4 not in text
        assert len(terminal.raw) < 300_000, "a name of a megabyte is not sent"
