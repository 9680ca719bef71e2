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

/* What the host counted at the last entry, and the time since then. */
#define SLICE 8000000                /* ns: no run of the vCPU is much longer */
#define DOUBT 400000                 /* ns of it that may have been others' on the host, without being asked */
static u64 shown, before;            /* before: of the VM that this one was forked from */

void cpu_time_restart(void)
{
    before = shown = CTL->forked ? shown : 0;
}

u64 cpu_time(void)
{
    s64 part = (s64)(now_mono() - CTL->cpu_since);
    u64 t = before + CTL->cpu_ns + (u64)(part < SLICE ? part : SLICE);   /* what is more went to others on the host */
    if (t < shown)
        t = shown;                   /* our estimate was ahead */
    return shown = t;
}

void cpu_time_ask(void)
{
    if ((s64)(now_mono() - CTL->cpu_since) > DOUBT)
        ring_kick();
}

static s64 read_pair(u64 user, u64 unit, u64 *ns)
{
    u64 t[2];
    if (!user_ok(user, sizeof t, 0)) /* (used by calls that hold things) */
        return -EFAULT;
    memcpy(t, (void *)user, sizeof t);
    if ((s64)t[0] < 0 || t[1] >= BILLION / unit)
        return -EINVAL;
    *ns = t[0] >> 33 ? NEVER : t[0] * BILLION + t[1] * unit;
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
    u64 t[2] = {ns / BILLION, ns % BILLION / unit};
    return copy_out(user, t, sizeof t);
}

enum { REALTIME, MONOTONIC, PROCESS_CPUTIME, THREAD_CPUTIME, MONOTONIC_RAW, REALTIME_COARSE, MONOTONIC_COARSE, BOOTTIME, CLOCK_TAI = 11 };

#define KNOWN_CLOCKS 0x8ff
#define REAL_CLOCKS (1 << REALTIME | 1 << REALTIME_COARSE | 1 << CLOCK_TAI)

static s64 clock(u64 id, u64 *ns)
{
    s32 n = (s32)id;
    struct thread *t = current;
    if (n < 0) {                     /* pthread_getcpuclockid(), clock_getcpuclockid(): ~id << 3 | per thread 4 | CPUCLOCK_SCHED 2 */
        t = ~(n >> 3) ? find_thread((u32)~(n >> 3)) : current;
        if (!t || (n & 3) != 2)
            return -EINVAL;
        n = n & 4 ? THREAD_CPUTIME : PROCESS_CPUTIME;
    }
    if (n > CLOCK_TAI || !(KNOWN_CLOCKS >> n & 1))
        return -EINVAL;
    if ((u32)n - PROCESS_CPUTIME < 2) {
        cpu_time_ask();
        *ns = n == PROCESS_CPUTIME ? cpu_time() : thread_cpu_time(t);
    } else
        *ns = REAL_CLOCKS >> n & 1 ? now_real() : now_mono();
    return 0;
}

void put_timeval(u64 user, u64 ns)
{
    write_pair(user, ns, 1000);
}

s64 sys_clock_gettime(u64 id, u64 out)
{
    u64 ns;
    s64 r = clock(id, &ns);
    return r ? r : write_pair(out, ns, 1);
}

s64 sys_gettimeofday(u64 tv, u64 tz)
{
    if (tz)
        copy_out_word(tz, 0);
    return tv ? write_pair(tv, now_real(), 1000) : 0;
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
        write_pair(remaining, deadline > now ? deadline - now : 0, 1);
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
    if (id - THREAD_CPUTIME < 4)     /* nor by those that nobody can wait for: raw, coarse */
        return -EOPNOTSUPP;
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
