/* Sequences of memory calls drawn by chance: what each gives, and what the pages are after it, one line a step. The same lines natively, on
 * the harness and in a VM. `maps SEED STEPS [COUNT]`: COUNT seeds, one after the other.
 *
 * Places are pages of an arena at a fixed address, so that the lines are alike; what moves out of it is "away". Of what is not mapped only
 * that is looked at: a guest's memory can be touched after munmap() (docs/internals.md). */
#include "check.h"
#include "chance.h"
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>

#define PAGE 4096ul
#define PAGES 48                     /* of the arena */
#define FILE_PAGES 6
#define ARENA ((uint8_t *)0x200000000)

static char out[1 << 16];
static size_t used;
__attribute__((format(printf, 1, 2))) static void say(const char *text, ...)
{
    va_list args;
    va_start(args, text);
    used += (size_t)vsnprintf(out + used, sizeof out - used, text, args);
    va_end(args);
    CHECK(used < sizeof out);
}

static void flush(void)
{
    for (size_t done = 0; done < used;) {
        ssize_t n = write(1, out + done, used - done);
        CHECK(n > 0);
        done += (size_t)n;
    }
    used = 0;
}

/* ---- what a page is ---- */

static sigjmp_buf back;
static uint8_t alternate[65536];
static volatile int fault_signal, fault_code;
static volatile uint8_t *fault_address;

static void on_fault(int sig, siginfo_t *info, void *context)
{
    uint8_t here;
    (void)context;
    CHECK(&here >= alternate && &here < alternate + sizeof alternate);
    fault_signal = sig;
    fault_code = info->si_code;
    fault_address = info->si_addr;
    siglongjmp(back, 1);
}

static void fault(const volatile uint8_t *p)
{
    say("%c%d%s", fault_signal == SIGBUS ? 'B' : 'S', fault_code, fault_address == p ? "" : "?");
}

/* -: not mapped. A byte: it can be read, and has that; '+' behind it: written to, too. Else the signal and its code, '?' if the address is wrong */
static void look(uint8_t *base, size_t page)
{
    unsigned char there;
    volatile uint8_t *p = base + page * PAGE + 8 + page % 5 * 1000;
    if (mincore(base + page * PAGE, PAGE, &there)) {
        say("-");
        return;
    }
    if (sigsetjmp(back, 1)) {
        fault(p);
        return;
    }
    uint8_t value = *p;
    say("%02x", value);
    if (sigsetjmp(back, 1)) {
        if (fault_code != SEGV_ACCERR || fault_address != p)
            fault(p);
        return;
    }
    *p = value;
    say("+");
}

static void look_at(uint8_t *base, size_t at, size_t n)
{
    for (size_t i = at; i < at + n; i++) {
        say(" ");
        look(base, i);
    }
}

static void put(size_t page, uint8_t value)
{
    volatile uint8_t *p = ARENA + page * PAGE + 8 + page % 5 * 1000;
    unsigned char there;
    if (mincore(ARENA + page * PAGE, PAGE, &there) || sigsetjmp(back, 1))
        return;
    *p = value;
}

/* ---- steps ---- */

static int file, reader;             /* the same file */

static void result(void *r)
{
    if (r == MAP_FAILED)
        say(" = %d", errno);
    else if ((uint8_t *)r >= ARENA && (uint8_t *)r < ARENA + PAGES * PAGE)
        say(" = @%ld", (long)(((uint8_t *)r - ARENA) / (long)PAGE));
    else
        say(" = away");
}

static void call(int r)
{
    say(" = %d", r ? errno : 0);
}

static const int protections[] = {PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE};

/* Mostly whole pages; sometimes what is not aligned, nothing, or far too much */
static size_t odd(size_t bytes)
{
    static const size_t strange[] = {0, 1, 4095, 4097, 1ul << 47, ~0ul, ~0ul - 4095, 5000};
    return rnd(25) ? bytes : strange[rnd(8)];
}

static void fresh(size_t at, size_t n, int prot, uint32_t kind)
{
    int flags = MAP_FIXED | (kind == 1 || kind == 3 ? MAP_SHARED : MAP_PRIVATE) | (kind < 2 || kind > 3 ? MAP_ANONYMOUS : 0);
    CHECK(mmap(ARENA + at * PAGE, n * PAGE, PROT_READ | PROT_WRITE, flags, kind == 2 || kind == 3 ? file : -1, 0) == ARENA + at * PAGE);
    for (size_t i = at; i < at + n; i++)
        put(i, (uint8_t)(rnd(256)));
    CHECK(!mprotect(ARENA + at * PAGE, n * PAGE, prot));
}

static void map_step(size_t at, size_t n)
{
    uint8_t *p = ARENA + at * PAGE;
    int prot = protections[rnd(4)], flags = MAP_FIXED, fd = -1;
    size_t len = odd(n * PAGE), offset = 0;
    switch (rnd(6)) {
    case 0:
        flags = MAP_FIXED_NOREPLACE;
        __attribute__((fallthrough));
    case 1:
        flags |= MAP_PRIVATE | MAP_ANONYMOUS;
        break;
    case 2:
        flags |= MAP_SHARED | MAP_ANONYMOUS;
        break;
    default:
        flags |= rnd(3) ? MAP_PRIVATE : MAP_SHARED;
        fd = rnd(2) ? file : reader;
        offset = rnd(12) ? rnd(FILE_PAGES) * PAGE : rnd(2) ? 100 : 20 * PAGE;
    }
    if (!rnd(25))
        p += rnd(2) ? 1 : 2048;
    if (!rnd(40))
        fd = 99;
    if (len > PAGES * PAGE && len < 1ul << 40)
        len = PAGE;
    say("map %zu+%zu %#zx p%d f%x %s o%zx", at, (size_t)(p - ARENA) % PAGE, len, prot, flags, fd == file ? "rw" : fd == reader ? "ro" : "no", offset);
    result(mmap(p, len, prot, flags, fd, (off_t)offset));
}

static void remap_step(size_t at, size_t n)
{
    size_t want = rnd(3) ? 1 + rnd(12) : n, to = rnd(PAGES), old = odd(n * PAGE), new = odd(want * PAGE);
    int flags = (int[]){0, MREMAP_MAYMOVE, MREMAP_MAYMOVE, MREMAP_MAYMOVE | MREMAP_FIXED, MREMAP_MAYMOVE | MREMAP_FIXED, MREMAP_FIXED, 64}[rnd(7)];
    uint8_t *p = ARENA + at * PAGE + (rnd(40) ? 0 : 8);
    if (to + want > PAGES)
        to = PAGES - want;
    if (new > PAGES * PAGE)
        new = PAGE;
    /* Of one mapping, since Linux moves what is in several from 6.17 on */
    uint32_t kind = rnd(6);
    fresh(at, n, protections[rnd(4)], kind);
    if (!rnd(12))
        munmap(ARENA + at * PAGE, n * PAGE);
    if (old > n * PAGE || !old)      /* (of nothing Linux makes a second shared mapping) */
        old = n * PAGE;
    if (kind == 1 && new > old)      /* behind its end Linux has SIGBUS, and a guest zeros */
        new = old;
    if ((kind == 2 || kind == 3) && new > old)
        flags |= MREMAP_MAYMOVE | MREMAP_FIXED;      /* in a guest files' mappings grow elsewhere only */
    say("remap %zu %#zx %#zx %d to %zu", at, old, new, flags, to);
    uint8_t *r = mremap(p, old, new, flags, ARENA + to * PAGE);
    result(r);
    if (r == MAP_FAILED)
        return;
    look_at(r, 0, new / PAGE);
    if (r < ARENA || r >= ARENA + PAGES * PAGE) {
        say(" and");
        if (rnd(2))
            result(mremap(r, new, new, MREMAP_MAYMOVE | MREMAP_FIXED, ARENA + to * PAGE));
        else
            call(munmap(r, new));
    } else if (flags & MREMAP_FIXED)
        look_at(ARENA, to, want);
}

static void step(void)
{
    size_t at = rnd(PAGES), n = 1 + rnd(rnd(4) ? 5 : 16), len;
    if (at + n > PAGES)
        n = PAGES - at;
    uint8_t *p = ARENA + at * PAGE;
    int what;
    switch (rnd(12)) {
    case 0: case 1: case 2:
        map_step(at, n);
        break;
    case 3:
        len = n * PAGE;
        what = rnd(20) ? 0 : 1;
        say("unmap %zu+%d %#zx", at, what, len);
        call(munmap(p + what, len));
        break;
    case 4: case 5: case 6:
        len = odd(n * PAGE);
        if (len == 1ul << 47)
            len = ~0ul;
        what = rnd(30) ? protections[rnd(4)] : rnd(2) ? 0x40 : PROT_READ | 0x100;
        say("protect %zu %#zx %d", at, len, what);
        call(mprotect(p + (rnd(30) ? 0 : 1), len, what));
        break;
    case 7: case 8:
        remap_step(at, n);
        break;
    case 9:
        len = odd(n * PAGE);
        if (len > 1ul << 40)         /* (of what is there Linux takes all before it says ENOMEM; here as elsewhere a guest nothing) */
            len = PAGE;
        what = rnd(4) ? MADV_DONTNEED : (int[]){MADV_NORMAL, MADV_WILLNEED, MADV_RANDOM, MADV_DONTFORK, 5, 77, -1}[rnd(7)];
        say("advise %zu %#zx %d", at, len, what);
        call(madvise(p + (rnd(30) ? 0 : 1), len, what));
        break;
    case 10:
        what = (int[]){MS_SYNC, MS_ASYNC, MS_INVALIDATE, MS_SYNC | MS_ASYNC, 8, 0}[rnd(6)];
        len = odd(n * PAGE);
        if (len > 1ul << 40)
            len = 1ul << 40;
        say("sync %zu %#zx %d", at, len, what);
        call(msync(p, len, what));
        break;
    default: {
        uint8_t value = (uint8_t)rnd(256);
        off_t offset = (off_t)(rnd(FILE_PAGES) * PAGE + 8 + rnd(5) * 1000);
        if (rnd(6) && offset < lseek(file, 0, SEEK_END)) {   /* (what lies behind the end in its page, kernels clear now or later) */
            say("write %ld", (long)offset);
            call(pwrite(file, &value, 1, offset) != 1);
        } else {
            offset = (off_t)(rnd(FILE_PAGES + 1) * PAGE);
            say("truncate %ld", (long)offset);
            call(ftruncate(file, offset));
        }
    }
    }
    say(" :");
    look_at(ARENA, at, n);
    say("\n");
    for (size_t i = at; i < at + n; i++)
        if (rnd(2))
            put(i, (uint8_t)rnd(256));
}

static void sequence(uint32_t seed, int steps)
{
    state = 2463534242u + seed * 7919u;
    for (int i = 0; i < 10; i++)
        rnd(2);
    CHECK(mmap(ARENA, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == ARENA);
    CHECK(!ftruncate(file, 0));
    for (size_t i = 0; i < FILE_PAGES; i++) {
        uint8_t content[PAGE];
        memset(content, 0xa0 + (int)i, PAGE);
        CHECK(pwrite(file, content, PAGE, (off_t)(i * PAGE)) > 0);
    }
    for (int i = 1; i <= steps; i++) {
        say("%u.%d ", seed, i);
        step();
        if (i % 40 == 0) {
            say("all:");
            look_at(ARENA, 0, PAGES);
            say("\n");
        }
        flush();
    }
}

int main(int argc, char **argv)
{
    char name[64];
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    stack_t st = {.ss_sp = alternate, .ss_size = sizeof alternate};
    CHECK(argc > 2 && !sigaltstack(&st, 0) && !sigaction(SIGSEGV, &a, 0) && !sigaction(SIGBUS, &a, 0));
    snprintf(name, sizeof name, "/tmp/maps-%d", (int)getpid());
    file = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    reader = open(name, O_RDONLY);
    CHECK(file >= 0 && reader >= 0 && !unlink(name));
    for (int i = 0; i < (argc > 3 ? atoi(argv[3]) : 1); i++)
        sequence((uint32_t)(atoi(argv[1]) + i), atoi(argv[2]));
    return 0;
}
