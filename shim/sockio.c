/* What sockets send and receive; their poll. */
#include "io.h"

/* ---- datagrams: frames of struct afw_dgram + payload; between unix sockets with the sender's name (h.port bytes) before that ---- */
struct frame {
    struct afw_dgram h;
    u8 name[sizeof(struct addr)];
};

/* The frame to read next: its chan and its head, or 0. Errors on the way to it become the socket's, if it is connected (as Linux
 * has it, others are not told). */
static struct chan *next_frame(struct sock *s, struct afw_dgram *h)
{
    for (;;) {
        struct chan *c = s->s.rx;
        if (!chan_used(c)) {
            files_changed++;         /* as chan_eof() */
            c = s->frx;
        }
        if (!c || chan_used(c) < FRAME)
            return 0;
        chan_raw(c, h, FRAME, 1);
        h->len = min32(h->len, chan_used(c) - FRAME);
        if (c != s->frx || !h->error)
            return c;
        chan_consume(c, FRAME + h->len);
        if (s->state == S_CONNECTED && h->error < 4096)
            s->error = h->error;
    }
}

/* -> bytes, or the frame's length with MSG_TRUNC */
static s64 dgram_recv(struct sock *s, struct io *io, u32 msg, struct addr *from, u32 *out_flags)
{
    u64 deadline = sock_deadline(s, SO_RCVTIMEO);
    struct frame f;
    struct chan *c;
    from->len = 0;
    while (!(c = next_frame(s, &f.h)) || (s->error && s->type == SOCK_DGRAM)) {
        sock_error(s);
        if (s->type == SOCK_DGRAM ? s->shut & 1 && !LATER(s) && !(msg & MSG_DONTWAIT) : stream_eof(&s->s))
            return 0;
        file_wait(s, msg, deadline);
    }
    u32 n = min64(f.h.len, io->left), head = FRAME;
    from->port = f.h.port;
    addr_set(from, f.h.family != AF_INET6, f.h.addr);
    if (s->domain == AF_UNIX) {
        head += from->len = f.h.port;
        chan_raw(c, &f, head, 1);
        memcpy(from->b, f.name, from->len);
    }
    pass_receive(c, io, head + f.h.len, msg);
    chan_copy(c, *c->tail + head, io, n, 1);
    if (!(msg & MSG_PEEK))
        chan_consume(c, head + f.h.len);
    if (n < f.h.len)
        *out_flags = MSG_TRUNC;
    return msg & MSG_TRUNC ? f.h.len : n;
}

/* The chan for a datagram to `to` (0: the peer); 0: it gets lost. *show: the address it carries. */
static struct chan *receiver(struct sock *s, struct addr *to, struct addr *show)
{
    if (s->s.tx)
        return s->s.tx;
    if (!to) {
        if (s->state != S_CONNECTED)
            fail(s->domain == AF_UNIX ? -ENOTCONN : -EDESTADDRREQ);
        to = &s->peer;
    }
    if (s->domain == AF_UNIX)
        return sock_listener(s, to)->s.rx;
    sock_autobind(s);
    if (!addr_local(to)) {
        *show = *to;
        if (!s->ftx)
            flow_open(s, &s->frx, AFW_KIND_UDP, to);
        return s->ftx;
    }
    struct sock *t = sock_find(s, to);
    sock_source(s, to, show);
    if (t && t->state == S_CONNECTED && t->peer.port != show->port)
        return 0;                    /* it hears its peer only */
    if (t)
        return t->s.rx;
    if (s->state == S_CONNECTED) {
        s->error = ECONNREFUSED;     /* as the ICMP message would say */
        file_notify(s, ALL_EVENTS);
    }
    return 0;
}

static s64 dgram_send(struct sock *s, struct io *io, u32 msg, struct addr *to)
{
    struct frame f = {.h.len = io->left};
    struct addr show = {0};
    u64 n = io->left, deadline = sock_deadline(s, SO_SNDTIMEO), name = s->domain == AF_UNIX ? s->local.len : 0;
    struct chan *c;
    if (n > 65507 - name)
        return -EMSGSIZE;
    if (s->shut & 2)
        return -EPIPE;
    for (;;) {
        struct afw_dgram unread;
        next_frame(s, &unread);
        sock_error(s);
        c = receiver(s, to, &show);
        if (c && c->dead)
            return s->type == SOCK_DGRAM && !c->reader ? -ECONNREFUSED : -EPIPE;
        if (c && chan_room(c) >= FRAME + name + n)
            break;
        if (!c || (c->writer != &s->s.f && s->domain != AF_UNIX))
            return n;                /* UDP: lost */
        file_wait_for(c->reader, s, msg, deadline);
    }
    u32 size;
    void *ip = addr_ip(&show, &size);
    f.h.port = show.port + name;     /* one of them is 0 */
    f.h.family = size == 4 ? AF_INET : AF_INET6;
    memcpy(f.h.addr, ip, size);
    memcpy(f.name, s->local.b, name);
    name += FRAME;
    chan_fit(c, name + n);
    chan_raw(c, &f, name, 0);
    chan_copy(c, *c->head + name, io, n, 0);
    if (io->message)
        pass_send(c, io);
    chan_produce(c, name + n);
    return n;
}

/* ---- streams ---- */
/* Waits for a connect under way; not connected: 0. */
static int connected(struct sock *s, u32 msg, u32 name)
{
    u64 deadline = sock_deadline(s, name);
    while (sock_progress(s), s->state == S_CONNECTING)
        file_wait(s, msg, deadline);
    if (s->state == S_CONNECTED)
        return 1;
    sock_error(s);
    return 0;
}

static s64 sock_recv(struct sock *s, struct io *io, u32 msg, struct addr *from, u32 *out_flags)
{
    *out_flags = 0;
    if (msg & MSG_ERRQUEUE)
        fail(-EAGAIN);
    if (msg & MSG_OOB && s->type == SOCK_STREAM)
        fail(-EINVAL);
    if (s->type != SOCK_DGRAM && !connected(s, msg, SO_RCVTIMEO)) {
        if (s->shut)                 /* refused */
            return 0;
        fail(s->domain == AF_UNIX && s->type == SOCK_STREAM ? -EINVAL : -ENOTCONN);
    }
    if (s->type != SOCK_STREAM)
        return dgram_recv(s, io, msg, from, out_flags);
    return chan_read(&s->s.f, io, msg, 0);
}

static s64 sock_send(struct sock *s, struct io *io, u32 msg, struct addr *to)
{
    if (s->type != SOCK_DGRAM && !connected(s, msg, SO_SNDTIMEO)) {
        if (s->domain == AF_UNIX)
            fail(-ENOTCONN);
        broken_pipe(msg);
    }
    if (s->type != SOCK_STREAM)
        return dgram_send(s, io, msg, to);
    return chan_write(&s->s.f, io, msg, 0);
}

static s64 sock_read(struct file *f, struct io *io, u32 msg, s64 pos UNUSED)
{
    struct addr from;
    u32 flags;
    return io->left ? sock_recv((struct sock *)f, io, msg, &from, &flags) : 0;
}

static s64 sock_write(struct file *f, struct io *io, u32 msg, s64 pos UNUSED)
{
    return sock_send((struct sock *)f, io, msg, 0);
}

static u32 sock_poll(struct file *f)
{
    struct sock *s = (struct sock *)f;
    struct chan *rx = s->s.rx, *tx = s->s.tx;
    struct afw_dgram h;
    sock_progress(s);
    u32 m = s->error ? POLLERR : 0;
    if (s->state == S_CONNECTING)
        return 0;
    if (s->state == S_LISTEN)
        return s->queue ? POLLIN | POLLRDNORM : 0;
    if (s->shut & 1)
        m |= POLLIN | POLLRDNORM | POLLRDHUP;
    if (s->type == SOCK_DGRAM) {
        tx = tx ? tx : s->ftx;
        m |= (s->shut & 1) << 4 & s->shut << 3;      /* POLLHUP: both halves */
        if (next_frame(s, &h))
            m |= POLLIN | POLLRDNORM;
        if (s->error)                /* it may have come on the way to that frame */
            m |= POLLERR;
        if (!tx || tx->dead || chan_room(tx) >= 0x4000)
            m |= POLLOUT | POLLWRNORM;
        return m;
    }
    if (s->state == S_NEW)
        return m | POLLOUT | POLLWRNORM | POLLHUP;
    if (stream_eof(&s->s))
        m |= POLLIN | POLLRDNORM | POLLRDHUP;
    if (chan_used(rx))
        m |= POLLIN | POLLRDNORM;
    if (chan_broken(tx) || chan_room(tx) >= PIPE_BUF)
        m |= POLLOUT | POLLWRNORM;
    if (stream_eof(&s->s) && (tx->eof || (chan_broken(tx) && (tx->flow || s->domain == AF_UNIX))))
        m |= POLLHUP;
    return m;
}

const struct ops sock_ops = {
    .size = sizeof(struct sock), .mode = S_IFSOCK | 0777, .read = sock_read, .write = sock_write, .poll = sock_poll, .ioctl = chan_ioctl,
    .close = sock_close,
};

/* ---- calls ---- */
/* recvfrom and recvmsg show a name for datagrams; streams have none. */
static void name_out(struct sock *s, const struct addr *from, u64 user, u64 user_len)
{
    int none = 0;
    if (s->type == SOCK_DGRAM && (s->domain != AF_UNIX || from->len))
        addr_put(s->domain, from, user, user_len);
    else if (user)
        copy_out(user_len, &none, sizeof none);
}

static s64 send_to(struct sock *s, struct io *io, u32 msg, u64 name, u64 len)
{
    struct addr to;
    if (!name || s->type != SOCK_DGRAM)
        return sock_send(s, io, msg, 0);
    addr_get(s->domain, name, len, &to);
    return sock_send(s, io, msg, &to);
}
SK(sendto)
{
    struct io io;
    io_buf(&io, b, c);
    return send_to(s, &io, d, e, f);
}
static s64 send_message(struct sock *s, u64 user, u32 msg, u64 many)
{
    const struct msghdr *m = user_at(user, sizeof *m, 0);
    struct io io;
    io_vec(&io, (u64)m->msg_iov, m->msg_iovlen);
    if (m->msg_controllen && s->domain == AF_UNIX)
        io.message = user;
    io.many = many;
    return send_to(s, &io, msg, m->msg_namelen ? (u64)m->msg_name : 0, m->msg_namelen);
}
SK(sendmsg) { return send_message(s, b, c, 0); }
/* One message after the other: n struct mmsghdr at user */
static s64 many(struct sock *s, u64 user, u32 n, u32 msg, s64 (*one)(struct sock *, u64, u32, u64))
{
    for (u32 i = 0; i < n;) {
        s64 r = one(s, user, msg, user);
        if (r < 0)
            fail(r);
        ((struct mmsghdr *)user_at(user, sizeof(struct mmsghdr), 1))->msg_len = r;
        user += sizeof(struct mmsghdr);
        PROGRESS = ++i;
        if (msg & MSG_WAITFORONE)
            msg |= MSG_DONTWAIT;
    }
    return n;
}
SK(sendmmsg) { return many(s, b, c, d & ~MSG_WAITFORONE, send_message); }

SK(recvfrom)
{
    struct addr from;
    struct io io;
    u32 flags;
    io_buf(&io, b, c);
    s64 r = sock_recv(s, &io, d, &from, &flags);
    name_out(s, &from, e, f);
    return r;
}
static s64 receive_message(struct sock *s, u64 user, u32 msg, u64 many)
{
    struct addr from;
    struct msghdr *m = user_at(user, sizeof *m, 1);
    struct io io;
    u32 flags;
    io_vec(&io, (u64)m->msg_iov, m->msg_iovlen);
    io.message = user;
    io.many = many;
    s64 r = sock_recv(s, &io, msg, &from, &flags);
    m = user_at(user, sizeof *m, 1);
    m->msg_controllen = io.control;
    m->msg_flags = flags | io.flags;
    name_out(s, &from, (u64)m->msg_name, (u64)&m->msg_namelen);
    return r;
}
SK(recvmsg) { return receive_message(s, b, c, 0); }
/* recvmmsg()'s time-out is looked at between messages only, in Linux too: it is left out */
SK(recvmmsg) { return many(s, b, c, d, receive_message); }
