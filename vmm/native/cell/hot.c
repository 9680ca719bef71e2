/* Hot pages: those that a run out of this snapshot writes whatever the program is (interpreter, bootstrap, stacks), and those that it
 * writes as it imports, whatever that is.
 *
 * A VM pays 15 to 24 us for each first write to a page (a copy-on-write fault through KVM's shadow MMU), 1.5 to 3 us if the host
 * populated it before. So a rehearsal records which pages become private, by /proc/self/pagemap, and later cells populate them: those
 * written until the VM waits for its job as it is restored, the others when its job comes, since a VM that waits is to be small.
 * Or as it is restored, too, if the worker says that it will be among the next to get one: a page that the guest has read meanwhile
 * costs four times as much, since all VMs of the process are told that it changes. A VM that sleeps has read none: it gets both sets when
 * it wakes up, as cheaply as at the restore.
 *
 * What imports write of the template's heap (reference counts, free blocks) depends more on how much is imported than on what: nine tenths of
 * the pages that one small package writes, another writes, too. So the rehearsal goes on to import, and its pages are kept in sets by how many
 * bytes of code had been opened (edge[]). Who opens as many gets those sets, before it reads them. It would read each of the pages first and
 * then write it: two faults and a copy, 9 us in place of 2. How much it will need that was empty in the template nobody knows: that comes
 * in huge pages (room()).
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "machine.h"

#define GAP 1                                    /* pages, populated with what is before and behind: KVM maps up to eight in a row by one fault */
#define TRIED (256 * PAGE)                       /* runs to this size are tried page by page if all at once does not do */
#define RUNS 8192                                /* of consecutive pages, in both sets */
#define PM_PRESENT (1ull << 63)
#define PM_SWAPPED (1ull << 62)
#define PM_FILE (1ull << 61)                     /* page of a file or shared: not copied yet */
#define CHUNK_PAGES (AFW_CHUNK / PAGE)
#define SHARED_OBJECT 0x1000                     /* bytes of code that one counts as: most of it is not looked at */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23                   /* Linux 5.14 */
#endif

enum { SET_WAITING, SET_JOB, SET_CODE, SETS = SET_CODE + 4 };   /* SET_CODE + n: more than edge[n] bytes of code */
static const uint64_t edge[] = {0, 16 << 10, 64 << 10, 256 << 10, 1 << 20};

/* In the file: those of the first set, one with count 0, those of the second, ... */
struct run {
    uint32_t page, count;
};
static struct run *hot, *both;                   /* both: the first two sets in one */
static uint32_t end_of[SETS], n_both;            /* of each set in `hot` */

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
    uint32_t set = 0, count = 0;
    if ((hot = malloc(RUNS * sizeof *hot)))
        n = pread(fd, hot, RUNS * sizeof *hot, 0);
    for (ssize_t i = 0; i < n / (ssize_t)sizeof *hot && set < SETS; i++) {
        if (!hot[i].count)
            end_of[set++] = count;
        else if (hot[i].page >= AFW_SYS / PAGE && hot[i].page < PAGES_IN_SPACE && hot[i].count <= PAGES_IN_SPACE - hot[i].page)
            hot[count++] = hot[i];
    }
    while (set < SETS)
        end_of[set++] = count;
    if ((both = malloc(RUNS * sizeof *both)))
        n_both = join(hot, end_of[SET_WAITING], hot + end_of[SET_WAITING], end_of[SET_JOB] - end_of[SET_WAITING], both);
}

bool hot_writes(uint64_t page, uint64_t end)
{
    bool found = !end_of[SET_JOB];
    for (uint32_t i = 0; i < end_of[SET_JOB] && !found; i++)
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
    m->code_opened = m->code_sets = 0;
    if (m->asleep)
        return;
    if (m->soon && both)
        populate(m, both, n_both, chunks);
    else
        populate(m, hot, end_of[SET_WAITING], chunks);
    m->hot_due = end_of[SET_JOB] > end_of[SET_WAITING] && !(m->soon && both);
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
    populate(m, hot + end_of[SET_WAITING], end_of[SET_JOB] - end_of[SET_WAITING], m->vm.chunks);
}

static bool is_code(const char *path)
{
    const char *name = strrchr(path, '/'), *end = name ? strrchr(name, '.') : 0;
    return end && (!strcmp(end, ".pyc") || !strcmp(end, ".py") || strstr(name, ".so"));
}

/* What is mapped otherwise than at the restore is left alone: to write to a file's pages would make it larger. */
static void populate_code(struct machine *m, const struct run *r, uint32_t n)
{
    for (; n--; r++) {
        struct run part = {r->page, 0};
        if (r->count > CHUNK_PAGES)              /* of no rehearsal */
            continue;
        if (m->islands && memory_committed(m, r->page * PAGE, r->count * PAGE))
            islands_open(m, r->page * PAGE, r->count * PAGE);
        for (uint32_t page = r->page; page < r->page + r->count; page++) {
            if (!(m->prot[page] & PAGE_NEW)) {
                part.count++;
                continue;
            }
            populate(m, &part, part.count != 0, m->vm.chunks);
            part = (struct run){page + 1, 0};
        }
        populate(m, &part, part.count != 0, m->vm.chunks);
    }
}

static uint64_t *pagemap_of(struct machine *m, uint64_t gva, uint64_t size, uint64_t *entry)
{
    uint64_t want = size / PAGE * sizeof *entry;
    return pread(cell.pagemap_fd, entry, want, (off_t)((uintptr_t)(m->vm.mem + gva) / PAGE * sizeof *entry)) == (ssize_t)want ? entry : 0;
}

static bool is_private(uint64_t entry)
{
    return (entry & (PM_PRESENT | PM_FILE)) == PM_PRESENT || entry & PM_SWAPPED;
}

/* 2 MiB that nothing has been written to, neither in the template nor by this VM */
static bool unused(struct machine *m, const struct snapshot *s, uint64_t gva)
{
    uint64_t entry[HUGE_PAGE / PAGE];
    for (uint32_t i = 0; i < s->h.n_extents; i++)
        if (s->h.extent[i].gpa < gva + HUGE_PAGE && s->h.extent[i].gpa + s->h.extent[i].size > gva)
            return false;
    for (uint64_t p = gva / PAGE; p < (gva + HUGE_PAGE) / PAGE; p++)
        if (PAGE_PROT(m->prot[p]) != (PROT_READ | PROT_WRITE) || m->prot[p] & (PAGE_NEW | PAGE_ISLAND))
            return false;
    if (!pagemap_of(m, gva, HUGE_PAGE, entry))
        return false;
    for (uint64_t i = 0; i < HUGE_PAGE / PAGE; i++)
        if (is_private(entry[i]))
            return false;
    return true;
}

/* Whoever imports so much will fill more: one fault for 2 MiB, in place of two for each 4 KiB of the snapshot's emptiness and a copy of it. */
static void room(struct machine *m)
{
    const struct snapshot *s = snapshot_of_cell();
    if (!s || s->vm || cell.pagemap_fd < 0)
        return;
    for (uint64_t gva = AFW_IMAGE, end; gva < AFW_SPACE_END; gva = end) {
        end = gva + HUGE_PAGE;
        if (gva % AFW_CHUNK == 0 && !memory_committed(m, gva, AFW_CHUNK))
            end = gva + AFW_CHUNK;
        else if (unused(m, s, gva)) {
            while (end < AFW_SPACE_END && memory_committed(m, end, HUGE_PAGE) && unused(m, s, end))
                end += HUGE_PAGE;
            if (memory_zero(&m->vm, gva, end - gva))
                return;
            madvise(m->vm.mem + gva, end - gva, MADV_HUGEPAGE);
        }
    }
    m->roomy = true;
}

static void rehearsed_code(struct machine *m, uint32_t set);

/* One small file is no import: a codec, a module that a library keeps for rare cases. */
void hot_opened(struct vm *vm, const char *path, uint64_t size)
{
    struct machine *m = machine_of(vm);
    if (!m->restored || m->code_sets > SETS - SET_CODE || !is_code(path))
        return;
    bool first = !m->code_opened;
    m->code_opened += size < SHARED_OBJECT || !strstr(path, ".so") ? size : SHARED_OBJECT;
    if (first && m->code_opened <= edge[1])
        return;
    for (; m->code_sets <= SETS - SET_CODE && m->code_opened > edge[m->code_sets]; m->code_sets++) {
        uint32_t set = SET_CODE + m->code_sets;
        rehearsed_code(m, set);
        if (set == SETS)
            room(m);
        else
            populate_code(m, hot + end_of[set - 1], end_of[set] - end_of[set - 1]);
    }
}

/* ---- the rehearsal, of one runner and one VM ---- */

static uint8_t *set_of;                          /* of each page that was private when last looked: its set + 1 */
static uint32_t set_now;                         /* that pages get which are found private now */
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
    if (!set_of[page])
        set_of[page] = (uint8_t)(set_now + 1);
}

/* What is private by now, and not since earlier, is of set_now; from here on of `next`. */
static void look(struct machine *m, uint32_t next)
{
    if (!rehearsed() || !m->restored || (!set_of && !(set_of = calloc(PAGES_IN_SPACE, 1))))
        return;
    each_private(m, mark, 0);
    set_now = next;
}

void hot_parked(struct machine *m)
{
    const volatile struct afw_flow *output = &m->vm.window->flow[AFW_FLOW_STDOUT];
    if (set_now == SET_WAITING)
        look(m, SET_JOB);
    else if (set_now == SET_JOB && output->tx_head)
        look(m, SET_CODE);
}

static void rehearsed_code(struct machine *m, uint32_t set)
{
    if (set > SET_CODE && set_now >= SET_CODE)   /* what it wrote before the first one is of the first such set, too */
        look(m, set);
}

struct list {
    struct run *run;
    uint32_t n, set;
};

/* The snapshot has something there */
static bool filled(uint32_t page)
{
    static const uint8_t zeros[PAGE];
    uint8_t data[PAGE];
    uint64_t to = (page + 1) * PAGE, at = snapshot_source(snapshot_of_cell(), page * PAGE, &to);
    return at && pread(cell.config.snapshot_in, data, PAGE, (off_t)at) == (ssize_t)PAGE && memcmp(data, zeros, PAGE);
}

static void gather(uint32_t page, void *arg)
{
    struct list *l = arg;
    if (set_of[page] != l->set + 1 || (l->set >= SET_CODE && !filled(page)))
        return;
    struct run *last = l->run + l->n - 1;
    if (l->n && last->count && page - (last->page + last->count) <= (l->set < SET_CODE ? 0 : GAP))
        last->count = page + 1 - last->page;
    else if (l->n < RUNS)
        l->run[l->n++] = (struct run){page, 1};
}

void hot_record(struct machine *m)
{
    struct list l = {.run = calloc(RUNS, sizeof *l.run)};
    look(m, SETS);
    if (!rehearsed() || !l.run || !set_of) {
        free(l.run);
        return;
    }
    recorded = true;
    for (; l.set < SETS; l.set++) {
        each_private(m, gather, &l);
        if (l.n < RUNS)
            l.run[l.n++] = (struct run){0, 0};
    }
    if (pwrite(cell.config.hot_out, l.run, l.n * sizeof *l.run, 0) != (ssize_t)(l.n * sizeof *l.run))
        (void)!ftruncate(cell.config.hot_out, 0);
    free(l.run);
}
