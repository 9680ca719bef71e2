"""CPU-bound Python in a VM against the same interpreter on the host, in one run: `python bench/cpu.py [--rounds 5]`.

Prints, for each loop, the median time of both and their ratio, then the geometric mean of the ratios (must: at most 1.05).
"""

from __future__ import annotations

import statistics
from pathlib import Path

import common

WORK = Path(__file__).parent / "guest" / "cpu_loops.py"


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    common.in_vm(WORK, "1")  # makes the snapshot, warms the page cache
    host: list[dict[str, float]] = []
    guest: list[dict[str, float]] = []
    for _ in range(rounds):  # in turn, so that a noisy neighbour hits both
        host.append(common.native(WORK, "1"))
        guest.append(common.in_vm(WORK, "1"))
    natively, inside = common.median_rows(host), common.median_rows(guest)
    ratios = {name: inside[name] / natively[name] for name in natively}
    for name, ratio in ratios.items():
        print(f"{name:12} native {natively[name] * 1e3:8.1f} ms   VM {inside[name] * 1e3:8.1f} ms   ratio {ratio:.3f}")
    print(f"geometric mean of the ratios: {statistics.geometric_mean(ratios.values()):.3f}  (must: <= 1.05; {rounds} rounds)")


if __name__ == "__main__":
    main()
