"""Statistics as Prometheus is told them: names, types, labels and buckets, and what cannot be a metric."""

from __future__ import annotations

import math
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from agentfw.histograms import HOOK, SHORT, Histogram
from agentfw.metrics import expose
from agentfw.metrics.catalog import CATALOG, IN_OTHERS, grows
from agentfw.metrics.declared import MAX_SERIES, by_statistic
from agentfw.metrics.exposition import OPEN_METRICS, TEXT
from agentfw.metrics.families import MAX_OF_ONE, MAX_OTHERS
from agentfw.metrics.processes import measure

from .support import OPEN_METRICS as ACCEPT
from .support import of, scrape

COUNTERS = Path(__file__).parents[2] / "docs/reference"


@pytest.mark.parametrize("accept", ["", ACCEPT])
def test_each_declared_statistic_is_a_sample(accept: str) -> None:
    values: dict[str, Any] = {}
    for number, (statistic, declared) in enumerate(by_statistic(CATALOG), 1):
        values[f"{statistic}.bucket.inf" if declared.kind == "histogram" else statistic] = float(number)
    found = scrape(values, accept)
    for number, (statistic, declared) in enumerate(by_statistic(CATALOG), 1):
        name = declared.full_name + ("_count" if declared.kind == "histogram" else "")
        assert of(found, name, **dict(zip(declared.labels, declared.source[statistic], strict=True))) == number, statistic
    assert of(found, "agentfw_metrics_left_out") == 0
    assert not [name for name, _ in found if name.startswith("agentfw_plugin_")]


def test_what_never_happened_is_0_and_what_is_not_there_is_not() -> None:
    found = scrape({"policy.allowed": 3, "pool.queued": 1})
    assert of(found, "agentfw_flows_total", kind="tcp") == 0
    assert of(found, "agentfw_policy_decisions_total", decision="denied") == 0
    assert of(found, "agentfw_policy_decisions_total", decision="allowed") == 3
    assert of(found, "agentfw_jobs", state="running") == 0
    assert not [name for name, _ in found if name.startswith(("agentfw_model_", "agentfw_tls_connections", "agentfw_vms"))]


def test_histograms_are_cumulative_and_have_all_their_buckets() -> None:
    histogram = Histogram(SHORT)
    for seconds in (0.0, 0.0001, 0.00011, 0.3, 99.0):
        histogram.observe(seconds)
    values = histogram.statistics("core.dispatch_seconds")
    assert set(values) == {f"core.dispatch_seconds.{what}" for what in
                           ("bucket.0.0001", "bucket.0.00025", "bucket.0.5", "bucket.inf", "sum")}  # fmt: skip
    found = scrape(values)
    name = "agentfw_dispatch_duration_seconds"
    rows = [(float(dict(labels)["le"]), value) for (each, labels), value in found.items() if each == f"{name}_bucket"]
    assert [bound for bound, _ in sorted(rows)] == [*SHORT, math.inf]
    assert dict(rows)[0.0001] == 2 and dict(rows)[0.00025] == dict(rows)[0.25] == 3 and dict(rows)[0.5] == 4
    assert dict(rows)[math.inf] == of(found, f"{name}_count") == 5
    assert of(found, f"{name}_sum") == pytest.approx(99.30021)
    assert Histogram(SHORT).statistics("x") == {}


def test_hooks_have_labels() -> None:
    hook = "hooks.my.plugin.allow"
    found = scrape({f"{hook}.calls": 3, f"{hook}.seconds": 0.5, f"{hook}.longest": 0.4, f"{hook}.bucket.1e-06": 2,
                    f"{hook}.bucket.inf": 1, f"{hook}.denied": 2})  # fmt: skip
    labels = {"plugin": "my.plugin", "hook": "allow"}
    assert of(found, "agentfw_hook_duration_seconds_count", **labels) == 3
    assert of(found, "agentfw_hook_duration_seconds_sum", **labels) == 0.5
    assert of(found, "agentfw_hook_duration_seconds_bucket", le="10.0", **labels) == 2
    assert of(found, "agentfw_hook_longest_seconds", **labels) == 0.4
    assert of(found, "agentfw_hook_denied_total", **labels) == 2
    assert of(found, "agentfw_metrics_left_out") == 0 and len(HOOK) == 11


def test_counters_of_other_plugins() -> None:
    found = scrape({"team_header.marked": 3, "team_header.sent_total": 4, "odd-one.Größe/s": 5, "odd.bucket_count": 6})
    assert of(found, "agentfw_plugin_team_header_marked") == 3
    assert of(found, "agentfw_plugin_team_header_sent_total") == 4
    assert of(found, "agentfw_plugin_odd_one_gr_e_s") == 5
    assert of(found, "agentfw_plugin_odd_bucket_count_value") == 6
    assert of(scrape({"odd.c_count": 6, "odd.c_count_value": 7}), "agentfw_metrics_left_out") == 1, "one of each name"
    text = expose({"team_header.marked": 3, "team_header.sent_total": 4})[0].decode()
    assert "# TYPE agentfw_plugin_team_header_marked untyped\n" in text
    assert "# TYPE agentfw_plugin_team_header_sent_total counter\n" in text


HOSTILE = ['x"y', "back\\slash", "new\nline", "\x1b[31mred", "‮", "\ud800", "", ".", "..", " ", "é" * 50, "{}", "#", "a,b=\"c\"",
           "hooks", "hooks..", "hooks.a", "hooks.a.b", "process.router", "pool.tenants."]  # fmt: skip


@pytest.mark.parametrize("accept", ["", ACCEPT])
def test_whatever_statistics_are_called_the_text_can_be_read(accept: str) -> None:
    values: dict[str, Any] = {}
    for name in HOSTILE:
        for more in (
            ".calls",
            ".bucket.inf",
            ".bucket.x",
            ".seconds",
            ".longest",
            ".sum",
            "_total",
            "_total_total",
            "_info",
            "_sum",
        ):
            values[f"{name}{more}"] = 1.0
            values[f"hooks.{name}.allow{more}"] = 1.0
            values[f"hooks.{name}{more}"] = -1.0
            values[f"core.dispatch_seconds{name}{more}"] = 2.0
            values[f"plugin.{name}{more}"] = 2
    found = scrape(values, accept)
    assert of(found, "agentfw_hook_duration_seconds_count", plugin='x"y', hook="allow") == 1
    assert of(found, "agentfw_hook_longest_seconds", plugin="back\\slash", hook="allow") == 1
    for name, labels in found:
        assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) and len(name) < 200
        for _, value in labels:
            assert "\n" not in value and "\x1b" not in value and len(value) <= 64


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308, 10**400, -5.0, None, "7", [1], True])
@pytest.mark.parametrize(
    "name", ["core.flows_tcp", "core.dispatch_seconds.bucket.inf", "hooks.a.allow.calls", "third.party_total"]
)
def test_whatever_statistics_say_the_text_can_be_read(name: str, value: object) -> None:
    for accept in ("", ACCEPT):
        found = scrape({name: value}, accept)
        assert all(math.isfinite(each) and each >= 0 for each in found.values())
    if value is not True:
        assert of(scrape({name: value}), "agentfw_flows_total", kind="tcp") == 0


def test_there_is_a_limit_to_everything() -> None:
    values: dict[str, Any] = {"n" * 10_000_000: 1, **{f"greedy.c{number}": 1 for number in range(5000)}, "modest.count": 1}
    values |= {f"p{number}.c": 1 for number in range(5000)}
    values |= {
        f"hooks.p{number}.allow.{what}": 1 for number in range(1000) for what in ("calls", "seconds", "bucket.inf", "longest")
    }
    values |= {f"process.worker-{number}.threads": 1 for number in range(1000)}
    body = expose(values)[0]
    found = scrape(values)
    names = [name for name, _ in found]
    assert names.count("agentfw_hook_longest_seconds") == names.count("agentfw_hook_duration_seconds_count") == MAX_SERIES
    others = [name for name in names if name.startswith("agentfw_plugin_")]
    assert len(others) == MAX_OTHERS and sum("greedy" in name for name in others) == MAX_OF_ONE
    assert "agentfw_plugin_modest_count_value" in others
    left_out = of(found, "agentfw_metrics_left_out")
    assert left_out is not None and left_out > 10_000 and len(body) < 2 << 20


def test_nothing_that_comes_by_chance_breaks_it() -> None:
    chance = random.Random(7)
    parts = [*HOSTILE, "hooks", "core", "dispatch_seconds", "bucket", "inf", "0.005", "sum", "process", "worker-1", "threads",
             "pool", "tenants", "a", "queued", "calls", "seconds", "total", "_total", "dns", "hits"]  # fmt: skip
    for _ in range(60):
        values = {
            ".".join(chance.choices(parts, k=chance.randint(1, 5))): chance.choice([1, 0, -1, 2.5, math.nan]) for _ in range(80)
        }
        for accept in ("", ACCEPT):
            scrape(values, accept)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain", TEXT),
        ("application/openmetrics-text", OPEN_METRICS),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", OPEN_METRICS),
        ('APPLICATION/OpenMetrics-Text;Version="1.0.0"', OPEN_METRICS),
        ("application/openmetrics-text; version=0.0.1", TEXT),
        ("application/openmetrics-text; q=0", TEXT),
        ("application/openmetrics-text; q=0.3, text/plain; q=0.5", TEXT),
        ("application/openmetrics-text; q=nan, text/plain; q=0.1", TEXT),
        # Prometheus 2.42, and 3 without and with its other formats
        ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
         "text/plain;version=0.0.4;q=0.5,*/*;q=0.1", OPEN_METRICS),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.4,*/*;q=0.2",
         OPEN_METRICS),
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,"
         "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2", OPEN_METRICS),
        (";;;,,,=", TEXT),
        ("x" * 1_000_000, TEXT),
    ],
)  # fmt: skip
def test_the_format_is_what_the_client_prefers(accept: str, kind: str) -> None:
    body, found = expose({}, accept)
    assert found == kind and body.endswith(b"# EOF\n") == (kind == OPEN_METRICS)


def test_names_are_as_the_conventions_have_them() -> None:
    names = [declared.full_name for declared in CATALOG]
    assert len(set(names)) == len(names)
    statistics = [statistic for statistic, _ in by_statistic(CATALOG)]
    assert len(set(statistics)) == len(statistics) and not IN_OTHERS.intersection(statistics)
    for declared in CATALOG:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", declared.name), declared.name
        assert not declared.name.endswith(("_total", "_count", "_sum", "_bucket", "_info", "_created"))
        assert declared.help.endswith((".", ")")) and not declared.help[0].islower()
        assert (declared.kind == "histogram") == bool(declared.bounds) and list(declared.bounds) == sorted(declared.bounds)
        assert (declared.unit == "seconds") >= (declared.kind == "histogram")
        assert not {"agent", "host", "model", "le", "id"}.intersection(declared.labels)


def test_every_documented_counter_is_a_metric() -> None:
    known = {statistic for statistic, _ in by_statistic(CATALOG)} | IN_OTHERS
    text = (COUNTERS / "counters.md").read_text()
    missing = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        name = section.partition("\n")[0].strip()
        for row in re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE):
            for counter in re.findall(r"`(\w+)`", row):
                statistic = f"{'engine' if name == 'pool' else name}.{counter}"
                missing += [statistic] if statistic not in known and name in OWN else []
    assert not missing and set(re.findall(r"^## (\w+)$", text, re.MULTILINE)) >= OWN


OWN = {"core", "policy", "credentials", "native", "inspect", "audit", "capture", "otel", "dashboard", "pool"}


def test_what_grows() -> None:
    assert all(grows(name) for name in ("core.flows_tcp", "core.dispatch_seconds.bucket.0.005", "core.dispatch_seconds.sum",
                                        "hooks.a.allow.seconds", "hooks.a.allow.bucket.inf", "third.sent_total",
                                        "third.total"))  # fmt: skip
    assert not any(grows(name) for name in ("engine.running", "hooks.a.allow.longest", "third.party", "dns.entries"))


def test_processes_are_measured() -> None:
    found = measure({"router": os.getpid(), "worker-1": 1 << 30})
    assert {name.rpartition(".")[2] for name in found} == {
        "cpu_seconds", "threads",
        "resident_memory_bytes", "proportional_memory_bytes", "start_time_seconds", "open_fds", "max_fds"
    }  # fmt: skip
    assert all(name.startswith("process.router.") and value > 0 for name, value in found.items())
    resident, shared = found["process.router.resident_memory_bytes"], found["process.router.proportional_memory_bytes"]
    assert shared <= resident * 1.1 and resident > 10 << 20
    assert of(scrape(found), "agentfw_process_threads", process="router") == found["process.router.threads"]


def test_a_process_may_be_called_anything(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text("7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 50 25 0 0 20 0 3 0 100 4096 9 0\n")
    (tmp_path / "stat").write_text("cpu 1\nbtime 1000\n")
    found = measure({"router": 7}, tmp_path)
    assert found["process.router.threads"] == 3 and found["process.router.cpu_seconds"] == pytest.approx(0.75)
    assert found["process.router.start_time_seconds"] == pytest.approx(1001)
    (tmp_path / "7/stat").write_text("nonsense")
    assert measure({"router": 7}, tmp_path) == {}
