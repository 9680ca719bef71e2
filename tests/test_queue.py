"""Queues between worker and cell, and a cell's process: starting, dying, misbehaving. The cell's side is played by Python."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from agentfw.strace import Strace
from agentfw_vmm import Cell, CellConfig, CellError, Mount, _lib

from .cell_peer import C, Handler, Peer
from .descriptors import left, opened

ROOT = Path(__file__).parent.parent


def test_more_events_than_the_queue_holds() -> None:
    """1,000 events through 256 entries: in order, and the stalled producer is told."""

    async def body() -> None:
        peer = Peer(vms=4, runners=2)
        try:
            for vm in range(4):
                peer.cell.restore(vm, 1)
            await peer.settle()
            for fd in peer.runner_fds:
                os.eventfd_read(fd)
            sent = {0: 0, 1: 0}
            while any(count < 500 for count in sent.values()):
                for runner in (0, 1):
                    while sent[runner] < 500:
                        if not peer.memory.event(runner, C["AFW_EV_READY"], runner, a=sent[runner]):
                            break
                        sent[runner] += 1
                stalled = [runner for runner in (0, 1) if sent[runner] < 500]
                peer.signal()
                for _ in range(8):
                    await asyncio.sleep(0)
                for runner in stalled:
                    assert os.eventfd_read(peer.runner_fds[runner])
                    assert peer.memory.index(runner, "event_stalled") == 0
            await peer.settle()
            for runner in (0, 1):
                assert [size for vm, size, _ in peer.handler.ready if vm == runner] == list(range(500))
        finally:
            peer.close()

    asyncio.run(body())


def test_more_commands_than_the_queue_holds() -> None:
    async def body() -> None:
        peer = Peer(vms=1)
        try:
            peer.cell.boot(0)
            for number in range(1000):
                peer.cell.signal(0, number % 64 + 1)
            got: list[tuple[int, int, int, int]] = []
            while len(got) < 1001:
                await asyncio.sleep(0.001)
                got += peer.memory.commands(0)
            assert got[0][0] == C["AFW_CMD_BOOT"]
            assert [a for _, _, a, _ in got[1:]] == [number % 64 + 1 for number in range(1000)]
        finally:
            peer.close()

    asyncio.run(body())


def test_wake_survives_a_full_queue() -> None:
    async def body() -> None:
        peer = Peer(vms=1)
        try:
            peer.cell.boot(0)
            for _ in range(255):
                peer.cell.signal(0, 1)
            await peer.settle()
            await peer.cell.stream(0, 0).send(b"x")
            await peer.settle()
            assert len(peer.memory.commands(0)) == 256
            for _ in range(1000):
                await asyncio.sleep(0.001)
                if found := peer.memory.commands(0):
                    break
            assert [kind for kind, *_ in found] == [C["AFW_CMD_WAKE"]]
        finally:
            peer.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ((99, 0), "unknown event type"),
        ((0, 0), "unknown event type"),
        ((C["AFW_EV_FLOW"], 2), "not this runner's"),
        ((C["AFW_EV_EXIT"], 1), "not this runner's"),
        ((C["AFW_EV_FLOW"], 0xFFFFFFFF), "not this runner's"),
        ((C["AFW_EV_FLOW"], 0, 128), "flow index"),
        ((C["AFW_EV_FLOW_OPEN"], 0, 0xFFFFFFFF), "flow index"),
        ((C["AFW_EV_SITES"], 0, 1, 0, C["AFW_SITE_AREA"] + 1), "site request"),
        ((C["AFW_EV_SITES"], 0, 77, 0, 10), "site request"),
        (None, "queue index"),
    ],
)
def test_library_refuses_impossible_events(event: tuple[int, ...] | None, text: str) -> None:
    async def body() -> None:
        peer = Peer(vms=2, runners=2)
        try:
            if event is None:
                peer.memory.set_index(0, "event_tail", 257)
            else:
                assert peer.memory.event(0, *event)
            found = _lib.events(peer.cell.worker, 0, _lib.new_events(8), 8)
            assert isinstance(found, str)
            assert text in found
        finally:
            peer.close()

    asyncio.run(body())


def test_site_requests_are_answered_even_for_dead_vms_and_give_their_memory_back() -> None:
    async def body() -> None:
        peer = Peer(vms=2)
        try:
            fd = _lib.lib.afw_worker_memory_fd(peer.cell.worker)
            peer.cell.restore(1, 1)
            await peer.settle()
            peer.memory.commands(0)
            at, size = peer.memory.header("site_offset"), 8 << 20
            for vm in (0, 1):  # VM 0 was never started
                peer.memory.memory[at : at + size] = b"\x90" * size
                before = os.fstat(fd).st_blocks * 512
                assert peer.memory.event(0, C["AFW_EV_SITES"], vm, C["AFW_SITES_MEMORY"], 0x400000, size, 5 + vm)
                peer.signal()
                commands: list[tuple[int, int, int, int]] = []
                while not commands:
                    await asyncio.sleep(0.001)
                    commands = peer.memory.commands(0)
                assert commands == [(C["AFW_CMD_SITES"], vm, 0, 5 + vm)]
            assert os.fstat(fd).st_blocks * 512 <= before - size
        finally:
            peer.close()

    asyncio.run(body())


def test_numbers_out_of_range_are_refused() -> None:
    for vms, runners in ((0, 1), (65, 1), (1, 0), (1, 5)):
        assert _lib.null(_lib.lib.afw_worker_new(vms, runners, b"", 0))


def test_memory_is_sealed() -> None:
    worker = _lib.lib.afw_worker_new(1, 1, b"", 0)
    try:
        for fd in (_lib.lib.afw_worker_memory_fd(worker), _lib.lib.afw_worker_windows_fd(worker)):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, 0)  # a cell that did this would have the worker die of SIGBUS
            assert not os.get_inheritable(fd)
    finally:
        _lib.lib.afw_worker_free(worker)


# -- a process


def program(tmp_path: Path, body: str) -> Path:
    """An executable that plays the cell: `m` is the memory, `wait(type)` gives the next such command, `tell()` signals."""
    file = tmp_path / "cell"
    text = f"""\
    #!{sys.executable} -S
    import os, sys, time, signal
    sys.path[:0] = {[path for path in sys.path if path] + [str(ROOT)]!r}
    from tests.cell_peer import C, Guest, Memory, offset
    import struct, mmap
    probe = mmap.mmap(int(sys.argv[1]), 4096)
    windows = struct.unpack_from("<i", probe, offset("afw_cell_header", "windows_fd"))[0]
    m = Memory(int(sys.argv[1]), windows)
    def tell():
        os.eventfd_write(m.header("worker_eventfd"), 1)
    queue = []
    def wait(kind):
        while True:
            while queue:
                command = queue.pop(0)
                if command[0] == C["AFW_CMD_QUIT"]:
                    sys.exit(0)
                if command[0] == kind:
                    return command
            queue.extend(m.commands(0))
            time.sleep(0.001)
    def serve():
        m.set_header("state", 1)
    """
    file.write_text(textwrap.dedent(text) + textwrap.dedent(body))
    file.chmod(0o755)
    if preload := os.environ.get("LD_PRELOAD"):  # a build with sanitizers: a cell gets no environment, so bring it along
        wrapper = tmp_path / "wrapper"
        settings = f"LD_PRELOAD='{preload}' ASAN_OPTIONS='{os.environ.get('ASAN_OPTIONS', '')}'"
        wrapper.write_text(f'#!/bin/sh\n{settings} exec {sys.executable} -S {file} "$@"\n')
        wrapper.chmod(0o755)
        return wrapper
    return file


FOREVER = "\n    wait(-1)\n"


def start(tmp_path: Path, body: str, test, config: CellConfig | None = None) -> Handler:
    handler = Handler()

    async def main() -> None:
        before = opened()
        cell = await Cell.start(config or CellConfig(vms=2), handler, program(tmp_path, body))
        try:
            await asyncio.wait_for(test(cell, handler), 60)
        finally:
            await cell.close()
        await cell.close()
        assert not left(before)
        with pytest.raises(ProcessLookupError):
            os.kill(cell.pid, 0)

    asyncio.run(main())
    return handler


@pytest.mark.kvm
def test_start_and_close(tmp_path: Path) -> None:
    environment: list[bytes] = []

    async def test(cell: Cell, handler: Handler) -> None:
        environment.append(Path(f"/proc/{cell.pid}/environ").read_bytes())  # noqa: ASYNC240
        cell.restore(1, 77)
        await handler.until(lambda: handler.ready)

    body = """
    serve()
    kind, vm, pid, _ = wait(C["AFW_CMD_RESTORE"])
    m.event(0, C["AFW_EV_READY"], vm, a=pid, b=(1 << 64) - 28)
    tell()
    """
    handler = start(tmp_path, body + FOREVER, test)
    assert environment == [b""] or "LD_PRELOAD" in os.environ
    assert handler.ready == [(1, 77, 28)]
    assert [(vm, report.kind) for vm, report in handler.exits] == [(1, "killed")]
    assert not handler.failures


@pytest.mark.kvm
def test_descriptors_and_records_reach_the_cell(tmp_path: Path) -> None:
    """Every record of the configuration, as the cell would parse it."""
    (tmp_path / "dir").mkdir()
    config = CellConfig(
        vms=1,
        memory=123 << 20,
        mounts=[Mount("/data", tmp_path / "dir", writable=True), Mount("/etc/x", tmp_path, system=True)],
        files={"/etc/hosts": b"127.0.0.1 localhost\n", "/run": (0o555, b"#!")},
        symlinks={"/bin": "usr/bin"},
        program="/usr/bin/python3",
        argv=["python3", "-c", "pass"],
        env={"LANG": "C.UTF-8"},
        snapshot_out=tmp_path / "snapshot",
        key=bytes(range(32)),
        private_dirs=["/home/agent"],
        trace=Strace(sys.stderr).tracer(str),
    )
    body = """
    at, end, records = m.header("config_offset"), m.header("config_offset") + m.header("config_size"), []
    while at < end:
        kind, size = struct.unpack_from("<II", m.memory, at)
        payload = bytes(m.memory[at + 8 : at + 8 + size])
        if kind == C["AFW_REC_MOUNT"]:
            fd, flags = struct.unpack_from("<II", payload)
            payload = os.readlink(f"/proc/self/fd/{fd}").encode() + b" %d " % flags + payload[8:]
        if kind == C["AFW_REC_SNAPSHOT_OUT"]:
            os.write(struct.unpack("<I", payload)[0], b"saved")
        if kind == C["AFW_REC_TRACE"]:
            import socket
            told = socket.socket(fileno=os.dup(struct.unpack_from("<I", payload)[0]))
            payload = (b"seqpacket" if told.type == socket.SOCK_SEQPACKET else b"?") + payload
        records.append((kind, payload))
        at += 8 + (size + 7) // 8 * 8
    os.fstat(m.header("kvm_fd"))
    with open("RECORDS", "w") as file:
        file.write(repr(records))
    m.set_header("state", 2)  # the last: who waits for it reads the file
    """.replace("RECORDS", str(tmp_path / "records"))

    async def main() -> None:
        with pytest.raises(CellError):
            await Cell.start(config, Handler(), program(tmp_path, body))

    asyncio.run(main())
    records = eval((tmp_path / "records").read_text())
    assert (tmp_path / "snapshot").read_bytes() == b"saved"
    assert (C["AFW_REC_MOUNT"], str(tmp_path / "dir").encode() + b" 1 /data") in records
    assert (C["AFW_REC_MOUNT"], str(tmp_path).encode() + b" 2 /etc/x") in records
    assert (C["AFW_REC_MEMORY"], (123 << 20).to_bytes(8, "little")) in records
    assert [payload for kind, payload in records if kind == C["AFW_REC_ARG"]] == [b"python3", b"-c", b"pass"]
    assert (C["AFW_REC_ENV"], b"LANG=C.UTF-8") in records
    assert (C["AFW_REC_FILE"], b"\x6d\x01\0\0\x04\0\0\0/run#!") in records
    assert (C["AFW_REC_SYMLINK"], b"\x04\0\0\0/binusr/bin") in records
    assert (C["AFW_REC_KEY"], bytes(range(32))) in records
    (calls,) = [payload for kind, payload in records if kind == C["AFW_REC_TRACE"]]
    assert calls.startswith(b"seqpacket") and (len(calls) - 9) % 16 == 8
    assert [payload[16:] for kind, payload in records if kind == C["AFW_REC_TMP"]] == [b"/home/agent\0"]
    assert records[-1] == (C["AFW_REC_END"], b"")


@pytest.mark.kvm
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("sys.exit(3)", "with status 3"),
        ("os.kill(os.getpid(), 9)", "by signal 9"),
        ("print('no jail for you', file=sys.stderr); sys.exit(1)", "no jail for you"),
        (
            "a = offset('afw_cell_header', 'text'); m.memory[a:a+11] = b'landlock: x'; m.set_header('state', 2); wait(-1)",
            "landlock: x",
        ),
    ],
    ids=["exit", "killed", "stderr", "text"],
)
def test_cell_that_does_not_start(tmp_path: Path, body: str, text: str) -> None:
    async def main() -> None:
        before = opened()
        with pytest.raises(CellError, match=text):
            await Cell.start(CellConfig(), Handler(), program(tmp_path, body))
        assert not left(before)

    asyncio.run(main())


def test_errors_before_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        before = opened()
        for config, text in (
            (CellConfig(mounts=[Mount("/x", "/nonexistent")]), "/nonexistent: No such file"),
            (CellConfig(mounts=[Mount("relative", "/")]), "guest path"),
            (CellConfig(key=b"short"), "32"),
            (CellConfig(argv=["a\0b"]), "NUL"),
            (CellConfig(vms=1000), "1000 VMs"),
        ):
            with pytest.raises(CellError, match=text):
                await Cell.start(config, Handler(), program(tmp_path, ""))
        with pytest.raises(CellError, match="missing"):
            await Cell.start(CellConfig(), Handler(), tmp_path / "absent")
        assert not left(before)

    asyncio.run(main())


@pytest.mark.kvm
@pytest.mark.parametrize(
    ("act", "text"),
    [
        ("os.kill(os.getpid(), 6)", "by signal 6"),
        ("m.event(0, 42, 0); tell()", "unknown event type"),
        ("m.set_index(0, 'event_tail', 5000); tell()", "queue index"),
        ("m.event(0, C['AFW_EV_FLOW'], 0, 4000); tell()", "flow index"),
    ],
    ids=["dies", "type", "index", "flow"],
)
def test_cell_that_breaks(tmp_path: Path, act: str, text: str) -> None:
    """Killed, each of its VMs reported once, the failure told once; the worker goes on."""

    async def test(cell: Cell, handler: Handler) -> None:
        cell.boot(0)
        cell.restore(1, 5)
        waiting = asyncio.ensure_future(cell.stream(0, 1).receive())
        await handler.until(lambda: handler.failures)
        assert await asyncio.wait_for(waiting, 5) == b""
        with pytest.raises(CellError):
            cell.boot(0)
        cell.kill(0)

    handler = start(tmp_path, f'    serve()\n    wait(C["AFW_CMD_RESTORE"])\n    {act}\n' + FOREVER, test)
    assert len(handler.failures) == 1
    assert text in handler.failures[0]
    assert sorted((vm, report.kind) for vm, report in handler.exits) == [(0, "internal"), (1, "internal")]


@pytest.mark.kvm
def test_cell_that_does_not_quit_is_killed(tmp_path: Path) -> None:
    async def test(cell: Cell, handler: Handler) -> None:
        cell.boot(0)

    handler = start(tmp_path, "\nserve()\ntime.sleep(600)\n", test)
    assert [(vm, report.kind) for vm, report in handler.exits] == [(0, "killed")]


@pytest.mark.kvm
def test_exit_events_and_reuse_of_a_number(tmp_path: Path) -> None:
    body = """
    serve()
    for code in (1, 2, 3):
        _, vm, _, _ = wait(C["AFW_CMD_BOOT"])
        m.set_vm(vm, "exit_kind", C["AFW_EXIT_CODE"])
        m.set_vm(vm, "exit_code", code)
        m.set_vm(vm, "text", b"escape \\x1b[31m\\n and more")
        m.event(0, C["AFW_EV_EXIT"], vm)
        m.event(0, C["AFW_EV_EXIT"], vm)
        m.event(0, C["AFW_EV_FLOW_OPEN"], vm, 4, 1 | 2 << 16)
        tell()
    """

    async def test(cell: Cell, handler: Handler) -> None:
        for round in (1, 2, 3):
            cell.boot(1)
            with pytest.raises(ValueError, match="running"):
                cell.boot(1)
            await handler.until(lambda count=round: len(handler.exits) == count)
            assert not cell.live(1)

    handler = start(tmp_path, body + FOREVER, test)
    assert [(vm, report.code) for vm, report in handler.exits] == [(1, 1), (1, 2), (1, 3)]
    assert handler.exits[0][1].text == "escape ?[31m? and more"
    assert not handler.flows


@pytest.mark.kvm
def test_exhausted_budget_is_answered_at_once(tmp_path: Path) -> None:
    body = """
    serve()
    _, vm, _, _ = wait(C["AFW_CMD_BOOT"])
    for request in range(4):
        m.event(0, C["AFW_EV_SITES"], vm, C["AFW_SITES_MEMORY"], 0x400000, C["AFW_SITE_AREA"], request)
        tell()
        assert wait(C["AFW_CMD_SITES"])[2:] == (0, request)
    m.event(0, C["AFW_EV_READY"], vm)
    tell()
    """

    async def test(cell: Cell, handler: Handler) -> None:
        cell.boot(0)
        cell._vms[0].sites.bytes = 2 * C["AFW_SITE_AREA"] + 1
        await handler.until(lambda: handler.ready or handler.failures)
        assert cell._vms[0].sites.bytes < 0

    assert not start(tmp_path, body + FOREVER, test).failures


@pytest.mark.kvm
def test_sites_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code = bytes.fromhex("90" * 40 + "b827000000" + "0f05" + "c3" + "90" * 40)
    body = f"""
    serve()
    _, vm, _, _ = wait(C["AFW_CMD_BOOT"])
    at = m.header("site_offset")
    code = {code!r}
    for request in (7, 8):
        m.memory[at : at + len(code)] = code
        m.event(0, C["AFW_EV_SITES"], vm, C["AFW_SITES_FILE"], 0x400000, len(code), request)
        tell()
        kind, _, count, answered = wait(C["AFW_CMD_SITES"])
        assert (count, answered) == (1, request), (count, answered)
        assert struct.unpack_from("<IBBBB", m.memory, at) == (40, 7, 1, 2, 0)
    m.event(0, C["AFW_EV_READY"], vm)
    tell()
    """

    async def test(cell: Cell, handler: Handler) -> None:
        cell.boot(0)
        await handler.until(lambda: handler.ready or handler.failures)

    handler = start(tmp_path, body + FOREVER, test)
    assert not handler.failures
    assert len(list((tmp_path / "cache/agentfw/sites").iterdir())) == 1


def test_a_signal_goes_to_a_thread_of_that_cell_or_to_nobody() -> None:
    """A cell says which of its threads runs a guest, and may lie."""

    async def body(child: subprocess.Popen[bytes], heard: list[int]) -> None:
        peer = Peer(vms=1)
        try:
            peer.cell.restore(0, 1)
            await peer.settle()
            _lib.lib.afw_worker_process(peer.cell.worker, child.pid)
            for lie in (threading.get_native_id(), os.getpid(), 1, 2**31, 2**32 - 1, 0):
                peer.memory.set_index(0, "inside", lie)
                peer.cell.signal(0, 1)
                await peer.settle()
            assert not heard and child.poll() is None
            peer.memory.set_index(0, "inside", child.pid)
            _lib.lib.afw_worker_process(peer.cell.worker, 0)  # it is gone: nobody is meant
            peer.cell.signal(0, 1)
            await peer.settle()
            assert child.poll() is None
            _lib.lib.afw_worker_process(peer.cell.worker, child.pid)
            peer.cell.signal(0, 1)
            await peer.settle()
            assert child.wait(10) == -signal.SIGUSR1
        finally:
            peer.close()

    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        asyncio.run(body(child, heard))
    finally:
        signal.signal(signal.SIGUSR1, before)
        child.kill()
        child.wait()
