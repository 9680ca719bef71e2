/* System calls that a guest's shim hands to the host as they are (AFW_OP_CALL): calls.c knows what they mean, and asks for everything else here. */
#ifndef AFW_CALLS_H
#define AFW_CALLS_H
#include <stdint.h>
#include "abi.h"

struct caller {
    struct afw_ctl *ctl;             /* hostile */
    int (*read)(struct caller *c, void *to, uint64_t gva, uint64_t n);               /* 0 or -EFAULT */
    int (*write)(struct caller *c, uint64_t gva, const void *data, uint64_t n);      /* 0 or -EFAULT */
    int64_t (*perform)(struct caller *c, const struct afw_sqe *e);                   /* an operation below AFW_OP_CALL */
    uint64_t (*now)(struct caller *c);                                               /* CLOCK_MONOTONIC, ns */
};
/* System call `number` of the guest's with arguments a -> its result, -errno: what it gives to the program */
int64_t call_perform(struct caller *c, uint32_t number, const uint64_t a[6]);
void call_boot(struct afw_ctl *ctl); /* umask and limits of a new program */
#endif
