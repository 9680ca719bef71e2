/* On the harness only: calls of the core half with arguments by chance. The program may get any error; the shim must neither fault nor
 * panic, and what the program owns (its image, stack, a page of its own) stays as it was. */
#include "check.h"
#include "chance.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static char *arena, *own;
#define ARENA (64ul << 20)

static long value(void)
{
    static const long odd[] = {0, 1, -1, 2, 7, 8, 16, 24, 4095, 4096, 4097, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, -4096, 0x7fffffffffffffff,
                               0x3c0000000, 0x3bffff000, 0x3bfffffff, 0x200000, 0x204000, 0x210000, 0x3ff000, 1000000000, -22, 64, 65, 128, 0x22, 0x32, 0x100022};
    switch (rnd(6)) {
    case 0:
        return odd[rnd(sizeof odd / sizeof *odd)];
    case 1:
        return (long)arena + (long)rnd(ARENA / 4096) * 4096;
    case 2:
        return (long)arena + (long)rnd(ARENA);
    case 3:
        return (long)rnd(100);
    case 4:
        return (long)rnd(64) * 4096;
    default: {
        uint64_t v = ((uint64_t)rnd(~0u) << 32 | rnd(~0u)) >> rnd(64);
        return v >= 0x400000 && v < (uint64_t)arena ? 0 : (long)v;   /* not into the program itself */
    }
    }
}

int main(int argc, char **argv)
{
    static const int calls[] = {
        SYS_mmap, SYS_mmap, SYS_mmap, SYS_munmap, SYS_munmap, SYS_mprotect, SYS_mprotect, SYS_mremap, SYS_madvise, SYS_brk, SYS_msync, 
        SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigpending, SYS_rt_sigtimedwait, SYS_sigaltstack, SYS_getitimer, SYS_tgkill, SYS_tkill,
        SYS_futex, SYS_set_robust_list, SYS_clock_gettime, SYS_clock_getres, SYS_clock_nanosleep, SYS_nanosleep, SYS_gettimeofday, SYS_time, SYS_times,
        SYS_getrusage, SYS_getpid, SYS_getresuid, SYS_uname, SYS_sysinfo, SYS_prlimit64, SYS_getcpu, SYS_sched_getaffinity, SYS_sched_getparam,
        SYS_prctl, SYS_membarrier, SYS_getrandom, SYS_sched_yield, SYS_get_robust_list, SYS_clone3, SYS_clone, SYS_wait4,
        SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_set_tid_address, 500, 334, 400, -1, 0x7fffffff};
    state = 2463534242u + (argc > 1 ? (uint32_t)atoi(argv[1]) * 7919u : 0);
    for (int i = 1; i <= 64; i++)
        signal(i, SIG_IGN);
    own = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    arena = mmap(0, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED && arena != MAP_FAILED);
    memset(own, 0x77, 4096);
    for (int i = 0; i < 20000; i++) {
        long nr = calls[rnd(sizeof calls / sizeof *calls)], a = value(), b = value(), c = value(), d = value(), e = value(), f = value();
        /* what would end or stop the program by its own wish */
        if (nr == SYS_mmap && (d & (MAP_FIXED | MAP_FIXED_NOREPLACE))) {
            a = (long)arena + (long)rnd(ARENA / 4096) * 4096;
            b = (long)rnd((uint32_t)((long)arena + (long)ARENA - a));
        } else if (nr == SYS_munmap || nr == SYS_mprotect || nr == SYS_mremap || nr == SYS_madvise) {
            if (a + b > (long)own && a < (long)own + 4096)
                continue;
            if (a >= 0x400000 && a < (long)arena)
                continue;
        } else if (nr == SYS_futex) {
            d = (long)arena;         /* a time-out in what is probably zero */
        } else if (nr == SYS_nanosleep || nr == SYS_clock_nanosleep || nr == SYS_rt_sigtimedwait) {
            if (nr == SYS_nanosleep ? a : c)
                a = c = (long)own + 8;           /* 0x77..: seconds beyond all bounds, nanoseconds invalid */
        } else if (nr == SYS_clone || nr == SYS_clone3) {
            a &= ~0x10000;           /* no thread */
            if (nr == SYS_clone3)
                a = (long)own;
        } else if (nr == SYS_rt_sigaction || nr == SYS_rt_sigqueueinfo || nr == SYS_rt_tgsigqueueinfo || nr == SYS_tgkill || nr == SYS_tkill) {
            if (nr == SYS_rt_sigaction)
                b = 0;               /* handlers are kept ignored */
            /* the C library keeps two at their default */
            if ((a >= 32 && a <= 33) || (b >= 32 && b <= 33) || (c >= 32 && c <= 33) || a == SIGKILL || b == SIGKILL || c == SIGKILL)
                continue;
        } else if (nr == SYS_set_robust_list || nr == SYS_set_tid_address || nr == SYS_brk)
            a = nr == SYS_brk ? (long)sbrk(0) + (long)rnd(100000) - 50000 : 0;
        long r = syscall(nr, a, b, c, d, e, f);
        (void)r;
        for (int j = 0; j < 4096; j += 511)
            CHECK(own[j] == 0x77);
    }
    return 0;
}
