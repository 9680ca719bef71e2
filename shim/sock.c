/* Sockets: making, naming and connecting them, inside the VM and over flows. What is sent and received: sockio.c. */
#include "io.h"
#include <netinet/in.h>

#define QUEUE_MAX 4096

static struct sock *bound;           /* all that have a name of their own */

void sock_error(struct sock *s)
{
    int e = s->error;
    s->error = 0;
    if (e)
        fail(-e);
}

static struct sock *sock_new(u32 domain, u32 type, u32 flags)
{
    struct sock *s = file_new(&sock_ops, (flags & O_NONBLOCK) | O_RDWR);
    s->s.sock = s;
    s->domain = domain;
    s->type = type;
    if (domain == AF_INET)
        addr_set(&s->local, 1, &s->backlog);         /* 0.0.0.0 */
    if (s->type == SOCK_DGRAM) {
        s->s.rx = chan_new(s, 0);
        s->s.rx->frames = 1;
    }
    return s;
}

/* The usual kinds are let through here; what Linux says of another, the host knows. */
static void check_kind(u64 domain, u64 type, u64 protocol)
{
    u32 plain = type & ~(u64)(SOCK_NONBLOCK | SOCK_CLOEXEC), usual = plain * (IPPROTO_UDP - IPPROTO_TCP) + 2 * IPPROTO_TCP - IPPROTO_UDP;
    if (plain - 1 < SOCK_DGRAM && (!protocol || (protocol == usual && domain != AF_UNIX)) && (domain == AF_UNIX || (domain & ~8ul) == AF_INET))
        return;
    s64 r = ring_call(AFW_OP_SOCKET, domain, type, protocol, 0, AFW_SOCKET_KIND, 0);
    if (r)
        fail(r);
}

PL(socket)
{
    check_kind(a, b, c);
    return fd_install(sock_new(a, b & 0xf, b), b);
}

/* Two fresh sockets become a connection. */
static void join(struct sock *s, struct sock *t)
{
    if (s->type != SOCK_DGRAM) {
        t->s.rx = chan_new(t, 0);
        s->s.rx = chan_new(s, 0);
        t->s.rx->frames = s->s.rx->frames = s->type == SOCK_SEQPACKET;
    }
    s->s.tx = t->s.rx;
    t->s.tx = s->s.rx;
    s->s.rx->writer = &t->s.f;
    t->s.rx->writer = &s->s.f;
    s->state = t->state = S_CONNECTED;
}

PL(socketpair)
{
    check_kind(a, b, c);
    if (a != AF_UNIX)
        return -EOPNOTSUPP;
    struct sock *s = sock_new(a, b & 0xf, b), *t = sock_new(a, b & 0xf, b);
    join(s, t);
    return fd_pair(s, t, b, d);
}

/* ---- names ---- */
/* Is this option on, for both of them? */
static int on(struct sock *s, struct sock *t, u64 key)
{
    struct opt *o = sock_opt(s, key), *p = sock_opt(t, key);
    return o && p && o->data[0] && p->data[0];
}

/* How well s, named so, fits what is sent to `to`: 0 not at all, 1 as IPv6's "any" that takes IPv4 too, 2 as "any", 3 exactly. A file in which
 * a unix socket lies is known by its number, wherever it is moved to. */
static int covers(struct sock *s, const struct addr *name, const struct addr *to)
{
    if (s->domain == AF_UNIX)
        return name->file == to->file && (to->file || (name->len == to->len && !memcmp(name->b, to->b, name->len)));
    if (!addr_any(name))
        return name->ip[0] == to->ip[0] && name->ip[1] == to->ip[1] ? 3 : 0;
    if (addr_v4(name) == addr_v4(to))
        return 2;
    return !addr_v4(name) && !on(s, s, OPT(IPPROTO_IPV6, IPV6_V6ONLY));
}

static int alike(struct sock *o, struct sock *s, const struct addr *a)
{
    return o->type == s->type && !((o->domain ^ s->domain) & AF_UNIX) && o->local.port == a->port;      /* AF_UNIX alone is odd */
}

/* The socket of from's kind that gets what is sent to a: of several that fit as well, the one fewer wait at, the newest first. */
struct sock *sock_find(struct sock *from, const struct addr *a)
{
    struct sock *best = 0;
    int most = 0;
    for (struct sock *o = bound; o; o = o->next)
        if (alike(o, from, a) && (o->type == SOCK_DGRAM || o->state == S_LISTEN)) {
            int fit = covers(o, &o->local, a) * 2 * QUEUE_MAX - o->queued;
            if (fit > most) {
                most = fit;
                best = o;
            }
        }
    return best;
}

/* Has somebody else this name? Both may have it by SO_REUSEPORT, or by SO_REUSEADDR while neither listens: socket(7) */
static int taken(struct sock *s, const struct addr *a)
{
    for (struct sock *o = bound; o; o = o->next)
        if (o != s && alike(o, s, a) && covers(s, a, &o->local) + covers(o, &o->local, a) &&
            !(o->state != S_LISTEN && on(s, o, OPT(SOL_SOCKET, SO_REUSEADDR))) && !on(s, o, OPT(SOL_SOCKET, SO_REUSEPORT)))
            return 1;
    return 0;
}

/* A name that nobody has. */
static void invent(struct sock *s, struct addr *a)
{
    static u16 next;
    if (!next)
        random_bytes(&next, sizeof next);
    do {
        if (s->domain == AF_UNIX) {
            a->len = 6;
            for (u32 i = 0; i < 5; i++)
                a->b[i + 1] = "0123456789abcdef"[next >> i * 3 & 15];
        } else
            a->port = next | 0x8000;
        next++;
    } while (taken(s, a));
}

static void bind_to(struct sock *s, struct addr *a)
{
    if (!(s->domain == AF_UNIX ? a->len : a->port))
        invent(s, a);
    else if (taken(s, a))
        fail(-EADDRINUSE);
    if (a->len && a->b[0]) {         /* a file stands for the name, as elsewhere */
        s64 r = ring_call(AFW_OP_MKNOD, (u64)a->b, a->len, AFW_SOCKET_NUMBER | S_IFSOCK | (0777 & ~CTL->umask), 0, AFW_CWD, 0);
        files_changed++;
        if (r < 0)
            fail(r == -EEXIST ? -EADDRINUSE : r);
        a->file = r;
    }
    s->local = *a;
    s->bound = 1;
    s->next = bound;
    bound = s;
}

void sock_autobind(struct sock *s)
{
    struct addr a = s->local;
    if (!s->bound && s->domain != AF_UNIX)
        bind_to(s, &a);
}

SK(bind)
{
    struct addr name;
    addr_get(s->domain, b, c, &name);
    if (s->bound || s->state != S_NEW)
        return -EINVAL;
    if (s->domain != AF_UNIX && !addr_local(&name))
        return -EADDRNOTAVAIL;
    bind_to(s, &name);
    return 0;
}

SK(getsockname)
{
    struct addr name;
    sock_progress(s);
    sock_source(s, &s->peer, &name);
    return addr_put(s->domain, s->state > S_LISTEN || s->shut ? &name : &s->local, b, c);
}

SK(getpeername)
{
    sock_progress(s);
    if (s->domain != AF_UNIX && s->s.tx && s->s.tx->eof && !s->s.tx->reader)
        return -ENOTCONN;            /* the connection is over */
    return s->state == S_CONNECTED ? addr_put(s->domain, &s->peer, b, c) : -ENOTCONN;
}

/* ---- connections ---- */
SK(listen)
{
    if (s->type == SOCK_DGRAM)
        return -EOPNOTSUPP;
    if (s->state > S_LISTEN || s->shut || (s->domain == AF_UNIX && !s->bound))
        return -EINVAL;
    sock_autobind(s);
    if (taken(s, &s->local))
        return -EADDRINUSE;
    s->state = S_LISTEN;
    s->backlog = min32(b, QUEUE_MAX);
    return 0;
}

SK(accept4)
{
    u64 deadline = sock_deadline(s, SO_RCVTIMEO);
    ONLY(d, SOCK_NONBLOCK | SOCK_CLOEXEC);
    while (s->state == S_LISTEN && !s->queue)
        file_wait(s, 0, deadline);
    if (s->state != S_LISTEN)
        return s->type == SOCK_DGRAM ? -EOPNOTSUPP : -EINVAL;
    struct sock *n = s->queue;
    addr_put(n->domain, &n->peer, b, c);
    s->queue = n->pending;
    s->queued--;
    file_notify(s, 0);               /* a connect() may wait for room */
    n->s.f.flags |= d & O_NONBLOCK;
    return fd_install(n, d);
}
SK(accept) { return sys_accept4(s, b, c, 0, 0, 0); }

struct sock *sock_listener(struct sock *s, struct addr *a)
{
    if (a->len && a->b[0] && !a->file) {         /* (a datagram socket's peer is who it was, whatever its name is now) */
        s64 r = ring_call(AFW_OP_ACCESS, (u64)a->b, a->len, AFW_SOCKET_NUMBER, 0, AFW_CWD, 0);
        if (r < 0)
            fail(r);
        a->file = r;
    }
    struct sock *l = sock_find(s, a);
    if (!l)
        fail(-ECONNREFUSED);
    return l;
}

/* A stream to somebody who listens in this VM. */
static void connect_here(struct sock *s, struct addr *a)
{
    struct sock *l, **end;
    for (;;) {
        l = sock_listener(s, a);
        if (l->queued <= l->backlog || (s->domain != AF_UNIX && LATER(s)))
            break;
        file_wait_for(l, s, 0, sock_deadline(s, SO_SNDTIMEO));
    }
    struct sock *n = sock_new(l->domain, l->type, 0);
    join(s, n);
    n->local = s->peer = *a;
    sock_source(s, a, &n->peer);
    for (end = &l->queue; *end; end = &(*end)->pending)
        ;
    *end = n;
    l->queued++;
    file_notify(l, POLLIN);
}

void sock_progress(struct sock *s)
{
    if (s->state != S_CONNECTING)
        return;
    volatile struct afw_flow *f = s->s.rx->flow;
    u32 state = __atomic_load_n(&f->hstate, __ATOMIC_ACQUIRE);
    if (state == AFW_H_OPEN) {
        s->state = S_CONNECTED;
        s->local.port = f->local_port;
    } else if (state != AFW_H_OPENING) {
        s->error = flow_error(f, ECONNREFUSED);
        s->state = S_NEW;
        s->shut = 3;
        flow_leave(s->s.rx, s->s.tx);
        s->s.rx = s->s.tx = 0;
    }
}

/* Of a connection that was refused, connect() tells the error, or that somebody else was told it; the next one begins anew. */
static void connect_error(struct sock *s)
{
    if (s->state == S_NEW && s->shut) {
        s->shut = 0;
        if (!s->error)
            s->error = ECONNABORTED;
    }
    sock_error(s);
}

static void connect_stream(struct sock *s, struct addr *a)
{
    u64 deadline = sock_deadline(s, SO_SNDTIMEO);
    sock_progress(s);
    connect_error(s);
    if (s->state == S_CONNECTING && LATER(s))
        fail(-EALREADY);
    if (s->state == S_NEW) {
        s->peer = *a;
        if (s->domain == AF_UNIX || addr_local(a)) {
            if (s->domain != AF_UNIX) {
                if (addr_any(a)) {   /* to "any" means to oneself */
                    if (addr_v4(a))
                        a->b[12] = 127;
                    a->b[15] = 1;
                }
                if (!s->local.port)
                    invent(s, &s->local);
            }
            int later = LATER(s) && s->domain != AF_UNIX;
            if (later && !sock_find(s, a)) {
                s->error = ECONNREFUSED;
                s->shut = 3;
            } else
                connect_here(s, a);
            if (later) {             /* done, but programs count on having to wait */
                file_notify(s, ALL_EVENTS);
                fail(-EINPROGRESS);
            }
            return;
        }
        flow_open(s, &s->s.rx, AFW_KIND_TCP, a);
        s->state = S_CONNECTING;
        if (LATER(s))
            fail(-EINPROGRESS);
    } else if (s->state != S_CONNECTING)
        fail(-EISCONN);
    while (sock_progress(s), s->state == S_CONNECTING)
        file_wait(s, 0, deadline);
    connect_error(s);
}

SK(connect)
{
    struct addr name;
    if (*(u16 *)user_at(b, 2, 0) == AF_UNSPEC && s->type == SOCK_DGRAM) {
        s->state = S_NEW;
        return 0;
    }
    addr_get(s->domain, b, c, &name);
    if (s->type != SOCK_DGRAM) {
        connect_stream(s, &name);
        return 0;
    }
    if (s->domain == AF_UNIX)
        sock_listener(s, &name);
    sock_autobind(s);
    s->peer = name;
    s->state = S_CONNECTED;
    return 0;
}

SK(shutdown)
{
    struct chan *rx = s->s.rx, *tx = s->s.tx;
    u32 how = b + 1;
    if (how - 1 > 2)
        return -EINVAL;
    if (s->state == S_LISTEN && how & 1)
        s->state = S_NEW;            /* accept() gives up */
    else {
        sock_progress(s);
        if (s->state != S_CONNECTED)
            return -ENOTCONN;
        s->shut |= how;
        if (how & 2 && tx) {
            tx->eof = 1;
            if (tx->flow)
                flow_gflags(tx->flow, AFW_G_TX_EOF);
            else
                file_notify(tx->reader, ALL_EVENTS);
        }
        if (how & 1) {
            if (rx->flow)
                flow_gflags(rx->flow, AFW_G_RX_OFF);
            else if (s->domain == AF_UNIX) {
                rx->dead = 1;
                file_notify(rx->writer, ALL_EVENTS);
            }
        }
    }
    file_notify(s, ALL_EVENTS);
    return 0;
}

/* ---- the end ---- */
void sock_close(struct file *f)
{
    struct sock *s = (struct sock *)f;
    struct sock **p = &bound;
    while (*p && *p != s)
        p = &(*p)->next;
    if (*p)
        *p = s->next;
    while (s->queue) {
        struct sock *n = s->queue;
        s->queue = n->pending;
        chan_reset(n->s.rx, ECONNRESET);
        fput(&n->s.f, 0);
    }
    if (s->frx)
        flow_leave(s->frx, s->ftx);
    struct opt *linger = sock_opt(s, OPT(SOL_SOCKET, SO_LINGER));
    if (linger && linger->data[0] == 1 && s->domain != AF_UNIX && s->s.rx && !s->s.rx->flow)
        chan_reset(s->s.rx, ECONNRESET);     /* on, for no time: what is under way is dropped, and the other side is told */
    while (s->opts) {
        struct opt *o = s->opts;
        s->opts = o->next;
        kfree(o);
    }
    stream_close(f);
}
