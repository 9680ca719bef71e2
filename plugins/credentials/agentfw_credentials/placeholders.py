"""What agents may not send: keys of their own where the runtime sets one, placeholders elsewhere, secrets anywhere."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from urllib.parse import unquote_plus

from agentfw import Denied
from agentfw.http1 import RequestHead

from .rules import SCHEME, Rule
from .search import AGAIN, in_parts
from .values import Secrets

_BASIC = re.compile(r"basic +([A-Za-z0-9+/=_-]+)\Z", re.IGNORECASE)
_SEPARATORS = re.compile("([&;])")
SCOPE = "credentials: scope"


class Guard:
    """Checks request heads, and takes out of them what stands for the secret."""

    def __init__(self, headers: Iterable[str], parameters: Iterable[str]) -> None:
        self._headers = frozenset(map(_plain, headers))
        self._parameters = frozenset(each.lower() for each in parameters)

    def check(self, head: RequestHead, rules: list[Rule], secrets: Secrets, elsewhere: str) -> None:
        """Denied unless the agent may send this where `rules` are for. `elsewhere`: why placeholders may not go there."""
        if rules:
            self._check_headers(head, rules)
            self._check_query(head, rules)
        # In one go: no secret has a line break in it.
        text = "\n".join((head.target, head.method, *chain.from_iterable(head.headers)))
        for _, is_placeholder in secrets.found(text.encode("latin-1")):
            raise Denied(SCOPE, f"a placeholder {elsewhere}" if is_placeholder else "a secret may not be sent by agents")

    def _check_headers(self, head: RequestHead, rules: list[Rule]) -> None:
        """Where a key can stand there must be nothing, or a placeholder of this route, which goes."""
        slots = {_plain(rule.slot[1]): rule for rule in rules if rule.slot[0] == "header"}
        shown = set().union(*(rule.shown for rule in rules))
        gone = set()
        for name, value in head.headers:
            plain = _plain(name)
            if plain not in slots and plain not in self._headers:
                continue
            if not _stands_for(value, shown, any(rule.kind == "basic" for rule in rules)):
                rule = slots.get(plain, rules[0])
                raise Denied(rule.name, f"an agent's own {name.lower()} is not accepted here; send the placeholder")
            gone.add(name)
        if gone:
            head.headers.remove(*gone)

    def _check_query(self, head: RequestHead, rules: list[Rule]) -> None:
        path, mark, query = head.target.partition("?")
        if not mark:
            return
        slots = {rule.slot[1].lower(): rule for rule in rules if rule.slot[0] == "query"}
        shown = set().union(*(rule.shown for rule in rules))
        kept: list[str] = []
        parts = _SEPARATORS.split(query)
        for i in range(0, len(parts), 2):
            name, _, value = parts[i].partition("=")
            name = unquote_plus(name, "latin-1").lower()
            if name in slots or name in self._parameters:
                if unquote_plus(value, "latin-1") not in shown:
                    rule = slots.get(name, rules[0])
                    what = f"an agent's own parameter {ascii(name)[:80]}"
                    raise Denied(rule.name, f"{what} is not accepted here; send the placeholder")
                continue
            if kept:
                kept.append(parts[i - 1])
            kept.append(parts[i])
        head.target = path + (mark + "".join(kept) if kept else "")


def _plain(name: str) -> str:
    """Servers behind CGI and WSGI take `X_Api_Key` for `X-Api-Key`."""
    return name.lower().replace("_", "-")


def _stands_for(value: str, shown: set[str], any_user: bool) -> bool:
    """The value is a placeholder, with or without a scheme; `any_user`: also as the password of any user."""
    if value in shown or SCHEME.sub("", value, count=1) in shown:
        return True
    match = _BASIC.match(value)
    if match is None:
        return False
    try:
        decoded = base64.b64decode(match[1].replace("-", "+").replace("_", "/"), validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return False
    user, colon, password = decoded.partition(":")
    if not colon:
        return False
    return (password in shown and (any_user or user in ("", *shown))) or (user in shown and password in ("", *shown))


class BodyScan:
    """A BodyTransform that refuses secrets in the first `limit` bytes of a request's body: a piece with one is not sent."""

    __slots__ = ("_again", "_left", "_refuse", "_secrets", "_tail", "_unsent")
    same_length = True

    def __init__(self, secrets: Secrets, limit: int, refuse: Callable[[], Exception]) -> None:
        self._secrets = secrets
        self._left = limit
        self._refuse = refuse
        self._tail = b""
        """What may be the beginning of a secret."""
        self._again = 0
        self._unsent = b""
        """The end of it that has not been looked at (see AGAIN)."""

    def parts(self, piece: bytes, last: bool) -> Iterator[bytes]:
        """All that is passed on comes at the end: of a piece with a secret nothing is sent."""
        passed = b""
        for number, (part, end) in enumerate(in_parts(piece, last) if self._left > 0 else [(piece, last)]):
            if number:
                yield b""
            passed += self(part, end)
        yield passed

    def __call__(self, piece: bytes, last: bool) -> bytes:
        if self._left <= 0 or not (piece or self._unsent):
            return piece
        needles = self._secrets.needles()
        new = piece[: self._left]
        data = self._tail + new
        self._left -= len(piece)
        passed = self._unsent + piece
        if len(data) < self._again and self._left > 0 and not last and needles.may_go_on(new):
            self._tail, self._unsent = data, passed
            return b""
        found, begun = needles.scan(data, False)
        if found:
            raise self._refuse()
        self._tail = data[len(data) - begun :] if self._left > 0 else b""
        self._again = 2 * begun if begun > AGAIN else 0
        self._unsent = b""
        return passed
