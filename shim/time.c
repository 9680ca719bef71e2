/* Clocks (TSC and the host's numbers in ctl) and sleeping. */
#include "core.h"

#define BILLION 1000000000ull

u64 now_mono(void)
{
    u32 lo, hi;
    __asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
    u64 ticks = ((u64)hi << 32 | lo) - CTL->tsc_base;
    return CTL->mono_base + (u64)(((unsigned __int128)ticks * CTL->tsc_mult) >> 32);
}

u64 now_real(void)
{
    return now_mono() + CTL->real_offset;
}

u64 deadline_after(u64 ns)
{
    u64 t = now_mono() + ns;
    return t < ns ? NEVER : t;
}

/* What the host counted at the last entry, and the time since we first saw that count. */
u64 cpu_time(void)
{
    static u64 counted, since, shown;
    u64 now = now_mono();
    if (CTL->cpu_ns != counted) {
        counted = CTL->cpu_ns;
        since = now;
    }
    u64 t = counted + (now - since);
    if (t < shown && shown - t < BILLION)
        t = shown;                   /* our estimate was ahead */
    return shown = t;
}

static s64 read_pair(u64 user, u64 unit, u64 *ns)
{
    if (!user_ok(user, 16, 0))
        return -EFAULT;
    s64 sec = AT(s64, user);
    u64 part = AT(u64, user + 8);
    if (sec < 0 || part >= BILLION / unit)
        return -EINVAL;
    *ns = sec > 8000000000 ? NEVER : (u64)sec * BILLION + part * unit;
    return 0;
}

s64 read_timespec(u64 user, u64 *ns)
{
    return read_pair(user, 1, ns);
}

s64 read_timeval(u64 user, u64 *ns)
{
    return read_pair(user, 1000, ns);
}

static s64 write_pair(u64 user, u64 ns, u32 unit)
{
    if (!user_ok(user, 16, 1))
        return -EFAULT;
    AT(u64, user) = ns / BILLION;
    AT(u64, user + 8) = ns % BILLION / unit;
    return 0;
}

enum { REALTIME, MONOTONIC, PROCESS_CPUTIME, THREAD_CPUTIME, MONOTONIC_RAW, REALTIME_COARSE, MONOTONIC_COARSE, BOOTTIME, CLOCK_TAI = 11 };

static s64 clock(u64 id, u64 *ns)
{
    switch ((s32)id) {
    case REALTIME:
    case REALTIME_COARSE:
    case CLOCK_TAI:
        *ns = now_real();
        return 0;
    case MONOTONIC:
    case MONOTONIC_RAW:
    case MONOTONIC_COARSE:
    case BOOTTIME:
        *ns = now_mono();
        return 0;
    case PROCESS_CPUTIME:
        *ns = cpu_time();
        return 0;
    case THREAD_CPUTIME:
        *ns = thread_cpu_time(current);
        return 0;
    }
    s32 pid = ~((s32)id >> 3);       /* pthread_getcpuclockid() and clock_getcpuclockid(): the id holds a tid */
    if ((s32)id >= 0 || ((s32)id & 3) != 2)
        return -EINVAL;
    if (!((s32)id & 4)) {
        if (pid && pid != (s32)CTL->pid)
            return -EINVAL;
        *ns = cpu_time();
        return 0;
    }
    struct thread *t = pid ? find_thread((u32)pid) : current;
    if (!t)
        return -EINVAL;
    *ns = thread_cpu_time(t);
    return 0;
}

s64 sys_clock_gettime(u64 id, u64 out)
{
    u64 ns;
    s64 r = clock(id, &ns);
    return r ? r : write_pair(out, ns, 1);
}

s64 sys_clock_getres(u64 id, u64 out)
{
    u64 ns;
    s64 r = clock(id, &ns);
    return r || !out ? r : write_pair(out, 1, 1);
}

s64 sys_gettimeofday(u64 tv, u64 tz)
{
    if (tz) {
        if (!user_ok(tz, 8, 1))
            return -EFAULT;
        AT(u64, tz) = 0;
    }
    return tv ? write_pair(tv, now_real(), 1000) : 0;
}

s64 sys_time(u64 out)
{
    u64 t = now_real() / BILLION;
    if (out) {
        if (!user_ok(out, 8, 1))
            return -EFAULT;
        AT(u64, out) = t;
    }
    return (s64)t;
}

static s64 sleep_until(u64 deadline, u64 remaining)
{
    int r;
    while (!(r = block(deadline)))
        ;
    if (r == -ETIMEDOUT)
        return 0;
    if (remaining) {
        u64 now = now_mono();
        s64 e = write_pair(remaining, deadline > now ? deadline - now : 0, 1);
        if (e)
            return e;
    }
    return -EINTR;
}

#define TIMER_ABSTIME 1
s64 sys_clock_nanosleep(u64 id, u64 flags, u64 request, u64 remaining)
{
    u64 ns, now;
    s64 r = read_timespec(request, &ns);
    if (r)
        return r;
    if (id == THREAD_CPUTIME)
        return -EINVAL;
    r = clock(id, &now);
    if (r)
        return r;
    if (!(flags & TIMER_ABSTIME))
        return sleep_until(deadline_after(ns), remaining);
    /* by the distance on its own clock, so that one formula serves all */
    return sleep_until(ns == NEVER ? NEVER : deadline_after(ns > now ? ns - now : 0), 0);
}

s64 sys_nanosleep(u64 request, u64 remaining)
{
    return sys_clock_nanosleep(MONOTONIC, 0, request, remaining);
}

#define TICK (BILLION / 100)
s64 sys_times(u64 out)
{
    if (out) {
        if (!user_ok(out, 32, 1))
            return -EFAULT;
        memset((void *)out, 0, 32);
        AT(u64, out) = cpu_time() / TICK;
    }
    return (s64)(now_mono() / TICK);
}

#define RUSAGE_THREAD 1
s64 sys_getrusage(u64 who, u64 out)
{
    if ((s32)who < -1 || (s32)who > RUSAGE_THREAD)
        return -EINVAL;
    if (!user_ok(out, 144, 1))
        return -EFAULT;
    memset((void *)out, 0, 144);
    if ((s32)who == -1)
        return 0;
    write_pair(out, (s32)who == RUSAGE_THREAD ? thread_cpu_time(current) : cpu_time(), 1000);
    AT(u64, out + 32) = mm_peak * (PAGE / 1024);
    AT(u64, out + 128) = CTL->n_switch;      /* voluntary context switches */
    return 0;
}
