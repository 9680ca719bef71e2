"""What two VMs of one template have in common that they should not.

    python bench/uniqueness.py [--preload MODULES] [--python PATH] [--env K=V] [--mount DIR] [--json]

Random bytes that were drawn before the snapshot are in every VM that is made of it. To find them, the memory of two VMs of one
template is compared with that of a VM of a second template, which was made in the same way: bytes that the first two have at the
same address, that look random (16 in a row of which hardly any two are alike), and that the third has nowhere. What comes from
files is in all three, what was drawn anew after the restore in one. Printed: how many bytes were looked at and each buffer that
was found; what is the same by design is counted apart, with the reason.

Python's hash seed is fixed for it (PYTHONHASHSEED=0): it is a template's, by design, and is in each string that was hashed.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

DUMP = Path(__file__).parent / "guest/memory_dump.py"
PAGE = 4096
WINDOW = 16
SEEN = 32  # bytes that the dump begins with
SHOWN = 40
SPACE_END = 0x3C0000000  # AFW_SPACE_END (abi.h)


@dataclass
class Vm:
    """Pages by address, and what the C library starts with: AT_RANDOM, where it is, and malloc's mark of freed pieces."""

    at_random: bytes
    at: int
    freed: bytes
    pages: dict[int, bytes] = field(default_factory=dict)

    def reason(self, address: int, window: bytes) -> str:
        """Why these bytes are a template's, by design; or ""."""
        if abs(address - self.at) < WINDOW or any(self.at_random[at : at + 5] in window for at in range(12)):
            return "AT_RANDOM: the C library's stack protector and pointer guard"
        return self._of_word(window[:8]) or self._of_word(window[8:])

    def _of_word(self, word: bytes) -> str:
        if word == self.freed:
            return "malloc's mark of freed pieces"
        value = struct.unpack("<Q", word)[0]
        pointer = (value >> 17 | value << 47) & (1 << 64) - 1 ^ struct.unpack("<Q", self.at_random[8:])[0]
        return "a pointer under the C library's guard" if 0 < pointer < SPACE_END else ""


@dataclass(frozen=True)
class Found:
    """Bytes that two VMs share. `reason`: why that is meant, or ""."""

    address: int
    data: bytes
    reason: str = ""


def dump(cache: Path, options: list[str]) -> Vm:
    """Memory of a fresh VM of the template in `cache`, which is made if there is none. RuntimeError: it did not run."""
    command = [sys.executable, "-m", "agentfw", "run", "-q", "--no-config", "--plugins", "", "--env", "PYTHONHASHSEED=0"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run([*command, *options, str(DUMP)], env=environment, capture_output=True, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace").strip())
    vm = Vm(*struct.unpack_from("<16sQ8s", done.stdout))
    for at in range(SEEN, len(done.stdout), 8 + PAGE):
        (address,) = struct.unpack_from("<Q", done.stdout, at)
        vm.pages[address] = done.stdout[at + 8 : at + 8 + PAGE]
    return vm


def looks_random(data: bytes) -> bool:
    """16 bytes as a generator makes them: hardly any zero, most different, and not text. Pointers and numbers have zeros."""
    text = sum(0x20 <= byte < 0x7F for byte in data)
    return data.count(0) <= 1 and data.count(255) <= 2 and len(set(data)) >= 12 and text <= 12


def common(one: Vm, other: Vm, second: Vm) -> list[Found]:
    """Runs of random bytes that `one` and `other` have at the same address, and `second` nowhere."""
    everything = b"".join(second.pages.values())
    found: list[Found] = []
    for address in sorted(one.pages.keys() & other.pages.keys()):
        a, b, c = one.pages[address], other.pages[address], second.pages.get(address, b"")
        if a == c:
            continue
        for at in range(0, PAGE - WINDOW + 1, 8):
            window = a[at : at + WINDOW]
            if (
                window == b[at : at + WINDOW]
                and window != c[at : at + WINDOW]
                and looks_random(window)
                and window not in everything
            ):
                reason = one.reason(address + at, window)
                last = found[-1] if found else Found(0, b"")
                begin = last.address - address  # within this page, if it is of it
                if begin >= 0 and begin + len(last.data) + WINDOW >= at and last.reason == reason:
                    found[-1] = Found(last.address, a[begin : at + WINDOW], reason)
                else:
                    found.append(Found(address + at, window, reason))
    return found


def scan(options: list[str]) -> tuple[int, list[Found]]:
    """Bytes that were looked at, and what was found."""
    with tempfile.TemporaryDirectory(prefix="agentfw-unique-") as folder:
        one, other = (dump(Path(folder, "first"), options) for _ in range(2))
        second = dump(Path(folder, "second"), options)
    return PAGE * len(one.pages), common(one, other, second)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments, options = parser.parse_known_args()
    size, found = scan(options)
    if arguments.json:
        rows = [{"address": each.address, "bytes": each.data.hex(), "reason": each.reason} for each in found]
        print(json.dumps({"looked_at": size, "found": rows}))
        return
    known = Counter(each.reason for each in found if each.reason)
    unknown = [each for each in found if not each.reason]
    print(f"{size / 1e6:.1f} MB looked at; equal random bytes in {len(unknown)} places")
    for each in unknown[:SHOWN]:
        print(f"  {each.address:#x} {len(each.data):5d} bytes  {each.data[:24].hex()}")
    for reason, count in known.items():
        print(f"the same by design: {reason}: {count} places")


if __name__ == "__main__":
    main()
