"""What the pool raises."""

from __future__ import annotations

from agentfw.errors import AgentfwError, ConnectError, TlsError


class Abandoned(Exception):
    """The group's kind of connection is not made any more: a reload changed what its key stands for."""


def copy_of(failure: AgentfwError) -> AgentfwError:
    """One exception raised in many tasks would grow all their tracebacks."""
    if type(failure) is TlsError:
        return TlsError(
            str(failure), reason=failure.reason, verify_code=failure.verify_code, verify_message=failure.verify_message
        )
    if type(failure) is ConnectError:
        copy = ConnectError(failure.destination, failure.errno)
        copy.args = failure.args
        return copy
    return failure
