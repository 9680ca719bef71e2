"""Which worker gets a job: one that has VMs of its tenant and template already, unless it has much more to do than another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

MAX_PLACES = 1024
"""Tenants with templates that a worker is remembered for."""
SLACK = 16
"""A worker that knows the job's kind may have one job in so many of its slots more to do than the least loaded one."""


class Place(Protocol):
    """A worker. `slots`: VMs at most; `load`: jobs that it has; `known`: kinds of jobs that it has had, the last one last."""

    slots: int
    known: dict[tuple[str, str], None]

    @property
    def load(self) -> int: ...

    @property
    def free(self) -> bool:
        """It can be given a job now."""


AnyPlace = TypeVar("AnyPlace", bound=Place)


def choose(places: Iterable[AnyPlace], kind: tuple[str, str]) -> AnyPlace | None:
    """The one for a job of this kind (tenant, template), which it is then known for; None: none is free."""
    least: AnyPlace | None = None
    knows: AnyPlace | None = None
    for place in places:
        if not place.free:
            continue
        if least is None or _filled(place) < _filled(least):
            least = place
        if kind in place.known and (knows is None or _filled(place) < _filled(knows)):
            knows = place
    if least is None:
        return None
    found = least
    if knows is not None and knows.load - least.load <= max(1, knows.slots // SLACK):
        found = knows
    found.known.pop(kind, None)
    found.known[kind] = None
    if len(found.known) > MAX_PLACES:
        del found.known[next(iter(found.known))]
    return found


def _filled(place: Place) -> float:
    return place.load / place.slots


def divided(total: int, parts: int) -> list[int]:
    """`total` in `parts` numbers that differ by one at most."""
    each, more = divmod(total, parts)
    return [each + (number < more) for number in range(parts)]
