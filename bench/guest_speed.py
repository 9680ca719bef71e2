"""What agents do, in a VM beside the same natively, in one run: `python bench/guest_speed.py [--rounds 3] [--no-pyperformance]`.

Reads a file of 100 MiB, at once and by 1 MiB (must: at least half as fast), stats 10,000 files (30 %; in the order of their
listing, sorted, by the numbers in their names; in no order at all it is an exit each), sends lines there and back
over a loopback socket by epoll, lets two threads take turns (no slower): the best of the rounds. Then benchmarks of the package
`pyperformance` (`pip install --no-deps pyperformance`), in one process, by CPU time: the mean of the ratios (must: at most 1.03).
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import tempfile
from pathlib import Path

import common

GUEST = Path(__file__).parent / "guest"
CHOSEN = "nbody float richards deltablue chaos json_dumps json_loads pidigits raytrace spectral_norm nqueens hexiom fannkuch go"
MUST = {
    "read at once": 2.0,
    "read by 1 MiB": 2.0,
    "stat as listed": 1 / 0.3,
    "stat sorted": 1 / 0.3,
    "stat numbered": 1 / 0.3,
    "epoll echo": 1.0,
    "threads": 1.0,
}


def in_turn(script: Path, folder: Path, rounds: int, *args: str) -> dict[str, tuple[float, float]]:
    """Name -> least seconds natively and in a VM, the two run in turn. `folder` is /bench to the VM."""
    mount = ("--mount", f"{folder}:/bench")
    host: list[dict[str, float]] = []
    guest: list[dict[str, float]] = []
    for _ in range(rounds):
        host.append(common.native(script, str(folder), *args))
        guest.append(common.in_vm(script, "/bench", *args, options=mount))
    return {name: (min(row[name] for row in host), min(row[name] for row in guest)) for name in host[0]}


def everyday(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "big").open("wb") as file:
            for _ in range(100):
                file.write(os.urandom(1 << 20))
        (folder / "many").mkdir()
        for n in range(10_000):
            (folder / f"many/{n}").touch()
        for work, (native, inside) in in_turn(GUEST / "speed.py", folder, rounds).items():
            ratio = inside / native
            row = f"{work:14} native {native * 1e3:8.1f} ms   VM {inside * 1e3:8.1f} ms   {ratio:6.2f} times"
            print(f"{row}  (must: <= {MUST[work]:.2f})" if work in MUST else row)


def installed() -> Path:
    """pyperformance's benchmarks."""
    found = importlib.util.find_spec("pyperformance")
    if not found or not found.origin:
        raise SystemExit("error: pyperformance is not installed: `pip install --no-deps pyperformance`, or `--no-pyperformance`")
    return Path(found.origin).parent / "data-files/benchmarks"


def performance(folder: Path, rounds: int) -> None:
    ratios = []
    for name, (native, inside) in in_turn(GUEST / "performance.py", folder, rounds, *CHOSEN.split()).items():
        ratios.append(inside / native)
        print(f"{name:14} native {native * 1e3:8.1f} ms   VM {inside * 1e3:8.1f} ms   {ratios[-1]:6.3f} times")
    print(f"geometric mean of {len(ratios)}: {statistics.geometric_mean(ratios):.3f}  (must: <= 1.03)")


def main() -> None:
    parser = common.parser(__doc__, "--no-pyperformance: the first four only")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    folder = None if given.no_pyperformance else installed()  # what is missing is told before anything is measured
    everyday(given.rounds)
    if folder is not None:
        performance(folder, given.rounds)


if __name__ == "__main__":
    main()
