/* eventfd and timerfd. */
#include "io.h"
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#define SECOND 1000000000ul

struct event {
    struct file f;
    u64 count;
    int semaphore;
};

static s64 event_read(struct file *f, struct io *io, u32 msg, s64 pos UNUSED)
{
    struct event *ev = (void *)f;
    if (io->left < 8)
        return -EINVAL;
    while (!ev->count)
        file_wait(f, msg, NEVER);
    u64 n = ev->semaphore ? 1 : ev->count;
    io_copy(io, &n, 8, 1);
    ev->count -= n;
    file_notify(f, POLLOUT);
    return 8;
}

static s64 event_write(struct file *f, struct io *io, u32 msg, s64 pos UNUSED)
{
    struct event *ev = (void *)f;
    u64 n;
    if (io->left != 8)               /* older kernels take more, and use 8 */
        return -EINVAL;
    io_copy(io, &n, 8, 0);
    if (n == ~0ul)
        return -EINVAL;
    while (n >= ~0ul - ev->count)
        file_wait(f, msg, NEVER);
    ev->count += n;
    file_notify(f, POLLIN);
    return 8;
}

static u32 event_poll(struct file *f)
{
    struct event *ev = (void *)f;
    return (ev->count ? POLLIN | POLLRDNORM : 0) | (ev->count < ~0ul - 1 ? POLLOUT | POLLWRNORM : 0);
}

static const struct ops event_ops = {.size = sizeof(struct event), .mode = 0600, .read = event_read, .write = event_write, .poll = event_poll};

PL(eventfd2)
{
    ONLY(b, EFD_SEMAPHORE | EFD_NONBLOCK | EFD_CLOEXEC);
    struct event *ev = file_new(&event_ops, (b & O_NONBLOCK) | O_RDWR);
    ev->count = (u32)a;
    ev->semaphore = b & EFD_SEMAPHORE;
    return fd_install(ev, b);
}
PL(eventfd) { return sys_eventfd2(a, 0, 0, 0, 0, 0); }

/* ---- timerfd: a list of all; io_block() wakes in time, timers_run() tells who waits ---- */
struct timer {
    struct file f;
    struct timer *next;
    u64 expires;                     /* CLOCK_MONOTONIC ns, 0: not armed */
    u64 interval;
    int clock, told;                 /* told: waiters know of this expiry */
};
static struct timer *timers;
u64 timers_next = NEVER;

void timers_run(void)
{
    struct timer *t = timers;
    timers_next = NEVER;
    if (!t)
        return;
    u64 now = now_mono();
    for (; t; t = t->next)
        if (t->expires && !t->told) {
            if (t->expires <= now) {
                t->told = 1;
                file_notify(t, POLLIN);
            } else
                timers_next = min64(timers_next, t->expires);
        }
}

static u32 timer_poll(struct file *f)
{
    struct timer *t = (void *)f;
    return t->expires && t->expires <= now_mono() ? POLLIN | POLLRDNORM : 0;
}

static s64 timer_read(struct file *f, struct io *io, u32 msg, s64 pos UNUSED)
{
    struct timer *t = (void *)f;
    if (io->left < 8)
        return -EINVAL;
    while (!timer_poll(f))
        file_wait(f, msg, NEVER);
    u64 n = 1;
    if (t->interval)
        n += (now_mono() - t->expires) / t->interval;
    t->expires = t->interval ? t->expires + n * t->interval : 0;
    t->told = 0;
    timers_run();
    io_copy(io, &n, 8, 1);
    return 8;
}

static void timer_close(struct file *f)
{
    struct timer **p = &timers;
    while (*p != (void *)f)
        p = &(*p)->next;
    *p = (*p)->next;
}

static const struct ops timer_ops = {.size = sizeof(struct timer), .mode = 0600, .read = timer_read, .poll = timer_poll, .close = timer_close};

PL(timerfd_create)
{
    ONLY(b, TFD_NONBLOCK | TFD_CLOEXEC);
    if (a > 9 || !(0x383 >> a & 1))  /* REALTIME, MONOTONIC, BOOTTIME and the alarms of two of them */
        return -EINVAL;
    struct timer *t = file_new(&timer_ops, (b & O_NONBLOCK) | O_RDWR);
    t->clock = a;
    t->next = timers;
    timers = t;
    return fd_install(t, b);
}

static struct timespec split(u64 ns) { return (struct timespec){ns / SECOND, ns % SECOND}; }
FD(timerfd_gettime)
{
    struct timer *t = (void *)o;
    u64 now = now_mono(), left = 0;
    if (o->ops != &timer_ops)
        return -EINVAL;
    if (t->expires > now)
        left = t->expires - now;
    else if (t->expires && t->interval)
        left = t->interval - (now - t->expires) % t->interval;
    struct itimerspec v = {split(t->interval), split(left)};
    return copy_out(b, &v, sizeof v);
}

FD(timerfd_settime)
{
    struct timer *t = (void *)o;
    u64 interval, value;
    s64 r = read_timespec(c, &interval);
    if (!r)
        r = read_timespec(c + sizeof(struct timespec), &value);
    ONLY(b, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET);
    if (!r && o->ops != &timer_ops)
        r = -EINVAL;
    if (!r && d)
        r = sys_timerfd_gettime(o, d, 0, 0, 0, 0);
    if (r)
        return r;
    t->told = 0;
    t->interval = interval;
    t->expires = value;
    if (value && !(b & TFD_TIMER_ABSTIME))
        t->expires = deadline_after(value);
    else if (value && !(t->clock & 7)) {             /* CLOCK_REALTIME and its alarm kind, 8 */
        s64 at = value - (now_real() - now_mono());
        t->expires = at > 0 ? at : 1;
    }
    timers_run();
    file_notify(t, POLLIN);          /* waiters take up the new time */
    return 0;
}
