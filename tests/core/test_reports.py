"""Each exchange and each flow is told exactly once, however it ends; refusals are told, and no header ever is."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable

import dnslib
import msgspec
import pytest
from agentfw import Agent, Denied, Destination, RequestHead, ResponseHead, hookimpl
from agentfw.cli.tables import as_json, as_text
from agentfw.errors import ConnectError
from agentfw.model_calls import ModelCall
from agentfw.relay import dns
from agentfw.reports import AuditEvent, ExchangeReport, FlowReport, QuestionReport, Table, shown
from agentfw.runtime import Runtime
from agentfw.testing import MemoryFlow, make_agent, make_runtime
from hypothesis import given
from hypothesis import strategies as st

from .support import (
    RESOLVER,
    Handler,
    Loopback,
    Names,
    Recorder,
    TlsOnce,
    async_test,
    exactly,
    guest,
    lookup,
    offload,
    read_response,
    running,
    serving,
)

HOST = "api.example"
SECRET = "sk-real-8f3b"


class Watch:
    """What the hooks were told. `mode`: what `request` and `response` do."""

    name = "watch"

    def __init__(self, mode: str = "") -> None:
        self.mode = mode
        self.begun: list[int] = []
        self.asked = asyncio.Event()
        self.exchanges: list[ExchangeReport] = []
        self.flows: list[FlowReport] = []
        self.questions: list[QuestionReport] = []
        self.events: list[AuditEvent] = []
        self.transformed: list[tuple[bytes, bool]] = []

    @hookimpl
    def allow(self, destination: Destination) -> None:
        if self.mode == "deny all" or destination.host == "evil.example":
            raise Denied("watch: nobody", "not this one")

    @hookimpl
    def request(self, destination: Destination, head: RequestHead) -> None:
        self.begun.append(head.exchange)
        self.asked.set()
        head.headers.set("Authorization", f"Bearer {SECRET}")
        head.target += f"?key={SECRET}"
        if self.mode == "deny":
            raise Denied("watch: no\r\nmore", "because\x1b[0m")
        if self.mode == "raise":
            raise RuntimeError(SECRET)
        if self.mode == "connect":
            raise ConnectError(destination, errno.ECONNREFUSED)
        if self.mode in ("transform", "refusing transform", "broken transform", "same"):
            head.transforms.append(self._transform)

    def _transform(self, piece: bytes, last: bool) -> bytes:
        self.transformed.append((piece, last))
        if self.mode == "refusing transform" and b"stop" in piece:
            raise Denied("watch: words", "not that word")
        if self.mode == "broken transform":
            raise ValueError(SECRET)
        return piece.upper() * (1 if self.mode == "same" else 2)

    @hookimpl
    def response(self, head: ResponseHead) -> None:
        if self.mode == "deny response":
            raise Denied("watch: answers", "not that answer")
        if self.mode == "break response":
            head.transforms.append(lambda piece, last: piece[: 1 // 0])

    @hookimpl
    def exchange_end(self, agent: Agent, exchange: ExchangeReport) -> None:
        assert agent.name == "test"
        self.exchanges.append(exchange)

    @hookimpl
    def flow_end(self, agent: Agent, flow: FlowReport) -> None:
        self.flows.append(flow)

    @hookimpl
    def question_end(self, agent: Agent, question: QuestionReport) -> None:
        self.questions.append(question)

    @hookimpl
    def audit(self, event: AuditEvent) -> None:
        self.events.append(event)


def names() -> Names:
    return Names(**{HOST: "127.0.0.1", "evil.example": "127.0.0.1"})


async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")


async def patient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def upgrading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nhello")
    while data := await reader.read(100):
        writer.write(data)


def answering(answer: bytes) -> Callable[[], Handler]:
    return lambda: Recorder(answer)


GET = b"GET /a?b HTTP/1.1\r\nHost: api.example\r\n\r\n"
POST = b"POST /a?b HTTP/1.1\r\nHost: api.example\r\nContent-Length: 4\r\n\r\nbody"
STOP = POST.replace(b"body", b"stop")
UPGRADE = b"GET /a?b HTTP/1.1\r\nHost: api.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nping"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
# name: (request, server, mode, status, bytes up, bytes down, error, denied rule)
ENDINGS: dict[str, tuple[bytes, Callable[[], Handler], str, int, int, int, str, str]] = {
    "answered": (POST, answering(OK), "", 200, 4, 2, "", ""),
    "chunked": (GET, answering(CHUNKED), "", 200, 0, 5, "", ""),
    "HEAD": (GET.replace(b"GET", b"HEAD"), answering(OK[:-2]), "", 200, 0, 0, "", ""),
    "no content": (GET, answering(b"HTTP/1.1 204 No\r\n\r\n"), "", 204, 0, 0, "", ""),
    "until the end": (GET, lambda: Recorder(b"HTTP/1.0 200 OK\r\n\r\nabc", close=True), "", 200, 0, 3, "", ""),
    "1xx first": (GET, answering(b"HTTP/1.1 103 Hints\r\n\r\n" + OK), "", 200, 0, 2, "", ""),
    "an error status": (GET, answering(b"HTTP/1.1 429 Slow\r\nContent-Length: 1\r\n\r\nx"), "", 429, 0, 1, "", ""),
    "denied by a request hook": (POST, answering(OK), "deny", 403, 0, 0, "denied by watch: no", "watch: no\\r\\nmore"),
    "denied by a response hook": (POST, answering(OK), "deny response", 403, 4, 0, "denied by watch: answers", "watch: answers"),
    "a request hook that raises": (POST, answering(OK), "raise", 502, 0, 0, "plugin `watch` failed in `request`", ""),
    "the outside failed in a hook": (POST, answering(OK), "connect", 502, 0, 0, "cannot connect to", ""),
    "a refusing transform": (STOP, answering(OK), "refusing transform", 403, 4, 0, "denied by", "watch: words"),
    "a broken transform": (POST, answering(OK), "broken transform", 502, 4, 0, "plugin `?` failed in `request`: ValueError", ""),
    "a broken transform of the response": (POST, answering(OK), "break response", 200, 4, 2, "ZeroDivisionError", ""),
    "closed before an answer": (POST, lambda: closing, "", 502, 4, 0, "", ""),
    "cut off": (GET, lambda: cut, "", 200, 0, 4, "", ""),
    "no HTTP": (GET, answering(b"SSH-2.0-x\r\n\r\n"), "", 502, 0, 0, "bad status line", ""),
    "upgraded": (UPGRADE, lambda: upgrading, "", 101, 4, 9, "", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDINGS)
@async_test
async def test_an_exchange_ends_once(name: str) -> None:
    request, server, mode, status, up, down, error, rule = ENDINGS[name]
    watch = Watch(mode)
    async with serving(server(), HOST) as port, running(names(), Loopback(), TlsOnce(), watch) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            assert (await offload(flow, HOST))["ok"]
            await flow.guest_send(request)
            if name == "upgraded":
                await flow.guest_read_until(b"\r\n\r\n")
                assert await exactly(flow, 9) == b"helloping"
            flow.guest_send_eof()
            with contextlib.suppress(ConnectionResetError):
                await flow.guest_read_all()
    (report,) = watch.exchanges
    assert watch.begun == [report.exchange]
    assert report.destination == Destination("https", HOST, port)
    assert (report.method, report.target) == (request.split()[0].decode(), "/a?b")
    assert (report.status, report.bytes_up, report.bytes_down, report.denied_rule) == (status, up, down, rule), report
    failed = bool(error) or name in ("closed before an answer", "cut off")
    assert bool(report.error) == failed and report.error.startswith(error)
    assert (report.first_byte is not None) == (status < 300 or status == 429 or mode == "deny response") and report.seconds > 0
    assert report.upgraded == (status == 101) and report.attempts == 1
    assert report.connected is not None and 0 < report.connected <= (report.first_byte or report.seconds) <= report.seconds
    assert not report.reused and report.began > 0
    (told,) = [each for each in watch.flows if each.kind != "dns"]
    assert (told.kind, told.destination, told.port) == ("http", report.destination, port)
    assert told.bytes_up > len(request) and told.bytes_down > down
    kinds = [event.kind for event in watch.events]
    kind = "denied" if rule else "plugin_failed" if "plugin" in error else "internal_error"
    assert kinds == ([kind] if rule or "plugin" in error or mode == "break response" else [])
    assert SECRET not in repr((watch.exchanges, watch.flows, watch.events))


@pytest.mark.parametrize("how", ["guest closes", "cancelled", "mid-body"])
@async_test
async def test_an_exchange_that_nobody_waits_for_ends_once(how: str) -> None:
    watch = Watch()
    async with serving(patient, HOST) as port, running(names(), Loopback(), TlsOnce(), watch) as runtime:
        await lookup(runtime, HOST)
        flow = MemoryFlow("127.0.0.1", port)
        task = asyncio.create_task(runtime.handle_flow(make_agent(), flow))
        await offload(flow, HOST)
        await flow.guest_send(POST[:-1] if how == "mid-body" else POST)
        await watch.asked.wait()
        if how == "cancelled":
            task.cancel()
        else:
            flow.guest_close()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    (report,) = watch.exchanges
    assert report.error == {"guest closes": "the agent closed the connection", "cancelled": "cancelled"}.get(how, report.error)
    assert report.error and report.status == 0 and report.first_byte is None
    (told,) = [each for each in watch.flows if each.kind != "dns"]
    assert told.kind == "http" and bool(told.error) == (how == "cancelled")


@async_test
async def test_a_retried_request_is_one_exchange_of_two_attempts() -> None:
    watch = Watch()
    tls = TlsOnce(pooled=True)
    async with serving(Recorder(OK, close=True), HOST) as port, running(names(), Loopback(), tls, watch) as runtime:
        for _ in range(2):  # the second meets a connection that the server has closed
            await lookup(runtime, HOST)
            async with guest(runtime, "127.0.0.1", port) as flow:
                await offload(flow, HOST)
                await flow.guest_send(GET)
                assert (await read_response(flow))[0] == 200
    first, second = watch.exchanges
    assert (first.attempts, second.attempts) == (1, 2) and first.exchange != second.exchange
    assert watch.begun == [first.exchange, second.exchange, second.exchange]


@async_test
async def test_exchanges_of_one_flow_end_in_order() -> None:
    watch = Watch()
    async with serving(Recorder(OK), HOST) as port, running(names(), Loopback(), TlsOnce(pooled=True), watch) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, HOST)
            await flow.guest_send(GET + POST + GET)
            for _ in range(3):
                await read_response(flow)
    assert [report.method for report in watch.exchanges] == ["GET", "POST", "GET"]
    assert [report.exchange for report in watch.exchanges] == watch.begun


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("mode", ["transform", "same"])
@async_test
async def test_transforms_change_the_requests_body(mode: str, chunked: bool) -> None:
    server, watch = Recorder(OK), Watch(mode)
    body = b"4\r\nbody\r\n1\r\n!\r\n0\r\n\r\n" if chunked else b"body!"
    how = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 5"
    if mode == "same":
        Watch._transform.same_length = True  # type: ignore[attr-defined]
    try:
        async with serving(server, HOST) as port, running(names(), Loopback(), TlsOnce(), watch) as runtime:
            await lookup(runtime, HOST)
            async with guest(runtime, "127.0.0.1", port) as flow:
                await offload(flow, HOST)
                await flow.guest_send(b"POST / HTTP/1.1\r\nHost: api.example\r\n" + how + b"\r\n\r\n" + body[:7])
                await flow.guest_send(body[7:])
                assert (await read_response(flow))[0] == 200
    finally:
        if mode == "same":
            del Watch._transform.same_length  # type: ignore[attr-defined]
    head, _, sent = server.requests[0].partition(b"\r\n\r\n")
    assert (b"Content-Length: 5" in head) == (mode == "same" and not chunked)
    pieces = [piece for piece, _ in watch.transformed]
    assert b"".join(pieces) == b"body!" and [last for _, last in watch.transformed] == [False] * (len(pieces) - 1) + [True]
    times = 1 if mode == "same" else 2
    wanted = b"".join(piece.upper() * times for piece in pieces)
    got = sent if b"Content-Length" in head else b"".join(sent.split(b"\r\n")[1:-3:2])
    assert got == wanted


@async_test
async def test_observers_see_what_the_agent_is_sent() -> None:
    seen: list[tuple[bytes, bool]] = []

    class Watching:
        name = "watching"

        @hookimpl
        def response(self, head: ResponseHead) -> None:
            def broken(piece: bytes, last: bool) -> None:
                seen.append((b"broken", last))
                raise RuntimeError(SECRET)

            head.observers += [broken, lambda piece, last: seen.append((piece, last))]

    class Masking:
        name = "masking"

        @hookimpl
        def response(self, head: ResponseHead) -> None:
            head.headers.remove("x-secret")
            head.transforms.append(lambda piece, last: piece.replace(b"c", b"*"))

    async with (
        serving(Recorder(CHUNKED), HOST) as port,
        running(names(), Loopback(), TlsOnce(), Watching(), Masking()) as runtime,
    ):
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, HOST)
            await flow.guest_send(GET)
            assert await flow.guest_read_until(b"0\r\n\r\n")
    assert [each for each in seen if each[0] == b"broken"] == [seen[0]], "it is asked once"
    shown_ = [each for each in seen if each[0] != b"broken"]
    assert b"".join(piece for piece, _ in shown_) == b"ab*de" and [last for _, last in shown_][-1] is True


@async_test
async def test_observers_leave_the_framing_alone() -> None:
    class Watching:
        name = "watching"

        @hookimpl
        def response(self, head: ResponseHead) -> None:
            head.observers.append(lambda piece, last: None)

    async with serving(Recorder(OK), HOST) as port, running(names(), Loopback(), TlsOnce(), Watching()) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, HOST)
            await flow.guest_send(GET)
            assert (await read_response(flow))[1]["content-length"] == "2"


def test_an_agent_is_stopped_by_whoever_runs_it() -> None:
    async def body() -> None:
        watch, reasons = Watch(), list[str]()
        runtime, agent = make_runtime(watch), make_agent()
        assert not runtime.stop_agent(agent, "enough")
        runtime.can_stop(agent, reasons.append)
        assert runtime.stop_agent(agent, "enough") and reasons == ["enough"]
        runtime.can_stop(agent, None)
        assert not runtime.stop_agent(agent, "again")
        assert [(event.kind, event.reason) for event in watch.events] == [("agent_stopped", "enough")]

    asyncio.run(body())


@async_test
async def test_a_request_without_a_body_meets_no_transform() -> None:
    server, watch = Recorder(OK), Watch("transform")
    async with serving(server, HOST) as port, running(names(), Loopback(), TlsOnce(), watch) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, HOST)
            await flow.guest_send(GET)
            await read_response(flow)
    assert not watch.transformed and b"ransfer" not in server.requests[0]


async def _udp(runtime: Runtime, port: int) -> None:
    async with guest(runtime, "127.0.0.1", port, "udp") as flow:
        await flow.guest_send_datagram(b"ping")
        await asyncio.sleep(0.05)


async def _tcp_dns(runtime: Runtime, port: int) -> None:
    async with guest(runtime, *RESOLVER) as flow:
        query = bytes(dnslib.DNSRecord.question("evil.example").pack())
        await flow.guest_send(len(query).to_bytes(2) + query)
        size = int.from_bytes(await exactly(flow, 2))
        await exactly(flow, size)


async def _udp_dns(runtime: Runtime, port: int) -> None:
    reply = await lookup(runtime, "evil.example")
    assert dnslib.RCODE[reply.header.rcode] == "REFUSED"


async def _refused_connect(runtime: Runtime, port: int) -> None:
    async with guest(runtime, "203.0.113.5", 443) as flow:
        assert await flow.guest_connected() == errno.EACCES


async def _refused_tls(runtime: Runtime, port: int) -> None:
    await lookup(runtime, HOST)
    async with guest(runtime, "127.0.0.1", port) as flow:
        assert not (await offload(flow, "evil.example"))["ok"]


async def _refused_passthrough(runtime: Runtime, port: int) -> None:
    import ssl

    out = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="evil.example")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    await lookup(runtime, HOST)
    async with guest(runtime, "127.0.0.1", port) as flow:
        await flow.guest_send(out.read())
        assert (await flow.guest_receive())[:1] == b"\x15"


@pytest.mark.parametrize(
    ("doing", "kind", "where"),
    [
        (_udp, "udp", ""),
        (_tcp_dns, "dns", "dns://evil.example:53"),
        (_udp_dns, "dns", "dns://evil.example:53"),
        (_refused_connect, "tcp", ""),
        (_refused_tls, "tls", "https://evil.example:{port}"),
        (_refused_passthrough, "tls", "tls://evil.example:{port}"),
    ],
    ids=["udp", "dns over tcp", "dns", "connect", "tls", "tls of its own"],
)
@async_test
async def test_refusals_are_told(doing: Callable[[Runtime, int], Awaitable[None]], kind: str, where: str) -> None:
    class OnlyThere(Watch):
        @hookimpl
        def allow(self, destination: Destination) -> None:
            if destination.host not in (HOST, "127.0.0.1") or destination.scheme == "udp":
                raise Denied("watch: nobody", "not this one")

    watch = OnlyThere()
    async with serving(Recorder(), HOST) as port, running(names(), Loopback(), TlsOnce(), watch) as runtime:
        await doing(runtime, port)
    events = [event for event in watch.events if event.kind == "denied"]
    assert len(events) == 1 and (events[0].rule, events[0].plugin) == ("watch: nobody", "watch"), watch.events
    assert events[0].agent == "test" and events[0].destination == where.format(port=port), events
    assert watch.flows[-1].kind == kind
    if kind != "dns":
        assert watch.flows[-1].denied_rule == "watch: nobody"


@async_test
async def test_hooks_that_fail_in_telling_harm_nobody() -> None:
    class Broken:
        name = "broken"

        @hookimpl
        def exchange_end(self, exchange: ExchangeReport) -> None:
            raise RuntimeError(SECRET)

        @hookimpl
        def flow_end(self) -> None:
            raise SystemExit(1)

        @hookimpl
        def audit(self, event: AuditEvent) -> None:
            raise RuntimeError

        @hookimpl
        def tables(self) -> list[Table]:
            return [5]  # type: ignore[list-item]

    watch = Watch("deny")
    async with serving(Recorder(OK), HOST) as port, running(names(), Loopback(), TlsOnce(), Broken(), watch) as runtime:
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            await offload(flow, HOST)
            await flow.guest_send(GET)
            assert (await read_response(flow))[0] == 403
        assert runtime.tables() == []
    assert len(watch.exchanges) == len(watch.events) == 1 and len(watch.flows) == 2


@pytest.mark.parametrize("odd", [
    Table("t", "T", ("a", "b"), [(1, 2), (1,)]),
    Table("t", "T", ("a",), [(1, 2)]),
    Table("t", "T", ("a",), [(b"bytes",)]),  # type: ignore[list-item]
    Table("t", "T", ("a",), [5]),  # type: ignore[list-item]
    Table("t", "T", (5,), []),  # type: ignore[arg-type]
    Table(None, "T", (), []),  # type: ignore[arg-type]
])  # fmt: skip
@async_test
async def test_a_table_that_cannot_be_shown_costs_the_others_nothing(odd: Table, caplog: pytest.LogCaptureFixture) -> None:
    class Tells:
        def __init__(self, table: Table) -> None:
            self.table = table

        @hookimpl
        def tables(self) -> list[Table]:
            return [self.table]

    class TellsOdd(Tells):
        pass

    good = Table("good", "Good", ("a", "b"), [(1, None), ("x", 0.5)])
    runtime = make_runtime(TellsOdd(odd), Tells(good))
    assert runtime.tables() == [good] and "returned list, not a list of tables" in caplog.text
    assert as_json(runtime.tables())["good"][1] == {"a": "x", "b": 0.5} and as_text(good)


@async_test
async def test_model_calls_reach_third_parties() -> None:
    class Third:
        name = "third"

        def __init__(self) -> None:
            self.calls: list[ModelCall] = []

        @hookimpl
        def model_call(self, agent: Agent, call: ModelCall) -> None:
            self.calls.append(call)

    third = Third()
    runtime = make_runtime(third)
    call = ModelCall(
        exchange=1,
        provider="openai",
        operation="chat",
        destination=Destination("https", HOST, 443),
        requested_model="m",
        model="m",
        streamed=False,
        status=200,
        started=0,
        seconds=1,
        first_token=None,
        input_tokens=1,
        output_tokens=2,
    )
    runtime.plugins.model_call(make_agent(), call)
    assert third.calls == [call] and not call.failed


@given(st.text(max_size=40), st.integers(8, 40))
def test_what_is_shown_is_one_line(text: str, limit: int) -> None:
    line = shown(text, limit)
    assert len(line) <= limit and len(line.splitlines()) <= 1 and not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in line)
    line.encode()
    assert line.isprintable() and shown("\u202egnp.exe") == r"\u202egnp.exe", "a terminal would turn it round"


def test_an_event_is_plain_json() -> None:
    event = AuditEvent.about("denied", make_agent(team="red"), Destination("https", HOST, 443), reason="a\nb", method="x" * 5000)
    told = msgspec.json.decode(msgspec.json.encode(event))
    assert told["labels"] == {"team": "red"} and told["reason"] == "a\\nb" and len(told["extra"]["method"]) == 1024
    assert {"head", "headers", "request"}.isdisjoint(ExchangeReport.__struct_fields__)


def question(name: str, qtype: int = 1, number: bytes = b"\x12\x34") -> bytes:
    labels = b"".join(len(part).to_bytes(1) + part for part in name.encode("latin-1").split(b"."))
    return number + b"\1\0\0\1\0\0\0\0\0\0" + labels + b"\0" + qtype.to_bytes(2) + b"\0\1"


@async_test
async def test_each_question_is_told_once() -> None:
    watch = Watch()
    async with running(names(), Loopback(), watch) as runtime:
        asked = [
            (question(HOST), (HOST, 1, 0, "", "")),
            (question("evil.example"), ("evil.example", 1, 5, "denied by watch: nobody", "watch: nobody")),
            (question("Unknown.Example", 28), ("unknown.example", 28, 3, "", "")),
            (question("a\x1b[31m\xff.example"), ("a\\x1b[31m\\xff.example", 1, 5, "host", "")),
            (question("<b>." + "x" * 60 + ".example"), ("<b>." + "x" * 60 + ".example", 1, 5, "", "")),
            (question(HOST, 252), (HOST, 252, 5, "type", "")),
        ]
        for query, (name, qtype, rcode, error, rule) in asked:
            reply = await dns.answer(runtime, make_agent(), query, udp=True)
            told = watch.questions.pop()
            assert not watch.questions and reply == told.reply and reply is not None and reply[:2] == query[:2]
            assert (told.name, told.qtype, told.rcode, told.denied_rule) == (name, qtype, rcode, rule)
            assert error in told.error and bool(told.error) == bool(rcode) and told.seconds >= 0 and told.name.isprintable()
        for nonsense in (b"", b"\0" * 11, question(HOST)[:20], question(HOST)[:2] + b"\x81" + question(HOST)[3:]):
            await dns.answer(runtime, make_agent(), nonsense, udp=True)
        assert not watch.questions, "those cannot be read"


@async_test
async def test_a_kept_connection_is_told_as_reused() -> None:
    watch = Watch()
    async with serving(Recorder(OK), HOST) as port, running(names(), Loopback(), TlsOnce(), watch) as runtime:
        connect = runtime.plugins.connect

        async def used(*args: object) -> object:
            upstream = await connect(*args)  # type: ignore[arg-type]
            upstream.reused = True  # type: ignore[union-attr,misc]
            return upstream

        runtime.plugins.connect = used  # type: ignore[method-assign,assignment]
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", port) as flow:
            assert (await offload(flow, HOST))["ok"]
            await flow.guest_send(GET)
            await read_response(flow)
    assert [report.reused for report in watch.exchanges] == [True]


@async_test
async def test_a_request_without_a_connection_says_so() -> None:
    watch = Watch()
    async with running(names(), Loopback(), watch) as runtime:  # nobody connects
        await lookup(runtime, HOST)
        async with guest(runtime, "127.0.0.1", 80) as flow:
            await flow.guest_send(GET)
            await read_response(flow)
    assert [(report.connected, report.status) for report in watch.exchanges] == [(None, 502)]
