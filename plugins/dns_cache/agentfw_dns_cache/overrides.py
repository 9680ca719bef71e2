"""Names that are answered here and asked of nobody: the operator's, as in /etc/hosts, and those that no resolver may pass on."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentfw.destination import is_address, parse_address, parse_host
from agentfw.errors import ConfigError, DestinationError
from agentfw.small_files import read_small

from . import wire

TTL = 60
MAX_FILE = 16 << 20
"""Bytes of a hosts file."""
MAX_ADDRESSES = 256
"""Of one name: what a reply has room for, and an agent's question may cost."""
MAX_POINTERS = 16
"""Names that an address's reverse is answered with, the first ones; files that block names have thousands for one address."""
Data = tuple[int, bytes]
"""Type and data of a record."""
_LOOPBACK: list[Data] = [(wire.A, bytes([127, 0, 0, 1])), (wire.AAAA, bytes(15) + b"\1")]
# RFC 6761, 6.3 and 6.4; RFC 7686; RFC 9462, 6.4 (agents are not told of resolvers that they could ask past this one)
_SPECIAL: dict[str, tuple[int, list[Data]]] = {
    "localhost": (wire.NOERROR, _LOOPBACK),
    "invalid": (wire.NXDOMAIN, []),
    "onion": (wire.NXDOMAIN, []),
    "resolver.arpa": (wire.NOERROR, []),
}


@dataclass(slots=True)
class Overrides:
    """Compiled: one look-up a label."""

    exact: dict[str, list[Data]] = field(default_factory=dict)
    below: dict[str, list[Data]] = field(default_factory=dict)
    """By suffix."""
    pointers: dict[str, list[Data]] = field(default_factory=dict)
    """PTR by reverse name (RFC 1035, 3.5)."""

    @classmethod
    def make(cls, hosts: Mapping[str, str | Sequence[str]], files: Sequence[tuple[str, Path]] = ()) -> Overrides:
        """`hosts`: as in the table; it wins over `files`: (key for errors, file). ConfigError."""
        made = cls()
        for name, addresses in hosts.items():
            try:
                texts = (addresses,) if isinstance(addresses, str) else addresses
                made._add(name, [parse_address(address) for address in texts])
            except DestinationError as error:
                raise ConfigError(f"hosts.{name}", str(error)) from None
        told = set(made.exact)
        for key, file in files:
            for number, (address, names) in _lines(key, file):
                for name in names:
                    try:
                        if parse_host(name) not in told:
                            made._add(parse_host(name), [address])
                    except DestinationError as error:
                        raise ConfigError(key, f"{file}:{number}: {error}") from None
        return made

    def _add(self, name: str, addresses: Sequence[str]) -> None:
        host = parse_host(name.removeprefix("*."))
        if is_address(host):
            raise DestinationError("host", name, "an address, not a name")
        records = (self.below if name.startswith("*.") else self.exact).setdefault(host, [])
        for text in addresses:
            address = ipaddress.ip_address(text)
            record = (wire.A if address.version == 4 else wire.AAAA, address.packed)
            if record in records:
                continue
            if len(records) >= MAX_ADDRESSES:
                raise DestinationError("host", name, f"more than {MAX_ADDRESSES} addresses")
            records.append(record)
            if not name.startswith("*."):
                pointers = self.pointers.setdefault(address.reverse_pointer, [])
                if len(pointers) < MAX_POINTERS:
                    pointers.append((wire.PTR, b"".join(bytes([len(each)]) + each.encode() for each in host.split(".")) + b"\0"))

    def find(self, name: str) -> tuple[int, list[Data]] | None:
        """(rcode, records of all types) of a normalised name; None: ask somebody. The most particular entry wins."""
        if (found := self.exact.get(name)) is not None or (found := self.pointers.get(name)) is not None:
            return wire.NOERROR, found
        suffix = name
        while suffix:
            if suffix in _SPECIAL:
                return _SPECIAL[suffix]
            _, _, suffix = suffix.partition(".")
            if (found := self.below.get(suffix)) is not None:
                return wire.NOERROR, found
        return None


def _lines(key: str, file: Path) -> list[tuple[int, tuple[str, list[str]]]]:
    """(line number, (address, names)) as in hosts(5)."""
    try:
        text = read_small(file, MAX_FILE).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(key, f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            found.append((number, (parse_address(words[0].partition("%")[0]), words[1:])))
        except DestinationError as error:
            raise ConfigError(key, f"{file}:{number}: {error}") from None
    return found
