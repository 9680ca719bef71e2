/* Rewriting syscall, cpuid and xgetbv sites.
 *
 * The worker decodes, this file patches. Code that became executable is copied into the runner's site area and the worker is asked;
 * until it answers (and for whatever it refuses) the LSTAR backstop serves. A site is patched by putting `jmp stub` over the five
 * bytes at its window's start; the rest of the window, the site included, stays, so that whoever jumps to it still finds it. The stub
 * runs the displaced instructions and enters the shim.
 *
 * A jump goes in only while no thread can stand inside the five bytes: no thread is stopped by an upcall (ctl.preempted, the guest's
 * word: a lie harms that guest only) and the vCPU's own RIP is elsewhere, and not in the shim either, unless at a doorbell. Until
 * then the patch waits in the VM's list.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "vmm.h"

#define PAGE 4096
#define JUMP 5
#define WINDOW_MAX 20
#define REQUESTS 64                  /* waiting, a runner; more are dropped */
#define TODO 4096                    /* patches waiting, a VM */
#define MEMORY_MAX 0x100000          /* of anonymous code looked at and remembered */
#define LAZY_BEFORE 16               /* pages around a return address */
#define LAZY_AFTER 8
#define SEEN 256                     /* return addresses remembered, a VM */
#define UNSAFE 32                    /* and sites without a safe window, a runner */
#define CONTEXT 24                   /* bytes on both sides of a return address that tell whether it is the same site */

struct request {
    struct vm *vm;                   /* 0: gone or its code is; the answer is thrown away */
    struct sites *owner;
    uint32_t kind;
    uint64_t gva, len;               /* LAZY: gva is the return address, until sent */
    uint64_t lazy_rip;
    uint64_t id;
};

/* A runner is a thread, and a VM is touched by its runner only. */
static __thread struct {
    struct request queue[REQUESTS];
    unsigned queued;
    struct request current;          /* in the worker's hands if id != 0 */
    uint8_t *copy;                   /* of the current MEMORY or LAZY request: such code may change before the answer */
    uint64_t last_id;
    struct {
        uint64_t rip;
        uint8_t code[2 * CONTEXT];
    } unsafe[UNSAFE];                /* all VMs of a snapshot have the same ones: the worker is asked once */
    unsigned n_unsafe;
} R;

struct todo {
    uint64_t gva;
    uint8_t length, kind, site_length, lazy;
    uint8_t bytes[WINDOW_MAX];       /* what must still be there */
};

struct seen {
    uint64_t rip;
    uint32_t count;
};

struct sites {
    uint64_t next;                   /* free byte of the stub area */
    uint64_t last_backstop;
    struct todo *todo;
    unsigned todos;
    struct seen seen[SEEN];
};

static void send_next(void);

struct sites *sites_new(struct vm *vm)
{
    (void)vm;
    struct sites *s = calloc(1, sizeof *s);
    if (s)
        s->next = AFW_SITES;
    return s;
}

void sites_free(struct sites *s)
{
    if (!s)
        return;
    unsigned kept = 0;
    for (unsigned i = 0; i < R.queued; i++)
        if (R.queue[i].owner != s)
            R.queue[kept++] = R.queue[i];
    R.queued = kept;
    if (R.current.owner == s)
        R.current.vm = 0;
    free(s->todo);
    free(s);
}

/* ---- asking ---- */

static void ask(struct vm *vm, uint32_t kind, uint64_t gva, uint64_t len)
{
    if (R.queued < REQUESTS)
        R.queue[R.queued++] = (struct request){.vm = vm, .owner = vm->sites, .kind = kind, .gva = gva, .len = len};
    send_next();
}

void sites_code(struct vm *vm, uint32_t kind, uint64_t gva, uint64_t len)
{
    if (!vm->sites || !len || gva < AFW_IMAGE || gva >= AFW_SPACE_END || len > AFW_SPACE_END - gva)
        return;
    if (kind == AFW_SITES_MEMORY && len > MEMORY_MAX)
        len = MEMORY_MAX;
    if (len <= AFW_SITE_AREA)
        ask(vm, kind, gva, len);
}

/* The pages around r->lazy_rip that can be read; sets gva and len. */
static int read_around(struct request *r, uint8_t *area)
{
    uint64_t page = (r->lazy_rip - 1) & ~(uint64_t)(PAGE - 1);
    uint64_t low = page, high = page;
    uint8_t *base = area + LAZY_BEFORE * PAGE; /* where `page` lies */
    while (high - page < LAZY_AFTER * PAGE && high < AFW_SPACE_END && !guest_read(r->vm, base + (high - page), high, PAGE))
        high += PAGE;
    if (high == page)
        return -EFAULT;
    while (page - low < LAZY_BEFORE * PAGE && low - PAGE >= AFW_IMAGE &&
           !guest_read(r->vm, base - (page - low) - PAGE, low - PAGE, PAGE))
        low -= PAGE;
    r->gva = low;
    r->len = high - low;
    memmove(area, base - (page - low), r->len);
    return 0;
}

static int read_code(struct request *r, uint8_t *area)
{
    int error = r->kind == AFW_SITES_LAZY ? read_around(r, area) : guest_read(r->vm, area, r->gva, r->len);
    if (error || r->kind == AFW_SITES_FILE)
        return error;
    R.copy = malloc(r->len);
    if (!R.copy)
        return -ENOMEM;
    memcpy(R.copy, area, r->len); /* the worker can write the area: it is trusted, and yet only answers are taken from it */
    return 0;
}

static void current_done(void)
{
    free(R.copy);
    R.copy = 0;
    R.current = (struct request){0};
}

static void send_next(void)
{
    while (!R.current.id && R.queued) {
        struct request *r = &R.current;
        *r = R.queue[0];
        if (read_code(r, runner_site_area(r->vm->runner)) == 0) {
            struct afw_event e = {
                .type = AFW_EV_SITES, .vm = r->vm->id, .arg = r->kind, .a = r->gva, .b = r->len, .c = R.last_id + 1,
                .d = r->kind == AFW_SITES_LAZY ? r->lazy_rip - r->gva : 0,
            };
            if (runner_event(r->vm->runner, &e) < 0) {
                current_done();
                return; /* queue full: it stays first; sites_backstop comes by again */
            }
            r->id = ++R.last_id;
        } else {
            current_done(); /* unreadable by now: nothing to patch */
        }
        memmove(R.queue, R.queue + 1, --R.queued * sizeof *R.queue);
    }
}

static int waits_for(const struct request *r, const struct vm *vm, int files_only)
{
    return r->vm == vm && (!files_only || r->kind == AFW_SITES_FILE);
}

static int busy(const struct vm *vm, int files_only)
{
    if (R.current.id && waits_for(&R.current, vm, files_only))
        return 1;
    for (unsigned i = 0; i < R.queued; i++)
        if (waits_for(&R.queue[i], vm, files_only))
            return 1;
    return 0;
}

int sites_busy(struct vm *vm)
{
    return busy(vm, 0);
}

int sites_files_busy(struct vm *vm)
{
    return busy(vm, 1);
}

static int overlap(uint64_t a, uint64_t alen, uint64_t b, uint64_t blen)
{
    return a < b + blen && b < a + alen;
}

void sites_unmapped(struct vm *vm, uint64_t gva, uint64_t len)
{
    struct sites *s = vm->sites;
    if (!s)
        return;
    unsigned kept = 0;
    for (unsigned i = 0; i < R.queued; i++) {
        struct request *r = R.queue + i;
        uint64_t at = r->kind == AFW_SITES_LAZY ? r->lazy_rip : r->gva;
        if (r->vm != vm || !overlap(gva, len, at, r->kind == AFW_SITES_LAZY ? 1 : r->len))
            R.queue[kept++] = *r;
    }
    R.queued = kept;
    if (R.current.vm == vm && overlap(gva, len, R.current.gva, R.current.len))
        R.current.vm = 0;
    kept = 0;
    for (unsigned i = 0; i < s->todos; i++)
        if (!overlap(gva, len, s->todo[i].gva, s->todo[i].length))
            s->todo[kept++] = s->todo[i];
    s->todos = kept;
    for (unsigned i = 0; i < SEEN; i++)
        if (overlap(gva, len, s->seen[i].rip, 1))
            s->seen[i] = (struct seen){0};
}

/* ---- patching ---- */

static int put_rel32(uint8_t *at, uint64_t next_rip, uint64_t target)
{
    int64_t d = (int64_t)(target - next_rip);
    if (d != (int32_t)d)
        return -ERANGE;
    int32_t d32 = (int32_t)d;
    memcpy(at, &d32, 4);
    return 0;
}

/* Stub at `at` for the window: displaced instructions, then into the shim. Its size, or -ERANGE. */
static int make_stub(uint8_t *out, uint64_t at, const struct todo *t, const struct afw_shim_header *shim)
{
    unsigned n = t->length - t->site_length;
    uint64_t back = t->gva + t->length;
    memcpy(out, t->bytes, n);
    uint64_t entry;
    if (t->kind == AFW_SITE_SYSCALL) {
        memcpy(out + n, "\x48\x8d\x0d", 3);                 /* lea back(%rip), %rcx */
        entry = shim->entry_site;
    } else {
        memcpy(out + n, "\x48\x89\x24\x25", 4);             /* mov %rsp, scratch_rsp */
        uint32_t scratch = AFW_CTL + (uint32_t)offsetof(struct afw_ctl, scratch_rsp);
        memcpy(out + n + 4, &scratch, 4);
        n += 8;
        memcpy(out + n, "\x48\x8d\x25", 3);                 /* lea back(%rip), %rsp */
        entry = t->kind == AFW_SITE_CPUID ? shim->entry_cpuid : shim->entry_xgetbv;
    }
    n += 7;
    if (put_rel32(out + n - 4, at + n, back))
        return -ERANGE;
    out[n] = 0xe9;                                          /* jmp entry */
    n += 5;
    if (put_rel32(out + n - 4, at + n, entry))
        return -ERANGE;
    return (int)n;
}

static int patch(struct vm *vm, const struct todo *t, const struct afw_shim_header *shim)
{
    struct sites *s = vm->sites;
    uint8_t now[WINDOW_MAX], stub[64], jump[JUMP] = {0xe9};
    if (guest_read(vm, now, t->gva, t->length) || memcmp(now, t->bytes, t->length))
        return -ESTALE;
    int size = make_stub(stub, s->next, t, shim);
    if (size < 0)
        return size;
    if (s->next + (unsigned)size > AFW_SITES_END)
        return -ENOSPC;
    if (put_rel32(jump + 1, t->gva + JUMP, s->next))
        return -ERANGE;
    if (guest_write(vm, s->next, stub, (uint64_t)size))
        return -EFAULT;
    if (memory_poke(vm, t->gva, jump, JUMP))
        return -EFAULT;
    s->next += (unsigned)size;
    return 0;
}

/* Can nothing stand between the bytes [gva + 1, gva + JUMP)? */
static int quiet(struct vm *vm, uint64_t gva)
{
    uint64_t rip = vm->run->s.regs.regs.rip;
    return rip <= gva || rip >= gva + JUMP;
}

static void apply(struct vm *vm)
{
    struct sites *s = vm->sites;
    if (!s->todos || __atomic_load_n(&vm->ctl->preempted, __ATOMIC_RELAXED))
        return;
    struct afw_shim_header shim;
    if (guest_read(vm, &shim, AFW_SHIM, sizeof shim) || shim.magic != AFW_SHIM_MAGIC)
        return;
    /* Stopped by a signal within the shim: it may be on the way into an upcall or out of one, where the program's RIP is not counted. */
    uint64_t rip = vm->run->s.regs.regs.rip;
    if (vm->shm->exits && vm->run->exit_reason != KVM_EXIT_IO && rip >= shim.text_start && rip < shim.text_end)
        return;
    unsigned left = 0;
    for (unsigned i = 0; i < s->todos; i++) {
        struct todo *t = s->todo + i;
        if (!quiet(vm, t->gva)) {
            s->todo[left++] = *t;
            continue;
        }
        int error = patch(vm, t, &shim);
        vm->shm->sites += !error;
        vm->shm->sites_lazy += !error && t->lazy;
        vm->shm->sites_refused += error && error != -ESTALE;
    }
    s->todos = left;
    if (!left) {
        free(s->todo);
        s->todo = 0;
    }
}

/* One entry of the answer: checked, since it came through shared memory, and noted with the bytes that it was made for. */
static int note(struct vm *vm, const struct request *r, const struct afw_site *site, uint32_t *floor)
{
    static const struct {
        uint8_t length;
        uint8_t bytes[3];
    } pattern[] = {
        [AFW_SITE_SYSCALL] = {2, {0x0f, 0x05}}, [AFW_SITE_CPUID] = {2, {0x0f, 0xa2}}, [AFW_SITE_XGETBV] = {3, {0x0f, 0x01, 0xd0}},
    };
    struct sites *s = vm->sites;
    if (site->kind < AFW_SITE_SYSCALL || site->kind > AFW_SITE_XGETBV || site->site_length != pattern[site->kind].length)
        return -EPROTO;
    if (site->length < JUMP + site->site_length || site->length > WINDOW_MAX || site->offset < *floor || site->offset > r->len ||
        site->length > r->len - site->offset)
        return -EPROTO;
    *floor = site->offset + site->length;
    struct todo t = {
        .gva = r->gva + site->offset, .length = site->length, .kind = site->kind, .site_length = site->site_length,
        .lazy = r->kind == AFW_SITES_LAZY,
    };
    if (guest_read(vm, t.bytes, t.gva, t.length))
        return -EFAULT;
    if (memcmp(t.bytes + t.length - t.site_length, pattern[t.kind].bytes, t.site_length))
        return -ESTALE;
    if (R.copy && memcmp(t.bytes, R.copy + site->offset, t.length))
        return -ESTALE;
    if (s->todos == TODO || (!s->todo && !(s->todo = malloc(TODO * sizeof *s->todo))))
        return -ENOMEM;
    s->todo[s->todos++] = t;
    return 0;
}

/* This code has been looked at: what the backstop counted there meanwhile is no reason to ask again. */
static void looked_at(struct vm *vm, uint64_t gva, uint64_t len)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < R.queued; i++) {
        struct request *r = R.queue + i;
        if (r->owner != vm->sites || r->kind != AFW_SITES_LAZY || !overlap(gva, len, r->lazy_rip - 1, 1))
            R.queue[kept++] = *r;
    }
    R.queued = kept;
    for (unsigned i = 0; i < SEEN; i++)
        if (vm->sites->seen[i].rip && overlap(gva, len, vm->sites->seen[i].rip - 1, 1))
            vm->sites->seen[i].count = 0;
}

static void remember_unsafe(const struct request *r)
{
    uint64_t at = r->lazy_rip - r->gva;
    if (at < CONTEXT || at > r->len || r->len - at < CONTEXT || !R.copy)
        return;
    unsigned i = R.n_unsafe++ % UNSAFE;
    R.unsafe[i].rip = r->lazy_rip;
    memcpy(R.unsafe[i].code, R.copy + at - CONTEXT, sizeof R.unsafe[i].code);
}

/* Wrong only where a guest made it so that more of the code differs than is compared: the site goes by the backstop then. */
static int known_unsafe(struct vm *vm, uint64_t rip)
{
    uint8_t code[2 * CONTEXT];
    for (unsigned i = 0; i < UNSAFE && i < R.n_unsafe; i++) {
        if (R.unsafe[i].rip == rip && !guest_read(vm, code, rip - CONTEXT, sizeof code) && !memcmp(code, R.unsafe[i].code, sizeof code))
            return 1;
    }
    return 0;
}

void sites_answer(struct vm *vm, uint64_t request, uint64_t count)
{
    struct request *r = &R.current;
    if (!r->id || r->id != request)
        return;
    uint32_t refused = (uint32_t)(count >> 32);
    count = (uint32_t)count;
    if (vm && r->vm == vm && vm->sites && count <= AFW_SITE_AREA / sizeof(struct afw_site)) {
        const uint8_t *area = runner_site_area(vm->runner);
        uint32_t floor = 0;
        for (uint64_t i = 0; i < count; i++) {
            struct afw_site site;
            memcpy(&site, area + i * sizeof site, sizeof site);
            int error = note(vm, r, &site, &floor);
            if (error == -EPROTO)
                break;
            vm->shm->sites_refused += error == -ENOMEM;
        }
        vm->shm->sites_refused += refused;
        if (r->kind != AFW_SITES_LAZY)
            looked_at(vm, r->gva, r->len);
        else if (!count && refused)
            remember_unsafe(r);
        apply(vm);
    }
    current_done();
    send_next();
}

/* ---- lazily ---- */

static struct seen *seen_slot(struct sites *s, uint64_t rip)
{
    unsigned at = (unsigned)(rip * 0x9e3779b97f4a7c15u >> 56);
    for (unsigned i = 0; i < 16; i++) {
        struct seen *e = s->seen + (at + i) % SEEN;
        if (e->rip == rip || !e->rip)
            return e;
    }
    memset(s->seen, 0, sizeof s->seen); /* crowded: start anew, what recurs comes back */
    return s->seen + at;
}

void sites_backstop(struct vm *vm)
{
    struct sites *s = vm->sites;
    if (!s)
        return;
    if (R.queued)
        send_next();
    apply(vm);
    uint64_t n = __atomic_load_n(&vm->ctl->n_backstop, __ATOMIC_RELAXED);
    if (n == s->last_backstop)
        return;
    s->last_backstop = n;
    uint64_t rip = __atomic_load_n(&vm->ctl->backstop_rip, __ATOMIC_RELAXED);
    if (rip <= AFW_IMAGE || rip >= AFW_SPACE_END)
        return;
    struct seen *e = seen_slot(s, rip);
    e->rip = rip;
    if (e->count < 3 && ++e->count == 2 && known_unsafe(vm, rip)) {
        vm->shm->sites_refused++;
    } else if (e->count == 2 && R.queued < REQUESTS) {
        R.queue[R.queued++] = (struct request){.vm = vm, .owner = s, .kind = AFW_SITES_LAZY, .lazy_rip = rip};
        send_next();
    }
}

/* ---- snapshots ---- */

void sites_save(struct vm *vm, struct afw_snapshot_header *h)
{
    h->sites = vm->shm->sites;
    h->sites_refused = vm->shm->sites_refused;
    h->site_next = vm->sites->next;
}

void sites_load(struct vm *vm, const struct afw_snapshot_header *h)
{
    vm->shm->sites = h->sites;
    vm->shm->sites_refused = h->sites_refused;
    uint64_t next = h->site_next;
    vm->sites->next = next >= AFW_SITES && next <= AFW_SITES_END ? next : AFW_SITES_END;
    vm->sites->last_backstop = vm->ctl->n_backstop;
}
