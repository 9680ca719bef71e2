"""The plugin: what it keeps of each exchange between its hooks, and what it makes of it in the end."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec
from agentfw import Agent, Denied, Destination, ExitReport, Headers, RequestHead, ResponseHead, hookimpl
from agentfw.histograms import LONG, Histogram
from agentfw.model_calls import ModelCall
from agentfw.reports import ExchangeReport, Table, shown
from agentfw.runtime import Runtime

from . import budgets, pool
from .bodies import CHARACTERS_A_TOKEN, UNREAD, RequestWatch, ResponseWatch, Room, read_document
from .budgets import Account, Warden
from .config import Config
from .heads import of_request, of_response
from .prices import Prices
from .reading import Reading
from .routes import Recognised, Routes
from .tables import make_tables
from .totals import OTHER, Rows, Totals, add, bucket_of

MAX_AGENTS, MAX_LABELS, MAX_MODELS, MAX_DESTINATIONS = 4096, 4096, 256, 256
MAX_LIVE_AGENTS = 65536
OPAQUE = frozenset({"tcp", "tls", "udp"})
"""Schemes without requests that could be seen."""
OUTPUT_RESERVED = 1024
"""Tokens reserved for a call that names no limit of its own."""
MOST_RESERVED = 1 << 21
"""Tokens reserved at most, in and out: no model takes or gives more, whatever a request says. (And a cost of 1e300, added and
taken off again, would leave nothing of others' in the sum.)"""
_ACCEPTABLE = frozenset({"gzip", "x-gzip", "deflate", "identity", ""})


class _Live(msgspec.Struct, eq=False):
    """A call in flight, and what sees its response's body."""

    agent: Agent
    call: Recognised
    destination: Destination
    rows: tuple[Totals, ...]
    """In which the reservation stands."""
    clock: Callable[[], float]
    reserved: tuple[int, int, float] = (0, 0, 0.0)
    asked: bool = False
    """What it asks for is known, and so reserved."""
    reading: Reading = msgspec.field(default_factory=Reading)
    request: RequestWatch | None = None
    response: ResponseWatch | None = None
    document: bytes | None = None
    """In place of `response`: a whole body, which has yet to be read."""
    head: ResponseHead | None = None
    """Of the response, until its body begins. PERF: kept until all is told, it and its like would fill the processor's caches."""
    answered: int = 0
    """The status of the response that the agent got; 0: none yet."""
    json: bool = False
    """That has a body of plain JSON."""
    limits: dict[str, str] | None = None

    def observe(self, piece: bytes, last: bool) -> None:
        watch = self.response
        if watch is None:
            headers, call = self.take_head(), self.call
            if last and not call.pieces and self.json and len(piece) <= UNREAD:
                self.document = piece
                return
            watch = self.response = ResponseWatch(call.provider, call.operation, call.pieces, self.reading, self.clock)
            watch.begin(headers.get("content-type") or "", headers.tokens("content-encoding"))
        watch(piece, last)

    def take_head(self) -> Headers:
        """All hooks have had their say: this is what the agent gets."""
        head, self.head = self.head, None
        assert head is not None
        self.answered = head.status
        self.json, self.limits = of_response(head.headers)
        return head.headers

    def reserve(self, inputs: int, outputs: int, cost: float) -> None:
        """In place of what was reserved before."""
        old_inputs, old_outputs, old_cost = self.reserved
        self.reserved = (inputs, outputs, cost)
        for row in self.rows:
            row.reserved_input += inputs - old_inputs
            row.reserved_output += outputs - old_outputs
            row.reserved_cost += cost - old_cost
            if self.asked:
                row.asked_input += inputs - old_inputs
                row.asked_output += outputs - old_outputs
                row.asked_cost += cost - old_cost

    def ask(self, inputs: int, outputs: int, cost: float) -> None:
        """Its request has been read."""
        self.reserve(0, 0, 0.0)
        self.asked = True
        self.reserve(inputs, outputs, cost)

    def begin(self) -> None:
        for row in self.rows:
            row.in_flight += 1

    def forget(self) -> None:
        """Those who look refer to this: a cycle would be the garbage collector's, which walks all objects of all agents."""
        if self.request is not None:
            self.request.release()
        self.request = self.response = self.document = self.head = None

    def end(self) -> None:
        if self.reserved != (0, 0, 0.0):
            self.reserve(0, 0, 0.0)
        for row in self.rows:
            row.in_flight -= 1
            if not row.in_flight:
                row.reserved_cost = row.asked_cost = 0.0  # what rounding left


class Plugin:
    """See the package."""

    name = "inspect"
    config_type = Config

    def __init__(self, config: Config) -> None:
        self._config = config
        self._routes = Routes(config.route)
        self._prices = Prices(config.prices)
        self._budgets = budgets.read(config.budget, config.currency)
        self._accounts: dict[str, tuple[Account, ...]] = {}
        """By agent's id."""
        self._warden = Warden()
        self._sharing: pool.Sharing | None = None
        self._ledger = pool.Ledger()
        self._live: dict[int, _Live] = {}
        """By exchange."""
        self._run = Totals()
        self._rows: dict[str, tuple[Totals, ...]] = {}
        """By agent's id, of those that have called a model and have not ended."""
        self._rooms: dict[str, Room] = {}
        """By agent's id."""
        self._agents = Rows(MAX_AGENTS, lambda name: name not in self._rows and name not in self._accounts)
        self._labels = Rows(MAX_LABELS, self._label_may_fold)
        self._models = Rows(MAX_MODELS)
        self._destinations = Rows(MAX_DESTINATIONS)
        self._limits: dict[str, dict[str, str]] = {}
        """By destination: those of its last response."""
        self._names: dict[str, str] = {}
        """Of agents by id, as far as there are rows."""
        self._counters: Counter[str] = Counter()
        self._seconds = Histogram(LONG)
        """Of calls, and until the first piece of generated content."""
        self._first_token = Histogram(LONG)
        self._clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()

    def reconfigure(self, config: Config) -> Callable[[], None]:
        """Routes, prices and limits anew; what was counted stays."""
        routes, prices = Routes(config.route), Prices(config.prices)
        limits = budgets.read(config.budget, config.currency)

        def commit() -> None:
            self._config, self._routes, self._prices, self._budgets = config, routes, prices, limits
            self._accounts.clear()

        return commit

    @hookimpl
    def start(self, runtime: Runtime) -> None:
        self._warden.runtime = runtime
        self._clock = runtime.loop.time
        if runtime.pool is not None and runtime.pool.role == "worker":
            self._sharing = pool.Sharing(runtime.pool)

    @hookimpl
    async def stop(self) -> None:
        if self._sharing is not None:
            await self._sharing.stop()

    async def answer_pool(self, body: bytes) -> bytes:
        """In the router of a pool: what a worker counted for budgets, for what the others did."""
        return self._ledger.answer(body)

    # -- an exchange

    @hookimpl
    def allow(self, agent: Agent, destination: Destination) -> None:
        """Bytes that nobody looks into (TLS of an agent's own that passes through, TCP, QUIC) would be a way past its budgets."""
        if destination.scheme in OPAQUE and self._budgets and self._routes.covers(destination):
            self._uncounted(agent, f"{destination.host} is reached by HTTP through the runtime only")

    def _uncounted(self, agent: Agent, what: str) -> None:
        """Denied if the agent has a budget."""
        for account in self._accounts_of(agent):
            raise Denied(account.budget.rule, f"{what}: nothing else can be counted", self.name)

    @hookimpl
    def request(self, agent: Agent, destination: Destination, head: RequestHead) -> Awaitable[None] | None:
        if self._budgets and self._sharing is not None and self._routes.covers(destination):
            shared = self._shared_by(agent)
            if shared:
                return self._in_pool(agent, destination, head, shared)
        self._request(agent, destination, head)
        return None

    async def _in_pool(self, agent: Agent, destination: Destination, head: RequestHead, shared: tuple[Account, ...]) -> None:
        assert self._sharing is not None
        await self._sharing.refresh(shared)
        self._request(agent, destination, head)

    def _request(self, agent: Agent, destination: Destination, head: RequestHead) -> None:
        call = self._routes.match(destination, head.method, head.target)
        if head.upgrade is not None and self._budgets and self._routes.covers(destination):
            self._uncounted(agent, f"{destination.host} may not switch protocols")
        if call is None:
            if self._budgets and self._routes.covers(destination):
                self._admit(agent)  # there are other ways to have a model work
            return
        before = self._live.pop(head.exchange, None)
        if before is not None:  # sent again
            before.end()
            before.forget()
        if self._budgets:
            self._admit(agent)
        live = self._live[head.exchange] = _Live(agent, call, destination, self._rows_of(agent), self._clock)
        live.begin()
        if self._budgets:
            length = head.headers.get("content-length") or "0"
            inputs = -(-int(length) // CHARACTERS_A_TOKEN) if length.isdecimal() else 0
            live.reserve(min(inputs, MOST_RESERVED), OUTPUT_RESERVED, 0.0)
        readable, accepted = of_request(head.headers)
        done = (lambda: self._asked(live)) if self._budgets else None
        live.request = RequestWatch(readable, done, self._room_of(agent))
        head.transforms.append(live.request)
        if not readable:
            self._asked(live)
        if accepted and not _readable(accepted):
            head.headers.set("Accept-Encoding", "identity")

    def _admit(self, agent: Agent, *, asked: bool = False) -> None:
        if self._budgets:
            try:
                self._warden.admit(agent, self._accounts_of(agent), asked=asked)
            except Exception:
                for row in self._rows_of(agent):
                    row.refused += 1
                raise

    def _asked(self, live: _Live) -> None:
        """The request's body has been read."""
        if not self._budgets or live.request is None:
            return
        self._check_price(live, live.request.model or live.call.model)
        inputs, outputs = (min(n, MOST_RESERVED) for n in (live.request.tokens, live.request.max_tokens or OUTPUT_RESERVED))
        if live.call.operation == "embedding":
            outputs = 0
        models = (live.request.model or live.call.model,)
        if not live.asked:
            self._admit(live.agent, asked=True)
        live.ask(inputs, outputs, self._prices.cost(models, inputs, outputs) or 0.0)

    def _check_price(self, live: _Live, model: str) -> None:
        """Where cost is limited, models whose cost nobody knows are refused."""
        for account in self._accounts_of(live.agent):
            if account.budget.name == "cost" and self._prices.of(model) is None:
                named = f"[inspect.prices] has no price for the model {model}" if model else "the request does not say its model"
                raise Denied(account.budget.rule, named, self.name)

    @hookimpl
    def response(self, request: RequestHead, head: ResponseHead) -> None:
        live = self._live.get(request.exchange)
        if live is None:
            return
        live.head = head
        head.observers.append(live.observe)

    @property
    def later_hooks(self) -> frozenset[str]:
        """Budgets have to know at once what a call came to."""
        return frozenset() if self._budgets else frozenset({"exchange_end"})

    @hookimpl
    def exchange_end(self, agent: Agent, exchange: ExchangeReport) -> None:
        live = self._live.pop(exchange.exchange, None)
        if live is None:
            return
        live.end()
        if exchange.denied_rule and exchange.first_byte is None:
            live.forget()
            return  # refused by somebody else before it was answered
        place = live.call.place
        if live.head is not None:
            if exchange.error:  # of one that was kept from the agent not all hooks had their say: maybe nobody masked it
                live.answered = live.head.status
            else:  # it has no body
                live.take_head()
        if live.limits is not None:
            self._limits[place] = live.limits
            if len(self._limits) > MAX_DESTINATIONS:
                self._limits.pop(next(iter(self._limits)))
        call = self._made(live, exchange)
        live.forget()
        latency = bucket_of(call.seconds)
        first = None if call.first_token is None else bucket_of(call.first_token)
        self._seconds.observe(call.seconds)
        if call.first_token is not None:
            self._first_token.observe(call.first_token)
        model = call.model or "(unknown)"
        if not self._models.known(model) and call.failed and not live.reading.model:
            model = OTHER  # a name that only the agent says
        add((*live.rows, self._models.get(model), self._destinations.get(place)), call, latency, first)
        if self._budgets:
            self._warden.watch(agent, self._accounts_of(agent))
            if self._sharing is not None:
                self._sharing.tell(self._shared_by(agent))
        if self._warden.runtime is not None:
            self._warden.runtime.plugins.model_call(agent, call)

    def _made(self, live: _Live, exchange: ExchangeReport) -> ModelCall:
        reading, watch, request = live.reading, live.response, live.request
        if live.document is not None:
            if read_document(live.call.provider, live.call.operation, live.document, reading):
                self._counters["unreadable"] += 1
        elif watch is not None:
            watch.settle()
        asked = (request.model if request is not None else "") or live.call.model
        status, answered = exchange.status, live.answered
        plain = live.document is not None
        streamed = watch.streamed if watch is not None else not plain and request is not None and request.streamed
        error_type, error = reading.error_type, reading.error
        billed = answered < 400
        if exchange.first_byte is None:
            status = 0
            error_type, error = "no_response", shown(exchange.error, 200)
        elif exchange.denied_rule or not answered:  # it answered, and a hook kept that from the agent
            error_type, error = "withheld", shown(exchange.error, 200)
        elif not error_type and status >= 400:
            error_type = f"http_{status}"
        elif not error_type and not reading.complete and status != 204 and (exchange.error or streamed):
            error_type, error = "cut", shown(exchange.error, 200)
        if watch is not None and (watch.unreadable or watch.oversize):
            self._counters["unreadable"] += watch.unreadable
            self._counters["oversize_events"] += watch.oversize
        inputs, outputs, estimated = _counts(live, exchange, billed)
        cost = None
        if inputs is not None or outputs is not None:
            read, written = reading.cache_read or 0, reading.cache_write or 0
            cost = self._prices.cost((reading.model, asked), inputs or 0, outputs or 0, read, written, reading.cache_write_1h)
        if error_type == "cut":
            self._counters["cut"] += 1
        first = None
        if watch is not None and watch.first_token is not None and streamed:
            first = max(watch.first_token - exchange.started, 0.0)
        return ModelCall(
            exchange=exchange.exchange,
            provider=live.call.provider,
            operation=live.call.operation,
            destination=live.destination,
            requested_model=asked,
            model=reading.model or asked,
            streamed=streamed,
            status=status,
            started=exchange.started,
            seconds=exchange.seconds,
            first_token=first,
            input_tokens=inputs,
            output_tokens=outputs,
            cache_read_tokens=reading.cache_read or 0,
            cache_write_tokens=reading.cache_write or 0,
            reasoning_tokens=reading.reasoning,
            estimated=estimated,
            complete=reading.complete and not error_type,
            cost=cost,
            currency=self._config.currency if cost is not None else "",
            error_type=error_type,
            error=error,
            rate_limits=live.limits or {},
        )

    # -- whose it is

    def _rows_of(self, agent: Agent) -> tuple[Totals, ...]:
        """Where this agent's calls are added. Kept while it runs: its row is not folded as long."""
        found = self._rows.get(agent.id)
        if found is None:
            if len(self._rows) >= MAX_LIVE_AGENTS:
                self._rows.clear()
            if len(self._names) >= MAX_LIVE_AGENTS:
                self._names.clear()
            self._names[agent.id] = agent.name
            labels = [self._labels.get(f"{name}={value}") for name, value in agent.labels.items()]
            found = self._rows[agent.id] = (self._run, self._agents.get(agent.id), *labels)
        return found

    def _room_of(self, agent: Agent) -> Room:
        found = self._rooms.get(agent.id)
        if found is None:
            if len(self._rooms) >= MAX_LIVE_AGENTS:
                self._rooms.clear()
            found = self._rooms[agent.id] = Room()
        return found

    def _accounts_of(self, agent: Agent) -> tuple[Account, ...]:
        found = self._accounts.get(agent.id)
        if found is None:
            found = tuple(self._account(budget, agent) for budget in self._budgets if budget.applies(agent))
            if len(self._accounts) >= MAX_LIVE_AGENTS:
                self._accounts.clear()
            self._accounts[agent.id] = found
        return found

    def _account(self, budget: budgets.Budget, agent: Agent) -> Account:
        if budget.per == "run":
            return Account(budget, "all agents", self._run, self._others())
        if budget.per == "agent":
            return Account(budget, agent.name, self._agents.get(agent.id))
        name = budget.per[6:]
        whose = f"{name}={agent.labels[name]}"
        return Account(budget, whose, self._labels.get(whose), self._others())

    def _others(self) -> Totals | None:
        return None if self._sharing is None else Totals()

    def _shared_by(self, agent: Agent) -> tuple[Account, ...]:
        """Its accounts that agents in other workers have, too."""
        return tuple(account for account in self._accounts_of(agent) if account.others is not None)

    def _label_may_fold(self, row: str) -> bool:
        """Not if a budget counts by it: that would be forgotten."""
        if any(row.startswith(f"{budget.per[6:]}=") for budget in self._budgets if budget.per.startswith("label:")):
            return False
        self._rows.clear()  # the row may be in some
        return True

    @hookimpl
    def exit(self, agent: Agent, report: ExitReport) -> None:
        self._rows.pop(agent.id, None)
        self._accounts.pop(agent.id, None)
        self._rooms.pop(agent.id, None)

    # -- what is told

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        run, counters = self._run, self._counters
        return {
            "calls": run.calls,
            "calls_failed": run.failed,
            "calls_refused": run.refused,
            "calls_in_flight": run.in_flight,
            "calls_estimated": run.estimated,
            "calls_unpriced": run.unpriced,
            "calls_cut": counters["cut"],
            "input_tokens": run.input_tokens,
            "output_tokens": run.output_tokens,
            "cache_read_tokens": run.cache_read_tokens,
            "cache_write_tokens": run.cache_write_tokens,
            "reasoning_tokens": run.reasoning_tokens,
            "cost": round(run.cost, 9),
            "unreadable": counters["unreadable"],
            "oversize_events": counters["oversize_events"],
            "budget_warnings": self._warden.warnings,
            **self._seconds.statistics("call_seconds"),
            **self._first_token.statistics("first_token_seconds"),
        }

    @hookimpl
    def tables(self) -> list[Table]:
        names = self._names
        agents = [(names.get(agent, agent), row) for agent, row in self._agents.items()]
        currency = self._config.currency if self._prices else ""
        return make_tables(self._run, self._models, agents, self._labels, self._destinations, self._limits, currency)


def _counts(live: _Live, exchange: ExchangeReport, billed: bool) -> tuple[int | None, int | None, bool]:
    """Tokens in, tokens out, and whether that is an estimate."""
    reading = live.reading
    inputs, outputs = reading.input, reading.output
    if inputs is not None and outputs is not None and reading.complete:
        return inputs, outputs, False
    if not billed or (reading.error_type and inputs is None and not reading.content_events):
        return inputs, outputs, False  # nobody bills an error
    estimated = False
    if inputs is None:
        asked = live.request.tokens if live.request is not None else 0
        inputs, estimated = asked or -(-exchange.bytes_up // CHARACTERS_A_TOKEN), True
    if outputs is None or not reading.complete:  # what came counts at least; a cut stream's last count is of its beginning
        seen = max(reading.content_events if live.response is not None and live.response.streamed else 0,
                   -(-reading.content_size // CHARACTERS_A_TOKEN))  # fmt: skip
        if not seen and outputs is None and live.call.operation != "embedding":  # nothing of it could be read, or not to its end
            seen = -(-exchange.bytes_down // CHARACTERS_A_TOKEN)
        outputs, estimated = max(outputs or 0, seen), True
    return inputs, outputs, estimated


@functools.lru_cache(maxsize=64)  # of heads, which are bounded
def _readable(accepted: tuple[str, ...]) -> bool:
    """By the values of `Accept-Encoding`."""
    return all(each.partition(";")[0].strip(" \t").lower() in _ACCEPTABLE for value in accepted for each in value.split(","))
