"""What `--json` and `--stats` tell of runs: ends, output, counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..histograms import BUCKET, SUM
from .tables import as_json as tables_json

if TYPE_CHECKING:
    from ..agents import VmReport
    from ..fleet import Result
    from ..reports import Table
    from .output import Kept

_PREFIX = "hooks."


def split_hooks(counted: Mapping[str, int | float]) -> tuple[dict[str, int | float], list[tuple[str, str]]]:
    """The counters without those of hook calls and of durations, and a row for each of these in their place."""
    rest: dict[str, int | float] = {}
    hooks: dict[str, dict[str, int | float]] = {}
    durations: dict[str, int] = {}
    for name, value in counted.items():
        if BUCKET in name:
            base = name.partition(BUCKET)[0]
            durations[base] = durations.get(base, 0) + int(value)
    for name, value in counted.items():
        if BUCKET in name or (name.endswith(SUM) and name.removesuffix(SUM) in durations):
            continue
        if name.startswith(_PREFIX):
            call, _, what = name.rpartition(".")
            hooks.setdefault(call.removeprefix(_PREFIX), {})[what] = value
        else:
            rest[name] = value
    shown = {name: numbers for name, numbers in hooks.items() if _on_the_path(name, numbers)}
    means = [(name, count, counted[name + SUM] / count) for name, count in sorted(durations.items()) if name + SUM in counted]
    rows = [(name.removesuffix("_seconds"), f"{count}, {_time(mean)} each") for name, count, mean in means]
    return rest, rows + [(f"hook {name}", _row(numbers)) for name, numbers in sorted(shown.items())]


def _on_the_path(name: str, numbers: Mapping[str, int | float]) -> bool:
    """Agents wait for it, or something is wrong with it."""
    return name.rpartition(".")[2] not in _ASIDE or any(what in numbers for what in _TROUBLE)


def _row(numbers: Mapping[str, int | float]) -> str:
    calls = int(numbers["calls"])
    words = [f"{calls} call{'s' if calls != 1 else ''}"]
    words += [f"{numbers[what]} {text}" for what, text in _TROUBLE.items() if what in numbers]
    words.append(f"{_time(numbers['seconds'] / calls)} each, {_time(numbers['longest'])} at most")
    return ", ".join(words)


_ASIDE = frozenset({"start", "stop", "reloaded", "statistics", "tables"})
_TROUBLE = {"denied": "denied", "errors": "failed", "timeouts": "timed out", "blocked": "held up the loop"}


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def document_of(
    results: list[Result], captured: list[tuple[Kept, Kept]], counted: dict[str, Any], tables: list[Table], seconds: float
) -> dict[str, Any]:
    agents = []
    for result, (out, err) in zip(results, captured, strict=True):
        report = result.report
        agents.append(
            {
                "name": result.agent.name,
                "status": result.status,
                "kind": report.kind,
                "signal": report.signal or None,
                "text": report.text,
                "seconds": round(report.seconds, 6),
                "stdout": out.text,
                "stderr": err.text,
                "truncated": out.cut or err.cut,
                "vm": None if result.statistics is None else result.statistics._asdict(),
                **_sight(report.vm),
            }
        )
    told = {"statistics": counted, "tables": tables_json(tables)}
    return {"version": 1, "seconds": round(seconds, 6), "agents": agents, "vms": _sums(results), **told}


def _sight(vm: VmReport | None) -> dict[str, Any]:
    """What its VM did, most first, and the files in the order of their opening."""
    if vm is None:
        return {"syscalls": [], "files": [], "more_files": 0}
    calls, files = vm.sight.syscalls(), vm.sight.opened()
    return {
        "syscalls": [asdict(row) for row in calls],
        "files": [asdict(row) for row in files],
        "more_files": vm.sight.more_files,
    }


def _sums(results: list[Result]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for result in results:
        if result.statistics is not None:
            for name, value in result.statistics._asdict().items():
                totals[name] = max(totals.get(name, 0), value) if name in ("sites", "sites_lazy", "sites_refused") else (
                    totals.get(name, 0) + value
                )  # fmt: skip
    return totals


ALWAYS = {"dns.hits", "dns.misses", "dns.upstream_queries", "tls.handshakes", "tls.held", "tls.reused", "policy.denied"}
"""Counters of plugins that `--stats` shows even at 0."""


def statistics_of(results: list[Result], counted: dict[str, Any], seconds: float) -> str:
    """The table of `--stats`."""
    vm = _sums(results)
    ended = sum(result.report.kind == "code" and not result.report.code for result in results)
    rows: list[tuple[str, object]] = [
        ("agents", f"{len(results)}, {ended} ended well"),
        ("seconds", f"{seconds:.3f}"),
        ("system call sites rewritten", f"{vm.get('sites', 0)} ({vm.get('sites_lazy', 0)} late, "
                                        f"{vm.get('sites_refused', 0)} left to the backstop)"),
        ("backstop hits", vm.get("n_backstop", 0)),
        ("VM exits", f"{vm.get('exits', 0)} ({vm.get('exits_kick', 0)} rings, {vm.get('exits_wait', 0)} waits, "
                     f"{vm.get('exits_signal', 0)} slices, {vm.get('exits_fault', 0)} faults)"),
        ("system calls in the guest", vm.get("n_local", 0)),
        ("system calls forwarded", vm.get("n_ring", 0)),
        ("unknown system calls", vm.get("n_enosys", 0)),
        ("thread switches", vm.get("n_switch", 0)),
        ("CPU seconds", f"{vm.get('cpu_ns', 0) / 1e9:.3f}"),
    ]  # fmt: skip
    rows += _calls(results)
    if vm.get("refused_paths") or vm.get("refused_calls"):
        rows.append(("refused by their rules", f"{vm['refused_paths']} paths, {vm['refused_calls']} system calls"))
    counters, hooks = split_hooks(counted)
    for name, value in sorted(counters.items()):
        if value or name in ALWAYS:
            rows.append((name, _number(value)))
    rows += hooks
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


CALLS_SHOWN = 8


def _calls(results: list[Result]) -> Iterator[tuple[str, str]]:
    """Of all agents: the system calls that were made most, and those that took the host most time; files opened."""
    counts: Counter[str] = Counter()
    seconds: dict[str, float] = {}
    files = 0
    for result in results:
        for row in result.report.vm.sight.syscalls() if result.report.vm is not None else ():
            counts[row.name] += row.count
            seconds[row.name] = seconds.get(row.name, 0.0) + row.host_seconds
        files += result.report.vm.sight.files if result.report.vm is not None else 0
    if counts:
        most = ", ".join(f"{name} {count}" for name, count in counts.most_common(CALLS_SHOWN))
        yield "most system calls", most
    longest = sorted((item for item in seconds.items() if item[1] > 0), key=lambda item: -item[1])[:CALLS_SHOWN]
    if longest:
        yield "longest in the host", ", ".join(f"{name} {_time(spent)}" for name, spent in longest)
    yield "files opened", str(files)


def _number(value: float) -> str:
    """The cost of one call is 0.00009 USD, not 0.000."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.3f}" if not value or abs(value) >= 0.01 else f"{value:.3g}"
