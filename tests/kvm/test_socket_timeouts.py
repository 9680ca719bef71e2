"""Time-outs of sockets beyond what can be counted."""

from __future__ import annotations

import pytest

from tests.conftest import Agentfw

pytestmark = pytest.mark.kvm

AGENT = """
import socket, struct, threading, time
a, b = socket.socketpair()
# in nanoseconds this is 2**64 and 0.29 s
a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 18446744074, 0))
threading.Thread(target=lambda: (time.sleep(1), b.send(b"late"))).start()
print(a.recv(9).decode())
"""


def test_a_timeout_of_centuries_is_none(agentfw: Agentfw) -> None:
    """socket(7): a read blocks until data comes, or the time is over."""
    done = agentfw("run", "--no-config", "--plugins", "", "-c", AGENT)
    assert done.stdout == "late\n", done.stdout + done.stderr
