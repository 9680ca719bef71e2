/* So many threads at once that the shim's table of regions has to grow while they come. */
#include "check.h"
#include <pthread.h>

enum { THREADS = 1300 };
static pthread_barrier_t barrier;

static void *meet(void *arg)
{
    char here[1000];
    memset(here, (int)(long)arg, sizeof here);
    pthread_barrier_wait(&barrier);
    for (size_t i = 0; i < sizeof here; i++)
        CHECK(here[i] == (char)(long)arg);
    return arg;
}

int main(void)
{
    static pthread_t t[THREADS];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 32768);
    pthread_barrier_init(&barrier, 0, THREADS + 1);
    for (int round = 0; round < 2; round++) {
        for (long i = 0; i < THREADS; i++)
            CHECK(!pthread_create(&t[i], &small, meet, (void *)i));
        pthread_barrier_wait(&barrier);
        for (long i = 0; i < THREADS; i++) {
            void *r;
            CHECK(!pthread_join(t[i], &r) && r == (void *)i);
        }
    }
    return 0;
}
