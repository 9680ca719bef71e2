"""A story in words: the row of a table, and all of it. Made when somebody looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentfw import dns_reply, dns_wire
from agentfw.agents import VmReport
from agentfw.reports import ExchangeReport, FlowReport, QuestionReport
from agentfw.views import (
    AgentRow,
    AgentStory,
    Denial,
    SeenDestination,
    SeenModelCall,
    SeenName,
    Step,
    Syscall,
    how_of,
)
from agentfw.views import OpenedFile as Opened
from msgspec.structs import replace

from .story import Event, Refused, Story, cut
from .wire import Row

if TYPE_CHECKING:
    from agentfw.agents import OpenedFile, SyscallCount

TYPES = {
    1: "A", 2: "NS", 5: "CNAME", 6: "SOA", 12: "PTR", 15: "MX", 16: "TXT", 28: "AAAA", 33: "SRV", 64: "SVCB", 65: "HTTPS",
}  # fmt: skip
"""Of DNS records, by number (IANA's registry)."""
MAX_STEPS = 600
MAX_ADDRESSES = 8


def qtype_of(number: int) -> str:
    """RFC 3597, 5: one without a name is called by its number."""
    return TYPES.get(number, f"TYPE{number}")


def rcode_of(number: int) -> str:
    return dns_wire.RCODES[number] if number < len(dns_wire.RCODES) else f"rcode {number}"


def last_words(event: Event | None) -> str:
    """What an agent did last."""
    if event is None:
        return ""
    if isinstance(event, ExchangeReport):
        return f"{cut(_request(event), 120)} -> {event.status or 'no answer'}"
    if isinstance(event, QuestionReport):
        return f"asked for {cut(event.name, 100)}"
    if isinstance(event, FlowReport):
        return f"{event.kind} to {event.destination or f'port {event.port}'}"
    if isinstance(event, SeenModelCall):
        return f"model call to {cut(event.model, 100) or event.provider}"
    return f"denied {cut(event.destination, 100)} by {cut(event.rule, 60)}"


def row(story: Story, vm: VmReport | None = None) -> Row:
    """For the router, or for a table. `vm`: how its VM stands, if it lives."""
    agent, dispatch, ended = story.agent, story.dispatch, story.exit
    if ended is not None:
        vm = ended.vm
    return Row(
        key=story.key,
        name=cut(agent.name, 128),
        tenant=cut(dispatch.tenant if dispatch is not None else agent.labels.get("tenant", ""), 128),
        template=cut(dispatch.template if dispatch is not None else "", 128),
        # The router has those of its jobs, and an answer to it has its bound.
        labels={} if agent.job else {cut(name, 128): cut(value, 128) for name, value in list(agent.labels.items())[:64]},
        state="done" if ended is not None else "running" if dispatch is not None else "starting",
        submitted=story.time,
        started=None if dispatch is None else story.when(dispatch.began),
        ended=None if story.ended is None else story.when(story.ended),
        cpu_seconds=vm.cpu_seconds if vm is not None else 0.0,
        memory=vm.statistics.memory_committed if vm is not None else 0,
        exits=vm.statistics.exits if vm is not None else 0,
        questions=story.questions,
        connections=story.connections,
        requests=story.requests,
        model_calls=story.calls,
        input_tokens=story.call_tokens_in,
        output_tokens=story.call_tokens_out,
        cost=story.cost if story.priced else None,
        denials=story.denials,
        bytes_up=story.bytes_up,
        bytes_down=story.bytes_down,
        last=last_words(story.last),
        last_at=None if story.last is None else story.when(story.last_at),
        how="" if ended is None else how_of(ended.kind, ended.code, ended.signal),
    )


def agent_row(told: Row) -> AgentRow:
    """Of an agent that is nobody's job."""
    return AgentRow(
        id=told.key, name=told.name, tenant=told.tenant, template=told.template, labels=told.labels, state=told.state,
        submitted=told.submitted, started=told.started, ended=told.ended, cpu_seconds=told.cpu_seconds, memory=told.memory,
        exits=told.exits, questions=told.questions, connections=told.connections, requests=told.requests,
        model_calls=told.model_calls, input_tokens=told.input_tokens, output_tokens=told.output_tokens, cost=told.cost,
        denials=told.denials, bytes_up=told.bytes_up, bytes_down=told.bytes_down, last=told.last, last_at=told.last_at,
        how=told.how,
    )  # fmt: skip


def story(story: Story, vm: VmReport | None = None) -> AgentStory:
    """All of it. Times are seconds from when its worker first heard of it. `vm`: how its VM stands, if it lives."""
    report = story.exit
    if report is not None:
        vm = report.vm
    steps = _steps(story)
    dropped = {
        "timeline": story.events.dropped + max(0, len(steps) - MAX_STEPS),
        "names": story.names_dropped,
        "destinations": story.places_dropped,
        "model_calls": story.model_calls.dropped,
        "denials": story.refusals.dropped,
        "files": vm.sight.more_files if vm is not None else 0,
    }
    return AgentStory(
        row=agent_row(row(story, vm)),
        timeline=steps[:MAX_STEPS],
        syscalls=[_syscall(each) for each in vm.sight.syscalls()] if vm is not None else [],
        files=[_file(each) for each in vm.sight.opened()] if vm is not None else [],
        counters=dict(vm.statistics._asdict()) if vm is not None else {},
        names=[
            SeenName(
                name=cut(name, 253),
                qtype=qtype_of(qtype),
                count=asked.count,
                answer=_answer(asked.last),
                seconds=asked.slowest,
                denied_rule=asked.denied_rule,
            )
            for (name, qtype), asked in story.names.items()
        ],
        destinations=[
            SeenDestination(
                destination=str(destination), connections=place.connections, requests=place.requests, errors=place.errors,
                denials=place.denials, bytes_up=place.up, bytes_down=place.down,
            )
            for destination, place in story.destinations.items()
        ],
        model_calls=[_seen(story, each) for each in story.model_calls.items()],
        denials=[denial(story, each) for each in story.refusals.items()],
        dropped={name: count for name, count in dropped.items() if count},
        exit_text=cut(report.text, 1024) if report is not None else "",
        exit_kind=report.kind if report is not None else "",
        exit_code=report.code if report is not None else 0,
        exit_signal=report.signal if report is not None else 0,
    )  # fmt: skip


def _syscall(row: SyscallCount) -> Syscall:
    return Syscall(
        name=row.name, count=row.count, host_count=row.host_count, host_seconds=row.host_seconds, errors=row.errors
    )  # fmt: skip


def _file(row: OpenedFile) -> Opened:
    return Opened(path=row.path, mode=row.mode, count=row.count, error=row.error, rule=cut(row.rule, 256))


def denial(story: Story, refused: Refused) -> Denial:
    return Denial(
        time=refused.time, agent_id=story.key, agent=cut(story.agent.name, 128), destination=refused.destination,
        rule=refused.rule, plugin=refused.plugin, reason=refused.reason, count=refused.count,
    )  # fmt: skip


def _seen(story: Story, seen: SeenModelCall) -> SeenModelCall:
    return replace(seen, at=seen.at - story.base)


def _steps(story: Story) -> list[Step]:
    """In the order in which they began."""
    base, steps = story.base, []
    dispatch = story.dispatch
    if dispatch is not None:
        began = dispatch.began - base
        steps += [
            Step(at=max(0.0, began - dispatch.dispatch - dispatch.queued), kind="queued", seconds=dispatch.queued),
            Step(at=max(0.0, began - dispatch.dispatch), kind="dispatch", seconds=dispatch.dispatch),
            Step(at=began, kind="first_syscall"),
        ]
    for event in story.events.items():
        steps += _steps_of(event, base)
    if story.ended is not None and story.exit is not None:
        good = story.exit.kind == "code" and not story.exit.code
        text = cut(story.exit.text, 256) or how_of(story.exit.kind, story.exit.code, story.exit.signal)
        steps.append(Step(at=story.ended - base, kind="exit", text=text, ok=good))
    steps.sort(key=lambda step: step.at)  # stable: what began at once stays in order
    return steps


def _steps_of(event: Event, base: float) -> list[Step]:
    if isinstance(event, ExchangeReport):
        return _exchange(event, base)
    if isinstance(event, QuestionReport):
        text = f"{event.name} {qtype_of(event.qtype)}"
        return [Step(at=event.began - base, kind="resolve", text=text, seconds=event.seconds, ok=not event.rcode)]
    if isinstance(event, FlowReport):
        return []  # of these the beginning is known by the loop's clock only
    if isinstance(event, SeenModelCall):
        return _call(event, base)
    times = f" ({event.count} times)" if event.count > 1 else ""
    text = f"{event.destination}: {event.rule}{times}" if event.destination else f"{event.rule}{times}"
    return [Step(at=event.at - base, kind="denied", text=text, ok=False)]


def _exchange(event: ExchangeReport, base: float) -> list[Step]:
    at = event.began - base
    steps = []
    sent = event.connected
    if sent is not None:
        text = f"{event.destination}, {'one that was there' if event.reused else 'new'}"
        steps.append(Step(at=at, kind="connect", text=text, seconds=sent))
    waited = (event.first_byte if event.first_byte is not None else event.seconds) - (sent or 0.0)
    failed = bool(event.error) and event.first_byte is None
    text = _request(event) if not failed else f"{_request(event)}: {event.error}"
    steps.append(Step(at=at + (sent or 0.0), kind="request", text=text, seconds=max(0.0, waited), ok=not failed))
    if event.first_byte is not None:
        text = f"{event.status}, {event.bytes_down} bytes" + (f": {event.error}" if event.error else "")
        seconds = max(0.0, event.seconds - event.first_byte)
        good = not event.error and event.status < 400
        steps.append(Step(at=at + event.first_byte, kind="response", text=text, seconds=seconds, ok=good))
    return steps


def _call(seen: SeenModelCall, base: float) -> list[Step]:
    at = seen.at - base
    tokens = f", {seen.input_tokens} tokens in" if seen.input_tokens is not None else ""
    tokens += f", {seen.output_tokens} out" if seen.output_tokens is not None else ""
    text = f"{seen.model or seen.provider} {seen.operation}{tokens}" + (f": {seen.error}" if seen.error else "")
    steps = [Step(at=at, kind="model_call", text=text, seconds=seen.seconds, ok=not seen.error)]
    if seen.first_token is not None:
        steps.append(Step(at=at + seen.first_token, kind="first_token"))
    return steps


def _request(event: ExchangeReport) -> str:
    return f"{event.method} {event.destination.scheme}://{event.destination.authority}{event.target}"


def _answer(question: QuestionReport | None) -> str:
    """Addresses, or the rcode."""
    if question is None:
        return ""
    if question.rcode:
        return rcode_of(question.rcode)
    if question.qtype not in (dns_wire.A, dns_wire.AAAA) or not question.reply:
        return "NOERROR"
    try:
        found = dns_reply.addresses_of(question.reply)
    except dns_wire.WireError:
        return "NOERROR"
    return ", ".join(found[:MAX_ADDRESSES]) + (", ..." if len(found) > MAX_ADDRESSES else "") or "no addresses"
