"""bench/conformance.py: it sees each way in which a VM may differ; and CPython's quick modules do not."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import WITHOUT_TESTS

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
SAMPLE = Path(__file__).with_name("guest") / "sample.py"
QUICK = (
    "test_epoll", "test_fileio", "test_mmap", "test_tempfile", "test_httplib", "test_threading_local",
    "test_struct", "test_errno", "test_contextlib", "test_copy", "test_uuid",
)  # fmt: skip


def part(name: str) -> ModuleType:
    """Of the package bench/conformance, which is not installed."""
    if "conformance" not in sys.modules:
        made = importlib.util.spec_from_file_location(
            "conformance", BENCH / "conformance/__init__.py", submodule_search_locations=[str(BENCH / "conformance")]
        )
        assert made is not None
        sys.modules["conformance"] = importlib.util.module_from_spec(made)
    return importlib.import_module(f"conformance.{name}")


known, outcome, modules, running = part("known"), part("outcome"), part("modules"), part("running")


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def bench(agentfw_environment: dict[str, str], tmp_path: Path, nothing_left: None) -> Run:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, BENCH / "conformance.py", *map(str, arguments)]
        return subprocess.run(command, env=agentfw_environment, cwd=tmp_path, capture_output=True, text=True, timeout=280)

    return run


@pytest.mark.kvm
def test_quick_modules_of_cpython(bench: Run) -> None:
    try:
        modules.directory(sys.executable)
    except modules.NoTests as trouble:
        pytest.skip(f"{WITHOUT_TESTS}: {trouble}")
    done = bench(*QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    total = next(line for line in done.stdout.splitlines() if line.startswith(f"{len(QUICK)} modules"))
    assert int(total.split("|")[2].split()[0]) > 560, done.stdout


@pytest.mark.kvm
def test_all_that_may_differ_is_seen(bench: Run, tmp_path: Path) -> None:
    listed = tmp_path / "known.toml"
    listed.write_text(
        "".join(
            f'[[known]]\npattern = "sample.Sample.test_{name}"\nreason = "tried"\nkind = "limit"\n'
            for name in ("j_known", "k_stale")
        )
    )
    out = tmp_path / "out.json"
    done = bench(SAMPLE, "--known", listed, "--json", out, "--stale", "--case-limit", 4)
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(out.read_text())["vm"]["sample"]
    assert {each["case"].rpartition(".")[2]: each["vm"] for each in found["differ"]} == {
        "test_a_fails_in_vm": "failed",
        "test_b_skipped_in_vm": "skipped",
        "test_c_hangs_in_vm": "hung",
        "test_e_crashes_in_vm": "crashed",
        "test_g_would_like_a_child": "failed",
        "test_i_z_has_no_child_of_its_own": "failed",
        "test_j_hangs_without_its_child": "hung",
        "test_m_subtest_fails_in_vm": "failed",
        "test_missing_in_vm": "missing",
    }
    assert [each["case"].rpartition(".")[2] for each in found["subprocess"]] == [
        "test_g_has_a_child",
        "test_g_would_have_a_child",
        "test_i_leaves_a_child",
        "test_n_skipped_in_vm",
    ]
    assert "one process" in found["subprocess"][0]["text"]
    assert found["unsteady"] == []
    assert sorted(found["excluded"]) == ["sample.Sample.test_j_known", "sample.Sample.test_k_stale"]
    assert found["whole"]
    stale = [line for line in done.stdout.splitlines() if line.startswith("stale: ")]
    assert len(stale) == 1 and "test_k_stale" in stale[0]
    assert "| differ | 9; unsteady 0 |" in done.stdout and "| need subprocesses | 4, in 1 modules |" in done.stdout
    assert "9 cases differ; known failures outside subprocesses: 2 patterns (goal: at most 46)" in done.stdout


def test_known_failures() -> None:
    entries = known.read(known.FILE)
    assert known.counted(entries) <= 46
    for entry in entries:
        assert "." in entry.pattern and not entry.pattern.startswith(("*", "?", "[", "test.")), entry


@pytest.mark.parametrize(
    "text",
    [
        "[[known]]\npattern = 'x'\nreason = ''\nkind = 'limit'",
        "[[known]]\npattern = 'x'\nreason = 'y'\nkind = 'whim'",
        "[[known]]\npattern = 'x'\nreason = 'y'\nkind = 'limit'\n" * 2,
        "[[known]]\npattern = 'x'\nreason = 'y'",
        "[[known]]\npattern = 'x'\nreason = 'y'\nkind = 'limit'\nsince = '3'",
        "[[unknown]]\npattern = 'x'\nreason = 'y'\nkind = 'limit'",
        "[known",
    ],
)
def test_what_is_no_list_of_known_failures(text: str, tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(text)
    with pytest.raises(ValueError):
        known.read(file)


def test_a_known_failure_may_be_of_newer_pythons_only(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text("[[known]]\npattern = 'x'\nreason = 'y'\nkind = 'limit'\nsince = '3.13'\n")
    (entry,) = known.read(file)
    assert [entry.applies(version) for version in ((3, 9, 9), (3, 11, 7), (3, 13, 0), (3, 14))] == [False, False, True, True]


def test_concerned_modules() -> None:
    def concerns(pattern: str, module: str) -> bool:
        found: bool = known.Known(pattern, "why", "limit").concerns(module)
        return found

    assert concerns("test_os.A.test_b", "test_os")
    assert concerns("test_*.A.test_b", "test_os")
    assert not concerns("test_os.A.test_b", "test_osx")
    assert concerns("ctypes.test.test_find.*", "test_ctypes")
    assert concerns("test_asyncio.*", "test_asyncio.test_events")
    assert not concerns("test_asyncio.test_events.*", "test_asyncio.test_base")


def test_a_case_that_is_skipped_natively_may_do_what_it_likes() -> None:
    native = outcome.Outcome("m", {"m.a": outcome.Case("skipped"), "m.b": outcome.Case("failed"), "m.c": outcome.Case("passed")})
    vm = outcome.Outcome("m", {"m.a": outcome.Case("error"), "m.c": outcome.Case("passed")})
    assert list(outcome.differences(native, vm)) == []


def test_a_module_that_does_not_load_differs_case_by_case() -> None:
    native = outcome.Outcome("m", {"m.a": outcome.Case("passed"), "m.b": outcome.Case("expected failure")})
    vm = outcome.Outcome("m", {outcome.MODULE: outcome.Case("error", "ImportError")})
    assert [each.case for each in outcome.differences(native, vm)] == ["m.(module)", "m.a", "m.b"]
    known.exclude([known.Known("m.*", "why", "limit")], native, vm)
    assert list(outcome.differences(native, vm)) == []


def test_without_tests_it_is_said_where_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(modules.NoTests, match="libpython3-testsuite"):
        modules.directory("/usr/bin/python3")


@pytest.mark.parametrize(
    "line",
    ["", "no JSON", "5", "null", "{}", "[]", "[5]", "[[]]", '["start"]', '["start", 5]', '["start", ["a"]]', '["end", "a"]',
     '["end", "a", "passed", null, 0.1, false]', '["end", ["a"], "passed", "", 0.1, false]', '["excluded", {}]', '["error", 5]',
     '["other", "a"]', '["start", "a", "b"]', '["whole"]', '["start", "\ud800"]', '["start",' + "[" * 100_000],
)  # fmt: skip
def test_what_is_no_line_of_a_run(line: str) -> None:
    listener = outcome.Listener("sample")
    with pytest.raises(ValueError):
        listener.line(line)
    assert listener.outcome == outcome.Outcome("sample") and not listener.running


@pytest.mark.parametrize("lines", [["bad", '["start", "b"]'], ["bad"]])
def test_a_bad_line_ends_its_run_and_no_other(lines: list[str]) -> None:
    """The last line may have been cut by whatever ended the run; any other is an error, and the rest is begun again."""
    attempts: list[list[str]] = []

    async def said(words: list[str]) -> AsyncGenerator[str, None]:
        for word in words:
            yield word

    async def attempt(wish: Any, listener: Any) -> None:
        attempts.append(listener.done)
        words = ['["start", "a"]', *lines] if len(attempts) == 1 else ['["whole", 1]']
        await running._listen(wish, listener, said(words))

    found = asyncio.run(running.run(running.Wish("sample"), attempt))
    if len(lines) == 1:
        assert attempts == [[]] and not found.cases
    else:
        assert attempts == [[], ["a"]] and found.whole
        assert found.cases["a"].outcome == "crashed" and "'bad' among the results" in found.cases["a"].text
