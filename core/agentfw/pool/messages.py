"""What router and worker say to each other. `run` names a run: the job's id, with the attempt if it is not the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from ..config import Config
from .jobs import Job, JobResult, PoolError, Usage

MAX_NUMBERS = 8192
"""Counters of one worker."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Configuration(msgspec.Struct, frozen=True, array_like=True):
    """An agentfw.toml: its text, where it comes from a file; else its tables."""

    text: str
    file: str | None
    tables: dict[str, Any]
    changed: dict[str, dict[str, Any]] = {}
    """`Config.changed`"""

    @staticmethod
    def of(config: Config) -> Configuration:
        text = config.text
        file = None if config.file is None else str(config.file)
        return Configuration(text, file, {} if text else config.tables, config.changed)

    def config(self) -> Config:
        """ConfigError."""
        file = None if self.file is None else Path(self.file)
        config = Config.parsed(self.text, file) if self.text else Config(self.tables, file)
        for name, keys in self.changed.items():
            config = config.with_keys(name, keys)
        return config


# -- router -> worker


class Setup(_Message, frozen=True):
    """The first message. Answered by Ready or Failed."""

    number: int
    workers: int
    size: int
    """VMs of this worker at most, and how many of them are kept warm."""
    idle: int
    plugins: tuple[str, ...]
    configuration: Configuration
    engine: str
    """MODULE:CLASS"""
    listeners: tuple[tuple[str, int], ...] = ()
    """Numeric addresses and ports that its agents must not be connected to."""


class Run(_Message, frozen=True):
    run: str
    job: Job


class Signal(_Message, frozen=True):
    run: str
    number: int


class Stop(_Message, frozen=True):
    """Kill what runs, end."""


class Feed(_Message, frozen=True):
    """Question; answered with Done when it has been taken."""

    run: str
    data: bytes
    end: bool


class Fork(_Message, frozen=True):
    """Question; answered with Done once they run."""

    run: str
    copies: tuple[str, ...]


class Ping(_Message, frozen=True):
    """Question; answered with Counts."""


class Statistics(_Message, frozen=True):
    """Question; answered with Numbers."""


class Look(_Message, frozen=True):
    """Question; answered with Used."""


class Query(_Message, frozen=True):
    """Question of the router's plugin to a worker's; answered with Body. `seconds`: then nobody waits for it any more."""

    plugin: str
    body: bytes
    seconds: float


class Deal(_Message, frozen=True):
    """Question: what tenants' VMs may use of the CPU here, cores; those not named: as much as there is. Answered with Spent."""

    parts: dict[str, float]


class Check(_Message, frozen=True):
    """Question; could this be the configuration? Answered with Changed."""

    configuration: Configuration


class Keep(_Message, frozen=True):
    """Question: agents are kept from these listeners now, those already connected too. Answered with Done."""

    listeners: tuple[tuple[str, int], ...]


class Apply(_Message, frozen=True):
    """Question; it is the configuration. Answered with Changed."""

    configuration: Configuration
    size: int
    idle: int
    listeners: tuple[tuple[str, int], ...] = ()


# -- worker -> router


class Ready(_Message, frozen=True):
    pass


class Failed(_Message, frozen=True):
    """It cannot start."""

    code: str
    text: str
    hint: str

    def error(self) -> PoolError:
        return PoolError(self.code, self.text, self.hint)


class Started(_Message, frozen=True):
    run: str


class Wrote(_Message, frozen=True):
    run: str
    stream: Literal[1, 2]
    data: bytes


class Ended(_Message, frozen=True):
    """`lost`: its cell died under it, through no fault of its own; then `result` says so."""

    run: str
    result: JobResult
    lost: bool = False


class Ask(_Message, frozen=True):
    """Question of a worker's plugin to the router's; answered with Body."""

    plugin: str
    body: bytes


# -- answers


class Done(msgspec.Struct, frozen=True, array_like=True):
    pass


class Counts(msgspec.Struct, frozen=True, array_like=True):
    running: int = 0
    idle: int = 0
    cells: int = 0


class Numbers(msgspec.Struct, frozen=True, array_like=True):
    values: dict[str, float]


class Used(msgspec.Struct, frozen=True, array_like=True):
    runs: dict[str, Usage]


class Spent(msgspec.Struct, frozen=True, array_like=True):
    """Tenant -> seconds of CPU time that its cells have used since the start, and seconds that they waited for the CPU."""

    tenants: dict[str, tuple[float, float]]


class Changed(msgspec.Struct, frozen=True, array_like=True):
    tables: list[str]


class Body(msgspec.Struct, frozen=True, array_like=True):
    data: bytes


ToWorker = Setup | Run | Signal | Stop | Feed | Fork | Ping | Statistics | Look | Query | Deal | Check | Keep | Apply
ToRouter = Ready | Failed | Started | Wrote | Ended | Ask
