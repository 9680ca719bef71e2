"""The one parser of names, addresses and ports, and `Destination`, what it makes.

Everything that depends on whom an agent talks to (Host header, SNI, name verified, pool key, policy, secret scope, audit) is
derived from one `Destination`; nothing else parses hosts. Spellings with more than one meaning somewhere are refused, not
guessed.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from dataclasses import dataclass
from encodings import idna

from .errors import DestinationError

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)\Z")
_NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\Z")
_DOTS = re.compile("[.\u3002\uff0e\uff61]")  # all that IDNA takes for a dot
_DIGITS = re.compile(r"[0-9]{1,5}\Z")
_IPV4 = re.compile(r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(?:\.(?!\Z)|\Z)){4}\Z")
_IPV6 = re.compile(r"[0-9a-f:.]{2,45}\Z")
# IDNA 2003 maps these away and IDNA 2008 keeps them: one name, two hosts. Refused.
_DEVIATIONS = frozenset("\u00df\u1e9e\u03c2\u200c\u200d")

SCHEMES = {"http": 80, "https": 443, "tcp": None, "tls": None, "udp": None, "dns": 53}
"""Default ports. "https": agent speaks plaintext to us, we speak TLS; "tls": the agent's own TLS passes through, SNI checked;
"dns": a name being asked for, the port does not count."""


def parse_host(text: str) -> str:
    """A name (lower case, IDNA, no trailing dot) or a canonical numeric address (IPv6 without brackets, IPv4-mapped as IPv4).

    Raises DestinationError: empty, too long, NUL, white space, percent, zone, user info, IPv4 other than four plain decimals, ...
    """
    if not isinstance(text, str):
        raise DestinationError("host", text, "not text")
    if not text or len(text) > 254:
        raise DestinationError("host", text, "empty" if not text else "longer than 253 characters")
    host = text if text.isascii() else _to_ascii(text)
    host = host.lower()
    if ":" in host:
        return _parse_ipv6(host, text)
    name = host[:-1] if host.endswith(".") else host
    labels = name.split(".")
    if _NUMBER.match(labels[-1]):  # somewhere somebody (inet_aton, WHATWG) takes it for an IPv4 address
        if not _IPV4.match(host):
            raise DestinationError("host", text, "an IPv4 address is four decimal numbers without leading zeros")
        return host
    if len(name) > 253:
        raise DestinationError("host", text, "longer than 253 characters")
    for label in labels:
        if not _LABEL.match(label):
            raise DestinationError("host", text, "not a host name")
        if label.startswith("xn--"):
            _check_punycode(label, text)
    return name


def parse_address(text: str) -> str:
    """A numeric address in its canonical spelling. Raises DestinationError for anything else, names too."""
    host = parse_host(text)
    if not is_address(host):
        raise DestinationError("address", text, "not a numeric address")
    return host


def parse_port(value: int | str) -> int:
    """1..65535; text must be plain decimal digits."""
    if isinstance(value, str):
        if not _DIGITS.match(value) or (value[0] == "0"):
            raise DestinationError("port", value, "not a decimal number from 1 to 65535")
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65535:
        raise DestinationError("port", value, "not a number from 1 to 65535")
    return value


def parse_authority(text: str, default_port: int) -> tuple[str, int]:
    """ "host", "host:port", "[v6]" or "[v6]:port" -> (host, port). No user info, no path."""
    host, port = text, ""
    if "://" in text:
        raise DestinationError("host", text, "a URL; wanted is just the host, or host:port")
    if text.startswith("["):
        inside, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in inside:
            raise DestinationError("host", text, "unbalanced brackets")
        if rest == ":":
            raise DestinationError("port", text, "empty")
        host, port = inside, rest[1:]
    elif ":" in text:
        host, _, port = text.partition(":")
        if not port or ":" in port:
            raise DestinationError("host", text, "an IPv6 address needs brackets here" if ":" in port else "the port is empty")
    return parse_host(host), parse_port(port) if port else default_port


def is_address(host: str) -> bool:
    """Of a host that `parse_host` gave."""
    return ":" in host or _IPV4.match(host) is not None


def _to_ascii(text: str) -> str:
    if not _DEVIATIONS.isdisjoint(text):
        raise DestinationError("host", text, "has characters that IDNA 2003 and 2008 treat differently")
    try:
        labels = [idna.ToASCII(label).decode("ascii") if label else "" for label in _DOTS.split(text)]
    except UnicodeError:
        labels = ["."]
    if any("." in label for label in labels):  # some characters decompose into one with a dot
        raise DestinationError("host", text, "not a valid internationalised name")
    return ".".join(labels)


def _parse_ipv6(host: str, text: str) -> str:
    if not _IPV6.match(host):
        raise DestinationError("host", text, "not an IPv6 address" if "%" not in host else "IPv6 zones are not accepted")
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        raise DestinationError("host", text, "not an IPv6 address") from None
    mapped = address.ipv4_mapped  # the host's stack connects to the IPv4 address, so that is what it is
    return str(address.compressed if mapped is None else mapped)


def _check_punycode(label: str, text: str) -> None:
    """An A-label must stand for something that is not ASCII and have exactly this encoding, or layers that decode differ."""
    try:
        decoded = label[4:].encode().decode("punycode")
        again = decoded.encode("punycode").decode()
    except (UnicodeError, ValueError, OverflowError):
        raise DestinationError("host", text, "bad punycode") from None
    if decoded.isascii() or again != label[4:] or any(unicodedata.category(c)[0] in "CZ" for c in decoded):
        raise DestinationError("host", text, "bad punycode")


@dataclass(frozen=True, slots=True, order=True)
class Destination:
    """Whom a flow or request goes to. Construct with `make()`; the plain constructor trusts its arguments to be canonical."""

    scheme: str
    host: str
    port: int

    @classmethod
    def make(cls, scheme: str, host: str, port: int | str | None = None) -> Destination:
        """Normalise and check. `port` None: the scheme's default. DestinationError otherwise."""
        if scheme not in SCHEMES:
            raise DestinationError("scheme", scheme, f"not one of {', '.join(SCHEMES)}")
        if port is None:
            port = SCHEMES[scheme]
            if port is None:
                raise DestinationError("port", port, f"{scheme} has no default")
        return cls(scheme, parse_host(host), parse_port(port))

    @property
    def is_address(self) -> bool:
        """`host` is a numeric address, not a name."""
        return is_address(self.host)

    @property
    def authority(self) -> str:
        """Value of a Host header: default port left out, IPv6 in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == SCHEMES[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"
