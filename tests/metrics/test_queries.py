"""The dashboard and the alerts ask for metrics that there are, by labels that these have."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from agentfw.metrics import expose
from agentfw.metrics.catalog import CATALOG
from agentfw.views import dns_cache

from ..pool.routers import finish, pool_test, running
from .queries import ALERTS, DASHBOARD, Query, faults, known, of_alerts, of_dashboard, panels, rules
from .support import scrape

PLUGINS = ("dns", "tls", "policy", "credentials", "native", "inspect", "audit", "capture", "otel", "dashboard")


def test_the_dashboard() -> None:
    metrics, queries = known(), list(of_dashboard())
    assert len(queries) > 50 and not [fault for query in queries for fault in faults(query, metrics)]
    for query in queries:
        assert query.text.count('job=~"$job",instance=~"$instance"') == len(re.findall(r"\bagentfw_\w+", query.text)), query


def test_a_hit_is_what_the_page_calls_one() -> None:
    """Of the dashboard's DNS hit rate: what `views.dns_cache()` counts, and nothing else."""
    counted: set[str] = set()

    class Asked(dict[str, float]):
        def get(self, name: str, default: Any = None) -> Any:  # type: ignore[override]
            counted.add(name)
            return default

    dns_cache(Asked())
    names = {declared.full_name for declared in CATALOG if counted & set(declared.source)}
    found = [query for query in of_dashboard() if "agentfw_dns_cache_hits_total" in query.text]
    assert len(counted) == 8 and len(found) == 2
    for query in found:
        assert set(re.findall(r"\bagentfw_\w+", query.text)) == names and query.text.count('what="hits"') == 1


def test_the_alerts() -> None:
    metrics = known()
    assert not [fault for query in of_alerts() for fault in faults(query, metrics)]
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) > 10
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info") and rule["annotations"]["summary"].endswith(
            (".", "?")
        )


@pytest.mark.parametrize(
    ("text", "legend", "fault"),
    [
        ("agentfw_jops", "", "no metric"),
        ('agentfw_jobs{stat="queued"}', "", "no label stat"),
        ('agentfw_jobs{state="quoted"}', "", "no state quoted"),
        ('agentfw_jobs{state=~"queued|runs"}', "", "no state runs"),
        ("rate(agentfw_jobs[5m])", "", "no counter"),
        ("agentfw_flows_total", "", "a counter"),
        ("sum by (kynd) (rate(agentfw_flows_total[5m]))", "", "no label kynd"),
        ("sum by (kind) (rate(agentfw_flows_total[5m]))", "{{what}}", "no label what"),
        ("sum(rate(agentfw_flows_total[5m]))", "{{kind}}", "no label kind"),
        ("agentfw_jobs", "{{ $labels.what }} {{ $value | humanize }}", "no label what"),
        ("histogram_quantile(0.9, sum by (job) (rate(agentfw_dispatch_duration_seconds_bucket[5m])))", "", "without `le`"),
        ("rate(agentfw_dispatch_duration_seconds[5m])", "", "no metric"),
        ("agentfw_jobs / (agentfw_nothing)", "", "no metric"),
        ("sum(agentfw_jobs", "", "here: "),
    ],
)
def test_what_is_wrong_is_found(text: str, legend: str, fault: str) -> None:
    (found,) = faults(Query("here", text, legend), known())
    assert fault in found


def test_the_dashboard_can_be_imported() -> None:
    text = DASHBOARD.read_text()
    document = json.loads(text)
    assert text == json.dumps(document, indent=1) + "\n" and document["uid"] == "agentfw" and document["schemaVersion"] >= 36
    names = {variable["name"]: variable for variable in document["templating"]["list"]}
    assert set(names) == {"datasource", "job", "instance"} and names["datasource"]["query"] == "prometheus"
    assert all("agentfw_build_info" in names[name]["definition"] for name in ("job", "instance"))
    found = list(panels(document))
    assert len({panel["id"] for panel in found}) == len(found)
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in found:
        if panel["type"] != "row":
            assert panel["datasource"] == source and panel["description"] and panel["targets"]
            assert all(target["datasource"] == source for target in panel["targets"])
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for one, other in itertools.combinations([panel["gridPos"] for panel in found], 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in found)
    assert "__inputs" not in document and "://" not in text


@pool_test
async def test_all_that_is_asked_for_is_in_a_real_scrape(tmp_path: Path) -> None:
    tables = {"audit": {"file": str(tmp_path / "audit.jsonl")}, "dashboard": {"listen": ""}}
    async with running(plugins=PLUGINS, tables=tables, workers=2) as router:
        await finish(router, ["out", "x"])
        values = await router.metrics()
    found = scrape(values)
    there: dict[str, set[str]] = {}
    for name, labels in found:
        there.setdefault(name, set()).update(label for label, _ in labels)
    # What only happens when something is wrong is there when it did.
    seldom = {f"agentfw_hook_{what}_total" for what in ("denied", "errors", "timeouts", "blocked")}
    asked = {name for query in (*of_dashboard(), *of_alerts()) for name in re.findall(r"\bagentfw_\w+", query.text)}
    assert len(asked) > 40 and asked - set(there) <= seldom
    for name in asked & set(there):
        assert there[name] == known()[name].labels - {"job", "instance"}, name
    assert {declared.full_name for declared in CATALOG if declared.kind != "histogram"} - set(there) <= seldom
    others = [name for name in there if name.startswith("agentfw_plugin_")]
    assert others == ["agentfw_plugin_engine_runs"], (
        "the fake engine's own; whoever adds a counter declares it in metrics/catalog.py"
    )


def test_files_are_as_the_page_names_them() -> None:
    page = (DASHBOARD.parents[1] / "metrics.md").read_text()
    assert "(grafana/agentfw.json)" in page and "(prometheus/alerts.yml)" in page and ALERTS.exists()
    assert expose({})[0]
