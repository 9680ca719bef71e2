"""Who may be talked to: allow and deny lists of names, ports and addresses.

    [policy]
    allow = ["api.openai.com", "*.anthropic.com:443", "10.1.2.3:5432"]
    deny = ["internal.anthropic.com", "192.88.0.0/16"]
    allow_addresses = ["127.0.0.1/32"]     # addresses that are not public but that allowed names may resolve to
    default = "deny"

Deny wins. "*.example.com" is every name below example.com, not example.com itself; "*" is every name. Without a port all ports
count. Spellings are normalised by the same parser as the agents' (`agentfw.destination`).
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Literal

import msgspec
from agentfw import Agent, ConfigError, Denied, Destination, hookimpl
from agentfw.destination import is_address, parse_authority, parse_host
from agentfw.guest_rules import GuestRules

from .guest import FilesConfig, SyscallsConfig, compiled

MAX_KNOWN = 4096
"""Destinations whose pattern is remembered."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table [policy]."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    allow_addresses: tuple[str, ...] = ()
    default: Literal["deny", "allow"] = "deny"
    files: FilesConfig = FilesConfig()
    syscalls: SyscallsConfig = SyscallsConfig()
    passthrough: bool = True
    """Let agents bring their own TLS (to permitted names). The runtime cannot see inside it."""


class RuleList:
    """Patterns compiled for one look-up a suffix of the name."""

    def __init__(self, key: str, patterns: tuple[str, ...]) -> None:
        self._key = key
        self._hosts: dict[str, dict[int, str]] = {}
        """host, ".suffix" or "" (any) -> port (0: all) -> the pattern as written"""
        self.networks: list[tuple[Network, str]] = []
        self._known: dict[Destination, str | None] = {}
        for i, pattern in enumerate(patterns):
            try:
                self._add(pattern)
            except ValueError as error:
                raise ConfigError(f"{key}.{i}", str(error)) from None

    def _add(self, pattern: str) -> None:
        if "/" in pattern:
            try:
                self.networks.append((ipaddress.ip_network(pattern), pattern))
            except ValueError as error:
                raise ValueError(f"{error} (write a name, an address or a network, no URL)") from None
            return
        if pattern == "*" or pattern.startswith("*:"):
            host, port = "", parse_authority("any" + pattern[1:], 0)[1]
        elif pattern.startswith("*."):
            host, port = parse_authority(pattern[2:], 0)
            if is_address(host):
                raise ValueError("an address has no subdomains")
            host = "." + host
        elif pattern.count(":") > 1 and not pattern.startswith("["):
            host, port = parse_host(pattern), 0
        else:
            host, port = parse_authority(pattern, 0)
        self._hosts.setdefault(host, {})[port] = pattern

    def match(self, destination: Destination) -> str | None:
        """The pattern that fits, as written. For scheme "dns" in an allow list any port fits, in a deny list only "all"."""
        try:
            return self._known[destination]
        except KeyError:
            if len(self._known) >= MAX_KNOWN:  # agents choose the names
                self._known.clear()
            found = self._known[destination] = self._match(destination)
            return found

    def _match(self, destination: Destination) -> str | None:
        host = destination.host
        if destination.is_address:
            address = ipaddress.ip_address(host)
            for network, pattern in self.networks:
                if address.version == network.version and address in network:
                    return pattern
            places = [host]
        else:
            labels = host.split(".")
            places = [host, *("." + ".".join(labels[i:]) for i in range(1, len(labels))), ""]
        for place in places:
            ports = self._hosts.get(place)
            if ports is None:
                continue
            if 0 in ports:
                return ports[0]
            if destination.scheme == "dns":
                if self._key == "allow":
                    return next(iter(ports.values()))
            elif destination.port in ports:
                return ports[destination.port]
        return None

    def match_address(self, address: str) -> str | None:
        """The network or plain address that an address falls under."""
        return self.match(Destination("dns", address, 53))


class Plugin:
    """See the module."""

    name = "policy"
    config_type = Config

    def __init__(self, config: Config) -> None:
        self._config = config
        self._allowed = RuleList("allow", config.allow)
        self._denied = RuleList("deny", config.deny)
        addresses = tuple(a if "/" in a else f"{a}/{128 if ':' in a else 32}" for a in config.allow_addresses)
        self._addresses = RuleList("allow_addresses", addresses)
        self._counters: Counter[str] = Counter(allowed=0, denied=0)
        self._guest = compiled(config.files, config.syscalls)

    @hookimpl
    def allow(self, agent: Agent, destination: Destination) -> None:
        try:
            self._decide(destination)
        except Denied:
            self._counters["denied"] += 1
            raise
        self._counters["allowed"] += 1

    def _decide(self, destination: Destination) -> None:
        where = destination.host if destination.scheme == "dns" else f"{destination.host} port {destination.port}"
        rule = self._denied.match(destination)
        if rule is not None:
            raise Denied(f"policy.deny: {rule}", f"{where} is on the deny list")
        if destination.scheme == "tls" and not self._config.passthrough:
            raise Denied("policy.passthrough: false", f"TLS to {where} that the runtime cannot see into")
        if self._config.default == "deny" and self._allowed.match(destination) is None:
            raise Denied("policy.default: deny", f"{where} is not on the allow list")

    @hookimpl
    def dial(self, agent: Agent, destination: Destination, address: str) -> bool | None:
        # With its port: a name of the agent's choosing may lead to the very address and port that are denied.
        rule = self._denied.match(Destination(destination.scheme, address, destination.port))
        if rule is not None:
            self._counters["denied"] += 1
            raise Denied(f"policy.deny: {rule}", f"{address} (for {destination.host}) is on the deny list")
        if self._addresses.match_address(address) is not None:
            return True
        if destination.host == address and self._allowed.match(destination) is not None:
            return True  # the operator wrote this very address
        return None

    @hookimpl
    def guest_rules(self, agent: Agent) -> GuestRules:
        return self._guest

    @hookimpl
    def statistics(self) -> dict[str, int | float]:
        return dict(self._counters)
