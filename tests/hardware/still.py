"""What stands still: a command with a time limit, and if that passes, what each of its processes waits for.

Used inside the emulated machine (inside.py), by the interpreter there alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path


class StoodStill(Exception):
    """A command took longer than it may. Its text says where it stood; nothing of it runs on."""


def run(command: list[str], cwd: Path, limit: float) -> subprocess.CompletedProcess[str]:
    """`command` in `limit` seconds, or StoodStill.

    Then Python's processes among what it started have said where their threads are: PYTHONFAULTHANDLER does so at SIGABRT.
    Agents do not see that variable.
    """
    process = subprocess.Popen(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        begun = below(process.pid)
        told = "\n".join(text for pid in begun if (text := waits(pid)))
        pythons = [pid for pid in begun if "python" in link(Path(f"/proc/{pid}/exe"))]
        for number, pids in ((signal.SIGABRT, pythons), (signal.SIGKILL, begun)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            try:
                out, err = process.communicate(timeout=20)
                break
            except subprocess.TimeoutExpired:  # somebody has the pipes still
                out, err = "", ""
        for pid in begun:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise StoodStill(f"not done after {limit:.0f} s\n{told}\nIt printed:\n{out}\n{err}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def below(root: int) -> list[int]:
    """`root` and every process that it or one of those started, parents first."""
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid and child not in found]
    return found


def waits(pid: int) -> str:
    """Each thread of a process: its state, where it waits in the kernel, its system call, its CPU time in ticks."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(OSError):
            name, _, rest = (task / "stat").read_text().rpartition(")")
            fields = rest.split()
            ticks = int(fields[11]) + int(fields[12])
            lines.append(f"{task.name} of {pid} {name.partition('(')[2]}: {fields[0]}, {ticks} ticks")
            lines.append(f"    in {text(task / 'wchan') or '?'}, call {text(task / 'syscall')}")
            lines += [f"    {line}" for line in text(task / "stack").splitlines()]
    return "\n".join(lines)


def text(place: Path) -> str:
    try:
        return place.read_text().strip()
    except OSError as error:
        return f"({error.strerror})"


def link(place: Path) -> str:
    try:
        return str(place.readlink())
    except OSError:
        return ""
