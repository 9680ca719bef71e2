"""Finding secrets in bytes, in the forms that servers and programs give text: as it is, in lower or upper case (names of hosts
and headers become that), base64 at any alignment, hexadecimal, and with any of its characters percent-encoded (URLs), as JSON or
JavaScript escapes, or as HTML entities, in any mixture.

An Aho-Corasick automaton finds all fixed forms at once (600 MB/s for 50 secrets, where one `re` alternation of them, which has
no common prefix to look for, does 4 MB/s). Escapes are undone first, where there are any, and positions carried back.
"""

from __future__ import annotations

import base64
import functools
import html
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

SHORTEST = 8
"""Characters of a secret: shorter ones would be found in much by chance, in their base64 forms above all."""
KIND = Implementation.ContiguousNFA
"""A table of all states (DFA) searches a tenth faster and takes 25 times as long to make: 30 ms for 100 secrets; agents wait."""

Found = tuple[int, int, int]
"""Start, end, and number of the secret."""

PART = 4096
DENSE = 32
"""A piece with more than one character in so many that may begin an escape is looked at in parts of PART bytes."""
AGAIN = 1024
"""Bytes held from which on they are looked at again only when as many have come, or some that cannot go on with them."""

_NAMED = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}
_CUT_ESCAPE = re.compile(
    rb"(?:%[0-9A-Fa-f]?|\\(?:u(?:0(?:0[0-9A-Fa-f]?)?)?|x[0-9A-Fa-f]?)?|&(?:#(?:[xX][0-9A-Fa-f]{0,7}|[0-9]{0,8})|[a-z]{0,4})?)\Z"
)
_LONGEST_ESCAPE = 12
_OF_ESCAPES = b"%\\&#;ampltgquosuxX0123456789ABCDEFabcdef\"'/"
"""What escapes are made of."""
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def in_parts(piece: bytes, last: bool) -> Iterator[tuple[bytes, bool]]:
    """(part, it is the last) of a piece. Undoing escapes is slow: what has many must not keep other agents waiting."""
    if len(piece) <= PART or sum(map(piece.count, (b"%", b"\\", b"&"))) * DENSE < len(piece):
        yield piece, last
        return
    for at in range(0, len(piece), PART):
        yield piece[at : at + PART], last and at + PART >= len(piece)


def forms(secret: bytes) -> set[bytes]:
    """The fixed forms of a secret: itself, in one case, hexadecimal, and what base64 makes of it wherever it stands in what is
    encoded."""
    found = {secret, secret.lower(), secret.upper(), secret.hex().encode(), secret.hex().upper().encode()}
    for before in range(3):
        # Characters that also depend on what stands before or behind it are left out.
        encoded = base64.b64encode(bytes(before) + secret)
        whole = encoded[(before * 8 + 5) // 6 : (before + len(secret)) * 8 // 6]
        found |= {whole, whole.translate(_URL_SAFE)}
    return found


class Escapes:
    """The escapes of some characters. Others are left alone: texts are full of `\\n`, `\\"` and `%20`."""

    def __init__(self, alphabet: bytes) -> None:
        by_digit: dict[str, str] = {}
        for code in sorted(set(alphabet)):
            by_digit[f"{code:02x}"[0]] = by_digit.get(f"{code:02x}"[0], "") + f"{code:02x}"[1]
        byte = "(?:" + "|".join(f"[{high}{high.upper()}][{low}{low.upper()}]" for high, low in by_digit.items()) + ")"
        text = alphabet.decode("latin-1")
        single = [c for c in "\"'\\/" if c in text]
        named = [name for c, name in _NAMED.items() if c in text]
        slashed = "".join(map(re.escape, single))
        slashes = rf"\\(?:u00{byte}|x{byte}{f'|[{slashed}]' if single else ''})"
        entities = rf"&(?:#0{{0,5}}[0-9]{{1,3}}|#[xX]0{{0,5}}{byte}{''.join(f'|{name}' for name in named)});"
        self._kinds = [  # first byte, beginnings, pattern
            (b"%", [b"%"], f"%{byte}"),
            (b"\\", [b"\\u00", b"\\x", *(b"\\" + c.encode() for c in single)], slashes),
            (b"&", [b"&#", *(f"&{name}".encode() for name in named)], entities),
        ]
        self._compiled: dict[str, re.Pattern[bytes]] = {}

    def patterns(self, data: bytes) -> list[re.Pattern[bytes]]:
        """What finds those that `data` can have: each kind by itself, since what is no escape in one may look like one of
        another (a URL in JSON, a secret with a `%` in it), and all kinds together."""
        kinds = [pattern for first, all_, pattern in self._kinds if first in data and any(begin in data for begin in all_)]
        if len(kinds) > 1:
            kinds.append("|".join(kinds))
        return [self._compile(kind) for kind in kinds]

    def _compile(self, pattern: str) -> re.Pattern[bytes]:
        compiled = self._compiled.get(pattern)
        if compiled is None:
            compiled = self._compiled[pattern] = re.compile(f"({pattern})".encode("ascii"))
        return compiled


@functools.lru_cache(maxsize=4096)
def _unescaped(escape: bytes) -> bytes:
    if escape[:1] == b"&":
        text = html.unescape(escape.decode("ascii"))
        return text.encode("latin-1") if len(text) == 1 and text <= "\xff" else escape
    if escape[:1] == b"%" or escape[1:2] in (b"u", b"x"):
        return bytes([int(escape[-2:], 16)])
    return escape[1:]


class View:
    """Bytes with their escapes undone. `at(i)`: where the i-th byte of `data` begins in the original."""

    __slots__ = ("_ends", "_parts", "_starts", "data")

    def __init__(self, original: bytes, escapes: re.Pattern[bytes]) -> None:
        # PERF: each step is one call for all escapes, and positions are found when something is. What agents send may be all
        # escapes, and others wait meanwhile.
        self._parts = escapes.split(original)
        """Texts, and between them what may be escapes."""
        bare = self._parts.copy()
        bare[1::2] = map(_unescaped, self._parts[1::2])
        self.data = b"".join(bare)
        self._starts: list[int] = []
        """Positions in `data` of what were escapes, and in `_ends` those of what follows them in the original. What was none
        after all is as long in both."""
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self._parts) // 2

    def _place(self) -> None:
        if len(self._starts) == len(self):
            return
        for text, escape in zip(self._parts[::2], self._parts[1::2], strict=False):
            before, begun = (self._starts[-1], self._ends[-1]) if self._starts else (-1, 0)
            self._starts.append(before + len(text) + len(_unescaped(escape)))
            self._ends.append(begun + len(text) + len(escape))

    def at(self, position: int) -> int:
        """For 0 <= position <= len(data)."""
        self._place()
        known = bisect_right(self._starts, position - 1)
        if not known:
            return position
        return self._ends[known - 1] + position - self._starts[known - 1] - 1

    def whole(self, position: int) -> int:
        """`position` of the original, or where the escape begins that it is inside of."""
        self._place()
        number = bisect_right(self._ends, position)
        return min(position, self.at(self._starts[number])) if number < len(self._ends) else position


class Needles:
    """Everything that is to be found. `secrets`: each of SHORTEST bytes at least, no two equal."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._owners: list[int] = []
        needles: list[bytes] = []
        self.secrets: Sequence[bytes] = tuple(secrets)
        known: dict[bytes, int] = {}
        for number, secret in enumerate(self.secrets):
            for form in forms(secret):
                known.setdefault(form, number)
        for form, number in known.items():
            needles.append(form)
            self._owners.append(number)
        self._needles = needles
        # The fast one that says whether there is anything; and, made when there is, the one that finds all of it.
        self._first_of = BytesAhoCorasick(needles, matchkind=MatchKind.LeftmostFirst, implementation=KIND)
        self._all_of: BytesAhoCorasick | None = None
        self._longest = max(map(len, needles), default=1)
        self._alphabet = bytes(set(b"".join(needles)))
        self._by_start: dict[bytes, list[bytes]] = {}
        for needle in needles:
            self._by_start.setdefault(needle[:2], []).append(needle)
        self._escapes = Escapes(self._alphabet)
        self._first = {needle[:1] for needle in needles}
        self._inside = self._alphabet + _OF_ESCAPES

    def __repr__(self) -> str:
        return f"<Needles {len(self.secrets)}>"

    def find(self, data: bytes) -> list[Found]:
        """All there is in it, by place; what overlaps, too."""
        return self.scan(data, True)[0]

    def scan(self, data: bytes, last: bool) -> tuple[list[Found], int]:
        """As `find()`; and how many bytes at the end may be the beginning of something, if more can come: the longest such."""
        if not self.secrets:
            return [], 0
        found = self._search(data)
        begun = 0 if last else self._undecided(data)
        cut = None if last else _CUT_ESCAPE.search(data, max(0, len(data) - _LONGEST_ESCAPE))
        patterns = self._escapes.patterns(data)
        if not patterns and cut is None:
            return found, begun
        whole = data[: cut.start()] if cut else data
        start = min(len(data) - begun, len(whole) - self._undecided(whole) if cut else len(data))
        views = [view for view in (View(whole, pattern) for pattern in patterns) if len(view)]
        for view in views:
            found += [(view.at(a), view.at(b), number) for a, b, number in self._search(view.data)]
            if not last:
                start = min(start, view.at(len(view.data) - self._undecided(view.data)))
        if views:
            found = sorted(set(found))
        if last:
            return found, 0
        while (earlier := min((view.whole(start) for view in views), default=start)) < start:
            start = earlier
        return found, len(data) - start

    def may_go_on(self, data: bytes) -> bool:
        """What has begun before `data` may not have ended behind it: nothing in it is in no secret and in no escape."""
        return not data.translate(None, self._inside)

    def _search(self, data: bytes) -> list[Found]:
        if not self._first_of.find_matches_as_indexes(data):
            return []
        if self._all_of is None:
            self._all_of = BytesAhoCorasick(self._needles, matchkind=MatchKind.Standard, implementation=KIND)
        matches = self._all_of.find_matches_as_indexes(data, overlapping=True)
        return sorted((start, end, self._owners[index]) for index, start, end in matches)

    def _undecided(self, data: bytes) -> int:
        tail = data[-(self._longest - 1) :] if self._longest > 1 else b""
        run = len(tail) - len(tail.rstrip(self._alphabet))  # most pieces end in something that is in no secret
        for at in range(len(tail) - run, len(tail) - 1):
            for needle in self._by_start.get(tail[at : at + 2], ()):
                if len(needle) > len(tail) - at and needle.startswith(tail[at:]):
                    return len(tail) - at
        return 1 if run and tail[-1:] in self._first else 0
