"""The picture: six panels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .numbers import percentile


def draw(document: dict[str, Any], path: Path) -> None:
    """ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figures = document["figures"]
    figure, axes = pyplot.subplots(2, 3, figsize=(16, 9), layout="constrained")
    panels = (_warm_up, _density, _names, _percentiles, _sessions, _throughput)
    for axis, panel in zip(axes.flat, panels, strict=True):
        title, drawn = panel(axis, figures)
        axis.set_title(title, fontsize=11, loc="left")
        if not drawn:
            axis.text(0.5, 0.5, "not measured", ha="center", va="center", transform=axis.transAxes, color="grey")
            axis.set_axis_off()
    about = document["machine"]
    kvm = ", ".join(about["kvm"]) or "unknown KVM"
    figure.suptitle(
        f"agentfw: {document['options']['agents']} agents on {about['cpus']} CPUs, {about['memory'] / 2**30:.0f} GiB ({kvm}), "
        f"{about['when'][:10]}",
        fontsize=13,
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _warm_up(axis: Any, figures: dict[str, Any]) -> tuple[str, bool]:
    cells = figures.get("cells")
    if not cells:
        return "warm-up", False
    times = cells["latencies"]
    most = percentile(times, 0.995)
    width = 1 if most < 60 else max(1, round(most / 60))
    axis.hist(times, bins=[n * width for n in range(int(most / width) + 3)], color="#4878a8")
    axis.set_xlabel("ms from RESTORE to waiting for a job")
    axis.set_ylabel("VMs")
    pool = figures.get("pool_warm")
    each = f"{cells['each']:.2f} core-ms each" + (f", {pool['each_ms']:.2f} in the pool" if pool else "")
    return f"warm-up: {cells['vms']} VMs, {each}", True


REFERENCE = "reference: "


def _bars(axis: Any, bars: dict[str, float], form: str, colour: str = "#4878a8") -> None:
    """What is not ours is grey."""
    colours = ["#b8b8b8" if name.startswith((REFERENCE, "must")) else colour for name in bars]
    drawn = axis.barh(list(bars), list(bars.values()), color=colours)
    axis.bar_label(drawn, [form.format(value) for value in bars.values()], padding=3, fontsize=9)
    axis.invert_yaxis()
    axis.margins(x=0.25)


def _density(axis: Any, figures: dict[str, Any]) -> tuple[str, bool]:
    bars: dict[str, float] = {}
    if "pool_warm" in figures:
        bars[REFERENCE + "idle, warm"] = 3.0
        bars["idle, warm"] = figures["pool_warm"]["memory"] / 1e6
    for name, label in (("the standard library", "alive, TLS calls"), ("an SDK in the template", "alive, SDK in template")):
        found = figures.get(f"alive: {name}")
        if found:
            bars[f"{label}\n({found['per_gib']:.0f} a GiB)"] = found["bytes"] / found["agents"] / 1e6
    if any(name.startswith("alive: ") for name in figures):
        bars[REFERENCE + "alive\n(10.8 a GB)"] = 1e3 / 10.8
    if "importing" in figures:
        bars["alive, SDK imported"] = figures["importing"]["memory"] / 1e6
    for peer in figures.get("peers", []):
        bars[peer["name"]] = peer["memory"] / 1e6
    if not bars:
        return "density", False
    _bars(axis, bars, "{:.2f} MB")
    axis.set_xscale("log")
    axis.set_xlabel("MB each, by MemAvailable")
    return "density", True


def _names(axis: Any, figures: dict[str, Any]) -> tuple[str, bool]:
    network = figures.get("network")
    if not network:
        return "DNS", False
    found = next(iter(network.values()))
    metrics = found["metrics"]
    bars = {
        "agents": float(found["agents"]),
        "hits": float(metrics.get("dns.hits", 0) + metrics.get("dns.coalesced", 0)),
        "misses": float(metrics.get("dns.misses", 0)),
        "queries upstream": float(found["asked"]),
    }
    _bars(axis, bars, "{:.0f}", "#6a9a58")
    axis.set_xscale("symlog")
    return "DNS: questions answered from the cache", True


def _percentiles(axis: Any, figures: dict[str, Any]) -> tuple[str, bool]:
    lines = {}
    if "dispatch" in figures:
        lines["dispatch to first syscall"] = figures["dispatch"]["first_ms"]
    if "connect" in figures:
        lines["connect to first send"] = figures["connect"]["first_send_ms"]
        lines["connect to first answer"] = figures["connect"]["first_call_ms"]
    if not lines:
        return "latencies", False
    parts = [n / 100 for n in range(1, 100)] + [0.995, 0.999]
    for label, values in lines.items():
        ps = [percentile(values, part) for part in (0.5, 0.95, 0.99)]
        axis.plot([percentile(values, part) for part in parts], [part * 100 for part in parts],
                  label=f"{label}: {ps[0]:.1f}/{ps[1]:.1f}/{ps[2]:.1f} ms")  # fmt: skip
    axis.set_xscale("log")
    axis.set_ylim(0, 145)  # room for the legend
    axis.set_yticks(range(0, 101, 20))
    axis.set_xlabel("ms")
    axis.set_ylabel("percentile")
    axis.legend(fontsize=9, loc="upper left", title="p50/p95/p99")
    axis.grid(alpha=0.3)
    return "dispatch and connect", True


def _sessions(axis: Any, figures: dict[str, Any]) -> tuple[str, bool]:
    network = figures.get("network")
    if not network:
        return "TLS", False
    found = next(iter(network.values()))
    metrics = found["metrics"]
    bars = {
        "agents": float(found["agents"]),
        "model calls": float(found["served"]),
        "handshakes": float(found["handshakes"]),
        REFERENCE + "sessions": 338.0,
        "sessions held": float(metrics.get("tls.held", 0) + metrics.get("tls.leased", 0)),
    }
    _bars(axis, bars, "{:.0f}", "#a8784a")
    return "TLS sessions", True


def _throughput(axis: Any, figures: dict[str, Any]) -> tuple[str, bool]:
    told = []
    for count, found in figures.get("flat", {}).items():
        told.append(f"with {count} agents {percentile(found['ms'], 0.5):.2f} ms")
    title = "throughput" + (f"\np50 of a call {', '.join(told)}" if told else "")
    if "throughput" not in figures:
        return title, False
    found = figures["throughput"]
    _bars(axis, {REFERENCE + "calls": 11.7, "must be": 200.0, "here": found["per_core_second"]}, "{:.0f}", "#8a6aa8")
    axis.set_xlabel(f"model calls a second a core ({found['agents']} agents)")
    return title, True
