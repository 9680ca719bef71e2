/* A template's state to a file: registers, extended state, pages that are not zero, protections, what is mapped where.
 *
 * The guest stands in its READY call. Pages are gathered into at most AFW_SNAPSHOT_EXTENTS extents; the smallest gaps between
 * them are filled with zeros of the file.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "machine.h"

#define RW (PROT_READ | PROT_WRITE)
#define BLOCK (64 * PAGE)

int snapshot_write(int fd, const void *data, size_t n, uint64_t offset)
{
    const uint8_t *p = data;
    while (n) {
        ssize_t done = pwrite(fd, p, n, (off_t)offset);
        if (done <= 0)
            return done < 0 ? -errno : -EIO;
        p += done;
        offset += (uint64_t)done;
        n -= (size_t)done;
    }
    return 0;
}

/* ---- protections and mappings ---- */

static int each_protection(struct machine *m, int (*visit)(struct machine *m, const struct saved_protection *p, void *arg), void *arg)
{
    struct saved_protection run = {0};
    for (uint64_t c = 0; c <= CHUNKS; c++) {
        bool committed = c < CHUNKS && memory_committed(m, c * AFW_CHUNK, AFW_CHUNK);
        for (uint64_t page = c * (AFW_CHUNK / PAGE), end = page + (committed ? AFW_CHUNK / PAGE : 1); page < end; page++) {
            uint32_t prot = committed ? PAGE_PROT(m->prot[page]) : RW;
            if (run.end && (run.end != page * PAGE || run.prot != prot)) {
                int e = visit(m, &run, arg);
                if (e)
                    return e;
                run.end = 0;
            }
            if (prot == RW)
                continue;
            if (!run.end)
                run = (struct saved_protection){.start = page * PAGE, .prot = prot};
            run.end = (page + 1) * PAGE;
        }
    }
    return 0;
}

struct state_writer {
    struct buffer *out;
    uint32_t n;
};

static int save_protection(struct machine *m, const struct saved_protection *p, void *arg)
{
    struct state_writer *w = arg;
    (void)m;
    w->n++;
    return buffer_add(w->out, p, sizeof *p);
}

/* PROT_NONE pages may hold something: readable for the while. */
static int unlock(struct machine *m, const struct saved_protection *p, void *arg)
{
    (void)arg;
    return p->prot || !mprotect(m->vm.mem + p->start, p->end - p->start, PROT_READ) ? 0 : -errno;
}

static int lock(struct machine *m, const struct saved_protection *p, void *arg)
{
    (void)arg;
    return p->prot || !mprotect(m->vm.mem + p->start, p->end - p->start, PROT_NONE) ? 0 : -errno;
}

int snapshot_state(struct machine *m, struct buffer *out, bool running)
{
    struct vcpu_state s = {.sq_head = m->sq_head, .cq_tail = m->cq_tail};
    struct kvm_sregs sregs;
    struct kvm_xsave x;
    int fd = m->vm.vcpu_fd, e = vm_flush(m);
    if (e)
        return e;
    if (ioctl(fd, KVM_GET_REGS, &s.regs) || ioctl(fd, KVM_GET_SREGS, &sregs) || ioctl(fd, KVM_GET_XSAVE, &x))
        return -errno;
    s.fs_base = sregs.fs.base;
    s.gs_base = sregs.gs.base;
    memcpy(s.xsave, &x, sizeof s.xsave);
    if (!running) {                              /* only what the baseline has: another host may know no more */
        uint64_t xstate_bv;
        memcpy(&xstate_bv, s.xsave + 512, 8);
        xstate_bv &= cell.cpu.xcr0;
        memcpy(s.xsave + 512, &xstate_bv, 8);
        memset(s.xsave + 520, 0, 56);
        memset(s.xsave + cell.cpu.xsave_size, 0, sizeof s.xsave - cell.cpu.xsave_size);
    }

    struct state_writer w = {out, 0};
    struct buffer names = {0};
    if ((e = buffer_add(out, &s, sizeof s)) || (e = each_protection(m, save_protection, &w)))
        return e;
    const char *last = 0;
    uint32_t at = 0;
    for (uint32_t i = 0; i < m->maps && !e; i++) {
        const struct mapping *x2 = &m->map[i];
        if (x2->name != last) {                  /* neighbours share a name mostly */
            at = (uint32_t)names.size;
            e = buffer_add(&names, x2->name, strlen(x2->name) + 1);
            last = x2->name;
        }
        struct saved_mapping sm = {x2->start, x2->end, x2->offset, at, 0};
        if (running && x2->shared && x2->file)
            sm.flags = SAVED_SHARED | (x2->writable ? SAVED_WRITABLE : 0) | (x2->refused ? SAVED_REFUSED : 0) |
                       (uint32_t)(vfs_file_number(x2->file) + 1) * SAVED_FILE;
        if (!e)
            e = buffer_add(out, &sm, sizeof sm);
    }
    s.n_protections = w.n;
    s.n_mappings = m->maps;
    s.names_size = names.size;
    if (!e && names.size)
        e = buffer_add(out, names.data, names.size);
    free(names.data);
    memcpy(out->data, &s, sizeof s);
    return e;
}

/* ---- pages ---- */

static bool zero_page(const uint8_t *p)
{
    const uint64_t *w = (const uint64_t *)p;
    for (size_t i = 0; i < PAGE / 8; i += 4) {
        if (w[i] | w[i + 1] | w[i + 2] | w[i + 3])
            return false;
    }
    return true;
}

static int add_page(struct buffer *runs, uint64_t gpa)
{
    if (runs->size) {
        struct afw_snapshot_extent *last = (struct afw_snapshot_extent *)(runs->data + runs->size) - 1;
        if (last->gpa + last->size == gpa) {
            last->size += PAGE;
            return 0;
        }
    }
    struct afw_snapshot_extent x = {.gpa = gpa, .size = PAGE};
    return buffer_add(runs, &x, sizeof x);
}

/* Content of a private file that others may write through it, too: it is saved as that file's. */
static bool of_shared_file(struct machine *m, uint64_t gpa)
{
    for (uint32_t i = 0; i < m->maps; i++) {
        if (m->map[i].shared && m->map[i].file && gpa >= m->map[i].start && gpa < m->map[i].end)
            return true;
    }
    return false;
}

/* What pagemap says of a page */
#define PM_PRESENT (1ull << 63)
#define PM_SWAP (1ull << 62)
#define PM_FILE (1ull << 61)

static int read_pagemap(struct machine *m, uint64_t gpa, uint64_t *entry)
{
    uint64_t first = ((uintptr_t)m->vm.mem + gpa) / PAGE;
    size_t want = BLOCK / PAGE * sizeof *entry;
    return pread(cell.pagemap_fd, entry, want, (off_t)(first * sizeof *entry)) == (ssize_t)want ? 0 : -EIO;
}

static bool maps_files(struct machine *m, uint64_t gpa, uint64_t end)
{
    for (uint32_t i = 0; i < m->maps; i++) {
        if (m->map[i].start < end && m->map[i].end > gpa)
            return true;
    }
    return false;
}

/* Pages of a block that differ from the template's snapshot: where its file is still mapped those that became private, elsewhere
 * (memory that is new, files, what a saved VM's file has) those that are not zero. */
static int changed_pages(struct machine *m, uint64_t gpa, uint8_t *block, struct buffer *runs, const struct snapshot *base)
{
    const struct afw_snapshot_header *h = &base->h;
    uint64_t entry[BLOCK / PAGE];
    uint32_t k = 0;
    bool all = m->forked || maps_files(m, gpa, gpa + BLOCK);
    int e = read_pagemap(m, gpa, entry);
    for (uint64_t o = 0; o < BLOCK && !e; o += PAGE) {
        uint64_t at = gpa + o, now = entry[o / PAGE];
        bool there = now & (PM_PRESENT | PM_SWAP);
        while (k < h->n_extents && h->extent[k].gpa + h->extent[k].size <= at)
            k++;
        if (k < h->n_extents && at >= h->extent[k].gpa && !(m->prot[at / PAGE] & PAGE_NEW)) {
            if (there && !(now & PM_FILE))
                e = add_page(runs, at);
        } else if ((there || all) && !guarded_copy(block, m->vm.mem + at, PAGE) && !zero_page(block) && !of_shared_file(m, at)) {
            e = add_page(runs, at);
        }
    }
    return e;
}

static int pages_with_content(struct machine *m, uint64_t gpa, uint8_t *block, struct buffer *runs)
{
    bool whole = !guarded_copy(block, m->vm.mem + gpa, BLOCK);
    int e = 0;
    for (uint64_t o = 0; o < BLOCK && !e; o += PAGE) {
        /* A page behind the end of a file that shrank has no content: it faults in restored VMs no more, reads as zero. */
        if (!whole && guarded_copy(block + o, m->vm.mem + gpa + o, PAGE))
            continue;
        if (!zero_page(block + o))
            e = add_page(runs, gpa + o);
    }
    return e;
}

int snapshot_pages(struct machine *m, uint64_t gpa, uint64_t end, struct buffer *runs, const struct snapshot *base)
{
    uint8_t *block = aligned_alloc(PAGE, BLOCK);
    int e = block ? 0 : -ENOMEM;
    for (; gpa < end && !e; gpa += BLOCK) {
        if (!memory_committed(m, gpa, BLOCK))
            gpa = (gpa / AFW_CHUNK + 1) * AFW_CHUNK - BLOCK;
        else
            e = base ? changed_pages(m, gpa, block, runs, base) : pages_with_content(m, gpa, block, runs);
    }
    free(block);
    return e;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Fill the smallest gaps until the extents fit into the header. Gaps may lie in uncommitted space only if they are never filled:
 * those are infinitely wide. */
static int merge(struct machine *m, struct buffer *runs, struct afw_snapshot_extent *out, uint32_t *n_out)
{
    struct afw_snapshot_extent *x = (struct afw_snapshot_extent *)runs->data;
    uint64_t n = runs->size / sizeof *x, limit = 0, filled = 0, allowed = n > AFW_SNAPSHOT_EXTENTS ? n - AFW_SNAPSHOT_EXTENTS : 0;
    uint64_t *gap = malloc((n + 1) * sizeof *gap), *sorted = malloc((n + 1) * sizeof *gap);
    if (!gap || !sorted || !n) {
        free(gap);
        free(sorted);
        return -ENOMEM;
    }
    for (uint64_t i = 1; i < n; i++) {
        uint64_t from = x[i - 1].gpa + x[i - 1].size;
        gap[i] = sorted[i] = memory_committed(m, from, x[i].gpa - from) ? x[i].gpa - from : ~0ull;
    }
    qsort(sorted + 1, n - 1, sizeof *sorted, by_value);
    if (allowed)
        limit = sorted[allowed];
    uint32_t k = 0;
    out[0] = x[0];
    int e = limit == ~0ull ? -E2BIG : 0;
    for (uint64_t i = 1; i < n && !e; i++) {
        /* Small gaps are filled in any case: a mapping more costs every restore more than a few zero pages do. */
        if (gap[i] <= 4 * PAGE || (gap[i] <= limit && filled < allowed)) {
            filled++;
            out[k].size = x[i].gpa + x[i].size - out[k].gpa;
        } else if (k + 1 < AFW_SNAPSHOT_EXTENTS) {
            out[++k] = x[i];
        } else {
            e = -E2BIG;
        }
    }
    *n_out = k + 1;
    free(gap);
    free(sorted);
    return e;
}

int64_t snapshot_copy(struct machine *m, int fd, uint64_t gpa, uint64_t size, uint64_t offset)
{
    ssize_t n = pwrite(fd, m->vm.mem + gpa, size < 1 << 20 ? size : 1 << 20, (off_t)offset);
    if (n > 0)
        return n;
    if (n < 0 && errno == EFAULT)
        return (int64_t)(page_down(gpa) + PAGE - gpa);   /* a hole in the file */
    return n < 0 ? -errno : -EIO;
}

static int write_pages(struct machine *m, int fd, const struct afw_snapshot_extent *x)
{
    for (uint64_t done = 0; done < x->size;) {
        int64_t n = snapshot_copy(m, fd, x->gpa + done, x->size - done, x->offset + done);
        if (n < 0)
            return (int)n;
        done += (uint64_t)n;
    }
    return 0;
}

int snapshot_head(struct machine *m, struct afw_snapshot_header *h, struct buffer *runs)
{
    int e = merge(m, runs, h->extent, &h->n_extents);
    h->magic = AFW_SNAPSHOT_MAGIC;
    h->format = AFW_SNAPSHOT_FORMAT;
    h->abi = AFW_ABI;
    memcpy(h->shim_sha, cell.shim_sha, sizeof h->shim_sha);
    memcpy(h->key, cell.config.key, sizeof h->key);
    memcpy(h->cpu_vendor, cell.cpu.vendor, sizeof h->cpu_vendor);
    h->xcr0 = cell.cpu.xcr0;
    h->memory_limit = m->vm.memory_limit;
    h->mmap_base = m->vm.ctl->mmap_base;
    memcpy(h->commit_chunks, m->vm.chunks, sizeof h->commit_chunks);
    memcpy(h->needs, cell.cpu.needs, sizeof h->needs);
    h->sites = m->vm.shm->sites;
    h->sites_refused = m->vm.shm->sites_refused;
    sites_save(&m->vm, h);
    return e;
}

/* Chunks lie in the file as in memory, at a multiple of 2 MiB: one mapping restores neighbours, and huge pages can be mapped. What is
 * between extents are holes, which cost nothing. */
static void place(struct machine *m, struct afw_snapshot_header *h, uint64_t offset)
{
    uint64_t start = 0, end = 0;                 /* of committed neighbours */
    for (uint32_t i = 0; i < h->n_extents; i++) {
        struct afw_snapshot_extent *x = &h->extent[i];
        if (x->gpa >= end) {
            offset += end - start;
            offset = (offset + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
            for (start = x->gpa / AFW_CHUNK * AFW_CHUNK; start && memory_committed(m, start - AFW_CHUNK, AFW_CHUNK);)
                start -= AFW_CHUNK;
            for (end = start + AFW_CHUNK; end < AFW_SPACE_END && memory_committed(m, end, AFW_CHUNK);)
                end += AFW_CHUNK;
        }
        x->offset = offset + (x->gpa - start);
    }
    h->file_size = offset + (end - start);
}

static int save(struct machine *m, struct afw_snapshot_header *h, struct buffer *state, struct buffer *runs)
{
    int fd = cell.config.snapshot_out, e;
    if ((e = snapshot_state(m, state, false)) || (e = snapshot_pages(m, 0, AFW_SPACE_END, runs, 0)) || (e = snapshot_head(m, h, runs)))
        return e;
    h->vcpu_offset = sizeof *h;
    h->vcpu_size = (uint32_t)state->size;
    place(m, h, page_up(sizeof *h + state->size));
    if (ftruncate(fd, 0) || ftruncate(fd, (off_t)h->file_size))
        return -errno;
    for (uint32_t i = 0; i < h->n_extents && !e; i++)
        e = write_pages(m, fd, &h->extent[i]);
    h->crc = crc64(crc64(0, h, sizeof *h), state->data, state->size);
    if (!e)
        e = snapshot_write(fd, state->data, state->size, h->vcpu_offset);
    return e ? e : snapshot_write(fd, h, sizeof *h, 0);   /* last: a file with a head is whole */
}

int snapshot_unlock(struct machine *m, bool on)
{
    return each_protection(m, on ? unlock : lock, 0);
}

int64_t snapshot_save(struct machine *m)
{
    for (uint32_t i = 0; i < m->maps; i++) {
        if (m->map[i].shared && m->map[i].writable)   /* it would silently become private */
            return -EBUSY;
    }
    kept_wipe(&m->vm);
    struct afw_snapshot_header *h = calloc(1, sizeof *h);
    struct buffer state = {0}, runs = {0};
    int e = h ? snapshot_unlock(m, true) : -ENOMEM;
    if (!e)
        e = save(m, h, &state, &runs);
    int relocked = snapshot_unlock(m, false);
    int64_t size = h ? (int64_t)h->file_size : 0;
    free(state.data);
    free(runs.data);
    free(h);
    return e ? e : relocked ? relocked : size;
}
