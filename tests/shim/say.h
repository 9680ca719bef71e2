/* For the programs whose output must be the same natively and on the shim: each line is an expression and what it gave. */
#ifndef SAY_H
#define SAY_H
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

#define T(call) \
    do { \
        errno = 0; \
        long r_ = (long)(call); \
        printf("%d %s = %ld%s%s\n", __LINE__, #call, r_, r_ < 0 ? " " : "", r_ < 0 ? strerrorname_np(errno) : ""); \
    } while (0)

static inline void *start(void *(*f)(void *), void *argument)
{
    pthread_t *t = malloc(sizeof *t);
    CHECK(!pthread_create(t, 0, f, argument));
    return t;
}
static inline void *finish(void *t)
{
    void *r;
    CHECK(!pthread_join(*(pthread_t *)t, &r));
    return r;
}
static inline void pause_ms(int ms) { usleep((useconds_t)ms * 1000); }
#endif
