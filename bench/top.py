"""What `agentfw top` costs a terminal and a core for each refresh, with 1,500 agents: bytes written, CPU time.

It runs on a pseudo-terminal over agents that are made up, of which none changes or a tenth did something in the second before.
What making them up takes is measured beside it and taken off. It asks nobody over a socket: that is the dashboard's
(bench/viewers.py).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))


def made_up(agents: int, told: str) -> float:
    """CPU seconds for each letter of `told` that the agents themselves take."""
    from tests.dashboard.fake import FakeObservatory

    async def body() -> float:
        fake = FakeObservatory(agents, now=1e9, hostile_names=False)
        since = (await fake.agents(0)).since
        began = time.process_time()
        for letter in told:
            if letter == "s":
                fake.step()
            await fake.overview()
            since = (await fake.agents(since)).since
        return (time.process_time() - began) / len(told)

    return asyncio.run(body())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1500)
    parser.add_argument("--looks", type=int, default=100, help="of each kind")
    options = parser.parse_args()
    from tests.top.terminal import Terminal  # needs pyte, of the extra `test`

    for size in ((80, 24), (200, 60)):
        with Terminal("tests.top.drawn", str(options.agents), "COMMANDS", "ANSWERS", size=size) as terminal:
            terminal.look("..")
            terminal.drawn(f"of {options.agents} agents")
            first = len(terminal.raw)
            terminal.look("....")
            for told, what in ((".", "nothing changes"), ("s", "a tenth of the agents did something")):
                began = terminal.cpu_seconds
                size_each = terminal.look(told * options.looks) / options.looks
                spent = (terminal.cpu_seconds - began) / options.looks - made_up(options.agents, told * options.looks)
                print(f"{size[0]}x{size[1]}, {what}: {size_each:,.0f} bytes, {1000 * spent:.1f} core-ms a refresh")
            print(
                f"{size[0]}x{size[1]}: {first:,} bytes until it was drawn first, {size[0] * size[1]:,} characters on the screen"
            )


if __name__ == "__main__":
    main()
