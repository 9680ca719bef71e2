"""What jobs' VMs are restored from: the templates of [pool] and [run], their snapshots made when they are first wanted."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from .. import guest_trust
from ..config import RunConfig
from ..dispatch import default_environment, template_environment
from ..errors import AgentfwError
from ..guestfs import add_mounts, base_view, find_interpreter, parse_mount
from ..rehearsal import rehearse
from ..runtime import Runtime
from ..sizes import vm_memory
from ..snapshot_library import Library
from ..snapshots import Progress, SnapshotStore, Template, TemplateError, quiet
from .config import PoolConfig, TemplateConfig
from .jobs import DEFAULT_TEMPLATE, JOB_DIRECTORY, PoolError

AGAIN_SECONDS = (1.0, 60.0)
"""After a failure the same text is the answer for so long; doubled each time, up to the second."""

log = logging.getLogger("agentfw.pool")


@dataclass(frozen=True, eq=False)
class Prepared:
    """A template whose snapshot is there. `environment`: what its agents get besides the default; `trust`: of a cell's
    configuration, so that guests trust the fleet's authority."""

    late: ClassVar[bool] = False
    """VMs are restored by those who use them."""
    name: str
    template: Template
    snapshot: Path
    key: bytes
    environment: Mapping[str, str]
    trust: Mapping[str, Any]

    @property
    def shared_memory(self) -> int:
        """Bytes that all VMs of it share and only they have."""
        return 0


class Templates:
    """Belongs to the runtime's loop. What changes in the configuration counts from the next `get()`."""

    def __init__(self, runtime: Runtime, store: SnapshotStore, pool: PoolConfig, run: RunConfig) -> None:
        self._runtime = runtime
        self._store = store
        self._pool = pool
        self._run = run
        self._making: dict[str, asyncio.Task[Prepared]] = {}
        self._made: dict[str, Prepared] = {}
        self._failed: dict[str, tuple[float, float, AgentfwError]] = {}
        """Name -> (when it may be tried again, how long that was, what went wrong)."""
        self.progress: Progress = quiet

    def configure(self, pool: PoolConfig, run: RunConfig) -> set[str]:
        """Another configuration; -> names of those that are to be made anew."""
        changed = {
            name
            for name in {*self._made, *self._making, *self._failed}
            if run != self._run or pool.template(name) != self._pool.template(name)
        }
        self._pool, self._run = pool, run
        for name in changed:
            self._forget(name)
        return changed

    async def check(self, pool: PoolConfig, run: RunConfig) -> None:
        """PoolError "bad_config" if a template that another configuration changes cannot be made. Its snapshot is there then."""

        async def make(template: Template) -> None:
            await self._store.get(template, self.progress)

        await check(pool, run, (self._pool, self._run), make)

    def _forget(self, name: str) -> None:
        self._made.pop(name, None)
        self._making.pop(name, None)
        self._failed.pop(name, None)

    def peek(self, name: str) -> Prepared | None:
        """If it is there already."""
        return self._made.get(name)

    async def get(self, name: str) -> Prepared:
        """Made if need be, once whoever asks. PoolError "bad_job": there is none of that name; TemplateError, GuestError,
        ConfigError: it cannot be made (and is not tried again at once)."""
        made = self._made.get(name)
        if made is not None:
            return made
        config = self._pool.template(name)
        if config is None:
            known = ", ".join(sorted({"default", *self._pool.templates}))
            raise PoolError("bad_job", f"there is no template `{name}`", f"there are: {known} ([pool.templates.NAME])")
        loop = asyncio.get_running_loop()
        failed = self._failed.get(name)
        if failed is not None and loop.time() < failed[0]:
            raise failed[2]
        task = self._making.get(name)
        if task is None:
            task = self._making[name] = loop.create_task(self._make(name, config))
            task.add_done_callback(lambda done: self._done(name, done))
        return await asyncio.shield(task)

    def _done(self, name: str, task: asyncio.Task[Prepared]) -> None:
        if task.cancelled():
            if self._making.get(name) is task:
                del self._making[name]
            return
        error = task.exception()
        if self._making.get(name) is not task:  # the configuration has changed meanwhile
            return
        del self._making[name]
        if error is None:
            self._made[name] = task.result()
            self._failed.pop(name, None)
        else:
            if not isinstance(error, AgentfwError):
                error = TemplateError(f"{type(error).__name__}: {error}")
            seconds = min(AGAIN_SECONDS[1], self._failed[name][1] * 2) if name in self._failed else AGAIN_SECONDS[0]
            self._failed[name] = asyncio.get_running_loop().time() + seconds, seconds, error
            log.error("template `%s`: %s", name, error)

    def spoiled(self, prepared: Prepared) -> None:
        """Its snapshot turned out to be gone, damaged, or of another machine. Nothing if it was made anew already."""
        if self._made.get(prepared.name) is prepared:
            del self._made[prepared.name]
            self._store.discard(prepared.key)

    def hot(self, prepared: Prepared) -> Path | None:
        path = self._store.hot_path(prepared.key)
        return path if path.exists() else None

    async def _make(self, name: str, config: TemplateConfig) -> Prepared:
        template, environment = await asyncio.to_thread(template_of, config, self._run)
        self._check_guest(template, environment)
        lines: list[str] = []
        snapshot, key = await self._store.get(template, self.progress, lines.append)
        for line in lines:
            log.info("template `%s`: %s", name, line)
        await rehearse(self._store, template, snapshot, key)
        trust: dict[str, Any] = {}
        if self._runtime.plugins.may_intercept:
            trust = guest_trust.of_cell(template.view, template.interpreter.path, self._runtime.interceptor.authority)
        return Prepared(name, template, snapshot, key, environment, trust)

    def _check_guest(self, template: Template, environment: Mapping[str, str]) -> None:
        """Plugins remember what agents see, for their reloads: all templates together."""
        views = [template.view, *(made.template.view for made in self._made.values())]
        variables = dict(environment)
        for made in self._made.values():
            variables.update({name: value for name, value in made.environment.items() if name not in variables})
        self._runtime.plugins.check_guest(
            self._runtime.config, variables, lambda path: any(view.shows(path) for view in views)
        )  # fmt: skip

    async def close(self) -> None:
        for task in list(self._making.values()):
            task.cancel()
        await asyncio.gather(*self._making.values(), return_exceptions=True)


def template_of(config: TemplateConfig, run: RunConfig) -> tuple[Template, dict[str, str]]:
    """The template of a table of the configuration, and its agents' variables. Asks the interpreter, so it takes a while.
    GuestError, TemplateError."""
    variables = dict(run.env if config.env is None else config.env)
    template = _named(config, variables) if config.snapshot is not None else _own(config, run, variables)
    view = template.view
    mounts = run.mount if config.mount is None else config.mount
    add_mounts(view, [parse_mount(text) for text in mounts])
    view.private.append(JOB_DIRECTORY)
    view.cwd = JOB_DIRECTORY
    view.tidy()
    return template, {**default_environment(), **variables}


async def check(
    pool: PoolConfig,
    run: RunConfig,
    before: tuple[PoolConfig, RunConfig],
    make: Callable[[Template], Awaitable[object]] | None = None,
) -> None:
    """PoolError "bad_config" if a template could not be made that is another one than `before`; `make` makes its snapshot."""
    for name in sorted({DEFAULT_TEMPLATE, *pool.templates}):
        config = pool.template(name)
        if config is not None and (run != before[1] or config != before[0].template(name)):
            try:
                template, _ = await asyncio.to_thread(template_of, config, run)
                if make is not None:
                    await make(template)
            except AgentfwError as error:
                raise PoolError("bad_config", f"template `{name}`: {error}", getattr(error, "hint", "")) from None


def _own(config: TemplateConfig, run: RunConfig, variables: Mapping[str, str]) -> Template:
    at_start = template_environment(variables)
    interpreter = find_interpreter(config.python or sys.executable, at_start)
    preload = run.preload if config.preload is None else config.preload
    memory = _memory(config.memory if config.memory is not None else run.memory)
    return Template(interpreter, base_view(interpreter), at_start, tuple(preload), memory)


def _named(config: TemplateConfig, variables: Mapping[str, str]) -> Template:
    """What the table says beside `snapshot` must be what that was made with; what [run] says is for templates made here."""
    memory = None if config.memory is None else _memory(config.memory)
    return Library().template(config.snapshot or "", env=variables, python=config.python, preload=config.preload, memory=memory)


def _memory(text: str | None) -> int:
    try:
        return vm_memory(text)
    except ValueError as error:
        raise TemplateError(f"memory {error}") from None
