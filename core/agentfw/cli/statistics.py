"""What `--json` and `--stats` tell of runs: ends, output, counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..histograms import BUCKET, SUM
from .tables import as_json as tables_json

if TYPE_CHECKING:
    from agentfw_vmm import Sight

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
    rows += _did([result.report.vm.sight for result in results if result.report.vm is not None])
    if vm.get("refused_paths") or vm.get("refused_calls"):
        refused = f"{vm['refused_paths']} paths, {vm['refused_calls']} system calls"
        rows.append(("refused by their rules", refused + _rules(results)))
    counters, hooks = split_hooks(counted)
    for name, value in sorted(counters.items()):
        if value or name in ALWAYS:
            rows.append((name, _number(value)))
    rows += hooks
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


SHOWN = 8


def _did(sights: list[Sight]) -> Iterator[tuple[str, str]]:
    """Of all agents: the system calls that were made most, and those that took the host most time; files."""
    counts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for row in (row for sight in sights for row in sight.syscalls()):
        counts[row.name] += row.count
        seconds[row.name] += row.host_seconds  # type: ignore[assignment]
    for title, found, show in (("most system calls", counts, str), ("longest in the host", seconds, _time)):
        most = [f"{name} {show(value)}" for name, value in found.most_common(SHOWN) if value]
        if most:
            yield title, ", ".join(most)
    if sights:
        more = sum(sight.more_files for sight in sights)
        yield "paths opened or refused", f"{sum(sight.files for sight in sights)}" + (f", and {more} opens more" if more else "")


def _rules(results: list[Result]) -> str:
    """Those that refused most."""
    refused: Counter[str] = Counter()
    for result in results:
        for file in result.report.vm.sight.opened() if result.report.vm is not None else ():
            if file.rule:
                refused[file.rule] += file.count
    words = [f"{rule} {count}" for rule, count in refused.most_common(SHOWN)]
    return f" ({', '.join(words)})" if words else ""


def _number(value: float) -> str:
    """The cost of one call is 0.00009 USD, not 0.000."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.3f}" if not value or abs(value) >= 0.01 else f"{value:.3g}"
