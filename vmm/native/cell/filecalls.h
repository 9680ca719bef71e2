/* Between filecalls.c (calls on paths, and which call is what) and fdcalls.c (on descriptors). */
#ifndef AFW_FILECALLS_H
#define AFW_FILECALLS_H
#include <time.h>
#include "calls.h"

struct call {
    struct caller *c;
    struct afw_sqe *e;               /* becomes the operation */
    const uint64_t *a;               /* the program's arguments */
    struct timespec times[2];        /* CALL_TIMES */
};
/* The handle behind a descriptor. -EBADF, or `none`: there is none (a pipe, a socket ...) */
int call_handle(struct call *c, uint64_t fd, int none, uint64_t *handle);
/* An operation with the first argument's handle first; `others`: what those without one give */
int call_on(struct call *c, uint16_t op, uint64_t x, uint64_t y, uint64_t z, int others);
/* 0: *e is an operation now. 1: the answer is e->reserved. -errno; -ENOSYS: no call of its */
int fd_call(struct call *c, uint32_t nr);
#endif
