"""Whatever answers at a pool's address: the client returns what it should, or raises PoolError, and nothing else."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from agentfw.pool import client as client_module
from agentfw.pool.client import HttpBackend
from agentfw.pool.jobs import Output, PoolError
from hypothesis import given, settings
from hypothesis import strategies as st

GOOD = b"HTTP/1.1 200 OK\r\nAgentfw-Api: 1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
DEEP = b'{"x":' * 9999 + b"\n"
LINE = b'{"stream":1,"offset":0,"data":"eA=="}\n'

BODIES = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [DEEP, LINE, LINE * 3, b"\n\n", b"{}", b"null", b"[1]", b'{"error":{"code":"x","message":"y"}}\n', b'{"error":5}\n']
    ),
    st.lists(st.sampled_from([LINE, b"\n", LINE[:-5], b'{"stream":3,"offset":0,"data":""}\n', b"\xff\n"]), max_size=4).map(
        b"".join
    ),
)
ANSWERS = st.one_of(
    st.binary(max_size=300),
    BODIES.map(lambda body: GOOD % (len(body), body)),
    st.tuples(BODIES, st.integers(0, 2**70)).map(lambda both: GOOD % (both[1], both[0])),
    st.tuples(BODIES, st.integers(0, 400), st.binary(max_size=4)).map(
        lambda all: (whole := GOOD % (len(all[0]), all[0]))[: all[1]] + all[2] + whole[all[1] :]
    ),
    BODIES.map(
        lambda body: b"HTTP/1.1 200 OK\r\nAgentfw-Api: 1.0\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(body), body)
    ),
)


async def ask(path: Path) -> None:
    async with HttpBackend(socket=path, timeout=1.0) as pool:
        for call in (pool.describe(), pool.jobs(), pool.signal("j", 9), pool.feed("j", b"x", True), pool.stop(0)):
            try:
                await call
            except PoolError as error:
                assert str(error).isprintable()
        try:
            async for piece in pool.output("j"):
                assert isinstance(piece, Output)
        except PoolError as error:
            assert str(error).isprintable()


@given(answer=ANSWERS)
@settings(max_examples=60, deadline=None)
def test_nothing_but_answers_and_pool_errors(answer: bytes) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def body() -> None:
        with tempfile.TemporaryDirectory(prefix="agentfw-c-") as place:
            server = await asyncio.start_unix_server(speak, Path(place) / "s")
            async with server, asyncio.timeout(30):
                await ask(Path(place) / "s")

    asyncio.run(body())


class Content:
    """Of an answer: what its pieces are."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def iter_any(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


@given(lines=st.lists(st.binary(max_size=30).map(lambda data: data.replace(b"\n", b"")), max_size=20), cuts=st.data())
def test_lines_are_the_same_however_they_come(lines: list[bytes], cuts: st.DataObject) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    at = sorted(cuts.draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    pieces = [whole[a:b] for a, b in zip([0, *at], [*at, len(whole)], strict=True)]

    async def body() -> list[bytes]:
        return [line async for line in client_module._lines(Content(pieces))]  # type: ignore[arg-type]

    assert asyncio.run(body()) == lines
