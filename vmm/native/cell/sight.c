/* What a VM does, told to people: operations of its ring by kind, with their time; files that it opened; what file rules refused.
 *
 * It lies in memory that the cell shares with the worker (struct afw_sight), behind the VM's window, where its guest cannot look. Entries are
 * only ever added, and counted after they are whole, so that the worker can read at any time. What finds them again is the cell's own.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <x86intrin.h>
#include "machine.h"
#include "rules.h"

#define UNKNOWN (AFW_RING_OPS + AFW_TABLE_END)   /* kinds: the ring's own operations, calls, what is neither */
#define READS_MOST (AFW_SIGHT_FILES / 4 * 3)     /* files that were only read do not take the last places */
struct sight {
    uint8_t at[UNKNOWN + 1];                     /* 1 + index in op[]; 0: not there. UNKNOWN: also of those that there is no room for */
    uint32_t ops, files, bytes;                  /* as in struct afw_sight, which is never read back */
    struct file {
        uint32_t hash, at;                       /* where its entry is */
    } *file;                                     /* AFW_SIGHT_FILES of them; 0: none yet */
};

static struct sight *sight_of(struct vm *vm)
{
    if (vm->shared_sight && !vm->sight)
        vm->sight = calloc(1, sizeof *vm->sight);
    return vm->shared_sight ? vm->sight : 0;
}

void sight_free(struct vm *vm)
{
    if (vm->sight)
        free(vm->sight->file);
    free(vm->sight);
    vm->sight = 0;
}

void sight_anew(struct machine *m)
{
    struct afw_sight *s = m->vm.shared_sight;
    memset(m->vm.ctl->calls, 0, sizeof m->vm.ctl->calls);
    if (s && m->vm.sight) {
        __atomic_store_n(&s->n_ops, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&s->n_files, 0, __ATOMIC_RELAXED);
        s->more_files = 0;
    }
    sight_free(&m->vm);
}

void sight_calls(struct machine *m)
{
    if (m->vm.shared_sight && m->vm.ctl)
        memcpy(m->vm.shared_sight->calls, m->vm.ctl->calls, sizeof m->vm.ctl->calls);
}

/* ---- operations ---- */

static struct afw_sight_op *op_at(struct sight *own, struct afw_sight *s, uint32_t op)
{
    uint32_t kind = op < AFW_RING_OPS ? op : op - AFW_OP_CALL < AFW_TABLE_END ? AFW_RING_OPS + op - AFW_OP_CALL : UNKNOWN;
    if (!own->at[kind] && kind != UNKNOWN && own->ops + !own->at[UNKNOWN] >= AFW_SIGHT_OPS) {
        struct afw_sight_op *rest = op_at(own, s, AFW_SIGHT_OTHER);
        own->at[kind] = own->at[UNKNOWN];
        return rest;
    }
    if (!own->at[kind]) {
        s->op[own->ops] = (struct afw_sight_op){.op = kind == UNKNOWN ? AFW_SIGHT_OTHER : op};
        own->at[kind] = (uint8_t)++own->ops;
        __atomic_store_n(&s->n_ops, own->ops, __ATOMIC_RELEASE);
    }
    return &s->op[own->at[kind] - 1];
}

uint64_t sight_op(struct machine *m, uint32_t op, int64_t result, uint64_t began)
{
    uint64_t now = __rdtsc();
    struct sight *own = sight_of(&m->vm);
    if (own) {
        struct afw_sight_op *x = op_at(own, m->vm.shared_sight, op);
        x->count++;
        x->errors += result < 0 && result != -AFW_AGAIN;
        x->ns += clock_ticks(now - began);
    }
    return now;
}

/* ---- files ---- */

static uint32_t hash_of(const char *path, uint32_t seed)
{
    uint32_t h = seed * 0x9e3779b1u ^ 0x811c9dc5u;
    for (; *path; path++)
        h = (h ^ (uint8_t)*path) * 0x01000193u;
    return h;
}

void sight_file(struct vm *vm, const char *path, struct sight_what what, uint16_t (*rule)(struct vm *vm, const char *path, int action))
{
    struct sight *own = sight_of(vm);
    struct afw_sight *s = vm->shared_sight;
    if (!own || (!own->file && !(own->file = calloc(AFW_SIGHT_FILES, sizeof *own->file))))
        return;
    uint8_t *bytes = (uint8_t *)s + AFW_SIGHT_FILES_AT;
    size_t len = strlen(path), take = len < AFW_SIGHT_PATH ? len : AFW_SIGHT_PATH;
    uint32_t hash = hash_of(path, (uint32_t)what.mode | (uint32_t)what.action << 8 | (uint32_t)what.error << 16);
    for (uint32_t i = 0; i < own->files; i++) {
        struct afw_sight_file *f = (struct afw_sight_file *)(bytes + own->file[i].at);
        if (own->file[i].hash == hash && f->length == len && f->mode == what.mode && f->error == what.error && !memcmp(f + 1, path, take)) {
            f->count++;
            return;
        }
    }
    bool plain = what.mode == AFW_SIGHT_READ && !what.error && !what.action;
    uint32_t size = (uint32_t)(sizeof(struct afw_sight_file) + take + 7) & ~7u;
    if (own->files >= (plain ? READS_MOST : AFW_SIGHT_FILES) || size > AFW_SIGHT_SIZE - AFW_SIGHT_FILES_AT - own->bytes) {
        s->more_files++;
        return;
    }
    struct afw_sight_file *f = (struct afw_sight_file *)(bytes + own->bytes);
    *f = (struct afw_sight_file){.size = size, .count = 1, .length = (uint32_t)len, .error = what.error, .mode = what.mode, .action = what.action,
                                 .rule = rule && what.action ? rule(vm, path, what.action) : 0, .path = (uint16_t)take};
    memcpy(f + 1, path, take);
    own->file[own->files++] = (struct file){hash, own->bytes};
    own->bytes += size;
    __atomic_store_n(&s->n_files, own->files, __ATOMIC_RELEASE);
}
