"""`python -m agentfw`, and what the command starts with: until the rest is imported, Ctrl-C ends it without a traceback."""

from __future__ import annotations

import os
import signal


def main() -> None:
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from .cli import main as command

    signal.signal(signal.SIGINT, before)
    command()


if __name__ == "__main__":
    main()
