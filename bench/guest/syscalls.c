/* A loop of one system call; -> nanoseconds each. No vDSO: the instruction itself, through libc's syscall(). */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

double loop(int which, int n)
{
    struct timespec a, b, t;
    clock_gettime(CLOCK_MONOTONIC, &a);
    switch (which) {
    case 0: for (int i = 0; i < n; i++) syscall(SYS_getpid); break;
    case 1: for (int i = 0; i < n; i++) syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t); break;
    default: for (int i = 0; i < n; i++) syscall(SYS_gettid); break;
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    return ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / n;
}
