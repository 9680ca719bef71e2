"""The page of one process: its listener, its token, and what becomes of both when the configuration changes."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from agentfw import ConfigError
from agentfw.addresses import is_loopback
from agentfw.pool.authority import RouterLink
from agentfw.pool.guard import bind_hint, bind_tcp
from agentfw.pool.tokens import read_token

from .config import Config
from .web import Access, WebServer
from .web.door import Door
from .web.files import load
from .web.server import Metrics, Output
from .web.shared import Source

if TYPE_CHECKING:
    import socket

    from agentfw.runtime import Runtime

STATIC = Path(__file__).parent / "static"
OWNER = "dashboard"
"""Under which the runtime keeps the page's addresses from agents."""

log = logging.getLogger("agentfw.dashboard")


class Page:
    """`beside`: the pool's socket, if it has one: a token of our own is in a file next to it."""

    def __init__(self, config: Config, runtime: Runtime, source: Source, *, beside: Path | None = None,
                 output: Output | None = None, metrics: Metrics | None = None) -> None:  # fmt: skip
        self.config = config
        self.trouble = ""
        """Why it does not listen though it should."""
        self._runtime = runtime
        self._file = None if beside is None else beside.with_name(f"{beside.name}.dashboard-token")
        self._made: tuple[int, int, int] | None = None
        self._own_token = secrets.token_urlsafe(32).encode()
        try:
            token = self._token(config)
        except ConfigError as error:
            raise runtime.config.located("dashboard", error) from None
        self.server = WebServer(source, Access(token), files=load(STATIC), door=Door.of(config.names, config.url), output=output,
                                metrics=metrics)  # fmt: skip
        self.addresses: list[tuple[str, int]] = []
        """That it listens at, numeric."""

    async def start(self) -> None:
        """ConfigError: the port is somebody else's, or the token cannot be read."""
        await self.server.start()
        try:
            self._write_token()
            await self._listen(self.bind(self.config), self.config.address)
        except BaseException as error:
            await self.close()
            if isinstance(error, ConfigError) and error.file is None:
                raise self._runtime.config.located("dashboard", error) from None
            raise

    async def close(self) -> None:
        """Idempotent."""
        await self.server.close()
        self._runtime.keep_from_agents(OWNER, ())
        self._remove_token()

    # -- where it is

    @property
    def url(self) -> str:
        """Of the page, as people on this machine reach it; "" if it has none."""
        if not self.addresses:
            return ""
        host, port = self.addresses[0]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def login_url(self) -> str:
        """With a code that is good for one login; "" if there is no page."""
        return f"{self.url}/login?code={self.server.access.new_code()}" if self.url else ""

    def counters(self) -> dict[str, int | float]:
        server = self.server
        return {
            "connections": server.open,
            "viewers": server.events.viewers,
            "sessions": server.access.sessions,
            "logins": server.logins,
            "requests_refused": server.refused,
            "collections": server.shared.collections,
            "frames": server.events.frames,
            "frames_skipped": server.events.skipped,
        }

    # -- the configuration

    def check(self, config: Config) -> bytes:
        """Whether it could be so; -> the token. ConfigError."""
        token = self._token(config)
        if config.address != self.config.address and config.address is not None:
            for sock in self.bind(config, port=0 if self._has(config.address) else None):  # what we have ourselves is no fault
                sock.close()
        return token

    def adopt(self, config: Config, token: bytes) -> None:
        """All but the listener."""
        self.config = config
        self.server.access.change_token(token)
        self.server.door = Door.of(config.names, config.url)
        self._write_token()

    async def move(self) -> None:
        """To where the configuration says; with that taken meanwhile it stays where it was."""
        if self.config.address == self._at:
            self.trouble = ""
            return
        before = self.addresses
        if self.config.address is None or self._has(self.config.address):
            self.server.stop_listening()
        try:
            sockets = self.bind(self.config)
        except ConfigError as error:
            error = self._runtime.config.located("dashboard", error)
            log.error("%s", error)
            if before and not self.server.listening:
                await self._listen([sock for host, port in before for sock in bind_tcp(host, port)], self._at)
            self.trouble = str(error)
            return
        self.server.stop_listening()
        await self._listen(sockets, self.config.address)
        log.info("the dashboard is at %s now", self.url or "no address")

    def bind(self, config: Config, *, port: int | None = None) -> list[socket.socket]:
        """`port`: instead of the configured one. ConfigError with the table's key: the file may be one that is yet to count."""
        if config.address is None:
            return []
        host, configured = config.address
        try:
            return bind_tcp(host, configured if port is None else port)
        except OSError as error:
            hint = bind_hint(error, 'another one has the port: name a free one, 0 for any, or "" for no page')
            raise ConfigError("listen", f"cannot listen at {config.listen}: {error.strerror or error}", hint=hint) from None

    async def _listen(self, sockets: list[socket.socket], at: tuple[str, int] | None) -> None:
        """`at`: the configured address that they are bound to."""
        self._at = at
        self.addresses = [sock.getsockname()[:2] for sock in sockets]
        self._runtime.keep_from_agents(OWNER, self.addresses)
        if isinstance(self._runtime.pool, RouterLink):  # nobody can connect before it listens
            await self._runtime.pool.keep_from_agents(self._runtime.listeners)
        await self.server.serve(sockets)
        self.trouble = ""
        if at is not None and not is_loopback(at[0]):
            what = "the dashboard at %s port %d is not encrypted, its token neither: put a TLS server before it"
            log.warning(what, *self.addresses[0])

    def _has(self, address: tuple[str, int]) -> bool:
        return bool(address[1]) and any(address[1] == port for _, port in self.addresses)

    # -- the token

    def _token(self, config: Config) -> bytes:
        """ConfigError as of `bind()`."""
        if config.token_file is None:
            return self._own_token
        try:
            return read_token(config.token_file)
        except ConfigError as error:
            raise ConfigError("token_file", f"{config.token_file}: {error.message}", hint=error.hint) from None

    def _write_token(self) -> None:
        """One of our own into a file of mode 0600; ConfigError."""
        if self._file is None or self.config.token_file is not None:
            self._remove_token()
            return
        if self._made is not None:
            return
        try:
            self._file.unlink(missing_ok=True)  # of a pool that was killed; the place is locked by this one
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                file.write(self._own_token + b"\n")
                self._made = _which(os.fstat(descriptor))
        except OSError as error:
            raise ConfigError("token_file", f"{self._file} cannot be written: {error.strerror}") from None

    def _remove_token(self) -> None:
        """If it is still the one that we made."""
        made, self._made = self._made, None
        if made is None or self._file is None:
            return
        with contextlib.suppress(OSError):
            if _which(self._file.lstat()) == made:
                self._file.unlink()


def _which(found: os.stat_result) -> tuple[int, int, int]:
    """The file, and as it was written: the number alone may be given again."""
    return found.st_dev, found.st_ino, found.st_mtime_ns
