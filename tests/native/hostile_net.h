/* What the guests of test_hostile_network.py share: byte streams and flows by hand. */
#include "guest.h"
#define TX(i) ((volatile char *)(AFW_WINDOW + AFW_WINDOW_DATA + (i) * 2ull * AFW_RING))
#define RX(i) (TX(i) + AFW_RING)
#define LOCALHOST 0x0100007full
#define RESOLVER 0x0302000aull

static u64 s = 88172645463325252ull;
static inline u64 rnd(void) { s ^= s << 13; s ^= s >> 7; s ^= s << 17; return s; }
static inline uint32_t state(u64 i) { return __atomic_load_n(&WIN->flow[i].hstate, __ATOMIC_ACQUIRE); }

/* Lets the worker do something: at most a millisecond */
static inline void rest(void)
{
    CTL->deadline = now() + 1000000;
    park();
    CTL->wake = 0;
    CTL->cq_head = CTL->cq_tail;
}

/* n bytes from standard input; 0: it has ended */
static inline int take(volatile char *out, u64 n)
{
    volatile struct afw_flow *f = &WIN->flow[0];
    while (n) {
        if (f->rx_head == f->rx_tail) {
            if (f->hflags & AFW_HF_RX_EOF)
                return 0;
            rest();
            continue;
        }
        *out++ = RX(0)[f->rx_tail % AFW_RING];
        f->rx_tail = f->rx_tail + 1;
        n--;
        if (!(f->rx_tail % 4096))
            call(AFW_OP_FLOW_KICK, 0, 0, 0, 0, 0, 0);
    }
    call(AFW_OP_FLOW_KICK, 0, 0, 0, 0, 0, 0);
    return 1;
}
static inline u64 take_number(void)
{
    uint32_t n = 0;
    return take((volatile char *)&n, 4) ? n : 0;
}

static inline int64_t begin(u64 i, u64 kind, u64 address, u64 port)
{
    WIN->flow[i].tx_head = WIN->flow[i].rx_tail = WIN->flow[i].gflags = 0;
    return call(AFW_OP_FLOW_OPEN, i, kind, 2, address, 0, port);
}
static inline void touch(u64 i) { call(AFW_OP_FLOW_KICK, i, 0, 0, 0, 0, 0); }
static inline void end(u64 i)
{
    WIN->flow[i].gflags |= AFW_G_TX_EOF | AFW_G_CLOSED | AFW_G_RX_OFF;
    touch(i);
}
static inline void open_tcp(u64 i, u64 address, u64 port)
{
    while (state(i) != AFW_H_FREE)
        rest();
    CHECK(begin(i, AFW_KIND_TCP, address, port) == 0);
    while (state(i) == AFW_H_OPENING)
        rest();
}
/* As much as fits at once; -> bytes */
static inline u64 put(u64 i, const volatile char *data, u64 n)
{
    volatile struct afw_flow *f = &WIN->flow[i];
    uint32_t head = f->tx_head, room = AFW_RING - (head - f->tx_tail);
    n = n < room ? n : room;
    for (u64 k = 0; k < n; k++)
        TX(i)[(head + k) % AFW_RING] = data[k];
    __atomic_store_n(&f->tx_head, (uint32_t)(head + n), __ATOMIC_RELEASE);
    return n;
}
