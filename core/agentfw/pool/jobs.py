"""What a pool is given and what it tells: jobs, their limits, states, results and errors.

msgspec Structs, so that one definition is the SDK's types, the frames between router and workers (msgpack) and the control
API's JSON with its schema. Sizes are bytes, durations seconds, times seconds since the epoch.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ..agents import ExitReport, status_of
from ..errors import AgentfwError
from ..texts import shown

Mode = Literal["script", "module", "code"]
State = Literal["queued", "starting", "running", "done"]
Isolation = Literal["cell", "process"]

DEFAULT_TENANT = "default"
DEFAULT_TEMPLATE = "default"
JOB_DIRECTORY = "/job"
"""Where a job's files are in its VM, and its working directory."""

MAX_FILES = 1024
MAX_PAYLOAD = 64 << 20
"""Bytes of files, code and stdin of one job."""
MAX_LABELS = 64
"""Of a job, which the pool keeps when it has ended, as it keeps its name."""

Name = Annotated[str, Meta(max_length=128)]
Tenant = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")]
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}\Z")


_PATTERN = re.compile(r"Expected `str` matching regex '[^']*'")


def in_words(error: Exception) -> str:
    """What msgspec says, without a regular expression: names are the only texts that have one."""
    return _PATTERN.sub("Expected letters, digits, `.`, `_`, `-`, at most 63", str(error))


class PoolError(AgentfwError):
    """A pool refuses or failed. `code` is stable, for programs: "bad_job", "no_such_job", "pool_full", "draining",
    "unauthorized", "unavailable" (nobody answers), "worker_lost", "unsupported", "bad_config", "internal". `hint`: what to do.
    Over the control API also what only a client of one's own can do wrong: "bad_request", "forbidden", "not_found",
    "method_not_allowed", "too_large", "timeout"."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        self.code = code
        self.hint = hint
        super().__init__(message)


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one job may use. None: as the pool's configuration says."""

    seconds: Annotated[float, Meta(gt=0, le=30 * 86400)] | None = None
    """Wall time from dispatch; then it is killed, and its end is "timeout"."""
    cpu_seconds: Annotated[float, Meta(gt=0, le=30 * 86400)] | None = None
    """CPU time of its VM; then it is killed, and its end is "timeout" (the text says which)."""
    cpu: Annotated[float, Meta(ge=0.01, le=1)] | None = None
    """At most this part of a core."""
    output: Annotated[int, Meta(ge=0, le=1 << 40)] | None = None
    """Bytes of stdout and stderr together; with more it is killed, and its end is "output"."""


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job's system calls, printed on its stderr as strace prints them."""

    summary: bool = False
    """A table of them at the end instead."""
    calls: Annotated[str, Meta(max_length=256)] = ""
    """Only these, as `open*,read`; "": all."""
    size: Annotated[int, Meta(ge=0, le=1024)] = 32
    """Bytes of a string that are shown."""


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program to run once. `target`: for "script" a path in the guest (relative ones: in JOB_DIRECTORY, where `files` are laid;
    absolute ones: what a mount of the template shows), for "module" its name, for "code" its text."""

    mode: Mode
    target: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """Beyond the default environment."""
    files: dict[str, bytes] = {}
    """Relative path -> content; directories are made."""
    stdin: bytes = b""
    interactive: bool = False
    """stdin stays open after `stdin`: more comes with `Backend.feed()`, until its `end`."""
    name: Name = ""
    """For people; "" becomes the id."""
    labels: dict[str, str] = {}
    policy: Name = ""
    """Profile of the policy plugin (the agent's label `policy`); "": none is asked for."""
    tenant: Tenant = DEFAULT_TENANT
    """VMs of different tenants never share a process (the agent's label `tenant`)."""
    template: str = DEFAULT_TEMPLATE
    """A table [pool.templates.NAME] of the configuration."""
    isolation: Isolation | None = None
    """"cell": VMs share a jailed process with their tenant's others only; "process": a process a VM. None: the pool's."""
    limits: Limits = Limits()
    strace: Trace | None = None
    """Its system calls are printed. It has a process of its own then, which is started for it."""
    capture: bool = False
    """What it says over HTTP is kept as a HAR file, by the pool's plugin `capture`."""
    retries: Annotated[int, Meta(ge=0, le=10)] = 0
    """How often it may be run again from its beginning when its worker or cell died under it (not when it failed by itself)."""

    def check(self, types: bool = True) -> None:
        """Raise PoolError "bad_job" for what the types do not exclude, and for what they do: a job that was made in this process
        has not been decoded. What no worker could be sent, or read, must not get to one. `types` False: it has just been."""
        try:
            if types:
                fields = {**msgspec.structs.asdict(self), "limits": msgspec.structs.asdict(self.limits)}
                if self.strace is not None:
                    fields["strace"] = msgspec.structs.asdict(self.strace)
                msgspec.convert(fields, Job, builtin_types=(bytes,))  # text is no base64 here
            self._check_values()
        except UnicodeEncodeError:
            raise PoolError("bad_job", "text that is not Unicode (lone surrogates)") from None
        except (msgspec.ValidationError, OverflowError, TypeError) as error:
            raise PoolError("bad_job", shown(str(error)).replace("`$.", "`")) from None

    def _check_values(self) -> None:
        for short in (self.name, self.policy, self.template):
            short.encode()
        if not _TENANT.match(self.tenant):
            raise PoolError("bad_job", f"bad tenant {self.tenant!r}: letters, digits, `.`, `_`, `-`, at most 63")
        if self.mode != "code" and (not self.target or "\0" in self.target):
            raise PoolError("bad_job", f"mode `{self.mode}` needs a target")
        if any("\0" in text for text in (*self.args, *self.env, *self.env.values())) or any(
            not name or "=" in name for name in self.env
        ):
            raise PoolError("bad_job", "arguments and variables cannot hold NUL, nor names of variables `=`")
        if len(self.files) > MAX_FILES:
            raise PoolError("bad_job", f"{len(self.files)} files (at most {MAX_FILES})")
        for path in self.files:
            parts = path.split("/")
            strange = any(part in ("", ".", "..") or len(part.encode()) > 255 for part in parts)
            if strange or "\0" in path or len(path.encode()) > 1024:
                raise PoolError("bad_job", f"bad path of a file: {path!r}: relative ones without `.` and `..` only")
        for path in self.files:
            above, slash, _ = path.rpartition("/")
            while slash:
                if above in self.files:
                    raise PoolError("bad_job", f"{above!r} cannot be a file and the directory of {path!r}")
                above, slash, _ = above.rpartition("/")
        text = (self.target, *self.args, *self.env, *self.env.values())
        size = len(self.stdin) + sum(map(len, self.files.values())) + sum(len(each.encode()) for each in text)
        if size > MAX_PAYLOAD:
            raise PoolError("bad_job", f"{size} bytes of files, code and stdin (at most {MAX_PAYLOAD})")
        if self.strace is not None and self.strace.calls:
            from ..strace import chosen

            try:
                chosen(self.strace.calls)
            except ValueError as error:
                raise PoolError("bad_job", f"strace: {shown(str(error))}") from None
        if len(self.labels) > MAX_LABELS:
            raise PoolError("bad_job", f"{len(self.labels)} labels (at most {MAX_LABELS})")
        for name, value in self.labels.items():
            if not _LABEL.match(name) or len(value) > 128 or not value.isprintable():
                raise PoolError("bad_job", f"bad label {name!r}")
            if name in ("tenant", "policy"):
                raise PoolError("bad_job", f"label `{name}` is a field of the job")


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a run took. `dispatch_seconds`: from the pool's having it, with a VM ready, to the program's first bytecode."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    queued_seconds: float = 0.0
    dispatch_seconds: float | None = None
    memory: int = 0
    """Bytes of memory that its VM had been given at the end (committed)."""
    stdout: int = 0
    stderr: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended. `kind` as in `ExitReport`, and "output" (it wrote more than it may)."""

    kind: Literal["code", "signal", "killed", "memory", "internal", "hostile", "timeout", "output"]
    code: int = 0
    signal: int = 0
    text: str = ""
    usage: Usage = Usage()

    @property
    def status(self) -> int:
        """As `agentfw run` exits: the program's own; 128+n: signal; 124: time-out; 125: ours; 137: killed."""
        return status_of(self.kind, self.code, self.signal)

    @staticmethod
    def of(report: ExitReport, usage: Usage) -> JobResult:
        return JobResult(kind=report.kind, code=report.code, signal=report.signal, text=report.text, usage=usage)


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the pool knows it at one moment."""

    id: str
    name: str
    tenant: str
    template: str
    labels: dict[str, str]
    state: State
    submitted: float
    started: float | None = None
    ended: float | None = None
    worker: int | None = None
    attempt: int = 1
    parent: str | None = None
    """The job that it was forked from."""
    result: JobResult | None = None
    """Once `state` is "done"."""


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a job's output. `offset`: of its first byte in that stream; a gap before it was not kept."""

    stream: Literal[1, 2]
    offset: int
    data: bytes


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    pid: int
    state: Literal["starting", "ready", "draining", "lost"]
    running: int
    idle: int
    """VMs that are warm and wait for a job."""
    cells: int
    restarts: int
    silent: bool = False
    """It does not answer. After fifteen seconds it is replaced."""


class PoolInfo(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    api: str
    pid: int
    state: Literal["starting", "ready", "draining", "stopping"]
    started: float
    queued: int
    running: int
    done: int
    templates: list[str]
    workers: list[WorkerInfo]
