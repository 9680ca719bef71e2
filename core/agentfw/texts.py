"""Text of others (agents, servers, a pool's clients) made fit for what people read, terminals above all. All that agentfw prints
of such text went through here:

    shown()         a name, a reason: one line, cut, without anything that steers a terminal or hides
    shown_lines()   a page of them
    fitted()        a cell of a table, by the columns that a terminal gives it
    plain_json()    a JSON text that others made: the same, in ASCII
    Tamed           a program's output on its way to a terminal: lines and colours stay, as with `less -R`

What is taken out is replaced by a visible escape (`\\x1b`): nothing is left out unseen. Escaped are control characters (C0, C1),
formatting characters (marks that turn the direction of writing, of no width; Unicode's general category Cf), line and paragraph
separators, lone surrogates, private and unassigned characters: all that `str.isprintable()` refuses; letters that print as
nothing (Unicode's Default_Ignorable_Code_Point, and blank Braille); and marks on a letter beyond the third, which would cover
the lines above.
"""

from __future__ import annotations

import codecs
import functools
import re

MAX_TEXT = 1024
"""Characters of a target or a reason that are told."""
MAX_LINE = 1 << 16
"""Of a line of a page."""
MAX_MARKS = 3
"""Over, under and behind one letter. Vietnamese, Thai and pointed Hebrew need as many."""

_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_VOWEL = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff]")
"""Of Hangul, and final consonants: they are written into the letter before."""
_JOINING = re.compile("[\u200c\u200d\ufe0e\ufe0f]")
_COLOUR = r"\x1b\[[0-9;:]{0,64}m"
_NOT_PLAIN = re.compile(r"[^ -~]")
_RESET = "\x1b[0m"
_PROGRAMS = re.compile(rf"{_COLOUR}|\r\n|\n(?=[^ -~]|\Z)|[^\n\t -~]")
_UNFINISHED = re.compile(r"(?:\r|\x1b(?:\[[0-9;:]{0,64})?)\Z")


def shown(text: str, limit: int = MAX_TEXT) -> str:
    """`text` on one line, cut to `limit` characters; what is not printable is escaped: control characters, line ends, marks that
    turn the direction of writing or have no width."""
    if len(text) > limit:
        text = text[: limit + 1]
    if not (text.isascii() and text.isprintable()):
        text = _escaped(text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def shown_lines(text: str, limit: int = MAX_LINE) -> str:
    """A page: each line of it as `shown()` has it."""
    return "\n".join(shown(line, limit) for line in text.split("\n"))


def plain_json(data: bytes) -> bytes:
    """The same JSON text on one line, in printable ASCII. (JSON lets C1 controls and all of Unicode stand in strings.)"""
    return _NOT_PLAIN.sub(_as_json, data.decode("utf-8", "replace")).encode()


def _as_json(match: re.Match[str]) -> str:
    number = ord(match[0])
    if number < 0x20:  # between its tokens: within strings they are escaped already
        return " "
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"


def why(error: BaseException) -> str:
    """`TYPE: MESSAGE` on one line, of an exception that may be anybody's."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # a plugin's own kind
        text = ""
    return shown(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def width(text: str) -> int:
    """Columns that a terminal gives a text that was `shown()`."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # as textual counts; most text is ASCII

    return cell_len(text)


def fitted(text: str, columns: int, right: bool = False) -> str:
    """`text`, shown, in exactly so many columns: cut (with an ellipsis) or filled, on the left if `right`."""
    text = shown(text, max(columns * (MAX_MARKS + 1), 4))
    room = columns - width(text)
    if room >= 0:
        return " " * room + text if right else text + " " * room
    if text.isascii():
        return text[: columns - 1] + "…" if columns > 0 else ""
    from rich.cells import set_cell_size

    return set_cell_size(text, columns - 1) + "…" if columns > 0 else ""


class Tamed:
    """A program's output, in pieces, for a terminal: text, line ends, tabs and colours pass, as with `less -R`; all else that
    steers (titles, clipboards, cursors, bells, backspaces) is escaped, and a lone carriage return, with which a line could be
    written over, ends the line. Of characters that do not print, those that join letters and choose the look of a symbol pass.
    """

    def __init__(self, colours: bool = True) -> None:
        """`colours` False: they are taken out."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._colours = colours
        self._rest = ""
        self._marks = MAX_MARKS  # those at the end of what was; at the beginning, and a line's, there is no letter for one
        self._after = 0
        self._coloured = False

    def feed(self, data: bytes) -> str:
        text = self._rest + self._decoder.decode(data)
        match = _UNFINISHED.search(text, max(len(text) - 80, 0))
        self._rest = "" if match is None else match[0]
        return self._pass(text[: len(text) - len(self._rest)])

    def end(self) -> str:
        """What is left, and colours are put back."""
        text, self._rest = self._rest + self._decoder.decode(b"", final=True), ""
        text = self._pass(text)
        self._marks = MAX_MARKS
        return text + self.plain()

    def plain(self) -> str:
        """What ends colours, if there are any."""
        coloured, self._coloured = self._coloured, False
        return _RESET if coloured else ""

    def _pass(self, text: str) -> str:
        if text.isascii() and text.isprintable():  # the most frequent, but for line ends
            self._marks = 0 if text else self._marks
            return text
        self._after = 0
        done = _PROGRAMS.sub(self._each, text)
        if text and self._after < len(text):
            self._marks = 0
        return done

    def _each(self, match: re.Match[str]) -> str:
        found = match[0]
        if match.start() > self._after:
            self._marks = 0
        self._after = match.end()
        if found in ("\n", "\r", "\r\n"):
            self._marks = MAX_MARKS
            return "\n"
        if len(found) > 1:
            if self._colours:
                self._coloured = True
                return found
            return ""
        if _JOINING.match(found):
            return found
        if _is_mark(found):
            self._marks += 1
            return found if self._marks <= MAX_MARKS and not _BLANK.match(found) else _escape(found)
        self._marks = 0
        return found if found.isprintable() and not _BLANK.match(found) else _escape(found)


def _escaped(text: str) -> str:
    marks, pieces = MAX_MARKS, []  # at the beginning one would sit on what stands before it
    for letter in text:
        if letter.isascii():
            marks = 0
            pieces.append(letter if letter.isprintable() else _escape(letter))
        elif _is_mark(letter):
            marks += 1
            pieces.append(letter if marks <= MAX_MARKS and not _BLANK.match(letter) else _escape(letter))
        else:
            marks = 0
            pieces.append(letter if letter.isprintable() and not _BLANK.match(letter) else _escape(letter))
    return "".join(pieces)


def _escape(letter: str) -> str:
    if 0xDC80 <= ord(letter) <= 0xDCFF:  # a byte that is no UTF-8, as Python's `surrogateescape` has it
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return ascii(letter)[1:-1]


@functools.lru_cache(4096)
def _is_mark(letter: str) -> bool:
    import unicodedata  # a large library, and most text is ASCII

    return letter >= "\u0300" and (unicodedata.category(letter) in ("Mn", "Me", "Mc") or bool(_VOWEL.match(letter)))
