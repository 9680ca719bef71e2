"""Prometheus itself reads what a pool tells: its own checks of the text, of the alerts and of the documentation's prometheus.yml,
and a server that scrapes a pool and is asked all that the dashboard asks."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
import yaml
from agentfw.metrics import expose
from agentfw.pool.api import ApiServer

from ..debian import MISSING, Program, program
from ..pool.routers import finish, pool_test, running
from .queries import ALERTS, DOCS, of_dashboard

TOKEN = "a-token-of-the-tests-0123456789"
PLUGINS = ("dns", "tls", "policy", "credentials", "native", "inspect", "audit", "otel", "dashboard")


@pytest.fixture(scope="module")
def promtool() -> Program:
    return wanted("promtool")


def wanted(name: str) -> Program:
    found = program(name, "prometheus")
    if found is None:
        pytest.skip(f"no {name}: {MISSING[name]}")
    return found


def run(tool: Program, *arguments: str, text: bytes = b"", directory: Path | None = None) -> str:
    done = subprocess.run(
        [tool.path, *arguments], input=text, env=tool.environment, cwd=directory, timeout=60, capture_output=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return (done.stdout + done.stderr).decode()


def test_names_and_help_are_as_promtool_wants_them(promtool: Program) -> None:
    hook = "hooks.policy.allow"
    values = {
        f"{hook}.{what}": 1.0 for what in ("calls", "seconds", "longest", "denied", "errors", "timeouts", "blocked", "bucket.inf")
    }
    values |= {
        f"{owner}.x": 1.0 for owner in ("pool", "engine", "dns", "tls", "policy", "credentials", "native", "inspect", "audit")
    }
    values |= {
        "process.router.cpu_seconds": 1.5,
        "process.worker-0.open_fds": 7,
        "pool.tenants.a.b.queued": 1,
        "pool.tenants.other.ended": 1,
    }
    values |= {"third.party": 2, "third.requests_total": 3, 'evil"\\\n.name': 1, "third.size_count": 1}
    assert run(promtool, "check", "metrics", text=expose(values)[0]) == ""


def test_promtool_finds_what_is_wrong(promtool: Program) -> None:
    with pytest.raises(AssertionError, match="counter metrics should have"):
        run(promtool, "check", "metrics", text=b"# HELP x X.\n# TYPE x counter\nx 1\n")


def test_alerts_fire_when_they_should(promtool: Program, tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text(ALERTS.read_text())
    (tmp_path / "test.yml").write_text((Path(__file__).parent / "alerts_test.yml").read_text())
    assert "SUCCESS" in run(promtool, "check", "rules", "alerts.yml", directory=tmp_path)
    assert "SUCCESS" in run(promtool, "test", "rules", "test.yml", directory=tmp_path)


def scrape_config(token: Path, port: int) -> Any:
    """The one in the documentation, of this pool."""
    (text,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "metrics.md").read_text(), re.DOTALL)
    config = yaml.safe_load(text.replace("/etc/agentfw/token", str(token)).replace("127.0.0.1:8700", f"127.0.0.1:{port}"))
    (job,) = config["scrape_configs"]
    assert job["authorization"]["credentials_file"] == str(token) and job["static_configs"][0]["targets"] == [f"127.0.0.1:{port}"]
    job["scrape_interval"] = "1s"
    return config


@asynccontextmanager
async def server(tmp_path: Path, config: Any) -> AsyncIterator[str]:
    """A Prometheus; -> its URL."""
    tool = wanted("prometheus")
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            tool.path, f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
            env=tool.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ask(session: aiohttp.ClientSession, url: str, query: str) -> Any:
    async with session.get(f"{url}/api/v1/query?query={quote(query)}") as response:
        found = json.loads(await response.read())
        assert found["status"] == "success", (query, found)
        return found["data"]["result"]


@pool_test
async def test_a_server_scrapes_a_pool(tmp_path: Path) -> None:
    wanted("prometheus")
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    tables = {"audit": {"file": str(tmp_path / "audit.jsonl")}, "dashboard": {"listen": ""}}
    async with running(plugins=PLUGINS, tables=tables) as router:
        await finish(router, ["out", "x"])
        api = ApiServer(router, lambda seconds: None, grace=0.1)
        await api.start()
        try:
            port = await api.listen_tcp("127.0.0.1", 0, TOKEN.encode())
            config = scrape_config(token, port)
            (tmp_path / "alerts.yml").write_text(ALERTS.read_text())
            config["rule_files"] = [str(tmp_path / "alerts.yml")]
            async with server(tmp_path, config) as url, aiohttp.ClientSession() as session:
                await until_it_has(session, url, "count_over_time(agentfw_build_info[1m]) >= 2")
                assert (await ask(session, url, "up"))[0]["value"][1] == "1"
                assert (await ask(session, url, "agentfw_jobs_submitted_total"))[0]["value"][1] == "1"
                count = int((await ask(session, url, 'count({__name__=~"agentfw_.*"})'))[0]["value"][1])
                assert count > 300
                for query in of_dashboard():
                    await ask(session, url, query.text.replace("$job", ".*").replace("$instance", ".*"))
        finally:
            await api.close()


async def until_it_has(session: aiohttp.ClientSession, url: str, query: str) -> None:
    while True:
        try:
            if await ask(session, url, query):
                return
        except (aiohttp.ClientError, ValueError, AssertionError):
            pass  # it is starting
        await asyncio.sleep(0.2)
