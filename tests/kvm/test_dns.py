"""Agents in VMs and the `dns` plugin: getaddrinfo, raw UDP and TCP, one cache for all."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agentfw.mock_dns import MockDNSThread

from tests.conftest import Agentfw

pytestmark = pytest.mark.kvm

CONFIG = """
[dns]
upstream = ["{upstream}"]
timeout = 0.5
[policy]
allow = ["*.test"]
deny = ["secret.test"]
allow_addresses = ["192.0.2.0/24", "2001:db8::/32"]
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


def test_resolver_libraries_meet_the_cache(run: Callable[..., subprocess.CompletedProcess[str]], dns: MockDNSThread) -> None:
    """dnspython (UDP, TCP, EDNS, asyncio), c-ares (aiodns), asyncio's own, glibc's reverse look-ups: one query upstream each."""
    dns.set("api.test", "AAAA", "2001:db8::7")
    dns.set("svc.test", "HTTPS", "1 . alpn=h2 ipv4hint=192.0.2.7,10.0.0.1")
    dns.set("big.test", "TXT", *(f'"{i:0200}"' for i in range(40)))
    code = r"""
import asyncio, socket
import aiodns, dns.asyncresolver, dns.exception, dns.flags, dns.message, dns.name, dns.query, dns.resolver

def told(name, qtype, **more):
    return sorted(record.to_text() for record in dns.resolver.resolve(name, qtype, **more))

print("dnspython", told("api.test", "A"), told("API.test", "A", tcp=True), told("svc.test", "HTTPS"))
print("truncated", len(told("big.test", "TXT")))
try:
    told("secret.test", "A")
except dns.resolver.NoNameservers as error:
    print("denied", "REFUSED" in str(error))

# 0x20: each letter's case is a coin; EDNS sizes, and that DO changes neither the answer nor the question
for name in ("aPi.tEsT", "ApI.TeSt", "api.test"):
    for options in ({}, {"use_edns": 0, "payload": 1232}, {"use_edns": 0, "payload": 65535}):
        query = dns.message.make_query(name, "A", **options)
        reply = dns.query.udp(query, "10.0.2.3", timeout=20)
        assert str(reply.question[0].name) == name + "." and reply.edns == query.edns, reply
        assert [str(record) for record in reply.answer[0]] == ["192.0.2.7"]
print("case and EDNS")

# RFC 7766: questions one behind the other on one connection, in one segment
queries = {query.id: query for query in (dns.message.make_query(name, "A") for name in ("api.test", "none.test", "API.TEST") * 5)}
with socket.create_connection(("10.0.2.3", 53), timeout=20) as tcp, tcp.makefile("rb") as file:
    tcp.sendall(b"".join(len(wire := query.to_wire()).to_bytes(2, "big") + wire for query in queries.values()))
    tcp.shutdown(socket.SHUT_WR)
    while head := file.read(2):
        reply = dns.message.from_wire(file.read(int.from_bytes(head, "big")))
        assert queries.pop(reply.id).is_response(reply)
print("pipelined", len(queries))

async def everything():
    answer = await dns.asyncresolver.resolve("api.test", "AAAA")
    print("dnspython async", [record.to_text() for record in answer])
    loop = asyncio.get_running_loop()
    print("asyncio", sorted({info[4][0] for info in await loop.getaddrinfo("api.test", 443)}))
    print("asyncio reverse", await loop.getnameinfo(("192.0.2.7", 443), socket.NI_NUMERICSERV))
    resolver = aiodns.DNSResolver()
    print("c-ares", [record.data.addr for record in (await resolver.query_dns("api.test", "A")).answer])
    print("c-ares both", sorted(node.addr[0].decode() for node in (await resolver.getaddrinfo("api.test", family=socket.AF_UNSPEC)).nodes))
    print("c-ares TXT", len((await resolver.query_dns("big.test", "TXT")).answer))
    try:
        await resolver.query_dns("secret.test", "A")
    except aiodns.error.DNSError as error:
        print("c-ares denied", error.args[0])

asyncio.run(everything())
print("reverse", socket.gethostbyaddr("192.0.2.7")[0])
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "dnspython ['192.0.2.7'] ['192.0.2.7'] ['1 . alpn=\"h2\" ipv4hint=\"192.0.2.7\"']",
        "truncated 40",
        "denied True",
        "case and EDNS",
        "pipelined 0",
        "dnspython async ['2001:db8::7']",
        "asyncio ['192.0.2.7', '2001:db8::7']",
        "asyncio reverse ('api.test', '443')",
        "c-ares ['192.0.2.7']",
        "c-ares both ['192.0.2.7', '2001:db8::7']",
        "c-ares TXT 40",
        "c-ares denied 6",
        "reverse api.test",
    ]
    assert [dns.asked("api.test", qtype) for qtype in ("A", "AAAA", "PTR")] == [1, 1, 0]
    assert dns.asked("none.test") == dns.asked("svc.test", "HTTPS") == 1
    assert dns.asked("secret.test") == 0


def test_synthetic_names_lead_to_the_name(agentfw: Agentfw, tmp_path: Path) -> None:
    """No upstream at all: the agents are told stand-ins, all the same one, and what they connect to is the name's override."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        config = tmp_path / "agentfw.toml"
        config.write_text(
            '[dns]\nmode = "synthetic"\nupstream = []\nhosts = { "db.test" = "127.0.0.1" }\n'
            '[policy]\nallow = ["*.test"]\nallow_addresses = ["127.0.0.1", "198.18.0.0/15"]\n'
        )
        code = f"""
import socket
port = {server.getsockname()[1]}
found = {{info[4][0] for info in socket.getaddrinfo("db.test", port, type=socket.SOCK_STREAM)}}
print(*sorted(found))
for address in found:
    with socket.create_connection((address, port), timeout=20) as sock:
        sock.sendall(b"hello\\n")
        assert sock.recv(6) == b"there\\n"
try:
    socket.create_connection(("198.18.200.200", port), timeout=20)
except PermissionError:
    print("never dialled")
try:
    socket.getaddrinfo("example.com", port)
except socket.gaierror:
    print("policy first")
"""
        seen: list[bytes] = []

        def serve() -> None:
            for _ in range(4):
                sock, _ = server.accept()
                with sock:
                    seen.append(sock.recv(6))
                    sock.sendall(b"there\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        done = agentfw("run", "--config", config, "--plugins", "dns,policy,native", "-n", 2, "--json", "-c", code)
        assert done.returncode == 0, done.stdout + done.stderr
        thread.join(20)
        one, two = (agent["stdout"].splitlines() for agent in json.loads(done.stdout)["agents"])
        assert one == two and one[1:] == ["never dialled", "policy first"]
        v4, v6 = one[0].split()
        assert v4.startswith(("198.18.", "198.19.")) and v6.startswith("fd4c:8e1b:70a3:")
        assert seen == [b"hello\n"] * 4
