/* Socket options and kinds of sockets: which there are, what they may be set to, what they are before. The shim keeps what was set.
 *
 * Rules: socket(7), tcp(7), ip(7), ipv6(7), unix(7), and net/core/sock.c, net/ipv4/tcp.c, net/ipv4/ip_sockglue.c, net/ipv6/ipv6_sockglue.c where
 * the pages are silent. tests/guest/call_table.py compares with the running kernel.
 */
#include <errno.h>
#include <limits.h>
#include <linux/in6.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include "sockopt.h"

#define UID 1000                     /* as in calls.c: of all guests */

enum { TCP = 1, UDP = 2, UNIX = 4, INET = TCP | UDP, ALL = INET | UNIX };

struct option {
    uint32_t level, name;
    int32_t first;                   /* before it is set */
    int32_t low, high;               /* what it may be set to; 0, 0: any number, kept as 0 or 1 */
    uint8_t where;                   /* sockets that have it */
    uint8_t six;                     /* AF_INET6 only */
    uint8_t fixed;                   /* cannot be set */
    uint8_t privileged;              /* who sets anything but the first value gets EPERM */
};

#define FLAG(level, name, first, where) {level, name, first, 0, 0, where, 0, 0, 0}
#define NUMBER(level, name, first, low, high, where) {level, name, first, low, high, where, 0, 0, 0}
#define FIXED(level, name, first, where) {level, name, first, 0, 0, where, 0, 1, 0}
#define SIX(name, first, low, high) {IPPROTO_IPV6, name, first, low, high, INET, 1, 0, 0}
#define ROOTS(level, name, where) {level, name, 0, INT_MIN, INT_MAX, where, 0, 0, 1}

static const struct option options[] = {
    FLAG(SOL_SOCKET, SO_REUSEADDR, 0, ALL), FLAG(SOL_SOCKET, SO_DONTROUTE, 0, ALL), FLAG(SOL_SOCKET, SO_BROADCAST, 0, ALL),
    FLAG(SOL_SOCKET, SO_KEEPALIVE, 0, ALL), FLAG(SOL_SOCKET, SO_OOBINLINE, 0, ALL), FLAG(SOL_SOCKET, SO_NO_CHECK, 0, ALL),
    FLAG(SOL_SOCKET, SO_REUSEPORT, 0, ALL), FLAG(SOL_SOCKET, SO_PASSCRED, 0, UNIX), FLAG(SOL_SOCKET, SO_TIMESTAMP, 0, ALL),
    FLAG(SOL_SOCKET, SO_TIMESTAMPNS, 0, ALL), FLAG(SOL_SOCKET, SO_RXQ_OVFL, 0, ALL), FLAG(SOL_SOCKET, SO_WIFI_STATUS, 0, ALL),
    FLAG(SOL_SOCKET, SO_LOCK_FILTER, 0, ALL), FLAG(SOL_SOCKET, SO_ZEROCOPY, 0, ALL), FLAG(SOL_SOCKET, SO_SELECT_ERR_QUEUE, 0, ALL),
    FLAG(SOL_SOCKET, SO_PASSSEC, 0, UNIX),
    NUMBER(SOL_SOCKET, SO_RCVLOWAT, 1, INT_MIN, INT_MAX, ALL), NUMBER(SOL_SOCKET, SO_RCVBUF, 0, INT_MIN, INT_MAX, ALL),
    NUMBER(SOL_SOCKET, SO_SNDBUF, 0, INT_MIN, INT_MAX, ALL), NUMBER(SOL_SOCKET, SO_INCOMING_CPU, -1, INT_MIN, INT_MAX, ALL),
    NUMBER(SOL_SOCKET, SO_PEEK_OFF, -1, INT_MIN, INT_MAX, ALL), NUMBER(SOL_SOCKET, SO_LINGER, 0, INT_MIN, INT_MAX, ALL),
    NUMBER(SOL_SOCKET, SO_RCVTIMEO, 0, INT_MIN, INT_MAX, ALL), NUMBER(SOL_SOCKET, SO_SNDTIMEO, 0, INT_MIN, INT_MAX, ALL),
    NUMBER(SOL_SOCKET, SO_PRIORITY, 0, 0, 6, ALL), NUMBER(SOL_SOCKET, SO_BUSY_POLL, 0, 0, INT_MAX, ALL),
    FIXED(SOL_SOCKET, SO_TYPE, 0, ALL), FIXED(SOL_SOCKET, SO_ERROR, 0, ALL), FIXED(SOL_SOCKET, SO_PROTOCOL, 0, ALL), FIXED(SOL_SOCKET, SO_DOMAIN, 0, ALL),
    FIXED(SOL_SOCKET, SO_ACCEPTCONN, 0, ALL), FIXED(SOL_SOCKET, SO_SNDLOWAT, 1, ALL), FIXED(SOL_SOCKET, SO_PEERCRED, 0, ALL),
    ROOTS(SOL_SOCKET, SO_DEBUG, ALL), ROOTS(SOL_SOCKET, SO_MARK, ALL),

    FLAG(IPPROTO_TCP, TCP_NODELAY, 0, TCP), FLAG(IPPROTO_TCP, TCP_CORK, 0, TCP), FLAG(IPPROTO_TCP, TCP_QUICKACK, 1, TCP),
    NUMBER(IPPROTO_TCP, TCP_MAXSEG, 536, 88, 32767, TCP), NUMBER(IPPROTO_TCP, TCP_KEEPIDLE, 7200, 1, 32767, TCP),
    NUMBER(IPPROTO_TCP, TCP_KEEPINTVL, 75, 1, 32767, TCP), NUMBER(IPPROTO_TCP, TCP_KEEPCNT, 9, 1, 127, TCP), NUMBER(IPPROTO_TCP, TCP_SYNCNT, 6, 1, 127, TCP),
    NUMBER(IPPROTO_TCP, TCP_LINGER2, 60, INT_MIN, INT_MAX, TCP), NUMBER(IPPROTO_TCP, TCP_DEFER_ACCEPT, 0, INT_MIN, INT_MAX, TCP),
    NUMBER(IPPROTO_TCP, TCP_WINDOW_CLAMP, 0, 0, INT_MAX, TCP), NUMBER(IPPROTO_TCP, TCP_USER_TIMEOUT, 0, 0, INT_MAX, TCP),
    NUMBER(IPPROTO_TCP, TCP_FASTOPEN, 0, 0, INT_MAX, TCP), FLAG(IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 0, TCP),
    NUMBER(IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0, INT_MIN, INT_MAX, TCP),

    NUMBER(IPPROTO_IP, IP_TOS, 0, INT_MIN, INT_MAX, INET), NUMBER(IPPROTO_IP, IP_TTL, 64, -1, 255, INET), FLAG(IPPROTO_IP, IP_PKTINFO, 0, INET),
    NUMBER(IPPROTO_IP, IP_MTU_DISCOVER, 1, 0, 5, INET), FLAG(IPPROTO_IP, IP_RECVERR, 0, INET), FLAG(IPPROTO_IP, IP_RECVTTL, 0, INET),
    FLAG(IPPROTO_IP, IP_RECVTOS, 0, INET), FLAG(IPPROTO_IP, IP_FREEBIND, 0, INET), FLAG(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 0, INET),
    NUMBER(IPPROTO_IP, IP_MULTICAST_TTL, 1, -1, 255, INET), FLAG(IPPROTO_IP, IP_MULTICAST_LOOP, 1, INET), FLAG(IPPROTO_IP, IP_MULTICAST_ALL, 1, INET),

    SIX(IPV6_V6ONLY, 0, 0, 0), SIX(IPV6_UNICAST_HOPS, 64, -1, 255), SIX(IPV6_MULTICAST_HOPS, 1, -1, 255), SIX(IPV6_MULTICAST_LOOP, 1, 0, 1),
    SIX(IPV6_TCLASS, 0, -1, 255), SIX(IPV6_MTU_DISCOVER, 1, 0, 5), SIX(IPV6_RECVERR, 0, 0, 0), SIX(IPV6_RECVPKTINFO, 0, 0, 0),
    SIX(IPV6_RECVHOPLIMIT, 0, 0, 0), SIX(IPV6_RECVTCLASS, 0, 0, 0), SIX(IPV6_DONTFRAG, 0, 0, 0),
};

enum { NEW, LISTENS, CONNECTING, CONNECTED };        /* the shim's states of a socket */

struct asked {
    uint32_t level, name;
    int32_t len;                     /* as the program gave it */
    uint32_t domain, type, state;    /* the last as the shim has it */
    uint32_t pid;
    uint8_t where;
};

/* An option that this socket does not have */
static int none(const struct asked *q, int set)
{
    if (q->level == SOL_SOCKET)
        return q->name == SO_PASSCRED || q->name == SO_PASSSEC ? -EOPNOTSUPP : -ENOPROTOOPT;
    if (q->where == UNIX)
        return -EOPNOTSUPP;
    if (set || q->domain == AF_INET6)
        return -ENOPROTOOPT;
    return q->level == IPPROTO_IP || (q->level == IPPROTO_TCP && q->where == TCP) ? -ENOPROTOOPT : -EOPNOTSUPP;
}

static const struct option *find(const struct asked *q)
{
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i].level == q->level && options[i].name == q->name)
            return options[i].where & q->where && (!options[i].six || q->domain == AF_INET6) ? &options[i] : NULL;
    return NULL;
}

/* The kernel keeps twice what is asked for, for its own bookkeeping, within net.core.[rw]mem_max */
static int buffer_size(uint32_t name, int32_t value)
{
    int least = name == SO_SNDBUF ? 4608 : 2304;
    uint32_t asked = (uint32_t)value > 212992 ? 212992 : (uint32_t)value;
    return (int)(asked * 2) > least ? (int)(asked * 2) : least;
}

/* What the option is from now on lies in v; -> its length */
static int set_socket(const struct asked *q, uint8_t v[SOCKOPT_ROOM])
{
    int32_t two[2];
    struct timeval t;
    memcpy(two, v, sizeof two);
    memcpy(&t, v, sizeof t);
    switch (q->name) {
    case SO_LINGER:
        if (q->len < 8)
            return -EINVAL;
        two[0] = two[0] != 0;
        two[1] = two[0] ? two[1] : 0;
        memset(v, 0, SOCKOPT_ROOM);
        memcpy(v, two, sizeof two);
        return 8;
    case SO_RCVTIMEO:
    case SO_SNDTIMEO:
        if (q->len < 16)
            return -EINVAL;
        if (t.tv_usec < 0 || t.tv_usec >= 1000000)
            return -EDOM;
        if (t.tv_sec < 0 || t.tv_sec > LONG_MAX / 1000000000)    /* beyond what is counted: for ever */
            memset(v, 0, SOCKOPT_ROOM);
        return 16;
    case SO_RCVBUF:
    case SO_SNDBUF:
        two[0] = buffer_size(q->name, two[0]);
        break;
    case SO_RCVLOWAT:
        two[0] = two[0] < 0 ? INT_MAX : two[0] ? two[0] : 1;
    }
    memset(v, 0, SOCKOPT_ROOM);
    memcpy(v, two, 4);
    return 4;
}

static int64_t option_set(const struct asked *q, uint8_t v[SOCKOPT_ROOM])
{
    int32_t value = 0;
    if (q->len < 0)
        return -EINVAL;
    const struct option *o = find(q);
    if (!o && q->level != SOL_SOCKET && q->where == UNIX)
        return -EOPNOTSUPP;
    if (q->len < 4 && (q->level == SOL_SOCKET || (q->level == IPPROTO_TCP && q->where == TCP) || (o && o->six)))
        return -EINVAL;
    if (!o || o->fixed)
        return none(q, 1);
    if (q->level == IPPROTO_IP && q->len < 4) {      /* a char is as good there */
        if (!q->len && q->name != IP_TOS && q->name != IP_MTU_DISCOVER && (o->low || o->high || q->name == IP_MULTICAST_LOOP))
            return -EINVAL;
        value = q->len ? v[0] : 0;
    } else {
        memcpy(&value, v, 4);
    }
    if (q->level == SOL_SOCKET && !(o->low == 0 && o->high == 0) && !o->privileged && q->name != SO_PRIORITY && q->name != SO_BUSY_POLL)
        return set_socket(q, v);
    if (o->privileged && value)
        return q->name == SO_DEBUG ? -EACCES : -EPERM;
    if (q->level == SOL_SOCKET && q->name == SO_REUSEPORT && q->where == UNIX && value)
        return -EOPNOTSUPP;
    if (q->level == IPPROTO_IP && q->name == IP_MULTICAST_TTL && q->where == TCP)
        return -EINVAL;
    if (q->level == IPPROTO_TCP && q->name == TCP_DEFER_ACCEPT && value < 0)
        value = 0;
    if (!o->low && !o->high)
        value = value != 0;
    else if (!(q->name == TCP_MAXSEG && q->level == IPPROTO_TCP && !value) && (value < o->low || value > o->high))
        return q->level == SOL_SOCKET ? -EPERM : -EINVAL;
    if (q->level == IPPROTO_IP) {
        if (q->name == IP_TTL && !value)
            return -EINVAL;
        if (q->name == IP_TOS)
            value &= q->where == TCP ? 0xfc : 0xff;
    }
    if ((value == -1 && o->low == -1) || (!value && q->level == IPPROTO_TCP && q->name == TCP_MAXSEG))
        value = o->first;
    memset(v, 0, SOCKOPT_ROOM);
    memcpy(v, &value, 4);
    return 4;
}

static int64_t option_get(const struct asked *q, uint8_t v[SOCKOPT_ROOM])
{
    const struct option *o = find(q);
    memset(v, 0, SOCKOPT_ROOM);
    if (q->len < 0)
        return q->where == UNIX && q->level != SOL_SOCKET ? -EOPNOTSUPP : -EINVAL;
    if (!o)
        return none(q, 0);
    int32_t value = o->first;
    if (q->level == SOL_SOCKET)
        switch (q->name) {
        case SO_TYPE:
            value = (int32_t)q->type;
            break;
        case SO_DOMAIN:
            value = (int32_t)q->domain;
            break;
        case SO_PROTOCOL:
            value = q->where == TCP ? IPPROTO_TCP : q->where == UDP ? IPPROTO_UDP : 0;
            break;
        case SO_ACCEPTCONN:
            value = q->state == LISTENS;
            break;
        case SO_SNDBUF:
            value = q->where == TCP ? 16384 : 212992;
            break;
        case SO_RCVBUF:
            value = q->where == TCP ? 131072 : 212992;
            break;
        case SO_LINGER:
            return 8;
        case SO_PEERCRED: {          /* the other end is the same process; unix(7): of listen() or connect() */
            int32_t mine[3] = {(int32_t)q->pid, UID, UID}, nobody[3] = {0, -1, -1};
            memcpy(v, q->where == UNIX && (q->state == LISTENS || q->state == CONNECTED) ? mine : nobody, 12);
            return 12;
        }
        case SO_RCVTIMEO:
        case SO_SNDTIMEO:
            return 16;
        }
    memcpy(v, &value, 4);
    return 4;
}

/* 0, or what socket() says to such a kind */
static int64_t kind(uint32_t domain, uint32_t type, uint32_t protocol)
{
    uint32_t plain = type & 0xf;
    if (type & ~(uint32_t)(0xf | SOCK_NONBLOCK | SOCK_CLOEXEC))
        return -EINVAL;
    if (domain >= 46 || plain > 10)  /* AF_MAX, SOCK_MAX */
        return domain >= 46 ? -EAFNOSUPPORT : -EINVAL;
    if (domain == AF_UNIX) {
        if (protocol > 1)
            return -EPROTONOSUPPORT;
        return plain == SOCK_STREAM || plain == SOCK_DGRAM || plain == SOCK_SEQPACKET ? 0 : -ESOCKTNOSUPPORT;
    }
    if (domain != AF_INET && domain != AF_INET6)
        return -EAFNOSUPPORT;
    if (protocol >= 263)             /* IPPROTO_MAX */
        return -EINVAL;
    if (plain == SOCK_RAW)
        return protocol ? -EPERM : -EPROTONOSUPPORT;
    if (plain != SOCK_STREAM && plain != SOCK_DGRAM)
        return -ESOCKTNOSUPPORT;
    if (!protocol || protocol == (plain == SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP))
        return 0;
    return plain == SOCK_DGRAM && protocol == (domain == AF_INET ? IPPROTO_ICMP : IPPROTO_ICMPV6) ? -EACCES : -EPROTONOSUPPORT;
}

int64_t socket_op(const struct afw_sqe *e, uint8_t v[SOCKOPT_ROOM], uint32_t pid)
{
    struct asked q = {
        .level = (uint32_t)(e->a[0] >> 32), .name = (uint32_t)e->a[0], .len = (int32_t)e->a[2],
        .domain = (uint16_t)e->a[1], .type = (uint8_t)(e->a[1] >> 16), .state = (uint8_t)(e->a[1] >> 24), .pid = pid,
    };
    if (e->a[4] == AFW_SOCKET_KIND)
        return kind((uint32_t)e->a[0], (uint32_t)e->a[1], (uint32_t)e->a[2]);
    q.where = q.domain == AF_UNIX ? UNIX : q.type == SOCK_STREAM ? TCP : UDP;
    return e->a[4] == AFW_SOCKET_SET ? option_set(&q, v) : option_get(&q, v);
}
