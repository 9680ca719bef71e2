/* Identity, limits, scheduling parameters and the rest of the small calls. */
#include "core.h"

s64 sys_enosys(void)
{
    CTL->n_enosys++;
    CTL->last_enosys = (u32)user_frame()->orig_rax;
    return -ENOSYS;
}

s64 sys_zero(void) { return 0; }
s64 sys_notallowed(void) { return -EPERM; }
s64 sys_nochild(void) { return -ECHILD; }
s64 sys_getpid(void) { return CTL->pid; }
s64 sys_getppid(void) { return 1; }
s64 sys_getid(void) { return GUEST_UID; }
s64 sys_getpriority(void) { return 20; }

s64 sys_getpgid(u64 pid)
{
    return !(u32)pid || (u32)pid == CTL->pid ? (s64)CTL->pid : -ESRCH;
}

/* Users, groups, real, effective, saved: all one, and it cannot be changed. */
s64 sys_setid(u64 id)
{
    return (u32)id == GUEST_UID || (u32)id == ~0u ? 0 : -EPERM;
}

static s64 put_u32(u64 to, u32 value)
{
    return copy_out(to, &value, 4);
}

s64 sys_getresid(u64 a, u64 b, u64 c)
{
    return put_u32(a, GUEST_UID) | put_u32(b, GUEST_UID) | put_u32(c, GUEST_UID);
}

s64 sys_uname(u64 out)
{
    static const char text[] = "Linux\0agent\0" "6.1.0-agentfw\0#1 agentfw\0x86_64\0(none)";
    const char *p = text;
    char u[6][65];
    memset(u, 0, sizeof u);
    for (int i = 0; i < 6; i++)
        for (char *to = u[i]; (*to++ = *p++);)
            ;
    return copy_out(out, u, sizeof u);
}

/* ---- limits ---- */

#define RLIMITS 16
static struct { u64 soft, hard; } limits[RLIMITS];

enum { RLIMIT_STACK = 3, RLIMIT_CORE = 4, RLIMIT_NOFILE = 7 };

/* The C library asks for RLIMIT_STACK once, at its start, to size the stacks of threads. Those count in full here, so that first
 * answer is modest; later ones tell of the main thread's stack. */
#define THREAD_STACK 0x200000

void limits_init(void)
{
    memset(limits, 255, sizeof limits);
    memset(&limits[RLIMIT_CORE], 0, sizeof *limits);
    limits[RLIMIT_STACK].soft = THREAD_STACK;
    limits[RLIMIT_NOFILE].soft = 1024;
    limits[RLIMIT_NOFILE].hard = 4096;
}

u64 rlimit(u64 which)
{
    return limits[which].soft;
}

s64 sys_prlimit64(u64 pid, u64 which, u64 new, u64 old)
{
    u64 l[2];
    if (pid && (u32)pid != CTL->pid)
        return -ESRCH;
    if (which >= RLIMITS)
        return -EINVAL;
    if (new)
        copy_in(l, new, sizeof l);
    if (old)
        copy_out(old, &limits[which], sizeof l);
    if (limits[RLIMIT_STACK].soft == THREAD_STACK && which == RLIMIT_STACK)
        limits[RLIMIT_STACK].soft = CTL->stack_hi - CTL->stack_lo;
    if (!new)
        return 0;
    if (l[0] > l[1])
        return -EINVAL;
    if (l[1] > limits[which].hard)
        return -EPERM;
    memcpy(&limits[which], l, sizeof l);
    return 0;
}

s64 sys_getrlimit(u64 which, u64 out)
{
    return sys_prlimit64(0, which, 0, out);
}

s64 sys_setrlimit(u64 which, u64 new)
{
    return sys_prlimit64(0, which, new, 0);
}

s64 sys_sysinfo(u64 out)
{
    struct { u64 uptime, loads[3], total, free, unused[4]; u16 processes, pad; u64 high[2]; u32 unit; } i = {
        .uptime = now_mono() / 1000000000, .total = CTL->memory_limit, .processes = 1, .unit = 1};
    i.free = i.total - mm_used * PAGE;
    _Static_assert(sizeof i == 112, "struct sysinfo");
    return copy_out(out, &i, sizeof i);
}

/* ---- scheduling: one CPU, one policy ---- */

s64 sys_getcpu(u64 cpu, u64 node)
{
    return (cpu ? put_u32(cpu, 0) : 0) | (node ? put_u32(node, 0) : 0);
}

s64 sys_sched_getaffinity(u64 pid, u64 size, u64 out)
{
    if (pid && !find_thread(pid))
        return -ESRCH;
    if (size < 8 || size % 8)
        return -EINVAL;
    copy_out_word(out, 1);
    return 8;
}

s64 sys_sched_getparam(u64 pid, u64 out)
{
    (void)pid;
    return put_u32(out, 0);
}

/* ---- processes and threads ---- */

#define BIT(n) (1ull << (n))
s64 sys_prctl(u64 option, u64 a)
{
    enum { SET_PDEATHSIG = 1, GET_DUMPABLE = 3, SET_DUMPABLE = 4, GET_KEEPCAPS = 7, SET_NAME = 15, GET_NAME = 16, CAPBSET_READ = 23,
           SET_TIMERSLACK = 29, SET_NO_NEW_PRIVS = 38, GET_NO_NEW_PRIVS = 39 };
    const u64 yes = BIT(GET_DUMPABLE) | BIT(GET_NO_NEW_PRIVS);
    const u64 fine = yes | BIT(SET_PDEATHSIG) | BIT(SET_DUMPABLE) | BIT(GET_KEEPCAPS) | BIT(CAPBSET_READ) | BIT(SET_TIMERSLACK) |
                     BIT(SET_NO_NEW_PRIVS);
    if (option == GET_NAME)
        return copy_out(a, current->name, 16);
    if (option == SET_NAME) {
        s64 n = user_strlen(a, 15);
        if (n == -EFAULT)
            return n;
        memset(current->name, 0, 16);
        memcpy(current->name, (void *)a, n < 0 ? 15 : (u64)n);
        return 0;
    }
    if (option > 39 || !(fine >> option & 1))
        return -EINVAL;
    return yes >> option & 1;
}

s64 sys_arch_prctl(u64 code, u64 a)
{
    switch (code) {
    case 0x1001:
        set_gs(a);
        return 0;
    case 0x1002:
        set_fs(a);
        return 0;
    case 0x1003:
        return copy_out_word(a, get_fs());
    case 0x1004:
        return copy_out_word(a, get_gs());
    }
    return -EINVAL;
}

/* One vCPU: between two instructions of a thread all others have always seen every barrier. */
s64 sys_membarrier(u64 command)
{
    const u64 known = 31;            /* global, private, expedited, and their registrations */
    if (!command)
        return (s64)known;
    return (command & (command - 1)) || !(command & known) ? -EINVAL : 0;
}

/* cpuid of a rewritten site: r = eax, ebx, ecx, edx, in and out. */
void cpuid_lookup(u64 r[4])
{
    const struct afw_cpuid_table *t = (const struct afw_cpuid_table *)AFW_CPUID;
    u32 leaf = (u32)r[0], sub = (u32)r[2];
    r[0] = r[1] = r[2] = r[3] = 0;
    for (u32 i = 0; i < t->n && i < AFW_CPUID_MAX; i++) {
        const struct afw_cpuid_entry *e = &t->entry[i];
        if (e->leaf == leaf && (e->any_subleaf || e->subleaf == sub)) {
            r[0] = e->eax;
            r[1] = e->ebx;
            r[2] = e->ecx;
            r[3] = e->edx;
            return;
        }
    }
}
