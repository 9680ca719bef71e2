"""Runs as the guest does: `_ssl` replaced before `ssl` is imported; every name leads to the fake runtime's port.

`python inside.py PORT SCRIPT [args]`. AGENTFW_REAL=1 leaves `_ssl` alone (for differential tests).
"""

import os
import runpy
import socket
import sys

port, script = int(sys.argv[1]), sys.argv[2]
if not os.environ.get("AGENTFW_REAL"):
    sys.path.insert(0, os.environ["AGENTFW_GUEST"])
    import offload_local
    import ssl_offload

    sys.path.pop(0)
    # the fake runtime is on this machine's loopback, which a guest would keep for itself
    is_local = offload_local.local_peer
    offload_local.local_peer = lambda sock: None if is_local(sock) is None else sock.getpeername()[1] != port
    offload_local.caller_is_local = lambda: False
    ssl_offload.install()

resolve = socket.getaddrinfo


def getaddrinfo(host, service, *args, **kwargs):
    if host in ("model.test", b"model.test", "other.test", b"other.test"):
        return resolve("127.0.0.1", port, *args, **kwargs)
    return resolve(host, service, *args, **kwargs)


socket.getaddrinfo = getaddrinfo
sys.argv[:] = sys.argv[2:]
runpy.run_path(script, run_name="__main__")
