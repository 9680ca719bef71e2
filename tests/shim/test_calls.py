"""Calls x bad arguments (calls.c): errno, result and bytes are as under Linux, but for what is named here."""

import re
import subprocess
from pathlib import Path

import pytest

from .test_core import built
from .test_io import in_vm_output

__all__ = ["built"]

#: What may differ, and why. Every entry must be met by something.
DIFFERENT = {
    r"futex wait: argument 2 = 1[23]": "priority inheritance: no such calls",
    r"clock_(gettime|getres): argument 1 = -3": "a CPU clock that counts in ticks, of old C libraries",
    r"clock_getres: argument 1 = [56]": "the coarse clocks are as fine as the others",
    r"clock_nanosleep.*: argument 1 = -2": "the caller's own CPU clock by number",
    r"(clock_settime|settimeofday): .*": "EPERM comes before the arguments are looked at",
    r"rt_sigaction set: argument 2 = .*": "SIGKILL's refusal comes before the pointer's",
    r"rt_sigtimedwait: argument 2 = .*": "the place for the answer is looked at before there is one",
    r"rt_(tg)?sigqueueinfo: .*": "signals of a forged origin are refused here by nobody; the receiver comes first",
    r"mmap: argument 1 = minus1": "above the program's space",
    r"mmap: argument 4 = hugetlb": "the machine below may have huge pages",
    r"mprotect: argument 3 = (8|sem\|RW)": "PROT_SEM, which Linux ignores",
    r"madvise: argument 3 = (24|102)": "newer advices than the kernel that is told",
    r"madvise: argument 3 = 18": "MADV_WIPEONFORK: a restore is none that it would see",
    r"(madvise length|msync|mlock2?|munlock): argument [12] = (minus1|-1|-4096)": "lengths that wrap",
    r"mremap.*: argument [123] = (null|kernel.*|minus page|0|2\^\d+|-1|-4096)": "EINVAL or EFAULT where nothing is mapped",
    r"prctl.*: argument 1 = GET_(DUMPABLE|SPECULATION)": "the native program changed its user; mitigations",
    r"getrandom: argument 3 = 6": "two sources at once",
    r"getrandom length: .*": "not a part of what was asked for, if the rest has no place",
    r"setpriority: argument 1 = 1": "the process group is the program's",
    r"membarrier: argument 1 = 0": "what kinds there are",
    r"(wait4|waitid): argument [13] = .*": "no children: said first",
}


def answers(lines: list[str]) -> dict[str, str]:
    return dict(tuple(line.rsplit(": ", 1)) for line in lines)


@pytest.mark.kvm
def test_as_natively(built: Path) -> None:
    native = answers(
        subprocess.run([built / "calls"], capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    )
    report, out = in_vm_output(built, "calls")
    assert (report.kind, report.code) == ("code", 0), report.text
    got = answers(out.decode().splitlines())
    assert len(native) > 1300
    assert list(got) == list(native)
    other = {call: (native[call], got[call]) for call in native if got[call] != native[call]}
    assert not {call: answer for call, answer in other.items() if not any(re.fullmatch(p, call) for p in DIFFERENT)}
    assert not [pattern for pattern in DIFFERENT if not any(re.fullmatch(pattern, call) for call in other)]
