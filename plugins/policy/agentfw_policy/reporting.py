"""Report-only: what would have been refused passes, and is told."""

from __future__ import annotations

import logging

from agentfw import Agent, Destination
from agentfw.reports import AuditEvent, shown
from agentfw.runtime import Runtime

from .rules import Finding

MAX_TOLD = 1000
"""Combinations of rule and destination told of one agent; more are only counted."""

log = logging.getLogger("agentfw.policy")


class Reports:
    """What was told of one agent, or of all together."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def tell(
        self, runtime: Runtime | None, agent: Agent | None, destination: Destination | None, rule: str, finding: Finding
    ) -> None:
        """Once for each rule and destination, in the log and to the auditors. `rule`: with the place where it is written."""
        where = "" if destination is None else f"{destination.host}:{destination.port}"
        key = (finding.key, where)
        if key in self._told or len(self._told) >= MAX_TOLD:
            return
        self._told.add(key)
        who = "all agents" if agent is None else agent.name
        log.warning("report only: %s: would be denied by %s: %s", who, rule, shown(finding.reason, 300))
        if runtime is not None:
            event = AuditEvent.about("report_only", agent, destination, rule=rule, plugin="policy", reason=finding.reason)
            runtime.audit(event)
