"""Calls on descriptors of every kind, as natively: results and bytes. What differs is listed, with why."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.kvm

TABLE = Path(__file__).parents[1] / "guest/call_table.py"
#: Pattern over "kind: call" -> why a guest says something else there. ERRORS: only which of several errors it is.
ERRORS = {
    r"(closed|negative|path_only): ": "O_PATH descriptors; Linux looks at some arguments before the descriptor",
    r".*: (connect|bind|sendto|sendmsg|send|write|accept4|getpeername|recv\S*)\b": "what is looked at first",
    r"socket(pair)? ": "packet and raw sockets, those of VMs (AF_VSOCK) and netlink",
    r"dup[23] |pipe2 |.*: (lseek badly|pread before|pread|pwrite|TCGETS|no ioctl|FIO.*|SIOC.*)$": "what is looked at first",
}
DIFFERENT = {
    r"path_only: ": "calls.c looks at O_PATH descriptors, the shim does not",
    r".*: connect unspec|.*: bind unspec any": "AF_UNSPEC undoes no stream's connection, and is no other name for AF_INET",
    r"udp6: (sendto|sendmsg|connect) (inet|name)": "an AF_INET name on an AF_INET6 socket",
    r".*: (sendto (inet|long|badly|zero|unix.*|unspec)|sendmsg name)": "a name is not looked at where a connection makes it needless",
    r"(tcp|udp).*: sendmsg (control|short control|bad scm|long control)": "control data is not looked at where none has a meaning",
    r"tcp_left: (write|send|sendto) ?badly": "who writes to nobody is not read",
    r"tcp_left_written: (recvmmsg|sendmmsg)": "the error is told to who writes only",
    r".*: (send 1|recv errqueue|recv oob|recv \S+ 6[02]|recvmsg \S+ 6[02]|recvfrom minus)": "out-of-band data, MSG_TRUNC of streams, error queues",
    r"(pair|unix).*: send much": "a message of a unix socket holds 65,399 bytes at most",
    r"(tcp|tcp6|udp|udp6|tcp_(bound|listener|ended|left|left_written|reset|refused)|unix_(of|listener).*): shutdown [012]$": "halves of what is not connected, or of a connection that is over",
    r"tcp_(refused|reset|left_written): (bind|connect|listen)": "a socket whose connection failed or is over may be bound or connected anew",
    r"(pair|unix_listener).*: bind unix autobind$": "a connected unix socket gets no name any more, and one that has a name no other",
    r"pair_(left|reset) dgram: write (twice|and read)$": "the second error is ECONNREFUSED as the first; what was sent before can still be read after it",
    r"(event|semaphore|timer|epoll).*: lseek$": "anonymous files have no place",
    r"(pipe_(out|broken|full)|tcp.*): mmap$": "Linux maps a TCP socket, and looks at a pipe's access first",
    r".*: (FIOASYNC|SIOCOUTQ|SIOCATMARK)$": "ioctls that nobody has asked for",
    r"(file|path_only|epoll|epoll_ready|tcp_listener|unix_listener): FIONREAD( badly)?$": "FIONREAD of what nobody waits for bytes at",
    r"pair_with seqpacket: FIONREAD$": "the next message's bytes, as of datagrams; Linux adds them all up",
    r"pipe_.*: SETPIPE_SZ 2097152": "root may more",
    r".*: epoll [15]0000005$": "EPOLLEXCLUSIVE with EPOLLONESHOT, or changed, is no error",
    r".*: epoll_wait badly$": "a bad address is told even if there is nothing to write",
    r".*: set (PRIORITY|RCVLOWAT)": "root may more, and the path's sizes count",
    r"directory: (read 0|sendfile from)": "EISDIR, or nothing",
    r"socket(pair)? (17|\S+ (3|10)) ": "no packet and raw sockets",
    r"(select|pipe2) ": "too many microseconds; O_DIRECT is shown at both ends",
}


def allowed(name: str, one: object, other: object) -> bool:
    errors = [each for each in (one, other) if isinstance(each, str) and each.startswith("E")]  # ("int", "str" are types)
    if len(errors) == 2 and any(re.match(pattern, name) for pattern in ERRORS):
        return True
    return any(re.match(pattern, name) for pattern in DIFFERENT)


def test_calls_as_natively(agentfw: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    native = subprocess.run([sys.executable, str(TABLE)], capture_output=True, text=True, check=True, timeout=100)
    guest = agentfw("run", "--no-config", "--plugins", "", "--memory", "512M", str(TABLE))
    assert guest.returncode == 0, guest.stderr
    expected, got = json.loads(native.stdout), json.loads(guest.stdout)
    assert expected.keys() == got.keys()
    differ = {name: (expected[name], got[name]) for name in expected if expected[name] != got[name]}
    assert {name: both for name, both in differ.items() if not allowed(name, *both)} == {}
    assert len(differ) < len(expected) / 10
    stale = [pattern for pattern in (*ERRORS, *DIFFERENT) if not any(re.match(pattern, name) for name in differ)]
    assert not [pattern for pattern in stale if "root may more" not in DIFFERENT.get(pattern, "")]
