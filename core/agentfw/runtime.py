"""The runtime: one loop, its plugins, its configuration, and what the agents of this process share.

runtime = Runtime(loop, load_plugins(names, config), config)
await runtime.start()
... await runtime.handle_flow(agent, flow) for each flow a guest opens; runtime.agent_exited(agent, report) ...
await runtime.stop()
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import TYPE_CHECKING

from . import addresses, dns_reply, dns_wire
from .agents import Agent, ExitReport, Operator, VmReport
from .config import Config
from .destination import Destination
from .errors import AgentfwError, ConnectError, Denied, HookError, ResolveError, TlsError, UpstreamError
from .flows import Flow
from .histograms import Durations
from .metering import Meter, MeteredFlow, Traffic
from .own_listeners import Listener, reached
from .plugins import PluginManager
from .plugins.watchdog import Watchdog
from .relay import agents_trust, relay
from .relay.own_tls import Interceptor
from .relay.session import NameMemory
from .relay.uses import Use, recheck
from .reports import AuditEvent, Decision, Table
from .upstream import TlsRequest, Upstream

if TYPE_CHECKING:
    from .pool.authority import PoolLink, RouterLink

MAX_ADDRESSES = 16
"""Addresses of a name that are tried at most."""
MAX_ENDED = 1024
STAGGER = 0.25
"""Seconds after which the next address of a name is tried beside the one that does not answer (RFC 8305)."""
RELOADED_PATIENCE = 1.0
"""Seconds for all `reloaded` hooks, after which flows are looked at though they have not finished (and then once more)."""

log = logging.getLogger("agentfw.runtime")


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What came of it: the tables that changed; whether [run] did, which counts from the next start; flows that were ended."""

    tables: tuple[str, ...]
    run_changed: bool
    flows_cut: int


class Runtime:
    """Owned by whoever runs agents (`agentfw.fleet`); used from its loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, plugins: PluginManager, config: Config) -> None:
        self.loop = loop
        self.plugins = plugins
        self.config = config
        self.counters: Counter[str] = Counter()
        self.durations = Durations()
        self.pool: PoolLink | RouterLink | None = None
        """In a worker of a pool: the way to the router's plugins; in its router: to the workers'. `role` says which. Set before
        `start()`."""
        self.udp_peers: Counter[str] = Counter()
        """By agent's id: peers that its UDP sockets are connected to."""
        self.interceptor = Interceptor()
        self.uses: set[Use] = set()
        """What the open flows have to do with."""
        self._stoppers: dict[str, Callable[[str], None]] = {}
        self._lookers: dict[str, Callable[[], Awaitable[VmReport | None]]] = {}
        self._glancers: dict[str, Callable[[], VmReport | None]] = {}
        self._started = False
        self._reloads = 0
        self._watchdog = Watchdog(loop)
        self._reloading = asyncio.Lock()
        self._names: dict[str, NameMemory] = {}
        self._reserved: list[IPv4Network | IPv6Network] = []
        self._listeners: dict[str, tuple[Listener, ...]] = {}
        """By owner."""
        self.listeners: tuple[Listener, ...] = ()
        """Those of all owners, which agents are kept from."""
        self._traffic: dict[str, Traffic] = {}
        self._carried = [0, 0]
        """Bytes up and down of agents that have ended."""
        self._silent: dict[str, float] = {}
        """By agent's id: when the program of one that has made no request yet began."""
        self._ended: dict[str, None] = {}
        """Agents that exited last, oldest first: nothing is kept for what is left of them."""

    async def start(self) -> None:
        """Start the plugins. When one fails, it and those before it are stopped and its error is raised."""
        self._started = True
        try:
            await self.plugins.start(self)
            self.plugins.later.begin(self.loop)
            self._watchdog.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the plugins. Idempotent."""
        if self._started:
            self._started = False
            self._watchdog.stop()
            await self.plugins.stop()

    async def reload(self, config: Config) -> Reloaded:
        """Go on with another configuration: `PluginManager.reload()`, the `reloaded` hooks, and an end to all flows that are not
        permitted any more. Raises what it raises; unless that is a HookError, all goes on as before.

        Which plugins there are cannot change, and of [run] nothing that agents were started with does.
        """
        async with self._reloading:
            before, failure = self.config, None
            changed: list[str] = []
            try:
                changed = self.plugins.reload(config)
            except HookError as error:
                failure = error
            except AgentfwError as error:
                self.counters["reloads_refused"] += 1
                self.audit(AuditEvent.about("reload", reason=f"refused: {error}"))
                raise
            self.config = config
            self._reloads += 1
            cut = await self._tell_and_recheck()
            self.counters["reloads"] += 1
            self.counters["flows_cut"] += cut
            if failure is not None:
                self.audit(AuditEvent.about("reload", plugin=failure.plugin, reason=str(failure)))
                raise failure
            self.audit(AuditEvent.about("reload", reason=f"tables: {', '.join(changed) or 'none'}; flows ended: {cut}"))
            return Reloaded(tuple(changed), before.run != config.run, cut)

    async def _tell_and_recheck(self) -> int:
        """The `reloaded` hooks, and an end to what is not permitted any more; -> how many flows that were. A hook that takes long
        does not keep them open."""
        telling = self.loop.create_task(self.plugins.reloaded(self))
        try:
            await asyncio.wait([telling], timeout=RELOADED_PATIENCE)
            cut = await recheck(self.uses)
            if not telling.done():
                await telling
                cut += await recheck(self.uses)
            return cut
        finally:
            telling.cancel()

    def agent_exited(self, agent: Agent, report: ExitReport) -> None:
        """Tell the plugins, forget what was kept for this agent."""
        self.plugins.exit(agent, report)
        self._names.pop(agent.id, None)
        self.interceptor.forget(agent)
        self._silent.pop(agent.id, None)
        traffic = self._traffic.pop(agent.id, None)
        if traffic is not None:
            self._carried[0] += traffic.up
            self._carried[1] += traffic.down
        self._ended[agent.id] = None
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def refused(self, agent: Agent, paths: int, calls: int) -> None:
        """At an agent's end: so many times the guest's rules said no to it."""
        if paths or calls:
            reason = "it went for files or system calls that are not for it"
            decision = Decision(allowed=False, rule="guest_rules", reason=reason, hook="guest_rules", count=paths + calls)
            self.plugins.decided(agent, None, decision)
            self.audit(AuditEvent.about("denied", agent, rule="guest_rules", reason=reason, paths=str(paths), calls=str(calls)))

    async def admit(self, agent: Agent) -> None:
        """An agent is about to start. Whatever a plugin raises is why it may not."""
        await self.plugins.admit(agent)

    def can_stop(self, agent: Agent, stop: Callable[[str], None] | None) -> None:
        """By whoever runs the agent: how it is ended (with a reason for people); None: it cannot be any more."""
        if stop is None:
            self._stoppers.pop(agent.id, None)
        else:
            self._stoppers[agent.id] = stop

    def can_look(
        self,
        agent: Agent,
        look: Callable[[], Awaitable[VmReport | None]] | None,
        glance: Callable[[], VmReport | None] | None = None,
    ) -> None:
        """By whoever runs the agent: how its VM is looked at, and at its counters alone; None: it cannot be (any more)."""
        self._lookers.pop(agent.id, None)
        self._glancers.pop(agent.id, None)
        if look is not None:
            self._lookers[agent.id] = look
        if glance is not None:
            self._glancers[agent.id] = glance

    async def look(self, agent_id: str) -> VmReport | None:
        """What an agent's VM did so far; it goes on meanwhile. None: it does not run. (At its end: `ExitReport.vm`.)"""
        look = self._lookers.get(agent_id)
        return None if look is None else await look()

    def glance(self, agent_id: str) -> VmReport | None:
        """The counters of an agent's VM, with an empty `sight`. None: it does not run."""
        glance = self._glancers.get(agent_id)
        return None if glance is None else glance()

    def stop_agent(self, agent: Agent, reason: str) -> bool:
        """End the agent now, as by SIGKILL. `reason`: one line, which whoever runs it tells. False: it does not run."""
        stop = self._stoppers.get(agent.id)
        if stop is None:
            return False
        self.counters["agents_stopped"] += 1
        self.audit(AuditEvent.about("agent_stopped", agent, reason=reason))
        stop(reason)
        return True

    def traffic(self, agent: Agent) -> Traffic:
        """What this agent's flows carried so far. Kept until `agent_exited()`."""
        found = self._traffic.get(agent.id)
        if found is None:
            found = Traffic()
            if agent.id not in self._ended:
                self._traffic[agent.id] = found
        return found

    def program_began(self, agent: Agent, queued: float, dispatch: float) -> None:
        """By whoever runs the agent: it waited so many seconds for a virtual machine, and so many more for its first bytecode,
        which is now."""
        self.durations.wait.observe(queued)
        self.durations.dispatch.observe(dispatch)
        self._silent[agent.id] = time.perf_counter()

    def connected(self, agent: Agent, seconds: float) -> None:
        """A request of the agent's has had its connection after so long."""
        self.durations.connect.observe(seconds)
        if agent.id in self._silent:
            self.durations.first_request.observe(time.perf_counter() - self._silent.pop(agent.id))

    def meters(self, agent: Agent, destination: Destination) -> list[Meter]:
        """The meters that plugins have for flows of this agent to `destination`. HookError."""
        return self.plugins.meters(agent, destination)

    async def handle_flow(self, agent: Agent, flow: Flow) -> None:
        """Serve one TCP or UDP flow of the agent's until it ends. Never raises but for cancellation, which resets the flow."""
        await relay(self, agent, MeteredFlow(flow, self.traffic(agent)))

    def learn(self, agent: Agent, name: str, found: Iterable[str]) -> None:
        """The agent was told that `name` has these addresses."""
        if agent.id not in self._ended:
            self._names.setdefault(agent.id, NameMemory()).learn(name, found)

    def hosts(self, agent: Agent, address: str) -> list[str]:
        """Whom the agent may mean by an address: the names it was given it for, newest first, then the address itself."""
        memory = self._names.get(agent.id)
        return [*(memory.names(address) if memory else ()), address]

    def reserve(self, network: IPv4Network | IPv6Network) -> None:
        """Addresses in it stand for names (hook `stand_in`) from now on: none of them is dialled, whatever a policy says."""
        if network not in self._reserved:
            self._reserved.append(network)

    def is_reserved(self, address: str) -> bool:
        """Of a canonical address."""
        return bool(self._reserved) and any(ip_address(address) in network for network in self._reserved)

    def keep_from_agents(self, owner: str, listeners: Iterable[Listener]) -> None:
        """Numeric addresses and ports that `owner` listens at for operators, in place of those it named before: no agent is
        connected to them, whatever a policy says. In a pool's router they are its workers' too, from their start or next
        reload on."""
        self._listeners[owner] = tuple(listeners)
        self.listeners = tuple(dict.fromkeys(each for owned in self._listeners.values() for each in owned))

    def audit(self, event: AuditEvent) -> None:
        """Tell the plugins; never raises, never waits."""
        self.counters["audit_events"] += 1
        self.plugins.audit(event)

    def note(self, agent: Agent, destination: Destination | None, error: BaseException, **extra: str) -> None:
        """`audit()` an error that ends an agent's operation, if it is a refusal or a plugin's failure."""
        if isinstance(error, (Denied, HookError)) and not error.told:
            about = {name: extra.get(name, "") for name in ("method", "target")}
            self.plugins.refused(agent, destination, error, hook="", **about)
        if isinstance(error, Denied):
            about = {"rule": error.rule, "plugin": error.plugin, "reason": error.reason}
            self.audit(AuditEvent.about("denied", agent, destination, **about, **extra))
        elif isinstance(error, HookError):
            about = {"plugin": error.plugin, "hook": error.hook, "reason": error.reason}
            self.audit(AuditEvent.about("plugin_failed", agent, destination, **about, **extra))
        elif not isinstance(error, (AgentfwError, OSError)):  # a mistake of ours, or of a plugin's transform
            self.audit(AuditEvent.about("internal_error", agent, destination, reason=type(error).__name__, **extra))

    def tables(self) -> list[Table]:
        """What plugins have to show besides their counters."""
        return self.plugins.tables()

    def statistics(self) -> dict[str, int | float]:
        """Counters of the core ("core.flows_tcp", ...), of each plugin ("dns.hits", ...), and of calls of their hooks
        (`PluginManager.hook_statistics()`)."""
        core = {f"core.{name}": value for name, value in sorted(self.counters.items())}
        for index, name in enumerate(("up", "down")):
            if carried := self._carried[index] + sum(getattr(traffic, name) for traffic in self._traffic.values()):
                core[f"core.bytes_{name}"] = carried
        return {**core, **self.durations.statistics(), **self.plugins.statistics(), **self.plugins.hook_statistics()}

    async def connect(self, agent: Agent, destination: Destination, tls: TlsRequest | None) -> Upstream:
        """Lease a connection: `allow`, then the `connect` hooks. Denied, HookError or UpstreamError if there is none."""
        reloads = self._reloads
        await self._allow(agent, destination)
        upstream = await self.plugins.connect(agent, destination, tls)
        if upstream is None:
            raise ConnectError(destination, errno.EPROTONOSUPPORT, f"no plugin connects {'with' if tls else 'without'} TLS")
        if upstream.destination != destination or (upstream.tls is None) != (tls is None):
            upstream.release()  # what is sent next must not go elsewhere, nor in the clear
            raise ConnectError(destination, errno.EPROTO, "the connect hook gave another connection than asked for")
        if tls is not None and upstream.tls is not None:
            try:
                agents_trust.check(tls, upstream.tls)
            except TlsError:
                upstream.release(reusable=True)  # nothing is wrong with it for others
                raise
        if reloads != self._reloads:  # it was made under rules that are not in force any more
            try:
                await self._allow(agent, destination)
                self.check_address(agent, destination, upstream.address)
            except BaseException:
                upstream.release()
                raise
        return upstream

    async def _allow(self, agent: Agent, destination: Destination) -> None:
        if not isinstance(agent, Operator):
            await self.plugins.allow(agent, destination)

    async def resolve_addresses(self, agent: Agent, destination: Destination) -> list[str]:
        """Numeric addresses of destination.host, canonical, each of them permitted to be dialled; never empty.

        IPv6 and IPv4 take turns. Raises ResolveError (no such name, no address), Denied (no address is permitted), HookError.
        """
        if destination.is_address:
            candidates = [destination.host]
        else:
            await self._allow(agent, destination)
            questions = [self._ask(agent, destination.host, qtype) for qtype in (dns_wire.A, dns_wire.AAAA)]
            answers = await asyncio.gather(*questions, return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException) and not isinstance(answer, (UpstreamError, Denied)):
                    raise answer
            found = [answer for answer in answers if isinstance(answer, list)]
            candidates = _interleaved(found)
            if not candidates:
                failures = [answer for answer in answers if isinstance(answer, BaseException)]
                if failures:
                    raise failures[0]
                raise ResolveError(destination.host, "it has no address", 0)
        denied: Denied | None = None
        permitted = []
        for address in candidates[:MAX_ADDRESSES]:
            try:
                self.check_address(agent, destination, address)
                permitted.append(address)
            except Denied as error:
                denied = denied or error
        if not permitted:
            assert denied is not None
            raise denied
        return permitted

    def check_address(self, agent: Agent, destination: Destination, address: str) -> None:
        """Raise Denied unless this (canonical) address may be dialled for `destination`."""
        try:
            self._check_address(agent, destination, address)
        except (Denied, HookError) as error:
            if not isinstance(agent, Operator):
                self.plugins.refused(agent, destination, error, hook="dial", address=address)
            raise

    def _check_address(self, agent: Agent, destination: Destination, address: str) -> None:
        if self.listeners and destination.scheme != "dns" and reached(address, destination.port, self.listeners) is not None:
            raise Denied("addresses: operators", f"{address} port {destination.port} is for this host's operators", "core")
        if self.is_reserved(address):
            raise Denied("addresses: stand-ins", f"{address} stands for a name, and this agent was told of none", "core")
        if isinstance(agent, Operator):
            verdict = True if any(ip_address(address) in network for network in agent.networks) else None
        else:
            verdict = self.plugins.dial(agent, destination, address)
        if verdict is False:
            raise Denied("dial", f"{address} is not permitted for {destination.host}", "policy")
        if verdict is not None:
            return
        own = any(addresses.is_own(each) for each in (address, *addresses.embedded(address)))
        if own or not addresses.is_public(address):
            reason = f"{address} (for {destination.host}) is not on the public internet, nor in allow_addresses"
            raise Denied("addresses: public only", reason, "core")

    async def dial(self, agent: Agent, destination: Destination, seconds: float = 30.0) -> socket.socket:
        """A connected, non-blocking socket (TCP; UDP for scheme "udp") to a permitted address of `destination`.

        While one address has not answered for STAGGER seconds the next one is tried, too, and the first that answers is taken
        (RFC 8305). Each is vetted again right before connect(). The caller owns the socket. Raises ResolveError, ConnectError
        (errno of the last attempt that failed), Denied, HookError. `seconds`: for all of it.
        """
        try:
            async with asyncio.timeout(seconds):
                candidates = await self.resolve_addresses(agent, destination)
                if len(candidates) > 1:
                    return await self._race(agent, destination, candidates)
                self.check_address(agent, destination, candidates[0])
                return await self._connect(destination, candidates[0])
        except TimeoutError as error:  # the system's ETIMEDOUT is one, too
            raise ConnectError(destination, error.errno or errno.ETIMEDOUT) from None
        except OSError as error:
            raise ConnectError(destination, error.errno or errno.ETIMEDOUT) from None

    async def _race(self, agent: Agent, destination: Destination, candidates: list[str]) -> socket.socket:
        """OSError of the last attempt that failed."""
        begun: list[asyncio.Task[socket.socket]] = []
        running: set[asyncio.Task[socket.socket]] = set()
        taken: asyncio.Task[socket.socket] | None = None
        failure: OSError | None = None
        try:
            for address in candidates:
                self.check_address(agent, destination, address)
                begun.append(self.loop.create_task(self._connect(destination, address)))
                running.add(begun[-1])
                last = address is candidates[-1]
                while running:
                    done, running = await asyncio.wait(
                        running, timeout=None if last else STAGGER, return_when=asyncio.FIRST_COMPLETED
                    )
                    for task in done:
                        try:
                            sock, taken = task.result(), task
                            return sock
                        except OSError as error:
                            failure = error
                    if not last:
                        break
        finally:
            for task in begun:
                if task is not taken:
                    task.add_done_callback(_close_late)
                    task.cancel()
        assert failure is not None
        raise failure

    async def _connect(self, destination: Destination, address: str) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        kind = socket.SOCK_DGRAM if destination.scheme == "udp" else socket.SOCK_STREAM
        sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            if kind == socket.SOCK_STREAM:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self.loop.sock_connect(sock, (address, destination.port))
        except BaseException:
            sock.close()
            raise
        self.counters["connections_dialled"] += 1
        return sock

    async def _ask(self, agent: Agent, name: str, qtype: int) -> list[str]:
        """The addresses in the reply to a query of ours: those of `name` itself and of what its CNAMEs lead to."""
        query = dns_wire.make_query(name, qtype)
        reply = await self.plugins.resolve(agent, name, qtype, query)
        if reply is None:
            raise ResolveError(name, "no plugin resolves names")
        try:
            addresses = dns_reply.parse_addresses(reply, query, dns_wire.parse_query(query))
        except dns_wire.WireError as error:
            raise ResolveError(name, str(error)) from None
        if addresses.rcode:
            text = dns_wire.RCODES[addresses.rcode] if addresses.rcode < len(dns_wire.RCODES) else f"rcode {addresses.rcode}"
            raise ResolveError(name, text, addresses.rcode)
        return [address for address, _ in addresses.found]


def _interleaved(lists: list[list[str]]) -> list[str]:
    """[[a4, b4], [a6]] -> IPv4 first of each pair: most hosts that agents run on have no IPv6 route."""
    longest = max(map(len, lists), default=0)
    return [each[i] for i in range(longest) for each in lists if i < len(each)]


def _close_late(task: asyncio.Task[socket.socket]) -> None:
    """It had connected when another was taken."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()
