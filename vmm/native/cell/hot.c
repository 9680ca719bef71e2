/* Hot pages: those that a run out of this snapshot writes whatever the program is (interpreter, bootstrap, stacks).
 *
 * A VM pays 15 to 24 us for each first write to a page (a copy-on-write fault through KVM's shadow MMU), 1.5 to 3 us if the host
 * populated it before. So a rehearsal records which pages become private, by /proc/self/pagemap, and later cells populate them: those
 * written until the VM waits for its job as it is restored, the others when its job comes, since a VM that waits is to be small.
 * Or as it is restored, too, if the worker says that it will be among the next to get one: a page that the guest has read meanwhile
 * costs four times as much, since all VMs of the process are told that it changes. A VM that sleeps has read none: it gets both sets when
 * it wakes up, as cheaply as at the restore.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "machine.h"

#define GAP 1                                    /* pages, populated with what is before and behind: KVM maps up to eight in a row by one fault */
#define TRIED (256 * PAGE)                       /* runs to this size are tried page by page if all at once does not do */
#define RUNS 8192                                /* of consecutive pages, in both sets */
#define PM_PRESENT (1ull << 63)
#define PM_FILE (1ull << 61)                     /* page of a file or shared: not copied yet */
#define CHUNK_PAGES (AFW_CHUNK / PAGE)
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23                   /* Linux 5.14 */
#endif

/* In the file: those of the first set, one with count 0, those of the second. */
struct run {
    uint32_t page, count;
};
static struct run *hot, *both;                   /* both: both sets in one */
static uint32_t n_hot, n_first, n_both;

/* -> runs in `out`, of both sorted lists; what lies close together is one */
static uint32_t join(const struct run *a, uint32_t n_a, const struct run *b, uint32_t n_b, struct run *out)
{
    uint32_t n = 0;
    while (n_a || n_b) {
        bool first = !n_b || (n_a && a->page < b->page);
        const struct run *r = first ? a++ : b++;
        n_a -= first;
        n_b -= !first;
        struct run *last = out + n - 1;
        if (n && r->page >= last->page && r->page <= last->page + last->count + GAP) {
            uint32_t count = r->page + r->count - last->page;
            last->count = count > last->count ? count : last->count;
        } else
            out[n++] = *r;
    }
    return n;
}

/* A damaged list only costs time: what of it makes no sense is left out. */
void hot_load(int fd)
{
    ssize_t n = -1;
    if ((hot = malloc(RUNS * sizeof *hot)))
        n = pread(fd, hot, RUNS * sizeof *hot, 0);
    for (ssize_t i = 0; i < n / (ssize_t)sizeof *hot; i++) {
        if (!hot[i].count)
            n_first = n_hot;
        else if (hot[i].page >= AFW_SYS / PAGE && hot[i].page < PAGES_IN_SPACE && hot[i].count <= PAGES_IN_SPACE - hot[i].page)
            hot[n_hot++] = hot[i];
    }
    if ((both = malloc(RUNS * sizeof *both)))
        n_both = join(hot, n_first, hot + n_first, n_hot - n_first, both);
}

bool hot_writes(uint64_t page, uint64_t end)
{
    bool found = !n_hot;
    for (uint32_t i = 0; i < n_hot && !found; i++)
        found = hot[i].page < end && page < (uint64_t)hot[i].page + hot[i].count;
    return found;
}

static void populate(struct machine *m, const struct run *r, uint32_t n, const uint64_t *chunks)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t gva = r[i].page * PAGE, size = r[i].count * PAGE;
        uint64_t a = gva / AFW_CHUNK, b = (gva + size - 1) / AFW_CHUNK;
        if (chunks[a / 64] >> a % 64 & chunks[b / 64] >> b % 64 & 1 && b - a <= 1)   /* else: they fault as they are touched */
            for (uint64_t at = 0; at < size && (at || (madvise(m->vm.mem + gva, size, MADV_POPULATE_WRITE) && size <= TRIED)); at += PAGE)
                madvise(m->vm.mem + gva + at, PAGE, MADV_POPULATE_WRITE);   /* something in a gap is of another kind */
    }
}

void hot_restored(struct machine *m, const uint64_t *chunks)
{
    if (m->asleep)
        return;
    if (m->soon && both)
        populate(m, both, n_both, chunks);
    else
        populate(m, hot, n_first, chunks);
    m->hot_due = n_hot > n_first && !(m->soon && both);
}

void hot_job(struct machine *m, bool certain)
{
    /* The worker's words; a guest that made them up would only be given its own memory. */
    const volatile struct afw_flow *f = &m->vm.window->flow[AFW_FLOW_JOB];
    if (m->asleep) {
        m->asleep = false;
        if (both)
            populate(m, both, n_both, m->vm.chunks);
    }
    if (!m->hot_due || (!certain && f->rx_head == f->rx_tail))
        return;
    m->hot_due = false;
    populate(m, hot + n_first, n_hot - n_first, m->vm.chunks);
}

/* ---- the rehearsal, of one runner and one VM ---- */

static uint64_t *waiting;                        /* bit a page: private when the VM waited for its job */
static bool recorded;

static void each_private(struct machine *m, void (*visit)(uint32_t page, void *arg), void *arg)
{
    uint64_t *entry = malloc(CHUNK_PAGES * sizeof *entry);
    for (uint64_t c = 0; entry && c < CHUNKS; c++) {
        if (!memory_committed(m, c * AFW_CHUNK, AFW_CHUNK))
            continue;
        uint64_t first = ((uintptr_t)m->vm.mem + c * AFW_CHUNK) / PAGE, want = CHUNK_PAGES * sizeof *entry;
        if (pread(cell.pagemap_fd, entry, want, (off_t)(first * sizeof *entry)) != (ssize_t)want)
            break;
        for (uint32_t i = 0; i < CHUNK_PAGES; i++) {
            uint32_t page = (uint32_t)(c * CHUNK_PAGES + i);
            if ((entry[i] & (PM_PRESENT | PM_FILE)) == PM_PRESENT && page >= AFW_SYS / PAGE)
                visit(page, arg);
        }
    }
    free(entry);
}

static bool rehearsed(void)
{
    return cell.config.hot_out >= 0 && cell.pagemap_fd >= 0 && !recorded;
}

static void mark(uint32_t page, void *arg)
{
    (void)arg;
    waiting[page / 64] |= 1ull << page % 64;
}

void hot_parked(struct machine *m)
{
    if (waiting || !rehearsed() || !m->restored || !(waiting = calloc(PAGES_IN_SPACE / 64, sizeof *waiting)))
        return;
    each_private(m, mark, 0);
}

struct list {
    struct run *run;
    uint32_t n;
    bool first;                                  /* which set is gathered */
};

static void gather(uint32_t page, void *arg)
{
    struct list *l = arg;
    bool first = waiting && waiting[page / 64] >> page % 64 & 1;
    if (first != l->first)
        return;
    if (l->n && l->run[l->n - 1].count && l->run[l->n - 1].page + l->run[l->n - 1].count == page)
        l->run[l->n - 1].count++;
    else if (l->n < RUNS)
        l->run[l->n++] = (struct run){page, 1};
}

void hot_record(struct machine *m)
{
    struct list l = {.run = calloc(RUNS, sizeof *l.run), .first = true};
    if (!rehearsed() || !l.run) {
        free(l.run);
        return;
    }
    recorded = true;
    each_private(m, gather, &l);
    l.first = false;
    if (l.n < RUNS)
        l.run[l.n++] = (struct run){0, 0};
    each_private(m, gather, &l);
    if (pwrite(cell.config.hot_out, l.run, l.n * sizeof *l.run, 0) != (ssize_t)(l.n * sizeof *l.run))
        (void)!ftruncate(cell.config.hot_out, 0);
    free(l.run);
}
