"""A guest that writes its flows by hand, under a whole runtime: the worker and the cell live on, their memory is bounded, and the
VM beside it gets its HTTP answers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agentfw import Agent
from agentfw.config import Config
from agentfw.plugins import load_plugins
from agentfw.runtime import Runtime
from agentfw_vmm import GuestFlow
from agentfw_vmm.cell import Cell

from . import bare

pytestmark = pytest.mark.kvm

POLICY = {"policy": {"allow": ["127.0.0.1"]}, "native": {"resolve": False}}
RSS_GROWTH = 48 << 20

#: Asks for a page, again and again, as any agent would.
GOOD = """
#include "hostile_net.h"
void run(void) {
    static const char request[] = "GET /answer HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n", wanted[] = "the answer";
    u64 port = take_number(), times = take_number();
    for (u64 n = 0; n < times; n++) {
        open_tcp(4, LOCALHOST, port);
        CHECK(state(4) == AFW_H_OPEN);
        CHECK(put(4, request, sizeof request - 1) == sizeof request - 1);
        touch(4);
        volatile struct afw_flow *f = &WIN->flow[4];
        u64 matched = 0;
        while (matched < sizeof wanted - 1) {
            if (f->rx_tail == f->rx_head) {
                CHECK(!(f->hflags & (AFW_HF_RX_EOF | AFW_HF_RESET)));
                rest();
                continue;
            }
            char c = RX(4)[f->rx_tail % AFW_RING];
            f->rx_tail = f->rx_tail + 1;
            matched = c == wanted[matched] ? matched + 1 : c == wanted[0];
        }
        end(4);
        say("a", 1);
    }
    leave(0);
}
"""


class Guests(bare.Recorder):
    """Serves the flows of its cell by a runtime."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.runtime = runtime
        self.tasks: set[asyncio.Task[None]] = set()
        self.served = 0

    def flow_opened(self, flow: GuestFlow) -> None:
        self.served += 1
        task = asyncio.ensure_future(self.runtime.handle_flow(Agent(f"{flow.vm}", f"vm{flow.vm}"), flow))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        self.changed.set()


class Scene:
    """VM 0 is hostile; VM 1 is good."""

    def __init__(self, cell: Cell, guests: Guests, port: int) -> None:
        self.cell = cell
        self.guests = guests
        self.port = port
        self.readers: list[asyncio.Task[bytes]] = []

    def start(self, vm: int, *numbers: int, more: bytes = b"") -> asyncio.Task[bytes]:
        """-> what it says"""
        self.guests.exits.pop(vm, None)
        self.cell.boot(vm)
        stream = self.cell.stream(vm, 0)

        async def feed() -> None:
            with contextlib.suppress(BrokenPipeError):
                await stream.send(b"hg"[vm : vm + 1] + struct.pack(f"<{len(numbers)}I", *numbers) + more)
                stream.send_eof()

        async def read() -> bytes:
            said = b""
            while data := await self.cell.stream(vm, 1).receive():
                said = (said + data)[-10_000:]
            return said

        self.readers.append(asyncio.ensure_future(read()))
        self.guests.tasks.add(task := asyncio.ensure_future(feed()))
        task.add_done_callback(self.guests.tasks.discard)
        return self.readers[-1]

    async def good(self, times: int = 10) -> None:
        """VM 1 gets its answers."""
        said = self.start(1, self.port, times)
        await self.until(1)
        assert (self.guests.exits[1].kind, self.guests.exits[1].code, await said) == ("code", 0, b"a" * times)

    async def until(self, vm: int) -> None:
        await self.guests.until(lambda: vm in self.guests.exits or self.guests.failed, 60)
        assert not self.guests.failed

    async def quiet(self) -> None:
        """Every flow that was served has ended."""
        async with asyncio.timeout(30):
            while self.guests.tasks:
                await asyncio.wait(self.guests.tasks)


def rss() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@contextlib.asynccontextmanager
async def scene(bare_cell: Path, guest, hostile: str) -> AsyncIterator[Scene]:
    """One program for both: the first number says whose part it plays."""
    program = guest(GOOD.replace("void run(void)", "static void good(void)") + hostile + ENTRY)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nthe answer")
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    config = Config(POLICY)
    runtime = Runtime(asyncio.get_running_loop(), load_plugins(["policy", "native"], config), config)
    await runtime.start()
    guests = Guests(runtime)
    cell = await Cell.start(bare.config(program, vms=2), guests, bare_cell)
    stage = Scene(cell, guests, server.sockets[0].getsockname()[1])
    try:
        await stage.good(3)
        yield stage
        assert not guests.failed
        cell.kill(0)
        await stage.until(0)
        await stage.good(3)  # and all is as it was
        await stage.quiet()
        assert runtime.counters["flows_broken"] == 0  # no mistake of ours was met
        assert not runtime.udp_peers
    finally:
        await cell.close()
        for task in [*guests.tasks, *stage.readers]:
            task.cancel()
        await runtime.stop()
        server.close()


ENTRY = """
void run(void) {
    char part;
    CHECK(take(&part, 1));
    if (part == 'g') good(); else hostile();
}
"""


def play(bare_cell: Path, guest, hostile: str, act) -> None:
    asyncio.run(_play(bare_cell, guest, hostile, act))


async def _play(bare_cell: Path, guest, hostile: str, act) -> None:
    async with scene(bare_cell, guest, hostile) as stage:
        await act(stage)


FORGED = """
static void hostile(void) {
    static const u64 bad[] = {0, 3, 128, 129, 255, 1ull << 32 | 4, ~0ull, 0x8000000000000004};
    u64 port = take_number();
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(call(AFW_OP_FLOW_OPEN, bad[i], AFW_KIND_TCP, 2, LOCALHOST, 0, port) == -22);
        CHECK((bad[i] < 4) == (call(AFW_OP_FLOW_KICK, bad[i], 0, 0, 0, 0, 0) == 0));
    }
    CHECK(call(AFW_OP_FLOW_OPEN, 4, 3, 2, LOCALHOST, 0, port) == -93);
    CHECK(call(AFW_OP_FLOW_OPEN, 4, 1ull << 16 | 1, 2, LOCALHOST, 0, port) == -93);
    CHECK(call(AFW_OP_FLOW_OPEN, 4, AFW_KIND_TCP, 1, LOCALHOST, 0, port) == -97);
    CHECK(call(AFW_OP_FLOW_OPEN, 4, AFW_KIND_TCP, 2, LOCALHOST, 0, 65536) == -22);
    for (u64 i = 4; i < 128; i++)                    /* kicks of flows that nobody opened */
        touch(i);
    open_tcp(4, LOCALHOST, port);
    CHECK(begin(4, AFW_KIND_TCP, LOCALHOST, port) == -16);
    say("k", 1);
    WIN->flow[4].hstate = AFW_H_FREE;                /* the cell believes it, the worker knows better */
    begin(4, AFW_KIND_TCP, LOCALHOST, port);
    for (;;) rest();
}
"""


def test_forged_indices(bare_cell, guest):
    async def act(stage: Scene) -> None:
        said = stage.start(0, stage.port, more=b"")
        await stage.until(0)
        assert stage.guests.exits[0].kind == "killed", await said
        assert await said == b"k"

    play(bare_cell, guest, FORGED, act)


LENGTHS = """
static void hostile(void) {
    u64 port = take_number(), until = now() + 700000000, n = 0;
    while (now() < until) {
        u64 i = 4 + rnd() % 16;
        volatile struct afw_flow *f = &WIN->flow[i];
        if (state(i) == AFW_H_FREE) {
            begin(i, 1 + rnd() % 2, rnd() % 4 ? LOCALHOST : RESOLVER, rnd() % 3 ? port : 53);
            n++;
        }
        for (int k = 0; k < 200; k++) TX(i)[rnd() % AFW_RING] = (char)rnd();
        switch (rnd() % 6) {
        case 0: f->tx_head = f->tx_head + (uint32_t)(rnd() % 100); break;
        case 1: f->tx_head = (uint32_t)rnd(); break;
        case 2: f->rx_tail = f->rx_head + (uint32_t)(rnd() % 3); break;
        case 3: f->rx_tail = (uint32_t)rnd(); break;
        case 4: f->gflags = (uint32_t)(rnd() % 8); break;
        default: end(i); f->tx_tail = (uint32_t)rnd(); f->rx_head = (uint32_t)rnd(); f->hflags = (uint32_t)rnd();
        }
        touch(i);
        if (rnd() % 8 == 0) rest();
    }
    say_number(n);
    leave(0);
}
"""


def test_wrong_lengths_and_flags(bare_cell, guest):
    """Indices beyond the ring, backwards, ahead of the other side; ends in any order; the worker's own line overwritten."""

    async def act(stage: Scene) -> None:
        while True:
            said = stage.start(0, stage.port)
            await stage.good()
            await stage.until(0)
            assert stage.guests.exits[0].kind in ("code", "killed")
            if stage.guests.exits[0].kind == "killed" or int(await said) > 16:  # flows were used again
                break

    play(bare_cell, guest, LENGTHS, act)


RACE = """
static void hostile(void) {
    static const char good_[] = "POST / HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nContent-Length: 5\\r\\n\\r\\nhello";
    u64 port = take_number(), until = now() + 700000000;
    while (now() < until) {
        u64 i = 4 + rnd() % 4;
        volatile struct afw_flow *f = &WIN->flow[i];
        int dns = i == 7;                            /* this one's frames: struct afw_dgram */
        if (state(i) == AFW_H_FREE)
            begin(i, dns ? AFW_KIND_UDP : AFW_KIND_TCP, LOCALHOST, port);
        put(i, good_, sizeof good_ - 1);
        touch(i);
        uint32_t head = f->tx_head;
        for (int k = 0; k < 3000; k++) {             /* while the worker reads */
            uint32_t at = (head + k % 64) % AFW_RING;
            TX(i)[at] = (char)k;
            if (dns) {
                volatile struct afw_dgram *d = (volatile struct afw_dgram *)(TX(i) + f->tx_tail % (AFW_RING - 64));
                d->len = (uint16_t)(k % 2 ? 8 : 65535);
                d->family = (uint16_t)(k % 3 ? 2 : 10);
            }
            f->tx_head = k % 2 ? head + 40 : head + (k % 3 ? 0 : 70000);
            f->gflags = k % 5 ? 0 : AFW_G_TX_EOF;
        }
        f->tx_head = head;
        if (rnd() % 4 == 0)
            end(i);
        if (f->hflags & AFW_HF_RESET)
            end(i);
    }
    leave(0);
}
"""


def test_bytes_that_change_while_they_are_read(bare_cell, guest):
    async def act(stage: Scene) -> None:
        stage.start(0, stage.port)
        await stage.good()
        await stage.until(0)
        assert stage.guests.exits[0].kind == "code"

    play(bare_cell, guest, RACE, act)


MANY = """
static void hostile(void) {
    u64 port = take_number(), wanted = take_number(), opened = 0, i = 4;
    for (u64 idle = 0; opened < wanted; i = i == 127 ? 4 : i + 1) {
        if (state(i) == AFW_H_FREE) {
            CHECK(begin(i, 1 + opened % 2, LOCALHOST, opened % 3 ? port : 1) == 0);
            opened++;
            idle = 0;
            if (opened % 7 == 0) put(i, "GET / HTTP/1.1\\r\\n", 16);
        } else if (state(i) != AFW_H_OPENING && !(WIN->flow[i].gflags & AFW_G_CLOSED)) {
            end(i);
        } else if (++idle > 124) {
            rest();
            idle = 0;
        }
    }
    say_number(opened);
    leave(0);
}
"""


def test_ten_thousand_flows(bare_cell, guest):
    async def act(stage: Scene) -> None:
        await stage.good()
        before = rss()
        said = stage.start(0, stage.port, 10_000)
        await stage.good(20)
        await stage.until(0)
        assert await said == b"10000\n"
        await stage.quiet()
        assert stage.guests.served > 10_000
        assert len(stage.guests.runtime.counters) < 100
        assert rss() - before < RSS_GROWTH

    play(bare_cell, guest, MANY, act)


BYTES = """
static volatile char buffer[70000];
static void hostile(void) {
    u64 address = take_number(), port = take_number(), n;
    while ((n = take_number())) {
        CHECK(n <= sizeof buffer && take(buffer, n));
        open_tcp(4, address, port);
        volatile struct afw_flow *f = &WIN->flow[4];
        u64 sent = 0;
        u64 give_up = now() + 20000000000ull;
        int half = (int)(n % 2);                     /* half of them end their side at once */
        while (state(4) == AFW_H_OPEN && !(f->hflags & (AFW_HF_RX_EOF | AFW_HF_RESET))) {
            sent += put(4, buffer + sent, n - sent);
            if (sent == n && half) f->gflags = AFW_G_TX_EOF;
            touch(4);
            f->rx_tail = f->rx_head;
            CHECK(now() < give_up);
            if (sent == n && !half) break;
            rest();
        }
        end(4);
        say("k", 1);
    }
    leave(0);
}
"""


def framed(parts: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(part)) + part for part in parts if part) + bytes(4)


def preface(body: bytes, length: int | None = None) -> bytes:
    return b"\0AFWTLS1" + (len(body) if length is None else length).to_bytes(4) + body


PREFACES = [
    preface(b'{"server_name":null,"x":' + b"[" * 60000),
    preface(b'{"server_name":null,"x":' + b'{"a":' * 10000 + b"1" + b"}" * 10000 + b"}"),
    preface(b'{"server_name":null,"min":' + b"9" * 60000 + b"}"),
    preface(b'{"server_name":null,"min":-1e999,"max":1E-999}'),
    preface(b'{"server_name":"a\\u0000b.example"}'),
    preface(b'{"server_name":"' + b"a." * 250 + b'"}'),
    preface(b'{"server_name":"\\ud800"}'),
    preface(b'{"server_name":"\xff\xfe"}'),
    preface(b'{"server_name":null,"cas":["' + b"A" * 65000 + b'"]}'),
    preface(b'{"server_name":null,"cas":[' + b'"",' * 16000 + b'""]}'),
    preface(b'{"server_name":null,"cas":["\xc3\xa9==","*"]}'),
    preface(b'{"server_name":null,"alpn":[' + b'"h2",' * 10000 + b'"h2"]}'),
    preface(b'{"server_name":"127.0.0.1","alpn":["http/1.1\\r\\nx"],"verify":0,"check_hostname":false}'),
    preface(b'{"server_name":null,"server_name":null}' + b" " * (65536 - 39)),
    preface(b'{"server_name":null}' + b" " * (65536 - 20)),
    preface(b'{"server_name":null}' + b" " * 10, 65537),
    preface(b"", 0),
    preface(b"", 0xFFFFFFFF),
    preface(b"\0" * 65536),
    preface(b'{"server_name":null}', 30),  # cut off
    preface(b"{}")[:7],
    preface(b"{}")[:9],
    b"\x16\x03\x01\xff\xff" + b"\x01" * 65530,
    b"\x16\x03\x01\0\5\1\0\0\1\0",
    b"\x16\x03" + b"\0" * 60000,
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 10000,
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 18446744073709551616\r\n\r\nx",
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\nx",
    b"G" * 65536,
    b"\r\n" * 32768,
]


def test_hostile_prefaces_and_requests(bare_cell, guest):
    async def act(stage: Scene) -> None:
        parts = [variant for part in PREFACES for variant in (part, part[: len(part) - 1])]
        said = stage.start(0, 0x0100007F, stage.port, more=framed(parts))
        await stage.good(5)
        await stage.until(0)
        assert (stage.guests.exits[0].kind, await said) == ("code", b"k" * len(parts))

    play(bare_cell, guest, BYTES, act)


QUESTION = b"\x12\x34\1\0\0\1\0\0\0\0\0\0\7example\3com\0\0\1\0\1"
QUESTIONS = [
    QUESTION,
    b"",
    b"\0" * 12,
    QUESTION[:-1],
    QUESTION + b"\0",
    QUESTION[:12] + b"\xc0\x0c\0\1\0\1",
    QUESTION[:4] + b"\xff\xff" + QUESTION[6:],
    QUESTION[:2] + b"\x81\x80" + QUESTION[4:],
    QUESTION[:12] + b"\x3f" + b"a" * 63 + b"\0\0\1\0\1",
    QUESTION[:12] + (b"\x3f" + b"a" * 63) * 5 + b"\0\0\1\0\1",
    QUESTION[:12] + b"\3a\0b\0\0\1\0\1",
    QUESTION[:11] + b"\1" + QUESTION[12:] + b"\0\0\x29\xff\xff\0\0\x80\0\xff\xff",
    QUESTION + b"x" * 60000,
]


def test_hostile_questions_by_tcp(bare_cell, guest):
    async def act(stage: Scene) -> None:
        messages = [len(question).to_bytes(2) + question for question in QUESTIONS]
        parts = [*messages, b"".join(messages[:1] * 500), b"\xff\xff" + b"x" * 100, b"\0\0" * 30000, b"\0"]
        said = stage.start(0, 0x0302000A, 53, more=framed([variant for part in parts for variant in (part, part[:-1])]))
        await stage.good(5)
        await stage.until(0)
        assert stage.guests.exits[0].kind == "code" and set(await said) == set(b"k")

    play(bare_cell, guest, BYTES, act)


DATAGRAMS = """
static void datagram(u64 i, uint16_t len, uint16_t family, u64 address, uint16_t port, const volatile char *data, u64 n) {
    struct afw_dgram d = {.len = len, .port = port, .family = family, .error = (uint16_t)rnd()};
    for (int k = 0; k < 4; k++) d.addr[k] = (uint8_t)(address >> 8 * k);
    volatile struct afw_flow *f = &WIN->flow[i];
    if (AFW_RING - (f->tx_head - f->tx_tail) < sizeof d + n) return;
    put(i, (volatile char *)&d, sizeof d);
    put(i, data, n);
}
static volatile char text[2000];
static void hostile(void) {
    u64 port = take_number(), size = take_number(), until = now() + 700000000;
    CHECK(take(text, size));
    while (now() < until) {
        for (u64 i = 4; i < 20; i++) {
            if (state(i) == AFW_H_FREE) { begin(i, AFW_KIND_UDP, 0, 0); continue; }
            if (state(i) != AFW_H_OPEN) continue;
            if (WIN->flow[i].hflags & AFW_HF_RESET) { end(i); continue; }
            volatile struct afw_flow *f = &WIN->flow[i];
            f->rx_tail = f->rx_head;
            u64 at = rnd() % size, n = rnd() % (size - at);
            switch (rnd() % 16) {
            case 0: datagram(i, (uint16_t)rnd(), 2, RESOLVER, 53, text, n); break;             /* its length is a lie */
            case 1: datagram(i, (uint16_t)n, (uint16_t)rnd(), RESOLVER, 53, text, n); break;
            case 2: put(i, text, rnd() % 23); break;                                           /* half a head */
            case 3: case 4: datagram(i, (uint16_t)n, 2, LOCALHOST, (uint16_t)(rnd() % 5 ? port : rnd()), text + at, n); break;
            case 5: datagram(i, (uint16_t)n, 2, rnd(), (uint16_t)rnd(), text + at, n); break;
            default: datagram(i, (uint16_t)n, 2, RESOLVER, 53, text + at, n);                  /* garbage for the resolver */
            }
            if (rnd() % 64 == 0) end(i); else touch(i);
        }
        if (rnd() % 4 == 0) rest();
    }
    leave(0);
}
"""


def test_hostile_datagrams(bare_cell, guest):
    async def act(stage: Scene) -> None:
        text = b"".join(QUESTIONS)[:1900]
        before = rss()
        while stage.guests.runtime.counters["dns_queries"] <= 100:  # how many in its time, the machine says
            stage.start(0, stage.port, len(text), more=text)
            await stage.good()
            await stage.until(0)
            assert stage.guests.exits[0].kind == "code"
        await stage.quiet()
        assert rss() - before < RSS_GROWTH

    play(bare_cell, guest, DATAGRAMS, act)


FLOOD = """
static void hostile(void) {
    static const char request[] = "GET /answer HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n";
    u64 port = take_number();
    for (;;) {
        for (u64 i = 4; i < 128; i++) {
            if (state(i) == AFW_H_FREE)
                begin(i, AFW_KIND_TCP, LOCALHOST, port);
            else if (state(i) == AFW_H_FAILED || WIN->flow[i].hflags & (AFW_HF_RESET | AFW_HF_RX_EOF))
                end(i);
            else
                while (put(i, request, sizeof request - 1) == sizeof request - 1)
                    ;                                /* requests without end, whose answers nobody reads */
            post(AFW_OP_FLOW_KICK, AFW_SQE_NOREPLY, i, 0, 0, 0, 0, 0);
            for (int k = 0; k < 50; k++) post(AFW_OP_FLOW_KICK, AFW_SQE_NOREPLY, rnd() % 4 + 1, 0, 0, 0, 0, 0);
            kick();
            CTL->cq_head = CTL->cq_tail;
        }
        put(AFW_FLOW_STDOUT, request, sizeof request - 1);
        put(AFW_FLOW_STDERR, request, sizeof request - 1);
    }
}
"""


def test_a_flood_stops_nobody_else(bare_cell, guest):
    """124 flows of requests, answers that are not read, and doorbells without end."""

    async def act(stage: Scene) -> None:
        stage.start(0, stage.port)
        await stage.guests.until(lambda: stage.guests.served > 100)
        await stage.good(2)
        before = rss()
        await stage.good(6)
        assert 0 not in stage.guests.exits  # it is still at it
        assert len(stage.guests.tasks) < 200
        assert rss() - before < RSS_GROWTH

    play(bare_cell, guest, FLOOD, act)
