"""How-to pages: what can be run of them without another machine is run, with the real command and in real VMs."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import ROOT, blocks
from .shell import Shell

HOWTO = ROOT / "docs/howto"


def of(page: str, language: str) -> list[str]:
    return [block.text for block in blocks(HOWTO / page) if block.language == language]


@pytest.mark.kvm
def test_tests_with_mocks_pass(tmp_path: Path, agentfw_environment: dict[str, str]) -> None:
    """test-in-ci.md: the file of tests, by a pytest of its own."""
    (test,) = of("test-in-ci.md", "python")
    (tmp_path / "test_agent.py").write_text(test)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_agent.py"],
        cwd=tmp_path, env=agentfw_environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout


@pytest.mark.kvm
def test_a_program_asks_the_mocked_model(reader: Shell, tmp_path: Path) -> None:
    """test-in-ci.md: the model server, the key and ci.toml; on a port that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (commands,) = (text for text in of("test-in-ci.md", "sh") if "mock-llm" in text)
    (ci,) = of("test-in-ci.md", "toml")
    work = tmp_path / "work"
    (work / "ci.toml").write_text(ci.replace("8443", port))
    ((_, ask),) = ((block.name, block.text) for block in blocks(ROOT / "docs/tutorial.md") if block.name == "ask.py")
    (work / "agent.py").write_text(ask)
    reader.run(commands.replace("8443", port), ["All is well.", "I know the key sk-agentfw-placeholder"])


def test_a_policy_is_tested(reader: Shell, tmp_path: Path) -> None:
    """write-and-test-a-policy.md: the rules, and the commands that ask about them."""
    _, rules = of("write-and-test-a-policy.md", "toml")
    asked, tested = of("write-and-test-a-policy.md", "sh")
    (tmp_path / "work/agentfw.toml").write_text(rules)
    reader.run(
        asked,
        [
            "  connect   allowed by policy.rule: files, read only",
            "  request   DELETE /public/a denied",
            "  connect   allowed by policy.profile.build.allow",
        ],
    )
    reader.run(f"({tested})", [])
    for right, wrong in (
        ('allow = ["api.openai.com", ', 'allow = ["api.openai.com:22", '),
        ('allow = ["api.openai.com", ', 'allow = ["api.openai.com", "api.other.com", '),
        ('["GET", "HEAD"]', '["GET", "HEAD", "DELETE"]'),
        ('["GET", "HEAD"]', '["HEAD"]'),
        ("[policy]", "[polcy]"),
    ):
        (tmp_path / "work/agentfw.toml").write_text(rules.replace(right, wrong))
        reader.run(f"({tested}); test $? != 0", [])
    (tmp_path / "work/agentfw.toml").write_text(rules)
    reader.run(f"({tested.replace('--method', '--metod')}); test $? != 0", [])


@pytest.mark.kvm
def test_a_plugin_is_used_beside_the_others(reader: Shell, tmp_path: Path) -> None:
    """write-a-plugin.md"""
    (plugin,) = of("write-a-plugin.md", "python")
    (tmp_path / "work/no_fridays.py").write_text(plugin)
    (tmp_path / "work/agent.py").write_text(
        "import socket\ntry:\n    socket.getaddrinfo('x.example', 1)\nexcept OSError as error:\n    print(error)\n"
    )
    used, project = of("write-a-plugin.md", "sh")
    reader.run(
        used,
        [
            "no_fridays: ./no_fridays.py",
            "hook policy.allow agent-1 dns://x.example:53 denied",
            "[Errno -3] Temporary failure in name resolution",
        ],
    )
    reader.run(project.splitlines()[0], ["next:"])
    assert (tmp_path / "work/night_shift/pyproject.toml").is_file()


@pytest.mark.kvm
def test_snapshots_are_kept_and_moved(reader: Shell, tmp_path: Path) -> None:
    """keep-snapshots.md: here and on the other machine, which is the same."""
    (tmp_path / "work/agent.py").write_text("import sys; print('sqlite3' in sys.modules)\n")
    cleared, kept, moved = of("keep-snapshots.md", "sh")
    reader.run(cleared.replace("agentfw cache clear", ""), [])  # other tests use what is kept
    reader.run(kept, ["tools"])
    reader.run("agentfw snapshot rm tools", [])
    reader.run(moved, ["True"])


@pytest.mark.kvm
def test_programs_use_a_pool(tmp_path: Path, agentfw_environment: dict[str, str]) -> None:
    """use-from-python.md: its first program; the functions behind it, by one that calls them."""
    first, ask, careful = of("use-from-python.md", "python")
    (tmp_path / "agent.py").write_text("import sys\nprint('got', sys.argv[1:] or input())\n")
    more = "async def rest():\n    async with agentfw.Pool(size=4) as pool:\n"
    more += "        print((await ask(pool)).exit_code, (await careful(pool)).stdout)\n"
    (tmp_path / "main.py").write_text(first.replace("size=50", "size=4"))
    (tmp_path / "rest.py").write_text(f"import asyncio\n{ask}\n{careful}\n{more}\nasyncio.run(rest())\n")
    told = []
    for name in ("main.py", "rest.py"):
        done = subprocess.run(
            [sys.executable, name], cwd=tmp_path, env=agentfw_environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    assert "0 got ['--ticket', '17']" in told[0] and {"Berlin 0", "Rome 0"} <= set(told[0].splitlines())
    assert re.search(r"got first question\n+0 a,b\n1,2", told[1]), told[1]
