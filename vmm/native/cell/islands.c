/* Islands: a few writable pages between read-only ones, as each extension module's data is.
 *
 * A template that has loaded forty shared objects has as many, and each costs a VM two mappings more and an mprotect(), for pages that
 * hardly a program writes to. So what the rehearsal saw nobody write to is left read-only at the restore, in one piece with what is round
 * it, and becomes writable when the guest, or the host for it, first writes there. To the guest it is writable all the time: prot[] says so,
 * with PAGE_ISLAND beside it: the host may refuse what the guest may do. Edges are counted as if all were cut out.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "machine.h"

#define RW (PROT_READ | PROT_WRITE)
#define WIDEST (32 * PAGE)                       /* what is larger is a heap, and will be written to */

/* The same for each VM of a snapshot: what is to be protected how, and prot[] as it is then */
static struct {
    pthread_mutex_t lock;
    atomic_bool ready;
    struct saved_protection *piece;
    uint32_t n;
    bool any;                                    /* there are islands */
    uint8_t *prot;
    uint64_t pages;                              /* of prot */
    uint32_t edges;
} plan = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool island_fits(const struct snapshot *s, const struct saved_protection *before, const struct saved_protection *after)
{
    uint64_t start = before->end, size = after->start - start;
    if (before->prot != PROT_READ || after->prot != PROT_READ || after->start < start || size > WIDEST)
        return false;
    for (uint64_t c = start / AFW_CHUNK; c <= after->start / AFW_CHUNK; c++)
        if (!(s->h.commit_chunks[c / 64] >> c % 64 & 1))
            return false;
    return !hot_writes(start / PAGE, after->start / PAGE);
}

static int protect(struct machine *m, const struct saved_protection *p, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (mprotect(m->vm.mem + p[i].start, p[i].end - p[i].start, (int)p[i].prot))
            return -errno;
    return 0;
}

static int note(struct machine *m, const struct snapshot *s)
{
    for (uint32_t i = 0; i < s->vcpu->n_protections; i++) {
        const struct saved_protection *p = &s->protection[i];
        int e = pieces_room(m, p->start, p->end - p->start, false);
        if (e)
            return e;
        pieces_done(m, p->start, p->end - p->start, (int)p->prot, false);
    }
    return 0;
}

static void mark(struct machine *m, uint64_t from, uint64_t to)
{
    for (uint64_t p = from / PAGE; p < to / PAGE; p++)
        m->prot[p] |= PAGE_ISLAND;
}

/* Pieces without their islands; marks these in prot[] of the VM, which is the first. */
static uint32_t join(struct machine *m, const struct snapshot *s, struct saved_protection *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->vcpu->n_protections; i++) {
        const struct saved_protection *p = &s->protection[i];
        if (n && island_fits(s, &out[n - 1], p)) {
            plan.any |= p->start > out[n - 1].end;
            mark(m, out[n - 1].end, p->start);
            out[n - 1].end = p->end;
        } else {
            out[n++] = *p;
        }
    }
    return n;
}

/* The first VM: what the others are to be like. Its memory is mapped, and noted in prot[]. */
static int make_plan(struct machine *m, const struct snapshot *s)
{
    uint64_t end = 0;
    int e = note(m, s);
    for (uint64_t c = 0; c < CHUNKS; c++)
        end = s->h.commit_chunks[c / 64] >> c % 64 & 1 ? (c + 1) * AFW_CHUNK : end;
    plan.pages = end < AFW_SPACE_END ? end / PAGE + 1 : end / PAGE;   /* the end of what is committed is an edge */
    plan.piece = calloc(s->vcpu->n_protections + 1, sizeof *plan.piece);
    plan.prot = malloc(plan.pages);
    if (e || !plan.piece || !plan.prot) {
        free(plan.piece);
        free(plan.prot);
        return e ? e : -ENOMEM;
    }
    plan.n = join(m, s, plan.piece);
    memcpy(plan.prot, m->prot, plan.pages);
    plan.edges = m->edges;
    atomic_store(&plan.ready, true);
    return 0;
}

/* prot[] of the next VM need not be written as its memory is mapped. */
bool islands_known(void)
{
    return atomic_load(&plan.ready);
}

int islands_protect(struct machine *m, const struct snapshot *s)
{
    if (s->vm) {                                 /* of a running VM, whose programs may have written anywhere */
        int e = note(m, s);
        return e ? e : protect(m, s->protection, s->vcpu->n_protections);
    }
    int e = 0;
    pthread_mutex_lock(&plan.lock);
    bool first = !islands_known();
    if (first)
        e = make_plan(m, s);
    pthread_mutex_unlock(&plan.lock);
    if (!e && !first) {
        memcpy(m->prot, plan.prot, plan.pages);
        e = pieces_as(m, plan.edges);
    }
    m->islands = plan.any;
    return e ? e : protect(m, plan.piece, plan.n);
}

void islands_again(struct machine *m)
{
    m->islands = plan.any;
}

/* [from, to): whole pages */
static int sink(struct machine *m, uint64_t from, uint64_t to)
{
    for (uint64_t p = from / PAGE, end; p < to / PAGE; p = end) {
        end = p + 1;
        if (!(m->prot[p] & PAGE_ISLAND))
            continue;
        while (end < PAGES_IN_SPACE && m->prot[end] & PAGE_ISLAND)
            end++;
        while (p && m->prot[p - 1] & PAGE_ISLAND)
            p--;
        if (mprotect(m->vm.mem + p * PAGE, (end - p) * PAGE, RW)) {
            m->spoiled = true;
            return -errno;
        }
        for (uint64_t i = p; i < end; i++)
            m->prot[i] &= (uint8_t)~PAGE_ISLAND;
    }
    return 0;
}

int islands_open(struct machine *m, uint64_t gva, uint64_t len)
{
    return sink(m, page_down(gva), page_up(gva + len));
}

/* KVM's own emulation of an instruction does not fault: it says that no memory is there, and leaves the writing to us. */
bool islands_written(struct machine *m)
{
    const struct kvm_run *run = m->vm.run;
    uint64_t at = run->mmio.phys_addr, n = run->mmio.len;
    if (!m->islands || !run->mmio.is_write || n > sizeof run->mmio.data || !inside(at, n, AFW_IMAGE, AFW_SPACE_END) || !(m->prot[at / PAGE] & PAGE_ISLAND))
        return false;
    return !guest_write(&m->vm, at, run->mmio.data, n);
}

/* One whose pages the instruction at RIP writes to; if that cannot be told, all: what is refused then is so by the guest's own word. */
bool islands_refused(struct machine *m)
{
    uint64_t address;
    if (!m->islands)
        return false;
    bool found = operand_refused(m, &m->vm.run->s.regs.regs, &address) && m->prot[address / PAGE] & PAGE_ISLAND;
    if (!found)
        m->islands = false;
    int e = found ? islands_open(m, address, 1) : sink(m, 0, plan.pages * PAGE);
    if (e)
        vm_end(m, AFW_EXIT_MEMORY, 0, 0, "pages cannot be made writable: %s", strerror(-e));
    return true;
}
