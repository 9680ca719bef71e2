"""Rules against guests that write the ring by hand: no shim is asked, so what holds here holds."""

import asyncio
import contextlib
import errno
from pathlib import Path

import pytest
from agentfw_vmm.cell import Cell
from agentfw_vmm.config import Mount
from agentfw_vmm.rules import FileRule, compile_rules

from . import bare
from .test_hostile import RANDOM

pytestmark = pytest.mark.kvm

CALLS = """
#define PATH(s) (u64)(s), sizeof(s) - 1
static char buffer[4096];
static int64_t open_(const char *path, u64 len, u64 flags) { return call(AFW_OP_OPEN, (u64)path, len, flags, 0644, AFW_CWD, 0); }
#define OPEN(s, flags) open_(s, sizeof(s) - 1, flags)
static int64_t read_(int64_t h) { return call(AFW_OP_PREAD, (u64)h, (u64)buffer, sizeof buffer, 0, 0, 0); }
#define BASES ((u64)AFW_CWD | (u64)AFW_CWD << 32)
"""


async def boot(bare_cell: Path, program: Path, tables: list[bytes], patience: float | None = None, **changes):
    """Boots one VM for each table, and kills those that run for longer than `patience` seconds. -> ends, statistics, flows that
    the worker saw"""
    recorder = bare.Recorder()
    cell = await Cell.start(bare.config(program, vms=len(tables), **changes), recorder, bare_cell)
    try:
        for vm, table in enumerate(tables):
            cell.boot(vm, table)
        if patience is not None:
            with contextlib.suppress(TimeoutError):
                await recorder.until(lambda: len(recorder.exits) == len(tables) or recorder.failed, patience)
            for vm in range(len(tables)):
                cell.kill(vm)
        await recorder.until(lambda: len(recorder.exits) == len(tables) or recorder.failed)
        assert not recorder.failed
        return recorder.exits, [cell.statistics(vm) for vm in range(len(tables))], recorder.flows
    finally:
        await cell.close()


def test_files(bare_cell, guest, tmp_path):
    work = tmp_path / "work"
    (work / "vault").mkdir(parents=True)
    (work / "vault/key").write_text("secret")
    (work / "fixed").write_text("fixed")
    body = (
        CALLS
        + """
    void run(void) {
        int64_t h = OPEN("/w/vault", 0200000);
        CHECK(h > 0);
        CHECK(call(AFW_OP_OPEN, PATH("key"), 0, 0, (u64)h, 0) == -13);
        CHECK(call(AFW_OP_OPEN, PATH("/w/vault/key"), 010000000, 0, AFW_CWD, 0) == -13);
        CHECK(OPEN("/w/vault/key", 0) == -13);
        CHECK(call(AFW_OP_RENAME, PATH("/w/vault"), PATH("/w/v"), BASES, 0) == -13);
        CHECK(call(AFW_OP_RENAME, PATH("/w/vault/key"), PATH("/w/k"), BASES, 0) == -13);
        CHECK(call(AFW_OP_LINK, PATH("/w/vault/key"), PATH("/w/k"), BASES, 0) == -13);
        CHECK(call(AFW_OP_LINK, PATH("/w/fixed"), PATH("/w/k"), BASES, 0) == -18);
        CHECK(OPEN("/w/fixed", 2) == -30);
        int64_t f = OPEN("/w/fixed", 0);
        CHECK(f > 0 && read_(f) == 5);
        CHECK(call(AFW_OP_PWRITE, (u64)f, (u64)buffer, 1, 0, 0, 0) == -9);
        CHECK(call(AFW_OP_FCHMOD, (u64)f, 0777, 0, 0, 0, 0) == -30);
        for (u64 n = 0; n < 64; n++) {               /* no number is a handle of the key */
            int64_t r = read_((int64_t)n);
            CHECK(r < 0 || buffer[0] != 's');
        }
        leave(0);
    }
    """
    )
    table = compile_rules([FileRule("/w/vault/**", "deny"), FileRule("/w/fixed", "read")])
    exits, statistics, _ = asyncio.run(
        boot(bare_cell, guest(body), [table], mounts=[Mount("/t", tmp_path), Mount("/w", work, writable=True)])
    )
    assert (exits[0].kind, exits[0].code) == ("code", 0)
    assert statistics[0].refused_paths >= 6 and statistics[0].refused_calls == 0
    assert (work / "vault/key").read_text() == "secret" and (work / "fixed").read_text() == "fixed"


def test_calls(bare_cell, guest):
    """Each VM of a cell has its own rules, and the next one in its place has none of them."""
    body = (
        CALLS
        + """
    void run(void) {
        int64_t link = call(AFW_OP_SYMLINK, PATH("x"), PATH("/tmp/s"), AFW_CWD, 0);
        int64_t flow = call(AFW_OP_FLOW_OPEN, 4, AFW_KIND_TCP, 2, 0x0100007f, 0, 80);
        int64_t udp = call(AFW_OP_FLOW_OPEN, 5, AFW_KIND_UDP, 2, 0, 0, 0);
        int64_t dir = call(AFW_OP_MKDIR, PATH("/tmp/d"), 0755, 0, AFW_CWD, 0);
        int64_t file = call(AFW_OP_UNLINK, PATH("/tmp/d"), 0, 0, AFW_CWD, 0);
        int64_t gone = call(AFW_OP_UNLINK, PATH("/tmp/d"), 0x200, 0, AFW_CWD, 0);
        if (flow == 0)                               /* the flow that was not refused is open */
            CHECK(udp == 0 && WIN->flow[4].hstate != AFW_H_FREE);
        else
            CHECK(WIN->flow[4].hstate == AFW_H_FREE && WIN->flow[5].hstate == AFW_H_FREE);
        CHECK(dir == 0);
        leave((link < 0) | (flow < 0) << 1 | (udp < 0) << 2 | (file != -21) << 3 | (gone < 0) << 4 |
              (link == -38 || flow == -38) << 5);
    }
    """
    )
    tables = [
        b"",
        compile_rules(deny=["symlink"]),
        compile_rules(deny=["socket"], error=errno.ENOSYS),
        compile_rules(deny=["unlink", "connect"]),
        compile_rules(deny=["rmdir"], advisory=["mkdir"]),  # what is advisory binds nobody here
    ]
    program = guest(body)

    async def main():
        recorder = bare.Recorder()
        cell = await Cell.start(bare.config(program, vms=len(tables)), recorder, bare_cell)
        found = []
        try:
            for order in (tables, tables[1:] + tables[:1]):
                recorder.exits.clear()
                recorder.flows.clear()
                for vm, table in enumerate(order):
                    cell.boot(vm, table)
                await recorder.until(lambda: len(recorder.exits) == len(tables) or recorder.failed)
                found.append([recorder.exits[vm].code for vm in range(len(tables))])
                found.append(sorted({flow.vm for flow in recorder.flows}))
        finally:
            await cell.close()
        return found

    codes = [0, 1, 2 | 4 | 32, 2 | 4 | 8, 16]
    assert asyncio.run(main()) == [codes, [0, 1, 4], codes[1:] + codes[:1], [0, 3, 4]]


def test_killed(bare_cell, guest):
    """At once: entries behind the forbidden one are not looked at, not even those that want no answer."""
    body = (
        CALLS
        + """
    void run(void) {
        CHECK(OPEN("/tmp/before", 0101) > 0);
        post(AFW_OP_MKDIR, AFW_SQE_NOREPLY, PATH("/tmp/d"), 0755, 0, AFW_CWD, 0);
        post(AFW_OP_LINK, AFW_SQE_NOREPLY, PATH("/tmp/before"), PATH("/tmp/l"), BASES, 0);
        post(AFW_OP_FLOW_OPEN, AFW_SQE_NOREPLY, 4, AFW_KIND_TCP, 2, 1, 0, 80);
        kick();
        leave(1);
    }
    """
    )
    exits, statistics, flows = asyncio.run(boot(bare_cell, guest(body), [compile_rules(kill=["link"])]))
    assert (exits[0].kind, exits[0].signal) == ("signal", 31)
    assert exits[0].text == "killed by SIGSYS: the rules permit no link()"
    assert statistics[0].refused_calls == 1 and not flows


def test_a_damaged_table_starts_nothing(bare_cell, guest):
    table = bytearray(compile_rules([FileRule("/a", "deny")]))
    table[0] ^= 1
    exits, _, _ = asyncio.run(boot(bare_cell, guest("void run(void) { leave(0); }"), [bytes(table)]))
    assert exits[0].kind == "internal" and "rules of" in exits[0].text


def test_two_that_move_at_a_time(bare_cell, guest, tmp_path):
    """VMs of one cell that share a directory: what one of them looked at, the other exchanges for what is protected."""
    work = tmp_path / "work"
    (work / "in/a").mkdir(parents=True)
    (work / "in/a/key").write_text("secret")
    (work / "in/b").write_text("public")
    body = (
        CALLS
        + """
    static int64_t move(const char *from, const char *to, u64 flags) {
        u64 n = 0, k = 0;
        while (from[n])
            n++;
        while (to[k])
            k++;
        return call(AFW_OP_RENAME, (u64)from, n, (u64)to, k, BASES, flags);
    }
    void run(void) {
        int mover = call(AFW_OP_MKDIR, PATH("/w/first"), 0755, 0, AFW_CWD, 0) == 0, done = 0;
        for (int i = 0; i < 4000; i++) {
            if (mover) {
                done += move("/w/in/a", "/w/in/b", 2) == 0;
                continue;
            }
            const char *name = i & 1 ? "/w/in/a" : "/w/in/b";
            if (move(name, "/w/out", 0))
                continue;
            done++;
            int64_t h = OPEN("/w/out/key", 0);
            CHECK(h < 0);
            CHECK(move("/w/out", name, 1) == 0);
        }
        CHECK(done > 0);
        leave(0);
    }
    """
    )
    table = compile_rules([FileRule("/w/in/*/key", "deny")])
    exits, _, _ = asyncio.run(
        boot(bare_cell, guest(body), [table, table], runners=2, mounts=[Mount("/t", tmp_path), Mount("/w", work, writable=True)])
    )
    assert [(end.kind, end.code) for end in exits.values()] == [("code", 0)] * 2
    assert not (work / "out").exists()


def test_nonsense_under_rules(bare_cell, guest, tmp_path):
    """Three VMs of two runners say anything at all, in one directory; the cell lives, and what is protected is as it was."""
    work = tmp_path / "work"
    (work / "in/a").mkdir(parents=True)
    for name in ("in/a/key", "fixed"):
        (work / name).write_text("secret")
    paths = '{"/w/in", "/w/in/a", "/w/in/a/key", "../..", "/w/fixed", "/w/b", "/w/in/./b/../a", "/w/c"}'
    program = RANDOM.replace('{"/t", "/tmp", "/tmp/a", "../..", "/proc/self/exe", "/dev/null", "/tmp/a/b/../c", "/"}', paths)
    assert program != RANDOM
    files = [FileRule("/w/in/*/key", "deny"), FileRule("**/fixed", "read"), FileRule("/w/h*", "hide")]
    table = compile_rules(files, write_bytes=100_000, creates=50)
    mounts = [Mount("/t", tmp_path), Mount("/w", work, writable=True)]
    guest_program = guest(program.replace("%d", "3000"))  # an operation may turn its code into an endless loop
    exits, _, _ = asyncio.run(boot(bare_cell, guest_program, [table] * 3, patience=5, runners=2, mounts=mounts))
    assert len(exits) == 3 and "internal" not in {end.kind for end in exits.values()}
    assert (work / "in/a/key").read_text() == (work / "fixed").read_text() == "secret"
