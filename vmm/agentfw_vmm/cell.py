"""A cell: one native, jailed process that runs up to 64 VMs, and the worker's end of what it shares with it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from . import _lib, report, saved, sites
from ._lib import CELL_PROGRAM, FLOW_FIRST, QUEUE, RING, Worker, lib, take, view
from .cell_log import CellLog
from .config import CellConfig, encode
from .controls import Controls
from .errors import CellError
from .flows import GuestFlow, asked
from .handler import CellHandler
from .life import JOB, Life
from .report import VmExit, VmStatistics
from .rules import refuses_connections
from .saved import SavedVm, Saver
from .trace_socket import TraceSocket

logger = logging.getLogger("agentfw.vmm")

_EVENT = struct.Struct("<IIIIQQQQQQ")
_START_SECONDS = 30.0
_QUIT_SECONDS = 2.0
_CPUCLOCK_SCHED = 2  # clock ids of processes: ~pid << 3 | this (clock_getcpuclockid(3))
_EMPTY_SECONDS = 1.0
_NOTES = 20  # log lines about one life of a VM
#: The only names of our environment that a cell gets: settings of the sanitizers, for builds with them.
_SANITIZER_ENV = ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS")


class Cell(Controls):
    """One process with its VMs. Make it with `await Cell.start(...)`, end it with `await close()`.

    All methods belong to the event loop's thread. That thread must live as long as the cell: the kernel kills the cell when it
    ends.
    """

    def __init__(self, config: CellConfig, handler: CellHandler, worker: Worker, kept: list[int], calls: TraceSocket) -> None:
        self.worker = worker
        self.scratch = _lib.new_bytes(RING)
        self.pid = 0
        self._config = config
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        save, self._eventfd, *self._runner_fds = kept
        self._saver = Saver(config, save, self._ask_save)
        self._calls = calls
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._cpu_seconds = 0.0
        self._log = CellLog()
        self._vms: dict[int, Life] = {}
        self._events = _lib.new_events(QUEUE)
        self._event_bytes = view(self._events, QUEUE * _EVENT.size)
        self._pending: list[list[tuple[int, int, int, int, int]]] = [[] for _ in self._runner_fds]
        self._flush_due = False
        self._retry: asyncio.TimerHandle | None = None
        self._closing = False
        self._failed: str | None = None
        self._killed = False  # by us
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life

    @classmethod
    async def start(cls, config: CellConfig, handler: CellHandler, program: Path = CELL_PROGRAM) -> Cell:
        """Starts the process and returns once it is jailed and serves. CellError with one line if it does not come to that."""
        if not program.is_file():  # noqa: ASYNC240 (one stat)
            raise CellError(f"{program} is missing: the package was not built (pip install agentfw builds it)")
        opened: list[int] = []  # for the cell only
        kept: list[int] = []  # ours too
        cell: Cell | None = None
        worker: Worker | None = None
        calls = TraceSocket(config.trace, opened)
        try:
            kept.append(saved.save_file())
            records = encode(config, opened, kept[0], calls.theirs)
            worker = lib.afw_worker_new(config.vms, config.runners, records, len(records))
            if _lib.null(worker):
                worker = None
                raise CellError(
                    f"shared memory for {config.vms} VMs and {config.runners} runners: {os.strerror(_lib.last_errno())}"
                )
            try:
                kvm = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                raise CellError(f"/dev/kvm: {error.strerror} (try `agentfw doctor`)") from None
            opened.append(kvm)
            kept.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            kept += [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(config.runners)]
            lib.afw_worker_descriptors(worker, kvm, kept[1], kept[2:])
            cell = cls(config, handler, worker, kept, calls)
            cell._spawn(program, [lib.afw_worker_memory_fd(worker), lib.afw_worker_windows_fd(worker), *kept, *opened])
        except BaseException:
            for fd in kept[cell is not None :]:
                os.close(fd)
            if cell is not None:
                cell._saver.close()
            calls.close()
            if worker is not None:
                lib.afw_worker_free(worker)
            raise
        finally:
            for fd in opened:
                os.close(fd)
        try:
            await cell._started()
        except BaseException:
            cell._closing = True
            cell._kill()
            await cell._gone
            cell._release()
            raise
        return cell

    def _spawn(self, program: Path, descriptors: list[int]) -> None:
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(write, True)
        try:
            self._process = subprocess.Popen(
                [str(program), str(descriptors[0])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=write,
                pass_fds=descriptors,
                cwd="/",
                env={name: os.environ[name] for name in _SANITIZER_ENV if name in os.environ},
            )
        except OSError as error:
            os.close(read)
            raise CellError(f"{program}: {error.strerror}") from None
        finally:
            os.close(write)
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        lib.afw_worker_process(self.worker, self.pid)
        self._log.open(read, self.pid)
        self._loop.add_reader(read, self._log.drain)
        self._loop.add_reader(self._pidfd, self._died)
        self._loop.add_reader(self._eventfd, self._readable)
        self._calls.open(self.live, self._fail)

    async def _started(self) -> None:
        end = time.monotonic() + _START_SECONDS
        pause = 0.0005
        while True:
            state, _, text = _lib.state(self.worker)
            if state == 1:
                return
            if state == 2:
                raise CellError(text or "the cell failed to start without saying why")
            if self._gone.done():
                raise CellError(self._death())
            if time.monotonic() > end:
                raise CellError(f"the cell did not start within {_START_SECONDS:.0f} s{self._log.tail()}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.02)

    async def close(self) -> None:
        """Ends all VMs and the process (killed if it has not gone after 2 s), and frees all. Idempotent."""
        if self._closing:
            await asyncio.shield(self._gone)
            return
        self._closing = True
        for runner in range(len(self._runner_fds)):
            self._command(runner, lib.AFW_CMD_QUIT, 0)
        cancelled: asyncio.CancelledError | None = None
        try:
            await asyncio.wait_for(asyncio.shield(self._gone), _QUIT_SECONDS)
        except TimeoutError:
            logger.warning("cell %d did not end by itself: killed", self.pid)
        except asyncio.CancelledError as error:
            cancelled = error
        self._kill()
        await self._gone
        self._drain_all()
        self._end_all("killed", "the cell was closed")
        self._release()
        if cancelled is not None:
            raise cancelled

    def _release(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._eventfd)
        self._loop.remove_reader(self._log.fd)
        self._log.close()
        self._saver.close()
        self._calls.close()
        os.close(self._eventfd)
        for fd in self._runner_fds:
            os.close(fd)
        lib.afw_worker_free(self.worker)

    def _kill(self) -> None:
        if not self._gone.done() and self._pidfd >= 0:
            self._killed = True
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _died(self) -> None:
        assert self._process is not None
        lib.afw_worker_process(self.worker, 0)
        self.cpu_seconds()  # the last look: after wait() its number may be another's
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self._process.wait()
        self._log.drain()
        self._gone.set_result(None)
        if not self._closing:
            if self._failed is None:
                self._drain_all()
            text = self._failed = self._failed or self._death()
            self._end_all("internal", text)
            self._call(self._handler.cell_failed, text)

    def _death(self) -> str:
        state, _, text = _lib.state(self.worker)
        if state == 2 and text:
            return text
        status = self._process.returncode if self._process else None
        how = f"by signal {-status}" if status is not None and status < 0 else f"with status {status}"
        return f"the cell ended {how}{self._log.tail()}"

    def _fail(self, text: str) -> None:
        """The cell is of no more use: its end, in `_died`, is told to the handler."""
        if self._failed is None:
            self._failed = text
            logger.error("cell %d: %s: killed", self.pid, text)
            self._kill()

    def _end_all(self, kind: report.Kind, text: str) -> None:
        for vm, record in list(self._vms.items()):
            if record.live:
                self._exit(vm, record, VmExit(kind, 0, 0, text))

    # -- VMs

    def boot(self, vm: int, rules: bytes = b"") -> None:
        """Starts the configuration's program in VM `vm`; at its ready call it is saved to `snapshot_out`."""
        self._begin(vm, lib.AFW_CMD_BOOT, 0, rules)

    def restore(self, vm: int, pid: int, rules: bytes = b"", note: bytes = b"", soon: bool = False, later: bool = False) -> None:
        """Starts VM `vm` from `snapshot_in`; its getpid() will be `pid`. `rules` (`compile_rules()`): what it may not do.
        From a SavedVm it goes on where that stood. `pid` must be another than that had; `note` is what its /proc/agentfw says.
        With CellConfig.recycle a VM that ended with kind "code", "signal" or "killed" is put back to the snapshot's state where
        that is certain, and made anew elsewhere (`VmStatistics.recycled` tells). Who may follow whom is the caller's decision.
        `soon`: it is among the next to get a job. What jobs write to is made ready now: less work when it comes, 1 MB until then.
        `later`: it is not: all that the host does for it is done (`standing()`), and it runs when something is sent to it.
        """
        if later and isinstance(self._config.snapshot_in, SavedVm):
            raise ValueError("a copy has its job")
        how = soon << lib.AFW_RESTORE_SOON | later << lib.AFW_RESTORE_LATER
        self._begin(vm, lib.AFW_CMD_RESTORE, pid | how, rules, note)
        self._vms[vm].stands = not later

    async def standing(self, vm: int) -> None:
        """Returns when VM `vm`, restored with `later`, is ready to run, or has ended. The handler is told, too."""
        await self._vms[vm].standing()

    def _begin(self, vm: int, command: int, argument: int, rules: bytes, note: bytes = b"") -> None:
        if not 0 <= vm < self._config.vms:
            raise ValueError(f"VM {vm} of a cell with {self._config.vms}")
        if self.live(vm):
            raise ValueError(f"VM {vm} is running")
        if self._closing or self._failed is not None:
            raise CellError(self._failed or "the cell is closed")
        _check(lib.afw_window_reset(self.worker, vm, True), "I/O window", vm)
        if rules or note:
            _check(lib.afw_worker_rules(self.worker, vm, rules + note, len(rules + note)), "rules", vm)
        record = self._vms[vm] = Life()
        record.unconnected = refuses_connections(rules)
        forked = isinstance(self._config.snapshot_in, SavedVm)  # it has its rules and its job
        record.rules = rules
        record.ruled = bool(rules) or forked or command == lib.AFW_CMD_BOOT
        if forked:
            self.stream(vm, JOB).close()
        self._command(vm % self._config.runners, command, vm, argument, c=len(note), b=len(rules))

    async def save(self, vm: int) -> SavedVm:
        """VM `vm`, which runs, as it stands now; it runs on. CellError if that cannot be, with the reason.
        Not saved: connections (those who go on from it see them reset), bytes in its standard streams, signals on their way.
        """
        if not self.live(vm):
            raise CellError(f"VM {vm} is not running")
        return await self._saver.save(vm, self._vms[vm])

    def _ask_save(self, vm: int, life: object) -> None:
        if not self.live(vm) or self._vms[vm] is not life:
            raise CellError("the VM ended before it was saved")
        self._command(vm % self._config.runners, lib.AFW_CMD_SAVE, vm)

    def rules(self, vm: int, rules: bytes) -> None:
        """Gives VM `vm`, which was restored without rules, those of its agent (`compile_rules()`; empty: none).
        Once, before its job. What is sent to its job stream from here on waits until they are in force. A table that the cell
        refuses ends the VM ("internal"). Nothing if the VM is gone; ValueError if it was booted or forked, or has its rules.
        """
        record = self._vms.get(vm)
        if record is None or not record.live:
            return
        if record.ruled:
            raise ValueError(f"VM {vm} has its rules")
        _check(lib.afw_worker_rules(self.worker, vm, rules, len(rules)), "rules", vm)
        record.ruled = True
        record.rules = rules
        record.unconnected = refuses_connections(rules)
        if not rules:
            return
        record.under_rules = self._loop.create_future()
        self.stream(vm, JOB).gate = record.under_rules
        self._command(vm % self._config.runners, lib.AFW_CMD_RULES, vm, b=len(rules))

    def cpu_seconds(self) -> float:
        """CPU time that the process has used so far, as the kernel counts it: its VMs and all that was done for them."""
        if self._pidfd < 0:
            return self._cpu_seconds
        with contextlib.suppress(OSError):  # it has just died
            self._cpu_seconds = time.clock_gettime(~self.pid << 3 | _CPUCLOCK_SCHED)
        return self._cpu_seconds

    def other_memory(self) -> int:
        """Bytes that its VMs take outside of the process's own memory: windows, and large private files."""
        return 0 if self._gone.done() else int(lib.afw_worker_other_memory(self.worker, self._config.tmp_bytes))

    def stream(self, vm: int, index: int) -> GuestFlow:
        """Stream 0 (stdin), 1 (stdout), 2 (stderr) or 3 (job) of the VM's present or last life."""
        if not 0 <= index < FLOW_FIRST:
            raise ValueError(f"stream {index}")
        record = self._vms.get(vm)
        if record is None:
            raise ValueError(f"VM {vm} was never started")
        flow = record.flows.get(index)
        if flow is None:  # made when somebody wants it: of a thousand VMs that wait for a job nobody does
            flow = record.flows[index] = GuestFlow(self, vm, index, "tcp", "", 0, record.turns)
            if not record.live:
                flow.end(nothing=self._gone.done())
        return flow

    def statistics(self, vm: int) -> VmStatistics:
        return report.statistics(self._shared(vm))

    def cpu_ns(self, vm: int) -> int:
        """`statistics(vm).cpu_ns`, for a fraction of the time."""
        return self._shared(vm).cpu_ns

    @property
    def lost(self) -> Literal["", "killed", "broken"]:
        """How the process was lost, if it was: "killed": somebody else sent it SIGKILL (the kernel when memory is short, an
        operator); "broken": it crashed, or broke its protocol or the jail's rules, for which a guest may be the reason."""
        if self._failed is None:
            return ""
        died = self._process is not None and self._process.returncode == -signal.SIGKILL
        return "killed" if died and not self._killed else "broken"

    @property
    def jail(self) -> int:
        """Bits of what the cell says it gave up: 0 no_new_privs, 1 seccomp, 2 landlock, 3 rlimits, 4 dies with its parent."""
        return _lib.state(self.worker)[1]

    def _shared(self, vm: int) -> _lib.VmStruct:
        if not 0 <= vm < self._config.vms:
            raise ValueError(f"VM {vm} of a cell with {self._config.vms}")
        if not self._mapped():
            raise CellError("the cell is closed")
        return self._shared_copy(vm)

    def _mapped(self) -> bool:
        return not (self._closing and self._gone.done())

    def _usable(self) -> bool:
        return not (self._closing or self._gone.done() or self._failed is not None)

    # -- for flows

    def changed(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def note(self, vm: int, text: str) -> None:
        """To the log, not more often than anybody wants to read it."""
        record = self._vms.get(vm)
        if record is not None:
            record.notes += 1
            if record.notes <= _NOTES:
                last = " (no more of this VM is logged)" if record.notes == _NOTES else ""
                logger.warning("cell %d vm %d %s%s", self.pid, vm, text, last)

    def released(self, flow: GuestFlow) -> None:
        record = self._vms.get(flow.vm)
        if record is not None and flow.index >= FLOW_FIRST and record.flows.get(flow.index) is flow:
            del record.flows[flow.index]

    # -- commands

    def _command(self, runner: int, kind: int, vm: int, a: int = 0, c: int = 0, b: int = 0) -> None:
        self._pending[runner].append((kind, vm, a, b, c))
        self.changed()

    def _flush(self) -> None:
        self._flush_due = False
        if self._gone.done():
            return
        left = False
        for runner, pending in enumerate(self._pending):
            sent = 0
            while sent < len(pending) and lib.afw_worker_command(self.worker, runner, *pending[sent]) == 0:
                sent += 1
            del pending[:sent]
            left = left or bool(pending)
        if lib.afw_worker_flush(self.worker) or left:
            # A runner has 256 commands before it: nobody tells when it took some, so look again.
            if self._retry is not None:
                self._retry.cancel()
            self._retry = self._loop.call_later(0.002, self._flush)

    # -- events

    def _readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)
            self._drain()

    def _drain(self) -> None:
        """One queue's worth of each runner at most: others on this loop get their turn."""
        if self._failed is None and not (self._closing and self._gone.done()) and self._drain_once():
            self._loop.call_soon(self._drain)

    def _drain_all(self) -> None:
        """After the process is gone: what it left in its queues."""
        for _ in range(4):  # it cannot produce more than one queue's worth; a corrupted index must not loop
            if not self._drain_once():
                return

    def _drain_once(self) -> bool:
        more = False
        for runner in range(len(self._runner_fds)):
            count = _lib.events(self.worker, runner, self._events, QUEUE)
            if isinstance(count, str):
                self._fail(f"the cell broke its protocol: {count}")
                return False
            more = more or count == QUEUE
            if not count:
                continue
            for event in _EVENT.iter_unpack(self._event_bytes[: count * _EVENT.size]):
                self._event(runner, *event)
        return more

    def _event(
        self, runner: int, kind: int, vm: int, arg: int, _: int, a: int, b: int, c: int, d: int, e: int, f: int
    ) -> None:  # fmt: skip
        record = self._vms.get(vm)
        if record is None or not record.live:
            # After its exit, or made up: there is nothing to do it to. But the runner waits for its site area.
            if kind == lib.AFW_EV_SITES:
                self._command(runner, lib.AFW_CMD_SITES, vm, 0, c)
            return
        if kind == lib.AFW_EV_FLOW:
            flow = record.flows.get(arg)
            if flow is not None:
                flow.look()
        elif kind == lib.AFW_EV_FLOW_OPEN:
            self._flow_open(vm, record, arg, a, b, c)
        elif kind == lib.AFW_EV_EXIT:
            self._exit(vm, record, report.exit_report(self._shared_copy(vm), self._config.mounts))
        elif kind == lib.AFW_EV_READY:
            self._call(self._handler.vm_ready, vm, a, _positive(b))
        elif kind == lib.AFW_EV_SITES:
            self._sites(runner, vm, record, arg, a, b, c, d)
        elif kind == lib.AFW_EV_RULES:
            record.enforce()
        elif kind == lib.AFW_EV_SIGHT:
            record.looked()
        elif kind == lib.AFW_EV_STANDS and record.stand():
            self._call(self._handler.vm_ready, vm, 0, 0)
        elif kind == lib.AFW_EV_SAVED:
            self._saver.saved(vm, a, _positive(b))
        elif kind == lib.AFW_EV_ERROR:
            shared = self._shared_copy(vm)  # keeps the memory that .text points into
            self._exit(vm, record, VmExit("internal", 0, 0, _lib.string(shared.text) or "the cell failed for this VM"))

    def _shared_copy(self, vm: int) -> _lib.VmStruct:
        copy = _lib.new_vm()
        lib.afw_worker_vm(self.worker, vm, copy)
        return copy

    def _exit(self, vm: int, record: Life, end: VmExit) -> None:
        self._calls.ended(vm, end)
        record.live = False
        record.enforce()
        record.stand()
        record.looked()
        self._saver.gone(vm)
        for flow in list(record.flows.values()):
            flow.end()
        if not self._closing and self._failed is None:
            self._loop.call_later(_EMPTY_SECONDS, self._empty, vm, record)
        self._call(self._handler.vm_exited, vm, end)

    def _empty(self, vm: int, record: Life) -> None:
        """Its place has stayed so: its window goes, 16 MiB if it wrote to all of it."""
        if self._vms.get(vm) is record and not self._closing and self._failed is None:
            for index in range(FLOW_FIRST):
                self.stream(vm, index)  # keeps what it sent
            lib.afw_window_reset(self.worker, vm, False)

    def _flow_open(self, vm: int, record: Life, index: int, a: int, b: int, c: int) -> None:
        if index < FLOW_FIRST or index in record.flows:
            self.note(vm, f"opened flow {index}, which is in use: killed")
            self.kill(vm)
            return
        kind, address, port, error = asked(a, b, c)
        error = errno.EPERM if record.unconnected else error
        flow = GuestFlow(self, vm, index, kind, address, port, record.turns)
        record.flows[index] = flow
        lib.afw_flow_accept(self.worker, vm, index)
        if error:
            flow.failed(error)
        else:
            self._call(self._handler.flow_opened, flow)

    def _sites(self, runner: int, vm: int, record: Life, kind: int, address: int, size: int, request: int, offset: int) -> None:
        area = lib.afw_worker_site_area(self.worker, runner)
        if not record.sites.admit(size):
            self._command(runner, lib.AFW_CMD_SITES, vm, 0, request)
            return
        code = take(area, size)  # the one look at it; the decoder works on this copy

        async def answer() -> None:
            found = await sites.find(code, kind, offset, record.sites)
            if self._gone.done() or self._closing:
                return
            lib.afw_worker_site_answer(self.worker, runner, found.packed, len(found.packed))
            self._command(runner, lib.AFW_CMD_SITES, vm, found.count | found.refused << 32, request)

        task = self._loop.create_task(answer())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception:
            logger.exception("cell %d: handler failed", self.pid)


def _check(result: int, what: str, vm: int) -> None:
    if result < 0:
        raise CellError(f"{what} of VM {vm}: {os.strerror(-result)}")


def _positive(b: int) -> int:
    """0 or -errno in 64 bits -> errno."""
    return (1 << 64) - b & 0xFFFF if b else 0
