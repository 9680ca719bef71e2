/* poll, select and epoll. */
#include "io.h"
#include <sys/select.h>

int io_block(u64 deadline)
{
    u64 timer = timers_next;
    int r = block(min64(timer, deadline));
    if (r == -ETIMEDOUT && timer < deadline) {
        timers_run();
        r = 0;
    }
    return r;
}

int io_wait(struct waitq *q, u64 deadline)
{
    struct waiter w;
    waitq_add(q, &w);
    int r = io_block(deadline);
    waitq_del(&w);
    return r;
}

/* ---- poll and select ---- */
struct poller {
    struct waiter w;
    struct file *f;
};

static u32 look(struct file *f)
{
    return f->ops->poll ? f->ops->poll(f) : POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM;
}

/* w: a struct poller each */
static s64 poll_with(struct pollfd *p, u32 n, u64 deadline, struct poller *w)
{
    int r = 0;
    for (;;) {
        s64 found = 0;
        for (u32 i = 0; i < n; i++) {
            struct file *f = p[i].fd < 0 ? 0 : peek(p[i].fd);
            u32 m = p[i].fd < 0 ? 0 : POLLNVAL;
            if (f)
                m = look(f) & (p[i].events | POLLERR | POLLHUP);
            p[i].revents = m;
            found += m != 0;
            if ((w[i].f = f)) {
                f->refs++;
                waitq_add(&f->wq, &w[i].w);
            }
        }
        int sleep = !found && !r && deadline;
        if (sleep)
            r = io_block(deadline);
        for (u32 i = 0; i < n; i++)
            if (w[i].f) {
                waitq_del(&w[i].w);
                fput(w[i].f, 0);
            }
        if (!sleep)
            return found ? found : r == -EINTR ? r : 0;
    }
}

static s64 poll_all(struct pollfd *p, u32 n, u64 deadline)
{
    struct poller few[4], *w = few;
    if (n > 4)
        w = alloc(n * sizeof *w);
    s64 r = poll_with(p, n, deadline, w);
    if (w != few)
        kfree(w);
    return r;
}

static u64 timeout_ms(int ms)
{
    return ms < 0 ? NEVER : ms ? deadline_after(ms * 1000000ul) : 0;
}

/* A struct timespec or timeval at user as a deadline; 0: never */
static u64 timeout_at(u64 user, s64 (*get)(u64, u64 *))
{
    u64 ns;
    if (!user)
        return NEVER;
    s64 r = get(user, &ns);
    if (r)
        fail(r);
    return ns ? deadline_after(ns) : 0;
}

/* The mask for the time of the call; unmask() undoes it, after a signal it lets through (signal.c). */
static int mask(u64 user, u64 size, u64 *old)
{
    if (!user)
        return 0;
    if (size != 8)
        fail(-EINVAL);
    *old = signal_swap_mask(*(u64 *)user_at(user, 8, 0));
    return 1;
}
static s64 unmask(int was, u64 old, s64 r)
{
    if (was)
        signal_swap_mask(old);
    return r;
}

static s64 poll_user(u64 user, u64 n, u64 deadline)
{
    if (n > NOFILE)
        return -EINVAL;
    if (n && !user_ok(user, n * sizeof(struct pollfd), 1))
        return -EFAULT;
    return poll_all((struct pollfd *)user, n, deadline);
}
PL(poll) { return poll_user(a, b, timeout_ms(c)); }
PL(ppoll)
{
    u64 deadline = timeout_at(c, read_timespec), old;
    int m = mask(d, e, &old);
    return unmask(m, old, poll_user(a, b, deadline));
}

static s64 select_user(u64 n, u64 deadline, u64 *const *sets)
{
    static const u16 wants[3] = {POLLIN, POLLOUT, POLLPRI};
    static const u16 means[3] = {POLLIN | POLLHUP | POLLERR, POLLOUT | POLLERR, POLLPRI};
    u32 count = 0;
    s64 bits = 0;
    if ((int)n < 0)
        return -EINVAL;
    n = min64(n, FD_MAX);
    for (int s = 0; s < 3; s++)
        if (sets[s] && !user_ok((u64)sets[s], (n + 63) / 64 * 8, 1))
            return -EFAULT;
    struct pollfd *p = kalloc(n * sizeof *p + 8);
    if (!p)
        return -ENOMEM;
    for (u32 i = 0; i < n; i++) {
        for (int s = 0; s < 3; s++)
            if (sets[s] && sets[s][i / 64] >> i % 64 & 1)
                p[count].events |= wants[s];
        if (p[count].events)
            p[count++].fd = i;
    }
    s64 r = poll_all(p, count, deadline);
    if (r >= 0)
        for (int s = 0; s < 3; s++)
            for (u32 i = 0; sets[s] && i < count; i++) {
                if (p[i].revents & POLLNVAL)
                    r = -EBADF;
                else if (p[i].events & wants[s] && !(p[i].revents & means[s]))
                    sets[s][p[i].fd / 64] &= ~(1ul << p[i].fd % 64);
                else
                    bits += (p[i].events & wants[s]) != 0;
            }
    kfree(p);
    return r < 0 ? r : bits;
}
PL(select)
{
    u64 *sets[3] = {(u64 *)b, (u64 *)c, (u64 *)d};
    return select_user(a, timeout_at(e, read_timeval), sets);
}
PL(pselect6)
{
    u64 *sets[3] = {(u64 *)b, (u64 *)c, (u64 *)d};
    u64 old, deadline = timeout_at(e, read_timespec), *sig = f ? user_at(f, 16, 0) : 0;
    int m = sig ? mask(sig[0], sig[1], &old) : 0;
    return unmask(m, old, select_user(a, deadline, sets));
}

/* ---- epoll ---- */
struct epoll;
struct epitem {
    struct epitem *next;             /* of the same file */
    struct epitem *sibling;          /* of the same epoll */
    struct epitem *ready;            /* next in the ready list */
    struct epoll *ep;
    struct file *file;
    u64 data;
    int fd;
    u32 events;                      /* 0: ONESHOT, spent */
    int queued;
};
struct epoll {
    struct file f;
    struct epitem *all;
    struct epitem *ready, **ready_end;
    u32 deep;                        /* sets that were watched in each other below */
};

static void queue(struct epitem *it)
{
    it->queued = 1;
    it->ready = 0;
    *it->ep->ready_end = it;
    it->ep->ready_end = &it->ready;
}

static void mark(struct epitem *it)
{
    if (!it->queued)
        queue(it);
    file_notify(it->ep, POLLIN);
}

void epoll_mark(struct epitem *it, u32 events)
{
    events |= (events & (POLLIN | POLLOUT)) << 6;    /* POLLRDNORM, POLLWRNORM */
    for (; it; it = it->next)
        if (it->events & events)
            mark(it);
}

static u32 ready_events(struct epitem *it)
{
    return it->events ? look(it->file) & it->events : 0;
}

static void item_free(struct epitem *it)
{
    struct epitem **p;
    if (it->queued) {
        for (p = &it->ep->ready; *p != it; p = &(*p)->ready)
            ;
        *p = it->ready;
        if (!*p)
            it->ep->ready_end = p;
    }
    for (p = &it->file->items; *p != it; p = &(*p)->next)
        ;
    *p = it->next;
    for (p = &it->ep->all; *p != it; p = &(*p)->sibling)
        ;
    *p = it->sibling;
    kfree(it);
}

void epoll_forget(struct file *f)
{
    while (f->items)
        item_free(f->items);
}

static void epoll_close(struct file *f)
{
    struct epoll *ep = (void *)f;
    while (ep->all)
        item_free(ep->all);
}

/* Up to max events into user memory. */
static s64 harvest(struct epoll *ep, u64 user, u32 max)
{
    struct epitem *it = ep->ready;
    s64 n = 0;
    ep->ready = 0;                   /* what stays ready joins a new list, behind what was not reached */
    ep->ready_end = &ep->ready;
    while (it && n < max) {
        struct epitem *next = it->ready;
        struct epoll_event out = {ready_events(it), {.u64 = it->data}};
        it->queued = 0;
        if (out.events) {
            memcpy((void *)(user + n++ * sizeof out), &out, sizeof out);
            if (it->events & EPOLLONESHOT)
                it->events = 0;
            else if (!(it->events & EPOLLET))
                queue(it);
        }
        it = next;
    }
    if (it) {                        /* unreached ones go first */
        struct epitem *last = it;
        while (last->ready)
            last = last->ready;
        last->ready = ep->ready;
        if (!ep->ready)
            ep->ready_end = &last->ready;
        ep->ready = it;
    }
    return n;
}

static u32 epoll_poll(struct file *f)
{
    for (struct epitem *it = ((struct epoll *)f)->ready; it; it = it->ready)
        if (ready_events(it))
            return POLLIN | POLLRDNORM;
    return 0;
}

static const struct ops epoll_ops = {.size = sizeof(struct epoll), .mode = 0600, .poll = epoll_poll, .close = epoll_close};

PL(epoll_create1)
{
    ONLY(a, O_CLOEXEC);
    struct epoll *ep = file_new(&epoll_ops, O_RDWR);
    ep->ready_end = &ep->ready;
    return fd_install(ep, a);
}
PL(epoll_create) { return (int)a <= 0 ? -EINVAL : sys_epoll_create1(0, 0, 0, 0, 0, 0); }

FD(epoll_ctl)
{
    struct epoll *ep = (void *)o;
    struct file *t = need(c);
    struct epoll_event *ev = 0;
    struct epitem *it = t->items;
    if (b != EPOLL_CTL_DEL)
        ev = user_at(d, sizeof *ev, 0);
    if (!t->ops->poll)
        return -EPERM;
    if (o == t || o->ops != &epoll_ops || b - 1 > 2)
        return -EINVAL;
    while (it && !(it->ep == ep && it->fd == (int)c))
        it = it->next;
    if (b != EPOLL_CTL_ADD && !it)
        return -ENOENT;
    if (b == EPOLL_CTL_DEL) {
        item_free(it);
        return 0;
    }
    if (b == EPOLL_CTL_ADD) {
        if (it)
            return -EEXIST;
        if (t->ops == &epoll_ops) {  /* a watched one watches no others, so there is no circle, and five are in each other at most */
            u32 deep = ((struct epoll *)t)->deep + 1;
            if (o->items || deep > 4)
                return -ELOOP;
            if (ep->deep < deep)
                ep->deep = deep;
        }
        it = alloc(sizeof *it);
        it->ep = ep;
        it->file = t;
        it->fd = c;
        it->next = t->items;
        t->items = it;
        it->sibling = ep->all;
        ep->all = it;
    }
    it->events = ev->events | EPOLLERR | EPOLLHUP;
    it->data = ev->data.u64;
    if (ready_events(it))
        mark(it);
    return 0;
}

static s64 epoll_sleep(struct file *o, u64 user, s64 max, u64 deadline, u64 set, u64 set_size)
{
    u64 old;
    if (o->ops != &epoll_ops || max <= 0 || max > 1 << 24)
        return -EINVAL;
    int m = mask(set, set_size, &old), b = 0;
    s64 r;
    for (;;) {
        r = min64(max, 1024);        /* more than that at a time helps nobody */
        r = user_ok(user, r * sizeof(struct epoll_event), 1) ? harvest((void *)o, user, r) : -EFAULT;
        if (r || b || !deadline)
            break;
        b = io_wait(&o->wq, deadline);
    }
    return unmask(m, old, r || b != -EINTR ? r : b);
}
FD(epoll_wait) { return epoll_sleep(o, b, (int)c, timeout_ms(d), 0, 0); }
FD(epoll_pwait) { return epoll_sleep(o, b, (int)c, timeout_ms(d), e, f); }
FD(epoll_pwait2) { return epoll_sleep(o, b, (int)c, timeout_at(d, read_timespec), e, f); }
