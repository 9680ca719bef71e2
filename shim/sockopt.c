/* Socket options: a few mean something here, the others are kept and shown again. Which there are, the host knows (the cell's sockopt.c). */
#include "io.h"

struct opt *sock_opt(struct sock *s, u64 key)
{
    struct opt *o = s->opts;
    while (o && o->key != key)
        o = o->next;
    return o;
}

u64 sock_deadline(struct sock *s, u32 name)
{
    struct opt *o = s ? sock_opt(s, OPT(SOL_SOCKET, name)) : 0;
    u64 ns = o ? o->data[0] * 1000000000 + o->data[1] * 1000 : 0;
    return ns ? deadline_after(ns) : NEVER;
}

/* What the host says of option `key`; -> its length, v: what it is or is to be. */
static s64 ask(struct sock *s, u64 key, u64 len, u64 *v, u32 how)
{
    s64 r = ring_call(AFW_OP_SOCKET, key, *(u32 *)&s->domain, len, (u64)v, how, 0);
    if (r < 0)
        fail(r);
    return r;
}

SK(setsockopt)
{
    u64 v[2] = {0, 0}, key = b << 32 | (u32)c;
    struct opt *o = sock_opt(s, key);
    copy_in(v, d, min32(e, sizeof v));
    u32 len = ask(s, key, e, v, AFW_SOCKET_SET);
    if (!o) {
        o = alloc(sizeof *o);
        o->next = s->opts;
        s->opts = o;
        o->key = key;
    }
    memcpy(o->data, v, sizeof v);
    o->len = len;
    return 0;
}

SK(getsockopt)
{
    u64 v[2], key = b << 32 | (u32)c;
    struct opt *o = sock_opt(s, key);
    u32 len, *out_len = user_at(e, 4, 1);
    if (o) {
        memcpy(v, o->data, sizeof v);
        len = o->len;
    } else
        len = ask(s, key, *out_len, v, AFW_SOCKET_GET);
    if (key == OPT(SOL_SOCKET, SO_ERROR)) {
        sock_progress(s);
        v[0] = s->error;
        s->error = 0;
    }
    *out_len = len = min32(len, *out_len);
    return copy_out(d, v, len);
}
