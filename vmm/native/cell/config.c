/* The configuration records that the worker left in the shared memory, read once before the jail closes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "machine.h"

#define STRINGS 512

static uint32_t u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t u64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static char *text(const uint8_t *p, uint32_t n)
{
    char *s = memchr(p, 0, n) ? 0 : malloc(n + 1ull);
    if (s) {
        memcpy(s, p, n);
        s[n] = 0;
    }
    return s;
}

static int list_add(char ***list, uint32_t *n, const uint8_t *p, uint32_t size)
{
    if (!*list && !(*list = calloc(STRINGS, sizeof **list)))
        return -ENOMEM;
    char *s = text(p, size);
    if (!s || *n == STRINGS - 2)                 /* elf_stack() counts on the bound */
        return -E2BIG;
    (*list)[(*n)++] = s;
    return 0;
}

static int record(uint32_t type, const uint8_t *p, uint32_t size)
{
    struct config *c = &cell.config;
    int e = vfs_configure(type, p, size);        /* it looks at all: /proc shows program, arguments and memory */
    if (e)
        return e;
    switch (type) {
    case AFW_REC_MOUNT:
    case AFW_REC_FILE:
    case AFW_REC_SYMLINK:
    case AFW_REC_TMP:
    case AFW_REC_ALIAS:
        return 0;
    case AFW_REC_PROGRAM:
        c->program = text(p, size);
        return c->program ? 0 : -EINVAL;
    case AFW_REC_ARG:
        return list_add(&c->argv, &c->argc, p, size);
    case AFW_REC_ENV:
        return list_add(&c->env, &c->envc, p, size);
    case AFW_REC_MEMORY:
        if (size != 8)
            return -EINVAL;
        c->memory = u64(p);
        return c->memory && c->memory <= AFW_SPACE_END ? 0 : -ERANGE;
    case AFW_REC_SNAPSHOT_IN:
    case AFW_REC_SNAPSHOT_OUT:
        if (size != 4)
            return -EINVAL;
        *(type == AFW_REC_SNAPSHOT_IN ? &c->snapshot_in : &c->snapshot_out) = (int)u32(p);
        return 0;
    case AFW_REC_HOT_IN:
        if (size != 4)
            return -EINVAL;
        hot_load((int)u32(p));
        return 0;
    case AFW_REC_HOT_OUT:
        if (size != 4)
            return -EINVAL;
        c->hot_out = (int)u32(p);
        return 0;
    case AFW_REC_RECYCLE:
        if (size != 4)
            return -EINVAL;
        c->recycle = u32(p);
        return 0;
    case AFW_REC_SAVE:
    case AFW_REC_SAVED:
        if (size != 4)
            return -EINVAL;
        *(type == AFW_REC_SAVE ? &c->save : &c->saved) = (int)u32(p);
        return 0;
    case AFW_REC_SLICE:
        if (size != 8)
            return -EINVAL;
        c->slice_ns = u64(p);
        return c->slice_ns >= 1000 && c->slice_ns <= 10000000000 ? 0 : -ERANGE;
    case AFW_REC_TRACE:
        return trace_configure(p, size);
    case AFW_REC_KEY:
        if (size != sizeof c->key)
            return -EINVAL;
        memcpy(c->key, p, size);
        c->has_key = true;
        return 0;
    default:
        return -ENOTSUP;
    }
}

/* -> payload of the next record, its end moves *at on; 0 at the end or if it is broken (*type says which) */
static const uint8_t *next(const uint8_t *records, uint64_t size, uint64_t *at, struct afw_record *r)
{
    if (*at > size || size - *at < sizeof *r)
        return 0;
    memcpy(r, records + *at, sizeof *r);
    uint64_t payload = *at + sizeof *r, padded = (r->size + 7ull) & ~7ull;
    if (size - payload < r->size)
        return 0;
    *at = payload + padded;
    return records + payload;
}

int config_parse(const uint8_t *records, uint64_t size, char *error, size_t error_size)
{
    struct config *c = &cell.config;
    *c = (struct config){.memory = 256ull << 20, .slice_ns = 5000000, .snapshot_in = -1, .snapshot_out = -1, .hot_out = -1, .save = -1, .saved = -1};
    uint64_t at = 0;
    struct afw_record r;
    for (unsigned i = 0;; i++) {
        const uint8_t *p = next(records, size, &at, &r);
        if (!p) {
            snprintf(error, error_size, "configuration record %u lies outside the configuration", i);
            return -1;
        }
        if (r.type == AFW_REC_END)
            return 0;
        int e = record(r.type, p, r.size);
        if (e) {
            snprintf(error, error_size, "configuration record %u (type %u, %u bytes): %s", i, r.type, r.size, strerror(-e));
            return -1;
        }
    }
}

void config_fds(const uint8_t *records, uint64_t size, void (*keep)(int fd))
{
    uint64_t at = 0;
    struct afw_record r;
    const uint8_t *p;
    while ((p = next(records, size, &at, &r)) && r.type != AFW_REC_END) {
        if ((r.type == AFW_REC_MOUNT || r.type == AFW_REC_SNAPSHOT_IN || r.type == AFW_REC_SNAPSHOT_OUT || r.type == AFW_REC_HOT_IN ||
             r.type == AFW_REC_HOT_OUT || r.type == AFW_REC_SAVE || r.type == AFW_REC_SAVED ||
             r.type == AFW_REC_TRACE) && r.size >= 4)
            keep((int)u32(p));
    }
}
