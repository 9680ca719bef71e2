"""Who may look: those who have the token, who were given a one-time code, or who have logged in with one of them.

Tokens, codes and sessions are compared in constant time, or looked up by their digests, so that no answer's time tells how much
of one was right. Of codes and sessions only digests are kept.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

CODE_SECONDS = 600.0
"""That a login code is good for."""
MAX_CODES = 32
IDLE_SECONDS = 12 * 3600.0
"""After which a session that was not used ends."""
LONGEST_SECONDS = 7 * 86400.0
"""After which it ends, used or not."""
MAX_SESSIONS = 128
LONGEST = 512
"""Characters of anything that somebody shows."""


@dataclass(slots=True)
class _Session:
    begun: float
    used: float


class Access:
    """`token`: at least 16 bytes of what nobody can guess. `clock`: seconds that never go back."""

    def __init__(self, token: bytes, *, clock: Callable[[], float] = time.monotonic) -> None:
        if len(token) < 16:
            raise ValueError("a token of less than 16 bytes")
        self._token = token
        self._clock = clock
        self._codes: dict[bytes, float] = {}
        """By digest: when they end. Oldest first."""
        self._sessions: dict[bytes, _Session] = {}
        """By digest, those that were not used for the longest time first."""

    @classmethod
    def random(cls) -> Access:
        """With a token of its own."""
        return cls(secrets.token_urlsafe(32).encode())

    @property
    def token(self) -> str:
        return self._token.decode("latin-1")

    @property
    def cookie(self) -> str:
        """The cookie's name. A browser sends cookies to all ports of a host (RFC 6265, 8.5): one name for each server."""
        return f"agentfw_{hashlib.sha256(b'cookie' + self._token).hexdigest()[:12]}"

    def change_token(self, token: bytes) -> None:
        """Another token from now on; whoever has logged in with the old one is out."""
        if hmac.compare_digest(token, self._token):
            return
        self._token = token
        self._codes.clear()
        self._sessions.clear()

    def is_token(self, given: str) -> bool:
        return len(given) <= LONGEST and hmac.compare_digest(given.encode(errors="replace"), self._token)

    # -- codes

    def new_code(self, seconds: float = CODE_SECONDS) -> str:
        """Good for one login. When there are too many, the oldest goes."""
        now = self._clock()
        self._codes = {digest: end for digest, end in self._codes.items() if end > now}
        while len(self._codes) >= MAX_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(24)
        self._codes[_digest(code)] = now + seconds
        return code

    def spend(self, code: str) -> bool:
        """Whether it was good; it is not any more."""
        end = self._codes.pop(_digest(code), None) if len(code) <= LONGEST else None
        return end is not None and end > self._clock()

    # -- sessions

    def new_session(self) -> str:
        """What the cookie shall hold. When there are too many, the one that was not used for the longest time ends."""
        self._forget()
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session, now = secrets.token_urlsafe(32), self._clock()
        self._sessions[_digest(session)] = _Session(now, now)
        return session

    def is_session(self, given: str) -> bool:
        """It has been used with this."""
        if not given or len(given) > LONGEST:
            return False
        digest, now = _digest(given), self._clock()
        found = self._sessions.pop(digest, None)
        if found is None or now - found.used >= IDLE_SECONDS or now - found.begun >= LONGEST_SECONDS:
            return False
        found.used = now
        self._sessions[digest] = found
        return True

    def end_session(self, given: str) -> None:
        self._sessions.pop(_digest(given[:LONGEST]), None)

    @property
    def sessions(self) -> int:
        self._forget()
        return len(self._sessions)

    def _forget(self) -> None:
        now = self._clock()
        self._sessions = {
            digest: session
            for digest, session in self._sessions.items()
            if now - session.used < IDLE_SECONDS and now - session.begun < LONGEST_SECONDS
        }


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()
