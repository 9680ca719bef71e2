"""Texts that agents, servers and clients may choose, and what a terminal must never be sent of them."""

from __future__ import annotations

import re
import unicodedata

from hypothesis import strategies as st

TEXTS = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;a title\x07",
    "\x1b]52;c;aGFybQ==\x1b\\",
    "\x1b]8;;http://evil.example/\x1b\\link\x1b]8;;\x1b\\",
    "\x1bP+q544e\x1b\\",
    "\x1b[2J\x1b[H\x1b[?1049l\x1bc",
    "\x1b[6n\x1b[c\x1bZ",
    "\x9b31mC1\x9d0;title\x9c",
    "one\nerror: two\r\nthree\rfour\x0bfive\x0csix\x85seven\u2028eight\u2029nine",
    "\u202egnp.exe\u202c \u2066iso\u2069 \u061c\u200e\u200f",
    "zero\u200bwidth\u200c\u200d\u2060\ufeff\u00ad\u180e",
    "\u3164\u115f\u1160\uffa0\u2800\u034f",
    "Z" + "\u0301\u0316\u20dd\u0489" * 500 + "algo",
    "\u0301first",
    "\u0915" + "\u093e" * 300 + "\u1100" + "\u1161" * 300 + "\U0001f44d\U0001f3fd" * 30 + "\U0001f1e9\U0001f1ea" * 9,
    "a\ufe0f\U000e0100\U000e0041\U000e007f",
    "\x00\x07\x08\x7f\t\ue000\U0010ffff\ufffe",
    "漢字" * 40 + "\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f1e9\U0001f1ea",
    "<script>alert(1)</script> [red]markup[/red] [link=http://x]y[/] %s {0} $(x) `x`",
    "",
    "x" * (1 << 20),
    "\x1b" * (1 << 20),
    "\u0301" * (1 << 20),
]

hostile = st.one_of(
    st.sampled_from([text[:4000] for text in TEXTS]),
    st.text(st.characters(), max_size=60),
    st.text(st.sampled_from("\x1b[]0;m\x07\r\n\x9b\u202e\u200b\u0301aé漢\ud800\U0001f469\ufe0f"), max_size=60),
)
"""Whatever a `str` can be, lone surrogates too; TEXTS itself has those of a megabyte."""

_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


def harmful(line: str) -> str:
    """What of a line is no text that stays where it is; "": it is harmless."""
    marks = 3  # at its beginning one would sit on something else
    for letter in line:
        if not letter.isprintable() or _BLANK.match(letter):
            return f"{letter!a} in it"
        marks = marks + 1 if unicodedata.category(letter) in ("Mn", "Me", "Mc") else 0
        if marks > 3:
            return "a tower of marks"
    return ""


def harmful_page(text: str) -> str:
    return next((found for line in text.split("\n") if (found := harmful(line))), "")
