/* The rings: submissions and their completions. Layout and rules: abi.h. */
#include "core.h"

#define SQ ((volatile struct afw_sqe *)AFW_SQ)
#define CQ ((volatile struct afw_cqe *)AFW_CQ)

static u32 next_token;

#define OUT(port) __asm__ volatile("out %%al, %0" ::"N"(port), "a"(0) : "memory")

void ring_kick(void)
{
    OUT(AFW_PORT_KICK);
    after_exit();
}

void ring_out_wait(u64 deadline)
{
    CTL->deadline = deadline;
    OUT(AFW_PORT_WAIT);
}

static void submit(u16 op, u16 flags, u32 token, const u64 *a)
{
    u32 tail = CTL->sq_tail;
    if (tail - CTL->sq_head >= AFW_SQ_LEN)
        OUT(AFW_PORT_KICK);          /* the host takes all of them */
    volatile struct afw_sqe *e = &SQ[tail % AFW_SQ_LEN];
    e->op = op;
    e->flags = flags;
    e->token = token;
    for (int i = 0; i < 6; i++)
        e->a[i] = a[i];
    CTL->sq_tail = tail + 1;
}

void ring_post(u16 op, u64 a0, u64 a1, u64 a2, u64 a3, u64 a4, u64 a5)
{
    u64 a[6] = {a0, a1, a2, a3, a4, a5};
    submit(op, AFW_SQE_NOREPLY, 0, a);
}

s64 ring_call(u16 op, u64 a0, u64 a1, u64 a2, u64 a3, u64 a4, u64 a5)
{
    u64 a[6] = {a0, a1, a2, a3, a4, a5};
    u32 token = ++next_token;
    if (!ring_used) {
        ring_used = 1;
        CTL->n_local--;
        CTL->n_ring++;
    }
    submit(op, 0, token, a);
    OUT(AFW_PORT_KICK);
    s64 res = 0;
    int found = 0;
    while (CTL->cq_head != CTL->cq_tail) {
        volatile struct afw_cqe *c = &CQ[CTL->cq_head % AFW_CQ_LEN];
        if (c->token == token) {
            res = c->res;
            found = 1;
        }
        CTL->cq_head++;
    }
    if (!found)
        PANIC(4);
    after_exit();
    return res;
}

void panic(u32 code, u32 line)
{
    CTL->panic_code = code;
    CTL->panic_line = line;
    for (;;)
        OUT(AFW_PORT_PANIC);
}
