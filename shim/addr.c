/* Socket names, between user memory and struct addr. */
#include "io.h"

#define NAME_MAX_LEN 110             /* struct sockaddr_un */
static const u8 mapped[12] = {[10] = 0xff, [11] = 0xff};
static const u8 own4[4] = {10, 0, 2, 15};
static const u8 own6[16] = {0xfd, [15] = 15};        /* unique local: getaddrinfo() sorts IPv4 first, as it should here */

int addr_v4(const u8 *ip) { return !memcmp(ip, mapped, 12); }

void addr_map4(u8 *ip, const void *v4)
{
    memcpy(ip, mapped, 12);
    memcpy(ip + 12, v4, 4);
}

static int zero(const u8 *p, u32 n)
{
    while (n && !*p++)
        n--;
    return !n;
}

int addr_any(const struct addr *a)
{
    return zero(a->b, 16) || (addr_v4(a->b) && zero(a->b + 12, 4));
}

int addr_local(const struct addr *a)
{
    const u8 *b = a->b;
    if (addr_v4(b))
        return b[12] == 127 || addr_any(a) || !memcmp(b + 12, own4, 4);
    return (zero(b, 15) && b[15] < 2) || !memcmp(b, own6, 16);
}

/* Our address as the other side at `to` sees it. */
void sock_source(struct sock *s, const struct addr *to, struct addr *out)
{
    *out = s->local;
    if (s->domain == AF_UNIX || !addr_any(out))
        return;
    if (addr_local(to))
        memcpy(out->b, to->b, 16);
    else if (addr_v4(to->b))
        addr_map4(out->b, own4);
    else
        memcpy(out->b, own6, 16);
}

/* Where a name's bytes lie in the C library's structures: the first byte, and how many. */
static u32 layout(u32 domain, const struct addr *a, u32 *n)
{
    *n = domain == AF_UNIX ? a->len : domain == AF_INET ? 4 : 16;
    return domain == AF_UNIX ? 2 : domain == AF_INET ? 4 : 8;
}

static u16 swap(u16 port) { return port << 8 | port >> 8; }

void addr_get(u32 domain, u64 user, u64 len, struct addr *out)
{
    const u8 *name;
    u32 n;
    len = (u32)len;
    memset(out, 0, sizeof *out);
    if (len - 2 > NAME_MAX_LEN - 2) {
        if (len < 2 || domain == AF_UNIX)
            fail(-EINVAL);
        len = NAME_MAX_LEN;
    }
    name = user_at(user, len, 0);
    if (domain != AF_UNIX && len < (domain == AF_INET ? 16 : 24))
        fail(-EINVAL);
    if (*(u16 *)name != domain)
        fail(domain == AF_UNIX ? -EINVAL : -EAFNOSUPPORT);
    out->len = len - 2;
    if (name[2])                     /* a path ends at its NUL */
        for (u32 i = 2; i < len; i++)
            if (!name[i])
                len = i, out->len = i - 2;
    u32 at = layout(domain, out, &n);
    if (domain == AF_UNIX) {
        memcpy(out->b, name + at, n);
        return;
    }
    out->len = 0;
    out->port = swap(*(u16 *)(name + 2));
    if (domain == AF_INET)
        addr_map4(out->b, name + at);
    else
        memcpy(out->b, name + at, n);
}

s64 addr_put(u32 domain, const struct addr *a, u64 user, u64 user_len)
{
    u8 name[NAME_MAX_LEN + 1] = {0};
    u32 n, at, len, room, *out_len;
    if (!user)
        return 0;
    out_len = user_at(user_len, 4, 1);
    room = *out_len;
    if ((int)room < 0)
        return -EINVAL;
    at = layout(domain, a, &n);
    *(u16 *)name = domain;
    if (domain != AF_UNIX)
        *(u16 *)(name + 2) = swap(a->port);
    memcpy(name + at, a->b + (domain == AF_INET ? 12 : 0), n);
    len = domain == AF_INET ? 16 : domain == AF_INET6 ? 28 : at + n + (n && a->b[0]);
    *out_len = len;
    return copy_out(user, name, min32(room, len));
}
