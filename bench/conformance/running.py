"""Running a module to its end: natively in a process of its own, or in a VM of a pool. What hangs is cut, and the rest run on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentfw import Pool

from .outcome import Listener, Outcome

SCRIPT = Path(__file__).parents[1] / "guest/conformance_module.py"
ORDINARY = Path(__file__).with_name("ordinary.py")
NOISE = 8000
"""Characters of stderr's end that are kept."""
PRELOAD = ["unittest", "doctest", "fnmatch"]


@dataclass(frozen=True)
class Wish:
    """What to run. `module`: a name in the package `test`; `file`: a file instead. `case_limit`, `limit`: seconds without a line,
    and in all; `resumes`: how often the rest of a module is begun again after a case hung or crashed; `alone`: natively, but so
    that fork and exec fail as in a VM."""

    module: str
    file: Path | None = None
    resources: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    case_limit: float = 120.0
    limit: float = 900.0
    resumes: int = 10
    alone: bool = False

    def request(self, file: str | None, done: Sequence[str]) -> str:
        names = "module", "resources", "skip", "only", "alone"
        return json.dumps({name: getattr(self, name) for name in names} | {"file": file, "done": done})


class Ended(Exception):
    """A run that did not end by itself: "hung" or "crashed", and what is known of it."""

    def __init__(self, outcome: str, text: str) -> None:
        self.outcome = outcome
        super().__init__(text)


Attempt = Callable[[Wish, Listener], Awaitable[None]]


async def run(wish: Wish, attempt: Attempt) -> Outcome:
    """All of a module's cases that can be run. Never raises for what tests do."""
    listener = Listener(wish.module)
    since = time.monotonic()
    for _ in range(wish.resumes + 1):
        try:
            await attempt(wish, listener)
        except Ended as end:
            between = not listener.running
            listener.ended(end.outcome, str(end))
            if between:
                break
        else:
            break
    listener.outcome.seconds = round(time.monotonic() - since, 2)
    return listener.outcome


async def _listen(wish: Wish, listener: Listener, lines: AsyncGenerator[str, None]) -> None:
    """Ended if nothing comes for too long, or what is no line of ours. Returns at the end of the lines."""
    loop = asyncio.get_running_loop()
    end = loop.time() + wish.limit
    bad = ""
    async with aclosing(lines):
        while True:
            left = min(wish.case_limit, end - loop.time())
            try:
                async with asyncio.timeout(left):
                    line = await anext(lines, None)
            except TimeoutError:
                text = f"nothing for {left:.0f} s" if left == wish.case_limit else f"the module took more than {wish.limit:.0f} s"
                raise Ended("hung", text) from None
            if line is None:
                return
            if bad:
                raise Ended("crashed", bad)
            try:
                listener.line(line)
            except ValueError as error:  # if it is the last one, the run ended while it was written, and how is known elsewhere
                bad = f"{line[:80]!r} among the results: {error}"


# ---- natively


def _ordinary(place: Path) -> tuple[str, ...]:
    return (sys.executable, "-I", str(ORDINARY), str(place)) if os.geteuid() == 0 else ()


async def natively(wish: Wish, listener: Listener) -> None:
    with tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as name:
        place = Path(name)
        for each in ("home", "tmp"):
            (place / each).mkdir()
        (place / "request.json").write_text(wish.request(str(wish.file) if wish.file else None, listener.done))
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(place / "home"), "TMPDIR": str(place / "tmp"),
            "LANG": "C.UTF-8", "USER": "agent", "LOGNAME": "agent",
        }  # fmt: skip
        with (place / "stderr").open("wb") as noise:
            process = await asyncio.create_subprocess_exec(
                *_ordinary(place), sys.executable, str(SCRIPT), str(place / "request.json"), stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=noise, env=environment, cwd=place / "tmp", start_new_session=True,
                limit=1 << 22,
            )  # fmt: skip
        try:
            assert process.stdout is not None
            await _listen(wish, listener, _lines(process.stdout))
            status = await process.wait()
            if status == 125 and _ordinary(place):
                raise SystemExit(_end(place / "stderr"))
            if status and not listener.outcome.whole:
                raise Ended("crashed", f"exit status {status}: {_end(place / 'stderr')}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            listener.outcome.noise = _end(place / "stderr")


async def _lines(stream: asyncio.StreamReader) -> AsyncGenerator[str, None]:
    while line := await stream.readline():
        yield line.decode("utf-8", "replace")


def _end(file: Path) -> str:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - NOISE))
        return opened.read().decode("utf-8", "replace")


# ---- in a VM


@contextlib.asynccontextmanager
async def vms(jobs: int, memory: str) -> AsyncIterator[Attempt]:
    """A pool of so many VMs; what it gives runs a wish in one of them."""
    table: dict[str, Any] = {"run": {"memory": memory, "preload": PRELOAD}}
    async with Pool(table, plugins=["native"], size=jobs, idle=jobs, isolation="process") as pool:

        async def attempt(wish: Wish, listener: Listener) -> None:
            files: dict[str, str | Path] = {}
            if wish.file is not None:
                files[wish.file.name] = wish.file
            files["request.json"] = wish.request(wish.file.name if wish.file else None, listener.done)
            job = await pool.submit(SCRIPT, ["request.json"], files=files, name=wish.module)
            try:
                await _listen(wish, listener, job.lines())
            finally:
                await job.kill()
                result = await job.wait()
                listener.outcome.noise = result.stderr[-NOISE:]
            if not listener.outcome.whole:
                ended = result.ended
                raise Ended("crashed", f"{ended.kind} {ended.code or ended.signal or ''} {ended.text}: {result.stderr[-NOISE:]}")

        yield attempt
