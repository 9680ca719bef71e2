"""The process of `agentfw pool start`: router and control API, from the first bar on the terminal to the last job's end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..descriptors import more_descriptors, no_core_dumps
from ..errors import AgentfwError, ConfigError
from ..log_lines import OneLine
from .options import check_kvm
from .output import complain, say
from .reload import Terminal

if TYPE_CHECKING:
    from ..config import Config
    from ..pool.api import ApiServer
    from ..pool.config import PoolConfig
    from ..pool.jobs import PoolInfo
    from ..pool.places import SocketPlace
    from ..pool.router import Router

SHORT_SECONDS = 10.0
"""That jobs have after Ctrl-C."""
BAR_AFTER = 1.0
LOOK = 0.1
TIDY_SECONDS = 30.0

Ready = Callable[[dict[str, Any]], None]
Warm = Callable[[int, int], None]

log = logging.getLogger("agentfw.pool")


@dataclass(frozen=True)
class Service:
    """What is started, and how it talks."""

    config: Config
    plugins: Sequence[str]
    load: Callable[[], Config]
    """Reads the configuration again."""
    as_json: bool
    quiet: bool
    verbose: int

    @property
    def pool(self) -> PoolConfig:
        from ..pool.config import PoolConfig

        return self.config.plugin("pool", PoolConfig)

    @property
    def socket(self) -> Path:
        from ..pool.places import default_socket

        return Path(self.pool.socket) if self.pool.socket is not None else default_socket()

    def listen(self) -> tuple[str, int, bytes] | None:
        """(host, port, token) of [pool] listen. ConfigError."""
        from ..pool.tokens import read_token

        text, file = self.pool.listen, self.pool.token_file
        if text is None:
            return None
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not port.isascii() or int(port) > 65535:
            raise ConfigError("pool.listen", f"`{text}` is not HOST:PORT", hint="write `127.0.0.1:8700`, or `[::1]:8700`")
        assert file is not None  # PoolConfig says so
        return host, int(port), read_token(file)


def serve(service: Service, ready: Ready | None = None, warm: Warm | None = None, tidy: Callable[[], None] | None = None) -> int:
    """Run it to its end; the exit status. `ready` is told once that it is; `warm`: how many VMs wait already, of how many;
    `tidy` is called now and then."""
    import uvloop

    check_kvm()
    _logging(service)
    more_descriptors()
    no_core_dumps()
    # What plugins print is not data.
    with contextlib.redirect_stdout(sys.stderr), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Process(service, ready, warm, tidy).run())


def _logging(service: Service) -> None:
    chosen = logging.getLevelNamesMapping()[service.pool.log.upper()]
    level = (
        logging.ERROR if service.quiet else min(chosen, (logging.CRITICAL, logging.INFO, logging.DEBUG)[min(service.verbose, 2)])
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("agentfw").setLevel(level)


class _Process:
    """The life of one pool."""

    def __init__(self, service: Service, ready: Ready | None, warm: Warm | None, tidy: Callable[[], None] | None = None) -> None:
        self._service = service
        self._on_ready = ready
        self._on_warm = warm
        self._tidy = tidy
        self._began = time.monotonic()
        self._task: asyncio.Task[int] | None = None
        self._router: Router | None = None
        self._ready = False
        self._stop = asyncio.Event()
        self._seconds = SHORT_SECONDS
        """That jobs have, once `_stop` is set."""
        self._now = asyncio.Event()
        self._signal: int | None = None
        self._by = "program"
        """Who ends it."""
        self._reloading: asyncio.Task[None] | None = None
        self._again = False

    async def run(self) -> int:
        from ..pool.api import ApiServer
        from ..pool.places import SocketPlace
        from ..pool.router import Router

        service = self._service
        listen = service.listen()
        self._task = asyncio.current_task()
        place = SocketPlace.take(service.socket)
        api: ApiServer | None = None
        router: Router | None = None
        sockets: list[socket.socket] = []
        with self._signals():
            try:
                sockets = self._bind(listen)
                own = [sock.getsockname()[:2] for sock in sockets]
                router = self._router = Router(
                    service.config, service.plugins, load=service.load, place=place.path, listeners=own
                )
                await self._start(router)
                api = ApiServer(router, self._asked_to_stop, diary=router.diary)
                await api.start()
                await self._open(api, place, listen, sockets)
                sockets = []
                await self._tell(router, place)
                self._ready = True
                if self._again:
                    self._reload()
                await self._until_stopped(router)
                api.stop_listening()
            except asyncio.CancelledError:
                if self._signal is None:
                    raise
                return 128 + self._signal
            finally:
                for sock in sockets:
                    sock.close()
                await self._end(router, api, place)
        return 128 + self._signal if self._now.is_set() and self._signal is not None else 0

    async def _start(self, router: Router) -> None:
        idle = self._service.pool.warm
        looking = asyncio.create_task(self._look(router, idle))
        try:
            await router.start()
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _look(self, router: Router, idle: int) -> None:
        """The bar while templates are built and VMs get warm."""
        async with _bar(idle, wanted=self._on_warm is None and not self._service.quiet) as bar:
            while True:
                await asyncio.sleep(LOOK)
                warm = min(sum(worker.idle for worker in (await router.describe()).workers), idle)
                bar(warm)
                if self._on_warm is not None:
                    self._on_warm(warm, idle)

    def _bind(self, listen: tuple[str, int, bytes] | None) -> list[socket.socket]:
        """Before anything is started, so that agents are kept from it. ConfigError: the port is somebody else's."""
        from ..pool.guard import bind_tcp

        if listen is None:
            return []
        host, port, _ = listen
        try:
            return bind_tcp(host, port)
        except OSError as error:
            raise self._taken(host, port, error) from None

    def _taken(self, host: str, port: int, error: OSError) -> ConfigError:
        from ..pool.guard import bind_hint

        found = self._service.config.error("pool.listen", f"cannot listen at {host}:{port}: {error.strerror or error}")
        found.hint = bind_hint(error, "another one has the port: name a free one in `--listen` or [pool] `listen`; 0 is any")
        return found

    async def _open(
        self, api: ApiServer, place: SocketPlace, listen: tuple[str, int, bytes] | None, sockets: list[socket.socket]
    ) -> None:
        from ..addresses import is_loopback

        if listen is not None:
            host, _, token = listen
            chosen = sockets[0].getsockname()[1]
            try:
                await api.serve_tcp(sockets, host, token)
            except OSError as error:  # another one was bound there, too, and listened first
                raise self._taken(host, chosen, error) from None
            if not self._service.quiet:
                if not is_loopback(host):
                    say(f"note: what is said to {host} is not encrypted, the token neither: put a TLS server before it")
                say(f"listening at http://{host if ':' not in host else f'[{host}]'}:{chosen}")
        await api.listen_unix(place.bind())

    async def _tell(self, router: Router, place: SocketPlace) -> None:
        from ..plugins.discovery import WITHOUT_POLICY
        from .pool import ready_line

        info = await router.describe()
        served = router.runtime.plugins.served_at() if router.runtime is not None else {}
        document = {"version": 1, "pid": os.getpid(), "socket": str(place.path), "workers": len(info.workers), "served": served}
        if not self._service.quiet:
            if self._service.plugins and "policy" not in self._service.plugins:
                say(f"note: {WITHOUT_POLICY}")
            say(ready_line(info, place.path, time.monotonic() - self._began))
            for name, url in served.items():
                say(f"{name} at {url} (`agentfw {name}` opens it)")
        if self._on_ready is not None:
            self._on_ready(document)
        elif self._service.as_json:
            with contextlib.redirect_stdout(sys.__stdout__):
                click.echo(json.dumps(document))

    async def _until_stopped(self, router: Router) -> None:
        """Until somebody ends it, and its jobs have ended, or had their time."""
        from ..pool.diary import caller

        if self._tidy is None:
            await self._stop.wait()
        while self._tidy is not None and not self._stop.is_set():
            self._tidy()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), TIDY_SECONDS)
        caller.set(self._by)
        draining = asyncio.create_task(router.drain())
        hurry = asyncio.create_task(self._now.wait())
        try:
            left = await _count(router)
            if left and not self._service.quiet and self._seconds:
                again = "; press Ctrl-C again to kill them" if self._signal == signal.SIGINT else ""
                say(f"{left} job{'s' if left != 1 else ''} may go on for {self._seconds:g} s{again}")
            await asyncio.wait([draining, hurry], timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            if draining.done():
                draining.result()
        finally:
            for task in (draining, hurry):
                task.cancel()
            await asyncio.gather(draining, hurry, return_exceptions=True)

    async def _end(self, router: Router | None, api: ApiServer | None, place: SocketPlace) -> None:
        """Jobs first, so that those who wait for them are told; then the API. Each step whatever became of the one before."""
        if self._reloading is not None:
            self._reloading.cancel()
            await asyncio.gather(self._reloading, return_exceptions=True)
        try:
            if router is not None:
                await router.close()
        finally:
            try:
                if api is not None:
                    await api.close()
            finally:
                place.close()

    # -- signals

    @contextlib.contextmanager
    def _signals(self) -> Any:
        loop = asyncio.get_running_loop()
        terminal, hangup_ends = Terminal(), signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
        for number in (signal.SIGINT, signal.SIGTERM):
            if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._signalled, number)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._hangup(terminal, hangup_ends))
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _signalled(self, number: int) -> None:
        again, self._signal = self._signal is not None, number
        if not self._ready:
            if self._task is not None:
                self._task.cancel()
        elif again:
            self._now.set()
        else:
            self._seconds = SHORT_SECONDS
            self._by = f"signal {signal.Signals(number).name}"
            self._stop.set()

    def _asked_to_stop(self, seconds: float) -> None:
        """By a client. Asked again, jobs have as long as it says then, if that is nothing."""
        if self._stop.is_set():
            if not seconds:
                self._now.set()
            return
        from ..pool.diary import caller

        self._seconds = seconds
        self._by = caller.get()
        self._stop.set()

    def _hangup(self, terminal: Terminal, ends: bool) -> None:
        if not terminal.hung_up():
            self._again = True
            if self._ready:
                self._reload()
        elif ends:
            self._signalled(signal.SIGHUP)

    def _reload(self) -> None:
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(self._reloads())

    async def _reloads(self) -> None:
        """Several that come amid one are one."""
        from ..pool.diary import caller

        caller.set("signal SIGHUP")
        while self._again:
            self._again = False
            assert self._router is not None
            try:
                changed = await self._router.reload()
            except AgentfwError as error:
                complain(f"not reloaded, all stays as it was: {error}", getattr(error, "hint", ""))
            except Exception as error:  # ours: jobs run on
                log.exception("reload")
                complain(f"reload: internal error: {type(error).__name__}")
            else:
                if not self._service.quiet:
                    say(f"reloaded: {', '.join(changed) or 'nothing'} changed")


async def _count(router: Router) -> int:
    info: PoolInfo = await router.describe()
    return info.running + info.queued


@contextlib.asynccontextmanager
async def _bar(total: int, *, wanted: bool) -> AsyncIterator[Callable[[int], None]]:
    """A bar on stderr, if that is a terminal and it takes more than a second."""
    began = time.monotonic()
    shown: list[Any] = []

    def update(warm: int) -> None:
        if not shown and time.monotonic() - began > BAR_AFTER:
            shown.extend(_new_bar(total))
        if shown:
            what = "warming VMs" if warm else "building templates"
            shown[0].update(shown[1], description=what, completed=warm)

    try:
        if wanted and sys.stderr.isatty() and not os.environ.get("AGENTFW_NO_PROGRESS"):
            yield update
        else:
            yield lambda warm: None
    finally:
        if shown:
            shown[0].stop()


def _new_bar(total: int) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.start()
    return bar, bar.add_task("building templates", total=total or None)
