/* futex(2) by itself: values, bit sets, requeueing, compound wakes, time-outs, signals. */
#include "check.h"
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>

static long futex(uint32_t *p, int op, uint32_t value, const void *timeout, uint32_t *p2, uint32_t value3)
{
    return syscall(SYS_futex, p, op, value, timeout, p2, value3);
}

static uint32_t a, b, started;
struct wait { int op; uint32_t bits; long result; int error; };

static void *wait_thread(void *arg)
{
    struct wait *w = arg;
    __atomic_add_fetch(&started, 1, __ATOMIC_SEQ_CST);
    w->result = futex(&a, w->op, 0, 0, 0, w->bits);
    w->error = errno;
    return 0;
}

static void start(pthread_t *t, struct wait *w, int n)
{
    uint32_t before = started;
    for (int i = 0; i < n; i++)
        CHECK(!pthread_create(&t[i], 0, wait_thread, &w[i]));
    while (__atomic_load_n(&started, __ATOMIC_SEQ_CST) != before + (uint32_t)n)
        usleep(1000);
    usleep(20000);                   /* they are in the call by now, or nearly so: woken or not, nobody hangs, see wake() */
}

static long wake(uint32_t *p, int op, uint32_t n, uint32_t bits)
{
    return futex(p, op, n, 0, 0, bits);
}

static long compound(int op, int oparg, int cmp, int cmparg)
{
    return futex(&a, FUTEX_WAKE_OP, 0, (void *)0, &b, (uint32_t)FUTEX_OP(op, oparg, cmp, cmparg));
}

static volatile int handled;
static void on_signal(int sig)
{
    (void)sig;
    handled++;
}

static pthread_t main_thread;
static void *pester(void *arg)
{
    for (int i = 0; i < 300; i++) {
        kill(getpid(), SIGUSR1);     /* to the process: either thread may take it */
        sched_yield();
    }
    usleep(10000);
    a = 1;
    while (!wake(&a, FUTEX_WAKE, 1, 0) && *(volatile int *)arg == 0)
        usleep(1000);
    return 0;
}

int main(void)
{
    pthread_t t[4];
    struct timespec ms = {0, 10000000}, until;
    /* answers without waiting */
    CHECK(futex(&a, FUTEX_WAIT, 1, 0, 0, 0) == -1 && errno == EAGAIN);
    CHECK(futex(&a, FUTEX_WAKE, 10, 0, 0, 0) == 0);
    CHECK(futex((uint32_t *)((char *)&a + 1), FUTEX_WAIT, 0, 0, 0, 0) == -1 && errno == EINVAL);
    CHECK(futex((uint32_t *)8, FUTEX_WAIT, 0, 0, 0, 0) == -1 && errno == EFAULT);
    CHECK(futex(&a, FUTEX_WAIT_BITSET, 0, 0, 0, 0) == -1 && errno == EINVAL);
    CHECK(futex(&a, 77, 0, 0, 0, 0) == -1 && errno == ENOSYS);
    struct timespec bad = {0, -1};
    CHECK(futex(&a, FUTEX_WAIT, 0, &bad, 0, 0) == -1 && errno == EINVAL);
    /* time-outs: relative, absolute on both clocks, in the past */
    uint64_t start_ns = ns_now(CLOCK_MONOTONIC);
    CHECK(futex(&a, FUTEX_WAIT_PRIVATE, 0, &ms, 0, 0) == -1 && errno == ETIMEDOUT && ns_now(CLOCK_MONOTONIC) - start_ns >= 10000000);
    for (int real = 0; real < 2; real++) {
        clockid_t id = real ? CLOCK_REALTIME : CLOCK_MONOTONIC;
        int op = FUTEX_WAIT_BITSET_PRIVATE | (real ? FUTEX_CLOCK_REALTIME : 0);
        uint64_t end = ns_now(id) + 10000000;
        until.tv_sec = (time_t)(end / 1000000000);
        until.tv_nsec = (long)(end % 1000000000);
        CHECK(futex(&a, op, 0, &until, 0, FUTEX_BITSET_MATCH_ANY) == -1 && errno == ETIMEDOUT && ns_now(id) >= end);
        until.tv_sec = 1;
        CHECK(futex(&a, op, 0, &until, 0, FUTEX_BITSET_MATCH_ANY) == -1 && errno == ETIMEDOUT);
    }
    /* bit sets */
    struct wait w[4] = {{FUTEX_WAIT_BITSET, 1, 9, 0}, {FUTEX_WAIT_BITSET, 2, 9, 0}, {FUTEX_WAIT_BITSET, 4, 9, 0}, {FUTEX_WAIT, 0, 9, 0}};
    start(t, w, 4);
    CHECK(wake(&a, FUTEX_WAKE_BITSET, 10, 8) == 1);              /* the plain one matches all */
    CHECK(!pthread_join(t[3], 0) && w[3].result == 0);
    CHECK(wake(&a, FUTEX_WAKE_BITSET, 10, 2 | 4) == 2);
    CHECK(!pthread_join(t[1], 0) && !pthread_join(t[2], 0) && w[1].result == 0);
    CHECK(wake(&a, FUTEX_WAKE, 10, 0) == 1 && !pthread_join(t[0], 0));
    /* requeue: one is woken, two move, and are woken where they are */
    for (int i = 0; i < 4; i++)
        w[i] = (struct wait){FUTEX_WAIT, 0, 9, 0};
    start(t, w, 4);
    CHECK(futex(&a, FUTEX_CMP_REQUEUE, 1, (void *)2, &b, 5) == -1 && errno == EAGAIN);
    CHECK(futex(&a, FUTEX_CMP_REQUEUE, 1, (void *)2, &b, 0) == 3);
    CHECK(wake(&a, FUTEX_WAKE, 10, 0) == 1 && wake(&b, FUTEX_WAKE, 10, 0) == 2);
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_join(t[i], 0) && w[i].result == 0);
    /* compound: the operation, and the comparison with the old value */
    b = 10;
    CHECK(compound(FUTEX_OP_SET, 5, FUTEX_OP_CMP_EQ, 10) == 0 && b == 5);
    CHECK(compound(FUTEX_OP_ADD, -7, FUTEX_OP_CMP_NE, 10) == 0 && b == (uint32_t)-2);
    CHECK(compound(FUTEX_OP_OR, 3, FUTEX_OP_CMP_LT, 0) == 0 && b == (uint32_t)-1);
    CHECK(compound(FUTEX_OP_ANDN, 0xf, FUTEX_OP_CMP_LE, 0) == 0 && b == 0xfffffff0);
    CHECK(compound(FUTEX_OP_XOR, 1, FUTEX_OP_CMP_GT, 0) == 0 && b == 0xfffffff1);
    CHECK(compound(FUTEX_OP_SET | FUTEX_OP_OPARG_SHIFT, 9, FUTEX_OP_CMP_GE, 0) == 0 && b == 512);
    for (int compare = 0; compare < 6; compare++)
        for (int old = -1; old <= 1; old++) {
            int holds[] = {old == 0, old != 0, old < 0, old <= 0, old > 0, old >= 0};
            struct wait one = {FUTEX_WAIT, 0, 9, 0};
            pthread_t thread;
            start(&thread, &one, 1);
            b = (uint32_t)old;
            /* woken through the second word, which is the one it waits on */
            long n = syscall(SYS_futex, &b, FUTEX_WAKE_OP, 0, 1L, &a, FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 1));
            CHECK(n == 0);
            a = (uint32_t)old;
            n = syscall(SYS_futex, &b, FUTEX_WAKE_OP, 0, 1L, &a, FUTEX_OP(FUTEX_OP_ADD, 0, compare, 0));
            CHECK(n == holds[compare]);
            a = 0;
            if (!n)
                CHECK(wake(&a, FUTEX_WAKE, 1, 0) == 1);
            CHECK(!pthread_join(thread, 0) && one.result == 0);
        }
    /* a call without time-out goes on after signals with SA_RESTART, and ends without */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, 0);
    main_thread = pthread_self();
    volatile int done = 0;
    a = 0;
    CHECK(!pthread_create(&t[0], 0, pester, (void *)&done));
    CHECK(futex(&a, FUTEX_WAIT, 0, 0, 0, 0) == 0 || errno == EAGAIN);
    done = 1;
    CHECK(!pthread_join(t[0], 0) && handled > 0);
    return 0;
}
