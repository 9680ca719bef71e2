/* Socket options: a few mean something here, the others are kept and shown again. */
#include "io.h"

struct opt *sock_opt(struct sock *s, u32 key)
{
    struct opt *o = s->opts;
    while (o && o->key != key)
        o = o->next;
    return o && o->data[0] | o->data[1] ? o : 0;
}

u64 sock_deadline(struct sock *s, u32 name)
{
    struct opt *o = s ? sock_opt(s, SOL_SOCKET << 16 | name) : 0;
    return o ? deadline_after(o->data[0] * 1000000000 + o->data[1] * 1000) : NEVER;
}

static u32 key_of(u64 level, u64 name)
{
    if (level > 0x7fff || name > 0xffff)
        fail(-ENOPROTOOPT);
    return level << 16 | name;
}

SK(setsockopt)
{
    u32 len = min32(e, sizeof s->opts->data), key = key_of(b, c);
    struct opt *o = s->opts;
    if (len < 4)
        return -EINVAL;
    while (o && o->key != key)
        o = o->next;
    if (!o) {
        o = alloc(sizeof *o);
        o->next = s->opts;
        s->opts = o;
        o->key = key;
    }
    copy_in(o->data, d, o->len = len);
    return 0;
}

SK(getsockopt)
{
    u64 v[2] = {0, 0};
    u32 room, len = 4, key = key_of(b, c);
    struct opt *o = sock_opt(s, key);
    u32 *out_len = user_at(e, 4, 1);
    room = *out_len;
    switch (key - (SOL_SOCKET << 16)) {
    case SO_TYPE:
        v[0] = s->type;
        break;
    case SO_DOMAIN:
        v[0] = s->domain;
        break;
    case SO_PROTOCOL:
        if (s->domain != AF_UNIX)
            v[0] = s->type == SOCK_STREAM ? 6 : 17;
        break;
    case SO_ERROR:
        sock_progress(s);
        v[0] = s->error;
        s->error = 0;
        break;
    case SO_RCVTIMEO:
    case SO_SNDTIMEO:
        len = 16;
        break;
    case SO_RCVBUF:
    case SO_SNDBUF:
        v[0] = 212992;
    }
    if (o) {
        v[0] = o->data[0];
        v[1] = o->data[1];
        len = o->len;
    }
    len = min32(len, room);
    *out_len = len;
    return copy_out(d, v, len);
}
