"""Everything agentfw raises on purpose. Each error says what failed, where, and (where there is one) what to do.

AgentfwError
├── ConfigError            agentfw.toml or an option is wrong
├── PluginError            a plugin cannot be found or loaded
│   ├── UnknownPlugin
│   └── HookError          a hook raised, hung or returned nonsense; the operation it stood in is refused
├── Denied                 a rule says no
├── DestinationError       a host, address or port that the one parser refuses (also a ValueError)
├── ProtocolError          a peer broke HTTP/1, DNS or the TLS preface
├── PoolError              a pool refuses or failed (pool/jobs.py)
├── JobFailed              a job of a pool ended badly (sdk/errors.py has its kinds)
└── UpstreamError          the outside failed
    ├── ResolveError       the name has no (permitted) address
    ├── ConnectError       no address could be connected to
    ├── Overloaded         a queue is full, or the wait in it was too long
    └── TlsError           handshake or verification failed
"""

from __future__ import annotations

import errno as _errno
from collections.abc import Iterable
from pathlib import Path

from .texts import shown

LONGEST = 4000
"""Characters of a message: some list all that is known."""


class AgentfwError(Exception):
    """Root of the tree. `str()` is one line, fit for a person, without secrets."""

    def __init__(self, message: str = "") -> None:
        super().__init__(shown(message, LONGEST))  # names in it may be anybody's


class ConfigError(AgentfwError):
    """`key` (dotted, as in the file; "" when the file itself is the trouble) in `file` (None: an option or the environment),
    line from 1. `hint`: what to do about it, if that can be said."""

    def __init__(self, key: str, message: str, file: str | Path | None = None, line: int | None = None, hint: str = "") -> None:
        self.hint = hint
        self.key = key
        self.message = message
        self.file = None if file is None else str(file)
        self.line = line
        place = "" if self.file is None else self.file if line is None else f"{self.file}:{line}"
        super().__init__(": ".join(part for part in (place, key, message) if part))


class PluginError(AgentfwError):
    """A plugin cannot be loaded or started. `hint`: what to do about it, if that can be said."""

    hint = ""


class UnknownPlugin(PluginError):
    """No entry point and no file of that name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = sorted(known)
        super().__init__(f"unknown plugin `{name}` (known: {', '.join(self.known) or 'none'})")


class HookError(PluginError):
    """`plugin` failed in `hook`; `__cause__` is what it raised. Never shown to the agent beyond the two names."""

    told = False
    """The `decided` hooks have been."""

    def __init__(self, plugin: str, hook: str, reason: str) -> None:
        self.plugin = plugin
        self.hook = hook
        self.reason = reason
        super().__init__(f"plugin `{plugin}` failed in `{hook}`: {reason}")


class Denied(AgentfwError):
    """A rule refuses. `rule` names it as the operator wrote it ("deny: *.example.com"), `reason` is for people, `plugin` is
    filled in by the plugin manager when the raiser left it empty. Text goes to the agent: no secrets in it.

    `status`: what an HTTP agent is told, 403, or 429 for a rate that is over its limit (RFC 6585); `retry_after`: seconds after
    which it may try again (RFC 9110 section 10.2.3), None: it need not.
    """

    hook = ""
    """In which it was raised; filled in by the plugin manager."""
    told = False
    """The `decided` hooks have been."""

    def __init__(self, rule: str, reason: str, plugin: str = "", *, status: int = 403, retry_after: float | None = None) -> None:
        self.rule = rule
        self.reason = reason
        self.plugin = plugin
        self.status = status
        self.retry_after = retry_after
        super().__init__(f"denied by {rule}: {reason}" if reason else f"denied by {rule}")


class DestinationError(AgentfwError, ValueError):
    """`what` ("host", "port", "address") had the spelling `value` (shown shortened and escaped)."""

    def __init__(self, what: str, value: object, reason: str) -> None:
        self.what = what
        self.reason = reason
        text = ascii(value)
        super().__init__(f"bad {what} {text if len(text) <= 80 else text[:77] + '...'}: {reason}")


class ProtocolError(AgentfwError):
    """A peer broke the protocol. `status`: what an HTTP agent is told (400, 413, 431, 501, 502, 505)."""

    def __init__(self, message: str, status: int = 400) -> None:
        self.status = status
        super().__init__(message)


class UpstreamError(AgentfwError):
    """The outside failed: not the agent's doing, not a rule."""


class ResolveError(UpstreamError):
    """`rcode`: the DNS answer's code (3 NXDOMAIN, 2 SERVFAIL, 5 REFUSED; 0: there was no address in a good answer)."""

    def __init__(self, name: str, reason: str, rcode: int = 2) -> None:
        self.name = name
        self.reason = reason
        self.rcode = rcode
        super().__init__(f"cannot resolve {name}: {reason}")


class ConnectError(UpstreamError):
    """`errno` is the last attempt's (ECONNREFUSED, ETIMEDOUT, ...)."""

    def __init__(self, destination: object, errno: int, reason: str = "") -> None:
        self.destination = destination
        self.errno = errno
        super().__init__(f"cannot connect to {destination}: {reason or _errno.errorcode.get(errno, str(errno))}")


class Overloaded(UpstreamError):
    """More is asked of an upstream than its limits let through. An HTTP agent is told 503 and, after `retry_after` seconds, to
    try again."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class TlsError(UpstreamError):
    """The handshake failed. `verify_code`: OpenSSL's X509_V_ERR_* (62 = name mismatch), 0 if verification was not the trouble;
    `reason`: OpenSSL's upper-case word, e.g. "CERTIFICATE_VERIFY_FAILED"."""

    def __init__(self, message: str, *, reason: str = "", verify_code: int = 0, verify_message: str = "") -> None:
        self.reason = reason
        self.verify_code = verify_code
        self.verify_message = verify_message
        super().__init__(message)
