"""The rules' meaning as slowly and plainly as it can be said, to compare with: every rule is looked at, nothing is remembered."""

from __future__ import annotations

import ipaddress
from typing import Any


def host_fits(pattern: str, host: str) -> bool:
    """Without ports. Addresses are of version 4 here."""
    address = host.replace(".", "").isdigit()
    if "/" in pattern:
        return address and ipaddress.ip_address(host) in ipaddress.ip_network(pattern)
    if pattern == "*":
        return not address
    if pattern.startswith("*."):
        return not address and host.endswith(pattern[1:])
    return pattern == host


def fits(rule: dict[str, Any], host: str, port: int) -> bool:
    for pattern in rule["hosts"] or [None]:
        name, _, only = (pattern or "").partition(":")
        if (pattern is None or host_fits(name, host)) and (not only or int(only) == port):
            return not rule["ports"] or port in rule["ports"]
    return False


def request_fits(rule: dict[str, Any], method: str, path: str) -> bool:
    def below(prefix: str) -> bool:
        return path == prefix or path.startswith(prefix.rstrip("/") + "/")

    return (not rule["methods"] or method in rule["methods"]) and (not rule["paths"] or any(map(below, rule["paths"])))


def conditional(rule: dict[str, Any]) -> bool:
    return bool(rule["methods"] or rule["paths"])


def connects(rules: list[dict[str, Any]], default: str, scheme: str, host: str, port: int) -> bool:
    """May a flow be opened?"""
    looked_into = scheme in ("http", "https")
    for rule in rules:
        certain = not conditional(rule) or (not looked_into and not rule["raw"])
        if rule["action"] == "deny" and fits(rule, host, port) and certain:
            return False
    if default == "allow":
        return True
    for rule in rules:
        if rule["action"] == "allow" and fits(rule, host, port) and (looked_into or not conditional(rule) or rule["raw"]):
            return True
    return False


def requests(rules: list[dict[str, Any]], default: str, host: str, port: int, method: str, path: str) -> bool:
    """May this request be sent?"""
    here = [rule for rule in rules if fits(rule, host, port)]
    if any(rule["action"] == "deny" and request_fits(rule, method, path) for rule in here):
        return False
    return default == "allow" or any(rule["action"] == "allow" and request_fits(rule, method, path) for rule in here)
