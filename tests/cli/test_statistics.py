"""Rows of `--stats`, and what `--json` has of a VM."""

from __future__ import annotations

import errno

from agentfw import Agent, ExitReport
from agentfw.cli.output import Kept
from agentfw.cli.statistics import document_of, split_hooks, statistics_of
from agentfw.fleet import Result
from agentfw_vmm import Sight
from agentfw_vmm.rules import FileRule, compile_rules

from ..sights import made, report


def test_a_row_for_each_plugin_and_hook() -> None:
    counted = {
        "core.flows": 3,
        "hooks.policy.allow.calls": 1204,
        "hooks.policy.allow.seconds": 0.004936,
        "hooks.policy.allow.longest": 0.00021,
        "hooks.policy.allow.denied": 3,
        "hooks.mine.resolve.calls": 1,
        "hooks.mine.resolve.seconds": 2.5,
        "hooks.mine.resolve.longest": 2.5,
        "hooks.mine.resolve.timeouts": 1,
        "hooks.mine.resolve.errors": 2,
        "hooks.mine.start.calls": 1,
        "hooks.mine.start.seconds": 0.05,
        "hooks.mine.start.longest": 0.05,
        "hooks.mine.statistics.calls": 1,
        "hooks.mine.statistics.seconds": 0.05,
        "hooks.mine.statistics.longest": 0.05,
        "hooks.mine.statistics.errors": 1,
        "tls.held": 2,
    }
    assert split_hooks(counted) == (
        {"core.flows": 3, "tls.held": 2},
        [
            ("hook mine.resolve", "1 call, 2 failed, 1 timed out, 2.50 s each, 2.50 s at most"),
            ("hook mine.statistics", "1 call, 1 failed, 50.00 ms each, 50.00 ms at most"),
            ("hook policy.allow", "1204 calls, 3 denied, 4.1 us each, 210.0 us at most"),
        ],
    )


def test_small_numbers_are_not_rounded_to_nothing() -> None:
    counted = {"inspect.cost": 0.00009, "inspect.seconds": 12.34567, "core.flows_tcp": 3, "inspect.none": 0.0}
    text = statistics_of([], counted, 1.5)
    rows = dict(line.rsplit(maxsplit=1) for line in text.splitlines())
    assert (rows["inspect.cost"], rows["inspect.seconds"], rows["core.flows_tcp"]) == ("9e-05", "12.346", "3")
    assert "inspect.none" not in rows


def test_durations_have_a_row_each() -> None:
    counted = {
        "core.dns_seconds.bucket.0.005": 3,
        "core.dns_seconds.bucket.inf": 1,
        "core.dns_seconds.sum": 12.0,
        "their.sum": 5,
        "hooks.policy.allow.calls": 2,
        "hooks.policy.allow.seconds": 0.000002,
        "hooks.policy.allow.longest": 0.000001,
        "hooks.policy.allow.bucket.1e-06": 2,
    }
    assert split_hooks(counted) == (
        {"their.sum": 5},
        [("core.dns", "4, 3.00 s each"), ("hook policy.allow", "2 calls, 1.0 us each, 1.0 us at most")],
    )


def result(sight: Sight, **counters: int) -> Result:
    return Result(Agent("1", "one"), ExitReport("code", vm=report(sight, **counters)))


def test_what_vms_did() -> None:
    table = compile_rules([FileRule("/secret", "hide"), FileRule("**/.env", "deny")])
    files = [("/a", 1, 2, 0, 0, 0), ("/secret/k", 1, 3, errno.ENOENT, 2, 3), ("/w/.env", 0, 1, errno.EACCES, 1, 2)]
    one = made({"read": 5, "getpid": 900}, [("openat", 3, 1, 0.002), ("pread", 2, 0, 0.5)], files, table=compile_rules(
        [FileRule("**/.env", "deny"), FileRule("/secret", "hide")]))  # fmt: skip
    two = made({"getpid": 50, "pread64": 7}, [("pread", 9, 0, 1.0), ("cpuid", 1, 0, 0.0)], files[:1], more=4, table=table)
    text = statistics_of([result(one, refused_paths=4), result(two), Result(Agent("2", "none"), ExitReport("internal"))], {}, 1)
    rows = dict(line.split("  ", 1) for line in text.splitlines())
    told = {name: value.strip() for name, value in rows.items()}
    assert told["most system calls"] == "getpid 950, pread64 7, read 5"
    assert told["longest in the host"] == "pread64 1.00 s, read 500.00 ms, openat 2.00 ms"
    assert told["paths opened or refused"] == "4, and 4 opens more"
    assert told["refused by their rules"] == "4 paths, 0 system calls (hide /secret 3, deny **/.env 1)"
    assert "most system calls" not in statistics_of([], {}, 1)


def test_an_agents_calls_and_files_as_json() -> None:
    sight = made(
        {"read": 5},
        [("pread", 2, 1, 0.5), ("cpuid", 1, 0, 0.0)],
        [("/a\x1b[1m\n\u202e", 3, 2, 0, 0, 0), ("/a\x1a[1m\r\u202d", 3, 1, 0, 0, 0)],
    )
    kept = Kept()
    agent = document_of([result(sight)], [(kept, kept)], {}, [], 1)["agents"][0]
    assert agent["syscalls"] == [
        {"name": "read", "count": 5, "host_count": 2, "host_seconds": 0.5, "errors": 1},
        {"name": "(cpuid)", "count": 0, "host_count": 1, "host_seconds": 0.0, "errors": 0},
    ]
    assert agent["files"] == [{"path": "/a?[1m??", "mode": "rw", "count": 3, "error": "", "rule": ""}] and not agent["more_files"]
