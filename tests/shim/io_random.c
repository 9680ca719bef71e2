/* Random calls on pipes, socket pairs, eventfds and epoll sets, all non-blocking; the same seed must print the same everywhere. */
#include "say.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

enum { NONE, PIPE_R, PIPE_W, STREAM, DGRAM, EVENT, EPOLL };
static struct slot {
    int kind, fd, serial;
} slots[40];
static uint64_t state;
static int serial;
static char buf[4096];

static unsigned rnd(unsigned n)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(state >> 33) % n;
}

static void add(int kind, int fd)
{
    for (int i = 0; i < 40; i++)
        if (slots[i].kind == NONE) {
            slots[i] = (struct slot){kind, fd, serial++};
            return;
        }
    close(fd);
}

static void make(void)
{
    int p[2], kind = (int)rnd(6), room = 0;
    for (int i = 0; i < 40; i++)
        room += slots[i].kind == NONE;
    if (room < 2)
        return;
    if (kind == 0) {
        CHECK(!pipe2(p, O_NONBLOCK));
        add(PIPE_R, p[0]);
        add(PIPE_W, p[1]);
    } else if (kind <= 2) {
        CHECK(!socketpair(AF_UNIX, (kind == 1 ? SOCK_STREAM : SOCK_DGRAM) | SOCK_NONBLOCK, 0, p));
        add(kind == 1 ? STREAM : DGRAM, p[0]);
        add(kind == 1 ? STREAM : DGRAM, p[1]);
    } else if (kind == 3)
        add(EVENT, eventfd(rnd(3), EFD_NONBLOCK | (rnd(2) ? EFD_SEMAPHORE : 0)));
    else if (kind == 4)
        add(EPOLL, epoll_create1(0));
}

static int events(int fd)
{
    struct pollfd f = {fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    poll(&f, 1, 0);
    return f.revents;
}

static void result(const char *what, const struct slot *s, long r)
{
    printf("%s %d/%d: %ld %s\n", what, s->kind, s->serial, r, r < 0 ? strerrorname_np(errno) : "");
}

static unsigned sum(long n)
{
    unsigned v = 0;
    for (long i = 0; i < n; i++)
        v = v * 31 + (unsigned char)buf[i];
    return v;
}

static void step(void)
{
    struct slot *s = &slots[rnd(40)], *t = &slots[rnd(40)];
    uint64_t v = rnd(4);
    unsigned n = 1 + (rnd(10) ? rnd(50) : rnd(4000));
    int left = 0;
    long r;
    if (rnd(6) == 0)
        make();
    if (s->kind == NONE)
        return;
    switch (rnd(12)) {
    case 0:
    case 1:
    case 2:
        if (s->kind == EVENT)
            result("add", s, write(s->fd, &v, 8));
        else if (s->kind != EPOLL) {
            for (unsigned i = 0; i < n; i++)
                buf[i] = (char)rnd(256);
            result("write", s, write(s->fd, buf, n));
        }
        break;
    case 3:
    case 4:
    case 5:
        if (s->kind == EPOLL)
            break;
        if (s->kind != EVENT && s->kind != DGRAM && ioctl(s->fd, FIONREAD, &left) == 0)
            printf("left %d ", left);
        r = read(s->fd, buf, s->kind == EVENT ? 8 : n);
        result("read", s, r);
        printf("  sum %u\n", sum(r));
        break;
    case 6:
        result("events", s, events(s->fd));
        break;
    case 7:
        if (s->kind == STREAM && rnd(3) == 0)
            result("shutdown", s, shutdown(s->fd, (int)rnd(3)));
        break;
    case 8:
        if (s->kind != DGRAM && rnd(3) == 0) {       /* Linux purges what a closed datagram peer sent; nobody needs that */
            result("close", s, close(s->fd));
            s->kind = NONE;
        } else if (rnd(3) == 0 && s->kind != EPOLL)
            add(s->kind, dup(s->fd));
        break;
    case 9:
    case 10:
        if (s->kind == EPOLL && t->kind != NONE && t != s) {
            struct epoll_event e = {rnd(2) ? EPOLLIN : EPOLLIN | EPOLLOUT | EPOLLRDHUP, {.u32 = (uint32_t)t->serial}};
            if (rnd(4) == 0)
                e.events |= EPOLLONESHOT;
            int op = rnd(5) == 0 ? EPOLL_CTL_DEL : rnd(3) ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
            if (t->kind != EPOLL)
                result(op == EPOLL_CTL_DEL ? "del" : op == EPOLL_CTL_ADD ? "watch" : "mod", t, epoll_ctl(s->fd, op, t->fd, &e));
        }
        break;
    case 11:
        if (s->kind == EPOLL) {
            struct epoll_event e[64];
            int got = epoll_wait(s->fd, e, 64, 0);
            result("wait", s, got);
            for (unsigned k = 0; k < (unsigned)serial; k++)      /* by serial: the order is nobody's promise */
                for (int i = 0; i < got; i++)
                    if (e[i].data.u32 == k)
                        printf("  %u: %x\n", k, e[i].events);
        }
    }
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, 0, _IOFBF, 1 << 16);
    for (int seed = argc > 1 ? atoi(argv[1]) : 1, end = seed + 20; seed < end; seed++) {
        state = (uint64_t)seed;
        serial = 0;
        printf("seed %d\n", seed);
        for (int i = 0; i < 400; i++)
            step();
        for (int i = 0; i < 40; i++)
            if (slots[i].kind != NONE)
                close(slots[i].fd);
        memset(slots, 0, sizeof slots);
    }
    return 0;
}
