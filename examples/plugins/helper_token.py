"""A credential source: tokens that a program of the operator's prints, and that no agent ever holds.

    [helper_token]
    host = "api.example.com"
    command = ["/usr/local/bin/mint-token", "--audience", "api"]

The command prints JSON, `{"token": "...", "expires_in": 300}`. It runs when a request needs a token and there is none that lasts
another tenth of its time, once for all agents that wait. The header is set on TLS that the host verified, and on nothing else.
(The shipped `credentials` does more: placeholders, refusal of agents' own keys, masking of echoes.)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from agentfw import Agent, ConfigError, Denied, Destination, Headers, RequestHead, TlsInfo, hookimpl
from agentfw.destination import parse_authority
from agentfw.errors import UpstreamError

MOST_OUTPUT = 1 << 16


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table [helper_token]."""

    host: str
    """"name", for port 443, or "name:port"."""
    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    """A program and its arguments. No shell."""
    header: str = "authorization"
    prefix: str = "Bearer "
    timeout: Annotated[float, msgspec.Meta(gt=0, le=25)] = 10.0
    """Seconds for the command."""


class Minted(msgspec.Struct):
    """What the command prints."""

    token: Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,8192}\Z")]
    expires_in: Annotated[float, msgspec.Meta(gt=0)]


class Plugin:
    """See the module. `clock`: seconds, monotonic; for tests."""

    name = "helper_token"
    api = "1"
    config_type = Config

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        try:
            self._place = parse_authority(config.host, 443)
        except ValueError as error:
            raise ConfigError("host", str(error)) from None
        try:
            Headers([(config.header, config.prefix + "x")])
        except ValueError as error:  # not with each request
            raise ConfigError("header", str(error)) from None
        self._config = config
        self._clock = clock
        self._token = ""
        self._until = 0.0
        self._minting: asyncio.Task[None] | None = None
        self._minted = 0

    @hookimpl
    def allow(self, agent: Agent, destination: Destination) -> None:
        if (destination.host, destination.port) == self._place and destination.scheme in ("tcp", "tls", "udp", "http"):
            raise Denied("helper_token", f"{destination.host} is reached by HTTPS through the runtime only")

    @hookimpl(trylast=True)
    async def request(self, agent: Agent, destination: Destination, head: RequestHead, tls: TlsInfo | None) -> None:
        if (destination.host, destination.port) != self._place:
            return
        if tls is None or not tls.verified:
            raise Denied("helper_token", f"the host does not vouch for {destination.host}")
        head.headers.set(self._config.header, self._config.prefix + await self._fresh())

    async def _fresh(self) -> str:
        if self._clock() >= self._until:
            if self._minting is None or self._minting.done():
                self._minting = asyncio.create_task(self._mint())
                self._minting.add_done_callback(lambda task: task.cancelled() or task.exception())  # if all who waited are gone
            await asyncio.shield(self._minting)  # whoever waits may be cancelled; the others still get theirs
        return self._token

    async def _mint(self) -> None:
        began = self._clock()
        process = None
        try:
            async with asyncio.timeout(self._config.timeout):
                process = await asyncio.create_subprocess_exec(
                    *self._config.command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, limit=MOST_OUTPUT
                )
                assert process.stdout is not None
                output = b""
                while piece := await process.stdout.read(MOST_OUTPUT):
                    output += piece
                    if len(output) > MOST_OUTPUT:
                        raise UpstreamError("the token's command printed too much")
                status = await process.wait()
            if status:
                raise UpstreamError(f"the token's command ended with {status}")
            minted = msgspec.json.decode(output, type=Minted)
        except (msgspec.MsgspecError, RecursionError):  # its text may quote the token
            raise UpstreamError("the token's command printed something else than a token") from None
        except OSError as error:  # TimeoutError is one
            raise UpstreamError(f"the token's command failed: {type(error).__name__}") from None
        finally:
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()
        self._token, self._until = minted.token, began + 0.9 * minted.expires_in
        self._minted += 1

    @hookimpl
    async def stop(self) -> None:
        if self._minting is not None:
            self._minting.cancel()
            await asyncio.gather(self._minting, return_exceptions=True)

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        return {"minted": self._minted}
