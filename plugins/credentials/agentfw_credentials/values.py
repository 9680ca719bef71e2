"""What a secret may look like, and all that there are at the moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from agentfw import ConfigError

from .search import SHORTEST, Needles

LONGEST = 16384
MOST_OLD = 16
"""Old values kept of each owner. A server may give tokens for seconds: all of an hour's take seconds to compile."""


def check_secret(value: str, what: str) -> str:
    """`value`, if it can be sent in a header and told apart from other text. ConfigError (key "value") names `what` only."""
    if not value.strip():
        raise ConfigError("value", f"{what} is empty")
    if value != value.strip():
        raise ConfigError("value", f"{what} has blanks or line breaks at its ends")
    if not value.isprintable() or not value.isascii():
        raise ConfigError("value", f"{what} has a line break, NUL or another character that a header cannot carry")
    if len(value) < SHORTEST:
        raise ConfigError("value", f"{what} is shorter than {SHORTEST} characters: it could not be told apart from other text")
    if len(value) > LONGEST:
        raise ConfigError("value", f"{what} is longer than {LONGEST} characters")
    return value


def one_line(text: str) -> str:
    """What a file or a command holds, without the line break at its end."""
    return text.removesuffix("\n").removesuffix("\r")


class Secrets:
    """All values that must not be seen: those in use, and for `grace` seconds those that were. Compiled for searching when asked.

    `placeholders` are told apart from secrets in `found()`, and never masked.
    """

    def __init__(self, grace: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.grace = grace
        self._clock = clock
        self._current: dict[object, frozenset[str]] = {}
        self._retired: dict[str, tuple[float, object]] = {}
        """When each old value stops to matter, and whose it was; the oldest first."""
        self._needles = Needles(())
        self._watched = Needles(())
        """The placeholders."""
        self._stale = True
        self._next = float("inf")

    def __repr__(self) -> str:
        return f"<Secrets {len(self._current)}>"

    def use(self, owner: object, values: Iterable[str]) -> None:
        """From now on these are `owner`'s; those it had are old."""
        new = frozenset(values)
        old = self._current.get(owner, frozenset())
        if new == old:
            return
        self._current[owner] = new
        now = self._clock()
        for value in old - new:
            self._retired.pop(value, None)
            self._retired[value] = now + self.grace, owner
        for value in [value for value, (_, whose) in self._retired.items() if whose == owner][:-MOST_OLD]:
            del self._retired[value]
        self._stale = True

    def forget(self, owner: object) -> None:
        """Its values are old."""
        self.use(owner, ())
        del self._current[owner]

    def watch(self, placeholders: Iterable[str]) -> None:
        """These are the placeholders from now on."""
        self._watched = Needles(value.encode("ascii") for value in sorted(frozenset(placeholders)))

    def values(self) -> set[str]:
        """In use, or so until a short while ago."""
        self._compile()
        return set().union(*self._current.values()) | self._retired.keys()

    def needles(self) -> Needles:
        """The secrets."""
        self._compile()
        return self._needles

    def found(self, text: bytes) -> list[tuple[str, bool]]:
        """(value, whether it is a placeholder) of each secret and placeholder in `text`."""
        needles, watched = self.needles(), self._watched
        secrets = [(needles.secrets[number].decode(), False) for _, _, number in needles.find(text)]
        return secrets + [(watched.secrets[number].decode(), True) for _, _, number in watched.find(text)]

    def _compile(self) -> None:
        now = self._clock()
        if now >= self._next:
            self._retired = {value: old for value, old in self._retired.items() if old[0] > now}
            self._stale = True
        if not self._stale:
            return
        self._stale = False
        self._next = min((end for end, _ in self._retired.values()), default=float("inf"))
        secrets = set().union(*self._current.values()) | self._retired.keys()
        self._needles = Needles(value.encode("ascii") for value in sorted(secrets))
