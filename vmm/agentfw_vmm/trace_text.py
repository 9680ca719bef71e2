"""Values of system calls as strace(1) writes them. What is printed is plain ASCII: whatever a guest has in its strings, a
terminal sees nothing but text."""

from __future__ import annotations

import errno
import ipaddress
import struct
from collections.abc import Mapping

from .trace_names import AF, CLOCKS, S_IFMT, SI_CODES, SI_OWN, SI_QUEUE, SI_TIMER, SIGNALS

_ESCAPES = {0x09: "\\t", 0x0A: "\\n", 0x0B: "\\v", 0x0C: "\\f", 0x0D: "\\r", 0x22: '\\"', 0x5C: "\\\\"}
EINTR = 4
RESTARTNOHAND, RESTARTBLOCK = 514, 516
_RESTARTS = {
    512: ("ERESTARTSYS", "To be restarted if SA_RESTART is set"),
    513: ("ERESTARTNOINTR", "To be restarted"),
    RESTARTNOHAND: ("ERESTARTNOHAND", "To be restarted if no handler"),
    RESTARTBLOCK: ("ERESTART_RESTARTBLOCK", "Interrupted by signal"),
}


def quoted(data: bytes, most: int | None = None, cut: bool = False) -> str:
    """A C string: octal for what is not printable, as short as the next character permits; `...` behind it for what is left out
    (more than `most` bytes, or `cut`: the caller knows that there are more)."""
    if most is not None and len(data) > most:
        data, cut = data[:most], True
    parts = []
    for at, byte in enumerate(data):
        if byte in _ESCAPES:
            parts.append(_ESCAPES[byte])
        elif 0x20 <= byte < 0x7F:
            parts.append(chr(byte))
        else:
            digit_follows = at + 1 < len(data) and 0x30 <= data[at + 1] <= 0x39
            parts.append(f"\\{byte:03o}" if digit_follows else f"\\{byte:o}")
    return '"' + "".join(parts) + '"' + ("..." if cut else "")


def in_hex(data: bytes) -> str:
    """A C string of which all is random."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in data) + '"'


def hexadecimal(value: int) -> str:
    """As printf's %#x."""
    return f"{value:#x}" if value else "0"


def flags(value: int, names: Mapping[int, str], prefix: str = "") -> str:
    """`A|B|0x40`: names of bits (masks of several bits first); what is left in hexadecimal. Nothing set: the name of 0, or 0."""
    if not value:
        return names.get(0, "0")
    parts = []
    left = value
    for bits, name in names.items():
        if bits and left & bits == bits:
            parts.append(name)
            left &= ~bits
    if left:
        parts.append(f"{left:#x}")
    if not parts or (len(parts) == 1 and left):
        return f"{left:#x} /* {prefix}??? */" if prefix else f"{left:#x}"
    return "|".join(parts)


def one_of(value: int, names: Mapping[int, str], prefix: str = "") -> str:
    """The name of a value, or `0x7 /* X_??? */`."""
    return names.get(value) or (f"{value:#x} /* {prefix}??? */" if prefix else f"{value:#x}")


def signed(value: int, bits: int = 64) -> int:
    """The low `bits` of a register as a signed number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def pointer(value: int) -> str:
    return f"{value:#x}" if value else "NULL"


def result(value: int, form: str = "int", interrupted: int = EINTR) -> str:
    """What a call returned: `-1 ENOENT (No such file or directory)`, a number, an address ("hex"), a mode in octal ("mode"), a
    signal ("signal"). `interrupted`: what a tracer sees on Linux where the program sees EINTR."""
    if value == -EINTR:
        value = -interrupted
    if -4096 < value < 0:
        if -value in _RESTARTS:
            name, text = _RESTARTS[-value]
            return f"? {name} ({text})"
        return f"-1 {errno_name(-value)} ({_ERRORS.get(-value, 'Unknown error')})"
    if form == "hex":
        return hexadecimal(value & (1 << 64) - 1)
    if form == "signal":
        return f"{value} ({SIGNALS[value]})" if value in SIGNALS else str(value)
    return f"0{value:o}" if form == "mode" and value else str(value)


def errno_name(number: int) -> str:
    return errno.errorcode.get(number, f"E{number}")


def _errors() -> dict[int, str]:
    import os

    return {number: os.strerror(number) for number in errno.errorcode}


_ERRORS = _errors()


def timespec(data: bytes, micro: bool = False) -> str:
    """struct timespec, or struct timeval."""
    seconds, part = struct.unpack_from("<qq", data)
    return f"{{tv_sec={seconds}, {'tv_usec' if micro else 'tv_nsec'}={part}}}"


def clock(value: int) -> str:
    return one_of(signed(value, 32), CLOCKS, "CLOCK_")


def mode(value: int) -> str:
    """Permission bits in octal."""
    return f"0{value & 0o7777:o}".zfill(3)


def stat(data: bytes) -> str:
    """struct stat in short: `{st_mode=S_IFREG|0644, st_size=3, ...}`."""
    if len(data) < 144:
        return "{...}"
    st_mode = struct.unpack_from("<I", data, 24)[0]
    rdev, size = struct.unpack_from("<Qq", data, 40)
    kind = S_IFMT.get(st_mode & 0o170000, f"{st_mode & 0o170000:#o}")
    device = st_mode & 0o170000 in (0o020000, 0o060000)
    last = f"st_rdev=makedev({rdev >> 8 & 0xFFF:#x}, {rdev & 0xFF:#x})" if device else f"st_size={size}"
    return f"{{st_mode={kind}|{mode(st_mode)}, {last}, ...}}"


def sockaddr(data: bytes) -> str:
    """A socket address of any family the guest has."""
    if len(data) < 2:
        return quoted(data)
    family = struct.unpack_from("<H", data)[0]
    name = AF.get(family, f"{family:#x}")
    if family == 2 and len(data) >= 8:
        port = struct.unpack_from(">H", data, 2)[0]
        return f'{{sa_family={name}, sin_port=htons({port}), sin_addr=inet_addr("{ipaddress.IPv4Address(data[4:8])}")}}'
    if family == 10 and len(data) >= 24:
        port, flow = struct.unpack_from(">HI", data, 2)
        scope = struct.unpack_from("<I", data, 24)[0] if len(data) >= 28 else 0
        address = ipaddress.IPv6Address(data[8:24])
        return (
            f"{{sa_family={name}, sin6_port=htons({port}), sin6_flowinfo=htonl({flow}), "
            f'inet_pton(AF_INET6, "{address}", &sin6_addr), sin6_scope_id={scope}}}'
        )
    if family == 1:
        path = data[2:]
        if path[:1] == b"\0" and len(path) > 1:
            return f"{{sa_family={name}, sun_path=@{quoted(path[1:])}}}"
        return f"{{sa_family={name}, sun_path={quoted(path.split(bytes(1))[0])}}}" if path else f"{{sa_family={name}}}"
    return f"{{sa_family={name}, sa_data={quoted(data[2:])}}}"


def siginfo(number: int, code: int, first: int, second: int) -> str:
    """struct siginfo by its words at 16 and 24: `{si_signo=SIGUSR1, si_code=SI_USER, si_pid=7, si_uid=1000}`."""
    own = SI_OWN.get(number)
    origin = SI_CODES.get(code) or one_of(code & 0xFFFFFFFF, own or {}, "SI_")
    head = f"{{si_signo={SIGNALS.get(number, number)}, si_code={origin}"
    if own is not None and code > 0:
        return f"{head}, si_addr={pointer(first)}}}"
    if code > 0:
        return f"{head}}}"
    if code == SI_TIMER:
        return f"{head}, si_timerid={signed(first, 32):#x}, si_overrun={signed(first >> 32, 32)}, {_value(second)}}}"
    sender = f"si_pid={signed(first, 32)}, si_uid={first >> 32}"
    return f"{head}, {sender}, {_value(second)}}}" if code == SI_QUEUE else f"{head}, {sender}}}"


def _value(word: int) -> str:
    return f"si_int={signed(word, 32)}, si_ptr={pointer(word)}"


def bit_set(data: bytes, names: Mapping[int, str]) -> str:
    """A sigset: `[INT CHLD]`, or what is missing from it: `~[KILL]`."""
    if len(data) < 8:
        return "[...]"
    value = struct.unpack_from("<Q", data)[0]
    members = [names[n] for n in range(1, 65) if value >> (n - 1) & 1]
    if len(members) > 32:
        others = [names[n] for n in range(1, 65) if not value >> (n - 1) & 1]
        return f"~[{' '.join(others)}]"
    return f"[{' '.join(members)}]"
