/* A running VM to a file, as it stands, for copies that go on from there (docs/internals.md, "Forks").
 *
 * It is saved where all that it does with the host is done: in user code, or behind a doorbell whose ring has been consumed. In the
 * shim it may be in the middle of something that the host's next word changes (the clock), so it is let run on until it stands
 * elsewhere. While pages are written it stands still; others of its runner have turns between the parts of that.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "machine.h"
#include "rules.h"

#define PATIENCE 2000000000ull                   /* ns to come to where it can be saved */
#define STEP 1500000ull                          /* ns of work before others have their turn */
#define PIECE (1ull << 20)
#define PRIVATE_MAX (256ull << 20)               /* bytes of private state: names of many small files */

enum phase { ASKED, PAGES, COPY, FILES, DONE };
struct saving {
    enum phase phase;
    uint64_t deadline;
    uint64_t at;                                 /* PAGES: guest address; COPY: bytes of extent `extent`; FILES: of their data */
    uint32_t extent;
    uint64_t vm_at;                              /* struct saved_vm in state */
    struct saved_vm vm;
    const struct snapshot *base;
    struct buffer state, runs;
    struct afw_snapshot_header h;
    int64_t result;                              /* DONE: bytes, -errno */
};

static void drop(struct machine *m)
{
    struct saving *s = m->saving;
    free(s->state.data);
    free(s->runs.data);
    free(s);
    m->saving = 0;
}

void save_drop(struct machine *m)
{
    if (!m->saving)
        return;
    if (m->saving->phase != ASKED)               /* nobody will take what is there */
        (void)!ftruncate(cell.config.save, 0);
    m->spoiled |= m->state == RUN_SAVING;        /* its pages are not locked again */
    drop(m);
}

static void finish(struct machine *m, int64_t result)
{
    struct saving *s = m->saving;
    if (result < 0 && s->phase != ASKED)
        (void)!ftruncate(cell.config.save, 0);
    s->phase = DONE;
    s->result = result;
    if (m->state == RUN_SAVING) {
        if (snapshot_unlock(m, false)) {         /* the guest could read what it must not: nobody else could */
            vm_end(m, AFW_EXIT_INTERNAL, 0, 0, "pages cannot be locked again after it was saved");
            return;
        }
        m->state = RUN_READY;                    /* who was parked looks again whether it has to wait */
    }
}

void save_ask(struct machine *m)
{
    if (m->saving)
        return;                                  /* asked twice: one answer */
    m->saving = calloc(1, sizeof *m->saving);
    if (!m->saving) {
        vm_fail(m, "no memory to save it");
        return;
    }
    m->saving->deadline = clock_mono() + PATIENCE;
    if (m->asleep)
        m->state = RUN_READY;                    /* it has not come anywhere yet */
    if (cell.config.save < 0 || m->template)
        finish(m, -EOPNOTSUPP);
}

bool save_tell(struct machine *m, uint64_t now, uint64_t *deadline)
{
    struct saving *s = m->saving;
    if (s->phase == ASKED && now >= s->deadline)
        finish(m, -ETIMEDOUT);
    if (s->phase == DONE) {
        const struct afw_event e = {.type = AFW_EV_SAVED, .vm = m->vm.id, .a = s->result > 0 ? (uint64_t)s->result : 0,
                                    .b = s->result < 0 ? (uint64_t)s->result : 0};
        if (!runner_event(m->vm.runner, &e))
            drop(m);
        return false;
    }
    *deadline = s->deadline;
    return s->phase == ASKED;
}

/* Nothing is under way between it and KVM either. */
static bool quiet(struct machine *m)
{
    struct kvm_vcpu_events events;
    struct kvm_sregs sregs;
    return !ioctl(m->vm.vcpu_fd, KVM_GET_VCPU_EVENTS, &events) && !events.exception.injected && !events.exception.pending &&
           !events.nmi.injected && !events.interrupt.injected && !ioctl(m->vm.vcpu_fd, KVM_GET_SREGS, &sregs) && (sregs.cs.selector & 3) == 3;
}

/* A host file that the guest changes through its memory: a copy would write into the same file, or silently no more. */
static bool shares_host_file(const struct machine *m)
{
    for (uint32_t i = 0; i < m->maps; i++) {
        if (m->map[i].shared && m->map[i].writable && !m->map[i].file)
            return true;
    }
    return false;
}

/* What the guest's clock says now */
static uint64_t guest_mono(struct machine *m)
{
    uint64_t now = clock_mono();
    clock_refresh(m);
    return m->clock_mono_base > now ? m->clock_mono_base : now;
}

/* Where the template's snapshot is still mapped: what is copied comes on top of that. */
static int add_bases(struct machine *m, struct buffer *out)
{
    struct saving *s = m->saving;
    const struct afw_snapshot_header *h = &s->base->h;
    int e = 0;
    for (uint32_t i = 0; i < h->n_extents; i++) {
        const struct afw_snapshot_extent *x = &h->extent[i];
        struct afw_snapshot_extent run = {0};
        for (uint64_t at = x->gpa; at <= x->gpa + x->size && !e; at += PAGE) {
            bool same = at < x->gpa + x->size && !(m->prot[at / PAGE] & PAGE_NEW);
            if (same && !run.size)
                run = (struct afw_snapshot_extent){at, 0, x->offset + (at - x->gpa)};
            if (same) {
                run.size += PAGE;
            } else if (run.size) {
                e = ++s->vm.n_bases > SAVED_BASES ? -E2BIG : buffer_add(out, &run, sizeof run);
                run.size = 0;
            }
        }
    }
    return e;
}

static int begin(struct machine *m)
{
    struct saving *s = m->saving;
    int e;
    if (shares_host_file(m))
        return -ETXTBSY;
    struct buffer fs = {0}, bases = {0};
    s->base = cell.pagemap_fd < 0 ? 0 : snapshot_base();
    if (!s->base)
        return -EOPNOTSUPP;
    s->vm.base_crc = s->base->h.crc;
    if ((e = add_bases(m, &bases))) {
        free(bases.data);
        return e;
    }
    e = vfs_save(m->vm.vfs, &fs, &s->vm.data_size);
    if (!e)
        e = snapshot_state(m, &s->state, true);
    s->vm.vfs_size = fs.size;
    s->vm.write_bytes = s->vm.creates = ~0ull;
    if (m->vm.rules)
        rules_left(m->vm.rules, &s->vm.write_bytes, &s->vm.creates);
    static const uint8_t zeros[8];
    if (!e)
        e = buffer_add(&s->state, zeros, -s->state.size & 7);
    s->vm_at = s->state.size;
    if (!e)
        e = buffer_add(&s->state, &s->vm, sizeof s->vm);
    if (!e)
        e = buffer_add(&s->state, bases.data, bases.size);
    if (!e)
        e = buffer_add(&s->state, fs.data, fs.size);
    free(bases.data);
    free(fs.data);
    if (!e && s->state.size > PRIVATE_MAX)
        e = -EFBIG;
    if (!e && ftruncate(cell.config.save, 0))
        e = -errno;
    return e ? e : snapshot_unlock(m, true);
}

void save_look(struct machine *m)
{
    struct saving *s = m->saving;
    if (s->phase != ASKED || (m->state != RUN_READY && m->state != RUN_PARKED) || m->stands == STANDS_ELSEWHERE || !quiet(m))
        return;
    m->state = RUN_SAVING;
    kept_wipe(&m->vm);
    int e = begin(m);
    s->phase = PAGES;
    s->at = 0;
    if (e)
        finish(m, e);
}

/* Pages are known: where everything lies in the file */
static int lay_out(struct machine *m)
{
    struct saving *s = m->saving;
    struct afw_snapshot_header *h = &s->h;
    int e = snapshot_head(m, h, &s->runs);
    if (e)
        return e;
    h->magic = AFW_SAVED_MAGIC;
    h->vcpu_offset = sizeof *h;
    h->vcpu_size = (uint32_t)s->state.size;
    uint64_t offset = page_up(sizeof *h + s->state.size);
    for (uint32_t i = 0; i < h->n_extents; i++) {
        h->extent[i].offset = offset;
        offset += h->extent[i].size;
    }
    s->vm.data = offset;
    h->file_size = offset + s->vm.data_size;
    return ftruncate(cell.config.save, (off_t)h->file_size) ? -errno : 0;
}

static int copy_piece(struct machine *m)
{
    struct saving *s = m->saving;
    const struct afw_snapshot_extent *x = &s->h.extent[s->extent];
    int64_t n = snapshot_copy(m, cell.config.save, x->gpa + s->at, x->size - s->at, x->offset + s->at);
    if (n < 0)
        return (int)n;
    s->at += (uint64_t)n;
    if (s->at == x->size) {
        s->at = 0;
        s->extent++;
    }
    return 0;
}

static int64_t seal(struct machine *m)
{
    struct saving *s = m->saving;
    s->vm.mono = guest_mono(m);
    memcpy(s->state.data + s->vm_at, &s->vm, sizeof s->vm);
    s->h.crc = crc64(crc64(0, &s->h, sizeof s->h), s->state.data, s->state.size);
    int e = snapshot_write(cell.config.save, s->state.data, s->state.size, s->h.vcpu_offset);
    if (!e)
        e = snapshot_write(cell.config.save, &s->h, sizeof s->h, 0);
    return e ? e : (int64_t)s->h.file_size;
}

void save_step(struct machine *m)
{
    struct saving *s = m->saving;
    int e = 0;
    for (uint64_t until = clock_mono() + STEP; !e && s->phase != DONE && clock_mono() < until;) {
        switch (s->phase) {
        case PAGES:
            e = snapshot_pages(m, s->at, s->at + PIECE, &s->runs, s->base);
            s->at += PIECE;
            while (s->at < AFW_SPACE_END && !memory_committed(m, s->at, PAGE))
                s->at = (s->at / AFW_CHUNK + 1) * AFW_CHUNK;
            if (!e && s->at >= AFW_SPACE_END) {
                e = lay_out(m);
                s->phase = COPY;
                s->at = 0;
            }
            break;
        case COPY:
            if (s->extent < s->h.n_extents)
                e = copy_piece(m);
            else {
                s->phase = FILES;
                s->at = 0;
            }
            break;
        case FILES:
            if (s->at < s->vm.data_size)
                e = vfs_save_data(m->vm.vfs, cell.config.save, s->vm.data, &s->at, PIECE);
            else {
                finish(m, seal(m));
                return;
            }
            break;
        default:
            return;
        }
    }
    if (e)
        finish(m, e);
}
