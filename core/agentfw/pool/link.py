"""Messages between two ends: events one way, and questions with answers. Over a socket between processes, or within one.

A frame is u32 length of the body · u8 kind · u32 number of the question (0: none), little-endian, then the body: a msgspec Struct
as msgpack. What was sent in one turn of the loop goes out in one write. All is bounded: a frame by FRAME_MAX, what waits to be
written by HIGH (who can wait, waits: `put()`, `ask()`), questions under way by MAX_QUESTIONS. Reading never waits for anything,
so that two ends that both write cannot stand still. A peer that breaks a rule is cut off.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import msgspec

from ..errors import AgentfwError, ConfigError
from .jobs import MAX_PAYLOAD, PoolError

FRAME_MAX = MAX_PAYLOAD + (4 << 20)
"""Bytes of a body: the largest job, with room for its labels."""
HIGH, LOW = 1 << 20, 256 << 10
"""Bytes that wait to be written: above HIGH senders wait, until there are fewer than LOW."""
MAX_QUESTIONS = 4096
"""That one end has asked and the other has not answered."""

EVENT, QUESTION, ANSWER, REFUSAL = range(4)

_HEAD = struct.Struct("<IBI")
_encode = msgspec.msgpack.Encoder().encode

log = logging.getLogger("agentfw.pool")

Message = TypeVar("Message", bound=msgspec.Struct)


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """Instead of an answer: a PoolError."""

    code: str
    text: str
    hint: str = ""

    @staticmethod
    def of(error: BaseException) -> Refusal:
        """What the other end may know of an error."""
        if isinstance(error, PoolError):
            return Refusal(error.code, str(error), error.hint)
        if isinstance(error, ConfigError):
            return Refusal("bad_config", str(error), error.hint)
        if isinstance(error, AgentfwError):
            return Refusal("internal", str(error), getattr(error, "hint", ""))
        return Refusal("internal", f"a mistake of agentfw's or a plugin's: {type(error).__name__}")

    def error(self) -> PoolError:
        return PoolError(self.code, self.text, self.hint)


class Peer(Protocol):
    """Whom an end tells what comes in. All but `request` must not wait."""

    def event(self, message: Any) -> None:
        """Something was told. An exception cuts the link."""

    async def request(self, message: Any) -> msgspec.Struct:
        """Something was asked; -> the answer. Whatever it raises is told as a PoolError."""

    def lost(self, reason: str) -> None:
        """Once, when the link has ended, whoever ended it."""

    def writable(self) -> None:
        """`full` is false again."""


class Channel(Protocol):
    """One end."""

    full: bool
    """More waits to be written than should."""
    silent: bool
    """A question's time ran out, and nothing at all came since it was asked."""

    def send(self, message: msgspec.Struct) -> None:
        """Tell it, whatever waits already: for what is small, or seldom. Nothing if the link has ended."""

    async def put(self, message: msgspec.Struct) -> None:
        """Tell it once there is room. PoolError "unavailable" if the link has ended."""

    async def ask(self, message: msgspec.Struct, answer: type[Message], seconds: float | None = None) -> Message:
        """-> the answer. PoolError: the one it was refused with; "unavailable" if the link ended, the time is over, or too many
        questions are under way."""

    def close(self) -> None:
        """End it; what waits to be written is lost. Idempotent."""


def unavailable(reason: str) -> PoolError:
    return PoolError("unavailable", reason)


class Link(asyncio.Protocol):
    """A `Channel` over a stream socket. `receives`: the types that come in as events and questions (a tagged union)."""

    def __init__(self, peer: Peer, receives: Any, frame_max: int = FRAME_MAX) -> None:
        self.full = self.silent = False
        self._received = 0
        """How often something came."""
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._decode = msgspec.msgpack.Decoder(receives).decode
        self._frame_max = frame_max
        self._transport: asyncio.Transport | None = None
        self._in = bytearray()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flush_due = False
        self._paused = False
        self._room: set[asyncio.Future[None]] = set()
        self._number = 0
        self._asked: dict[int, tuple[asyncio.Future[Any], Callable[[Any], Any]]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._reason: str | None = None
        """Why it has ended."""

    @classmethod
    async def open(cls, sock: socket.socket, peer: Peer, receives: Any, frame_max: int = FRAME_MAX) -> Link:
        """`sock`: a connected AF_UNIX stream; it is the link's from here on."""
        link = cls(peer, receives, frame_max)
        sock.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=sock)
        return link

    # -- sending

    def send(self, message: msgspec.Struct) -> None:
        self._write(EVENT, 0, message)

    async def put(self, message: msgspec.Struct) -> None:
        await self._wait_for_room()
        self._write(EVENT, 0, message)

    async def ask(self, message: msgspec.Struct, answer: type[Message], seconds: float | None = None) -> Message:
        if len(self._asked) >= MAX_QUESTIONS:
            raise unavailable(f"more than {MAX_QUESTIONS} questions are under way")
        self._number = self._number % 0xFFFFFFFF + 1
        number, received = self._number, self._received
        future: asyncio.Future[Message] = self._loop.create_future()
        self._asked[number] = future, _decoder(answer)
        try:
            async with asyncio.timeout(seconds):
                await self._wait_for_room()
                self._write(QUESTION, number, message)
                return await future
        except TimeoutError:
            self.silent = self._received == received
            raise unavailable(f"no answer within {seconds:g} s") from None
        finally:
            del self._asked[number]
            if future.done() and not future.cancelled():
                future.exception()  # it was looked at

    async def _wait_for_room(self) -> None:
        while self.full and self._reason is None:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._room.add(waiter)
            try:
                await waiter
            finally:
                self._room.discard(waiter)
        if self._reason is not None:
            raise unavailable(self._reason)

    def _write(self, kind: int, number: int, message: msgspec.Struct) -> None:
        if self._reason is not None:
            return
        body = _encode(message)
        if len(body) > self._frame_max:
            raise PoolError("bad_job", f"a message of {len(body)} bytes (at most {self._frame_max})")
        self._out.append(_HEAD.pack(len(body), kind, number))
        self._out.append(body)
        self._out_bytes += len(body)
        if self._out_bytes > HIGH:
            self.full = True
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        out, self._out, self._out_bytes = self._out, [], 0
        if self._transport is not None and self._reason is None:
            self._transport.writelines(out)
        self._look_for_room()

    def _look_for_room(self) -> None:
        if not self.full or self._paused or self._out_bytes > HIGH:
            return
        self.full = False
        for waiter in self._room:
            if not waiter.done():
                waiter.set_result(None)
        self._peer.writable()

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is none by its class
        self._transport.set_write_buffer_limits(HIGH, LOW)

    def pause_writing(self) -> None:
        self._paused = self.full = True

    def resume_writing(self) -> None:
        self._paused = False
        self._look_for_room()

    def data_received(self, data: bytes) -> None:
        self._received += 1
        self.silent = False
        self._in += data
        start, size = 0, len(self._in)
        with memoryview(self._in) as view:
            while size - start >= _HEAD.size and self._reason is None:
                length, kind, number = _HEAD.unpack_from(view, start)
                if length > self._frame_max:
                    self._end(f"a frame of {length} bytes came")
                    break
                end = start + _HEAD.size + length
                if end > size:
                    break
                try:
                    self._take(kind, number, view[start + _HEAD.size : end])
                except (msgspec.DecodeError, RecursionError) as error:  # the last: nested too deeply
                    self._end(f"nonsense came: {error}")
                except PoolError as error:
                    self._end(str(error))
                except Exception as error:
                    log.exception("a message could not be dealt with")
                    self._end(f"a message could not be dealt with: {type(error).__name__}")
                start = end
        if self._reason is None:
            del self._in[:start]

    def connection_lost(self, error: Exception | None) -> None:
        self._end("the other end is gone")

    # -- receiving

    def _take(self, kind: int, number: int, body: memoryview) -> None:
        if kind == EVENT:
            self._peer.event(self._decode(body))
        elif kind == QUESTION:
            message = self._decode(body)
            if len(self._answering) > 2 * MAX_QUESTIONS:  # those that nobody waits for any more are among them
                raise unavailable("more questions came than may be under way")
            task = self._loop.create_task(self._answer(number, message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif kind in (ANSWER, REFUSAL):
            asked = self._asked.get(number)
            if asked is None or asked[0].done():
                return  # nobody waits any more
            if kind == ANSWER:
                asked[0].set_result(asked[1](body))
            else:
                asked[0].set_exception(_refusal(body).error())
        else:
            raise unavailable(f"a frame of kind {kind} came")

    async def _answer(self, number: int, message: Any) -> None:
        try:
            self._write(ANSWER, number, await self._peer.request(message))
        except Exception as error:  # also of an answer that cannot be written: whoever asked waits
            if not isinstance(error, AgentfwError):
                log.exception("a question could not be answered")
            self._write(REFUSAL, number, Refusal.of(error))

    # -- the end

    def close(self) -> None:
        self._end("it was closed")

    def _end(self, reason: str) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        self._in = bytearray()
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()
        error = unavailable(reason)
        for future, _ in self._asked.values():
            if not future.done():
                future.set_exception(error)
        for waiter in self._room:
            if not waiter.done():
                waiter.set_result(None)
        for task in self._answering:
            task.cancel()
        self._peer.lost(reason)


class Direct:
    """A `Channel` within a process, in pairs: `ours, theirs = Direct.pair(peer, other)`. Messages are handed over as they are, at
    once: a peer may be told something while it says something itself."""

    def __init__(self, peer: Peer) -> None:
        self.full = self.silent = False
        self._peer = peer
        self._other: Direct | None = None
        self._ended = False

    @staticmethod
    def pair(peer: Peer, other: Peer) -> tuple[Direct, Direct]:
        """The end whose events go to `peer`, and that whose go to `other`."""
        one, two = Direct(peer), Direct(other)
        one._other, two._other = two, one
        return one, two

    def send(self, message: msgspec.Struct) -> None:
        other = self._other
        if other is None or self._ended:
            return
        try:
            other._peer.event(message)
        except Exception:  # it is not the sender's
            log.exception("a message could not be dealt with")

    async def put(self, message: msgspec.Struct) -> None:
        if self._ended:
            raise unavailable("the link was closed")
        self.send(message)

    async def ask(self, message: msgspec.Struct, answer: type[Message], seconds: float | None = None) -> Message:
        if self._other is None or self._ended:
            raise unavailable("the link was closed")
        try:
            async with asyncio.timeout(seconds):
                found = await self._other._peer.request(message)
        except TimeoutError:
            raise unavailable(f"no answer within {seconds:g} s") from None
        except Exception as error:
            if not isinstance(error, AgentfwError):
                log.exception("a question could not be answered")
            raise Refusal.of(error).error() from None
        if not isinstance(found, answer):
            raise PoolError("internal", f"{type(found).__name__} is no answer to {type(message).__name__}")
        return found

    def close(self) -> None:
        for end in (self, self._other):
            if end is not None and not end._ended:
                end._ended = True
                end._peer.lost("it was closed")


_refusal = msgspec.msgpack.Decoder(Refusal).decode
_decoders: dict[type, Callable[[Any], Any]] = {}


def _decoder(kind: type[Message]) -> Callable[[Any], Any]:
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = msgspec.msgpack.Decoder(kind).decode
    return found
