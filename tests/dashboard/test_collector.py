"""What a worker keeps of its agents: right, and bounded, whatever an agent does."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from typing import Any

import msgspec
import pytest
from agentfw import Agent, Destination, hookimpl
from agentfw.agents import ExitReport
from agentfw.pool.authority import MAX_ANSWER
from agentfw.reports import DispatchReport
from agentfw.testing import make_runtime
from agentfw_dashboard import story, told
from agentfw_dashboard.collector import Collector
from agentfw_dashboard.wire import Ask, encode

from tests.core.support import async_test
from tests.pool.fake_work import call, denial, exchange, flow, question

MIB = 1 << 20


def agent(number: int = 1) -> Agent:
    return Agent(f"job{number}-{number}", f"agent {number}", {"tenant": "t"}, job=f"job{number}")


def begin(collector: Collector, who: Agent) -> None:
    collector.admit(who)
    collector.dispatched(who, DispatchReport(job=who.job, tenant="t", template="default", dispatch=0.002, began=0.0))


def full(collector: Collector, who: Agent) -> None:
    """As much as is kept of an agent."""
    begin(collector, who)
    for number in range(400):
        collector.question_end(who, question(f"n{number}.example"))
        collector.exchange_end(who, exchange(f"h{number}.example", "/" + "x" * 300, error="e" * 900, status=502))
        collector.model_call(who, call(error_type="bad", error="m" * 200))
        collector.audit(denial(who, rule=f"r{number} " + "y" * 500, host=f"d{number}.example"))
        collector.flow_end(who, flow(kind="tcp", error="z" * 900, destination=Destination("tcp", f"f{number}.example", 5)))


@async_test
async def test_an_agents_story_keeps_the_first_and_the_latest() -> None:
    collector = Collector(64 * MIB, 10)
    who = agent()
    full(collector, who)
    seen = await collector.story(who.job)
    assert seen is not None
    row = seen.row
    assert (row.questions, row.requests, row.model_calls, row.denials, row.connections) == (400,) * 5
    assert len(seen.names) == story.NAMES and seen.dropped["names"] == 400 - story.NAMES
    assert len(seen.model_calls) == 2 * story.CALLS and seen.dropped["model_calls"] == 400 - 2 * story.CALLS
    assert len(seen.denials) == 2 * story.REFUSALS and seen.dropped["denials"] == 400 - 2 * story.REFUSALS
    assert len(seen.destinations) == story.DESTINATIONS and seen.dropped["destinations"] == 800 - story.DESTINATIONS
    assert len(seen.timeline) <= told.MAX_STEPS and seen.dropped["timeline"] >= 1600 - story.FIRST - story.LATEST
    assert seen.names[0].name == "n0.example" and "r0 " in seen.denials[0].rule and "r399 " in seen.denials[-1].rule
    assert len(msgspec.msgpack.encode(seen)) < 400_000
    texts = [*(step.text for step in seen.timeline), *(each.rule + each.reason for each in seen.denials)]
    assert max(map(len, texts)) < 1000 and all(text.isprintable() for text in texts)


@async_test
async def test_the_same_denial_in_a_row_is_counted() -> None:
    collector = Collector(64 * MIB, 10)
    one, two = agent(1), agent(2)
    for who in (one, two):
        begin(collector, who)
    for _ in range(1000):
        collector.audit(denial(one))
    collector.audit(denial(two))
    for _ in range(10):
        collector.audit(denial(one, rule="another"))
    seen = await collector.story(one.job)
    assert seen is not None and [(each.rule, each.count) for each in seen.denials] == [("policy: nobody", 1000), ("another", 10)]
    answer = collector.answer(Ask(), {})
    assert [(each.key, each.count) for each in answer.denials] == [("job1", 10), ("job2", 1), ("job1", 1000)]
    assert answer.totals.denials == 1011
    assert [step.text for step in seen.timeline if step.kind == "denied"] == [
        "https://evil.example:443: policy: nobody (1000 times)", "https://evil.example:443: another (10 times)",
    ]  # fmt: skip


@async_test
async def test_a_denial_is_as_old_as_its_latest() -> None:
    """What an agent tries again and again for an hour goes on now."""
    collector, who, nobody = Collector(64 * MIB, 10), agent(1), agent(2)
    begin(collector, who)
    for number in range(3):
        for each in (who, nobody):
            collector.audit(msgspec.structs.replace(denial(each), time=100.0 + number))
    assert [(each.key, each.time, each.count) for each in collector.answer(Ask(), {}).denials if each.key] == [("job1", 102.0, 3)]
    seen = await collector.story(who.job)
    assert seen is not None and [(each.time, each.count) for each in seen.denials] == [(102.0, 3)]
    for number in range(2):
        collector.audit(msgspec.structs.replace(denial(nobody), time=200.0 + number))
    newest = collector.answer(Ask(), {}).denials[0]
    assert (newest.key, newest.time) == ("", 201.0)


def test_what_agents_are_denied_by_turns_is_told_once() -> None:
    """Of two that try again and again the last hundred denials are two, not fifty times each of them."""
    collector = Collector(64 * MIB, 10)
    agents = [agent(1), agent(2)]
    for who in agents:
        begin(collector, who)
    for _ in range(200):
        for who in agents:
            collector.audit(denial(who))
    assert [(each.key, each.count) for each in collector.answer(Ask(), {}).denials] == [("job2", 200), ("job1", 200)]
    for number in range(150):
        collector.audit(denial(agents[0], rule=f"r{number}"))
    told = collector.answer(Ask(), {}).denials
    assert [each.rule for each in told] == [f"r{number}" for number in range(149, 49, -1)]


@async_test
async def test_denials_without_room_are_counted_and_those_alike_are_one() -> None:
    collector, one = Collector(1, 10), agent()
    begin(collector, one)
    for _ in range(50):
        collector.audit(denial(one))
    collector.audit(denial(one, rule="another"))
    seen = await collector.story(one.job)
    assert seen is not None and not seen.denials and seen.dropped["denials"] == 2 and seen.row.denials == 51
    assert [each.count for each in collector.answer(Ask(), {}).denials] == [1, 50]


def test_ended_agents_go_when_there_are_too_many() -> None:
    collector = Collector(64 * MIB, 5)
    agents = [agent(number) for number in range(20)]
    for who in agents:
        begin(collector, who)
    first = collector.answer(Ask(rows=True), {})
    assert first.whole and len(first.rows) == 20
    for who in agents[:12]:
        collector.exit(who, ExitReport("code"))
    second = collector.answer(Ask(rows=True, heard={first.epoch: first.version}), {})
    assert not second.whole and second.gone == [who.job for who in agents[:7]]
    assert {row.key for row in second.rows} == {who.job for who in agents[7:12]}
    assert len(collector.live) == 8 and len(collector.ended) == 5 and collector.forgotten == 7
    assert second.totals.done == 12 and second.totals.agents == 8
    late = collector.answer(Ask(rows=True, heard={first.epoch: first.version}), {})
    assert late.whole and len(late.rows) == 13, "an answer that did not come is made good"
    for who in agents[12:]:
        collector.exit(who, ExitReport("signal", signal=9))
    assert collector.answer(Ask(), {}).totals.failed == 8
    collector.exchange_end(agents[-1], exchange())
    assert collector.ended[agents[-1].id].requests == 1, "what is told late is its still"


def test_what_is_forgotten_is_let_go_though_nobody_looks() -> None:
    """Rows are asked for while somebody looks at the page; else only totals."""
    collector = Collector(64 * MIB, 5)
    agents = [agent(number) for number in range(50)]
    for number, who in enumerate(agents):
        begin(collector, who)
        collector.audit(denial(who, rule=f"r{number}"))
        collector.exit(who, ExitReport("code"))
        collector.answer(Ask(), {})
    gc.collect()
    stories = [each for each in gc.get_objects() if isinstance(each, story.Story) and any(each.agent is who for who in agents)]
    assert len(stories) == len(collector.ended) == 5
    assert len(collector.answer(Ask(rows=True), {}).rows) == 5


def test_what_is_told_of_an_agent_that_is_forgotten_makes_none() -> None:
    """Its last flows are told after its end."""
    collector = Collector(64 * MIB, 0)
    who = agent()
    begin(collector, who)
    collector.exit(who, ExitReport("code"))
    collector.exchange_end(who, exchange())
    collector.flow_end(who, flow(kind="tcp"))
    assert not collector.live and not collector.ended and not collector.keys and not collector.size
    answer = collector.answer(Ask(rows=True), {})
    assert not answer.rows and (answer.totals.requests, answer.totals.connections, answer.totals.agents) == (1, 1, 0)


@pytest.mark.parametrize("kept", [0, 5])
def test_who_has_ended_uses_no_session(kept: int) -> None:
    """The exchange that its end cut is told after it, and may be its first."""
    collector = Collector(64 * MIB, kept)
    one, two = agent(1), agent(2)
    for who in (one, two):
        begin(collector, who)
    collector.exchange_end(two, exchange())
    assert collector.answer(Ask(), {}).totals.tls_agents == 1
    for who in (one, two):
        collector.exit(who, ExitReport("killed"))
        for _ in range(3):
            collector.exchange_end(who, exchange(error="the agent has ended"))
    assert collector.answer(Ask(), {}).totals.tls_agents == 0


def test_an_agent_that_was_refused_is_known_by_its_end() -> None:
    collector = Collector(64 * MIB, 5)
    collector.exit(agent(), ExitReport("internal", text="refused"))
    assert [(row.key, row.state) for row in collector.answer(Ask(rows=True), {}).rows] == [("job1", "done")]


def test_more_rows_than_an_answer_holds_come_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentfw_dashboard.collector.MAX_ROWS", 4)
    collector = Collector(64 * MIB, 5)
    heard: dict[str, int] = {}
    begin(collector, agent(0))
    told: list[str] = []
    for fresh in (range(0), range(1, 8), range(0), range(0)):
        for number in fresh:
            begin(collector, agent(number))
        answer = collector.answer(Ask(rows=True, heard=heard), {})
        heard = {answer.epoch: answer.version}
        assert len(answer.rows) <= 4
        told += [row.key for row in answer.rows]
    assert told == [f"job{number}" for number in range(8)]


def test_labels_of_jobs_are_not_told() -> None:
    """The router has them, and an answer has its bound: of those of a few hundred agents it would be full."""
    collector = Collector(64 * MIB, 10_000)
    labels = {f"{number} " + "n" * 120: "v" * 128 for number in range(32)}
    for number in range(1100):
        begin(collector, Agent(f"job{number}-{number}", "x", labels, job=f"job{number}"))
    answer = collector.answer(Ask(rows=True), {})
    assert len(answer.rows) == 1100 and len(encode(answer)) < MAX_ANSWER


def test_an_answer_stays_within_its_bound_whatever_agents_are_called() -> None:
    """One that is too long is dropped, and so would all be that come after it."""
    collector = Collector(1 << 40, 100_000)

    def more(number: int) -> None:
        who = Agent(f"job{number}-{number}", "\U0001f600" * 32, {"tenant": "\U0001f600" * 32}, job=f"job{number}")
        collector.admit(who)
        collector.model_call(who, call(model="\U0001f600" * 128))

    for number in range(12_000):
        more(number)
    answer = collector.answer(Ask(rows=True), {})
    assert len(encode(answer)) < MAX_ANSWER and answer.whole
    told = [row.key for row in answer.rows]
    assert len(told) > 5000 and told[0] == "job11999", "the newest"
    for number in range(12_000, 24_000):
        more(number)
    told = []
    while len(told) < 12_000:
        answer = collector.answer(Ask(rows=True, heard={answer.epoch: answer.version}), {})
        assert len(encode(answer)) < MAX_ANSWER and answer.rows and not answer.whole
        told += [row.key for row in answer.rows]
    assert told == [f"job{number}" for number in range(12_000, 24_000)]


def test_stories_take_the_memory_that_they_may() -> None:
    collector = Collector(2 * MIB, 10_000)
    for number in range(50):
        who = agent(number)
        full(collector, who)
        assert collector.size <= 2 * MIB + 10_000
        collector.exit(who, ExitReport("code"))
    assert collector.forgotten > 30 and collector.ended
    for number in range(50, 900):  # and none of these ends
        begin(collector, agent(number))
    before = collector.size
    for number in range(50, 80):
        full(collector, agent(number))
    assert collector.size <= max(before, 2 * MIB) + 1000
    assert collector.answer(Ask(), {}).totals.requests == 80 * 400


def test_what_a_story_is_thought_to_take_is_about_what_it_takes() -> None:
    def grown(work: Any) -> float:
        """Bytes really taken for each byte that is counted."""
        collector = Collector(1 << 40, 10_000)
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for number in range(6):
                work(collector, agent(number))
            gc.collect()
            taken = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        return taken / collector.size

    assert 0.4 < grown(begin) < 1.5
    assert 0.4 < grown(full) < 1.5


HOSTILE = """
import resource, sys
from tests.dashboard.test_collector import Collector, agent, begin, call, denial, exchange, flow, question
from agentfw_dashboard.wire import Ask
times = int(sys.argv[1])
collector = Collector(4 << 20, 100)
who = agent()
begin(collector, who)
names = [question(chr(32 + n % 90) * 200 + str(n), error="e" * 1000) for n in range(500)]
exchanges = [exchange(f"h{n}.example", "/" + "<b>" * 300 + str(n), error="x" * 1000, denied_rule="r" * 1000) for n in range(500)]
calls = [call(model=f"m{n}" * 20, error_type="t" * 64, error="y" * 200, rate_limits={str(k): "v" * 128 for k in range(32)})
         for n in range(500)]
denials = [denial(who, rule="r" * 900 + str(n), host=f"h{n}.example") for n in range(500)]
flows = [flow(kind="tcp", error="f" * 1000) for n in range(500)]
def work(times):
    for n in range(times // 5):
        collector.question_end(who, names[n % 500])
        collector.exchange_end(who, exchanges[n % 500])
        collector.model_call(who, calls[n % 500])
        collector.audit(denials[n % 500])
        collector.flow_end(who, flows[n % 500])
work(5000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
work(times)
answer = collector.answer(Ask(rows=True), {})
assert answer.totals.requests == (times + 5000) // 5, answer.totals
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_many_events_of_one_agent_take_no_memory() -> None:
    """Sixteen bytes kept of each would be seen."""
    done = subprocess.run([sys.executable, "-c", HOSTILE, "300000"], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 4096, f"{done.stdout} KiB more"


class Masks:
    name = "masks"

    def __init__(self) -> None:
        self.how = b"*"

    @hookimpl
    def redact(self, text: bytes) -> bytes | None:
        if not self.how:
            raise ValueError("hush")
        return text.replace(b"sk-real", self.how * 7)


@async_test
async def test_what_nobody_must_see_is_masked_where_agents_are_shown() -> None:
    """Paths, names, models and labels are agents' words, and they may have come by a secret."""
    collector, masks = Collector(64 * MIB, 10), Masks()
    runtime = make_runtime(masks)
    await runtime.start()
    collector.runtime = runtime
    who = Agent("job1-1", "agent sk-real", {"tenant": "t", "l": "sk-real"}, job="job1")
    begin(collector, who)
    collector.question_end(who, question("sk-real.example"))
    collector.exchange_end(who, exchange("h.example", "/sk-real?k=sk-real", error="got sk-real", status=502))
    collector.model_call(who, call(error_type="sk-real", error="key sk-real"))
    collector.audit(denial(who, rule="r sk-real", host="sk-real.example"))
    collector.flow_end(who, flow(kind="tcp", error="sk-real", destination=Destination("tcp", "sk-real.example", 5)))
    collector.exit(who, ExitReport("code", text="last: sk-real"))
    seen = await collector.story("job1")
    assert seen is not None
    table, totals = (collector.answer(Ask(rows=rows), {}) for rows in (True, False))
    for found in (seen, table, totals):
        text = msgspec.json.encode(found)
        assert b"sk-real" not in text and b"*******" in text
    assert table.rows[0].name == "agent *******" and totals.denials[0].destination == "https://*******.example:443"
    for how in (b"", b"\xff"):  # it cannot be looked into; what is left is no text
        masks.how = how
        assert await collector.story("job1") is None
        found = collector.answer(Ask(rows=True), {})
        assert not found.rows and not found.denials and found.totals.requests == 1
        masks.how = b"*"
        assert collector.answer(Ask(rows=True), {}).rows, "all of them again"
    await runtime.stop()
