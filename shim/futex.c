/* futex(2). One process, so private and shared are the same and the key is the address. */
#include "core.h"

struct futex_waiter {                /* on the waiting thread's stack; w.prev = 0: was woken */
    struct waiter w;
    u64 addr;
    u32 bitset;
};
#define BUCKETS 256
static struct waitq bucket[BUCKETS];

static struct waitq *bucket_of(u64 addr)
{
    return &bucket[(addr >> 2 ^ addr >> 10) % BUCKETS];
}

/* Wakes n of them and moves `moves` more to another address. -> both together */
static s64 futex_pass(u64 addr, u64 n, u32 bitset, u64 moves, u64 to)
{
    s64 done = 0;
    for (struct waiter *w = bucket_of(addr)->first, *next; w && n + moves; w = next) {
        struct futex_waiter *f = (struct futex_waiter *)w;
        next = w->next;
        if (f->addr != addr || !(f->bitset & bitset))
            continue;
        waitq_del(w);
        done++;
        if (n) {
            n--;
            wake(w->thread);
        } else {
            struct thread *t = w->thread;
            moves--;
            f->addr = to;
            waitq_add(bucket_of(to), w);
            w->thread = t;
        }
    }
    return done;
}

s64 futex_wake(u64 addr, u64 n, u32 bitset)
{
    return futex_pass(addr, n, bitset, 0, 0);
}

static s64 futex_wait(u64 addr, u32 value, u32 bitset, u64 deadline)
{
    struct futex_waiter f = {.addr = addr, .bitset = bitset};
    int r;
    if (AT(volatile u32, addr) != value)
        return -EAGAIN;
    waitq_add(bucket_of(addr), &f.w);
    do
        r = block(deadline);
    while (!r && f.w.prev);          /* woken, but not by a futex_wake() */
    if (!f.w.prev)
        return 0;
    waitq_del(&f.w);
    return r == -EINTR && deadline == NEVER ? -ERESTARTSYS : r;
}

/* FUTEX_WAKE_OP: changes the second word, and wakes its waiters if the old value compares so. */
static s64 futex_wake_op(u64 addr, u64 addr2, u64 n, u64 n2, u32 code)
{
    u32 *p = &AT(u32, addr2), arg = (u32)((s32)(code << 8) >> 20), op = code >> 28, compare = code >> 24 & 15;
    s32 old = (s32)*p, other = (s32)(code << 20) >> 20;
    if (op & 8)
        arg = 1u << (arg & 31);
    u32 results[] = {arg, (u32)old + arg, (u32)old | arg, (u32)old & ~arg, (u32)old ^ arg};
    if ((op &= 7) > 4 || compare > 5)
        return -ENOSYS;
    *p = results[op];
    /* EQ NE LT LE GT GE: the second half are opposites of LE and LT */
    int holds = compare < 2 ? (old == other) ^ (int)compare : compare < 4 ? old < other + (int)(compare & 1) : old > other - (int)(compare & 1);
    s64 done = futex_wake(addr, n, ~0u);
    return holds ? done + futex_wake(addr2, n2, ~0u) : done;
}

enum { WAIT = 0, WAKE = 1, REQUEUE = 3, CMP_REQUEUE = 4, WAKE_OP = 5, WAIT_BITSET = 9, WAKE_BITSET = 10 };
#define SERVED 0x63b                 /* bits of those; not the ones with priority inheritance: nobody has priorities here */
#define CLOCK_REALTIME_FLAG 256
#define PRIVATE_FLAG 128

s64 sys_futex(u64 addr, u64 op, u64 value, u64 timeout, u64 addr2, u64 value3)
{
    u32 command = (u32)op & ~(CLOCK_REALTIME_FLAG | PRIVATE_FLAG), bitset = command < WAIT_BITSET ? ~0u : (u32)value3;
    u64 deadline = NEVER;
    if (command > WAKE_BITSET || !(SERVED >> command & 1) || ((op & CLOCK_REALTIME_FLAG) && command != WAIT_BITSET))
        return -ENOSYS;
    if (addr % 4 || !bitset)
        return -EINVAL;
    if (!user_ok(addr, 4, 0))
        return -EFAULT;
    if (command == WAKE || command == WAKE_BITSET)
        return futex_wake(addr, (u32)value, bitset);
    if (command >= REQUEUE && command <= WAKE_OP) {
        if (addr2 % 4 || (command < WAKE_OP && (s32)(value | timeout) < 0))
            return -EINVAL;
        if (!user_ok(addr2, 4, 1))
            return -EFAULT;
        if (command == WAKE_OP)
            return futex_wake_op(addr, addr2, (u32)value, (u32)timeout, (u32)value3);
        if (command == CMP_REQUEUE && AT(volatile u32, addr) != (u32)value3)
            return -EAGAIN;
        return futex_pass(addr, (u32)value, ~0u, (u32)timeout, addr2);
    }
    if (timeout) {
        s64 r = read_timespec(timeout, &deadline);
        if (r)
            return r;
        if (command == WAIT)
            deadline = deadline_after(deadline);
        else if (op & CLOCK_REALTIME_FLAG)
            deadline = deadline > CTL->real_offset ? deadline - CTL->real_offset : 0;
    }
    return futex_wait(addr, (u32)value, bitset, deadline);
}

/* ---- robust lists: a thread dies with mutexes held ---- */

#define FUTEX_WAITERS 0x80000000u
#define FUTEX_OWNER_DIED 0x40000000u

static void robust_one(u64 word, struct thread *t)
{
    word &= ~1ul;                    /* (the lowest bit of an entry says that it has priority inheritance) */
    if ((word & 3) || !user_ok(word, 4, 1))
        return;
    u32 v = AT(u32, word);
    if ((v & ~(FUTEX_WAITERS | FUTEX_OWNER_DIED)) != t->tid)
        return;
    AT(u32, word) = (v & FUTEX_WAITERS) | FUTEX_OWNER_DIED;
    futex_wake(word, 1, ~0u);
}

void futex_robust(struct thread *t)
{
    struct { u64 entry, offset, pending; } h;
    u64 next;
    if (!t->robust_list || !user_ok(t->robust_list, sizeof h, 0))
        return;
    memcpy(&h, (void *)t->robust_list, sizeof h);
    for (int i = 0; i < 2048 && (h.entry & ~1ul) != t->robust_list && user_ok(h.entry & ~1ul, 8, 0); i++) {
        next = AT(u64, h.entry & ~1ul);
        if (h.entry != h.pending)
            robust_one(h.entry + h.offset, t);
        h.entry = next;
    }
    if (h.pending)
        robust_one(h.pending + h.offset, t);
}

s64 sys_set_robust_list(u64 head, u64 size)
{
    if (size != 24)
        return -EINVAL;
    current->robust_list = head;
    return 0;
}
