"""What virtual machines may not do: the rules themselves, the hook, and [policy]'s part in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agentfw import Agent, hookimpl
from agentfw.config import Config
from agentfw.errors import HookError
from agentfw.guest_rules import FileRule, GuestRules, enforced_by, same_calls
from agentfw.plugins import load_plugins
from agentfw.testing import make_agent, make_runtime
from agentfw_policy.cli import policy
from click.testing import CliRunner

from .support import async_test


def test_merged_is_refused_by_any() -> None:
    one = GuestRules((FileRule("/a", "read"),), frozenset({"link"}), error="ENOSYS")
    other = GuestRules((FileRule("/a", "hide"),), frozenset({"symlink"}), frozenset({"link"}), frozenset({"clone"}))
    both = GuestRules.merged([one, other])
    assert both == GuestRules(
        (FileRule("/a", "read"), FileRule("/a", "hide")),
        frozenset({"link", "symlink"}),
        frozenset({"link"}),
        frozenset({"clone"}),
        "EPERM",
    )
    assert GuestRules.merged([one]) is one and not GuestRules.merged([]) and GuestRules.merged([]).table() == b""
    assert both.table() == both.table() != one.table()
    limited = GuestRules.merged([GuestRules(write_bytes=5), GuestRules(write_bytes=3, creates=0), one])
    assert (limited.write_bytes, limited.creates) == (3, 0) and GuestRules(creates=0)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"files": (FileRule("a", "deny"),)}, "files: a: begins neither"),
        ({"deny": frozenset({"read"})}, "`read` does not leave the virtual machine"),
        ({"kill": frozenset({"openn"})}, r"no system call `openn` \(`open`\?\)"),
        ({"advisory": frozenset({"x"})}, "no system call `x`"),
        ({"error": "EIO"}, "EPERM or ENOSYS"),
    ],
)
def test_what_cannot_be_enforced_cannot_be_said(arguments: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        GuestRules(**arguments)  # type: ignore[arg-type]


def test_who_enforces() -> None:
    assert [enforced_by(name) for name in ("symlink", "mmap", "ptrace", "openat2")] == ["host", "guest", "absent", "host"]
    assert set(same_calls("rename")) == {"rename", "renameat", "renameat2"} and same_calls("mmap") == ("mmap",)


class Says:
    def __init__(self, name: str, said: object) -> None:
        self.name = name
        self.said = said

    @hookimpl
    def guest_rules(self, agent: Agent) -> object:
        return self.said


async def _merged(*said: object) -> GuestRules:
    return make_runtime(*(Says(f"p{i}", each) for i, each in enumerate(said))).plugins.guest_rules(make_agent())


@async_test
async def test_all_plugins_count_and_none_fails_open() -> None:
    link, symlink = GuestRules(deny=frozenset({"link"})), GuestRules(deny=frozenset({"symlink"}))
    assert (await _merged(link, None, symlink)).deny == {"link", "symlink"}
    assert not await _merged(None)
    for nonsense in ({"deny": ["link"]}, True, "link"):
        with pytest.raises(HookError, match="guest_rules"):
            await _merged(link, nonsense)


TABLE = {
    "files": {"hide": ["**/.env"], "read_only": ["/data/**", "/x"]},
    "syscalls": {"deny": ["symlink", "ptrace"], "advisory": ["clone", "link", "mount"]},
    "profile": {"strict": {"files": {"deny": ["/w"]}, "syscalls": {"kill": ["unlinkat"]}}},
}


def test_profiles_add_to_what_holds_for_all() -> None:
    plugins = load_plugins(["policy"], Config({"policy": TABLE}))
    plain, strict = plugins.guest_rules(make_agent()), plugins.guest_rules(make_agent("other", policy="strict"))
    assert {rule.pattern for rule in plain.files} == {"**/.env", "/data/**", "/x"} and not plain.kill
    assert set(strict.files) == {*plain.files, FileRule("/w", "deny")} and strict.kill == {"unlinkat"}
    assert strict.deny == plain.deny


def test_check_says_who_enforces_what(tmp_path: Path) -> None:
    file = tmp_path / "agentfw.toml"
    file.write_text("""\
[policy.files]
hide = ["**/.env"]
read_only = ["/data/**", "/x"]
[policy.syscalls]
deny = ["symlink", "ptrace"]
advisory = ["clone", "link", "mount"]
""")
    done = CliRunner().invoke(policy, ["check", "--config", str(file)])
    lines = done.output.splitlines()
    assert "policy: patterns of files: 1 hidden, 2 read-only" in lines
    assert "policy: the host refuses: symlink, symlinkat" in lines
    assert "policy: refused inside the virtual machine only, which is no boundary: clone, link" in lines
    assert "policy: no virtual machine has: mount, ptrace" in lines
    assert any(
        line.endswith(":6: warning: `link`: the host can refuse it, under `deny`; here it is no boundary") for line in lines
    )
    document = json.loads(CliRunner().invoke(policy, ["check", "--json", "--config", str(file)]).output)
    assert document["guests"]["policy"]["syscalls"]["host"] == ["symlink", "symlinkat"]
    file.write_text('[policy.syscalls]\ndeny = ["mmap"]\n')
    done = CliRunner().invoke(policy, ["check", "--config", str(file)])
    assert "policy.syscalls.deny.0: `mmap` does not leave the virtual machine" in done.output
