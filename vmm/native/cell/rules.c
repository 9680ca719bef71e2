/* Matching paths and ring operations against a VM's rules. See rules.h. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "rules.h"

struct part {
    const uint8_t *bytes;
    uint16_t length, kind;
};
struct rule {
    const struct part *part;
    uint64_t deep;                   /* bits of the parts that are AFW_PART_DEPTH */
    uint32_t parts;
    uint32_t action;
    uint32_t origin;                 /* number of the table's rule that it is, or was made for, plus 1; 0: none */
};
struct memo {                        /* the states at a directory that was looked at lately */
    uint64_t *state;                 /* one a rule; 0: none yet */
    uint64_t used;                   /* when: the least goes */
    size_t len;
    char path[PATH_MAX];             /* without its NUL; the root: nothing */
};
#define MEMOS 16                     /* files have several names where mounts overlap: one a name, and one more */
struct rules {
    struct memo *memo;               /* MEMOS of them; 0: none yet */
    uint64_t memo_clock;
    struct afw_rules head;
    uint8_t *table;
    struct part *part;               /* of the table */
    struct rule *rule;               /* the table's, then those added: their parts and bytes are allocated one by one */
    uint32_t n, given;
};
struct rules_cursor {                /* of the rules that may hide something here */
    uint32_t n;
    struct {
        const struct rule *rule;
        uint64_t state;
    } at[];
};

/* ---- names ---- */

static size_t character(const uint8_t *s, size_t n)
{
    size_t i = 1;
    while (i < n && (s[i] & 0xc0) == 0x80)
        i++;
    return i;
}

static int in_set(const uint8_t *set, uint8_t c)
{
    return c < 128 && set[c / 8] >> (c % 8) & 1;
}

/* A token that is not AFW_GLOB_STAR against the head of s. -> bytes it took, -1: does not match; *size: of the token */
static int token(const uint8_t *t, const uint8_t *s, size_t n, size_t *size)
{
    switch (*t) {
    case AFW_GLOB_TEXT:
        *size = 2 + (size_t)t[1];
        return n >= t[1] && !memcmp(t + 2, s, t[1]) ? t[1] : -1;
    case AFW_GLOB_ANY:
        *size = 1;
        return n ? (int)character(s, n) : -1;
    default:
        *size = 17;
        return n && in_set(t + 1, *s) == (*t == AFW_GLOB_SET) ? (int)character(s, n) : -1;
    }
}

static int glob(const uint8_t *t, size_t left, const uint8_t *s, size_t n)
{
    const uint8_t *end = t + left, *star = 0, *from = 0;
    for (;;) {
        if (t < end && *t == AFW_GLOB_STAR) {
            star = ++t;
            from = s;
            continue;
        }
        size_t size = 0;
        int took = t < end ? token(t, s, n, &size) : -1;
        if (t == end && !n)
            return 1;
        if (took >= 0) {
            t += size;
            s += took;
            n -= (size_t)took;
            continue;
        }
        if (!star || (n + (size_t)(s - from)) == 0)
            return 0;
        n += (size_t)(s - from) - 1; /* the last star takes one byte more */
        s = ++from;
        t = star;
    }
}

static int part_matches(const struct part *p, const char *name, size_t n)
{
    if (p->kind == AFW_PART_NAME)
        return p->length == n && !memcmp(p->bytes, name, n);
    return glob(p->bytes, p->length, (const uint8_t *)name, n);
}

/* ---- patterns ---- */

static uint64_t closed(const struct rule *u, uint64_t state)
{
    for (uint64_t more; (more = state | (state & u->deep) << 1) != state;)
        state = more;
    return state;
}

static uint64_t accepts(const struct rule *u)
{
    return 1ull << u->parts;
}

static uint64_t step(const struct rule *u, uint64_t state, const char *name, size_t n)
{
    if (state & accepts(u))
        return state;                /* all below is matched as well */
    uint64_t next = state & u->deep;
    for (uint64_t s = state & ~u->deep; s; s &= s - 1) {
        unsigned i = (unsigned)__builtin_ctzll(s);
        if (part_matches(&u->part[i], name, n))
            next |= 2ull << i;
    }
    return closed(u, next);
}

/* State after a path; *above: whether a directory above it was matched */
static uint64_t run(const struct rule *u, const char *path, int *above)
{
    uint64_t state = closed(u, 1);
    *above = 0;
    while (*path == '/')
        path++;
    while (*path && state) {
        if (state & accepts(u)) {
            *above = 1;
            break;
        }
        size_t n = strcspn(path, "/");
        state = step(u, state, path, n);
        path += n + (path[n] == '/');
    }
    return state;
}

static void forget(struct rules *r)
{
    for (int k = 0; r->memo && k < MEMOS; k++)
        free(r->memo[k].state);
    free(r->memo);
    r->memo = 0;
}

/* All rules' states at a directory (`len` bytes, no slash at the end), from the nearest one above it that is remembered: else a walk
 * through a thousand directories would take a million steps a rule. 0: no memory */
static const uint64_t *states_at(struct rules *r, const char *dir, size_t len)
{
    struct memo *best = 0, *m;
    if (!r->memo && !(r->memo = calloc(MEMOS, sizeof *r->memo)))
        return 0;
    for (int k = 0; k < MEMOS; k++) {
        m = &r->memo[k];
        if (m->state && m->len <= len && (!best || m->len > best->len) && !memcmp(m->path, dir, m->len) && (m->len == len || dir[m->len] == '/'))
            best = m;
    }
    if (best)
        best->used = ++r->memo_clock;
    if (best && best->len == len)
        return best->state;
    m = r->memo;
    for (int k = 1; k < MEMOS; k++)
        m = r->memo[k].used < m->used ? &r->memo[k] : m;
    m->used = ++r->memo_clock;
    if (!m->state && !(m->state = malloc((r->n + 1ull) * sizeof *m->state)))
        return 0;
    for (uint32_t i = 0; i < r->n; i++) {
        const struct rule *u = &r->rule[i];
        uint64_t state = best ? best->state[i] : closed(u, 1);
        for (size_t at = best ? best->len : 0; at < len && state;) {
            const char *name = dir + at + 1, *end = memchr(name, '/', len - at - 1);
            size_t n = end ? (size_t)(end - name) : len - at - 1;
            state = step(u, state, name, n);
            at += 1 + n;
        }
        m->state[i] = state;
    }
    memcpy(m->path, dir, len);
    m->len = len;
    return m->state;
}

int rules_path(struct rules *r, const char *path, int *above)
{
    int action = 0, higher = 0;
    const char *name = strrchr(path, '/');
    const uint64_t *at = name && name[1] ? states_at(r, path, (size_t)(name - path)) : 0;
    for (uint32_t i = 0; i < r->n; i++) {
        const struct rule *u = &r->rule[i];
        int act = (int)u->action, up;
        if (act <= action && act <= higher)
            continue;
        uint64_t state = at ? at[i] : run(u, path, &up);
        if (at) {
            up = !!(state & accepts(u));
            state = state ? step(u, state, name + 1, strlen(name + 1)) : 0;
        }
        if (!(state & accepts(u)))
            continue;
        action = act > action ? act : action;
        higher = up && act > higher ? act : higher;
    }
    if (above)
        *above = higher;
    return action;
}

uint32_t rules_which(struct rules *r, const char *path, int action)
{
    const char *name = strrchr(path, '/');
    const uint64_t *at = name && name[1] ? states_at(r, path, (size_t)(name - path)) : 0;
    for (uint32_t i = 0; i < r->n; i++) {
        const struct rule *u = &r->rule[i];
        int up;
        if ((int)u->action != action)
            continue;
        uint64_t state = !at ? run(u, path, &up) : at[i] ? step(u, at[i], name + 1, strlen(name + 1)) : 0;
        if (state & accepts(u))
            return u->origin;
    }
    return 0;
}

struct rules_cursor *rules_at(const struct rules *r, const char *directory)
{
    struct rules_cursor *c = malloc(sizeof *c + r->n * sizeof *c->at);
    int up;
    if (!c)
        return 0;
    c->n = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        const struct rule *u = &r->rule[i];
        uint64_t state = u->action == AFW_RULE_HIDE ? run(u, directory, &up) : 0;
        if (state) {
            c->at[c->n].rule = u;
            c->at[c->n++].state = state;
        }
    }
    return c;
}

int rules_hide(const struct rules_cursor *c, const char *name)
{
    size_t n = strlen(name);
    for (uint32_t i = 0; i < c->n; i++) {
        const struct rule *u = c->at[i].rule;
        if (step(u, c->at[i].state, name, n) & accepts(u))
            return 1;
    }
    return 0;
}

int rules_may_move(const struct rules *r, const char *from, const char *to)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const struct rule *u = &r->rule[i];
        int up;
        uint64_t before = run(u, from, &up), after = to ? run(u, to, &up) : 0;
        /* What may come below `from` on the way to a match must be possible below `to`. */
        if (!(after & accepts(u)) && before & ~after)
            return 0;
    }
    return 1;
}

/* ---- rules of our own ---- */

uint32_t rules_action(const struct rules *r, uint32_t i)
{
    return r->rule[i].action;
}

int rules_prefix(const struct rules *r, uint32_t i, char *out, uint32_t *names)
{
    if (i >= r->given)
        return 0;
    const struct rule *u = &r->rule[i];
    size_t len = 0;
    *names = 0;
    strcpy(out, "/");
    for (uint32_t k = 0; k < u->parts && u->part[k].kind == AFW_PART_NAME; k++) {
        if (len + 1 + u->part[k].length >= PATH_MAX)
            break;
        out[len++] = '/';
        memcpy(out + len, u->part[k].bytes, u->part[k].length);
        len += u->part[k].length;
        out[len] = 0;
        ++*names;
    }
    return 1;
}

int rules_add(struct rules *r, const char *path, uint32_t i, uint32_t names, int action)
{
    const struct rule *like = i < r->given ? &r->rule[i] : 0;
    uint32_t tail = like && names < like->parts ? like->parts - names : 0, parts = 0;
    for (const char *s = path; *s; s++)
        parts += *s == '/' && s[1] && s[1] != '/';
    if (r->n - r->given >= RULES_ADDED || parts + tail > AFW_RULES_PARTS)
        return -E2BIG;
    size_t len = strlen(path) + 1;
    struct part *part = calloc(1, (parts + tail) * sizeof *part + len);
    struct rule *grown = realloc(r->rule, (r->n + 1ull) * sizeof *grown);
    if (grown)
        r->rule = grown;
    if (!part || !grown) {
        free(part);
        return -ENOMEM;
    }
    char *text = (char *)(part + parts + tail);
    memcpy(text, path, len);
    struct rule *u = &r->rule[r->n];
    *u = (struct rule){.part = part, .parts = parts + tail, .action = (uint32_t)action, .origin = like ? i + 1 : 0};
    uint32_t k = 0;
    for (char *s = text; *s;) {
        size_t n = strcspn(s, "/");
        if (n)
            part[k++] = (struct part){(const uint8_t *)s, (uint16_t)n, AFW_PART_NAME};
        s += n + (s[n] == '/');
    }
    for (uint32_t t = 0; t < tail; t++)
        part[k++] = r->rule[i].part[names + t];
    for (uint32_t b = 0; b < k; b++)
        u->deep |= (uint64_t)(part[b].kind == AFW_PART_DEPTH) << b;
    r->n++;
    forget(r);
    return 0;
}

/* ---- the table ---- */

static int tokens_good(const uint8_t *t, size_t left)
{
    while (left) {
        size_t size = *t == AFW_GLOB_STAR || *t == AFW_GLOB_ANY ? 1 : *t == AFW_GLOB_SET || *t == AFW_GLOB_NOT ? 17 : 0;
        if (*t == AFW_GLOB_TEXT && left > 2 && t[1])
            size = 2 + (size_t)t[1];
        if (!size || size > left)
            return 0;
        t += size;
        left -= size;
    }
    return 1;
}

static int part_good(const struct part *p)
{
    switch (p->kind) {
    case AFW_PART_NAME:
        return p->length && p->length <= NAME_MAX && !memchr(p->bytes, '/', p->length) && !memchr(p->bytes, 0, p->length);
    case AFW_PART_GLOB:
        return p->length && p->length <= 2048 && tokens_good(p->bytes, p->length);
    default:
        return p->kind == AFW_PART_DEPTH && !p->length;
    }
}

int rules_parse(const uint8_t *shared, uint64_t size, struct rules **out)
{
    struct rules *r = calloc(1, sizeof *r);
    int e = -EINVAL;
    if (!r)
        return -ENOMEM;
    if (size < sizeof r->head || size > AFW_RULES_SIZE)
        goto bad;
    r->table = malloc(size);
    if (!r->table) {
        e = -ENOMEM;
        goto bad;
    }
    memcpy(r->table, shared, size);  /* the one look at it */
    memcpy(&r->head, r->table, sizeof r->head);
    const struct afw_rules *h = &r->head;
    if (h->size != size || h->n_rules > AFW_RULES_MAX || h->n_parts > size / sizeof(struct afw_rule_part) ||
        (h->error != EPERM && h->error != ENOSYS))
        goto bad;
    uint64_t rules_at = sizeof *h, parts_at = rules_at + h->n_rules * sizeof(struct afw_rule);
    uint64_t bytes_at = parts_at + h->n_parts * sizeof(struct afw_rule_part);
    if (bytes_at > size)
        goto bad;
    r->part = calloc(h->n_parts + 1ull, sizeof *r->part);
    r->rule = calloc(h->n_rules + 1ull, sizeof *r->rule);
    if (!r->part || !r->rule) {
        e = -ENOMEM;
        goto bad;
    }
    for (uint32_t i = 0; i < h->n_parts; i++) {
        struct afw_rule_part p;
        memcpy(&p, r->table + parts_at + i * sizeof p, sizeof p);
        if (p.offset < bytes_at || p.offset > size || p.length > size - p.offset)
            goto bad;
        r->part[i] = (struct part){r->table + p.offset, p.length, p.kind};
        if (!part_good(&r->part[i]))
            goto bad;
    }
    for (uint32_t i = 0; i < h->n_rules; i++) {
        struct afw_rule u;
        memcpy(&u, r->table + rules_at + i * sizeof u, sizeof u);
        if (u.parts > AFW_RULES_PARTS || u.first > h->n_parts || u.parts > h->n_parts - u.first || u.action < AFW_RULE_READ ||
            u.action > AFW_RULE_HIDE)
            goto bad;
        r->rule[i] = (struct rule){.part = r->part + u.first, .parts = u.parts, .action = u.action, .origin = i + 1};
        for (uint32_t k = 0; k < u.parts; k++)
            r->rule[i].deep |= (uint64_t)(r->rule[i].part[k].kind == AFW_PART_DEPTH) << k;
    }
    r->n = r->given = h->n_rules;
    *out = r;
    return 0;
bad:
    rules_free(r);
    return e;
}

void rules_free(struct rules *r)
{
    if (!r)
        return;
    forget(r);
    for (uint32_t i = r->given; i < r->n; i++)
        free((void *)r->rule[i].part);
    free(r->rule);
    free(r->part);
    free(r->table);
    free(r);
}

/* ---- operations ---- */

static int bit(const uint64_t *set, uint32_t n)
{
    return set[n / 64] >> (n % 64) & 1;
}

enum rules_verdict rules_op(const struct rules *r, const struct afw_sqe *e)
{
    uint32_t n = e->op == AFW_OP_UNLINK && e->a[2] & AT_REMOVEDIR ? AFW_RULES_RMDIR : e->op;
    if (n >= 128)
        return RULES_OK;             /* there is no such operation */
    return bit(r->head.kill, n) ? RULES_KILL : bit(r->head.deny, n) ? RULES_REFUSE : RULES_OK;
}

uint64_t rules_take_bytes(struct rules *r, uint64_t want)
{
    uint64_t granted = want < r->head.write_bytes ? want : r->head.write_bytes;
    if (r->head.write_bytes != UINT64_MAX)
        r->head.write_bytes -= granted;
    return granted;
}

void rules_give_back(struct rules *r, uint64_t bytes)
{
    if (r->head.write_bytes != UINT64_MAX)
        r->head.write_bytes += bytes;
}

void rules_left(const struct rules *r, uint64_t *bytes, uint64_t *names)
{
    *bytes = r->head.write_bytes;
    *names = r->head.creates;
}

void rules_leave(struct rules *r, uint64_t bytes, uint64_t names)
{
    if (bytes < r->head.write_bytes)
        r->head.write_bytes = bytes;
    if (names < r->head.creates)
        r->head.creates = names;
}

int rules_take_name(struct rules *r)
{
    if (r->head.creates == UINT64_MAX)
        return 0;
    if (!r->head.creates)
        return -EDQUOT;
    r->head.creates--;
    return 0;
}

void rules_give_name(struct rules *r)
{
    if (r->head.creates != UINT64_MAX)
        r->head.creates++;
}

int rules_error(const struct rules *r)
{
    return (int)r->head.error;
}

int rules_files(const struct rules *r)
{
    return r->n != 0;
}

int rules_guest(const struct rules *r, uint32_t syscall)
{
    return syscall < 512 && bit(r->head.guest, syscall);
}

const char *rules_op_name(uint32_t op)
{
    static const char *const names[] = {
        [AFW_OP_OPEN] = "open",         [AFW_OP_READDIR] = "getdents64", [AFW_OP_READLINK] = "readlink", [AFW_OP_ACCESS] = "access",
        [AFW_OP_MKDIR] = "mkdir",       [AFW_OP_UNLINK] = "unlink",      [AFW_OP_RENAME] = "rename",     [AFW_OP_SYMLINK] = "symlink",
        [AFW_OP_LINK] = "link",         [AFW_OP_CHMOD] = "chmod",        [AFW_OP_UTIMENS] = "utimensat", [AFW_OP_TRUNCATE] = "truncate",
        [AFW_OP_FSYNC] = "fsync",       [AFW_OP_STATFS] = "statfs",      [AFW_OP_CHDIR] = "chdir",       [AFW_OP_GETCWD] = "getcwd",
        [AFW_OP_FLOCK] = "flock",       [AFW_OP_FCHMOD] = "fchmod",      [AFW_OP_FALLOCATE] = "fallocate", [AFW_OP_FLOW_OPEN] = "connect",
        [AFW_OP_MKNOD] = "mknod",
    };
    return op < sizeof names / sizeof *names && names[op] ? names[op] : "that";
}
