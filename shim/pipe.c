/* Byte streams: the chan (one direction), and read, write and poll over a pair of them for pipes, sockets and stdio. */
#include "io.h"
#include <sys/ioctl.h>

struct chan *chan_new(void *reader, void *writer)
{
    struct chan *c = alloc(sizeof *c);
    c->head = &c->own[0];
    c->tail = &c->own[1];
    c->reader = reader;
    c->writer = writer;
    c->limit = CHAN_MAX;
    return c;
}

/* One side closes. */
static void part(struct chan *c, struct file *f)
{
    if (!c)
        return;
    if (c->reader == f) {
        c->dead = 1;
        while (c->passed)            /* one of them may be c's writer */
            pass_drop(c);
        c->reader = 0;
    } else {
        c->writer = 0;
        c->eof = 1;
    }
    file_notify(c->writer, ALL_EVENTS);
    file_notify(c->reader, ALL_EVENTS);
    if (!c->reader && !c->writer) {
        kfree(c->base);
        kfree(c);
    }
}

u32 chan_used(struct chan *c)
{
    u32 head = __atomic_load_n(c->head, __ATOMIC_ACQUIRE);
    return min32(head - __atomic_load_n(c->tail, __ATOMIC_ACQUIRE), c->size);
}

u32 chan_room(struct chan *c) { return c->limit - chan_used(c); }

static u32 hflags(struct chan *c)
{
    return c->flow ? __atomic_load_n(&c->flow->hflags, __ATOMIC_ACQUIRE) : 0;
}

/* Who reads or polls asks here first. What comes from outside may tell of changes to files. */
int chan_eof(struct chan *c)
{
    files_changed += c->flow != 0;
    return c->eof || hflags(c);
}
int chan_broken(struct chan *c) { return c->dead || c->eof || hflags(c) & AFW_HF_RESET; }

void chan_reset(struct chan *c, int error)
{
    struct sock *s = (struct sock *)c->writer;
    if (s)
        s->error = error;
    c->eof = 1;
    file_notify(s, ALL_EVENTS);
}

int stream_eof(struct stream *s) { return chan_eof(s->rx) || (s->sock && s->sock->shut & 1); }

void chan_fit(struct chan *c, u32 more)
{
    u32 size = c->size ? c->size : 512, used = chan_used(c);
    if (used + more <= c->size)
        return;
    while (size < used + more)
        size *= 2;
    u8 *base = alloc(size);
    chan_raw(c, base, used, 1);
    kfree(c->base);
    c->base = base;
    c->size = size;
    *c->tail = 0;
    *c->head = used;
}

/* n bytes between io and the ring's free-running position `at`; indices stay. */
void chan_copy(struct chan *c, u32 at, struct io *io, u32 n, int out)
{
    u32 i = at & (c->size - 1), first = min32(n, c->size - i);
    io_copy(io, c->base + i, first, out);
    io_copy(io, c->base, n - first, out);
}

void chan_raw(struct chan *c, void *p, u32 n, int out)
{
    struct io io;
    io_kernel(&io, p, n);
    chan_copy(c, out ? *c->tail : *c->head, &io, n, out);
}

void chan_consume(struct chan *c, u32 n)
{
    u32 room = chan_room(c);
    __atomic_store_n(c->tail, *c->tail + n, __ATOMIC_RELEASE);
    if (c->flow) {
        if (c->frames || room <= CHAN_MAX / 2)       /* the worker may have stopped for want of room */
            flow_kick(c->flow);
    } else if (c->frames || room < PIPE_BUF) {
        file_notify(c->writer, POLLOUT);
        file_notify(c->reader, 0);   /* who sends datagrams waits for the reader */
    }
}

void chan_produce(struct chan *c, u32 n)
{
    __atomic_store_n(c->head, *c->head + n, __ATOMIC_RELEASE);
    if (c->flow)
        flow_kick(c->flow);
    else
        file_notify(c->reader, POLLIN);
}

/* The error a broken stream has to tell, once. Pipes and stdio: EPIPE and SIGPIPE is all there is */
static void tell(struct stream *s)
{
    if (!s->sock)
        return;
    if (!s->rx->told && hflags(s->rx) & AFW_HF_RESET) {
        s->rx->told = 1;
        s->sock->error = flow_error(s->rx->flow, ECONNRESET);
    }
    sock_error(s->sock);
}

void broken_pipe(u32 msg)
{
    if (!(msg & MSG_NOSIGNAL))
        signal_send(current, SIGPIPE, SI_USER, 0);
    fail(-EPIPE);
}

/* n bytes more were moved, after `done`: -> all. Of several messages one counts as soon as it has any. */
static s64 progress(struct io *io, s64 done, u64 n)
{
    s64 all = done + n;
    if (io->many) {
        ((struct mmsghdr *)user_at(io->many, sizeof(struct mmsghdr), 1))->msg_len = all;
        n = !done;
    }
    PROGRESS += n;
    return all;
}

s64 chan_read(struct file *f, struct io *io, u32 msg, s64 pos UNUSED)
{
    struct stream *s = STREAM(f);
    struct chan *c = s->rx;
    u64 deadline = sock_deadline(s->sock, SO_RCVTIMEO);
    s64 done = 0;
    if (!s->sock && !io->left)
        return 0;
    do {
        int eof = stream_eof(s);     /* before the bytes: what came ahead of the end is read first */
        u32 used = chan_used(c), n = min64(used, io->left);
        if (used) {
            n = pass_receive(c, io, n, msg);
            chan_copy(c, *c->tail, io, n, 1);
            if (msg & MSG_PEEK)
                return n;
            chan_consume(c, n);
            done = progress(io, done, n);
            if (!(msg & MSG_WAITALL))
                break;
        } else {
            if (!(eof && s->sock && s->sock->error == EPIPE))        /* that is for who writes */
                tell(s);
            if (eof)
                break;
            file_wait(f, msg, deadline);
        }
    } while (io->left);
    return done;
}

s64 chan_write(struct file *f, struct io *io, u32 msg, s64 pos UNUSED)
{
    struct stream *s = STREAM(f);
    struct chan *c = s->tx;
    u64 deadline = sock_deadline(s->sock, SO_SNDTIMEO);
    u32 least = s->sock || io->left > PIPE_BUF ? 1 : io->left;    /* pipes: a small write is whole */
    s64 done = 0;
    if (!s->sock && !io->left)
        return 0;
    do {
        u32 room = chan_room(c), n = min64(room, io->left);
        if (s->sock && s->sock->domain != AF_UNIX) {
            tell(s);
            if (c->dead && !c->eof) {
                chan_reset(c, EPIPE);        /* TCP: only the answer to these bytes says that nobody is there */
                return done + io->left;
            }
        }
        if (chan_broken(c))
            broken_pipe(msg);
        if (room >= least) {
            chan_fit(c, n);
            chan_copy(c, *c->head, io, n, 0);
            if (n && io->message)
                pass_send(c, io);
            chan_produce(c, n);
            done = progress(io, done, n);
        } else
            file_wait(f, msg, deadline);
    } while (io->left);
    return done;
}

s64 chan_ioctl(struct file *f, u64 cmd, u64 arg)
{
    struct stream *s = STREAM(f);
    struct chan *c = s->rx ? s->rx : s->tx;
    if (s->sock && s->sock->frx && !chan_used(c))
        c = s->sock->frx;
    u32 n = c ? chan_used(c) : 0;
    files_changed++;
    if (n && c->frames) {
        chan_raw(c, &n, 2, 1);       /* of the first one */
        n = (u16)n;
    }
    return cmd == FIONREAD ? copy_out(arg, &n, sizeof n) : -ENOTTY;
}

static u32 pipe_poll(struct file *f)
{
    struct stream *s = STREAM(f);
    u32 m = 0;
    if (s->rx)
        m = (chan_eof(s->rx) ? POLLHUP : 0) | (chan_used(s->rx) ? POLLIN | POLLRDNORM : 0);
    if (s->tx) {
        if (chan_broken(s->tx))
            m |= POLLERR | POLLOUT | POLLWRNORM;
        if (chan_room(s->tx) >= PIPE_BUF)
            m |= POLLOUT | POLLWRNORM;
    }
    return m;
}

s64 pipe_size(struct file *f, int set, u32 size)
{
    u32 n = PIPE_BUF;
    if (f->ops != &pipe_ops)
        return -EBADF;
    struct chan *c = STREAM(f)->rx ? STREAM(f)->rx : STREAM(f)->tx;
    if (set && !c->flow) {
        if ((int)size < 0)
            return -EINVAL;
        while (n < size)
            n *= 2;
        if (n > 1 << 20)
            return -EPERM;
        if (n < chan_used(c))
            return -EBUSY;
        c->limit = n;
        file_notify(c->writer, POLLOUT);
    }
    return c->limit;
}

void stream_close(struct file *f)
{
    struct stream *s = STREAM(f);
    struct chan *rx = s->rx, *tx = s->tx;
    if ((rx && rx->flow) || (tx && tx->flow)) {
        flow_leave(rx, tx);
        return;
    }
    if (s->sock && s->sock->type != SOCK_DGRAM && rx && chan_used(rx))
        chan_reset(rx, ECONNRESET);  /* bytes nobody will read: the other side is told */
    part(rx, f);
    part(tx, f);
}

const struct ops pipe_ops = {
    .size = sizeof(struct stream), .mode = S_IFIFO | 0600, .read = chan_read, .write = chan_write, .poll = pipe_poll,
    .ioctl = chan_ioctl, .close = stream_close,
};

PL(pipe2)
{
    ONLY(b, O_NONBLOCK | O_CLOEXEC | O_DIRECT);
    struct stream *r = file_new(&pipe_ops, b), *w = file_new(&pipe_ops, b | O_WRONLY);
    r->rx = w->tx = chan_new(r, w);
    return fd_pair(r, w, b, a);
}
PL(pipe) { return sys_pipe2(a, 0, 0, 0, 0, 0); }
