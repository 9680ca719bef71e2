/* 50 sleeps of 1 ms beside a thread that computes: which CPU time (ms) passes with that. The sleeper preempts it when its time has come. */
#include "check.h"
#include <pthread.h>

static volatile int stop;

static void *compute(void *arg)
{
    while (!stop)
        ;
    return arg;
}

int main(void)
{
    pthread_t t;
    CHECK(!pthread_create(&t, 0, compute, 0));
    usleep(20000);
    uint64_t cpu = ns_now(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < 50; i++)
        usleep(1000);
    cpu = ns_now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    stop = 1;
    CHECK(!pthread_join(t, 0) && dprintf(1, "%lu\n", cpu / 1000000) > 0);
    return 0;
}
