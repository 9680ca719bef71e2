"""A pool that runs elsewhere, over its control API: the `Backend` of the CLI and of `agentfw.Pool.connect()`.

Nothing is sent twice and nothing is reconnected: what fails raises PoolError, with the server's code, or "unavailable" if nobody
(or something that is no pool) answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from . import places
from .jobs import Job, JobInfo, Output, PoolError, PoolInfo, State, Usage
from .wire import (
    API_VERSION,
    HEARTBEAT,
    LONGEST_WAIT,
    MAX_LINE,
    VERSION_HEADER,
    Drained,
    ErrorBody,
    ForkRequest,
    JobList,
    Metrics,
    Reloaded,
    SignalRequest,
    StopRequest,
    UsageList,
)

Answer = TypeVar("Answer")

TIMEOUT = 60.0
"""Seconds that an answer may take (beyond what it was asked to wait), and a connection a sixth of it."""
RELOAD_WAIT = 600.0
"""Seconds that a reload may take beyond that: templates are made."""
SLICE = min(60.0, LONGEST_WAIT)
"""Seconds of one request of a wait that has no end."""
MAX_ANSWER = 257 << 20
"""Bytes: captures may have 256 MiB, and an end."""
_NONSENSE = (msgspec.DecodeError, RecursionError)
"""What is raised for an answer that is none of a pool's; the last for one nested too deeply."""
FEED_PIECE = 1 << 20
QUEUE_PAUSE = 0.01
START = "start one with `agentfw pool start`"


class HttpBackend:
    """The pool at a Unix socket (default: this user's, `places.default_socket()`), or at a URL with a token.

    Used in one event loop; `async with`, or `close()` at the end. Connects when something is asked of it. Raises PoolError
    "bad_config" at once for a URL or socket that cannot be one.
    """

    def __init__(
        self,
        *,
        socket: str | Path | None = None,
        url: str | None = None,
        token: str | bytes | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        if socket is not None and url is not None:
            raise PoolError("bad_config", "a pool is at a socket or at a URL, not at both")
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._directory = -1
        self._headers: dict[str, str] = {}
        self.socket: Path | None = None
        """Where it is; None if it is at a URL."""
        if url is None:
            self.socket = Path(socket) if socket is not None else places.default_socket()
            self._base = "http://localhost"
            self._where = str(self.socket)
            self._hint = START
            return
        self._base = _base_url(url)
        self._where = self._base
        self._hint = "is it there? `agentfw pool start --listen HOST:PORT --token-file FILE` starts one"
        if token is None:
            raise PoolError("bad_config", "a pool at a URL wants a token", "name a file with it: `--token-file FILE`")
        text = (token.decode("ascii", "replace") if isinstance(token, bytes) else token).strip()
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            raise PoolError("bad_config", "the token is empty, or has characters that no token has")
        self._headers["Authorization"] = f"Bearer {text}"

    async def __aenter__(self) -> HttpBackend:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def where(self) -> str:
        """Its socket or its URL, for people."""
        return self._where

    async def close(self) -> None:
        """Idempotent; what is asked later connects anew."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        directory, self._directory = self._directory, -1
        if directory >= 0:
            os.close(directory)

    # -- jobs

    async def submit(self, job: Job) -> JobInfo:
        return await self._call("POST", "/v1/jobs", JobInfo, body=msgspec.json.encode(job))

    async def info(self, job_id: str) -> JobInfo:
        return await self._call("GET", _path(job_id), JobInfo)

    async def jobs(
        self, *, state: State | None = None, tenant: str | None = None, labels: Mapping[str, str] | None = None, limit: int = 1000
    ) -> list[JobInfo]:
        query = [("limit", str(limit))]
        query += [(name, value) for name, value in (("state", state), ("tenant", tenant)) if value is not None]
        query += [("label", f"{name}={value}") for name, value in (labels or {}).items()]
        return (await self._call("GET", "/v1/jobs", JobList, query=query)).jobs

    async def wait(self, job_id: str, seconds: float | None = None) -> JobInfo:
        left = seconds
        while True:
            now = SLICE if left is None else min(left, SLICE)
            info = await self._call("GET", _path(job_id, "wait"), JobInfo, query=[("seconds", f"{now:g}")], extra=now)
            left = None if left is None else left - now
            if info.state == "done" or (left is not None and left <= 0):
                return info

    async def output(self, job_id: str, *, follow: bool = True, stdout: int = 0, stderr: int = 0) -> AsyncIterator[Output]:
        query = [("follow", "1" if follow else "0"), ("stdout", str(stdout)), ("stderr", str(stderr))]
        async with self._request("GET", _path(job_id, "output"), query=query, wait=4 * HEARTBEAT) as response:
            decoder = msgspec.json.Decoder(Output)
            async for line in _lines(response.content):
                if not line:
                    continue
                try:
                    piece = decoder.decode(line)
                except _NONSENSE:
                    try:
                        error = msgspec.json.decode(line, type=ErrorBody)
                    except _NONSENSE:
                        raise self._foreign("a line that is no output") from None
                    raise error.exception() from None
                yield piece

    async def feed(self, job_id: str, data: bytes, end: bool = False) -> None:
        for at in range(0, max(len(data), 1), FEED_PIECE):
            last = end and at + FEED_PIECE >= len(data)
            query = [("end", "1" if last else "0")]
            async with self._request("POST", _path(job_id, "stdin"), query=query, data=data[at : at + FEED_PIECE], wait=None):
                pass

    async def signal(self, job_id: str, number: int) -> None:
        await self._call("POST", _path(job_id, "signal"), None, body=msgspec.json.encode(SignalRequest(signal=number)))

    async def fork(self, job_id: str, count: int) -> list[JobInfo]:
        body = msgspec.json.encode(ForkRequest(count=count))
        return (await self._call("POST", _path(job_id, "fork"), JobList, body=body)).jobs

    # -- the pool

    async def describe(self) -> PoolInfo:
        return await self._call("GET", "/v1/pool", PoolInfo)

    async def metrics(self) -> dict[str, float]:
        return (await self._call("GET", "/v1/metrics", Metrics)).metrics

    async def prometheus(self) -> str:
        """The same as `metrics()` in Prometheus' text format 0.0.4."""
        return (await self._data("GET", "/metrics", wait=self._timeout)).decode(errors="replace")

    async def usage(self) -> dict[str, Usage]:
        return (await self._call("GET", "/v1/usage", UsageList)).usage

    async def plugin(
        self, plugin: str, what: str, query: Mapping[str, str] | None = None, *, local: bool = True, kind: Any = Any
    ) -> Any:
        """-> decoded as `kind`, a type that msgspec knows (`agentfw.views.Overview`). The pool knows by the connection who asks:
        `local` changes nothing here. PoolError "not_found", "forbidden"."""
        path = f"/v1/plugins/{_part(plugin, 'plugin')}/{_part(what, 'thing')}"
        return await self._call("GET", path, kind, query=list((query or {}).items()))

    async def drain(self) -> None:
        while not (await self.drained(SLICE)).done:
            pass

    async def drained(self, seconds: float) -> Drained:
        """Begin to drain, and say after at most so many seconds whether that is done."""
        return await self._call("POST", "/v1/pool/drain", Drained, query=[("seconds", f"{seconds:g}")], extra=seconds)

    async def reload(self) -> list[str]:
        return (await self._call("POST", "/v1/pool/reload", Reloaded, extra=RELOAD_WAIT)).changed

    async def stop(self, seconds: float | None = None) -> None:
        """Tell the pool to end; its jobs have so long (None: its default). Returns before it has."""
        await self._call("POST", "/v1/pool/stop", None, body=msgspec.json.encode(StopRequest(seconds=seconds)))

    # -- requests

    async def _call(
        self,
        method: str,
        path: str,
        kind: type[Answer] | None,
        *,
        query: list[tuple[str, str]] | None = None,
        body: bytes | None = None,
        extra: float = 0.0,
    ) -> Answer:
        """`kind` None: there is no answer to be decoded, and None is returned."""
        data = await self._data(method, path, query=query, body=body, wait=self._timeout + extra)
        if kind is None:
            return None  # type: ignore[return-value]
        try:
            return msgspec.json.decode(data, type=kind)
        except _NONSENSE as error:
            raise self._foreign(f"an answer of another kind ({error})") from None

    async def _data(
        self, method: str, path: str, *, query: list[tuple[str, str]] | None = None, body: bytes | None = None, wait: float
    ) -> bytearray:
        """The whole of a good answer."""
        async with self._request(method, path, query=query, data=body, wait=wait) as response:
            data = bytearray()
            async for piece in response.content.iter_any():
                data += piece
                if len(data) > MAX_ANSWER:
                    raise self._foreign("an answer without an end")
            return data

    @contextlib.asynccontextmanager
    async def _request(
        self, method: str, path: str, *, query: list[tuple[str, str]] | None = None, data: bytes | None = None, wait: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A good answer's head, and its body inside. `wait`: seconds without a byte of it."""
        session = self._open()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout / 6, sock_read=wait)
        headers = self._headers if data is None else {**self._headers, "Content-Type": "application/json"}
        try:
            async with session.request(
                method, self._base + path, params=query, data=data, headers=headers, timeout=timeout,
                allow_redirects=False,
            ) as response:  # fmt: skip
                if VERSION_HEADER not in response.headers:
                    if response.headers.get("Server") == "agentfw":
                        hint = "name the place of its `--listen`, with the token of that"
                        raise PoolError("unavailable", f"at {self._where} is a pool's page, not its control API", hint)
                    raise self._foreign(f"status {response.status} without `{VERSION_HEADER}`")
                if response.status >= 300:
                    raise await self._refused(response)
                _check_version(response.headers[VERSION_HEADER])
                yield response
        except aiohttp.ServerTimeoutError:
            raise PoolError(
                "unavailable", f"the pool at {self._where} does not answer", "see its log, or `agentfw doctor`"
            ) from None
        except aiohttp.ClientSSLError as error:
            why = getattr(error.os_error, "reason", None) or error.os_error.strerror or "it is refused"
            raise PoolError("unavailable", f"TLS with {self._where} fails: {why}", "a pool itself speaks `http://`") from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, PermissionError):
                raise PoolError("forbidden", f"{self._where}: permission denied", "a pool serves its own user only") from None
            raise PoolError("unavailable", f"no pool runs at {self._where}", self._hint) from None
        except (aiohttp.ClientError, OSError):
            raise PoolError("unavailable", f"the pool at {self._where} went away", self._hint) from None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is not None:
            return self._session
        # Less than the server's: it must not close a connection that we are about to use.
        connector: aiohttp.BaseConnector
        if self.socket is not None:
            directory = places.open_directory(self.socket, make=False)
            try:
                places.check_socket(self.socket, directory)
                name = places.reachable(self.socket, directory)
            except BaseException:
                os.close(directory)
                raise
            self._directory = directory
            connector = _Unix(path=name, keepalive_timeout=5.0, limit=0)
        else:
            connector = aiohttp.TCPConnector(keepalive_timeout=5.0, limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, trust_env=False
        )
        return self._session

    async def _refused(self, response: aiohttp.ClientResponse) -> PoolError:
        data = await response.content.read(1 << 16)
        try:
            return msgspec.json.decode(data, type=ErrorBody).exception()
        except _NONSENSE:
            return self._foreign(f"status {response.status}")

    def _foreign(self, what: str) -> PoolError:
        return PoolError("unavailable", f"what answers at {self._where} is no pool of ours: {what}")


class _Unix(aiohttp.UnixConnector):
    """connect() to a Unix socket with a full queue fails with EAGAIN, unix(7); asyncio takes that for a connection that comes."""

    async def _create_connection(self, req: Any, traces: Any, timeout: aiohttp.ClientTimeout) -> Any:  # noqa: ASYNC109  # aiohttp's
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.setblocking(False)
        try:
            async with asyncio.timeout(timeout.sock_connect):
                while True:
                    try:
                        made.connect(self.path)
                        break
                    except BlockingIOError:
                        await asyncio.sleep(QUEUE_PAUSE)
            _, protocol = await asyncio.get_running_loop().create_unix_connection(self._factory, sock=made)
            return protocol
        except TimeoutError:
            made.close()
            raise aiohttp.ServerTimeoutError("connect") from None
        except OSError as error:
            made.close()
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        except BaseException:
            made.close()
            raise


def _path(job_id: str, what: str = "") -> str:
    """An id is checked by the server; here it only must stay one part of a path."""
    if not job_id or job_id in (".", ".."):
        raise PoolError("no_such_job", f"no such job: {job_id!r}")
    return f"/v1/jobs/{quote(job_id, safe='')}" + (f"/{what}" if what else "")


def _part(text: str, what: str) -> str:
    """One part of a path, whatever is in it."""
    if not text or text in (".", ".."):
        raise PoolError("not_found", f"no such {what}: {text!r}")
    return quote(text, safe="")


def _base_url(text: str) -> str:
    """Without a slash at its end."""
    try:
        url = urlsplit(text)
        good = url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port > 0)
    except ValueError:
        good = None
    if not good or "@" in url.netloc or url.query or url.fragment or not text.isprintable() or " " in text:
        raise PoolError("bad_config", "the pool's URL cannot be one", "write `http://HOST:PORT`")
    return text.rstrip("/")


def _check_version(text: str) -> None:
    if text.partition(".")[0] != API_VERSION.partition(".")[0]:
        raise PoolError("unsupported", f"the pool speaks version {text[:20]!r} of the API, this program {API_VERSION}")


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Without their ends. PoolError for one that is too long, and for an end in the middle of one."""
    rest = bytearray()
    async for piece in content.iter_any():
        rest += piece
        if b"\n" not in piece:
            if len(rest) > MAX_LINE:
                raise PoolError("unavailable", "the pool sent a line without an end")
            continue
        *whole, last = rest.split(b"\n")
        rest = last
        for line in whole:
            yield bytes(line)
    if rest:
        raise PoolError("unavailable", "the pool's answer ended in the middle of a line")
