/* Socket names, between user memory and struct addr. */
#include "io.h"

#define NAME_MAX_LEN 110             /* struct sockaddr_un */
#define V4 0xffff0000                /* low half of ip[1] for an IPv4 address */
static const u8 own4[4] = {10, 0, 2, 15};
static const u64 own6[2] = {0xfd, 15ul << 56};       /* fd00::f, unique local: getaddrinfo() sorts IPv4 first, as it should here */

int addr_v4(const struct addr *a) { return !a->ip[0] && (u32)a->ip[1] == V4; }
int addr_any(const struct addr *a) { return !a->ip[0] && (!a->ip[1] || a->ip[1] == V4); }

void addr_set(struct addr *a, int v4, const void *ip)
{
    a->ip[0] = 0;
    a->ip[1] = V4;
    memcpy(a->b + (v4 ? 12 : 0), ip, v4 ? 4 : 16);
}

void *addr_ip(const struct addr *a, u32 *n)
{
    *n = addr_v4(a) ? 4 : 16;
    return (void *)(a->b + 16 - *n);
}

int addr_local(const struct addr *a)
{
    if (addr_any(a))
        return 1;
    if (addr_v4(a))
        return a->b[12] == 127 || *(u32 *)(a->b + 12) == *(u32 *)own4;
    return (a->ip[0] == own6[0] && a->ip[1] == own6[1]) || (!a->ip[0] && a->ip[1] == 1ul << 56);
}

/* Our address as the other side at `to` sees it. */
void sock_source(struct sock *s, const struct addr *to, struct addr *out)
{
    int v4 = addr_v4(to);
    u32 n;
    *out = s->local;
    if (s->domain != AF_UNIX && addr_any(out))
        addr_set(out, v4, addr_local(to) ? addr_ip(to, &n) : v4 ? own4 : (void *)own6);
}

static u16 swap(u16 port) { return port << 8 | port >> 8; }

void addr_get(u32 domain, u64 user, u64 len, struct addr *out)
{
    const u8 *name;
    len = (u32)len;
    memset(out, 0, sizeof *out);
    if (len - 2 > NAME_MAX_LEN - 2) {
        if (len < 2 || len > sizeof(struct sockaddr_storage) || domain == AF_UNIX)
            fail(-EINVAL);
        len = NAME_MAX_LEN;
    }
    name = user_at(user, len, 0);
    if (domain != AF_UNIX && len < (domain == AF_INET ? 16 : 24))
        fail(-EINVAL);
    if (*(u16 *)name != domain)
        fail(domain == AF_UNIX ? -EINVAL : -EAFNOSUPPORT);
    if (domain != AF_UNIX) {
        out->port = swap(*(u16 *)(name + 2));
        addr_set(out, domain == AF_INET, name + (domain == AF_INET ? 4 : 8));
        return;
    }
    out->len = len - 2;
    if (len > 2 && name[2])          /* a path ends at its NUL */
        for (out->len = 0; out->len < len - 2 && name[2 + out->len]; out->len++)
            ;
    memcpy(out->b, name + 2, out->len);
}

s64 addr_put(u32 domain, const struct addr *a, u64 user, u64 user_len)
{
    struct { u16 family, port; u8 b[NAME_MAX_LEN]; } name;
    u32 len, room, *out_len;
    if (!user)
        return 0;
    out_len = user_at(user_len, 4, 1);
    room = *out_len;
    if ((int)room < 0)
        return -EINVAL;
    memset(&name, 0, sizeof name);
    name.family = domain;
    if (domain == AF_UNIX) {
        memcpy(&name.port, a->b, a->len);
        len = 2 + a->len + (a->len && a->b[0]);
    } else {
        name.port = swap(a->port);
        len = domain == AF_INET ? 16 : 28;
        memcpy(name.b + (len == 16 ? 0 : 4), a->b + (len == 16 ? 12 : 0), len == 16 ? 4 : 16);
    }
    *out_len = len;
    return copy_out(user, &name, min32(room, len));
}
