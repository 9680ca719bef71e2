/* Flows of the I/O window: streams with the worker (stdio, the job stream) and what sockets send outside. */
#include "io.h"

static struct file *owner[AFW_FLOWS];
static u32 posted[AFW_FLOWS];        /* SQ position after the newest FLOW_KICK: one is enough until the cell took it */
static struct waitq freed;

void flow_kick(volatile struct afw_flow *f)
{
    u32 i = f - WIN->flow;
    if ((int)(posted[i] - CTL->sq_head) > 0)
        return;
    ring_post(AFW_OP_FLOW_KICK, i, 0, 0, 0, 0, 0);
    posted[i] = CTL->sq_tail;
}

void flow_gflags(volatile struct afw_flow *f, u32 bits)
{
    __atomic_store_n(&f->gflags, f->gflags | bits, __ATOMIC_RELEASE);
    flow_kick(f);
}

int flow_error(volatile struct afw_flow *f, int otherwise)
{
    u32 e = f->error;
    return e - 1 < 4095 ? e : (u32)otherwise;
}

static void *flow_chan(u32 i, int transmit, void *f)
{
    struct chan *c = chan_new(f, f);
    c->flow = &WIN->flow[i];
    c->size = AFW_RING;
    c->base = (u8 *)WIN + AFW_WINDOW_DATA + (i * 2 + !transmit) * (u64)AFW_RING;
    c->head = transmit ? &c->flow->tx_head : &c->flow->rx_head;
    c->tail = transmit ? &c->flow->tx_tail : &c->flow->rx_tail;
    owner[i] = f;
    return c;
}

void flow_open(void *file, struct chan **both, u32 kind, const struct addr *to)
{
    u64 deadline = deadline_after(4000000000);
    const u64 *ip = to->ip;
    u32 i = AFW_FLOW_FIRST, closing = 0;
    while (owner[i] || __atomic_load_n(&WIN->flow[i].hstate, __ATOMIC_ACQUIRE) != AFW_H_FREE) {
        closing |= !owner[i];
        if (++i < AFW_FLOWS)
            continue;
        /* All taken. The worker frees closed ones soon, so that even a non-blocking connect() may wait for it. */
        int r = closing ? io_wait(&freed, deadline) : -EADDRNOTAVAIL;
        if (r)
            fail(r == -EINTR ? -ERESTARTSYS : -EADDRNOTAVAIL);
        i = AFW_FLOW_FIRST;
        closing = 0;
    }
    volatile struct afw_flow *f = &WIN->flow[i];
    f->tx_head = f->rx_tail = f->gflags = 0;
    f->kind = kind;
    s64 r = addr_v4(to) ? ring_call(AFW_OP_FLOW_OPEN, i, kind, AF_INET, ip[1] >> 32, 0, to->port)
                           : ring_call(AFW_OP_FLOW_OPEN, i, kind, AF_INET6, ip[0], ip[1], to->port);
    if (r < 0)
        fail(r);
    if (f->hstate == AFW_H_FREE)     /* it was another VM that asked: this one was forked meanwhile */
        fail(-ECONNRESET);
    both[0] = flow_chan(i, 0, file);
    both[1] = flow_chan(i, 1, file);
    both[0]->frames = kind == AFW_KIND_UDP;
}

void flow_leave(struct chan *rx, struct chan *tx)
{
    volatile struct afw_flow *f = (rx ? rx : tx)->flow;
    flow_gflags(f, AFW_G_TX_EOF | AFW_G_CLOSED | AFW_G_RX_OFF);
    owner[f - WIN->flow] = 0;
    kfree(rx);
    kfree(tx);
}

void flows_poll(void)
{
    timers_run();
    for (u32 w = 0; w < 2; w++) {
        if (!WIN->ready[w])
            continue;
        u64 bits = __atomic_exchange_n(&WIN->ready[w], 0, __ATOMIC_ACQ_REL);
        for (; bits; bits &= bits - 1) {
            u32 i = w * 64 + __builtin_ctzl(bits);
            file_notify(owner[i], ALL_EVENTS);
            if (!owner[i])
                wake_all(&freed);
        }
    }
}

static s64 stream(u32 i, u32 flags, u32 ways)
{
    struct stream *s = file_new(&pipe_ops, flags & ~O_APPEND);
    if (ways & 1)
        s->rx = flow_chan(i, 0, s);
    if (ways & 2)
        s->tx = flow_chan(i, 1, s);
    return fd_install(s, flags);
}

void io_init(void)
{
    for (u32 i = 0; i < 3; i++)
        stream(i, i ? O_WRONLY : O_RDONLY, i ? 2 : 1);
}

s64 job_open(u64 flags)
{
    struct file *f = owner[AFW_FLOW_JOB];
    if (f) {
        f->refs++;
        return fd_install(f, flags);
    }
    s64 r = ring_call(AFW_OP_READY, 0, 0, 0, 0, 0, 0);
    return r < 0 ? r : stream(AFW_FLOW_JOB, flags, 3);
}

/* For the core half's own messages: to the standard error stream if there is room, without waiting or leaving. */
void io_say(const char *text, size_t n)
{
    struct stream *s = STREAM(owner[AFW_FLOW_STDERR]);
    struct io io;
    if (s && chan_room(s->tx) >= n) {
        io_kernel(&io, (void *)text, n);
        chan_write(&s->f, &io, MSG_DONTWAIT | MSG_NOSIGNAL, 0);
    }
}

/* What a flow of another VM leaves: an end of file and a reset. */
static void cut(struct chan *c)
{
    c->flow = 0;
    c->writer = 0;                   /* reader is the socket, as in every flow's chan: it frees it alone */
    c->base = 0;
    c->size = 0;
    c->head = &c->own[0];
    c->tail = &c->own[1];
    c->eof = c->dead = 1;
}

void io_restored(void)
{
    files_changed++;
    for (u32 n = 0; n < fd_size && !CTL->forked; n++)
        if (peek(n))
            ring_void(peek(n));
    for (u32 i = AFW_FLOW_FIRST; i < AFW_FLOWS; i++) {
        struct sock *s = (struct sock *)owner[i];
        if (!s)
            continue;
        owner[i] = 0;
        if (s->frx) {                /* datagrams: the next one opens another */
            kfree(s->frx);
            kfree(s->ftx);
            s->frx = s->ftx = 0;
            s->error = ECONNRESET;   /* what it waits for does not come */
        } else {
            cut(s->s.rx);
            cut(s->s.tx);
            s->error = ECONNRESET;
            s->state = S_CONNECTED;
        }
        file_notify(s, ALL_EVENTS);
    }
    wake_all(&freed);
}
