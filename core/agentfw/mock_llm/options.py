"""What a mock server can be told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MockOptions:
    """Times in seconds. `keys` empty: every key is taken, but a missing one is not."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one."""
    names: tuple[str, ...] = ()
    """Further names in the certificate."""
    keys: tuple[str, ...] = ()
    latency: float = 0.0
    """Before the first byte of each answer."""
    tokens_per_second: float = 0.0
    """Of streamed answers, and the time that plain ones take; 0: at once."""
    reply: str = ""
    """The answer's text; "": "echo: " and the last user message."""
    reply_tokens: int = 0
    """Repeat the text up to this many tokens; 0: as it is."""
    idle_timeout: float = 60.0
    """Idle connections are closed after it."""
    max_requests: int = 0
    """A connection's last answer says `Connection: close`; 0: no limit."""
    fail_every: int = 0
    """Each n-th model call fails with `fail_status`; 0: none."""
    fail_status: int = 429
    error_rate: float = 0.0
    """Of model calls that fail with `fail_status`, chosen by chance, 0 to 1."""
    cut_every: int = 0
    """Each n-th streamed answer is broken off in its middle; 0: none."""
    seed: int = 0
    """Of that chance."""
    cache_minimum: int = 1024
    """Tokens that a prompt must have for the "provider" to cache it."""
    requests_per_minute: int = 10_000
    """What the rate-limit headers count down from (nothing is refused for it)."""

    def __post_init__(self) -> None:
        for key in self.keys:
            if not key or not key.isascii() or not key.isprintable():
                raise ValueError("a key must be printable ASCII and not empty")
        if not 400 <= self.fail_status <= 599:
            raise ValueError("fail_status must be from 400 to 599")
        if not 0 <= self.error_rate <= 1:
            raise ValueError("error_rate must be from 0 to 1")
        times = (self.latency, self.tokens_per_second, self.idle_timeout)
        counts = (self.reply_tokens, self.fail_every, self.max_requests, self.requests_per_minute, self.cut_every)
        if min(*times, *counts, self.cache_minimum) < 0:
            raise ValueError("times and counts must not be negative")
