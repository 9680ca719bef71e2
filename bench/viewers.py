"""What people who watch the dashboard cost: CPU time of the serving process for each viewer and second, with 1,500 agents.

All rows of the table change each second, or a tenth of them. The agents are made up, in the bench's own process, which does
nothing while nobody watches; the first viewer's has the collection in it, which those after it share. Viewers are a process of
their own.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

import agentfw_dashboard
import msgspec
import uvloop
from agentfw.views import AgentRow, AgentStory, AgentTable, Loaded, Overview, Sample, Spread
from agentfw_dashboard.web import Access, WebServer
from agentfw_dashboard.web.files import load

VIEWERS = r"""
import selectors, socket, sys, time
port, count, seconds, token = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
chosen, total, buffer = selectors.DefaultSelector(), 0, bytearray(1 << 20)
for _ in range(count):
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(f"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    chosen.register(sock, selectors.EVENT_READ)
end = time.monotonic() + seconds
while (left := end - time.monotonic()) > 0:
    for key, _ in chosen.select(left):
        total += key.fileobj.recv_into(buffer)
print(total)
"""


class Source:
    """`share` of `count` agents changes with each question."""

    def __init__(self, count: int, share: float) -> None:
        self._rows = [
            AgentRow(
                id=f"k{number:09}",
                name=f"rollout-{number}",
                tenant="research",
                labels={"run": "17", "task": f"swe-{number % 50}"},
                submitted=time.time(),
                started=time.time(),
                last="model call to claude-sonnet-4-5",
                last_at=time.time(),
            )
            for number in range(count)
        ]
        self._changing = max(round(count * share), 1)
        self._since = 1
        self._history = [Sample(time=time.time(), running=count, requests=123.4, bytes_up=1e5, bytes_down=1e6)] * 600

    async def overview(self) -> Overview:
        spread = Spread(count=1000, p50=0.001, p95=0.002, p99=0.003, most=0.004)
        return Overview(time=time.time(), started=0.0, warmup=[1] * 50, dispatch=spread, connect=spread, history=self._history)

    async def agents(self, since: int) -> AgentTable:
        self._since += 1
        begin = self._since * self._changing % len(self._rows)
        for at in range(begin, begin + self._changing):
            row = self._rows[at % len(self._rows)]
            self._rows[at % len(self._rows)] = msgspec.structs.replace(
                row, requests=row.requests + 1, cpu_seconds=row.cpu_seconds + 0.01
            )
        whole = since <= 0
        rows = self._rows if whole else [self._rows[at % len(self._rows)] for at in range(begin, begin + self._changing)]
        return AgentTable(time=time.time(), since=self._since, whole=whole, rows=list(rows), total=len(self._rows))

    async def agent(self, id: str) -> AgentStory | None:
        return None

    async def loaded(self) -> Loaded:
        return Loaded()


async def measure(agents: int, share: float, viewers: int, seconds: float) -> tuple[float, float]:
    """-> core-ms a second of this process, MB a second and viewer."""
    server = WebServer(Source(agents, share), Access.random(), files=load(Path(agentfw_dashboard.__file__).parent / "static"))
    await server.start()
    ((_, port),) = await server.listen("127.0.0.1", 0)
    try:
        arguments = (str(port), str(viewers), str(seconds + 2), server.access.token)
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", VIEWERS, *arguments, stdout=asyncio.subprocess.PIPE)
        while server.events.viewers < viewers and child.returncode is None:  # noqa: ASYNC110  # a number, nobody's to tell us
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.0)  # the whole tables are sent
        before, began = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        spent, took = time.process_time() - before, time.monotonic() - began
        told, _ = await asyncio.wait_for(child.communicate(), 30)
        return 1000 * spent / took, int(told) / viewers / (seconds + 2) / 1e6
    finally:
        await server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1500)
    parser.add_argument("--viewers", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement (default: 8)")
    options = parser.parse_args()
    for share in (0.1, 1.0):
        one, _ = uvloop.run(measure(options.agents, share, 1, options.seconds))
        all_of_them, megabytes = uvloop.run(measure(options.agents, share, options.viewers, options.seconds))
        each = (all_of_them - one) / (options.viewers - 1)
        print(
            f"{options.agents} agents, {share:.0%} of them changing each second: the first viewer {one:.1f} core-ms a second,"
            f" each of {options.viewers - 1} more {each:.2f}; {megabytes:.2f} MB a second to each"
        )


if __name__ == "__main__":
    main()
