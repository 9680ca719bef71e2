"""The hooks: what is captured of whom, and how it gets to its file without anybody waiting for it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from agentfw import Agent, ConfigError, ExitReport, RequestHead, ResponseHead, hookimpl
from agentfw.errors import AgentfwError
from agentfw.homes import expanded
from agentfw.pool.jobs import PoolError
from agentfw.reports import ExchangeReport
from agentfw.runtime import Runtime
from agentfw.texts import shown

from . import har
from .config import MAX_FETCHED, Config
from .exchanges import Exchange, encoded
from .files import HarFile
from .thread import WriterThread

MAX_AGENTS = 256
"""Captured at one time, each into a file of its own; further ones are not."""
MAX_PAGES = 4096
"""Likewise, into one file for all: `agentfw run -n` has them all at once, also those that wait for a VM."""
MAX_OPEN = 1024
"""Exchanges that are going on, of all agents."""
MAX_HELD = 64 << 20
"""Bytes of bodies in memory, of exchanges that are going on or wait for their file."""
BATCH = 64
"""Exchanges that are written at a time: to hand each to the thread by itself takes longer than to write it."""
STOP_SECONDS = 5.0
MARGIN = 1 << 20
"""Of a file, its end: that is written however full it is."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")

log = logging.getLogger("agentfw.capture")


class _Capture:
    """Of one agent."""

    __slots__ = ("agent", "began", "directory", "ended", "file", "left_out", "title")

    def __init__(self, agent: Agent, title: str, directory: Path) -> None:
        self.agent = agent
        self.title = title
        self.directory = directory
        self.began = time.time()
        self.file: HarFile | None = None
        self.left_out = 0
        self.ended = False


class Plugin:
    """See the package."""

    name = "capture"
    config_type = Config
    api = "1.1"

    def __init__(self, config: Config) -> None:
        self._config = config
        self._base = Path()
        self._sees: Callable[[Path], bool] = lambda path: False
        self._runtime: Runtime | None = None
        self._shared: HarFile | None = None
        self._captures: dict[str, _Capture] = {}
        self._open: dict[int, Exchange] = {}
        """By number."""
        self._done: deque[tuple[_Capture, Exchange | None]] = deque()
        """For the files; None: the agent has ended."""
        self._held = 0
        self._more = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._thread: WriterThread | None = None
        self._counters = {"agents": 0, "refused": 0, "exchanges": 0, "left_out": 0, "failures": 0}

    @property
    def captures(self) -> bool:
        """The core asks before it takes a job that wants it."""
        return bool(self._config.directory or self._config.file)

    def check_guest(self, file: Path | None, environment: Mapping[str, str], sees: Callable[[Path], bool]) -> None:
        """ConfigError if agents could read, or write, what is captured."""
        self._base = file.parent if file else Path()
        self._sees = sees
        self._check(self._config)

    def _place(self, config: Config) -> Path:
        path = expanded(config.directory or config.file, "directory" if config.directory else "file")
        return (self._base / path).absolute()

    def _check(self, config: Config) -> None:
        if not config.directory and not config.file:
            return
        place = self._place(config)
        for each in (place, place.parent, place.resolve(), place.parent.resolve()):
            if self._sees(each):
                error = ConfigError("directory" if config.directory else "file", f"the agents see {each}")
                error.hint = "write captures where no agent looks, outside of mounts and of the program's directory"
                error.hint += "" if config.directory else ": `--har ../NAME.har`, say"
                raise error

    def reconfigure(self, config: Config) -> Callable[[], None]:
        """For agents that start from then on, and exchanges that begin."""
        if config.file != self._config.file:
            raise ConfigError("file", "counts from the next start")
        self._check(config)
        self._check_directory(config)

        def commit() -> None:
            self._config = config

        return commit

    def _check_directory(self, config: Config) -> None:
        if config.directory and not self._place(config).is_dir():
            raise ConfigError("directory", f"there is no directory {self._place(config)}")

    @hookimpl(tryfirst=True)
    def start(self, runtime: Runtime) -> None:
        self._runtime = runtime
        file = runtime.config.file
        self._base = file.parent if file else Path()
        try:
            self._check_directory(self._config)
            if self._config.file:
                if runtime.pool is not None:  # each of its processes would write over what the others do
                    raise ConfigError("file", "is for `agentfw run`; a pool needs a `directory`")
                try:
                    self._shared = HarFile(self._place(self._config), self._config.max_bytes, only=False)
                except OSError as error:
                    text = f"cannot be written: {error.strerror or error} ({self._place(self._config)})"
                    raise ConfigError("file", text) from None
        except ConfigError as error:
            raise runtime.config.error(f"{self.name}.{error.key}", error.message) from None
        self._thread = WriterThread("agentfw-capture")
        self._task = runtime.loop.create_task(self._work(), name="capture")

    @hookimpl(tryfirst=True)  # plugins stop in the opposite order: this one late
    async def stop(self) -> None:
        for capture in list(self._captures.values()):
            self._end(capture)
        if self._task is not None and self._thread is not None:
            self._stopping = True
            self._more.set()
            _, late = await asyncio.wait([self._task], timeout=STOP_SECONDS)
            if late:
                log.error("captures lack their ends: the disk took longer than %g s", STOP_SECONDS)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._thread.shutdown()
            self._thread = None

    # -- agents

    @hookimpl(trylast=True)
    def admit(self, agent: Agent) -> None:
        """One that is refused by others is not captured."""
        config = self._config
        if not self.captures:
            return
        labels = config.labels
        if not agent.capture and not (labels and all(agent.labels.get(name) == value for name, value in labels.items())):
            return
        most = MAX_AGENTS if self._shared is None else MAX_PAGES
        if len(self._captures) >= most:
            if not self._counters["refused"]:
                log.warning("%s is not captured, nor are others: %d are at a time", agent.name, most)
            self._counters["refused"] += 1
            return
        self._counters["agents"] += 1
        self._captures[agent.id] = _Capture(agent, self._title(agent), self._place(config))

    def _title(self, agent: Agent) -> str:
        title = shown(agent.name, 128)
        try:
            return title if self._runtime is None else self._runtime.plugins.redact(title.encode()).decode("utf-8", "replace")
        except AgentfwError:
            return "(hidden)"

    @hookimpl
    def exit(self, agent: Agent, report: ExitReport) -> None:
        capture = self._captures.get(agent.id)
        if capture is not None and self._runtime is not None:  # its last flows are told after it
            self._runtime.loop.call_later(1.0, self._end, capture)

    def _end(self, capture: _Capture) -> None:
        if not capture.ended:
            capture.ended = True
            self._captures.pop(capture.agent.id, None)
            for number in [number for number, each in self._open.items() if each.agent == capture.agent.id]:
                self._drop(number)
            self._done.append((capture, None))
            self._more.set()

    # -- exchanges

    @hookimpl(tryfirst=True)
    def request(self, agent: Agent, head: RequestHead) -> None:
        capture = self._captures.get(agent.id)
        if capture is None:
            return
        self._drop(head.exchange)  # it is sent again: the same request
        if len(self._open) >= MAX_OPEN or self._held >= MAX_HELD:
            return  # it will be told without heads
        exchange = self._open[head.exchange] = Exchange(agent.id, self._config.body_bytes)
        exchange.request = RequestHead(head.method, head.target, head.headers.copy(), head.version)

        def look(piece: bytes, last: bool) -> bytes:
            self._keep(exchange, exchange.sent.add(piece, self._held < MAX_HELD))
            return piece

        look.same_length = True  # type: ignore[attr-defined]  # so that a Content-Length stays
        head.transforms.append(look)

    @hookimpl(trylast=True)
    def response(self, agent: Agent, request: RequestHead, head: ResponseHead) -> None:
        exchange = self._open.get(request.exchange)
        if exchange is None or exchange.agent != agent.id:
            return
        exchange.response = head
        head.observers.append(lambda piece, last: self._keep(exchange, exchange.received.add(piece, self._held < MAX_HELD)))

    def _keep(self, exchange: Exchange, size: int) -> None:
        exchange.held += size
        self._held += size

    def _drop(self, number: int) -> None:
        exchange = self._open.pop(number, None)
        if exchange is not None:
            self._held -= exchange.held

    @hookimpl
    def exchange_end(self, agent: Agent, exchange: ExchangeReport) -> None:
        capture = self._captures.get(agent.id)
        if capture is None:
            return
        found = self._open.pop(exchange.exchange, None) or Exchange(agent.id, 0)
        found.report = exchange
        found.began = time.time() - exchange.seconds
        if self._held > MAX_HELD or len(self._done) >= MAX_OPEN:
            self._held -= found.held
            self._left_out(capture)
            return
        self._done.append((capture, found))
        self._more.set()

    def _left_out(self, capture: _Capture) -> None:
        capture.left_out += 1
        self._counters["left_out"] += 1

    # -- files

    async def _work(self) -> None:
        """Some at a time to the thread, other agents' turns in between."""
        while True:
            while self._done:
                batch = [self._done.popleft() for _ in range(min(BATCH, len(self._done)))]
                try:
                    await self._write(batch)
                finally:
                    self._held -= sum(exchange.held for _, exchange in batch if exchange is not None)
            if self._stopping:
                if self._shared is not None:
                    await asyncio.get_running_loop().run_in_executor(self._thread, _closed, self._shared)
                return
            self._more.clear()
            await self._more.wait()

    async def _write(self, batch: list[tuple[_Capture, Exchange | None]]) -> None:
        assert self._runtime is not None and self._thread is not None
        made: list[tuple[_Capture, bytes]] = []
        """b"": it has ended."""
        for capture, exchange in batch:
            try:
                data = b"" if exchange is None else encoded(exchange, self._config.body_bytes, self._runtime.plugins.redact)
            except Exception as error:
                self._failed(capture, error)
            else:
                made.append((capture, data))
            await asyncio.sleep(0)
        told = await self._runtime.loop.run_in_executor(self._thread, self._put, made)
        for (capture, data), (failure, known) in zip(made, told, strict=True):
            if failure is not None:
                self._failed(capture, failure, known)
            elif data:
                self._counters["exchanges"] += 1

    def _put(self, made: list[tuple[_Capture, bytes]]) -> list[tuple[Exception | None, bool]]:
        """In the thread. What became of each, and whether the file knows that it lacks it."""
        told: list[tuple[Exception | None, bool]] = []
        for capture, data in made:
            file = None
            try:
                file = self._opened(capture)  # also of one that said nothing: that is known, too
                if data:
                    file.append(data)
                else:
                    file.left_out += capture.left_out
                    if file is not self._shared:
                        file.close()
            except Exception as error:
                told.append((error, file is not None))
            else:
                told.append((None, True))
        return told

    def _failed(self, capture: _Capture, error: Exception, known: bool = False) -> None:
        """`known`: its file has counted it."""
        capture.left_out += not known
        self._counters["left_out"] += 1
        self._counters["failures"] += 1
        if not isinstance(error, (AgentfwError, OSError)):
            log.error("an exchange of %s is not captured", capture.agent.name, exc_info=error)
        elif self._counters["failures"] == 1:
            text = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            log.error("%s cannot be captured: %s", capture.agent.name, shown(text))

    def _opened(self, capture: _Capture) -> HarFile:
        """In the thread."""
        file = capture.file or self._shared
        if file is None:
            agent = capture.agent
            name = agent.job or agent.id
            if not _ID.match(name):
                raise OSError(0, "no name for a file")
            file = capture.file = _new_file(capture.directory, name, self._config.max_bytes)
        page = har.Page(startedDateTime=har.moment(capture.began), id=capture.agent.id, title=capture.title, pageTimings={})
        file.page(page)
        return file

    # -- the pool

    async def answer_api(self, what: str, query: Mapping[str, str]) -> Any:
        """In the router: what was captured of a job's run (`id`), as it stands."""
        if what != "har":
            raise PoolError("not_found", f"`capture` tells no `{shown(what, 64)}`", "it tells `har`")
        run = query.get("id", "")
        config = self._config
        if not config.directory or not _ID.match(run):
            why = "there is no capture of that" if config.directory else "this pool has no directory for captures"
            raise PoolError("not_found", why)
        path = self._place(config) / f"{run}.har"
        try:
            data = await asyncio.get_running_loop().run_in_executor(None, _read, path)
        except FileNotFoundError:
            hint = "submit jobs with `--har` to have them captured"
            raise PoolError("not_found", f"nothing of `{run}` was captured", hint) from None
        except OSError as error:
            raise PoolError("internal", f"the capture of `{run}` cannot be read: {error.strerror or error} ({path})") from None
        return msgspec.Raw(data)

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        return dict(self._counters)


def _new_file(directory: Path, name: str, max_bytes: int) -> HarFile:
    for number in range(1, 1000):
        try:
            return HarFile(directory / (f"{name}.har" if number == 1 else f"{name}-{number}.har"), max_bytes, only=True)
        except FileExistsError:
            continue
    raise OSError(17, "all names are taken", str(directory / name))


def _closed(file: HarFile) -> None:
    try:
        file.close()
    except OSError as error:
        log.error("%s lacks its end: %s", file.path, error.strerror)


def _read(path: Path) -> bytes:
    """Until it is a whole document: it may be written right now. One that never is was torn when its writer was killed, or the
    machine lost its power: what is whole of it. OSError; PoolError if that is nothing, or it is too large: a pool before this one
    may have had another bound."""
    data = b""
    for _ in range(20):
        data = _bytes_of(path)
        try:
            msgspec.json.decode(data, type=msgspec.Raw)
        except msgspec.DecodeError:
            time.sleep(0.05)
            continue
        return data
    found = har.mended(data)
    if found is None:
        why = f"what was captured of `{path.stem}` lacks its end"
        raise PoolError("unavailable", why, f"it is {path}, on the pool's machine")
    return found


def _bytes_of(path: Path) -> bytes:
    """OSError, also for what is no file of ours: nobody waits for a FIFO."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "not a regular file")
        if found.st_size > MAX_FETCHED + MARGIN:
            why = f"`{path.stem}` was captured, in more bytes than are sent ({MAX_FETCHED})"
            raise PoolError("unavailable", why, f"it is {path}, on the pool's machine")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_FETCHED + MARGIN)
    finally:
        os.close(descriptor)
