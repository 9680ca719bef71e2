/* Threads: creation, mutexes, conditions, preemption with live vector registers, many at once, robust mutexes. */
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/syscall.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long counter;
static __thread long mine;

static void *count(void *arg)
{
    mine = (long)arg;
    for (int i = 0; i < 20000; i++) {
        pthread_mutex_lock(&lock);
        counter++;
        pthread_mutex_unlock(&lock);
    }
    CHECK(mine == (long)arg);
    return (void *)(mine * 2);
}

static int turn;
static void *player(void *arg)
{
    int me = (int)(long)arg;
    for (int i = 0; i < 2000; i++) {
        pthread_mutex_lock(&lock);
        while (turn != me)
            pthread_cond_wait(&changed, &lock);
        turn = !me;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

/* No call in the loop: only the time slice can take the vCPU away. All vector registers hold what must survive. */
static volatile int running, stop;
static void *spin(void *arg)
{
    double seed = (double)(long)arg, a = seed, b = seed + 1, c = seed + 2, d = seed + 3;
    __atomic_add_fetch(&running, 1, __ATOMIC_SEQ_CST);
    while (!stop)
        __asm__ volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d));
    CHECK(a == seed && b == seed + 1 && c == seed + 2 && d == seed + 3);
    return 0;
}

static sem_t semaphore;
static void *post(void *arg)
{
    (void)arg;
    usleep(5000);
    sem_post(&semaphore);
    return 0;
}

static pthread_mutex_t robust;
static void *die_with_lock(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&robust);
    return 0;
}

static void *idle(void *arg)
{
    pthread_barrier_wait(arg);
    pthread_barrier_wait(arg);
    return (void *)(long)syscall(SYS_gettid);
}

int main(void)
{
    pthread_t t[300];
    for (long i = 0; i < 8; i++)
        CHECK(!pthread_create(&t[i], 0, count, (void *)i));
    for (long i = 0; i < 8; i++) {
        void *r;
        CHECK(!pthread_join(t[i], &r) && (long)r == i * 2);
    }
    CHECK(counter == 160000);

    for (long i = 0; i < 2; i++)
        CHECK(!pthread_create(&t[i], 0, player, (void *)i));
    for (long i = 0; i < 2; i++)
        CHECK(!pthread_join(t[i], 0));

    for (long i = 0; i < 4; i++)
        CHECK(!pthread_create(&t[i], 0, spin, (void *)(i * 100)));
    while (running < 4)
        ;                            /* the main thread spins as well */
    usleep(20000);
    stop = 1;
    for (long i = 0; i < 4; i++)
        CHECK(!pthread_join(t[i], 0));

    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 10000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&lock);
    int r;
    while (!(r = pthread_cond_timedwait(&changed, &lock, &until)))
        ;
    CHECK(r == ETIMEDOUT && ns_now(CLOCK_REALTIME) >= (uint64_t)until.tv_sec * 1000000000 + (uint64_t)until.tv_nsec);
    pthread_mutex_unlock(&lock);

    CHECK(!sem_init(&semaphore, 0, 0));
    CHECK(!pthread_create(&t[0], 0, post, 0) && !sem_wait(&semaphore) && !pthread_join(t[0], 0));

    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &attr);
    CHECK(!pthread_create(&t[0], 0, die_with_lock, 0) && !pthread_join(t[0], 0));
    CHECK(pthread_mutex_lock(&robust) == EOWNERDEAD && !pthread_mutex_consistent(&robust) && !pthread_mutex_unlock(&robust));

    pthread_barrier_t barrier;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    pthread_barrier_init(&barrier, 0, 301);
    for (int i = 0; i < 300; i++)
        CHECK(!pthread_create(&t[i], &small, idle, &barrier));
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    long seen = 0;
    for (int i = 0; i < 300; i++) {
        void *tid;
        CHECK(!pthread_join(t[i], &tid) && (long)tid > getpid());
        seen += (long)tid;
    }
    CHECK(seen > 0);
    for (int i = 0; i < 500; i++)    /* stacks and shim stacks are reused */
        CHECK(!pthread_create(&t[0], 0, idle, (pthread_barrier_init(&barrier, 0, 1), &barrier)) && !pthread_join(t[0], 0));
    CHECK(sched_yield() == 0 && syscall(SYS_gettid) == getpid());
    return 0;
}
