/* System calls with bad input, one argument at a time: what each answers, and what it wrote. The same natively, as an ordinary user, and in
 * a VM. A call is given by good arguments and, for each of them, what stands in its place; see `calls` below. */
#include "check.h"
#include <grp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define PAGE 4096ul
static uint8_t *area;                /* pages: writable, PROT_NONE, read-only, PROT_NONE, a hole, PROT_NONE */

typedef struct { const char *name; uint64_t value; } value;
#define P(offset, name) {name, 0x100000000000 + (offset)}    /* an address in `area` */
#define OK P(512, "ok")
#define BAD {"null", 0}, P(4096, "none"), P(2 * 4096 + 512, "readonly"), P(4 * 4096, "hole"), P(4096 - 1, "end"), \
            {"kernel", 0xffff800000000000}, {"noncanonical", 0x800000000000}, {"minus1", ~0ul}
#define INTS {"0", 0}, {"1", 1}, {"-1", ~0ul}, {"2", 2}, {"100", 100}, {"int_min", 0x80000000}, {"int_max", 0x7fffffff}, {"2^32", 1ul << 32}, \
             {"2^32-1", 0xffffffff}, {"2^63", 1ul << 63}
#define END {0, 0}
static const value
    none[] = {END},
    out[] = {OK, BAD, P(513, "odd"), END},
    pid[] = {{"0", 0}, {"-1", ~0ul}, {"999999", 999999}, {"int_min", 0x80000000}, {"int_max", 0x7fffffff}, END},
    ints[] = {INTS, END}, zero[] = {{"0", 0}, END}, one[] = {{"1", 1}, {"0", 0}, END},
    /* structures that main() lays out in the first page */
    timespec[] = {OK, P(0, "1ns"), P(16, "nsec=1e9"), P(32, "nsec=-1"), P(48, "sec=-1"), P(64, "zero"), BAD, END},
    timeout[] = {P(0, "1ns"), P(16, "nsec=1e9"), P(32, "nsec=-1"), P(48, "sec=-1"), P(64, "zero"), P(4096, "none"), P(4 * 4096, "hole"),
                 P(4096 - 8, "end"), {"kernel", 0xffff800000000000}, {"minus1", ~0ul}, END},
    itimer[] = {P(64, "zero"), P(96, "usec=1e6"), P(128, "interval usec=-1"), P(160, "sec=-1"), BAD, END},
    sigs[] = {{"0", 0}, {"-1", ~0ul}, {"65", 65}, {"64", 64}, {"1", 1}, {"9", 9}, {"19", 19}, {"32", 32}, {"int_min", 0x80000000}, END},
    badsigs[] = {{"0", 0}, {"-1", ~0ul}, {"65", 65}, {"1000", 1000}, {"int_min", 0x80000000}, END},
    set8[] = {{"8", 8}, {"0", 0}, {"4", 4}, {"16", 16}, {"128", 128}, {"-1", ~0ul}, END},
    set[] = {P(64, "empty"), BAD, END}, action[] = {P(192, "default"), BAD, END},
    how[] = {{"BLOCK", 0}, {"UNBLOCK", 1}, {"SETMASK", 2}, {"3", 3}, {"-1", ~0ul}, {"2^32", 1ul << 32}, END},
    clocks[] = {{"0", 0}, {"1", 1}, {"2", 2}, {"3", 3}, {"4", 4}, {"5", 5}, {"6", 6}, {"7", 7}, {"8", 8}, {"9", 9}, {"10", 10}, {"11", 11}, {"12", 12},
                {"15", 15}, {"16", 16}, {"32", 32}, {"-1", ~0ul}, {"-2", -2ul}, {"-3", -3ul}, {"-6", -6ul}, {"dead pid", -8000000ul + 2}, {"int_max", 0x7fffffff}, END},
    sleepable[] = {{"1", 1}, {"0", 0}, {"2", 2}, {"3", 3}, {"4", 4}, {"5", 5}, {"6", 6}, {"7", 7}, {"10", 10}, {"11", 11}, {"16", 16}, {"-1", ~0ul}, {"-2", -2ul}, {"-6", -6ul}, END},
    which[] = {{"0", 0}, {"1", 1}, {"2", 2}, {"3", 3}, {"-1", ~0ul}, END},
    len[] = {{"4096", 4096}, {"0", 0}, {"1", 1}, {"8192", 8192}, {"2^47", 1ul << 47}, {"2^63", 1ul << 63}, {"-1", ~0ul}, {"-4096", -4096ul}, END},
    pages[] = {P(0, "page"), P(1, "odd"), P(4096, "none"), P(2 * 4096, "readonly"), P(4 * 4096, "hole"), {"null", 0}, {"kernel", 0xffff800000000000}, {"minus1", ~0ul}, END},
    holes[] = {P(4 * 4096, "hole"), P(4 * 4096 + 1, "odd"), {"kernel", 0xffff800000000000}, {"kernel-page", 0x7ffffffff000}, {"minus page", -4096ul}, {"minus1", ~0ul}, END},
    prot[] = {{"RW", 3}, {"8", 8}, {"0x100", 0x100}, {"sem|RW", 0xb}, {"grows both", 0x3000003}, {"grows down", 0x1000003}, {"-1", ~0ul}, {"2^32", 1ul << 32}, END},
    mapflags[] = {{"private", 0x32}, {"0", 0x30}, {"shared", 0x31}, {"validate", 0x33}, {"validate+unknown", 0x800033}, {"4", 0x34}, {"noreplace", 0x100022}, {"hugetlb", 0x40032},
                  {"shared+private+4", 0x37}, {"file", 0x12}, {"growsdown", 0x132}, {"locked", 0x2032}, {"unknown", 0x80000032}, END},
    fds[] = {{"-1", ~0ul}, {"999", 999}, {"int_max", 0x7fffffff}, END},
    offset[] = {{"0", 0}, {"1", 1}, {"4096", 4096}, {"-4096", -4096ul}, {"2^63", 1ul << 63}, END},
    advice[] = {{"0", 0}, {"1", 1}, {"2", 2}, {"3", 3}, {"4", 4}, {"5", 5}, {"6", 6}, {"7", 7}, {"8", 8}, {"10", 10}, {"11", 11}, {"14", 14}, {"15", 15}, {"16", 16}, {"17", 17}, {"18", 18}, {"19", 19},
                {"20", 20}, {"22", 22}, {"23", 23}, {"24", 24}, {"25", 25}, {"26", 26}, {"102", 102}, {"-1", ~0ul}, END},
    msflags[] = {{"SYNC", 4}, {"0", 0}, {"ASYNC", 1}, {"INVALIDATE", 2}, {"both", 5}, {"8", 8}, {"-1", ~0ul}, END},
    remap[] = {{"0", 0}, {"MAYMOVE", 1}, {"FIXED", 2}, {"DONTUNMAP", 4}, {"8", 8}, {"-1", ~0ul}, END},
    lockflags[] = {{"0", 0}, {"1", 1}, {"2", 2}, {"4", 4}, {"8", 8}, {"-1", ~0ul}, END},
    limits[] = {{"NOFILE", 7}, {"CORE", 4}, {"15", 15}, {"16", 16}, {"-1", ~0ul}, {"2^32", 1ul << 32}, END},
    limit[] = {P(224, "100"), P(240, "soft over hard"), P(256, "over hard"), BAD, END}, limit_or_not[] = {{"null", 0}, P(224, "100"), P(240, "soft over hard"), P(256, "over hard"), P(4096, "none"),
        P(4 * 4096, "hole"), P(4096 - 1, "end"), {"kernel", 0xffff800000000000}, END},
    out_or_not[] = {{"null", 0}, OK, P(4096, "none"), P(2 * 4096, "readonly"), P(4 * 4096, "hole"), P(4096 - 1, "end"), {"kernel", 0xffff800000000000}, END},
    who[] = {{"0", 0}, {"1", 1}, {"-1", ~0ul}, {"-2", -2ul}, {"2", 2}, {"2^32", 1ul << 32}, END},
    randoms[] = {{"0", 0}, {"NONBLOCK", 1}, {"RANDOM", 2}, {"INSECURE", 4}, {"6", 6}, {"8", 8}, {"-1", ~0ul}, END},
    persona[] = {{"query", 0xffffffff}, {"0", 0}, {"linux", 0}, END},
    policy[] = {{"OTHER", 0}, {"BATCH", 3}, {"IDLE", 5}, {"FIFO", 1}, {"RR", 2}, {"4", 4}, {"7", 7}, {"-1", ~0ul}, {"RESET|OTHER", 0x40000000}, END},
    policies[] = {{"OTHER", 0}, {"FIFO", 1}, {"RR", 2}, {"BATCH", 3}, {"4", 4}, {"IDLE", 5}, {"DEADLINE", 6}, {"-1", ~0ul}, END},
    param[] = {P(64, "0"), P(272, "1"), BAD, END},
    cpusize[] = {{"128", 128}, {"0", 0}, {"1", 1}, {"7", 7}, {"9", 9}, {"-1", ~0ul}, END},
    cpuset[] = {P(288, "cpu 0"), P(64, "empty"), BAD, END},
    prctls[] = {{"GET_NAME", 16}, {"0", 0}, {"GET_DUMPABLE", 3}, {"GET_KEEPCAPS", 7}, {"GET_TIMING", 13}, {"GET_SECCOMP", 21}, {"GET_NO_NEW_PRIVS", 39}, {"GET_THP", 42},
                {"-1", ~0ul}, {"99", 99}, {"GET_CHILD_SUBREAPER", 37}, {"GET_TIMERSLACK", 30}, {"GET_SECUREBITS", 27}, {"GET_TSC", 25}, {"GET_PDEATHSIG", 2},
                {"GET_UNALIGN", 5}, {"GET_FPEMU", 9}, {"GET_ENDIAN", 19}, {"CAPBSET_READ", 23}, {"CAP_AMBIENT", 47}, {"GET_SPECULATION", 52}, END},
    arch[] = {{"GET_FS", 0x1003}, {"GET_GS", 0x1004}, {"0", 0}, {"0x1005", 0x1005}, {"0x9999", 0x9999}, {"-1", ~0ul}, END},
    arch_set[] = {{"kernel", 0xffff800000000000}, {"noncanonical", 0x800000000000}, {"minus1", ~0ul}, END}, set_gs[] = {{"SET_GS", 0x1001}, END},
    id[] = {{"-1", ~0ul}, {"1000", 1000}, {"0", 0}, {"1", 1}, {"2^32-1", 0xffffffff}, END},
    stack[] = {P(320, "small"), P(344, "flags"), P(368, "disable"), {"null", 0}, P(4096, "none"), P(4 * 4096, "hole"), P(4096 - 1, "end"), {"kernel", 0xffff800000000000}, END},
    word[] = {P(400, "word 5"), P(401, "odd"), {"null", 0}, P(4096, "none"), P(4 * 4096, "hole"), P(4096 - 2, "unaligned end"), {"kernel", 0xffff800000000000}, {"minus4", -4ul}, END},
    word2[] = {P(404, "word 6"), P(405, "odd"), {"null", 0}, P(4096, "none"), P(2 * 4096, "readonly"), P(4 * 4096, "hole"), {"kernel", 0xffff800000000000}, END},
    wait[] = {{"WAIT", 0}, {"WAIT_PRIVATE", 128}, {"WAIT_REAL", 256}, {"WAIT_BITSET", 9}, {"BITSET_REAL", 9 + 256}, {"FD", 2}, {"12", 12}, {"13", 13}, {"14", 14}, {"63", 63}, {"64", 64}, {"512", 512}, {"-1", ~0ul}, END},
    wake[] = {{"WAKE", 1}, {"WAKE_PRIVATE", 129}, {"WAKE_REAL", 257}, {"WAKE_BITSET", 10}, END},
    requeue[] = {{"CMP_REQUEUE", 4}, {"REQUEUE", 3}, {"WAKE_OP", 5}, {"REQUEUE_REAL", 259}, END},
    five[] = {{"5", 5}, {"6", 6}, {"0", 0}, END}, bits[] = {{"-1", ~0ul}, {"0", 0}, {"1", 1}, {"2^32", 1ul << 32}, END},
    ops[] = {{"5", 5}, {"add 1 eq 0", 0x10001000}, {"op 7", 0x70001000}, {"cmp 7", 0x07001000}, {"shift", 0x80003000}, {"shift 40", 0x80028000}, {"negative", 0x00ffffff}, END},
    size24[] = {{"24", 24}, {"0", 0}, {"25", 25}, END},
    membarrier[] = {{"0", 0}, {"3", 3}, {"1024", 1024}, {"-1", ~0ul}, END},
    waitopt[] = {{"0", 0}, {"WNOHANG", 1}, {"2^32 + 1", (1ul << 32) + 1}, {"-1", ~0ul}, {"0x100", 0x100}, END},
    idtype[] = {{"ALL", 0}, {"4", 4}, {"-1", ~0ul}, END}, exited[] = {{"WEXITED", 4}, {"2^32 + 4", (1ul << 32) + 4}, {"0", 0}, {"-1", ~0ul}, END};

static const struct call {
    const char *name;
    int nr, shown;                   /* how many bytes of what the first pointer to `ok` points to are shown */
    const value *args[6];
} calls[] = {
    {"futex wait", SYS_futex, 0, {word, wait, five, timeout, zero, bits}},
    {"futex wake", SYS_futex, 0, {word, wake, ints, zero, zero, bits}},
    {"futex requeue", SYS_futex, 0, {word, requeue, ints, ints, word2, five}},
    {"futex wake_op", SYS_futex, 0, {word, requeue + 2, one, one, word2, ops}},
    {"set_robust_list", SYS_set_robust_list, 0, {out, size24}},
    {"nanosleep", SYS_nanosleep, 0, {timeout, zero}},
    {"clock_nanosleep", SYS_clock_nanosleep, 0, {sleepable, zero, timeout + 4, zero}},
    {"clock_nanosleep absolute", SYS_clock_nanosleep, 0, {sleepable, one, timeout + 4, zero}},
    {"clock_gettime", SYS_clock_gettime, 0, {clocks, out}},
    {"clock_getres", SYS_clock_getres, 16, {clocks, out}},
    {"clock_settime", SYS_clock_settime, 0, {clocks, timespec}},
    {"settimeofday", SYS_settimeofday, 0, {timespec, zero}},
    {"gettimeofday", SYS_gettimeofday, 0, {out, zero}},
    {"gettimeofday zone", SYS_gettimeofday, 8, {zero, out}},
    {"time", SYS_time, 0, {out}},
    {"times", SYS_times, 0, {out}},
    {"getitimer", SYS_getitimer, 32, {which, out}},
    {"setitimer", SYS_setitimer, 0, {which, itimer, out_or_not}},
    {"rt_sigaction", SYS_rt_sigaction, 32, {sigs + 7, zero, out, set8}},
    {"rt_sigaction set", SYS_rt_sigaction, 0, {sigs, action, zero, set8}},
    {"rt_sigprocmask", SYS_rt_sigprocmask, 8, {how, zero, out, set8}},
    {"rt_sigprocmask set", SYS_rt_sigprocmask, 0, {how, set, zero, set8}},
    {"rt_sigpending", SYS_rt_sigpending, 8, {out, set8}},
    {"rt_sigtimedwait", SYS_rt_sigtimedwait, 0, {set, out_or_not, timeout, set8}},
    {"rt_sigsuspend", SYS_rt_sigsuspend, 0, {out + 1, set8 + 1}},
    {"sigaltstack", SYS_sigaltstack, 0, {stack, out_or_not}},
    {"kill", SYS_kill, 0, {pid + 2, badsigs}},
    {"kill self", SYS_kill, 0, {zero, badsigs}},
    {"tkill", SYS_tkill, 0, {pid, badsigs}},
    {"tgkill", SYS_tgkill, 0, {pid, pid, badsigs}},
    {"rt_sigqueueinfo", SYS_rt_sigqueueinfo, 0, {pid + 2, badsigs, out}},
    {"rt_tgsigqueueinfo", SYS_rt_tgsigqueueinfo, 0, {pid, pid, badsigs, out}},
    {"mmap", SYS_mmap, 0, {holes, len, prot, mapflags, fds, offset}},
    {"munmap", SYS_munmap, 0, {holes, len}},
    {"mprotect", SYS_mprotect, 0, {pages, len, prot}},
    {"mprotect hole", SYS_mprotect, 0, {holes, len, zero}},
    {"madvise", SYS_madvise, 0, {pages, zero, advice}},
    {"madvise length", SYS_madvise, 0, {pages, len, one}},
    {"mremap", SYS_mremap, 0, {pages + 1, len, len, remap}},
    {"mremap hole", SYS_mremap, 0, {holes, len, len, remap}},
    {"msync", SYS_msync, 0, {pages, len, msflags}},
    {"mincore", SYS_mincore, 0, {pages, len, out}},
    {"mlock", SYS_mlock, 0, {pages, len}},
    {"mlock2", SYS_mlock2, 0, {pages, len, lockflags}},
    {"munlock", SYS_munlock, 0, {pages, len}},
    {"mlockall", SYS_mlockall, 0, {lockflags + 3}},
    {"munlockall", SYS_munlockall, 0, {none}},
    {"getrlimit", SYS_getrlimit, 0, {limits, out}},
    {"setrlimit", SYS_setrlimit, 0, {limits, limit}},
    {"prlimit64", SYS_prlimit64, 0, {pid, limits, limit_or_not, out_or_not}},
    {"getrusage", SYS_getrusage, 0, {who, out}},
    {"sysinfo", SYS_sysinfo, 0, {out}},
    {"uname", SYS_uname, 6, {out}},
    {"prctl", SYS_prctl, 0, {prctls, out, zero, zero, zero}},
    {"prctl name", SYS_prctl, 0, {prctls, out}},
    {"arch_prctl", SYS_arch_prctl, 0, {arch, out}},
    {"arch_prctl set", SYS_arch_prctl, 0, {set_gs, arch_set}},
    {"getrandom", SYS_getrandom, 0, {out, one, randoms}},
    {"getrandom length", SYS_getrandom, 0, {out, len, zero}},
    {"personality", SYS_personality, 0, {persona}},
    {"sched_yield", SYS_sched_yield, 0, {none}},
    {"sched_getscheduler", SYS_sched_getscheduler, 0, {pid}},
    {"sched_setscheduler", SYS_sched_setscheduler, 0, {pid, policy, param}},
    {"sched_getparam", SYS_sched_getparam, 4, {pid, out}},
    {"sched_setparam", SYS_sched_setparam, 0, {pid, param}},
    {"sched_get_priority_max", SYS_sched_get_priority_max, 0, {policies}},
    {"sched_get_priority_min", SYS_sched_get_priority_min, 0, {policies}},
    {"sched_rr_get_interval", SYS_sched_rr_get_interval, 0, {pid, out}},
    {"sched_getaffinity", SYS_sched_getaffinity, 0, {pid, cpusize, out}},
    {"sched_setaffinity", SYS_sched_setaffinity, 0, {pid, cpusize, cpuset}},
    {"getcpu", SYS_getcpu, 0, {out_or_not, out_or_not}},
    {"getpriority", SYS_getpriority, 0, {which, pid}},
    {"setpriority", SYS_setpriority, 0, {which, pid, ints}},
    {"getpgid", SYS_getpgid, 0, {pid}},
    {"getsid", SYS_getsid, 0, {pid}},
    {"setuid", SYS_setuid, 0, {id}},
    {"setgid", SYS_setgid, 0, {id}},
    {"setreuid", SYS_setreuid, 0, {id, id}},
    {"setresuid", SYS_setresuid, 0, {id, id, id}},
    {"setresgid", SYS_setresgid, 0, {id, id, id}},
    {"setfsuid", SYS_setfsuid, 0, {id}},
    {"getresuid", SYS_getresuid, 4, {out, out, out}},
    {"getgroups", SYS_getgroups, 0, {zero, out}},
    {"getgroups size", SYS_getgroups, 0, {ints, out}},
    {"setgroups", SYS_setgroups, 0, {one, out}},
    {"membarrier", SYS_membarrier, 0, {membarrier, zero}},
    {"wait4", SYS_wait4, 0, {pid, out_or_not, waitopt, zero}},
    {"waitid", SYS_waitid, 0, {idtype, pid, out_or_not, exited, zero}},
    {"capget", SYS_capget, 0, {out, out_or_not}},
    {"sethostname", SYS_sethostname, 0, {out, one}},
    {"setdomainname", SYS_setdomainname, 0, {out, one}},
    {"ioprio_get", SYS_ioprio_get, 0, {one, pid}},
    {"sync", SYS_sync, 0, {none}},
    {"no call 400", 400, 0, {none}},
    {"no call 2000", 2000, 0, {none}},
    {"no call -1", -1, 0, {none}},
};

static void lay(size_t at, int64_t a, int64_t b)
{
    memcpy(area + at, &a, 8);
    memcpy(area + at + 8, &b, 8);
}

static void reset(void)              /* what is in `area`, and what a call that succeeded may have changed */
{
    uint8_t *none_at[] = {area + PAGE, area + 3 * PAGE, area + 5 * PAGE};
    CHECK(mmap(area, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == area);
    for (int i = 0; i < 3; i++)
        CHECK(mmap(none_at[i], PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == none_at[i]);
    CHECK(!mprotect(area + 2 * PAGE, PAGE, PROT_READ) && !munmap(area + 4 * PAGE, PAGE));
    memset(area, 0xa5, PAGE);
    lay(0, 0, 1);
    lay(16, 0, 1000000000);
    lay(32, 0, -1);
    lay(48, -1, 0);
    for (size_t i = 64; i < 512; i += 16)
        lay(i, 0, 0);
    lay(112, 0, 1000000);            /* itimerval at 96 */
    lay(128, 0, -1);
    lay(160, -1, 0);
    lay(224, 100, 100);
    lay(240, 100, 99);
    lay(256, 100, 1l << 62);
    lay(272, 1, 0);
    lay(288, 1, 0);
    lay(320, 0x100000000000, 0);     /* stack_t: 16 bytes are too few */
    lay(336, 16, 0x100000000000);
    lay(352, 8, 0x10000);
    lay(368, 0, 2);
    lay(400, 5l | 6l << 32, 0);
    lay(440, 1l << 32, 0);           /* sigevent at 432: SIGEV_NONE */
}

static void try(const struct call *c, const uint64_t a[6], const char *what, int arg)
{
    reset();
    long r = syscall(c->nr, a[0], a[1], a[2], a[3], a[4], a[5]);
    int e = errno;
    char text[200];
    int n = snprintf(text, sizeof text, "%s: ", c->name);
    if (what)
        n += snprintf(text + n, sizeof text - (size_t)n, "argument %d = %s: ", arg + 1, what);
    n += r < 0 && r >= -4095 ? snprintf(text + n, sizeof text - (size_t)n, "%s", strerrorname_np(e)) : snprintf(text + n, sizeof text - (size_t)n, "ok");
    if (r >= 0 && r < 4096 && c->nr != SYS_times && c->nr != SYS_getsid && c->nr != SYS_getpgid && c->nr != SYS_sched_getaffinity && c->nr != SYS_getrandom)
        n += snprintf(text + n, sizeof text - (size_t)n, " %ld", r);
    for (int i = 0; i < c->shown && r >= 0; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%02x", i ? "" : " ", area[512 + i]);
    puts(text);
}

int main(int argc, char **argv)
{
    if (!geteuid())
        CHECK(!setgroups(1, (gid_t[]){1000}) && !setresgid(1000, 1000, 1000) && !setresuid(1000, 1000, 1000));
    for (int i = 1; i < 65; i++)     /* not as inherited: in the background SIGINT is ignored, below posix_spawn() glibc's own two */
        syscall(SYS_rt_sigaction, i, (uint64_t[4]){0}, 0, 8);
    setvbuf(stdout, 0, _IOFBF, 1 << 20);
    area = mmap(0, 6 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(area != MAP_FAILED);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const struct call *c = &calls[i];
        uint64_t good[6] = {0};
        if (argc > 1 && strcmp(argv[1], c->name))
            continue;
        for (int k = 0; k < 6 && c->args[k] && c->args[k]->name; k++)
            good[k] = c->args[k]->value;
        for (int k = 0; k < 6 && c->args[k]; k++)
            for (const value *v = c->args[k] + !!k; v->name; v++) {
                uint64_t a[6];
                memcpy(a, good, sizeof a);
                a[k] = v->value;
                for (int j = 0; j < 6; j++)
                    if (a[j] >> 44 == 1)
                        a[j] = a[j] - 0x100000000000 + (uint64_t)area;
                try(c, a, v->name, k);
            }
        if (!c->args[0]->name)
            try(c, good, 0, 0);
        fflush(stdout);
    }
    return 0;
}
