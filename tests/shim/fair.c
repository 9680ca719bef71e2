/* Threads that compute share the CPU, whatever they do not call; who sleeps, waits for another or takes signals has its turns beside them. */
#include "check.h"
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/time.h>

#define SPINNERS 3
static volatile int stop;
static uint64_t used[SPINNERS];
static sem_t there, back;
static volatile uint64_t rounds, alarms;

static void *compute(void *arg)
{
    while (!stop)
        ;
    used[(uint64_t)arg] = ns_now(CLOCK_THREAD_CPUTIME_ID);
    return 0;
}

static void *answer(void *arg)
{
    while (!sem_wait(&there) && !stop)
        sem_post(&back);
    return arg;
}

static void *ask(void *arg)
{
    for (; !stop; rounds++) {
        sem_post(&there);
        sem_wait(&back);
    }
    return arg;
}

static void on_alarm(int sig)
{
    (void)sig;
    alarms++;
}

int main(int argc, char **argv)
{
    pthread_t t[SPINNERS + 2];
    struct itimerval every = {{0, 5000}, {0, 5000}}, off = {{0, 0}, {0, 0}};
    int naps = argc > 1 ? atoi(argv[1]) : 20;
    sem_init(&there, 0, 0);
    sem_init(&back, 0, 0);
    signal(SIGALRM, on_alarm);
    for (uint64_t i = 0; i < SPINNERS; i++)
        CHECK(!pthread_create(&t[i], 0, compute, (void *)i));
    CHECK(!pthread_create(&t[SPINNERS], 0, answer, 0));
    CHECK(!pthread_create(&t[SPINNERS + 1], 0, ask, 0));
    uint64_t begun = ns_now(CLOCK_MONOTONIC), cpu = ns_now(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < naps; i++)   /* an end at all is what counts: it comes only if the sleeper is woken again and again */
        usleep(2000);
    setitimer(ITIMER_REAL, &every, 0);
    uint64_t had = rounds;
    while (alarms < 5)               /* this thread computes, too, and the handler comes all the same */
        ;
    setitimer(ITIMER_REAL, &off, 0);
    while (rounds < had + 100)       /* and those two are not forgotten */
        usleep(1000);
    begun = ns_now(CLOCK_MONOTONIC) - begun;
    cpu = ns_now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    stop = 1;
    sem_post(&there);
    sem_post(&back);
    for (int i = 0; i < SPINNERS + 2; i++)
        CHECK(!pthread_join(t[i], 0));
    uint64_t least = used[0], most = used[0];
    for (int i = 1; i < SPINNERS; i++) {
        least = used[i] < least ? used[i] : least;
        most = used[i] > most ? used[i] : most;
    }
    if (argc > 1)
        dprintf(1, "%lu ms, cpu %lu ms, spinners %lu..%lu ms, %lu rounds\n", begun / 1000000, cpu / 1000000, least / 1000000, most / 1000000, rounds);
    CHECK(least > 0 && most < 4 * least + 50000000);
    return 0;
}
