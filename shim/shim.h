/* The shim's own header: what its two halves offer each other.
 *
 *   entry.S    site, LSTAR, upcall, cpuid and xgetbv entries; thread switch
 *   core half  sched.c (threads, run queue, wait queues, time slices), mm.c, futex.c, signal.c, time.c, misc.c, ring.c, table.c
 *   I/O half   fd.c (descriptors and descriptions), file.c (ring files), pipe.c, event.c (eventfd, timerfd), poll.c (poll, select,
 *              epoll), sock.c (loopback), flow.c (sockets over flows, stdio)
 *
 * Freestanding, -mgeneral-regs-only (the guest's vector registers are live at every entry), no floating point, one vCPU, never
 * preempted inside shim text: plain variables need no locks, but anything may change across a call that blocks.
 * User pointers need no checks for the host's sake (the ring is the border); for the program's sake a bad one must end in
 * EFAULT or SIGSEGV, so go through user_ok().
 */
#ifndef SHIM_H
#define SHIM_H
#include <stddef.h>
#include <stdint.h>
#include "abi.h"

typedef uint64_t u64;
typedef int64_t s64;
typedef uint32_t u32;
typedef uint16_t u16;
typedef uint8_t u8;

/* shim.ld puts it at AFW_CTL: RIP-relative access is a byte shorter. Not volatile: what the host changes it changes at an `out`,
 * which clobbers memory, or it does not matter when it is seen. */
extern struct afw_ctl ctl_page;
#define CTL (&ctl_page)
#define WIN ((volatile struct afw_window *)AFW_WINDOW)
#define NEVER (~(u64)0)

/* ---- sched.c ---- */
struct thread;
extern struct thread *current;
struct waitq {
    struct waiter *first;
};
struct waiter {                      /* lives on the waiting thread's stack */
    struct waiter *next, **prev;     /* prev = 0: not queued */
    struct thread *thread;
};
void waitq_add(struct waitq *q, struct waiter *w);   /* for the current thread */
void waitq_del(struct waiter *w);                    /* harmless if not queued */
/* Give the vCPU away until wake() of this thread, the deadline (CLOCK_MONOTONIC ns, NEVER) or a signal to it.
 * 0 woken, -ETIMEDOUT, -EINTR (a deliverable signal is pending). Spurious 0 is possible: look at your condition again. */
int block(u64 deadline);
int wait_on(struct waitq *q, u64 deadline);          /* add, block, del */
void wake(struct thread *t);
int wake_all(struct waitq *q);                       /* -> threads woken; waiters are taken off the queue */
int wake_one(struct waitq *q);
void yield_cpu(void);
/* Called by the scheduler whenever it looked at the outside (after every exit, and before parking): I/O half. */
void flows_poll(void);

/* ---- ring.c: one synchronous call; never switches threads. Returns the CQE's result. ---- */
s64 ring_call(u32 op, u64 a0, u64 a1, u64 a2, u64 a3, u64 a4, u64 a5);
extern u64 ring_at;                  /* when the host was last asked */
/* No answer wanted: goes out with the next exit. */
#define RING_POST 0x10000u
static inline void ring_post(u32 op, u64 a0, u64 a1, u64 a2, u64 a3, u64 a4, u64 a5)
{
    ring_call(op | RING_POST, a0, a1, a2, a3, a4, a5);
}
void ring_kick(void);                                /* out AFW_PORT_KICK */

#define files_changed CTL->changes   /* raised by what may make stale what file.c keeps */

/* ---- time.c ---- */
u64 now_mono(void);
u64 now_real(void);
/* struct timespec/timeval at a user pointer -> ns; -EINVAL for bad values */
s64 read_timespec(u64 user, u64 *ns);
s64 read_timeval(u64 user, u64 *ns);
u64 deadline_after(u64 ns);                          /* now + ns, saturating */

/* ---- mm.c ---- */
void *kalloc(size_t size);                           /* zeroed; 0 when memory is out. Any size; O(1) for small ones */
void kfree(void *p);
int user_ok(u64 addr, u64 len, int write);           /* 1 if it lies in mapped guest memory with that right */
s64 user_strlen(u64 addr, u64 max);                  /* bytes before the NUL, -EFAULT, -ENAMETOOLONG */

/* ---- signal.c ---- */
void signal_send(struct thread *t, int sig, int code, u64 value);   /* t = 0: to the process */
u64 signal_swap_mask(u64 mask);                      /* sets the current thread's mask for ppoll/pselect/epoll_pwait, returns the old one */

/* ---- misc ---- */
void random_bytes(void *out, size_t n);              /* the host's */
void panic(u32 code, u32 line) __attribute__((noreturn));
#define PANIC(code) panic(code, __LINE__)
void *memcpy(void *d, const void *s, size_t n);
void *memset(void *d, int c, size_t n);
int memcmp(const void *a, const void *b, size_t n);
void *memmove(void *d, const void *s, size_t n);

/* ---- I/O half, called by the core half ---- */
void io_init(void);                                  /* at boot: stdio on descriptors 0..2 */
void io_restored(void);                              /* at the first entry after a restore: generation changed */
s64 fd_map_handle(int fd, u64 *handle);              /* for mmap: the ring handle behind fd; -> O_ACCMODE's part of its flags, -EBADF, -ENODEV */
void io_exit(void);                                  /* before AFW_OP_EXIT: close all */
void io_say(const char *text, size_t n);             /* to stderr, if there is room; never blocks. (sys_write from inside a call would leave it) */

s64 sys_ask(u64 a, u64 b, u64 c, u64 d, u64 e);      /* misc.c: the host answers */
s64 sys_change(u64 a, u64 b, u64 c, u64 d, u64 e);   /* and changes files perhaps, or has heard of others' changes */

/* Every syscall is `s64 sys_NAME(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)`, returning -errno on failure; table.c maps numbers to
 * them (syscalls.h lists them, a line each, by half). A call that must be restarted after a signal returns -ERESTARTSYS; a
 * timed one returns -EINTR. */
#define ERESTARTSYS 512
#endif
