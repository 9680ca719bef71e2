"""Makes `os.open("/dev/agentfw")` give the descriptor that the test inherited to us. For native tests of the bootstrap."""

import os

_open = os.open


def open_device(path, *args, **kwargs):
    return int(os.environ.pop("FAKE_DEVICE")) if path == "/dev/agentfw" else _open(path, *args, **kwargs)


if "FAKE_DEVICE" in os.environ:
    os.open = open_device
