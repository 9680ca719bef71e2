/* Small calls, and those that the host answers. */
#include "core.h"

s64 sys_enosys(void)
{
    CTL->n_enosys++;
    CTL->last_enosys = (u32)user_frame()->orig_rax;
    return -ENOSYS;
}

s64 sys_zero(void) { return 0; }
s64 sys_notallowed(void) { return -EPERM; }
s64 sys_getpid(void) { return CTL->pid; }
s64 sys_getppid(void) { return 1; }
s64 sys_getid(void) { return GUEST_UID; }

/* What needs nothing that only the guest knows is the host's: vmm/native/cell/calls.c. */
s64 sys_ask(u64 a, u64 b, u64 c, u64 d, u64 e)
{
    return ring_call(AFW_OP_CALL + (u32)user_frame()->orig_rax, a, b, c, d, e, (u64)current);
}

/* The same of calls that may change a file. */
s64 sys_change(u64 a, u64 b, u64 c, u64 d, u64 e)
{
    files_changed++;
    return sys_ask(a, b, c, d, e);
}

/* getrusage, times */
s64 sys_usage(u64 a, u64 b)
{
    cpu_time_ask();
    return sys_ask(a, b, cpu_time(), thread_cpu_time(current), mm_peak);
}

s64 sys_arch_prctl(u64 code, u64 a)
{
    if (code - 0x1001 < 2 && a >> 47)
        return -EPERM;
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

/* cpuid of a rewritten site: r = eax, ebx, ecx, edx, in and out. */
void cpuid_lookup(u64 r[4])
{
    ring_call(AFW_OP_CPUID, r[0], r[2], (u64)r, 0, 0, 0);
}
