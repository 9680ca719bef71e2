"""A worker process: `python -P -m agentfw.pool.worker FD`, FD being its end of a link to the router.

It is killed when the router dies, and its cells when it does: whatever is killed, nothing is left behind.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys

from ..descriptors import more_descriptors, no_core_dumps
from ..log_lines import OneLine, Sparing

_PR_SET_PDEATHSIG = 1
LINES = 20.0
"""Lines of the log that agents may cause in a second, in the long run: who is refused must not fill the operator's disk."""
LINES_AT_ONCE = 1000


def die_with_parent() -> None:
    """SIGKILL to this process when the thread that started it ends, however it does. (If it has ended, the link says so.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


async def work(sock: socket.socket) -> None:
    """Serve until the router says stop, or is gone."""
    from .link import Link
    from .messages import ToWorker
    from .serving import Serving

    serving = Serving()
    serving.channel = await Link.open(sock, serving, ToWorker)
    await serving.ended.wait()
    await serving.close()
    serving.channel.close()


def formatter() -> logging.Formatter:
    """As the router's lines, which are in the same log."""
    return OneLine(f"%(asctime)s %(levelname)s %(name)s: worker {os.getpid()}: %(message)s")


def main() -> None:
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal's: they are the router's business
        signal.signal(number, signal.SIG_IGN)
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter())
    handler.addFilter(Sparing("agentfw.relay", LINES, LINES_AT_ONCE))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    more_descriptors()
    no_core_dumps()
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work(sock))


if __name__ == "__main__":
    main()
