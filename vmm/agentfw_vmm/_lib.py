"""The border to the C library: the only module that imports `_vmm`.

`lib` is typed as a Protocol, handles as opaque classes, so that cffi's `Any` stays in here. Functions return a count or -errno
(vmm/native/lib/worker.h says which).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

from . import _vmm

SITE_AREA: int = _vmm.lib.AFW_SITE_AREA
RING: int = _vmm.lib.AFW_RING
FLOWS: int = _vmm.lib.AFW_FLOWS
FLOW_FIRST: int = _vmm.lib.AFW_FLOW_FIRST
QUEUE: int = _vmm.lib.AFW_QUEUE
CELL_VMS: int = _vmm.lib.AFW_CELL_VMS
CELL_RUNNERS: int = _vmm.lib.AFW_CELL_RUNNERS

SNAPSHOT_HEADER: int = _vmm.ffi.sizeof("struct afw_snapshot_header")

CELL_PROGRAM: Path = Path(__file__).parent / "agentfw-cell"


class Worker:
    """A `struct afw_worker *`."""


class Bytes:
    """A `uint8_t *` or an array of it."""


class Events:
    """A `struct afw_event[]`."""


class DgramStruct(Protocol):
    len: int
    port: int
    family: int
    error: int
    addr: Any


class VmStruct(Protocol):
    """`struct afw_vm_shm`, a copy (cell.h documents the fields)."""

    state: int
    cpu_ns: int
    exit_kind: int
    exit_code: int
    exit_signal: int
    fault_rip: int
    fault_addr: int
    fault_flags: int
    fault_code_len: int
    fault_regs: Any
    fault_code: Any
    fault_map_start: int
    fault_map_offset: int
    fault_module: Any
    text: Any


class Lib(Protocol):
    AFW_ABI: int
    AFW_SNAPSHOT_MAGIC: int
    AFW_SNAPSHOT_FORMAT: int
    AFW_SNAPSHOT_EXTENTS: int
    AFW_EV_READY: int
    AFW_EV_FLOW_OPEN: int
    AFW_EV_FLOW: int
    AFW_EV_EXIT: int
    AFW_EV_SITES: int
    AFW_EV_ERROR: int
    AFW_EV_SAVED: int
    AFW_EV_RULES: int
    AFW_EV_STANDS: int
    AFW_EV_SIGHT: int
    AFW_CMD_BOOT: int
    AFW_CMD_RESTORE: int
    AFW_RESTORE_SOON: int
    AFW_RESTORE_LATER: int
    AFW_CMD_SIGNAL: int
    AFW_CMD_KILL: int
    AFW_CMD_SITES: int
    AFW_CMD_QUIT: int
    AFW_CMD_SAVE: int
    AFW_CMD_SHARE: int
    AFW_CMD_LIMIT: int
    AFW_CMD_RULES: int
    AFW_CMD_DISCARD: int
    AFW_CMD_SIGHT: int
    AFW_G_TX_EOF: int
    AFW_G_CLOSED: int
    AFW_G_RX_OFF: int
    AFW_H_OPEN: int
    AFW_H_FAILED: int
    AFW_HF_RX_EOF: int
    AFW_HF_RESET: int
    AFW_KIND_TCP: int
    AFW_KIND_UDP: int
    AFW_SITES_FILE: int
    AFW_SITES_MEMORY: int
    AFW_SITES_LAZY: int
    AFW_EXIT_CODE: int
    AFW_EXIT_SIGNAL: int
    AFW_EXIT_KILLED: int
    AFW_EXIT_MEMORY: int
    AFW_EXIT_INTERNAL: int
    AFW_EXIT_HOSTILE: int
    AFW_OP_OPEN: int
    AFW_OP_READDIR: int
    AFW_OP_READLINK: int
    AFW_OP_ACCESS: int
    AFW_OP_MKDIR: int
    AFW_OP_UNLINK: int
    AFW_OP_RENAME: int
    AFW_OP_MKNOD: int
    AFW_OP_SYMLINK: int
    AFW_OP_LINK: int
    AFW_OP_CHMOD: int
    AFW_OP_UTIMENS: int
    AFW_OP_TRUNCATE: int
    AFW_OP_FSYNC: int
    AFW_OP_STATFS: int
    AFW_OP_CHDIR: int
    AFW_OP_GETCWD: int
    AFW_OP_FLOCK: int
    AFW_OP_FCHMOD: int
    AFW_OP_FALLOCATE: int
    AFW_OP_FLOW_OPEN: int
    AFW_RULES_SIZE: int
    AFW_NOTE_SIZE: int
    AFW_SIGHT_OTHER: int
    AFW_RULES_MAX: int
    AFW_RULES_PARTS: int
    AFW_RULES_RMDIR: int
    AFW_RULE_READ: int
    AFW_RULE_DENY: int
    AFW_RULE_HIDE: int
    AFW_PART_NAME: int
    AFW_PART_GLOB: int
    AFW_PART_DEPTH: int
    AFW_GLOB_STAR: int
    AFW_GLOB_ANY: int
    AFW_GLOB_SET: int
    AFW_GLOB_NOT: int
    AFW_GLOB_TEXT: int

    def afw_worker_new(self, vms: int, runners: int, config: bytes, config_size: int, /) -> Worker: ...
    def afw_worker_free(self, w: Worker, /) -> None: ...
    def afw_worker_memory_fd(self, w: Worker, /) -> int: ...
    def afw_worker_windows_fd(self, w: Worker, /) -> int: ...
    def afw_worker_descriptors(self, w: Worker, kvm_fd: int, worker_eventfd: int, runner_eventfd: list[int], /) -> None: ...
    def afw_worker_process(self, w: Worker, pid: int, /) -> None: ...
    def afw_worker_state(self, w: Worker, jail: Any, text: Any, /) -> int: ...
    def afw_worker_events(self, w: Worker, runner: int, out: Events, room: int, text: Any, /) -> int: ...
    def afw_worker_command(self, w: Worker, runner: int, kind: int, vm: int, a: int, b: int, c: int, /) -> int: ...
    def afw_worker_flush(self, w: Worker, /) -> int: ...
    def afw_worker_vm(self, w: Worker, vm: int, out: VmStruct, /) -> None: ...
    def afw_worker_site_area(self, w: Worker, runner: int, /) -> Bytes: ...
    def afw_worker_site_answer(self, w: Worker, runner: int, packed: bytes, size: int, /) -> int: ...
    def afw_worker_rules(self, w: Worker, vm: int, rules: bytes, size: int, /) -> int: ...
    def afw_worker_sight(self, w: Worker, vm: int, out: Bytes, /) -> int: ...
    def afw_worker_other_memory(self, w: Worker, most: int, /) -> int: ...
    def afw_window_reset(self, w: Worker, vm: int, keep: bool, /) -> int: ...
    def afw_flow_accept(self, w: Worker, vm: int, flow: int, /) -> None: ...
    def afw_flow_state(self, w: Worker, vm: int, flow: int, hstate: int, error: int, local_port: int, /) -> None: ...
    def afw_flow_reset(self, w: Worker, vm: int, flow: int, error: int, /) -> None: ...
    def afw_flow_flags(self, w: Worker, vm: int, flow: int, hflags: int, /) -> None: ...
    def afw_flow_free(self, w: Worker, vm: int, flow: int, /) -> None: ...
    def afw_flow_gflags(self, w: Worker, vm: int, flow: int, /) -> int: ...
    def afw_flow_pending(self, w: Worker, vm: int, flow: int, /) -> int: ...
    def afw_flow_unread(self, w: Worker, vm: int, flow: int, /) -> int: ...
    def afw_flow_discard(self, w: Worker, vm: int, flow: int, /) -> None: ...
    def afw_flow_read(self, w: Worker, vm: int, flow: int, out: Bytes, room: int, /) -> int: ...
    def afw_flow_write(self, w: Worker, vm: int, flow: int, data: Bytes, size: int, /) -> int: ...
    def afw_flow_read_datagram(self, w: Worker, vm: int, flow: int, head: DgramStruct, out: Bytes, /) -> int: ...
    def afw_flow_write_datagram(self, w: Worker, vm: int, flow: int, head: DgramStruct, data: Bytes, /) -> int: ...
    def afw_sites_far_targets(self, code: Bytes, size: int, bitmap: Bytes, /) -> None: ...


lib = cast(Lib, _vmm.lib)
_ffi = _vmm.ffi

#: A writable view onto foreign memory, without a copy.
view = cast("Callable[[Any, int], Any]", _ffi.buffer)


def take(pointer: Any, size: int) -> bytes:
    """A copy of foreign memory."""
    return bytes(_ffi.buffer(pointer, size))


#: A pointer to the bytes of a Python buffer, which must outlive its use.
pointer = cast("Callable[[bytes | bytearray | memoryview], Bytes]", _ffi.from_buffer)


def null(handle: Worker) -> bool:
    return bool(handle == _ffi.NULL)


def last_errno() -> int:
    """errno as the last library call left it."""
    return int(_ffi.errno)


def new_bytes(size: int) -> Bytes:
    return cast(Bytes, _ffi.new("uint8_t[]", size))


def new_events(count: int) -> Events:
    return cast(Events, _ffi.new("struct afw_event[]", count))


def new_datagram() -> DgramStruct:
    return cast(DgramStruct, _ffi.new("struct afw_dgram *"))


def new_vm() -> VmStruct:
    return cast(VmStruct, _ffi.new("struct afw_vm_shm *"))


def string(field: Any) -> str:
    """A NUL-terminated char array as text for people: one line, nothing that a terminal would act on."""
    raw: bytes = _ffi.string(field)
    return "".join(c if c.isprintable() else "?" for c in raw.decode("utf-8", "replace"))


def state(w: Worker) -> tuple[int, int, str]:
    """The cell's state, jail bits and text."""
    jail = _ffi.new("uint32_t *")
    text = _ffi.new("char[512]")
    value = lib.afw_worker_state(w, jail, text)
    return value, int(jail[0]), string(text)


def events(w: Worker, runner: int, out: Events, room: int) -> int | str:
    """The number of events copied to `out`, or what the cell did wrong."""
    text = _ffi.new("char[128]")  # this call's own: other threads have cells, too, and C code runs without the GIL
    count = lib.afw_worker_events(w, runner, out, room, text)
    return count if count >= 0 else string(text)


def counters(vm: VmStruct) -> tuple[int, ...]:
    """From `exits` to `private_pages`. PERF: by their names they would take ten times as long, at the end of each job."""
    return _COUNTERS.unpack_from(view(vm, _COUNTERS_AT + _COUNTERS.size), _COUNTERS_AT)


_COUNTERS = struct.Struct("<16QI4x6Q")
_COUNTERS_AT: int = _ffi.offsetof("struct afw_vm_shm", "exits")


def sight(w: Worker, vm: int) -> bytes:
    """What `afw_worker_sight` copies."""
    out = _unset("uint8_t[]", _vmm.lib.AFW_SIGHT_SIZE)  # its own, as above
    size = lib.afw_worker_sight(w, vm, out)
    return take(out, size) if size > 0 else b""


_unset = _ffi.new_allocator(should_clear_after_alloc=False)


def needs() -> list[tuple[str, int, int]]:
    """CPU features that snapshots may need: name, and word and bit in `afw_snapshot_header.needs`."""
    word, bit, must = _ffi.new("uint32_t *"), _ffi.new("uint32_t *"), _ffi.new("int *")
    found: list[tuple[str, int, int]] = []
    while (name := _vmm.lib.afw_need(len(found), word, bit, must)) != _ffi.NULL:
        found.append((_ffi.string(name).decode("ascii"), int(word[0]), int(bit[0])))
    return found


def snapshot_header(data: bytes) -> Any:
    """A `struct afw_snapshot_header`, copied; None: `data` is too short."""
    head = _ffi.new("struct afw_snapshot_header *")
    if len(data) < _ffi.sizeof(head[0]):
        return None
    _ffi.memmove(head, data, _ffi.sizeof(head[0]))
    return head


def structs() -> dict[str, tuple[int, dict[str, tuple[int, int]]]]:
    """Of every struct of the border as cffi sees it: its size, and offset and size of each field (for tests)."""
    found = {}
    _, tags, _ = _ffi.list_types()
    for tag in tags:
        if tag != "afw_worker":  # opaque, and cffi aborts when asked for the fields of such a one
            kind = _ffi.typeof(f"struct {tag}")
            found[tag] = (_ffi.sizeof(kind), {name: (field.offset, _ffi.sizeof(field.type)) for name, field in kind.fields})
    return found


def constants() -> dict[str, int]:
    """Every AFW_ constant as the C compiler saw it (for tests)."""
    return {name: getattr(_vmm.lib, name) for name in dir(_vmm.lib) if name.startswith("AFW_")}
