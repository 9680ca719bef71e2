/* On the harness only: what a restored VM finds. The harness answers the ready call as if another VM had taken over. */
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/random.h>
#include <stddef.h>
#include <sys/syscall.h>
#include "../../shim/abi.h"

static int go, one;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static volatile int hit;

static void on_signal(int sig)
{
    hit = sig;
}

static void *wait(void *arg)         /* a thread of the template lives on */
{
    pthread_mutex_lock(&lock);
    while (!go)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return arg;
}

int main(void)
{
    pthread_t t;
    unsigned char before[32], after[32], zero[32] = {0};
    int pid = getpid();
    pthread_mutex_t recursive;
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&recursive, &attr);
    CHECK(!pthread_create(&t, 0, wait, &one));
    CHECK(getrandom(before, 32, 0) == 32);
    struct timespec now;
    uint64_t cpu = ns_now(CLOCK_PROCESS_CPUTIME_ID);
    int fd = open("/dev/agentfw", O_RDWR);
    CHECK(fd >= 0);
    CHECK(getpid() == pid + 1000 && syscall(SYS_gettid) == getpid());
    CHECK(getrandom(after, 32, 0) == 32 && memcmp(before, after, 32) && memcmp(after, zero, 32));
    const struct afw_ctl *ctl = (void *)AFW_CTL;
    CHECK(ctl->random_left == AFW_RANDOM - 32 && !memcmp(ctl->random + ctl->random_left, zero, 32));   /* fresh, and what was taken is wiped */
    CHECK(!clock_gettime(CLOCK_MONOTONIC, &now) && ns_now(CLOCK_PROCESS_CPUTIME_ID) < cpu + 1000000000);
    /* the C library's copy of the main thread's id went along: locks that know their owner work */
    CHECK(!pthread_mutex_lock(&recursive) && pthread_mutex_lock(&recursive) == EDEADLK && !pthread_mutex_unlock(&recursive));
    signal(SIGUSR1, on_signal);
    CHECK(!pthread_kill(pthread_self(), SIGUSR1) && hit == SIGUSR1);
    pthread_mutex_lock(&lock);
    go = 1;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    void *r;
    CHECK(!pthread_join(t, &r) && r == &one);
    CHECK(!pthread_create(&t, 0, wait, &one) && !pthread_join(t, 0));
    return 0;
}
