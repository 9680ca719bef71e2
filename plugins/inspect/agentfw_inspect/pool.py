"""Budgets of a label or a whole run hold for a whole pool: its workers tell the plugin in the router what they counted, and are
told what the others did.

A worker asks before it lets a call in, and tells after each call. Between two workers' questions both may let a call in, so such
a budget may be passed by one call a worker more. A worker whose router does not answer lets nothing in that has such a budget.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec
from agentfw.errors import AgentfwError, PluginError

from .budgets import Account
from .totals import Totals

if TYPE_CHECKING:
    from agentfw.pool.authority import PoolLink

ENDED = ("calls", "input_tokens", "output_tokens", "cost")
FLYING = (
    "in_flight", "reserved_input", "reserved_output", "reserved_cost", "asked_input", "asked_output", "asked_cost",
)  # fmt: skip
FIELDS = (*ENDED, *FLYING)
MAX_ROWS = 65536
"""Labels' values in the router."""
MAX_WORKERS = 300
"""Of one row; what more of them counted, as after many restarts, is kept as one's."""
FLYING_SECONDS = 900.0
"""A worker that says nothing for so long has no calls in flight any more."""

log = logging.getLogger("agentfw.inspect")


class Told(msgspec.Struct, frozen=True, array_like=True):
    """By row, as `Account.whose` has it: the numbers of FIELDS. `worker`: whose, in a question."""

    worker: str
    rows: dict[str, list[int | float]]


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Told).decode


class Sharing:
    """In a worker: what it tells, and is told."""

    def __init__(self, link: PoolLink) -> None:
        self._link = link
        self._name = secrets.token_hex(8)
        self._pending: dict[str, Totals] = {}
        self._telling: asyncio.Task[None] | None = None

    async def refresh(self, accounts: Iterable[Account]) -> None:
        """Have `others` of these accounts as it is now. AgentfwError: the router does not answer."""
        rows = {account.whose: account.totals for account in accounts}
        answer = await self._ask(rows)
        for account in accounts:
            if account.others is not None:
                for name, value in zip(FIELDS, answer.rows[account.whose], strict=True):
                    setattr(account.others, name, value)

    def tell(self, accounts: Iterable[Account]) -> None:
        """They have changed; soon, and several changes at once."""
        self._pending.update((account.whose, account.totals) for account in accounts)
        if self._telling is None and self._pending:
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def stop(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)

    async def _tell(self) -> None:
        try:
            while self._pending:
                rows, self._pending = self._pending, {}
                await self._ask(rows)
        except AgentfwError as error:  # the next question says it, too
            log.warning("the router was not told what calls used: %s", error)
        finally:
            self._telling = None

    async def _ask(self, rows: dict[str, Totals]) -> Told:
        told = {whose: [getattr(totals, name) for name in FIELDS] for whose, totals in rows.items()}
        try:
            answer = decode(await self._link.ask("inspect", encode(Told(self._name, told))))
        except (msgspec.DecodeError, RecursionError):
            raise PluginError("the router's answer about budgets is none") from None
        if answer.rows.keys() != rows.keys() or any(len(numbers) != len(FIELDS) for numbers in answer.rows.values()):
            raise PluginError("the router's answer about budgets is about others")
        return answer


class Ledger:
    """In the router: what each worker counted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rows: dict[str, dict[str, tuple[float, list[int | float]]]] = {}

    def answer(self, body: bytes) -> bytes:
        """A worker's question. ValueError for nonsense, PluginError when there is no room."""
        told = decode(body)
        now = self._clock()
        found: dict[str, list[int | float]] = {}
        for whose, numbers in told.rows.items():
            if len(numbers) != len(FIELDS) or not all(number >= 0 for number in numbers):  # NaN, too
                raise ValueError("numbers that none of ours are")
            row = self._rows.get(whose)
            if row is None:
                if len(self._rows) >= MAX_ROWS:
                    raise PluginError(f"budgets of more than {MAX_ROWS} labels' values")
                row = self._rows[whose] = {}
            row[told.worker] = now, numbers
            while len(row) > MAX_WORKERS:
                _fold(row)
            others: list[int | float] = [0] * len(FIELDS)
            for worker, (when, theirs) in row.items():
                if worker != told.worker:
                    silent = now - when > FLYING_SECONDS
                    for place, number in enumerate(theirs[: len(ENDED)] if silent else theirs):
                        others[place] += number
            found[whose] = others
        return encode(Told("", found))


def _fold(row: dict[str, tuple[float, list[int | float]]]) -> None:
    """What the one counted that was heard of longest ago is nobody's in particular."""
    oldest = min((name for name in row if name), key=lambda name: row[name][0])
    when, numbers = row.pop(oldest)
    before = row[""][1] if "" in row else [0] * len(FIELDS)
    ended = [a + b for a, b in zip(before[: len(ENDED)], numbers, strict=False)]
    row[""] = when, [*ended, *[0] * len(FLYING)]
