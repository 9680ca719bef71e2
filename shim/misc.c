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

s64 sys_getresid(u64 a, u64 b, u64 c)
{
    if (!user_ok(a, 4, 1) || !user_ok(b, 4, 1) || !user_ok(c, 4, 1))
        return -EFAULT;
    AT(u32, a) = AT(u32, b) = AT(u32, c) = GUEST_UID;
    return 0;
}

s64 sys_uname(u64 out)
{
    static const char text[] = "Linux\0agent\0" "6.1.0-agentfw\0#1 agentfw\0x86_64\0(none)";
    if (!user_ok(out, 6 * 65, 1))
        return -EFAULT;
    memset((void *)out, 0, 6 * 65);
    const char *p = text;
    for (int i = 0; i < 6; i++)
        for (u64 at = out + (u64)i * 65; (AT(char, at++) = *p++);)
            ;
    return 0;
}

/* ---- limits ---- */

#define RLIMITS 16
#define INFINITE (~0ull)
static u64 soft[RLIMITS], hard[RLIMITS];
static u8 limits_set;

enum { RLIMIT_DATA = 2, RLIMIT_STACK = 3, RLIMIT_CORE = 4, RLIMIT_NPROC = 6, RLIMIT_NOFILE = 7, RLIMIT_MEMLOCK = 8, RLIMIT_AS = 9 };

static void limits_init(void)
{
    limits_set = 1;
    for (int i = 0; i < RLIMITS; i++)
        soft[i] = hard[i] = INFINITE;
    soft[RLIMIT_STACK] = CTL->stack_hi - CTL->stack_lo;
    soft[RLIMIT_CORE] = hard[RLIMIT_CORE] = 0;
    soft[RLIMIT_NOFILE] = 1024;
    hard[RLIMIT_NOFILE] = 4096;
    soft[RLIMIT_NPROC] = hard[RLIMIT_NPROC] = 4096;
}

u64 rlimit(u64 which)
{
    if (!limits_set)
        limits_init();
    return which < RLIMITS ? soft[which] : INFINITE;
}

s64 sys_prlimit64(u64 pid, u64 which, u64 new, u64 old)
{
    if (pid && (u32)pid != CTL->pid)
        return -ESRCH;
    if (which >= RLIMITS)
        return -EINVAL;
    if ((new && !user_ok(new, 16, 0)) || (old && !user_ok(old, 16, 1)))
        return -EFAULT;
    u64 was = rlimit(which), was_hard = hard[which];
    if (new) {
        u64 s = AT(u64, new), h = AT(u64, new + 8);
        if (s > h)
            return -EINVAL;
        if (h > was_hard)
            return -EPERM;
        soft[which] = s;
        hard[which] = h;
    }
    if (old) {
        AT(u64, old) = was;
        AT(u64, old + 8) = was_hard;
    }
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
    if (!user_ok(out, 112, 1))
        return -EFAULT;
    memset((void *)out, 0, 112);
    AT(u64, out) = now_mono() / 1000000000;
    AT(u64, out + 32) = CTL->memory_limit;
    AT(u64, out + 40) = CTL->memory_limit - mm_used * PAGE;
    AT(u16, out + 80) = 1;           /* processes */
    AT(u32, out + 104) = 1;          /* bytes a unit */
    return 0;
}

/* ---- scheduling: one CPU, one policy ---- */

s64 sys_getcpu(u64 cpu, u64 node)
{
    if ((cpu && !user_ok(cpu, 4, 1)) || (node && !user_ok(node, 4, 1)))
        return -EFAULT;
    if (cpu)
        AT(u32, cpu) = 0;
    if (node)
        AT(u32, node) = 0;
    return 0;
}

s64 sys_sched_getaffinity(u64 pid, u64 size, u64 out)
{
    if (pid && (u32)pid != CTL->pid && !find_thread(pid))
        return -ESRCH;
    if (size < 8 || size % 8)
        return -EINVAL;
    if (!user_ok(out, 8, 1))
        return -EFAULT;
    AT(u64, out) = 1;
    return 8;
}

s64 sys_sched_getparam(u64 pid, u64 out)
{
    (void)pid;
    if (!user_ok(out, 4, 1))
        return -EFAULT;
    AT(u32, out) = 0;
    return 0;
}

s64 sys_sched_priority_max(u64 policy)
{
    return policy == 1 || policy == 2 ? 99 : 0;      /* FIFO, RR */
}

s64 sys_sched_priority_min(u64 policy)
{
    return policy == 1 || policy == 2;
}

s64 sys_sched_rr_get_interval(u64 pid, u64 out)
{
    (void)pid;
    if (!user_ok(out, 16, 1))
        return -EFAULT;
    AT(u64, out) = 0;
    AT(u64, out + 8) = 5000000;
    return 0;
}

/* ---- processes and threads ---- */

s64 sys_prctl(u64 option, u64 a)
{
    enum { SET_PDEATHSIG = 1, GET_DUMPABLE = 3, SET_DUMPABLE = 4, GET_KEEPCAPS = 7, SET_NAME = 15, GET_NAME = 16, CAPBSET_READ = 23,
           GET_TIMERSLACK = 30, SET_TIMERSLACK = 29, SET_NO_NEW_PRIVS = 38, GET_NO_NEW_PRIVS = 39, SET_PTRACER = 0x59616d61 };
    switch (option) {
    case SET_NAME:
    case GET_NAME:
        if (!user_ok(a, option == SET_NAME ? 1 : 16, option == GET_NAME))
            return -EFAULT;
        if (option == GET_NAME)
            memcpy((void *)a, current->name, 16);
        else {
            s64 n = user_strlen(a, 15);
            memset(current->name, 0, 16);
            memcpy(current->name, (void *)a, n < 0 ? 15 : (u64)n);
        }
        return 0;
    case GET_DUMPABLE:
    case GET_NO_NEW_PRIVS:
        return 1;
    case GET_TIMERSLACK:
        return 50000;
    case SET_PDEATHSIG:
    case SET_DUMPABLE:
    case GET_KEEPCAPS:
    case CAPBSET_READ:
    case SET_TIMERSLACK:
    case SET_NO_NEW_PRIVS:
    case SET_PTRACER:
        return 0;
    }
    return -EINVAL;
}

s64 sys_arch_prctl(u64 code, u64 a)
{
    enum { SET_GS = 0x1001, SET_FS, GET_FS, GET_GS };
    switch (code) {
    case SET_GS:
        set_gs(a);
        return 0;
    case SET_FS:
        set_fs(a);
        return 0;
    case GET_FS:
    case GET_GS:
        if (!user_ok(a, 8, 1))
            return -EFAULT;
        AT(u64, a) = code == GET_FS ? get_fs() : get_gs();
        return 0;
    }
    return -EINVAL;
}

s64 sys_personality(u64 persona)
{
    return (u32)persona == ~0u || !(u32)persona ? 0 : -EINVAL;
}

#define CAP_VERSION_3 0x20080522
s64 sys_capget(u64 header, u64 data)
{
    if (!user_ok(header, 8, 1))
        return -EFAULT;
    if (AT(u32, header) != CAP_VERSION_3) {
        AT(u32, header) = CAP_VERSION_3;
        return data ? -EINVAL : 0;
    }
    if (!data)
        return 0;
    if (!user_ok(data, 24, 1))
        return -EFAULT;
    memset((void *)data, 0, 24);
    return 0;
}

/* One vCPU: between two instructions of a thread all others have always seen every barrier. */
s64 sys_membarrier(u64 command, u64 flags)
{
    enum { GLOBAL = 1, GLOBAL_EXPEDITED = 2, REGISTER_GLOBAL = 4, PRIVATE = 8, REGISTER_PRIVATE = 16 };
    u64 known = GLOBAL | GLOBAL_EXPEDITED | REGISTER_GLOBAL | PRIVATE | REGISTER_PRIVATE;
    if (!command)
        return (s64)known;
    return flags || (command & (command - 1)) || !(command & known) ? -EINVAL : 0;
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
