/* System calls that a guest's shim hands to the host as they are (AFW_OP_CALL): calls.c knows what they mean, and asks for everything else here. */
#ifndef AFW_CALLS_H
#define AFW_CALLS_H
#include <stdbool.h>
#include <stdint.h>
#include "abi.h"

struct caller {
    struct afw_ctl *ctl;             /* hostile */
    int (*read)(struct caller *c, void *to, uint64_t gva, uint64_t n);               /* 0 or -EFAULT */
    int (*write)(struct caller *c, uint64_t gva, const void *data, uint64_t n);      /* 0 or -EFAULT */
    int64_t (*perform)(struct caller *c, const struct afw_sqe *e);                   /* an operation below AFW_OP_CALL */
    uint64_t (*now)(struct caller *c);                                               /* CLOCK_MONOTONIC, ns */
    uint64_t memory;                 /* bytes that it may have */
};
#define CALL_OPEN 1                  /* in an entry's `reserved`, which a guest has no word in. OPEN: the result is that of a call */
#define CALL_MEMFD 2                 /* OPEN: no path but a name for /proc */
#define CALL_BLOCKS 4                /* EAGAIN is AFW_AGAIN */
#define CALL_TIMES 8                 /* UTIMENS: a2 is a pointer of ours */
#define CALL_NO_LINKS 16             /* OPEN: as openat2() with RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH */
#define CALL_BENEATH 32
#define CALL_NO_MAGIC 64             /* RESOLVE_NO_MAGICLINKS, RESOLVE_IN_ROOT, RESOLVE_NO_XDEV */
#define CALL_IN_ROOT 128
#define CALL_NO_MOUNTS 256

struct guest_fd {                    /* a descriptor as the guest's table has it: what it says is worth as much as an operation of its own */
    struct afw_file file;
    uint32_t fd;
    uint32_t mode;                   /* S_IF* and bits; 0: something else, or a file of ours */
    uint64_t place;                  /* of a file of ours: address of its place */
    uint32_t closes;                 /* FD_CLOEXEC */
};
struct stat;
struct statx;
int call_own(struct caller *c, uint64_t gva, uint64_t n);    /* is it writable memory of the program? */
int call_get(struct caller *c, void *to, uint64_t gva, uint64_t n);          /* of the program's memory: 0 or -EFAULT */
int call_put(struct caller *c, uint64_t gva, const void *data, uint64_t n);
int call_fd(struct caller *c, uint64_t fd, struct guest_fd *out);            /* 0 or -EBADF */
void call_fd_stat(const struct guest_fd *f, struct stat *st);                /* of what has no handle */
void call_statx(const struct stat *st, struct statx *x);
int64_t file_call(struct caller *c, uint32_t number, const uint64_t a[6]);   /* -ENOSYS: not about files, or unknown */
/* System call `number` of the guest's with arguments a -> its result, -errno: what it gives to the program */
int64_t call_perform(struct caller *c, uint32_t number, const uint64_t a[6]);
void call_boot(struct afw_ctl *ctl); /* umask and limits of a new program */

/* callproc.c: scheduling, identity, memory's residence; -ENOSYS: none of its calls */
int64_t process_call(struct caller *c, uint32_t number, const uint64_t a[6]);

/* inside.c: tables of the guest's; c->read and c->ctl are enough */
bool region_at(struct caller *c, uint32_t index, struct afw_region *out);            /* false: there is no such, or it makes no sense */
uint32_t region_above(struct caller *c, uint32_t page);                              /* index of the first one that ends above it */
/* The program's memory, all of it mapped with these PROT_* at least. What is free is not, though it could be read and written. */
bool memory_allows(struct caller *c, uint64_t gva, uint64_t n, uint32_t prot);
struct guest_thread {
    uint32_t tid;
    bool blocked;
    uint64_t cpu_ns;                 /* up to its last switch */
    char name[16];
};
uint64_t thread_read(struct caller *c, uint64_t at, struct guest_thread *out);       /* -> where the next is; 0: there is none here */
bool thread_find(struct caller *c, uint32_t tid, struct guest_thread *out);
#endif
