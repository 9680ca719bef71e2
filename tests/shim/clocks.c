/* Clocks and sleeping. */
#include "check.h"
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/times.h>

int main(void)
{
    static const clockid_t ids[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_MONOTONIC_COARSE, CLOCK_REALTIME_COARSE,
                                    CLOCK_BOOTTIME, CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID};
    struct timespec t;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        CHECK(!clock_getres(ids[i], &t) && t.tv_sec == 0 && t.tv_nsec > 0);
        uint64_t last = ns_now(ids[i]);
        for (int j = 0; j < 20000; j++) {
            uint64_t now = ns_now(ids[i]);
            CHECK(now >= last);
            last = now;
        }
    }
    CHECK(clock_gettime(99, &t) == -1 && errno == EINVAL);
    CHECK(ns_now(CLOCK_REALTIME) > 1700000000ull * 1000000000);
    time_t seconds = time(0);
    struct timeval tv;
    CHECK(!gettimeofday(&tv, 0) && tv.tv_sec - seconds <= 1 && tv.tv_usec < 1000000);
    for (int ms = 1; ms <= 16; ms *= 4) {
        uint64_t start = ns_now(CLOCK_MONOTONIC);
        struct timespec d = {0, ms * 1000000};
        CHECK(!nanosleep(&d, 0) && ns_now(CLOCK_MONOTONIC) - start >= (uint64_t)ms * 1000000);
    }
    for (int i = 0; i < 2; i++) {
        clockid_t id = i ? CLOCK_REALTIME : CLOCK_MONOTONIC;
        uint64_t until = ns_now(id) + 5000000;
        t.tv_sec = (time_t)(until / 1000000000);
        t.tv_nsec = (long)(until % 1000000000);
        CHECK(!clock_nanosleep(id, TIMER_ABSTIME, &t, 0) && ns_now(id) >= until);
        CHECK(!clock_nanosleep(id, TIMER_ABSTIME, &t, 0));
    }
    t.tv_sec = -1;
    CHECK(nanosleep(&t, 0) == -1 && errno == EINVAL);
    t.tv_sec = 0;
    t.tv_nsec = 1000000000;
    CHECK(nanosleep(&t, 0) == -1 && errno == EINVAL);
    /* burnt time shows, slept time does not */
    CHECK(ns_now(CLOCK_PROCESS_CPUTIME_ID) < 5000000000);
    uint64_t cpu = ns_now(CLOCK_PROCESS_CPUTIME_ID), start = ns_now(CLOCK_MONOTONIC);
    while (ns_now(CLOCK_PROCESS_CPUTIME_ID) < cpu + 30000000)
        CHECK(ns_now(CLOCK_MONOTONIC) - start < 30000000000);
    /* what is told is what the kernel counted, at any time: a call that asks it for something changes nothing */
    int jumped = 0;                  /* (the kernel charges a thread for interrupts, too) */
    for (int i = 0; i < 100; i++) {
        uint64_t until = ns_now(CLOCK_MONOTONIC) + (uint64_t)(i % 7) * 500000;
        while (ns_now(CLOCK_MONOTONIC) < until)
            ;
        clockid_t id = i & 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_PROCESS_CPUTIME_ID;
        uint64_t told = ns_now(id);
        syscall(SYS_getcpu, 0, 0, 0);
        uint64_t then = ns_now(id);
        CHECK(then >= told);
        jumped += then - told >= 1000000;
    }
    CHECK(jumped < 20);
    clockid_t mine;
    CHECK(!pthread_getcpuclockid(pthread_self(), &mine) && ns_now(mine) > 0);
    struct rusage u;
    struct tms tms;
    CHECK(!getrusage(RUSAGE_SELF, &u) && u.ru_utime.tv_usec < 1000000 && u.ru_maxrss > 0 && times(&tms) != -1);
    return 0;
}
