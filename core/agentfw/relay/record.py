"""What is counted of a flow while it lives, and told when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..agents import Agent
from ..destination import Destination
from ..errors import Denied
from ..reports import FlowReport, shown

if TYPE_CHECKING:
    from ..runtime import Runtime


class FlowRecord:
    """One flow's. `kind` and `destination` are set as soon as they are known."""

    __slots__ = ("bytes_down", "bytes_up", "denied_rule", "destination", "error", "kind", "peers", "port", "started")

    def __init__(self, kind: str, port: int, started: float) -> None:
        self.kind = kind
        self.port = port
        self.started = started
        self.destination: Destination | None = None
        self.peers = 0
        """Destinations that a UDP socket was connected to."""
        self.bytes_up = 0
        self.bytes_down = 0
        self.error = ""
        self.denied_rule = ""

    def failed(self, error: BaseException) -> None:
        """The first failure is told."""
        if not self.error:
            self.error = describe(error)
            if isinstance(error, Denied):
                self.denied_rule = shown(error.rule)

    def met(self, destination: Destination) -> None:
        """A UDP socket's next peer."""
        self.peers += 1
        self.destination = destination if self.peers == 1 else None

    def end(self, runtime: Runtime, agent: Agent) -> None:
        """Tell the plugins."""
        if runtime.plugins.implemented("flow_end"):
            report = FlowReport(
                kind=self.kind,
                destination=self.destination,
                port=self.port,
                bytes_up=self.bytes_up,
                bytes_down=self.bytes_down,
                started=self.started,
                seconds=runtime.loop.time() - self.started,
                error=self.error,
                denied_rule=self.denied_rule,
            )
            runtime.plugins.flow_end(agent, report)


def describe(error: BaseException) -> str:
    """One line for a report."""
    return shown(str(error) or type(error).__name__)
