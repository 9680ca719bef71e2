"""Whose turn it is: against the rule said plainly, and what comes of it in the long run."""

from __future__ import annotations

from collections import Counter

from agentfw.pool.fair import FairQueue
from hypothesis import given, settings
from hypothesis import strategies as st

TENANTS = ["a", "b", "c"]
SHARES = {"a": 1.0, "b": 2.0, "c": 0.5}
EVENTS = st.lists(st.tuples(st.sampled_from(["add", "add", "take", "end", "remove"]), st.sampled_from(TENANTS)), max_size=60)


@settings(max_examples=200, deadline=None)
@given(EVENTS, st.one_of(st.none(), st.integers(1, 3)))
def test_the_next_is_of_the_tenant_with_the_fewest_for_its_share(events: list[tuple[str, str]], limit: int | None) -> None:
    queue: FairQueue[int] = FairQueue(lambda tenant: (SHARES[tenant], limit))
    waiting: dict[str, list[int]] = {tenant: [] for tenant in TENANTS}
    running: Counter[str] = Counter()
    for number, (what, tenant) in enumerate(events):
        if what == "add":
            queue.add(tenant, number)
            waiting[tenant].append(number)
        elif what == "take":
            free = [name for name in TENANTS if waiting[name] and (limit is None or running[name] < limit)]
            entry = next(queue.in_order(), None)
            if not free:
                assert entry is None
                continue
            assert entry is not None
            owner = next(name for name in TENANTS if entry in waiting[name])
            assert waiting[owner][0] == entry, "of a tenant, in the order they came"
            assert running[owner] / SHARES[owner] == min(running[name] / SHARES[name] for name in free)
            queue.take(owner, entry)
            waiting[owner].remove(entry)
            running[owner] += 1
        elif what == "end" and running[tenant]:
            queue.ended(tenant)
            running[tenant] -= 1
        elif what == "remove" and waiting[tenant]:
            queue.remove(tenant, waiting[tenant].pop())
    assert len(queue) == sum(map(len, waiting.values()))
    assert queue.running() == {name: count for name, count in running.items() if count}
    order = list(queue.in_order())
    most = {
        name: len(waiting[name]) if limit is None else max(0, min(len(waiting[name]), limit - running[name])) for name in TENANTS
    }
    assert len(order) == len(set(order)) == sum(most.values())


def test_turns_where_one_runs_at_a_time() -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(lambda tenant: (SHARES[tenant], None))
    for number in range(100):
        for tenant in TENANTS:
            queue.add(tenant, (tenant, number))
    served: Counter[str] = Counter()
    for _ in range(70):
        tenant, _ = entry = next(queue.in_order())
        queue.take(tenant, entry)
        queue.ended(tenant)
        served[tenant] += 1
    assert served == {"a": 20, "b": 40, "c": 10}


def test_a_pause_saves_nothing_up() -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(lambda tenant: (1.0, None))
    for number in range(50):
        queue.add("a", ("a", number))
        entry = next(queue.in_order())
        queue.take("a", entry)
        queue.ended("a")
    for number in range(10):
        queue.add("a", ("a", number))
        queue.add("b", ("b", number))
    served = []
    for _ in range(10):
        tenant, _ = entry = next(queue.in_order())
        queue.take(tenant, entry)
        queue.ended(tenant)
        served.append(tenant)
    assert abs(served.count("a") - served.count("b")) <= 1, served
