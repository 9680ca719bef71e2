/* The worker's end of the byte rings in a VM's I/O window. The guest can write all of it at any time. */
#include <errno.h>
#include <string.h>
#include "internal.h"

/* The guest looks at a full ring only when it wants to write; it was told to look again if reading began above this. */
#define TELL_ABOVE (AFW_RING / 4)

static void ready(struct afw_worker *w, struct flow_view *v, uint32_t vm, uint32_t flow)
{
    __atomic_fetch_or(&v->window->ready[flow / 64], 1ull << flow % 64, __ATOMIC_SEQ_CST);
    w->dirty |= 1ull << vm;
}

static void ring_get(const uint8_t *ring, uint32_t at, void *out, uint32_t n)
{
    at %= AFW_RING;
    uint32_t first = n < AFW_RING - at ? n : AFW_RING - at;
    memcpy(out, ring + at, first);
    memcpy((uint8_t *)out + first, ring, n - first);
}

static void ring_put(uint8_t *ring, uint32_t at, const void *data, uint32_t n)
{
    at %= AFW_RING;
    uint32_t first = n < AFW_RING - at ? n : AFW_RING - at;
    memcpy(ring + at, data, first);
    memcpy(ring, (const uint8_t *)data + first, n - first);
}

void afw_flow_accept(struct afw_worker *w, uint32_t vm, uint32_t flow)
{
    struct flow_view v;
    if (!flow_at(w, vm, flow, &v))
        return;
    *v.own = (struct flow_own){0};
    v.shared->rx_head = v.shared->tx_tail = v.shared->hflags = 0;
}

void afw_flow_state(struct afw_worker *w, uint32_t vm, uint32_t flow, uint32_t hstate, int32_t error, uint32_t local_port)
{
    struct flow_view v;
    if (!flow_at(w, vm, flow, &v))
        return;
    v.shared->error = error;
    v.shared->local_port = local_port;
    store_release(&v.shared->hstate, hstate);
    ready(w, &v, vm, flow);
}

void afw_flow_flags(struct afw_worker *w, uint32_t vm, uint32_t flow, uint32_t hflags)
{
    struct flow_view v;
    if (!flow_at(w, vm, flow, &v))
        return;
    if (hflags & ~v.own->hflags & AFW_HF_RESET)
        v.shared->error = ECONNRESET;            /* after afw_flow_reset() its errno stays */
    v.own->hflags |= hflags;
    store_release(&v.shared->hflags, v.own->hflags);
    ready(w, &v, vm, flow);
}

void afw_flow_reset(struct afw_worker *w, uint32_t vm, uint32_t flow, int32_t error)
{
    struct flow_view v;
    if (!flow_at(w, vm, flow, &v))
        return;
    v.own->hflags |= AFW_HF_RESET;
    v.shared->error = error;
    store_release(&v.shared->hflags, v.own->hflags);
    ready(w, &v, vm, flow);
}

void afw_flow_free(struct afw_worker *w, uint32_t vm, uint32_t flow)
{
    struct flow_view v;
    if (!flow_at(w, vm, flow, &v))
        return;
    *v.own = (struct flow_own){0};
    v.shared->rx_head = v.shared->tx_tail = v.shared->hflags = v.shared->local_port = 0;
    v.shared->error = 0;
    store_release(&v.shared->hstate, AFW_H_FREE);
    ready(w, &v, vm, flow);
}

uint32_t afw_flow_gflags(struct afw_worker *w, uint32_t vm, uint32_t flow)
{
    struct flow_view v;
    return flow_at(w, vm, flow, &v) ? load_acquire(&v.shared->gflags) : AFW_G_CLOSED;
}

int64_t afw_flow_pending(struct afw_worker *w, uint32_t vm, uint32_t flow)
{
    struct flow_view v;
    if (!flow_at(w, vm, flow, &v))
        return -EINVAL;
    uint32_t n = load_acquire(&v.shared->tx_head) - v.own->tx_tail;
    return n <= AFW_RING ? (int64_t)n : -EPROTO;
}

int64_t afw_flow_unread(struct afw_worker *w, uint32_t vm, uint32_t flow)
{
    struct flow_view v;
    if (!flow_at(w, vm, flow, &v))
        return -EINVAL;
    uint32_t n = v.own->rx_head - load_acquire(&v.shared->rx_tail);
    return n <= AFW_RING ? (int64_t)n : -EPROTO;
}

/* Bytes to read; flags first: what was produced before the guest set an end flag is then seen too. */
static int64_t readable(struct flow_view *v)
{
    uint32_t gflags = load_acquire(&v->shared->gflags);
    uint32_t n = load_acquire(&v->shared->tx_head) - v->own->tx_tail;
    if (n > AFW_RING)
        return -EPROTO;
    if (!n)
        return gflags & (AFW_G_TX_EOF | AFW_G_CLOSED) ? -ENODATA : -EAGAIN;
    return n;
}

static void took(struct afw_worker *w, struct flow_view *v, uint32_t vm, uint32_t flow, uint32_t n, int tell)
{
    v->own->tx_tail += n;
    store_release(&v->shared->tx_tail, v->own->tx_tail);
    if (tell)
        ready(w, v, vm, flow);
}

int64_t afw_flow_read(struct afw_worker *w, uint32_t vm, uint32_t flow, uint8_t *out, uint64_t room)
{
    struct flow_view v;
    if (!flow_at(w, vm, flow, &v))
        return -EINVAL;
    int64_t n = readable(&v);
    if (n <= 0)
        return n;
    int tell = n > TELL_ABOVE;
    if ((uint64_t)n > room)
        n = (int64_t)room;
    ring_get(v.tx, v.own->tx_tail, out, (uint32_t)n);
    took(w, &v, vm, flow, (uint32_t)n, tell);
    return n;
}

void afw_flow_discard(struct afw_worker *w, uint32_t vm, uint32_t flow)
{
    struct flow_view v;
    if (!flow_at(w, vm, flow, &v))
        return;
    uint32_t n = load_acquire(&v.shared->tx_head) - v.own->tx_tail;
    took(w, &v, vm, flow, n, 1); /* whatever n is: the guest's own claim becomes our index, and nothing is read */
}

/* Room to write, or -EPIPE, -EPROTO. */
static int64_t writable(struct flow_view *v)
{
    if (load_acquire(&v->shared->gflags) & (AFW_G_CLOSED | AFW_G_RX_OFF))
        return -EPIPE;
    uint32_t used = v->own->rx_head - load_acquire(&v->shared->rx_tail);
    return used <= AFW_RING ? (int64_t)(AFW_RING - used) : -EPROTO;
}

static void gave(struct afw_worker *w, struct flow_view *v, uint32_t vm, uint32_t flow, uint32_t n)
{
    v->own->rx_head += n;
    store_release(&v->shared->rx_head, v->own->rx_head);
    ready(w, v, vm, flow);
}

int64_t afw_flow_write(struct afw_worker *w, uint32_t vm, uint32_t flow, const uint8_t *data, uint64_t size)
{
    struct flow_view v;
    if (!flow_at(w, vm, flow, &v))
        return -EINVAL;
    int64_t n = writable(&v);
    if (n < 0)
        return n;
    if ((uint64_t)n > size)
        n = (int64_t)size;
    if (!n)
        return size ? -EAGAIN : 0;
    ring_put(v.rx, v.own->rx_head, data, (uint32_t)n);
    gave(w, &v, vm, flow, (uint32_t)n);
    return n;
}

int64_t afw_flow_read_datagram(struct afw_worker *w, uint32_t vm, uint32_t flow, struct afw_dgram *head, uint8_t *out)
{
    struct flow_view v;
    if (!flow_at(w, vm, flow, &v))
        return -EINVAL;
    int64_t n = readable(&v);
    if (n <= 0)
        return n;
    if (n < (int64_t)sizeof *head)
        return -EPROTO; /* a datagram is published whole */
    ring_get(v.tx, v.own->tx_tail, head, sizeof *head);
    if (sizeof *head + head->len > (uint64_t)n || (head->family != 2 && head->family != 10))
        return -EPROTO;
    ring_get(v.tx, v.own->tx_tail + (uint32_t)sizeof *head, out, head->len);
    took(w, &v, vm, flow, (uint32_t)sizeof *head + head->len, 1); /* a large one may wait for any amount of room */
    return head->len;
}

int64_t afw_flow_write_datagram(struct afw_worker *w, uint32_t vm, uint32_t flow, const struct afw_dgram *head, const uint8_t *data)
{
    struct flow_view v;
    if (!flow_at(w, vm, flow, &v))
        return -EINVAL;
    uint32_t size = (uint32_t)sizeof *head + head->len;
    if (size > AFW_RING)
        return -EMSGSIZE;
    int64_t n = writable(&v);
    if (n < 0)
        return n;
    if (n < size)
        return -EAGAIN;
    ring_put(v.rx, v.own->rx_head, head, sizeof *head);
    ring_put(v.rx, v.own->rx_head + (uint32_t)sizeof *head, data, head->len);
    gave(w, &v, vm, flow, size);
    return 1;
}
