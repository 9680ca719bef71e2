/* For guests of these tests: static, without libc, talking to the cell directly. */
#ifndef GUEST_H
#define GUEST_H
#include <stdint.h>
#include "abi.h"

typedef uint64_t u64;
#define CTL ((volatile struct afw_ctl *)AFW_CTL)
#define SQ ((volatile struct afw_sqe *)AFW_SQ)
#define CQ ((volatile struct afw_cqe *)AFW_CQ)
#define WIN ((volatile struct afw_window *)AFW_WINDOW)
#define SHIM ((volatile struct afw_shim_header *)AFW_SHIM)
#define UPCALLS (*(volatile u64 *)SHIM->backstop_counter)
#define HANDLER (*(volatile u64 *)(SHIM->backstop_counter + 8))

static inline void kick(void) { __asm__ volatile("out %%al, $0x30" ::: "memory"); }
static inline void park(void) { __asm__ volatile("out %%al, $0x31" ::: "memory"); }

static inline void post(uint16_t op, uint16_t flags, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
    volatile struct afw_sqe *s = &SQ[CTL->sq_tail % AFW_SQ_LEN];
    s->op = op;
    s->flags = flags;
    s->token = CTL->sq_tail;
    s->a[0] = a, s->a[1] = b, s->a[2] = c, s->a[3] = d, s->a[4] = e, s->a[5] = f;
    CTL->sq_tail = CTL->sq_tail + 1;
}

static inline int64_t call(uint16_t op, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
    post(op, 0, a, b, c, d, e, f);
    kick();
    int64_t r = CQ[CTL->cq_head % AFW_CQ_LEN].res;
    CTL->cq_head = CTL->cq_head + 1;
    return r;
}

static inline void leave(int code) { call(AFW_OP_EXIT, (u64)code, 0, 0, 0, 0, 0); for (;;); }

/* The template is saved here; what is restored from it goes on */
static inline void stand(void)
{
    if (call(AFW_OP_READY, 0, 0, 0, 0, 0, 0))
        leave(100);
}

/* Bytes to the worker on stdout's flow */
static inline void say(const char *s, u64 n)
{
    volatile struct afw_flow *f = &WIN->flow[AFW_FLOW_STDOUT];
    volatile char *ring = (volatile char *)(AFW_WINDOW + AFW_WINDOW_DATA + AFW_FLOW_STDOUT * 2ull * AFW_RING);
    uint32_t head = f->tx_head;
    for (u64 i = 0; i < n; i++)
        ring[head++ % AFW_RING] = s[i];
    f->tx_head = head;
    call(AFW_OP_FLOW_KICK, AFW_FLOW_STDOUT, 0, 0, 0, 0, 0);
}
static inline void say_number(u64 v)
{
    char text[24];
    int i = 24;
    text[--i] = '\n';
    do
        text[--i] = (char)('0' + v % 10);
    while (v /= 10);
    say(text + i, (u64)(24 - i));
}
static inline u64 now(void)
{
    uint32_t lo, hi;
    __asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
    return CTL->mono_base + (u64)(((unsigned __int128)(((u64)hi << 32 | lo) - CTL->tsc_base) * CTL->tsc_mult) >> 32);
}
#define CHECK(x) do { if (!(x)) { say("line ", 5); say_number(__LINE__); leave(99); } } while (0)
void run(void);
__asm__(".globl _start\n_start: and $-16, %rsp\n call run\n");
#endif
