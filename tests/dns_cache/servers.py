"""unbound and dnsmasq, with the tests' zones."""

from __future__ import annotations

import contextlib
import datetime
import functools
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import dns.dnssec
import dns.message
import dns.query
import dns.rcode
import dns.zone
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from .. import debian

ZONE = """
$ORIGIN corp.example.
$TTL 300
@            IN SOA ns host 1 3600 600 86400 120
@            IN NS ns
@       60   IN A 198.51.100.1
ns           IN A 198.51.100.53
www          IN CNAME web
web     77   IN A 198.51.100.2
web          IN A 198.51.100.3
web          IN AAAA 2001:db8:1::2
c1           IN CNAME c2
c2      20   IN CNAME c3
c3           IN CNAME c4
c4           IN CNAME web
dangling     IN CNAME nowhere
away         IN CNAME www.other.example.
*.wild       IN A 198.51.100.4
*.wild       IN TXT "wild"
below.a.wild IN A 198.51.100.5
alias.wild   IN CNAME x.wild
empty.non.terminal IN A 198.51.100.6
MiXed        IN A 198.51.100.7
long    999999 IN A 198.51.100.8
zero    0    IN A 198.51.100.9
txt          IN TXT "one" "two"
txt          IN TXT "three"
mx           IN MX 10 web
mx           IN MX 20 mx2
mx2          IN A 198.51.100.10
_sip._tcp    IN SRV 1 2 5060 web
svc          IN HTTPS 1 . alpn=h2,h3 ipv4hint=198.51.100.2 ipv6hint=2001:db8:1::2
svcalias     IN HTTPS 0 svc
_foo.svc     IN SVCB 1 web port=8443
caa          IN CAA 0 issue "ca.example"
naptr        IN NAPTR 100 50 "s" "SIP+D2T" "" _sip._tcp
ptr          IN PTR web
sub          IN DNAME web2
x.web2       IN A 198.51.100.11
unknown      IN TYPE65400 \\# 3 010203
""" + "".join(f"many IN A 198.51.{i // 250}.{i % 250}\n" for i in range(200)) + "".join(
    f'big IN TXT "{i:0>200}"\n' for i in range(40)
)  # fmt: skip
OTHER = """
$ORIGIN other.example.
$TTL 300
@   IN SOA ns host 1 3600 600 86400 5
@   IN NS ns
ns  IN A 198.51.100.53
www IN A 198.51.100.99
"""


@functools.cache
def signed(text: str, origin: str) -> str:
    """The zone with DNSSEC's records, NSEC among them."""
    zone = dns.zone.from_text(text, origin, relativize=False)
    key = ec.generate_private_key(ec.SECP256R1())
    dnskey = dns.dnssec.make_dnskey(key.public_key(), dns.dnssec.Algorithm.ECDSAP256SHA256)
    dns.dnssec.sign_zone(zone, keys=[(key, dnskey)], lifetime=int(datetime.timedelta(days=2).total_seconds()))
    return zone.to_text(relativize=False)


def free_port() -> int:
    """Free for UDP and TCP."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            with contextlib.suppress(OSError):
                udp.bind(tcp.getsockname())
                return int(tcp.getsockname()[1])


class RealServer:
    """A process; `stop()` and `start()` keep the port."""

    def __init__(self, command: list[str], environment: dict[str, str], port: int, probe: str, directory: Path) -> None:
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self._command = command
        self._environment = environment
        self._probe = probe
        self._log = directory / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + 60
        query = dns.message.make_query(self._probe, "A")
        while True:
            with contextlib.suppress(OSError, dns.exception.DNSException):
                if dns.query.udp(query, "127.0.0.1", port=self.port, timeout=0.3).rcode() == dns.rcode.NOERROR:
                    return
            assert self._process.poll() is None and time.monotonic() < deadline, self._log.read_text(errors="replace")
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def ask(self, query: dns.message.Message) -> dns.message.Message:
        """dnspython's own word with it: UDP, and TCP when that is truncated."""
        reply, _ = dns.query.udp_with_fallback(query, "127.0.0.1", port=self.port, timeout=10)
        return reply


@contextlib.contextmanager
def running(server: RealServer) -> Iterator[RealServer]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


def unbound(directory: Path) -> RealServer:
    """Both zones, corp.example signed. Skips, and says so in the summary, if there is no unbound to be had."""
    program = debian.program("unbound", "unbound")
    if program is None:
        pytest.skip(f"no unbound: {debian.MISSING['unbound']}")
    port = free_port()
    lines = [
        "server:",
        *(f"  {key}: {value}" for key, value in {
            "interface": f"127.0.0.1@{port}", "username": '""', "chroot": '""', "pidfile": '""', "directory": f'"{directory}"',
            "use-syslog": "no", "do-daemonize": "no", "num-threads": 1, "do-ip6": "no", "access-control": "127.0.0.0/8 allow",
            "module-config": '"iterator"', "edns-buffer-size": 1232, "so-reuseport": "no",
        }.items()),
        "remote-control:", "  control-enable: no",
    ]  # fmt: skip
    for name, text in (("corp.example", signed(ZONE, "corp.example.")), ("other.example", OTHER)):
        (directory / name).write_text(text)
        lines += ["auth-zone:", f'  name: "{name}"', f'  zonefile: "{directory / name}"', "  for-downstream: yes",
                  "  for-upstream: yes", "  fallback-enabled: no"]  # fmt: skip
    (directory / "unbound.conf").write_text("\n".join(lines) + "\n")
    command = [program.path, "-d", "-c", str(directory / "unbound.conf")]
    return RealServer(command, program.environment, port, "corp.example", directory)


def dnsmasq(directory: Path, behind: RealServer) -> RealServer:
    """A few names of its own, all else from `behind`."""
    program = debian.program("dnsmasq", "dnsmasq-base")
    if program is None:
        pytest.skip(f"no dnsmasq: {debian.MISSING['dnsmasq']}")
    port = free_port()
    options = {
        "conf-file": "/dev/null", "port": port, "listen-address": "127.0.0.1", "user": "", "group": "", "pid-file": "",
        "no-resolv": None, "no-hosts": None, "bind-interfaces": None, "keep-in-foreground": None, "log-facility": "-",
        "cache-size": 0, "server": f"127.0.0.1#{behind.port}", "local": "/mas.example/", "local-ttl": 33,
        "host-record": "own.mas.example,198.51.100.20,2001:db8::20", "cname": "alias.mas.example,own.mas.example",
        "txt-record": "txt.mas.example,hello", "srv-host": "_x._tcp.mas.example,own.mas.example,80",
    }  # fmt: skip
    command = [program.path, *(f"--{key}" if value is None else f"--{key}={value}" for key, value in options.items())]
    return RealServer(command, program.environment, port, "own.mas.example", directory)
