"""The one parser of names, addresses and ports."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from agentfw import Destination
from agentfw.addresses import is_own, is_public
from agentfw.destination import is_address, parse_address, parse_authority, parse_host, parse_port
from agentfw.errors import DestinationError
from hypothesis import given
from hypothesis import strategies as st

LABELS = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,20}[a-z0-9_])?", fullmatch=True).filter(
    lambda label: not label.startswith("xn--")
)
NAMES = (
    st.lists(LABELS, min_size=1, max_size=5)
    .map(".".join)
    .filter(lambda name: not name.split(".")[-1].isdigit() and "0x" not in name)
)


@given(NAMES, st.booleans(), st.lists(st.booleans(), min_size=120, max_size=120))
def test_spellings_of_a_name_are_one_host(name: str, dot: bool, upper: list[bool]) -> None:
    shouted = "".join(c.upper() if up else c for c, up in zip(name, upper, strict=False)) + ("." if dot else "")
    assert parse_host(shouted) == name
    assert not is_address(name)
    for c, wide in (("a", "\uff41"), (".", "\u3002")):
        if c in name:
            assert parse_host(name.replace(c, wide)) == name


@given(st.text(max_size=300))
def test_whatever_is_accepted_is_canonical_and_plain(text: str) -> None:
    try:
        host = parse_host(text)
    except DestinationError as error:
        assert "\n" not in str(error) and len(str(error)) < 300
        return
    assert parse_host(host) == host
    assert host.isascii() and host == host.lower() and len(host) <= 253
    assert not set(host) & set(" \t\r\n\0%@/\\#?[]") and not host.endswith(".")


@given(st.integers(0, 2**32 - 1))
def test_ipv4_has_one_spelling(number: int) -> None:
    address = ipaddress.IPv4Address(number)
    assert (
        parse_host(str(address))
        == parse_host(f"::ffff:{address}")
        == parse_host(f"::FFFF:{number >> 16:x}:{number & 0xFFFF:x}")
        == str(address)
    )
    a, b, c, d = address.packed
    others = {str(number), hex(number), oct(number).replace("o", ""), f"{a}.{number & 0xFFFFFF}", f"{a}.{b}.{number & 0xFFFF}",
    f"{a:#x}.{b}.{c}.{d}",
              f"0{a}.{b}.{c}.{d}", f"{a}.{b}.{c}.{d}.", f"{a}.{b}.{c}.{d:03}"}  # fmt: skip
    for other in others - {str(address)}:
        with pytest.raises(DestinationError):
            parse_host(other)


@given(st.integers(0, 2**128 - 1))
def test_ipv6_has_one_spelling(number: int) -> None:
    address = ipaddress.IPv6Address(number)
    wanted = str(address.ipv4_mapped or address)
    assert parse_host(address.exploded) == parse_host(address.exploded.upper()) == parse_host(str(address)) == wanted
    with pytest.raises(DestinationError):
        parse_host(f"{address}%eth0")


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "..", "a..b", ".a", "a..", "-a.b", "a-.b", "a b", "a\0b", "a\0.evil.example", "a%2eb", "%61", "a/b", "a\\b",
        "a@b", "a:b", "a#b", "[::1]", "::1%1", "::1%25eth0",
        "1.2.3", "1", "0", "0x7f000001", "0x7f.0.0.1", "017700000001", "0177.0.0.1", "127.1", "127.0.0.1.", "256.1.1.1",
        "1.2.3.4.5", "1.2.3.0x4", "a.1", "a.0x",
        "a" * 64 + ".b", ".".join(["a" * 60] * 5), "xn--a", "xn--abc-", "xn--", "fa\xdf.de", "a\u200db.c", "\u2488.com",
        "*.example.com", "a,b", "a\n", " a", "a\u00a0b",
        ":::", "1::2::3", "::1.2.3", "fe80::1%lo", "::ffff:1.2.3.4.5", "\uff11\uff12\uff17.1", "a\u2024b",
    ],
)  # fmt: skip
def test_refused_hosts(text: str) -> None:
    with pytest.raises(DestinationError):
        parse_host(text)


def test_names_that_look_alike_and_are_good() -> None:
    assert parse_host("1e100.net") == "1e100.net"
    assert parse_host("_dmarc.a-b.example") == "_dmarc.a-b.example"
    assert (
        parse_host("M\u00fcnchen.de") == parse_host("mu\u0308nchen.de") == parse_host("xn--mnchen-3ya.de") == "xn--mnchen-3ya.de"
    )
    assert parse_host("4.3.2.1.in-addr.arpa") == "4.3.2.1.in-addr.arpa"


@pytest.mark.parametrize(
    "value", [0, -1, 65536, True, "0", "00", "080", "+80", " 80", "80 ", "8_0", "\u0668\u0660", "", "1e2", "65536", "123456"]
)
def test_refused_ports(value: int | str) -> None:
    with pytest.raises(DestinationError):
        parse_port(value)


def test_authorities() -> None:
    assert parse_authority("A.example", 80) == ("a.example", 80)
    assert parse_authority("a.example:8080", 80) == ("a.example", 8080)
    assert parse_authority("[::1]", 443) == ("::1", 443)
    assert parse_authority("[::ffff:127.0.0.1]:1", 443) == ("127.0.0.1", 1)
    for text in ("a:", "a:b", "::1", "[::1", "[::1]x", "[::1]:", "[a]:1", "u@a", "a:1:2", "[1.2.3.4]", ""):
        with pytest.raises(DestinationError):
            parse_authority(text, 80)


def test_destinations() -> None:
    assert Destination.make("https", "API.example.").authority == "api.example"
    assert Destination.make("https", "::1", 8443).authority == "[::1]:8443"
    assert str(Destination.make("tcp", "a.example", "5432")) == "tcp://a.example:5432"
    assert Destination.make("https", "A.EXAMPLE", "443") == Destination.make("https", "a.example.", 443)
    for scheme, port in (("ftp", 21), ("tcp", None)):
        with pytest.raises(DestinationError):
            Destination.make(scheme, "a.example", port)
    with pytest.raises(DestinationError):
        parse_address("a.example")


PUBLIC = ["8.8.8.8", "1.1.1.1", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "223.255.255.255", "2606:4700::1111",
          "64:ff9b::808:808",
          "::ffff:8.8.8.8"]  # fmt: skip
NOT_PUBLIC = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.255", "168.63.129.16",
    "169.254.169.254", "169.254.170.2", "172.16.0.1",
    "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1",
    "203.0.113.1", "224.0.0.1", "239.255.255.250",
    "240.0.0.1", "255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::808:808", "100::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:10::1", "2001:20::1",
    "2001:db8::1", "2002:7f00:1::1", "2002:808:808::1",
    "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
    "2606:4700::5efe:7f00:1", "nonsense", "",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_not_public(address: str) -> None:
    assert not is_public(address)


@given(st.integers(0, 2**32 - 1))
def test_embedded_addresses_are_judged_as_what_they_embed(number: int) -> None:
    address = ipaddress.IPv4Address(number)
    verdict = is_public(str(address))
    assert is_public(f"::ffff:{address}") == is_public(f"64:ff9b::{address}") == verdict
    if verdict:  # ours is the stricter
        assert address.is_global and not address.is_multicast


def test_own_addresses() -> None:
    assert is_own("127.0.0.1") and is_own("::1") == socket.has_ipv6
    assert not is_own("198.51.100.7") and not is_own("2001:db8::7")


@pytest.mark.parametrize("text", ["https://api.example", "https://api.example:443/v1", "http://[::1]/"])
def test_a_url_in_place_of_a_host_is_said_to_be_one(text: str) -> None:
    with pytest.raises(DestinationError, match="a URL"):
        parse_authority(text, 443)
