"""docs/plugins.md and reference/configuration.md say what is there: hooks with their signatures, keys, and examples that run."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import agentfw_audit
import agentfw_capture
import agentfw_credentials
import agentfw_dashboard
import agentfw_dns_cache
import agentfw_inspect
import agentfw_native
import agentfw_otel
import agentfw_policy
import agentfw_tls_pool
import pytest
from agentfw import Destination, Headers, RequestHead, hookspecs
from agentfw.config import Config, load_config
from agentfw.plugins import load_plugins
from agentfw.pool.engine import EngineCounts
from agentfw.testing import make_agent

from tests.pool import fake_work

from .support import async_test, running

DOCS = Path(__file__).parents[2] / "docs"
PLUGINS = (DOCS / "plugins.md").read_text()
CONFIGURATION = (DOCS / "reference/configuration.md").read_text()
HOOKS = [value for value in vars(hookspecs).values() if hasattr(value, "agentfw_spec")]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.__name__)
def test_specifications_say_when_and_how_long(hook: object) -> None:
    doc = inspect.getdoc(hook)
    assert doc is not None and re.search(r"\n\nBudget: \S.*\.\Z", doc) and len(doc.partition("\n\nBudget:")[0]) > 20


def test_hooks_are_sorted_by_what_they_are_for() -> None:
    """Their reference is generated (tests/docs/test_generated.py)."""
    table = PLUGINS.split("\n## Hooks\n")[1].split("\n\n[Hooks]")[0]
    told = re.findall(r"`(\w+)`", table)
    assert sorted(told) == sorted(hook.__name__ for hook in HOOKS)  # type: ignore[attr-defined]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_plugin_example_runs(tmp_path: Path) -> None:
    before, tests = PLUGINS.split("\n## Testing one\n")
    plugin, header, spend = blocks(before, "python")[:3]
    hooks_alone, exchange, _ = blocks(tests.split("\n## ")[0], "python")
    (tmp_path / "my_policy.py").write_text(plugin)
    assert load_plugins([str(tmp_path / "my_policy.py")], load_config(directory=tmp_path)).hooks("my_policy") == ["allow"]
    for name, text in (("hooks_alone.py", hooks_alone), ("exchange.py", exchange)):
        (tmp_path / name).write_text(text)
        subprocess.run([sys.executable, name], cwd=tmp_path, check=True, timeout=60)

    (tmp_path / "team_header.py").write_text(header)
    (tmp_path / "agentfw.toml").write_text('[team_header]\nteam = "red"\n')
    manager = load_plugins([str(tmp_path / "team_header.py")], load_config(directory=tmp_path))
    head = RequestHead("GET", "/", Headers([("X-Team", "blue")]))
    asyncio.run(manager.request(make_agent(), Destination.make("https", "api.example"), head, None))
    assert list(head.headers) == [("x-team", "red")] and manager.statistics() == {"team_header.marked": 1}

    (tmp_path / "spend.py").write_text(spend)
    manager = load_plugins([str(tmp_path / "spend.py")], Config())
    manager.model_call(make_agent(team="red"), fake_work.call(input_tokens=3, output_tokens=4))
    manager.exchange_end(make_agent(), fake_work.exchange(error="cut"))
    assert manager.statistics() == {"spend.tokens.red": 7, "spend.requests": 1, "spend.failed": 1}


@pytest.mark.kvm
def test_the_example_with_a_virtual_machine_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agentfw_environment: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", agentfw_environment["XDG_CACHE_HOME"])
    (tmp_path / "my_policy.py").write_text(blocks(PLUGINS, "python")[0])
    space: dict[str, Any] = {}
    exec(blocks(PLUGINS.split("\n## Testing one\n")[1], "python")[2], space)
    space["test_a_program"]()


@pytest.mark.parametrize("name", ["office_hours", "helper_token", "leak_watch"])
def test_the_worked_examples_are_the_files(name: str) -> None:
    section = PLUGINS.split("\n## Three worked examples\n")[1].split(f"`examples/plugins/{name}.py`")[1].split("\n### ")[0]
    file = (DOCS.parent / "examples/plugins" / f"{name}.py").read_text()
    found = blocks(section, "python")
    assert len(found) >= 2
    for block in found:
        assert block in file, block


def test_versions_agree() -> None:
    assert f"`agentfw.hookspecs.API_VERSION` is {hookspecs.API_VERSION}." in PLUGINS


def test_the_configuration_example_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agentfw.toml").write_text(blocks(CONFIGURATION, "toml")[0])
    monkeypatch.setenv("OPENAI_API_KEY", "sk-something-else")
    config = load_config(tmp_path / "agentfw.toml")
    assert config.run.plugins is not None and load_plugins(config.run.plugins, config).names == list(config.run.plugins)


def rows(text: str, column: int) -> set[str]:
    """The names in backquotes in this column of the tables of `text`."""
    cells = [line.split("|")[column] for line in text.splitlines() if line.startswith("| ")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def counters(section: str) -> set[str]:
    return rows(re.split(r"\n## ", (DOCS / "reference/counters.md").read_text().split(f"\n## {section}\n")[1])[0], 1)


def test_the_counters_of_the_core_are_documented() -> None:
    counted = re.compile(r"""counters\["(\w+)"\] \+=|count\("(\w+)"\)""")
    files = [file for file in (DOCS.parent / "core/agentfw").rglob("*.py") if "mock_llm" not in file.parts]
    used = {match[1] or match[2] for file in files for match in counted.finditer(file.read_text())}
    assert counters("core") == used | {"flows_tcp", "flows_udp"}  # counted by kind


def test_the_counters_of_a_pool_are_documented() -> None:
    text = (DOCS.parent / "core/agentfw/pool/stock.py").read_text()
    counted = {name for line in text.splitlines() if "self.counted[" in line for name in re.findall(r'"(\w+)"', line)}
    gauges = {"running", "idle", "warming", "waiting", "cells", "memory"}
    assert counters("pool") == counted | gauges
    assert gauges == {*EngineCounts.__struct_fields__} - {"counters"}


@async_test
async def test_the_counters_of_plugins_are_documented(tmp_path: Path) -> None:
    async with running(
        agentfw_dns_cache.Plugin(agentfw_dns_cache.DnsConfig()),
        agentfw_tls_pool.Plugin(agentfw_tls_pool.TlsConfig()),
        agentfw_policy.Plugin(agentfw_policy.Config()),
        agentfw_credentials.Plugin(agentfw_credentials.Config()),
        agentfw_native.Plugin(agentfw_native.Config()),
        agentfw_inspect.Plugin(agentfw_inspect.Config()),
        agentfw_audit.Plugin(agentfw_audit.Config(file=str(tmp_path / "audit.log"))),
        agentfw_otel.Plugin(agentfw_otel.Config()),
        agentfw_capture.Plugin(agentfw_capture.Config()),
        agentfw_dashboard.Plugin(agentfw_dashboard.Config(listen="")),
    ) as runtime:
        told: dict[str, set[str]] = {}
        for key in runtime.plugins.statistics():
            plugin, _, name = key.partition(".")
            told.setdefault(plugin, set()).add(name)
    own = ("policy", "credentials", "native", "inspect", "audit", "capture", "otel", "dashboard")
    documented = {plugin: counters(plugin) for plugin in own}
    documented["dns"] = rows((DOCS / "dns.md").read_text().split("\n## Counters\n")[1], 1)
    documented["tls"] = rows(CONFIGURATION.split("\n## [tls]\n")[1].split("\nCounters (")[1], 2)
    assert documented == told


def test_every_module_of_the_core_has_its_place() -> None:
    text = (DOCS / "internals.md").read_text()
    core = DOCS.parent / "core/agentfw"
    names = {path.stem for path in core.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert not {name for name in names if not name.startswith("_") and f"agentfw.{name}" not in text and f"{name}.py" not in text}
