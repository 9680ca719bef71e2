"""How much an agent, a profile's agents together, or an agent under one rule may do.

Rates are token buckets: `burst` requests at once (default: as many as the rate's number), and then as the rate says. What is
used up for good is refused with 403, what is too fast or too much at once with 429 and the time to wait. Bytes and connections
are the core's to count (`agentfw.metering`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from agentfw.errors import ConfigError
from agentfw.metering import Meter

from .config import NONE, LimitsConfig
from .rules import Finding

MAX = 1 << 62
MIN_RATE = 1e-6
"""Who waits for a token is told for how long."""
_SIZE = re.compile(r"(\d{1,15})([KMGT]?)(?:i?B)?\Z", re.IGNORECASE)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
BYTES = ("bytes", "bytes_up", "bytes_down")
TELLING = {
    "bytes": "bytes up and down are used up", "bytes_up": "bytes up are used up", "bytes_down": "bytes down are used up",
    "connections": "connections are open already", "requests": "requests are used up",
    "requests_per_second": "requests a second", "requests_per_minute": "requests a minute",
    "concurrent_requests": "requests at once",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """What is in force: (number, key in [policy], title) by the limit's name."""

    values: dict[str, tuple[float, str, str]]
    burst: int | None = None

    def __bool__(self) -> bool:
        return bool(self.values)

    def number(self, name: str) -> int | None:
        found = self.values.get(name)
        return None if found is None else int(found[0])


def parse_size(value: int | str) -> int:
    """Bytes: 65536, "64K", "10M". ValueError."""
    match = _SIZE.match(str(value).strip())
    if isinstance(value, bool) or not match:
        raise ValueError(f"`{value}` is no size (write 65536, `64K` or `10M`)")
    return min(int(match[1]) << _UNITS[match[2].upper()], MAX)


def resolve(*tables: tuple[str, str, LimitsConfig]) -> Limits:
    """Of several tables (key, title, table), the most particular first: the first that says something about a limit counts.
    ConfigError for values that make no sense."""
    values: dict[str, tuple[float, str, str]] = {}
    burst: int | None = None
    settled = set()
    for key, title, table in tables:
        for name in LimitsConfig.__struct_fields__:
            value = getattr(table, name)
            if value is None:
                continue
            number = 0.0
            if value != NONE:
                try:
                    number = parse_size(value) if name in BYTES else value
                    if not number >= (MIN_RATE if name.startswith("requests_per") else 1 if name == "burst" else 0):
                        raise ValueError("must be more than 0" if number <= 0 else f"must be at least {MIN_RATE:g}")
                    if number > MAX:
                        raise ValueError("is too large")
                except ValueError as error:
                    raise ConfigError(f"{key}.{name}", str(error)) from None
            if name in settled:
                continue
            settled.add(name)
            if name == "burst":
                burst = int(number)
            elif value != NONE:
                values[name] = (
                    number,
                    f"{key}.{name}",
                    f"{title}.{name}: {value:g}" if isinstance(value, float) else f"{title}.{name}: {value}",
                )
    return Limits(values, burst)


class Bucket:
    """Tokens that come back at `rate` a second, `burst` at most."""

    __slots__ = ("at", "burst", "rate", "tokens")

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self.tokens = float(burst)
        self.at = now

    def change(self, rate: float, burst: int, now: float) -> None:
        """Another rate from now on; what was taken stays taken."""
        taken = self.burst - self._now(now)
        self.rate, self.burst = rate, burst
        self.tokens, self.at = max(burst - taken, 0.0), now

    def wait(self, now: float) -> float:
        """Seconds until a token is there; 0: it is."""
        missing = 1.0 - self._now(now)
        return 0.0 if missing <= 1e-9 else missing / self.rate

    def take(self, now: float) -> None:
        self.tokens = max(self._now(now) - 1.0, 0.0)
        self.at = now

    def _now(self, now: float) -> float:
        return min(self.tokens + max(now - self.at, 0.0) * self.rate, float(self.burst))


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A limit that is reached. `retry_after`: seconds; None: it will not do to wait."""

    finding: Finding
    retry_after: float | None = None


class Account:
    """What somebody used, and what of it is limited. `who` is for people. `exceeded`: see `Meter.refuse`."""

    def __init__(self, who: str, limits: Limits, report: bool, now: float, exceeded: Callable[[Exhausted], None]) -> None:
        self.who = who
        self.requests = 0
        self.open = 0
        """Requests that are being answered."""
        self._exceeded = exceeded
        self._buckets: dict[str, Bucket] = {}
        self.meter = Meter(self._refuse)
        self.change(limits, report, now)

    def change(self, limits: Limits, report: bool, now: float) -> None:
        """Other limits from now on; what was used stays used."""
        self.limits = limits
        self.report = report
        number = limits.number
        self.meter.limit(
            max_up=number("bytes_up"),
            max_down=number("bytes_down"),
            max_bytes=number("bytes"),
            max_connections=number("connections"),
        )
        buckets = {}
        for name, seconds in (("requests_per_second", 1.0), ("requests_per_minute", 60.0)):
            if name in limits.values:
                value = limits.values[name][0]
                rate, burst = value / seconds, limits.burst or math.ceil(value)
                bucket = self._buckets.get(name)
                if bucket is None:
                    bucket = Bucket(rate, burst, now)
                else:
                    bucket.change(rate, burst, now)
                buckets[name] = bucket
        self._buckets = buckets
        self._counting = bool(buckets) or "requests" in limits.values or "concurrent_requests" in limits.values

    @property
    def metering(self) -> bool:
        """There is a limit that the core must count for."""
        return any(name in self.limits.values for name in (*BYTES, "connections"))

    def check(self, now: float) -> Exhausted | None:
        """What stands against one request more. Nothing is counted."""
        if not self._counting:
            return None
        values = self.limits.values
        if "requests" in values and self.requests >= values["requests"][0]:
            return self._reached("requests")
        if "concurrent_requests" in values and self.open >= values["concurrent_requests"][0]:
            return self._reached("concurrent_requests", 1.0)
        waits = {name: wait for name, bucket in self._buckets.items() if (wait := bucket.wait(now))}
        if waits:
            name = max(waits, key=lambda each: waits[each])
            return self._reached(name, waits[name])
        return None

    def take(self, now: float) -> None:
        """One request more; `give_back()` when it is over."""
        self.requests += 1
        self.open += 1
        for bucket in self._buckets.values():
            bucket.take(now)

    def give_back(self) -> None:
        self.open -= 1

    def _refuse(self, what: str) -> None:
        self._exceeded(self._reached(what))

    def _reached(self, name: str, retry_after: float | None = None) -> Exhausted:
        number, key, title = self.limits.values[name]
        return Exhausted(Finding(title, key, f"{self.who}: {number:.15g} {TELLING[name]}", self.report), retry_after)
