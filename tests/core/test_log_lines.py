"""What agents cause is logged, but not as often as they like."""

from __future__ import annotations

import logging
import sys

from agentfw.log_lines import OneLine, Sparing


def test_a_traceback_does_nothing_to_a_terminal() -> None:
    try:
        raise ValueError("a\x1b[2J\nagentfw.relay: forged\x9b\u202e")
    except ValueError:
        record = logging.LogRecord("agentfw", logging.ERROR, "x.py", 1, "failed", (), sys.exc_info())
    lines = OneLine("%(message)s").format(record).split("\n")
    assert lines[:2] == ["failed", "Traceback (most recent call last):"]
    assert lines[-2:] == ["ValueError: a\\x1b[2J", "agentfw.relay: forged\\x9b\\u202e"]


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_a_flood_is_cut_and_counted_and_others_are_not() -> None:
    now = 0.0
    handler = Kept()
    handler.addFilter(Sparing("test.relay", rate=2.0, burst=10, clock=lambda: now))
    noisy, other = logging.Logger("test.relay"), logging.Logger("test.pool")
    noisy.addHandler(handler)
    other.addHandler(handler)
    for number in range(100_000):
        noisy.info("%s: %d refused, 100%%", "agent-1", number)
    assert handler.lines == [f"agent-1: {number} refused, 100%" for number in range(10)]
    other.warning("a worker was lost")
    assert handler.lines[10:] == ["a worker was lost"]
    now = 1.0  # room for two
    for number in range(5):
        noisy.info("%s: %d refused", "agent-1", number)
    assert handler.lines[11:] == ["(99990 lines like it were left out before) agent-1: 0 refused", "agent-1: 1 refused"]
    now = 1000.0
    for number in range(50):
        noisy.info("%d", number)
    assert len(handler.lines) == 13 + 10
    assert handler.lines[13] == "(3 lines like it were left out before) 0"


def test_what_is_left_out_may_hold_a_percent_sign_and_no_arguments() -> None:
    now = 0.0
    handler = Kept()
    handler.addFilter(Sparing("test.relay", rate=1.0, burst=1, clock=lambda: now))
    noisy = logging.Logger("test.relay")
    noisy.addHandler(handler)
    noisy.info("100%")
    noisy.info("100%")
    now = 1.0
    noisy.info("100%")
    assert handler.lines == ["100%", "(1 lines like it were left out before) 100%"]
