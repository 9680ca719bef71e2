"""docs/pool.md says what is there: names, options, fields, and an example that runs."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import agentfw
from agentfw import sdk
from agentfw.pool.jobs import Limits
from agentfw.sdk.programs import Input, JobOptions

TEXT = (Path(__file__).parents[2] / "docs/pool.md").read_text()


def test_every_public_name_is_documented() -> None:
    inside = {"JobOptions", "Results", "SyncResults", "SyncHandle"}  # nobody makes or names them
    assert not {name for name in sdk.__all__ if name not in inside and not re.search(rf"\b{name}\b", TEXT)}
    assert not {name for name in sdk.__all__ if name not in {*inside, "Handle"} and name not in agentfw.__all__} - {"JobOptions"}


def test_every_option_is_documented() -> None:
    section = TEXT.split("| option | |")[1].split("\n\n")[0]
    assert set(
        re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| ")))
    ) == set(JobOptions.__annotations__)
    assert all(f"{name}=" in TEXT for name in (*Limits.__struct_fields__, *Input.__dataclass_fields__))


def test_methods_that_are_named_are_there() -> None:
    for kind, letters in ((agentfw.Pool, "pool"), (agentfw.Handle, "job")):
        named = set(re.findall(rf"\b{letters}\.(\w+)\(", TEXT))
        assert named and not {name for name in named if not hasattr(kind, name)}, named


def test_the_examples_are_python() -> None:
    for block in re.findall(r"\n\n((?:    .*\n|\n)+)", TEXT):
        code = "\n".join(line[4:] for line in block.splitlines())
        if "pool" in code and "├" not in code and "agentfw pool" not in code:
            compile(code, "pool.md", "exec", flags=0x2000)  # PyCF_ALLOW_TOP_LEVEL_AWAIT
    assert asyncio  # used by the first of them
