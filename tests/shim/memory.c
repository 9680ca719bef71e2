/* Memory calls against a model: random maps, unmaps, protections, moves; content and rights of every page are checked. */
#include "check.h"
#include "chance.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#define PAGE 4096ul
#define PAGES 2048                   /* the arena: one reservation in which fixed maps are made */
static uint8_t *arena;
static struct { uint8_t mapped, prot, value; } model[PAGES];   /* value: what the first and last byte hold */
static sigjmp_buf back;
static void *fault_address;

static void on_fault(int sig, siginfo_t *info, void *context)
{
    (void)sig, (void)context;
    fault_address = info->si_addr;
    siglongjmp(back, 1);
}

static int can_read(volatile uint8_t *p)
{
    if (sigsetjmp(back, 1))
        return 0;
    (void)*p;
    return 1;
}

static int can_write(volatile uint8_t *p)
{
    if (sigsetjmp(back, 1))
        return 0;
    *p = *p;
    return 1;
}

static void fill(size_t page, uint8_t value)
{
    arena[page * PAGE] = arena[page * PAGE + PAGE - 1] = value;
    model[page].value = value;
}

static void verify(int faults)
{
    for (size_t i = 0; i < PAGES; i++) {
        uint8_t *p = arena + i * PAGE;
        if (model[i].mapped && (model[i].prot & PROT_READ))
            CHECK(p[0] == model[i].value && p[PAGE - 1] == model[i].value && p[PAGE / 2] == 0);
        if (faults && model[i].mapped && rnd(8) == 0) {
            CHECK(can_read(p) == !!(model[i].prot & (PROT_READ | PROT_WRITE)));
            CHECK(can_write(p) == !!(model[i].prot & PROT_WRITE));
        }
    }
}

static void random_steps(int steps)
{
    for (int step = 0; step < steps; step++) {
        size_t at = rnd(PAGES), n = 1 + rnd(rnd(10) ? 20 : 400);
        if (at + n > PAGES)
            n = PAGES - at;
        uint8_t *p = arena + at * PAGE;
        int prot = (int[]){PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE}[rnd(4)];
        switch (rnd(5)) {
        case 0:
        case 1:
            CHECK(mmap(p, n * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
            for (size_t i = at; i < at + n; i++) {
                model[i].mapped = 1;
                model[i].prot = (uint8_t)prot;
                model[i].value = 0;
            }
            break;
        case 2: {
            int all = 1;
            for (size_t i = at; i < at + n; i++)
                all &= model[i].mapped;
            CHECK((mprotect(p, n * PAGE, prot) == 0) == all || !all);
            if (all)
                for (size_t i = at; i < at + n; i++)
                    model[i].prot = (uint8_t)prot;
            else                     /* it may have changed a part: make all of it known again */
                CHECK(mmap(p, n * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
            for (size_t i = at; !all && i < at + n; i++) {
                model[i].mapped = 1;
                model[i].prot = (uint8_t)prot;
                model[i].value = 0;
            }
            break;
        }
        case 3:
            CHECK(!munmap(p, n * PAGE));
            for (size_t i = at; i < at + n; i++)
                model[i].mapped = 0;
            break;
        case 4: {
            int all = 1;
            for (size_t i = at; i < at + n; i++)
                all &= model[i].mapped;
            if (!all)
                break;
            CHECK(!madvise(p, n * PAGE, MADV_DONTNEED));
            for (size_t i = at; i < at + n; i++)
                model[i].value = 0;
            break;
        }
        }
        for (size_t i = at; i < at + n; i++)
            if (model[i].mapped && (model[i].prot & PROT_WRITE))
                fill(i, (uint8_t)(1 + rnd(255)));
        if (step % 40 == 0)
            verify(step % 400 == 0);
    }
    verify(1);
}

static void plain(void)
{
    /* what was unmapped reads as zero when it is mapped again, small and large */
    for (size_t size = PAGE; size <= 64 << 20; size *= 4) {
        for (int round = 0; round < 3; round++) {
            uint8_t *p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(p != MAP_FAILED);
            for (size_t i = 0; i < size; i += PAGE)
                CHECK(p[i] == 0 && p[i + PAGE - 1] == 0);
            for (size_t i = 0; i < size; i += PAGE)
                p[i] = p[i + PAGE - 1] = 0xaa;
            CHECK(!munmap(p, size));
        }
    }
    /* growing by mremap keeps the content, in place or moved */
    uint8_t *p = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p[0] = 7;
    for (size_t n = 1; n < 5000; n = n * 3 / 2 + 1) {
        size_t next = n * 3 / 2 + 1;
        if (rnd(2))
            CHECK(mmap(0, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
        p = mremap(p, n * PAGE, next * PAGE, MREMAP_MAYMOVE);
        CHECK(p != MAP_FAILED && p[0] == 7);
        for (size_t i = 1; i < next; i++) {
            CHECK(p[i * PAGE] == (i < n ? (uint8_t)i : 0));
            p[i * PAGE] = (uint8_t)i;
        }
    }
    /* brk */
    uint8_t *b = sbrk(0);
    CHECK(sbrk(100000) == b);
    memset(b, 1, 100000);
    CHECK(sbrk(-90000) != (void *)-1 && sbrk(90000) != (void *)-1);
    for (size_t i = 20000; i < 100000; i++)
        CHECK(b[i] == 0);
    /* errors */
    CHECK(mmap((void *)1, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(0, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(0, PAGE, PROT_READ, MAP_PRIVATE, -1, 0) == MAP_FAILED && errno == EBADF);
    CHECK(munmap((void *)12345, PAGE) == -1 && errno == EINVAL);
    CHECK(mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED && errno == EEXIST);
    CHECK(mprotect(arena, PAGE * 2, 99) == -1 && errno == EINVAL);
    /* a reservation, opened piece by piece, as allocators do it; far larger than memory */
    uint8_t *r = mmap(0, 4ul << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(r != MAP_FAILED);
    for (size_t i = 0; i < 8; i++) {
        uint8_t *q = r + i * (50ul << 20);
        CHECK(!mprotect(q, 3 * PAGE, PROT_READ | PROT_WRITE));
        q[0] = q[3 * PAGE - 1] = 1;
        CHECK(can_read(q + 2 * PAGE) && !can_read(q + 3 * PAGE));
    }
    CHECK(!munmap(r, 4ul << 30));
    /* a null pointer, and what was never mapped */
    CHECK(!can_read(0));
}

int main(int argc, char **argv)
{
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &a, 0);
    arena = mmap(0, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(arena != MAP_FAILED);
    for (size_t i = 0; i < PAGES; i++)
        model[i].mapped = 1;
    state += argc > 1 ? (uint32_t)atoi(argv[1]) : 0;
    plain();
    random_steps(4000);
    return 0;
}
