"""Python on top of the policy: it may refuse more, never allow more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from agentfw import Agent, Denied, Destination, RequestHead, hookimpl
from agentfw.config import load_config
from agentfw.plugins import load_plugins
from agentfw.testing import FakeServer, PathError, fetch, make_agent, make_runtime, running

from ..core.support import async_test
from .support import AGENT, policy


class Permissive:
    """Says yes to everything, before and behind the policy."""

    name = "permissive"

    @hookimpl
    def allow(self, agent: Agent, destination: Destination) -> None:
        return None

    @hookimpl
    def dial(self, address: str) -> bool:
        return True

    @hookimpl
    def own_tls(self) -> str:
        return "passthrough"


@async_test
async def test_it_cannot_allow_what_the_policy_denies() -> None:
    for order in (0, 1):
        plugin = policy(
            allow=["a.example", "t.example"],
            deny=["10.0.0.0/8"],
            rule=[{"action": "allow", "host": "t.example", "own_tls": "intercept"}],
        )
        plugins: list[object] = [plugin, Permissive()]
        runtime = make_runtime(*(reversed(plugins) if order else plugins))
        for host in ("b.example", "10.1.1.1"):
            with pytest.raises(Denied) as caught:
                await runtime.plugins.allow(AGENT, Destination.make("tcp", host, 1))
            assert caught.value.plugin == "policy"
        with pytest.raises(Denied) as caught:
            runtime.plugins.dial(AGENT, Destination.make("tcp", "a.example", 1), "10.0.0.1")
        assert caught.value.rule == "policy.deny: 10.0.0.0/8"
        assert runtime.plugins.dial(AGENT, Destination.make("tcp", "a.example", 1), "192.168.0.1") is True, (
            "here it has no opinion"
        )
        assert await runtime.plugins.own_tls(AGENT, Destination.make("tls", "t.example", 443)) == "intercept"


class Late:
    """Refuses what the policy lets pass, and sees no request that it does not."""

    name = "late"

    def __init__(self) -> None:
        self.seen: list[str] = []

    @hookimpl
    def request(self, destination: Destination, head: RequestHead) -> None:
        self.seen.append(head.target)
        if head.target == "/late":
            raise Denied("late", "no")


@async_test
async def test_it_can_deny_what_the_policy_allows() -> None:
    late, server = Late(), FakeServer()
    async with running(
        late, policy(rule=[{"action": "allow", "host": "a.example", "paths": ["/ok", "/late"]}]), server
    ) as runtime:
        statuses = [(await fetch(runtime, f"https://a.example{path}")).status for path in ("/ok", "/late", "/no", "//ok")]
    assert statuses == [200, 403, 403, 403]
    assert late.seen == ["/ok", "/late"], "the policy is asked first, in whatever order they are named"
    assert [request.target for request in server.requests] == ["/ok"]


@async_test
async def test_the_example_in_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs/reference/configuration.md").read_text()
    example = re.findall(r"```python\n(.*?)```", text.split("### Python on top")[1], re.DOTALL)[0]
    (tmp_path / "my_rules.py").write_text(example.replace("datetime.date.today().weekday()", "4"))
    (tmp_path / "agentfw.toml").write_text('[policy]\nallow = ["deploy.example", "a.example"]\n')
    manager = load_plugins(["policy", str(tmp_path / "my_rules.py")], load_config(tmp_path / "agentfw.toml"))
    await manager.allow(make_agent(), Destination.make("https", "a.example", 443))
    with pytest.raises(Denied) as caught:
        await manager.allow(make_agent(), Destination.make("https", "deploy.example", 443))
    assert caught.value.plugin == "my_rules"
    with pytest.raises(Denied) as caught:
        await manager.allow(make_agent(), Destination.make("https", "b.example", 443))
    assert caught.value.plugin == "policy"


@async_test
async def test_upgrades() -> None:
    """A WebSocket's path is known, what is said in it is not."""
    for upgrade, status in ((False, 403), (True, 200)):
        rule = {"action": "allow", "host": "a.example", "paths": ["/ws"], "upgrade": upgrade}
        async with running(policy(rule=[rule]), FakeServer()) as runtime:
            headers = {"Connection": "Upgrade", "Upgrade": "websocket"}
            assert (await fetch(runtime, "https://a.example/ws", headers=headers)).status == status
            assert (await fetch(runtime, "https://a.example/ws")).status == 200
            with pytest.raises(PathError):
                await fetch(runtime, "https://b.example/ws", headers=headers)
