"""All spellings of a host get one verdict, in the policy, the resolver and the dialler; what the parser refuses, all refuse."""

from __future__ import annotations

import ipaddress

import dnslib
from agentfw import Denied, Destination
from agentfw.destination import parse_address
from agentfw.errors import DestinationError
from agentfw.relay.dns import answer
from agentfw.testing import make_runtime
from agentfw_policy.explain import explain
from hypothesis import given, settings
from hypothesis import strategies as st

from ..core.support import Names, async_test
from .support import AGENT, policy

WIDE = str.maketrans({chr(c): chr(c + 0xFEE0) for c in range(0x21, 0x7F)})
NAMES = ["denied.example", "api.example", "b\u00fccher.example"]


def spelt(name: str, upper: list[bool], end: str, wide: bool) -> str:
    text = "".join(c.upper() if up else c for c, up in zip(name, upper, strict=False))
    return text.translate(WIDE if wide else {}) + end


names = st.builds(
    spelt,
    st.sampled_from(NAMES),
    st.lists(st.booleans(), min_size=20, max_size=20),
    st.sampled_from(["", ".", "..", "\u3002", "\0", " ", "%2e", ":443", "@x", "/", "#", "?"]),
    st.booleans(),
)
TABLE = {"allow": ["api.example", "b\u00fccher.example", "8.8.8.8"], "deny": ["denied.example", "10.0.0.0/8", "8.8.4.4"]}
PLUGIN = policy(**TABLE)


def decide(spelling: str) -> str:
    """ "refused" by the parser, "denied" or "allowed"."""
    try:
        destination = Destination.make("https", spelling, 443)
    except DestinationError:
        return "refused"
    try:
        PLUGIN.allow(AGENT, destination)
    except Denied:
        return "denied"
    return "allowed"


@given(names)
@settings(max_examples=150, deadline=None)
def test_names(spelling: str) -> None:
    plain = spelling.lower()
    known = decide(spelling)
    if known == "refused":
        return
    canonical = Destination.make("https", spelling, 443).host
    assert decide(canonical) == decide(canonical.upper() + ".") == known
    assert ("denied" in plain.translate({v: k for k, v in WIDE.items()}).lower()) <= (known == "denied")
    found = explain(PLUGIN._policy, lambda key: "", AGENT, canonical)
    assert found.allowed == (known == "allowed")


@async_test
async def test_the_resolver_says_the_same() -> None:
    resolver = Names(**dict.fromkeys(("denied.example", "api.example", "xn--bcher-kva.example"), "192.88.98.1"))
    runtime = make_runtime(resolver, policy(**TABLE))
    await runtime.start()
    for spelling in ("api.example", "API.eXample", "xn--bcher-kva.example", "DENIED.example", "denied.EXAMPLE", "other.example"):
        reply = await answer(runtime, AGENT, bytes(dnslib.DNSRecord.question(spelling).pack()), udp=True)
        assert reply is not None
        assert (dnslib.DNSRecord.parse(reply).header.rcode == 0) == (decide(spelling) == "allowed"), spelling
    assert not {name for name in resolver.asked if "denied" in name.lower() or "other" in name}, "it was asked of nobody"
    await runtime.stop()


def spellings(address: str) -> list[str]:
    number = int(ipaddress.IPv4Address(address))
    a, b, c, d = address.split(".")
    return [
        address, address + ".", f"0{a}.{b}.{c}.{d}", f"{int(a):#o}.{b}.{c}.{d}", f"{int(a):#x}.{b}.{c}.{d}", str(number),
        hex(number),
        f"{a}.{b}.{(int(c) << 8) + int(d)}", f"{a}.{(int(b) << 16) + (int(c) << 8) + int(d)}", f"::ffff:{address}",
        f"::FFFF:{address}",
        f"0:0:0:0:0:ffff:{number >> 16:x}:{number & 0xFFFF:x}", f"::ffff:{number >> 16:04X}:{number & 0xFFFF:04x}",
        f"[{address}]",
        address.translate(WIDE), f"{address}%1", f"64:ff9b::{address}", f"2002:{number >> 16:x}:{number & 0xFFFF:x}::1",
        f"::{address}",
        f"64:ff9b:1::{address}", f"{a}\u3002{b}\u3002{c}\u3002{d}",
    ]  # fmt: skip


@given(st.one_of(st.sampled_from(["10.0.0.1", "8.8.4.4", "8.8.8.8", "9.9.9.9"]), st.ip_addresses(v=4).map(str)))
@settings(max_examples=100, deadline=None)
def test_addresses(address: str) -> None:
    """None of them gets where the plain one does not; the dialler, given a name that resolves to it, says the same."""
    known = decide(address)
    denied = any(ipaddress.ip_address(address) in ipaddress.ip_network(text) for text in ("10.0.0.0/8", "8.8.4.4"))
    assert known == ("denied" if denied or address != "8.8.8.8" else "allowed")
    for spelling in spellings(address):
        said = decide(spelling)
        assert said in ("refused", "denied") or (said == known and parse_address(spelling) == address), spelling
        found = explain(PLUGIN._policy, lambda key: "", AGENT, f"[{spelling}]" if ":" in spelling else spelling)
        assert found.allowed is False or known == "allowed"
        if said != "refused":
            try:
                PLUGIN.dial(AGENT, Destination("tcp", "api.example", 443), parse_address(spelling))
                dialled = True
            except Denied:
                dialled = False
            assert dialled is not denied, spelling
