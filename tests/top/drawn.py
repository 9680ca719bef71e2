"""`agentfw top` as a program of its own, over a pool that is made up and that moves when it is told to.

    python -m tests.top.drawn AGENTS COMMANDS ANSWERS [hostile]

Reads a letter from the descriptor COMMANDS before each look: "." as it is, "s" a second passes, "l" the pool is lost. Writes "."
to ANSWERS when it wants one: what came before is drawn by then, or is about to be.
"""

from __future__ import annotations

import asyncio
import os
import sys

from agentfw.cli.top.app import run
from agentfw.cli.top.source import Seen

from tests.dashboard.fake import FakeObservatory

from .support import FakeSource

NOW = 1_700_000_000.0


class Told(FakeSource):
    def __init__(self, fake: FakeObservatory, commands: int, answers: int) -> None:
        super().__init__(fake)
        self._commands = commands
        self._answers = answers

    async def look(self, since: int) -> Seen:
        os.write(self._answers, b".")
        told = await asyncio.get_running_loop().run_in_executor(None, os.read, self._commands, 1)
        if told == b"s":
            self.fake.step()
        self.lost = "no pool runs at /run/x/pool.sock" if told == b"l" else ""
        return await super().look(since)


def main() -> int:
    agents, commands, answers = map(int, sys.argv[1:4])
    fake = FakeObservatory(agents, now=NOW, hostile_names="hostile" in sys.argv)
    return asyncio.run(run(Told(fake, commands, answers), 0.01, "", "name" if "hostile" in sys.argv else "cores"))


if __name__ == "__main__":
    sys.exit(main())
