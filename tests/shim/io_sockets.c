/* Sockets inside the VM: socketpair, loopback TCP and UDP, unix sockets, options. */
#include "say.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static char buf[200000];
static int sv[2];

static int events(int fd)
{
    struct pollfd f = {fd, POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0};
    poll(&f, 1, 0);
    return f.revents;
}
static struct sockaddr_in at(const char *ip, int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    inet_pton(AF_INET, ip, &a.sin_addr);
    return a;
}
static int port_of(int fd)
{
    struct sockaddr_in6 a;
    socklen_t n = sizeof a;
    return getsockname(fd, (void *)&a, &n) ? -1 : ntohs(a.sin6_port);
}
static const char *name_of(int fd, int peer)
{
    static char text[100];
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (peer ? getpeername(fd, (void *)&a, &n) : getsockname(fd, (void *)&a, &n))
        return strerrorname_np(errno);
    text[0] = 0;
    if (a.ss_family == AF_INET)
        inet_ntop(AF_INET, &((struct sockaddr_in *)&a)->sin_addr, text, sizeof text);
    if (a.ss_family == AF_INET6)
        inet_ntop(AF_INET6, &((struct sockaddr_in6 *)&a)->sin6_addr, text, sizeof text);
    sprintf(text + strlen(text), " family %d length %u", a.ss_family, n);
    return text;
}
static int option(int fd, int level, int name)
{
    int v = -77;
    socklen_t n = sizeof v;
    return getsockopt(fd, level, name, &v, &n) ? -errno : v;
}
static int set(int fd, int level, int name, int v)
{
    return setsockopt(fd, level, name, &v, sizeof v);
}
static void *send_much(void *fd)
{
    static char data[300000];
    long n = send((int)(long)fd, data, sizeof data, 0);
    shutdown((int)(long)fd, SHUT_WR);
    return (void *)n;
}
static void *accept_one(void *fd) { return (void *)(long)accept((int)(long)fd, 0, 0); }

static void pairs(void)
{
    T(socketpair(AF_UNIX, SOCK_STREAM, 0, sv));
    printf("%s\n", name_of(sv[0], 0));
    printf("%s\n", name_of(sv[0], 1));
    T(events(sv[0]));
    T(send(sv[0], "hello", 5, 0));
    T(events(sv[1]));
    T(recv(sv[1], buf, 3, MSG_PEEK));
    T(recv(sv[1], buf, 3, 0));
    int n;
    T(ioctl(sv[1], FIONREAD, &n));
    T(n);
    T(recv(sv[1], buf, 100, MSG_DONTWAIT));
    T(recv(sv[1], buf, 100, MSG_DONTWAIT));
    void *t = start(send_much, (void *)(long)sv[0]);
    T(recv(sv[1], buf, sizeof buf, MSG_WAITALL));
    T(recv(sv[1], buf, sizeof buf, MSG_WAITALL));
    T(finish(t));
    T(recv(sv[1], buf, 10, 0));
    T(events(sv[1]));
    T(events(sv[0]));
    T(send(sv[0], "x", 1, MSG_NOSIGNAL));
    T(send(sv[1], "back", 4, 0));
    T(close(sv[0]));
    T(events(sv[1]));
    T(send(sv[1], "x", 1, MSG_NOSIGNAL));
    T(close(sv[1]));
    T(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv));
    T(fcntl(sv[0], F_GETFD));
    T(recv(sv[0], buf, 1, 0));
    T(send(sv[0], "unread", 6, 0));
    T(close(sv[1]));
    T(recv(sv[0], buf, 1, 0));
    T(recv(sv[0], buf, 1, 0));
    T(close(sv[0]));
    T(socketpair(AF_UNIX, SOCK_DGRAM, 0, sv));
    T(send(sv[0], "one", 3, 0));
    T(send(sv[0], "", 0, 0));
    T(send(sv[0], "three", 5, 0));
    T(events(sv[1]));
    T(recv(sv[1], buf, 100, 0));
    T(recv(sv[1], buf, 100, 0));
    T(recv(sv[1], buf, 2, MSG_TRUNC));
    T(recv(sv[1], buf, 2, MSG_DONTWAIT));
    struct iovec v[2] = {{"ab", 2}, {"cd", 2}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    T(sendmsg(sv[1], &m, 0));
    struct iovec r = {buf, 3};
    m = (struct msghdr){.msg_iov = &r, .msg_iovlen = 1};
    T(recvmsg(sv[0], &m, 0));
    T(m.msg_flags);
    T(write(sv[0], "w", 1));
    T(read(sv[1], buf, 10));
    T(close(sv[0]));
    T(send(sv[1], "x", 1, MSG_NOSIGNAL));
    T(close(sv[1]));
    T(socketpair(AF_INET, SOCK_STREAM, 0, sv));
    T(socket(77, SOCK_STREAM, 0));
    T(socket(AF_INET, SOCK_RDM, 0));
    T(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
}

static void tcp(void)
{
    int l = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0), s;
    struct sockaddr_in a = at("127.0.0.1", 0), got;
    socklen_t n = sizeof got;
    T(events(c));
    T(send(c, "x", 1, MSG_NOSIGNAL));
    T(recv(c, buf, 1, 0));
    T(accept(l, 0, 0));
    printf("%s\n", name_of(l, 0));
    T(bind(l, (void *)&a, sizeof a));
    T(bind(l, (void *)&a, sizeof a));
    printf("%s\n", name_of(l, 0));
    T(port_of(l) > 1024);
    a.sin_port = htons((unsigned short)port_of(l));
    T(connect(c, (void *)&a, sizeof a));
    T(listen(l, 5));
    T(events(l));
    close(c);
    c = socket(AF_INET, SOCK_STREAM, 0);
    T(connect(c, (void *)&a, sizeof a));
    T(connect(c, (void *)&a, sizeof a));
    T(events(l));
    T(events(c));
    printf("%s\n", name_of(c, 0));
    printf("%s\n", name_of(c, 1));
    T(send(c, "early", 5, 0));
    s = accept4(l, (void *)&got, &n, SOCK_NONBLOCK);
    T(s >= 0);
    T(n);
    T(ntohs(got.sin_port) == port_of(c));
    T(fcntl(s, F_GETFL) & O_NONBLOCK);
    printf("%s\n", name_of(s, 0));
    printf("%s\n", name_of(s, 1));
    T(recv(s, buf, 100, 0));
    T(recv(s, buf, 100, 0));
    T(set(c, IPPROTO_TCP, TCP_NODELAY, 1));
    T(option(c, IPPROTO_TCP, TCP_NODELAY));
    T(option(s, IPPROTO_TCP, TCP_NODELAY));
    T(set(c, SOL_SOCKET, SO_KEEPALIVE, 1));
    T(option(c, SOL_SOCKET, SO_KEEPALIVE));
    T(option(c, SOL_SOCKET, SO_TYPE));
    T(option(c, SOL_SOCKET, SO_DOMAIN));
    T(option(c, SOL_SOCKET, SO_PROTOCOL));
    T(option(c, SOL_SOCKET, SO_ERROR));
    struct timeval tv = {0, 30000}, back;
    n = sizeof back;
    T(setsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv));
    T(getsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &back, &n));
    T(n);
    uint64_t t0 = ns_now(CLOCK_MONOTONIC);
    T(recv(c, buf, 1, 0));
    T(ns_now(CLOCK_MONOTONIC) - t0 >= 25000000);
    T(send(s, "abc", 3, 0));
    T(shutdown(s, SHUT_WR));
    T(recv(c, buf, 100, 0));
    T(recv(c, buf, 100, 0));
    T(events(c));
    T(send(c, "more", 4, 0));
    T(recv(s, buf, 100, 0));
    T(send(s, "x", 1, MSG_NOSIGNAL));
    T(close(c));
    T(recv(s, buf, 100, 0));
    T(close(s));
    c = socket(AF_INET, SOCK_STREAM, 0);
    T(connect(c, (void *)&a, sizeof a));
    s = accept(l, 0, 0);
    T(send(c, "unread", 6, 0));
    pause_ms(5);
    T(close(s));                     /* a reset */
    pause_ms(5);
    T(recv(c, buf, 10, 0));
    T(close(c));
    c = socket(AF_INET, SOCK_STREAM, 0);
    void *t = start(accept_one, (void *)(long)l);
    pause_ms(20);
    a = at("0.0.0.0", port_of(l));
    T(connect(c, (void *)&a, sizeof a));
    s = (int)(long)finish(t);
    T(s >= 0);
    T(close(s) + close(c));
    int other = socket(AF_INET, SOCK_STREAM, 0);
    a = at("127.0.0.1", port_of(l));
    T(bind(other, (void *)&a, sizeof a));
    T(set(other, SOL_SOCKET, SO_REUSEADDR, 1));
    T(bind(other, (void *)&a, sizeof a));
    struct sockaddr_in away = at("8.8.8.8", 0);
    T(bind(other, (void *)&away, sizeof away));
    T(bind(other, (void *)&a, 3));
    a.sin_family = AF_INET6;
    T(connect(other, (void *)&a, sizeof a));
    T(shutdown(other, SHUT_RDWR));
    T(getpeername(other, (void *)&got, &n));
    T(shutdown(l, 9));
    a.sin_family = AF_INET;
    T(close(l));
    T(connect(other, (void *)&a, sizeof a));
    T(close(other));
    T(listen(0, 1));
    T(send(0, buf, 1, 0));
    T(send(99, buf, 1, 0));
}

static void tcp6(void)
{
    int l = socket(AF_INET6, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0), c6 = socket(AF_INET6, SOCK_STREAM, 0), s;
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6};
    T(bind(l, (void *)&a6, sizeof a6));
    T(listen(l, 5));
    struct sockaddr_in a = at("127.0.0.1", port_of(l));
    T(connect(c, (void *)&a, sizeof a));
    s = accept(l, 0, 0);
    printf("%s\n", name_of(s, 1));
    printf("%s\n", name_of(c, 1));
    close(s);
    a6.sin6_port = a.sin_port;
    a6.sin6_addr = in6addr_loopback;
    T(connect(c6, (void *)&a6, sizeof a6));
    s = accept(l, 0, 0);
    printf("%s\n", name_of(s, 0));
    printf("%s\n", name_of(c6, 0));
    T(write(s, "six", 3));
    T(read(c6, buf, 10));
    T(close(s) + close(c) + close(c6) + close(l));
    int v4 = socket(AF_INET, SOCK_STREAM, 0), v6 = socket(AF_INET6, SOCK_STREAM, 0);
    a = at("0.0.0.0", 0);
    T(bind(v4, (void *)&a, sizeof a));
    a6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((unsigned short)port_of(v4))};
    T(set(v6, IPPROTO_IPV6, IPV6_V6ONLY, 1));
    T(bind(v6, (void *)&a6, sizeof a6));
    T(listen(v4, 1) + listen(v6, 1));
    T(close(v4) + close(v6));
}

static void udp(void)
{
    int x = socket(AF_INET, SOCK_DGRAM, 0), y = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in a = at("127.0.0.1", 0), b, from;
    socklen_t n = sizeof from;
    T(events(x));
    T(bind(x, (void *)&a, sizeof a));
    b = at("127.0.0.1", port_of(x));
    T(send(y, "x", 1, 0));
    T(sendto(y, "hello", 5, 0, (void *)&b, sizeof b));
    T(port_of(y) > 0);
    T(recvfrom(x, buf, 100, 0, (void *)&from, &n));
    T(n);
    T(ntohs(from.sin_port) == port_of(y));
    T(ntohl(from.sin_addr.s_addr) - 0x7f000000);
    T(sendto(x, "back", 4, 0, (void *)&from, sizeof from));
    T(recv(y, buf, 2, 0));
    T(recv(y, buf, 2, MSG_DONTWAIT));
    T(connect(y, (void *)&b, sizeof b));
    printf("%s\n", name_of(y, 0));
    printf("%s\n", name_of(y, 1));
    T(send(y, "", 0, 0));
    T(send(y, "z", 1, 0));
    int left = -1;
    T(ioctl(x, FIONREAD, &left));
    T(left);
    T(recv(x, buf, 10, 0));
    T(recv(x, buf, 10, 0));
    T(sendto(y, buf, 66000, 0, (void *)&b, sizeof b));
    T(send(y, buf, 60000, 0));
    T(recv(x, buf, sizeof buf, 0));
    struct mmsghdr mm[2] = {0};
    struct iovec v[2] = {{"one", 3}, {"two!", 4}};
    mm[0].msg_hdr.msg_iov = &v[0], mm[0].msg_hdr.msg_iovlen = 1;
    mm[1].msg_hdr.msg_iov = &v[1], mm[1].msg_hdr.msg_iovlen = 1;
    T(sendmmsg(y, mm, 2, MSG_NOSIGNAL));
    T(mm[0].msg_len * 10 + mm[1].msg_len);
    T(recv(x, buf, 10, 0) * 10 + recv(x, buf, 10, 0));
    T(close(x));
    T(send(y, "lost", 4, 0));
    pause_ms(5);
    T(send(y, "lost", 4, 0));
    T(connect(y, (void *)&(struct sockaddr){.sa_family = AF_UNSPEC}, sizeof(struct sockaddr)));
    T(send(y, "x", 1, 0));
    T(close(y));
}

static struct sockaddr_un un(const char *path, int abstract)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    strcpy(a.sun_path + abstract, path);
    return a;
}

static void unix_sockets(void)
{
    struct sockaddr_un a = un("agentfw-io-test", 1), got;
    socklen_t len = 2 + 1 + 15, n = sizeof got;
    int l = socket(AF_UNIX, SOCK_STREAM, 0), c = socket(AF_UNIX, SOCK_STREAM, 0), s;
    T(connect(c, (void *)&a, len));
    T(send(c, "x", 1, MSG_NOSIGNAL));
    T(bind(l, (void *)&a, len));
    T(listen(l, 1));
    T(connect(c, (void *)&a, len));
    s = accept(l, (void *)&got, &n);
    T(n);
    printf("%s\n", name_of(c, 1));
    T(write(c, "hi", 2));
    T(read(s, buf, 10));
    int d = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0), e = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0),
        f = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    T(connect(d, (void *)&a, len));
    T(connect(e, (void *)&a, len));
    T(connect(f, (void *)&a, len));
    T(bind(f, (void *)&a, len));
    T(close(l));
    T(recv(d, buf, 1, 0));
    T(events(d));
    T(close(c) + close(s) + close(d) + close(e) + close(f));
    char path[60];
    sprintf(path, "/tmp/agentfw-io-%d", getpid());
    a = un(path, 0);
    l = socket(AF_UNIX, SOCK_STREAM, 0);
    c = socket(AF_UNIX, SOCK_STREAM, 0);
    T(connect(c, (void *)&a, sizeof a));
    T(bind(l, (void *)&a, sizeof a));
    T(bind(c, (void *)&a, sizeof a));
    T(listen(l, 1));
    T(connect(c, (void *)&a, sizeof a));
    n = sizeof got;
    T(getpeername(c, (void *)&got, &n));
    T(strcmp(got.sun_path, path));
    struct stat st;
    T(stat(path, &st));
    T(st.st_mode & S_IFMT);
    T(n == 2 + strlen(path) + 1);
    T(unlink(path));
    T(close(c) + close(l));
}

#define FRAMES 100
static void *drain(void *fd)
{
    static char frame[4000];
    usleep(30000);
    for (int i = 0; i < FRAMES; i++)
        if (recv((int)(long)fd, frame, sizeof frame, 0) != sizeof frame)
            return (void *)1;
    return 0;
}

/* More datagrams than the receiver has room for: the sender waits, as long as that takes. */
static void unix_datagrams(void)
{
    struct sockaddr_un a = un("agentfw-io-datagrams", 1);
    socklen_t len = 2 + 1 + 20;
    int to = socket(AF_UNIX, SOCK_DGRAM, 0), from = socket(AF_UNIX, SOCK_DGRAM, 0), sent = 0;
    pthread_t t;
    void *wrong = 0;
    T(bind(to, (void *)&a, len));
    T(connect(from, (void *)&a, len));
    CHECK(!pthread_create(&t, 0, drain, (void *)(long)to));
    for (int i = 0; i < FRAMES; i++)
        sent += send(from, buf, 4000, 0) == 4000;
    T(sent);
    CHECK(!pthread_join(t, &wrong) && !wrong);
    T(close(to) + close(from));
}

int main(void)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    pairs();
    tcp();
    tcp6();
    udp();
    unix_sockets();
    unix_datagrams();
    return 0;
}
