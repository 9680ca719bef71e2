"""What an interpreter that waits in a VM is told to run, and how it says that it begins (docs/internals.md, "Job stream")."""

from __future__ import annotations

import asyncio
import marshal
import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from agentfw_vmm import GuestFlow

from .guestfs import HOME

ACK_SECONDS = 60.0
AHEAD = bytes(4)
"""An empty frame, before the job's: there is time for what would else be done when it comes."""
_MARSHAL = 2  # a version that all Pythons read; and equal things are equal bytes
FRAME_MAX = 1 << 16
"""Bytes of a frame that a guest sends."""

_LARGE = 1 << 18

_decode = msgspec.json.decode

Mode = Literal["script", "module", "code", "stdin"]


@dataclass(frozen=True)
class Job:
    """What an agent runs: `python TARGET`, `python -m TARGET`, `python -c TARGET` or `python -` (`target` "").

    `arguments` follow it; `env` is the agent's whole environment; `line_buffered`: its output is for a person who watches;
    `files`: relative path -> content, laid into `cwd`; `alone`: nothing else is there.
    """

    mode: Mode
    target: str
    arguments: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    line_buffered: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)
    alone: bool = False

    def size(self) -> int:
        """About how much there is to say, in characters and bytes."""
        texts = (self.target, *self.arguments, *self.env, *self.env.values())
        return sum(map(len, texts)) + sum(map(len, self.files.values()))

    def frame(self, ack: str) -> bytes:
        """The job stream's frame, and the files' contents behind it."""
        first = {"script": [self.target], "module": ["-m", self.target], "code": ["-c", self.target], "stdin": ["-"]}[self.mode]
        message: dict[str, Any] = {
            "mode": self.mode,
            "argv": [self.target if self.mode == "script" else first[0], *self.arguments],
            "orig_argv": [*first, *self.arguments],
            "env": marshal.dumps(sorted(self.env.items()), _MARSHAL),
            "cwd": self.cwd,
            "ack": ack,
            "line_buffered": self.line_buffered,
        }
        if self.mode != "stdin":
            message[{"script": "path", "module": "module", "code": "code"}[self.mode]] = self.target
        if self.alone and (self.mode != "script" or "/" not in self.target):
            message["beside"] = sorted({path.partition("/")[0] for path in self.files})
        if self.files:
            message["files"] = [(path, len(content)) for path, content in self.files.items()]
        body = marshal.dumps(message, _MARSHAL)
        return b"".join((struct.pack("<I", len(body)), body, *self.files.values()))


def default_environment() -> dict[str, str]:
    """What every agent has; nothing of the host's environment is in it."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": HOME, "USER": "agent", "LOGNAME": "agent", "LANG": "C.UTF-8"}


#: For the C library of a starting template only; agents do not see it. With one vCPU a second malloc arena is of no use, and each
#: costs a chunk (32 MiB) of the memory limit: eight of them leave a program with threads half of the default 512 MiB.
#: And no CPU features beyond the baseline of guests (vmm/native/cell/needs.h): eight of the 38 `cpuid` instructions in ld.so have
#: no place for a jump, and where KVM cannot hide features (pvm) they see the CPU's own. A snapshot is to run on another CPU, too,
#: and a memset() with AVX-512 is SIGILL there. The same for OpenSSL: AVX-512, ADX, SHA, VAES, VPCLMULQDQ of cpuid's leaf 7.
_BEYOND = ("AVX512F", "AVX512VL", "AVX512BW", "AVX512DQ", "AVX512CD", "AVX512ER", "AVX512PF", "XSAVEC", "RTM", "FMA4")
#: All symbols are bound at the start, which each VM would do for itself. (START_ONLY of the bootstrap has these names.)
_START_ENVIRONMENT = {
    "GLIBC_TUNABLES": "glibc.malloc.arena_max=1:glibc.cpu.hwcaps=" + ",".join(f"-{name}" for name in _BEYOND),
    "OPENSSL_ia32cap": ":~0x00005f42fc2b0000",
    "LD_BIND_NOW": "1",
}


def template_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of `env` that an interpreter reads while it starts: a template of its own for each set of them."""
    names = ("PYTHON", "LC_", "LD_")
    chosen = {
        name: value for name, value in env.items() if name.startswith(names) or name in ("LANG", "LANGUAGE", "HOME", "PATH")
    }
    return {**default_environment(), **_START_ENVIRONMENT, **chosen}


class Frames:
    """What a guest says on its job stream, put together again from the pieces in which it comes."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = b""

    def add(self, data: bytes) -> dict[str, Any] | None:
        """-> a frame that is whole now; None: none is. What follows it is for the next call. The guest writes it: ValueError."""
        data = self._data + data if self._data else data
        self._data = data
        if len(data) < 4:
            return None
        size = int.from_bytes(data[:4], "little")
        if size > FRAME_MAX:
            raise ValueError(f"frame of {size} bytes")
        if len(data) < 4 + size:
            return None
        self._data = data[4 + size :]
        try:
            message = _decode(data[4 : 4 + size])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ValueError("frame is no JSON") from None
        if not isinstance(message, dict):
            raise ValueError("frame is no object")
        return message


class Handover:
    """A job in, its acknowledgement out; for who waits for neither (`hand_over()` does)."""

    __slots__ = ("_ack", "_frames")

    def __init__(self) -> None:
        self._ack = secrets.token_hex(16)
        self._frames = Frames()

    async def frame(self, job: Job) -> bytes:
        """What is to be sent. What is large is written down elsewhere: meanwhile others have the loop."""
        return job.frame(self._ack) if job.size() < _LARGE else await asyncio.to_thread(job.frame, self._ack)

    def said(self, data: bytes) -> bool:
        """The guest said this; -> whether it is the end of the acknowledgement: the program begins now. ValueError: it is none of
        this job."""
        answer = self._frames.add(data)
        if answer is not None and "warm" in answer:  # said by a restored VM that waits for its job
            answer = self._frames.add(b"")
        if answer is None:
            return False
        if answer.get("ready") != self._ack:
            raise ValueError("wrong acknowledgement")
        return True


async def hand_over(stream: GuestFlow, job: Job) -> None:
    """The job in, the acknowledgement out: the program begins now. EOFError, BrokenPipeError: the VM is gone; ValueError: what it
    says is no acknowledgement of this job; TimeoutError: nothing for `ACK_SECONDS`."""
    handover = Handover()
    async with asyncio.timeout(ACK_SECONDS):
        await stream.send(await handover.frame(job))
        while not handover.said(await _some(stream)):
            pass


async def read_frame(stream: GuestFlow) -> dict[str, Any]:
    """One frame of the job stream, of a guest that says no more until it is told something. EOFError; ValueError."""
    frames = Frames()
    while True:
        frame = frames.add(await _some(stream))
        if frame is not None:
            return frame


async def _some(stream: GuestFlow) -> bytes:
    data = await stream.receive()
    if not data:
        raise EOFError
    return data
