"""From what shall run to what a fleet needs for it: the template of its VMs, and the job."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from .dispatch import Job, Mode, default_environment, template_environment
from .guestfs import add_mounts, add_program, base_view, find_interpreter, parse_mount
from .snapshots import Template


def prepare(
    mode: Mode,
    target: str,
    arguments: Sequence[str] = (),
    *,
    directory: str,
    python: str = sys.executable,
    mounts: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    preload: Sequence[str] = (),
    memory: int = 512 << 20,
    line_buffered: bool = False,
) -> tuple[Template, Job, list[str]]:
    """Template and job of `python TARGET` (`-m TARGET`, `-c TARGET`, `-`) run from `directory`, and notes for the operator.

    `mounts`: "HOST:GUEST[:rw]"; `env`: beyond the default environment; `memory`: bytes. Raises what `agentfw.guestfs` does.
    """
    variables = dict(env or {})
    at_start = template_environment(variables)
    interpreter = find_interpreter(python, at_start)
    view = base_view(interpreter)
    add_mounts(view, [parse_mount(text) for text in mounts])
    add_program(view, target if mode == "script" else None, directory)
    template = Template(interpreter, view, at_start, tuple(preload), memory)
    job = Job(mode, target, arguments, {**default_environment(), **variables}, view.cwd, line_buffered)
    return template, job, view.notes
