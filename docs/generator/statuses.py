"""Exit statuses."""

from __future__ import annotations

from agentfw import statuses as told

from .markdown import Unknown, table


def statuses(which: str = "") -> str:
    kinds = {"": told.PROGRAMS, "programs": told.PROGRAMS, "others": told.OTHERS}
    if which not in kinds:
        raise Unknown(f"no statuses `{which}`")
    return table(("status", "meaning"), kinds[which])
