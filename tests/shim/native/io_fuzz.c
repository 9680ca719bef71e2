/* The I/O half as an ordinary program, for the sanitizers: random calls, a worker that does what it likes to the I/O window, and
 * restores in between. The core half is played by the least that does: nobody else runs, so waiting ends as by a signal.
 *   io_fuzz SEED STEPS
 */
#include "io.h"
#include <netinet/in.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/un.h>

struct thread {
    int unused;
} me;
struct thread *current = &me;
u64 kstack_top;
static u64 stack[64];
static jmp_buf leave;
static s64 result;
static u64 closed[2], moment = 1000;

void fail(s64 r)
{
    result = r < 0 && PROGRESS ? PROGRESS : r;
    longjmp(leave, 1);
}
int user_ok(u64 a, u64 n, int write UNUSED) { return a > 4096 || !n; }
void copy_in(void *to, u64 from, u64 n) { memcpy(to, user_at(from, n, 0), n); }
s64 copy_out(u64 to, const void *from, u64 n)
{
    memcpy(user_at(to, n, 1), from, n);
    return 0;
}
s64 user_strlen(u64 a, u64 max)
{
    u64 n = 0;
    while (n < max && ((char *)a)[n])
        n++;
    return n < max ? (s64)n : -ENAMETOOLONG;
}
void *kalloc(size_t n) { return calloc(1, n); }
void kfree(void *p) { free(p); }
void waitq_add(struct waitq *q, struct waiter *w)
{
    w->next = q->first;
    w->prev = &q->first;
    if (w->next)
        w->next->prev = &w->next;
    q->first = w;
}
void waitq_del(struct waiter *w)
{
    if (!w->prev)
        return;
    *w->prev = w->next;
    if (w->next)
        w->next->prev = w->prev;
    w->prev = 0;
}
int wake_all(struct waitq *q)
{
    while (q->first)
        waitq_del(q->first);
    return 0;
}
int block(u64 deadline) { return deadline == NEVER || !(rand() % 8) ? -EINTR : -ETIMEDOUT; }
u64 now_mono(void) { return moment += 1000; }
u64 now_real(void) { return now_mono() + 5; }
u64 deadline_after(u64 n) { return now_mono() + n; }
s64 read_timespec(u64 user, u64 *ns)
{
    *ns = ((u64 *)user)[0] * 1000000000 + ((u64 *)user)[1];
    return 0;
}
s64 read_timeval(u64 user, u64 *ns) { return read_timespec(user, ns); }
void signal_send(struct thread *t UNUSED, int sig UNUSED, int code UNUSED, u64 value UNUSED) {}
u64 signal_swap_mask(u64 m) { return m; }
void random_bytes(void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((u8 *)p)[i] = (u8)rand();
}
u64 ring_at;
s64 ring_call(u32 op, u64 a, u64 b UNUSED, u64 c UNUSED, u64 d UNUSED, u64 e, u64 f UNUSED)
{
    switch (op & 0xffff) {
    case AFW_OP_FLOW_KICK:
        if (WIN->flow[a].gflags & AFW_G_CLOSED)
            closed[a / 64] |= 1ul << a % 64;
        return 0;
    case AFW_OP_FLOW_OPEN:
        WIN->flow[a].hstate = 1 + (u32)rand() % 3;
        return 0;
    case AFW_OP_MKNOD:
    case AFW_OP_ACCESS:
        return 1 + ((u8 *)a)[0];     /* a socket's number */
    case AFW_OP_SOCKET:
        return e == AFW_SOCKET_KIND ? 0 : rand() % 5 ? 4 << rand() % 3 : -ENOPROTOOPT;
    case AFW_OP_PREAD:
        return rand() % 3 ? (s64)c : rand() % 2 ? 0 : -EIO;
    }
    return op & RING_POST ? 0 : -ENOENT;
}
/* Opening, or anything else */
s64 sys_ask(u64 a UNUSED, u64 b UNUSED, u64 c UNUSED, u64 d UNUSED, u64 e UNUSED)
{
    static const u32 what[] = {7, AFW_OPENED_WHOLE + 7, AFW_OPENED_DEVICE + 3, AFW_OPENED_DEVICE + 9, AFW_OPENED_FD, AFW_OPENED_FD + 70, AFW_OPENED_JOB};
    return rand() % 4 ? (s64)((u64)rand() % 4096 << 32 | what[rand() % 7]) : -(s64)ENOENT;
}
s64 sys_change(u64 a, u64 b, u64 c, u64 d, u64 e)
{
    files_changed++;
    return sys_ask(a, b, c, d, e);
}

static void worker(void)
{
    for (u32 i = 0; i < AFW_FLOWS; i++) {
        volatile struct afw_flow *f = &WIN->flow[i];
        WIN->ready[i / 64] |= 1ul << i % 64;
        if (closed[i / 64] >> i % 64 & 1) {
            memset((void *)&f->rx_head, 0, 64);
            closed[i / 64] &= ~(1ul << i % 64);
            continue;
        }
        if (f->hstate == AFW_H_OPENING && rand() % 3 == 0) {
            f->hstate = rand() % 2 ? AFW_H_OPEN : AFW_H_FAILED;
            f->error = rand() % 3 ? ECONNREFUSED : rand();
        }
        if (f->hstate != AFW_H_OPEN)
            continue;
        if (rand() % 3 == 0)
            f->rx_head = rand() % 20 ? f->rx_tail + (u32)rand() % 65537 : (u32)rand();
        if (rand() % 3 == 0)
            f->tx_tail = rand() % 20 ? f->tx_head - (u32)rand() % 3000 : (u32)rand();
        if (rand() % 60 == 0)
            f->hflags |= 1u << rand() % 2;
    }
}

/* As entry.S does it. */
typedef s64 (*call)(u64, u64, u64, u64, u64, u64);
enum { PLAIN, FILE_CALL, SOCKET_CALL };
static void enter(int kind, void *function, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
    struct file *volatile held = 0;
    kstack_top = (u64)(stack + 60);
    PROGRESS = 0;
    if (kind) {
        held = peek(a);
        if (!held || (kind == SOCKET_CALL && held->ops != &sock_ops))
            return;
        held->refs++;
        a = (u64)held;
    }
    if (!setjmp(leave))
        result = ((call)function)(a, b, c, d, e, f);
    if (held)
        fput(held, 0);
}

FD(read); FD(write); FD(dup); FD(fstat); FD(epoll_ctl); FD(epoll_wait); FD(timerfd_settime); FD(lseek);
PL(pipe2); PL(eventfd2); PL(epoll_create1); PL(close); PL(socket); PL(socketpair); PL(poll); PL(timerfd_create); PL(dup3); PL(ioctl);
PL(open); PL(fcntl);
SK(bind); SK(listen); SK(accept4); SK(connect); SK(shutdown); SK(sendto); SK(recvfrom); SK(setsockopt); SK(getsockopt); SK(getsockname);
SK(getpeername); SK(recvmsg); SK(sendmsg); SK(sendmmsg); SK(recvmmsg); FD(sendfile);

static u8 bytes[100000];
static u64 rnd(u32 n) { return (u32)rand() % n; }
static int one_in(u32 n) { return !rnd(n); }
static int sockets_travel;           /* who passes sockets can make circles, which nobody frees: without the leak sanitizer only */

static int traveller(void)
{
    int fd = (int)rnd(18);
    return peek((u64)fd) && peek((u64)fd)->ops == &sock_ops && !sockets_travel ? 0 : fd;
}

static u64 some_name(u64 *len)
{
    static union {
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
        struct sockaddr_un un;
    } u;
    memset(&u, 0, sizeof u);
    switch (rnd(4)) {
    case 0:
        u.in.sin_family = AF_INET;
        u.in.sin_port = htons(one_in(20) ? 0 : 1000);
        u.in.sin_addr.s_addr = htonl(one_in(4) ? 0x08080808 : 0x7f000001);
        *len = one_in(20) ? rnd(200) : sizeof u.in;
        break;
    case 1:
        u.in6.sin6_family = AF_INET6;
        u.in6.sin6_port = htons(one_in(20) ? 0 : 1000);
        u.in6.sin6_addr.s6_addr[15] = (u8)rnd(2);
        u.in6.sin6_addr.s6_addr[0] = one_in(4) ? 0x20 : 0;
        *len = one_in(20) ? rnd(200) : sizeof u.in6;
        break;
    case 2:
        u.un.sun_family = AF_UNIX;
        u.un.sun_path[rnd(2)] = (char)('a' + rnd(2));
        *len = one_in(2) ? 5 + rnd(6) : sizeof u.un;
        break;
    default:
        u.in.sin_family = (u16)rnd(3);
        *len = sizeof u.in;
    }
    return (u64)&u;
}

static void step(void)
{
    static u64 out[40];
    u64 a = rnd(18), b = rnd(18), len, name = some_name(&len), n = one_in(8) ? rnd(90000) : rnd(300), buf = (u64)bytes;
    u32 in[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLOUT | EPOLLRDHUP, EPOLLIN | EPOLLOUT | EPOLLONESHOT}, size = (u32)rnd(30);
    struct epoll_event event = {in[rnd(4)], {.u64 = b}}, events[20];
    struct iovec v[3] = {{bytes, rnd(100)}, {bytes + 500, rnd(3)}, {bytes + 1000, rnd(1000)}};
    struct msghdr m = {.msg_name = one_in(2) ? (void *)name : 0, .msg_namelen = (u32)len, .msg_iov = v, .msg_iovlen = rnd(4)};
    struct { struct cmsghdr h; int fd[4]; } rights[2] = {{{CMSG_LEN(rnd(5) * 4), SOL_SOCKET, one_in(9) ? (int)rnd(4) : SCM_RIGHTS}, {traveller(), traveller(), traveller(), traveller()}},
                                                         {{CMSG_LEN(8), SOL_SOCKET, SCM_RIGHTS}, {traveller(), 1, 2, 0}}};
    if (one_in(2)) {
        m.msg_control = rights;
        m.msg_controllen = one_in(6) ? rnd(sizeof rights + 1) : one_in(3) ? sizeof rights : CMSG_SPACE(16);
    }
    struct mmsghdr mm[3] = {{m, 0}, {m, 0}, {m, 0}};
    struct pollfd p[10];
    u64 time[4] = {0, rnd(2) * 1000, 0, rnd(3) * 700}, flag[] = {0, 0, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, MSG_DONTWAIT}, msg = flag[rnd(6)];
    u64 nb = one_in(8) ? 0 : O_NONBLOCK;
    for (int i = 0; i < 10; i++)
        p[i] = (struct pollfd){(int)rnd(20) - 1, (short)rnd(64), 0};
    switch (rnd(35)) {
    case 0: enter(PLAIN, sys_pipe2, (u64)out, nb, 0, 0, 0, 0); break;
    case 1: enter(PLAIN, sys_eventfd2, rnd(3), nb | rnd(2), 0, 0, 0, 0); break;
    case 2: enter(PLAIN, sys_epoll_create1, 0, 0, 0, 0, 0, 0); break;
    case 3: case 4: enter(PLAIN, sys_close, a + 3, 0, 0, 0, 0, 0); break;
    case 5: enter(PLAIN, sys_socket, one_in(3) ? AF_UNIX : one_in(2) ? AF_INET6 : AF_INET, (one_in(3) ? SOCK_DGRAM : SOCK_STREAM) | nb, 0, 0, 0, 0); break;
    case 6: enter(PLAIN, sys_socketpair, AF_UNIX, (one_in(2) ? SOCK_DGRAM : one_in(2) ? SOCK_SEQPACKET : SOCK_STREAM) | nb, 0, (u64)out, 0, 0); break;
    case 7: case 8: enter(FILE_CALL, sys_read, a, buf, n, 0, 0, 0); break;
    case 9: case 10: enter(FILE_CALL, sys_write, a, buf, n, 0, 0, 0); break;
    case 11: enter(FILE_CALL, sys_dup, a, 0, 0, 0, 0, 0); break;
    case 12: case 13: enter(FILE_CALL, sys_epoll_ctl, a, 1 + rnd(3), b, (u64)&event, 0, 0); break;
    case 14: enter(FILE_CALL, sys_epoll_wait, a, (u64)events, 1 + rnd(20), 0, 0, 0); break;
    case 15: enter(PLAIN, sys_poll, (u64)p, rnd(11), rnd(2), 0, 0, 0); break;
    case 16: enter(PLAIN, sys_timerfd_create, rnd(2), nb, 0, 0, 0, 0); break;
    case 17: enter(FILE_CALL, sys_timerfd_settime, a, rnd(2), (u64)time, one_in(2) ? (u64)out : 0, 0, 0); break;
    case 18: enter(SOCKET_CALL, sys_bind, a, name, len, 0, 0, 0); break;
    case 19: enter(SOCKET_CALL, sys_listen, a, rnd(3), 0, 0, 0, 0); break;
    case 20: enter(SOCKET_CALL, sys_accept4, a, one_in(2) ? (u64)out : 0, (u64)&size, nb, 0, 0); break;
    case 21: case 22: enter(SOCKET_CALL, sys_connect, a, name, len, 0, 0, 0); break;
    case 23: enter(SOCKET_CALL, sys_shutdown, a, rnd(4), 0, 0, 0, 0); break;
    case 24: enter(SOCKET_CALL, sys_sendto, a, buf, n, msg, one_in(2) ? name : 0, len); break;
    case 25: enter(SOCKET_CALL, sys_recvfrom, a, buf, n, msg, one_in(2) ? (u64)out : 0, (u64)&size); break;
    case 26: enter(SOCKET_CALL, sys_setsockopt, a, 1, rnd(40), (u64)time, rnd(20), 0); break;
    case 27: enter(SOCKET_CALL, sys_getsockopt, a, 1, rnd(40), (u64)out, (u64)&size, 0); break;
    case 28: enter(SOCKET_CALL, one_in(2) ? (void *)sys_getsockname : sys_getpeername, a, (u64)out, (u64)&size, 0, 0, 0); break;
    case 29: case 33: enter(SOCKET_CALL, one_in(2) ? (void *)sys_recvmsg : sys_sendmsg, a, (u64)&m, msg, 0, 0, 0); break;
    case 30: enter(SOCKET_CALL, one_in(2) ? (void *)sys_sendmmsg : sys_recvmmsg, a, (u64)mm, 3, msg, 0, 0); break;
    case 34: enter(PLAIN, sys_fcntl, a + 3, F_SETPIPE_SZ, rnd(300000), 0, 0, 0); break;
    case 32: enter(FILE_CALL, sys_sendfile, a, b, 0, n, 0, 0); break;
    case 31: enter(PLAIN, one_in(2) ? (void *)sys_dup3 : sys_ioctl, a + 3, one_in(2) ? b + 3 : 0x541b, (u64)out & ~4ul, 0, 0, 0); break;
    }
}

int main(int argc, char **argv)
{
    if (mmap((void *)AFW_SYS, AFW_SITES - AFW_SYS, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
        return 2;
    if (mmap((void *)AFW_WINDOW, AFW_WINDOW_SIZE, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
        return 2;
    for (int i = 0; i < AFW_FLOW_FIRST; i++)
        WIN->flow[i].hstate = AFW_H_OPEN;
    srand(argc > 1 ? (u32)atoi(argv[1]) : 1);
    sockets_travel = argc > 3;
    io_init();
    for (int i = argc > 2 ? atoi(argv[2]) : 20000; i; i--) {
        step();
        if (one_in(7)) {
            worker();
            flows_poll();
        }
        if (one_in(4000))
            io_restored();
    }
    io_exit();
    free(fd_table);                  /* the rest that is still there is a leak, and told by the sanitizer */
    fd_table = 0;
    return 0;
}
