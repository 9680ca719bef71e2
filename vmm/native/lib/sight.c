/* Reading what a VM did (cell/sight.c). A cell may be a guest's: counts are taken once, entries looked at in the copy. */
#include <errno.h>
#include <string.h>
#include "internal.h"

#define COUNT_MOST ((1ull << 48) - 1)
#define TAKEN(x) __asm__ volatile("" : "+m"(x))   /* what was copied stays as it was looked at: it is not read again from where the cell writes */

struct head {
    uint32_t n_ops, n_calls, n_files, reserved;
    uint64_t more_files;
};

/* Sums of all that is told of one VM are still numbers that anybody can write down. */
static uint64_t bounded(uint64_t n)
{
    return n < COUNT_MOST ? n : COUNT_MOST;
}

int64_t sight_copy(const struct afw_sight *s, uint8_t *out)
{
    const uint8_t *files = (const uint8_t *)s + AFW_SIGHT_FILES_AT;
    struct head h = {.n_ops = load_acquire(&s->n_ops), .more_files = bounded(__atomic_load_n(&s->more_files, __ATOMIC_RELAXED))};
    uint32_t wanted = load_acquire(&s->n_files);
    uint8_t *at = out + sizeof h;
    if (h.n_ops > AFW_SIGHT_OPS)
        h.n_ops = AFW_SIGHT_OPS;
    for (uint32_t i = 0; i < h.n_ops; i++) {
        struct afw_sight_op x = s->op[i];
        TAKEN(x);
        x.count = bounded(x.count);
        x.ns = bounded(x.ns);
        memcpy(at, &x, sizeof x);
        at += sizeof x;
    }
    for (uint32_t i = 0; i < AFW_TABLE_SIZE; i++) {
        uint64_t count = __atomic_load_n(&s->calls[i], __ATOMIC_RELAXED);
        uint64_t number = i < AFW_TABLE_GAP ? i : i + AFW_TABLE_GAP_SIZE, entry = number << 48 | bounded(count);
        if (!count)
            continue;
        memcpy(at, &entry, sizeof entry);
        at += sizeof entry;
        h.n_calls++;
    }
    uint64_t left = AFW_SIGHT_SIZE - AFW_SIGHT_FILES_AT;
    while (h.n_files < wanted && h.n_files < AFW_SIGHT_FILES) {
        struct afw_sight_file f;
        if (left < sizeof f)
            break;
        memcpy(&f, files, sizeof f);
        TAKEN(f);
        if (f.size % 8 || f.size > left || f.path > AFW_SIGHT_PATH || f.size < sizeof f + f.path)
            break;
        memcpy(at, &f, sizeof f);
        memcpy(at + sizeof f, files + sizeof f, f.path);
        memset(at + sizeof f + f.path, 0, f.size - sizeof f - f.path);
        files += f.size;
        at += f.size;
        left -= f.size;
        h.n_files++;
    }
    memcpy(out, &h, sizeof h);
    return at - out;
}

int64_t afw_worker_sight(struct afw_worker *w, uint32_t vm, uint8_t *out)
{
    if (vm >= w->vms)
        return -EINVAL;
    return sight_copy((const struct afw_sight *)(w->windows + (uint64_t)vm * AFW_WINDOW_STRIDE + AFW_SIGHT_AT), out);
}
