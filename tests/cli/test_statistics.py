"""Rows of `--stats` for hook calls."""

from __future__ import annotations

from agentfw.cli.statistics import split_hooks, statistics_of


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
