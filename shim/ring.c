/* The rings: submissions and their completions. Layout and rules: abi.h. */
#include "core.h"

#define SQ ((struct afw_sqe *)AFW_SQ)
#define CQ ((struct afw_cqe *)AFW_CQ)

static u32 next_token;
u64 ring_at;

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

s64 ring_call(u32 op, u64 a0, u64 a1, u64 a2, u64 a3, u64 a4, u64 a5)
{
    u32 tail = CTL->sq_tail, token = ++next_token;
    s64 res = 0;
    if (tail - CTL->sq_head >= AFW_SQ_LEN)
        OUT(AFW_PORT_KICK);          /* the host takes all of them */
    struct afw_sqe *e = &SQ[tail % AFW_SQ_LEN];
    e->op = (u16)op;
    e->flags = op / RING_POST;       /* AFW_SQE_NOREPLY */
    e->token = token;
    e->a[0] = a0;
    e->a[1] = a1;
    e->a[2] = a2;
    e->a[3] = a3;
    e->a[4] = a4;
    e->a[5] = a5;
    CTL->sq_tail = tail + 1;
    if (op & RING_POST) {
        CTL->alone = 0;              /* so that it goes out at the end of the time slice at the latest: slice_over() */
        return 0;
    }
    if (!ring_used) {
        ring_used = 1;
        CTL->n_local--;
        CTL->n_ring++;
    }
    ring_at = now_mono();
    OUT(AFW_PORT_KICK);
    do {
        u32 head = CTL->cq_head;
        if (head == CTL->cq_tail)
            PANIC(4);
        struct afw_cqe *c = &CQ[head % AFW_CQ_LEN];
        e = c->token == token ? 0 : e;
        res = c->res;
        CTL->cq_head = head + 1;
    } while (e);                     /* (answers to posts would come before) */
    after_exit();
    return res;
}

__attribute__((noinline)) void panic(u32 code, u32 line)
{
    CTL->panic_code = code;
    CTL->panic_line = line;
    for (;;)
        OUT(AFW_PORT_PANIC);
}
