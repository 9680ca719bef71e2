"""From what shall run to what a fleet needs for it: the template of its VMs, and the job."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from .dispatch import Job, Mode, default_environment, template_environment
from .guestfs import add_mounts, add_program, base_view, find_interpreter, parse_mount
from .sizes import VM_MEMORY
from .snapshot_library import Library
from .snapshots import Template


def prepare(
    mode: Mode,
    target: str,
    arguments: Sequence[str] = (),
    *,
    directory: str,
    python: str | None = None,
    mounts: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    preload: Sequence[str] | None = None,
    memory: int | None = None,
    snapshot: str | None = None,
    line_buffered: bool = False,
) -> tuple[Template, Job, list[str]]:
    """Template and job of `python TARGET` (`-m TARGET`, `-c TARGET`, `-`) run from `directory`, and notes for the operator.

    `mounts`: "HOST:GUEST[:rw]"; `env`: beyond the default environment; `memory`: bytes; `snapshot`: one with a name, and what
    else is given must be what it was made with. Raises what `agentfw.guestfs` does, and TemplateError.
    """
    variables = dict(env or {})
    if snapshot is not None:
        template = Library().template(snapshot, env=variables, python=python, preload=preload, memory=memory)
    else:
        at_start = template_environment(variables)
        interpreter = find_interpreter(python or sys.executable, at_start)
        template = Template(interpreter, base_view(interpreter), at_start, tuple(preload or ()), memory or VM_MEMORY)
    view = template.view
    add_mounts(view, [parse_mount(text) for text in mounts])
    add_program(view, target if mode == "script" else None, directory)
    job = Job(mode, target, arguments, {**default_environment(), **variables}, view.cwd, line_buffered)
    return template, job, view.notes
