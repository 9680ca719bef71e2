"""Agents in VMs and the `dns` plugin: getaddrinfo, raw UDP and TCP, one cache for all."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agentfw.mock_dns import MockDNSThread

pytestmark = pytest.mark.kvm

Agentfw = Callable[..., subprocess.CompletedProcess[str]]

CONFIG = """
[dns]
upstream = ["{upstream}"]
timeout = 0.5
[policy]
allow = ["*.test"]
deny = ["secret.test"]
allow_addresses = ["192.0.2.0/24"]
"""


@pytest.fixture
def dns() -> Iterator[MockDNSThread]:
    with MockDNSThread({"api.test": "192.0.2.7"}) as server:
        yield server


@pytest.fixture
def run(agentfw: Agentfw, dns: MockDNSThread, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`agentfw run` of a program text, with the plugins dns and policy."""
    config = tmp_path / "agentfw.toml"
    config.write_text(CONFIG.format(upstream=dns.address))

    def start(code: str, *options: str) -> subprocess.CompletedProcess[str]:
        return agentfw("run", "--config", config, "--plugins", "dns,policy", *options, "-c", code)

    return start


def test_twenty_agents_make_one_query(run: Callable[..., subprocess.CompletedProcess[str]], dns: MockDNSThread) -> None:
    dns.set("api.test", "A", "192.0.2.7", delay=0.2)
    code = "import socket; print(sorted({a[4][0] for a in socket.getaddrinfo('api.test', 443)}))"
    done = run(code, "-n", "20")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("['192.0.2.7']") == 20
    assert (dns.asked("api.test", "A"), dns.asked("api.test", "AAAA")) == (1, 1)


def test_what_an_agent_sees(run: Callable[..., subprocess.CompletedProcess[str]], dns: MockDNSThread) -> None:
    """Each line of the program is one thing seen; a question by hand gets its ID and its spelling back."""
    dns.set("big.test", "TXT", *(f'"{i:0200}"' for i in range(40)))
    dns.set("broken.test", "A", rcode=2)
    dns.set("broken.test", "AAAA", rcode=2)
    code = r"""
import socket, struct

def lookup(name):
    try:
        return socket.gethostbyname(name)
    except socket.gaierror as error:
        return error.errno

def question(name, qtype, edns=b""):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack("!6H", 0xBEEF, 0x100, 1, 0, 0, bool(edns)) + labels + b"\0" + struct.pack("!HH", qtype, 1) + edns

print("known", lookup("API.test"))
print("none", lookup("none.test") == socket.EAI_NONAME)
print("denied", lookup("secret.test") in (socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_FAIL))
print("elsewhere", lookup("example.com") in (socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_FAIL))
print("broken", lookup("broken.test") == socket.EAI_AGAIN)

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
    udp.settimeout(10)
    udp.sendto(question("aPi.TeSt", 1), ("10.0.2.3", 53))
    reply = udp.recv(4096)
    print("udp", reply[:2] == b"\xbe\xef", b"\3aPi\4TeSt\0" in reply, socket.inet_ntoa(reply[-4:]))
    udp.sendto(question("big.test", 16), ("10.0.2.3", 53))
    reply = udp.recv(65535)
    print("truncated", bool(reply[2] & 2), len(reply) <= 512)

with socket.create_connection(("10.0.2.3", 53), timeout=10) as tcp, tcp.makefile("rb") as file:
    for name, qtype in (("big.test", 16), ("api.test", 1)):
        message = question(name, qtype)
        tcp.sendall(struct.pack("!H", len(message)) + message)
        reply = file.read(struct.unpack("!H", file.read(2))[0])
        print("tcp", reply[:2] == b"\xbe\xef", bool(reply[2] & 2), struct.unpack("!H", reply[6:8])[0])
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "known 192.0.2.7",
        "none True",
        "denied True",
        "elsewhere True",
        "broken True",
        "udp True True 192.0.2.7",
        "truncated True True",
        "tcp True False 40",
        "tcp True False 1",
    ]
    assert dns.asked("secret.test") == dns.asked("secret.test", "AAAA") == dns.asked("example.com") == 0
