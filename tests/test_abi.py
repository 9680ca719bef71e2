"""The border's layout, asserted from C (as shim and cell are compiled) and from cffi."""

import re
import subprocess
from pathlib import Path

import pytest
from agentfw_vmm import _lib

ROOT = Path(__file__).parent.parent
SHIM_FLAGS = ["-Os", "-ffreestanding", "-mcmodel=small", "-mno-red-zone", "-mgeneral-regs-only"]
CELL_FLAGS = ["-O2", "-D_GNU_SOURCE"]
# Written down once more by hand: a field that moves must be meant.
SIZES = {
    "afw_sqe": 64,
    "afw_cqe": 16,
    "afw_flow": 128,
    "afw_window": 128 * 128 + 16,
    "afw_dgram": 24,
    "afw_event": 64,
    "afw_command": 32,
    "afw_site": 8,
    "afw_queue_index": 64,
    "afw_record": 8,
    "afw_cpuid_entry": 32,
    "afw_snapshot_extent": 24,
}
OFFSETS = {
    ("afw_sqe", "op"): 0,
    ("afw_sqe", "token"): 4,
    ("afw_sqe", "a"): 8,
    ("afw_cqe", "res"): 8,
    ("afw_ctl", "sq_head"): 16,
    ("afw_ctl", "cq_tail"): 28,
    ("afw_ctl", "deadline"): 32,
    ("afw_ctl", "fork_fill"): 376,
    ("afw_flow", "tx_head"): 0,
    ("afw_flow", "rx_tail"): 4,
    ("afw_flow", "gflags"): 8,
    ("afw_flow", "rx_head"): 64,
    ("afw_flow", "tx_tail"): 68,
    ("afw_flow", "hstate"): 72,
    ("afw_flow", "hflags"): 76,
    ("afw_window", "ready"): 128 * 128,
    ("afw_event", "a"): 16,
    ("afw_command", "a"): 8,
    ("afw_site", "length"): 4,
    ("afw_site", "kind"): 5,
    ("afw_site", "site_length"): 6,
}


def compile_c(source: str, flags: list[str], tmp_path: Path) -> str:
    file = tmp_path / "probe.c"
    file.write_text(f'#include <stddef.h>\n#include "abi.h"\n#include "cell.h"\n{source}\n')
    command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wpadded", *flags, "-c", "-o", str(tmp_path / "probe.o")]
    done = subprocess.run(
        [*command, f"-I{ROOT}/shim", f"-I{ROOT}/vmm/native", str(file)], capture_output=True, text=True, check=False
    )
    return done.stderr


def assertions(structs: dict[str, tuple[int, dict[str, tuple[int, int]]]]) -> str:
    lines = []
    for tag, (size, fields) in structs.items():
        lines.append(f'_Static_assert(sizeof(struct {tag}) == {size}, "{tag}");')
        for name, (offset, _) in fields.items():
            lines.append(f'_Static_assert(offsetof(struct {tag}, {name}) == {offset}, "{tag}.{name}");')
    return "\n".join(lines)


def border() -> dict[str, tuple[int, dict[str, tuple[int, int]]]]:
    return {tag: layout for tag, layout in _lib.structs().items() if tag.startswith("afw_")}


@pytest.mark.parametrize("flags", [SHIM_FLAGS, CELL_FLAGS], ids=["shim", "cell"])
def test_cffi_and_c_agree_and_nothing_is_padded(flags: list[str], tmp_path: Path) -> None:
    structs = border()
    assert {"afw_ctl", "afw_vm_shm", "afw_cell_header", "afw_snapshot_header", *SIZES} <= set(structs)
    assert compile_c(assertions(structs), flags, tmp_path) == ""


def test_the_probe_can_fail(tmp_path: Path) -> None:
    assert "afw_sqe" in compile_c('_Static_assert(sizeof(struct afw_sqe) == 63, "afw_sqe");', CELL_FLAGS, tmp_path)
    assert "padding" in compile_c("struct p { char a; int b; }; extern struct p q;", CELL_FLAGS, tmp_path)


def test_figures_written_down() -> None:
    structs = border()
    assert {tag: structs[tag][0] for tag in SIZES} == SIZES
    assert {(tag, name): structs[tag][1][name][0] for tag, name in OFFSETS} == OFFSETS


def test_no_struct_has_implicit_padding() -> None:
    for tag, (size, fields) in border().items():
        end = 0
        for name, (offset, width) in fields.items():
            assert offset == end, f"{tag}.{name}"
            end = offset + width
        assert end == size, tag


def test_everything_fits_its_place() -> None:
    structs, c = border(), _lib.constants()
    assert structs["afw_ctl"][0] <= c["AFW_SQ"] - c["AFW_CTL"]
    assert structs["afw_sqe"][0] * c["AFW_SQ_LEN"] <= c["AFW_CQ"] - c["AFW_SQ"]
    assert structs["afw_cqe"][0] * c["AFW_CQ_LEN"] <= c["AFW_CPUID"] - c["AFW_CQ"]
    assert structs["afw_cpuid_table"][0] <= 4096
    assert c["AFW_SHIM"] + c["AFW_SHIM_MAX"] <= c["AFW_SITES"] < c["AFW_SITES_END"] <= c["AFW_IMAGE"]
    assert structs["afw_window"][0] <= c["AFW_WINDOW_DATA"]
    assert c["AFW_WINDOW_DATA"] + c["AFW_FLOWS"] * 2 * c["AFW_RING"] == c["AFW_WINDOW_SIZE"] <= c["AFW_WINDOW_STRIDE"]
    assert structs["afw_cell_header"][0] <= 4096
    for length in ("AFW_SQ_LEN", "AFW_CQ_LEN", "AFW_QUEUE", "AFW_RING"):
        assert c[length] & (c[length] - 1) == 0, length


def test_the_guest_knows_where_forks_are_told_of() -> None:
    source = (ROOT / "core/agentfw/guest/guest_forks.py").read_text()
    values = dict(re.findall(r"^(FORK_\w+) = (\w+)", source, re.MULTILINE))
    constants = _lib.constants()
    assert int(values["FORK_FILL"], 0) == constants["AFW_CTL"] + OFFSETS["afw_ctl", "fork_fill"]
    assert int(values["FORK_SIGNAL"], 0) == constants["AFW_FORK_SIGNAL"]
    assert constants["AFW_FORK_FILL"] == 624 * 4
