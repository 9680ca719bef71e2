"""Random guests, servers, hooks and moments of giving up: whatever begins is told to have ended, once."""

from __future__ import annotations

import asyncio
import contextlib

from agentfw import Denied, RequestHead, ResponseHead, hookimpl
from agentfw.reports import ExchangeReport, FlowReport
from agentfw.testing import MemoryFlow, make_agent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .support import async_test, offload, running
from .test_http1 import PIECES
from .test_relay_fuzz import HOST, Judge, Rude, responses, stream


class Ends:
    """Counts. `moods`: what the hooks do, request by request."""

    name = "ends"

    def __init__(self, moods: list[str]) -> None:
        self.moods = list(moods)
        self.begun: set[int] = set()
        self.ended: list[int] = []
        self.flows: list[FlowReport] = []

    def _mood(self) -> str:
        return self.moods.pop() if self.moods else ""

    @hookimpl
    async def request(self, head: RequestHead) -> None:
        self.begun.add(head.exchange)
        mood = self._mood()
        if mood == "deny":
            raise Denied("ends: no", "")
        if mood == "raise":
            raise RuntimeError
        if mood == "wait":
            await asyncio.sleep(0)
        if mood == "transform":
            head.transforms.append(lambda piece, last: piece + b"!")

    @hookimpl
    def response(self, head: ResponseHead) -> None:
        mood = self._mood()
        if mood == "deny":
            raise Denied("ends: no", "")
        if mood == "transform":
            head.transforms.append(lambda piece, last: piece[1 // (0 if last else 1) :])

    @hookimpl
    def exchange_end(self, exchange: ExchangeReport) -> None:
        assert exchange.seconds >= 0 and exchange.bytes_up >= 0 and exchange.bytes_down >= 0
        self.ended.append(exchange.exchange)

    @hookimpl
    def flow_end(self, flow: FlowReport) -> None:
        self.flows.append(flow)


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=stream,
    answer=st.none() | st.lists(responses | st.sampled_from(PIECES), min_size=1, max_size=3).map(b"".join),
    size=st.integers(1, 4000),
    moods=st.lists(st.sampled_from(["", "", "deny", "raise", "wait", "transform"]), max_size=6),
    leaves=st.sampled_from(["at the end", "closes", "is cancelled"]),
    turns=st.integers(0, 30),
)
def test_what_begins_ends_once(data: bytes, answer: bytes | None, size: int, moods: list[str], leaves: str, turns: int) -> None:
    @async_test
    async def body() -> None:
        ends = Ends(moods)
        server = Judge() if answer is None else Rude(answer, size)
        async with running(server, ends) as runtime:
            flow = MemoryFlow("192.0.2.1", 443)
            task = asyncio.create_task(runtime.handle_flow(make_agent(), flow))
            assert (await offload(flow, HOST))["ok"]
            await flow.guest_send(data)
            if leaves == "at the end":
                flow.guest_send_eof()
                with contextlib.suppress(ConnectionResetError):
                    await flow.guest_read_all()
            else:
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel() if leaves == "is cancelled" else None
            flow.guest_close()
            await asyncio.wait([task], timeout=30)
            assert task.done()
        assert len(set(ends.ended)) == len(ends.ended) and ends.begun <= set(ends.ended)
        assert len(ends.flows) == 1

    body()
