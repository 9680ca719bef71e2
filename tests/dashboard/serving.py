"""The dashboard's server over a pool that is made up: for tests, and for people who work on the page.

python -m tests.dashboard.serving --agents 1500
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import agentfw_dashboard
from agentfw.pool.jobs import PoolError
from agentfw.views import OutputPiece, OutputTail
from agentfw_dashboard.output import SHOWN
from agentfw_dashboard.web import Access, WebServer
from agentfw_dashboard.web.files import File, load
from agentfw_dashboard.web.shared import Source

from .fake import FakeObservatory

STATIC = Path(agentfw_dashboard.__file__).parent / "static"


def output_of(fake: FakeObservatory) -> Any:
    async def output(agent_id: str) -> OutputTail:
        try:
            data = fake.output(agent_id)
        except KeyError:
            raise PoolError("no_such_job", "no such agent") from None
        text = data[-SHOWN:].decode(errors="replace")
        skipped = max(len(data) - SHOWN, 0)
        return OutputTail(id=agent_id, pieces=[OutputPiece(stream=1, text=text)] if text else [], skipped=skipped)

    return output


class Served:
    """`url`: of the page, without a slash at its end."""

    def __init__(self, server: WebServer, port: int) -> None:
        self.server = server
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def login(self) -> str:
        """A URL that logs in, once."""
        return f"{self.url}/login?code={self.server.access.new_code()}"


@asynccontextmanager
async def served(source: Source | None = None, *, files: Mapping[str, File] | None = None, **more: Any) -> AsyncIterator[Served]:
    source = source or FakeObservatory(20)
    if isinstance(source, FakeObservatory):
        more.setdefault("output", output_of(source))
    server = WebServer(source, Access.random(), files=load(STATIC) if files is None else files, **more)
    await server.start()
    try:
        ((_, port),) = await server.listen("127.0.0.1", 0)
        yield Served(server, port)
    finally:
        await server.close()


async def _main(agents: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with served(FakeObservatory(agents, steps_itself=True)) as found:
        print(found.login(), flush=True)
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=200)
    asyncio.run(_main(parser.parse_args().agents))
