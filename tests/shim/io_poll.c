/* poll, select, epoll, timerfd. */
#include "say.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

static int p[2];
static char buf[100000];

static void *write_later(void *fd)
{
    pause_ms(30);
    return (void *)write((int)(long)fd, "12345678", 8);
}
static volatile sig_atomic_t caught;
static void on_signal(int sig) { caught = sig; }
static void *kill_later(void *t)
{
    pause_ms(30);
    pthread_kill((pthread_t)t, SIGUSR1);
    return 0;
}
static int waited(uint64_t since, int ms)
{
    uint64_t d = ns_now(CLOCK_MONOTONIC) - since;
    return d >= (uint64_t)ms * 1000000 && d < (uint64_t)ms * 1000000 + 2000000000;
}

static void polling(void)
{
    CHECK(!pipe(p));
    struct pollfd f[6] = {{p[0], POLLIN, 9}, {p[1], POLLOUT | POLLIN, 9}, {-1, POLLIN, 9}, {99, POLLIN, 9}, {p[0], 0, 9}, {p[1], 0, 9}};
    T(poll(f, 2, 0));
    T(f[0].revents);
    T(f[1].revents);
    T(poll(f, 4, 0));
    T(f[2].revents);
    T(f[3].revents);
    uint64_t t0 = ns_now(CLOCK_MONOTONIC);
    T(poll(f, 1, 40));
    T(waited(t0, 40));
    T(poll(0, 0, 20));
    void *t = start(write_later, (void *)(long)p[1]);
    T(poll(f, 1, -1));
    T(f[0].revents);
    finish(t);
    T(poll(f, 6, 1000));
    for (int i = 0; i < 6; i++)
        T(f[i].revents);
    T(read(p[0], buf, 100));
    fcntl(p[1], F_SETFL, O_NONBLOCK);
    while (write(p[1], buf, 4096) > 0)
        ;
    T(poll(f, 2, 0));
    T(f[1].revents);
    T(read(p[0], buf, 4096));
    T(poll(f + 1, 1, 0));
    T(f[1].revents);
    T(close(p[0]));
    T(poll(f + 1, 1, 0));
    T(f[1].revents);
    T(close(p[1]));
    CHECK(!pipe(p));
    f[0].fd = p[0];
    T(write(p[1], "x", 1));
    T(close(p[1]));
    T(poll(f, 1, 0));
    T(f[0].revents);
    T(read(p[0], buf, 9));
    T(poll(f, 1, 0));
    T(f[0].revents);
    T(close(p[0]));
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &sa, 0);
    t = start(kill_later, (void *)pthread_self());
    T(poll(0, 0, 2000));
    finish(t);
    T(caught);
    sigset_t block, old;
    sigemptyset(&block);
    sigaddset(&block, SIGUSR1);
    sigprocmask(SIG_BLOCK, &block, &old);
    caught = 0;
    raise(SIGUSR1);
    T(caught);
    struct timespec ts = {2, 0}, none = {0, 0};
    T(ppoll(0, 0, &ts, &old));
    T(caught);
    T(ppoll(0, 0, &none, &old));
    sigprocmask(SIG_SETMASK, &old, 0);
}

static void selecting(void)
{
    fd_set r, w, x;
    struct timeval tv = {0, 0};
    CHECK(!pipe(p));
    FD_ZERO(&r);
    FD_ZERO(&w);
    FD_ZERO(&x);
    FD_SET(p[0], &r);
    FD_SET(p[1], &w);
    FD_SET(p[0], &x);
    T(select(p[1] + 1, &r, &w, &x, &tv));
    T(FD_ISSET(p[0], &r) * 4 + FD_ISSET(p[1], &w) * 2 + FD_ISSET(p[0], &x));
    FD_SET(p[0], &r);
    FD_SET(p[1], &w);
    T(write(p[1], "x", 1));
    T(select(p[1] + 1, &r, &w, 0, 0));
    T(FD_ISSET(p[0], &r) * 4 + FD_ISSET(p[1], &w) * 2);
    /* Below 64: Linux ignores bits past its descriptor table's size, which a child has from its parent's open descriptors. */
    FD_SET(60, &r);
    T(select(61, &r, 0, 0, &tv));
    FD_ZERO(&r);
    uint64_t t0 = ns_now(CLOCK_MONOTONIC);
    tv.tv_usec = 30000;
    T(select(0, 0, 0, 0, &tv));
    T(waited(t0, 30));
    tv = (struct timeval){0, -5};
    T(select(0, 0, 0, 0, &tv));
    T(select(-1, 0, 0, 0, &tv));
    T(close(p[0]) + close(p[1]));
}

static void show(int ep, int max, int timeout)
{
    struct epoll_event e[10];
    int n = epoll_wait(ep, e, max, timeout);
    printf("  wait: %d", n);
    for (int i = 0; i < n; i++)
        printf(" (%d: %x)", e[i].data.fd, e[i].events);
    printf("\n");
}
static int control(int ep, int op, int fd, unsigned events)
{
    struct epoll_event e = {events, {.fd = fd}};
    return epoll_ctl(ep, op, fd, &e);
}

static void epolling(void)
{
    int ep = epoll_create1(EPOLL_CLOEXEC), e1 = eventfd(0, EFD_NONBLOCK), e2 = eventfd(0, EFD_NONBLOCK);
    uint64_t v = 1;
    T(fcntl(ep, F_GETFD));
    T(epoll_create(0));
    T(control(ep, EPOLL_CTL_ADD, e1, EPOLLIN));
    T(control(ep, EPOLL_CTL_ADD, e1, EPOLLIN));
    T(control(ep, EPOLL_CTL_MOD, e2, EPOLLIN));
    T(control(ep, EPOLL_CTL_DEL, e2, 0));
    T(control(ep, EPOLL_CTL_ADD, ep, EPOLLIN));
    T(control(ep, EPOLL_CTL_ADD, 99, EPOLLIN));
    T(control(99, EPOLL_CTL_ADD, e1, EPOLLIN));
    T(control(e1, EPOLL_CTL_ADD, e2, EPOLLIN));
    int file = open("/dev/null", O_RDONLY);
    T(control(ep, EPOLL_CTL_ADD, file, EPOLLIN));
    T(close(file));
    struct epoll_event none;
    T(epoll_wait(ep, &none, 0, 0));
    T(epoll_wait(e1, &none, 1, 0));
    show(ep, 10, 0);
    T(write(e1, &v, 8));
    show(ep, 10, -1);                /* level: again and again */
    show(ep, 10, -1);
    T(control(ep, EPOLL_CTL_MOD, e1, EPOLLIN | EPOLLET));
    show(ep, 10, 0);
    show(ep, 10, 0);                 /* edge: once */
    T(write(e1, &v, 8));
    show(ep, 10, 0);
    T(control(ep, EPOLL_CTL_MOD, e1, EPOLLIN | EPOLLONESHOT));
    show(ep, 10, 0);
    T(write(e1, &v, 8));
    show(ep, 10, 0);                 /* oneshot: spent */
    T(control(ep, EPOLL_CTL_MOD, e1, EPOLLIN | EPOLLONESHOT));
    show(ep, 10, 0);
    T(control(ep, EPOLL_CTL_MOD, e1, EPOLLIN | EPOLLOUT));
    show(ep, 10, 0);
    T(read(e1, &v, 8));
    show(ep, 10, 0);
    T(control(ep, EPOLL_CTL_MOD, e1, EPOLLIN));
    T(control(ep, EPOLL_CTL_ADD, e2, EPOLLIN));
    v = 1;
    T(write(e1, &v, 8) + write(e2, &v, 8));
    show(ep, 1, 0);                  /* fair: one after the other */
    show(ep, 1, 0);
    show(ep, 1, 0);
    int outer = epoll_create1(0);
    T(control(outer, EPOLL_CTL_ADD, ep, EPOLLIN));
    T(control(ep, EPOLL_CTL_ADD, outer, EPOLLIN));
    show(outer, 10, 0);
    T(read(e1, &v, 8) + read(e2, &v, 8));
    show(outer, 10, 0);
    void *t = start(write_later, (void *)(long)e2);
    show(outer, 10, 2000);
    finish(t);
    show(ep, 10, 0);
    int copy = dup(e2);
    T(close(e2));
    show(ep, 10, 0);                 /* the description lives on */
    T(close(copy));
    show(ep, 10, 0);
    t = start(write_later, (void *)(long)e1);
    show(ep, 10, -1);
    finish(t);
    T(read(e1, &v, 8));
    uint64_t t0 = ns_now(CLOCK_MONOTONIC);
    show(ep, 10, 30);
    T(waited(t0, 30));
    CHECK(!pipe(p));
    T(control(ep, EPOLL_CTL_ADD, p[0], EPOLLIN | EPOLLRDHUP));
    T(close(p[1]));
    show(ep, 10, 0);
    T(close(p[0]));
    show(ep, 10, 0);
    T(close(ep) + close(outer) + close(e1));
}

static void timers(void)
{
    uint64_t v = 0;
    int t = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), ep = epoll_create1(0);
    struct itimerspec once = {{0, 0}, {0, 30000000}}, every = {{0, 10000000}, {0, 10000000}}, off = {{0, 0}, {0, 0}}, old;
    struct pollfd f = {t, POLLIN, 0};
    T(read(t, &v, 8));
    T(timerfd_settime(t, 0, &once, 0));
    T(poll(&f, 1, 0));
    T(poll(&f, 1, 2000));
    T(read(t, &v, 8));
    T(v);
    T(read(t, &v, 8));
    T(timerfd_gettime(t, &old));
    T(old.it_value.tv_nsec);
    T(timerfd_settime(t, 0, &every, 0));
    pause_ms(45);
    T(read(t, &v, 8));
    T(v >= 4);
    T(timerfd_settime(t, 0, &off, &old));
    T(old.it_interval.tv_nsec);
    T(poll(&f, 1, 30));
    T(control(ep, EPOLL_CTL_ADD, t, EPOLLIN));
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct itimerspec at = {{0, 0}, {now.tv_sec, now.tv_nsec + 40000000}};
    if (at.it_value.tv_nsec >= 1000000000)
        at.it_value.tv_sec++, at.it_value.tv_nsec -= 1000000000;
    T(timerfd_settime(t, TFD_TIMER_ABSTIME, &at, 0));
    show(ep, 10, -1);
    T(fcntl(t, F_SETFL, 0));
    T(read(t, &v, 8));
    T(timerfd_settime(t, 0, &once, 0));
    T(read(t, &v, 8));               /* blocks */
    at.it_value.tv_nsec = -1;
    T(timerfd_settime(t, 0, &at, 0));
    T(timerfd_settime(ep, 0, &once, 0));
    int real = timerfd_create(CLOCK_REALTIME, 0);
    clock_gettime(CLOCK_REALTIME, &now);
    at = (struct itimerspec){{0, 0}, {now.tv_sec - 5, 0}};
    T(timerfd_settime(real, TFD_TIMER_ABSTIME, &at, 0));
    T(read(real, &v, 8));
    T(v);
    T(close(t) + close(ep) + close(real));
}

int main(void)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    polling();
    selecting();
    epolling();
    timers();
    return 0;
}
