"""A pool with real VMs, scraped: each thing that happened is counted once, with how long it took."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from agentfw import Code, Pool

from ..metrics.support import Series, of, scrape

pytestmark = pytest.mark.kvm

AGENT = """
import urllib.request, socket
print(urllib.request.urlopen("https://api.example/").status)
try:
    socket.getaddrinfo("denied.example", 80)
except OSError:
    print("denied")
"""


def test_what_agents_did_is_in_the_scrape(
    nothing_left: None, agentfw_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", agentfw_environment["XDG_CACHE_HOME"])
    found = asyncio.run(scraped(tmp_path))
    assert (
        of(found, "agentfw_jobs_ended_total", how="succeeded") == 3 and of(found, "agentfw_jobs_ended_total", how="failed") == 1
    )
    assert of(found, "agentfw_vms_dispatched_total") == 4
    for name in ("dispatch", "vm_wait"):
        assert of(found, f"agentfw_{name}_duration_seconds_count") == 4
    assert of(found, "agentfw_dispatch_duration_seconds_sum") > 0  # type: ignore[operator]
    made = sum(value for (name, _), value in found.items() if name == "agentfw_vms_made_total")
    warm = of(found, "agentfw_vm_warmup_duration_seconds_count")
    assert warm is not None and 4 <= warm <= made
    assert of(found, "agentfw_connect_duration_seconds_count") == of(found, "agentfw_first_request_duration_seconds_count") == 3
    assert of(found, "agentfw_http_requests_total") == of(found, "agentfw_http_responses_total") == 3
    asked, denied = of(found, "agentfw_dns_questions_total"), of(found, "agentfw_dns_questions_denied_total")
    assert asked == of(found, "agentfw_dns_question_duration_seconds_count") and asked is not None and denied is not None
    assert 3 <= denied < asked
    assert of(found, "agentfw_network_bytes_total", direction="up") > 300  # type: ignore[operator]
    memory = of(found, "agentfw_physical_memory_bytes")
    assert memory is not None and memory > 10 << 20
    assert of(found, "agentfw_tenant_jobs_ended_total", tenant="default") == 4
    assert of(found, "agentfw_hook_duration_seconds_count", plugin="policy", hook="allow") > 6  # type: ignore[operator]
    assert of(found, "agentfw_metrics_left_out") == 0
    assert not [name for name, _ in found if name.startswith("agentfw_plugin_")]


INTERNET = """
from agentfw.testing import FakeServer


class Plugin(FakeServer):
    name = "internet"
"""


async def scraped(directory: Path) -> Series:
    (directory / "internet.py").write_text(INTERNET)
    tables: dict[str, Any] = {"policy": {"allow": ["api.example"]}}
    async with Pool(tables, plugins=["policy", str(directory / "internet.py")], workers=1, size=4, idle=2) as pool:
        for _ in range(3):
            result = await pool.run(Code(AGENT))
            assert (result.exit_code, result.stdout) == (0, "200\ndenied\n"), result
        assert (await pool.run(Code("raise SystemExit(3)"))).exit_code == 3
        return scrape(await pool.metrics())
