/* A VM whose program ended is made into one that was just restored, without making KVM's VM, vCPU, memslots and mappings anew.
 *
 * Nothing that the guest says is asked. Which pages differ is told by the kernel (/proc/self/pagemap: a private mapping's page that is not
 * the file's), which pieces of memory are mapped or protected otherwise by this process's own notes (prot[]). Pages are put back by copying:
 * the guest's next touch costs nothing then, while a page that is dropped faults again (docs/internals.md has the figures). The vCPU is set
 * and then read back, MSRs too, and compared with what the cell's first VM had before it ran. Whatever is not certain ends in vm_close() and a
 * new VM.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "machine.h"

#define RW (PROT_READ | PROT_WRITE)
#define IDLE_NS 50000000ull                      /* nobody wants it: put back then, which makes it small */
#define CHUNK_PAGES (AFW_CHUNK / PAGE)
#define REGIONS 256
#define MSRS 512
#define PM_PRESENT (1ull << 63)
#define PM_SWAP (1ull << 62)
#define PM_FILE (1ull << 61)
#define PM_EXCLUSIVE (1ull << 56)

struct msrs {
    struct kvm_msrs head;
    struct kvm_msr_entry entry[MSRS];
};
struct vcpu_look {                               /* all that KVM tells of a vCPU but its general registers, which are written at each entry */
    struct kvm_sregs sregs;
    struct kvm_xsave xsave;
    struct kvm_vcpu_events events;
    struct kvm_debugregs debug;
    struct kvm_xcrs xcrs;
    struct kvm_mp_state mp;
    struct msrs msrs;
};

/* What a VM of this cell is like when it was restored: written once, by the first one */
static struct {
    pthread_mutex_t lock;
    atomic_bool ready;
    bool failed;
    uint8_t *prot;                               /* as machine.prot */
    uint32_t edges, next_slot;
    const uint8_t *file;                         /* the snapshot, mapped */
    struct vcpu_look vcpu;
} first = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint32_t msr_index[MSRS], n_msrs;

/* To the log, once a cell: that it is so harms nobody, but costs a new VM each time. */
static int unlike(const struct machine *m, const char *what)
{
    static atomic_bool told;
    if (!atomic_exchange(&told, true))
        fprintf(stderr, "agentfw-cell: VM %u is made anew and not recycled: %s differ from a new one's\n", m->vm.id, what);
    return -ESTALE;
}

/* ---- the vCPU ---- */

static void msr_add(uint32_t index)
{
    static const uint32_t moving[] = {           /* they count time */
        0x10 /* TSC */, 0xe7, 0xe8 /* MPERF, APERF */, 0x34 /* SMI count */, 0x40000010, 0x40000020 /* Hyper-V's run time, reference time */,
        0xc0000104 /* TSC ratio */};
    for (size_t i = 0; i < sizeof moving / sizeof *moving; i++) {
        if (index == moving[i])
            return;
    }
    for (uint32_t i = 0; i < n_msrs; i++) {
        if (msr_index[i] == index)
            return;
    }
    if (n_msrs < MSRS)
        msr_index[n_msrs++] = index;
}

static void msr_range(uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i <= to; i++)
        msr_add(i);
}

/* Code of CPL 3 writes no MSR, but a guest may turn the shim's few instructions at CPL 0 into its own. So: KVM's list, and those it does not list. */
void recycle_setup(void)
{
    struct {
        struct kvm_msr_list head;
        uint32_t index[MSRS];
    } list = {.head.nmsrs = MSRS};
    if (!cell.config.recycle)
        return;
    if (cell.pagemap_fd < 0 || ioctl(cell.kvm_fd, KVM_GET_MSR_INDEX_LIST, &list)) {
        cell.config.recycle = 0;                 /* nothing is kept then */
        return;
    }
    for (uint32_t i = 0; i < list.head.nmsrs; i++)
        msr_add(list.index[i]);
    msr_range(0x200, 0x20f);                     /* MTRRs */
    msr_add(0x250);
    msr_range(0x258, 0x259);
    msr_range(0x268, 0x26f);
    msr_add(0x2ff);
    msr_add(0x277);                              /* PAT */
    msr_range(0x179, 0x17b);                     /* machine checks */
    msr_range(0x400, 0x47f);
    msr_range(0x11, 0x12);                       /* KVM's clock, old numbers */
    msr_range(0x4b564d00, 0x4b564d0f);           /* KVM's own */
    msr_range(0x4b564df0, 0x4b564dff);           /* pvm's */
    msr_range(0xc0000081, 0xc0000084);
    msr_range(0xc0000102, 0xc0000103);
}

/* At the first vCPU: those that can be read, one by one, since KVM stops at the first that cannot. */
static void msr_probe(int fd)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_msrs; i++) {
        struct {
            struct kvm_msrs head;
            struct kvm_msr_entry entry;
        } one = {.head.nmsrs = 1, .entry.index = msr_index[i]};
        if (ioctl(fd, KVM_GET_MSRS, &one) == 1)
            msr_index[n++] = msr_index[i];
    }
    n_msrs = n;
}

static int look(struct machine *m, struct vcpu_look *v)
{
    int fd = m->vm.vcpu_fd;
    memset(v, 0, sizeof *v);
    v->msrs.head.nmsrs = n_msrs;
    for (uint32_t i = 0; i < n_msrs; i++)
        v->msrs.entry[i].index = msr_index[i];
    if (ioctl(fd, KVM_GET_SREGS, &v->sregs) || ioctl(fd, KVM_GET_XSAVE, &v->xsave) || ioctl(fd, KVM_GET_VCPU_EVENTS, &v->events) ||
        ioctl(fd, KVM_GET_DEBUGREGS, &v->debug) || ioctl(fd, KVM_GET_XCRS, &v->xcrs) || ioctl(fd, KVM_GET_MP_STATE, &v->mp))
        return -errno;
    int n = ioctl(fd, KVM_GET_MSRS, &v->msrs);
    return n == (int)n_msrs ? 0 : n < 0 ? -errno : -EIO;
}

static int put_vcpu(struct machine *m)
{
    int fd = m->vm.vcpu_fd;
    struct kvm_run *run = m->vm.run;
    /* What the kernel reads of it at an entry; the rest it writes at an exit */
    run->request_interrupt_window = run->immediate_exit = 0;
    run->cr8 = 0;
    run->exit_reason = KVM_EXIT_UNKNOWN;
    struct vcpu_look *v = &first.vcpu;
    if (ioctl(fd, KVM_SET_VCPU_EVENTS, &v->events) || ioctl(fd, KVM_SET_SREGS, &v->sregs) || ioctl(fd, KVM_SET_DEBUGREGS, &v->debug))
        return -errno;
    ioctl(fd, KVM_SET_XCRS, &v->xcrs);           /* as boot_vcpu() does; recycle_check() sees what came of it */
    return boot_msrs(m);
}

int recycle_check(struct machine *m)
{
    struct vcpu_look *v = malloc(sizeof *v);
    int e = v ? look(m, v) : -ENOMEM;
    if (!e && memcmp(v, &first.vcpu, sizeof *v)) {
        const char *what = memcmp(&v->sregs, &first.vcpu.sregs, sizeof v->sregs)      ? "segment and control registers"
                           : memcmp(&v->xsave, &first.vcpu.xsave, sizeof v->xsave)    ? "FPU and vector registers"
                           : memcmp(&v->events, &first.vcpu.events, sizeof v->events) ? "pending events"
                           : memcmp(&v->msrs, &first.vcpu.msrs, sizeof v->msrs)       ? "MSRs"
                                                                                      : "debug registers, XCR0 or state";
        e = unlike(m, what);
    }
    free(v);
    return e;
}

/* ---- memory: the pieces ---- */

static const struct afw_snapshot_extent *extent_at(const struct snapshot *s, uint64_t gpa, uint64_t *to)
{
    for (uint32_t i = 0; i < s->h.n_extents; i++) {
        const struct afw_snapshot_extent *x = &s->h.extent[i];
        if (gpa < x->gpa) {
            *to = *to < x->gpa ? *to : x->gpa;
            return 0;
        }
        if (gpa < x->gpa + x->size) {
            *to = *to < x->gpa + x->size ? *to : x->gpa + x->size;
            return x;
        }
    }
    return 0;
}

/* [from, to) is mapped as restore.c does it, readable and writable. */
static int map_again(struct machine *m, const struct snapshot *s, uint64_t from, uint64_t to)
{
    while (from < to) {
        uint64_t end = to;
        uint64_t offset = snapshot_source(s, from, &end);
        int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE | (offset ? 0 : MAP_ANONYMOUS);
        if (mmap(m->vm.mem + from, end - from, RW, flags, offset ? s->fd : -1, (off_t)offset) == MAP_FAILED)
            return remap_failed(m, from);
        from = end;
    }
    return 0;
}

/* Runs of pages in [page, end) for which prot[] says `wanted` of `mask` */
static uint64_t run_end(const uint8_t *prot, uint64_t page, uint64_t end, uint8_t mask, uint8_t wanted)
{
    while (page < end && (prot[page] & mask) == wanted)
        page++;
    return page;
}

static int put_pieces(struct machine *m, const struct snapshot *s, uint64_t first_page, uint64_t end)
{
    uint64_t difference;
    for (uint64_t p = first_page, to; p < end; p = to) {
        to = run_end(m->prot, p, end, PAGE_NEW, 0);
        if (to > p)
            continue;
        to = run_end(m->prot, p, end, PAGE_NEW, PAGE_NEW);
        int e = map_again(m, s, p * PAGE, to * PAGE);
        if (e)
            return e;
        for (uint64_t i = p; i < to; i++)
            m->prot[i] &= PAGE_EDGE | PAGE_SEAM;  /* RW now */
    }
    for (uint64_t p = first_page; p < end; p++) {
        if (p % 8 == 0) {                        /* most are alike */
            memcpy(&difference, m->prot + p, 8);
            uint64_t as;
            memcpy(&as, first.prot + p, 8);
            if (difference == as) {
                p += 7;
                continue;
            }
        }
        int prot = PAGE_PROT(first.prot[p]);
        if (PAGE_PROT(m->prot[p]) != prot) {
            uint64_t to = p + 1;
            while (to < end && PAGE_PROT(first.prot[to]) == prot && PAGE_PROT(m->prot[to]) != prot)
                to++;
            if (mprotect(m->vm.mem + p * PAGE, (to - p) * PAGE, prot))
                return -errno;
            for (uint64_t i = p; i < to; i++)
                m->prot[i] = (uint8_t)((m->prot[i] & (PAGE_EDGE | PAGE_SEAM)) | (first.prot[i] & 3));
        }
        /* The kernel may have left a seam where a piece began: noted, as long as the VM lives */
        uint8_t now = m->prot[p], seam = now & PAGE_SEAM;
        if (now & PAGE_EDGE && !(first.prot[p] & PAGE_EDGE) && !seam) {
            seam = PAGE_SEAM;
            if (++m->seams > RECYCLE_SEAMS)
                return -E2BIG;
        }
        m->prot[p] = first.prot[p] | seam;
    }
    return 0;
}

/* ---- memory: the pages ---- */

struct copier {
    struct machine *m;
    const struct snapshot *s;
    uint64_t left;                               /* pages that may stay in memory */
};

/* [from, to): changed pages, one behind the other, of one protection */
static int put_run(struct copier *c, uint64_t from, uint64_t to, bool dropped)
{
    static const uint8_t zeros[16 * PAGE];
    uint8_t *mem = c->m->vm.mem;
    if (!dropped && PAGE_PROT(first.prot[from / PAGE]) == RW && c->left) {
        uint64_t end = to - from > c->left * PAGE ? from + c->left * PAGE : to;
        c->left -= (end - from) / PAGE;
        while (from < end) {
            uint64_t part = end;
            const struct afw_snapshot_extent *x = extent_at(c->s, from, &part);
            const uint8_t *source = x ? first.file + x->offset + (from - x->gpa) : zeros;
            if (!x && part - from > sizeof zeros)
                part = from + sizeof zeros;
            if (guarded_copy(mem + from, source, part - from))
                return -EFAULT;
            from = part;
        }
    }
    /* Without write access, or too many: what lies beneath shows again */
    return from == to || !madvise(mem + from, to - from, MADV_DONTNEED) ? 0 : -errno;
}

/* Page tables, which KVM may shadow: a host must not write there. With nested paging (AMD) walking them makes the pages private; only a
 * guest that took CPL 0 changes them. */
static int same_tables(struct copier *c, uint64_t from, uint64_t to)
{
    static __thread uint8_t now[PAGE], then[PAGE];
    for (; from < to; from += PAGE) {
        uint64_t end = from + PAGE;
        const struct afw_snapshot_extent *x = extent_at(c->s, from, &end);
        memset(then, 0, sizeof then);
        if (guarded_copy(now, c->m->vm.mem + from, PAGE) || (x && guarded_copy(then, first.file + x->offset + (from - x->gpa), PAGE)))
            return -EFAULT;
        if (memcmp(now, then, PAGE))
            return unlike(c->m, "page tables");
    }
    return 0;
}

static int put_region(struct copier *c, uint64_t from, uint64_t to, bool dropped)
{
    c->m->private_pages += (to - from) / PAGE;
    if (from < AFW_SYS) {
        uint64_t end = to < AFW_SYS ? to : AFW_SYS;
        int e = same_tables(c, from, end);
        if (e)
            return e;
        from = end;
    }
    while (from < to) {
        uint64_t page = from / PAGE, end = run_end(first.prot, page, to / PAGE, 3, first.prot[page] & 3) * PAGE;
        int e = put_run(c, from, end, dropped);
        if (e)
            return e;
        from = end;
    }
    return 0;
}

/* Linux 6.7 and later: -ENOTTY or -EINVAL elsewhere */
static int scan_regions(struct copier *c, uint64_t from, uint64_t to)
{
    struct page_region region[REGIONS];
    uint64_t base = (uintptr_t)c->m->vm.mem;
    struct pm_scan_arg arg = {.size = sizeof arg, .start = base + from, .end = base + to, .vec = (uintptr_t)region, .vec_len = REGIONS,
                              .category_inverted = PAGE_IS_FILE | PAGE_IS_PFNZERO, .category_mask = PAGE_IS_FILE | PAGE_IS_PFNZERO,
                              .category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED, .return_mask = PAGE_IS_SWAPPED};
    while (arg.start < arg.end) {
        int n = ioctl(cell.pagemap_fd, PAGEMAP_SCAN, &arg);
        if (n < 0)
            return -errno;
        if (n > REGIONS || arg.walk_end <= arg.start)
            return -EIO;
        for (int i = 0; i < n; i++) {
            if (region[i].start < base + from || region[i].end > base + to)
                return -EIO;
            int e = put_region(c, region[i].start - base, region[i].end - base, region[i].categories & PAGE_IS_SWAPPED);
            if (e)
                return e;
        }
        arg.start = arg.walk_end;
    }
    return 0;
}

static int scan_pages(struct copier *c, uint64_t from, uint64_t to)
{
    static __thread uint64_t entry[CHUNK_PAGES / 8];
    for (uint64_t at = from; at < to; at += sizeof entry / sizeof *entry * PAGE) {
        if (pread(cell.pagemap_fd, entry, sizeof entry, (off_t)(((uintptr_t)c->m->vm.mem + at) / PAGE * sizeof *entry)) != sizeof entry)
            return -EIO;
        for (uint64_t i = 0, n; i < sizeof entry / sizeof *entry; i += n) {
            uint64_t kind = entry[i] & (PM_PRESENT | PM_SWAP | PM_FILE | PM_EXCLUSIVE);
            for (n = 1; i + n < sizeof entry / sizeof *entry && (entry[i + n] & (PM_PRESENT | PM_SWAP | PM_FILE | PM_EXCLUSIVE)) == kind;)
                n++;
            if (!(kind & (PM_PRESENT | PM_SWAP)) || kind & PM_FILE)
                continue;
            /* Not exclusive: the zero page, mostly. It is dropped, and may come again */
            int e = put_region(c, at + i * PAGE, at + (i + n) * PAGE, (kind & (PM_SWAP | PM_EXCLUSIVE)) != PM_EXCLUSIVE);
            if (e)
                return e;
        }
    }
    return 0;
}

/* Chunks that the program committed besides the template's: their memslots go, the latest first, then their memory. */
static int drop_chunks(struct machine *m, const struct snapshot *s)
{
    if (m->next_slot < first.next_slot)
        return -EIO;
    while (m->next_slot > first.next_slot) {
        struct kvm_userspace_memory_region none = {.slot = m->next_slot - 1};
        if (ioctl(m->vm.vm_fd, KVM_SET_USER_MEMORY_REGION, &none))
            return -errno;
        m->next_slot--;
    }
    if (!memcmp(m->vm.chunks, s->h.commit_chunks, sizeof m->vm.chunks))
        return 0;
    for (uint64_t c = 0; c < CHUNKS; c++) {
        uint64_t bit = 1ull << c % 64, had = s->h.commit_chunks[c / 64] & bit, has = m->vm.chunks[c / 64] & bit;
        if (had && !has)
            return -EIO;
        uint8_t *edge = m->prot + c * CHUNK_PAGES;   /* its first page may end what lies before it */
        if (!has && *edge != first.prot[c * CHUNK_PAGES])
            *edge = first.prot[c * CHUNK_PAGES];
        if (had || !has)
            continue;
        if (mmap(m->vm.mem + c * AFW_CHUNK, AFW_CHUNK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED)
            return remap_failed(m, c * AFW_CHUNK);
        memcpy(m->prot + c * CHUNK_PAGES, first.prot + c * CHUNK_PAGES, CHUNK_PAGES);
        m->vm.chunks[c / 64] &= ~bit;
        m->committed -= AFW_CHUNK;
    }
    return 0;
}

static int put_memory(struct machine *m, const struct snapshot *s)
{
    static atomic_bool no_scan;
    struct copier c = {m, s, cell.config.recycle};
    m->private_pages = 0;
    int shrunk = drop_chunks(m, s);
    if (shrunk)
        return shrunk;
    for (uint64_t a = 0, b; a < CHUNKS; a = b) {
        b = a + 1;
        if (!(m->vm.chunks[a / 64] >> a % 64 & 1))
            continue;
        while (b < CHUNKS && m->vm.chunks[b / 64] >> b % 64 & 1)
            b++;
        int e = put_pieces(m, s, a * CHUNK_PAGES, b * CHUNK_PAGES);
        if (!e && !no_scan) {
            e = scan_regions(&c, a * AFW_CHUNK, b * AFW_CHUNK);
            if ((e == -ENOTTY || e == -EINVAL) && !m->private_pages) {
                no_scan = true;
                e = 0;
            }
        }
        if (!e && no_scan)
            e = scan_pages(&c, a * AFW_CHUNK, b * AFW_CHUNK);
        if (e)
            return e;
    }
    pieces_reset(m, first.edges);
    return 0;
}

static int put_back(struct machine *m, const struct snapshot *s)
{
    uint64_t begun = clock_mono();
    int e = put_memory(m, s);
    m->reset_ns += clock_mono() - begun;
    m->clean = !e;
    return e;
}

/* ---- a life's end, and the next ---- */

void recycle_note(struct machine *m, const struct snapshot *s)
{
    if (!cell.config.recycle || s->vm || atomic_load(&first.ready))   /* a forked VM has files besides: always made anew */
        return;
    pthread_mutex_lock(&first.lock);
    if (!first.ready && !first.failed) {
        first.prot = mmap(0, PAGES_IN_SPACE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        first.file = mmap(0, s->h.file_size, PROT_READ, MAP_PRIVATE, s->fd, 0);
        msr_probe(m->vm.vcpu_fd);
        first.failed = first.prot == MAP_FAILED || first.file == MAP_FAILED || look(m, &first.vcpu);
        for (uint64_t p = 0; !first.failed && p < PAGES_IN_SPACE; p += CHUNK_PAGES) {
            if (memory_committed(m, p * PAGE, AFW_CHUNK))
                memcpy(first.prot + p, m->prot + p, CHUNK_PAGES);
            else if (m->prot[p])                 /* the end of what is committed */
                first.prot[p] = m->prot[p];
        }
        first.edges = m->edges;
        first.next_slot = m->next_slot;
        atomic_store(&first.ready, !first.failed);
    }
    pthread_mutex_unlock(&first.lock);
}

bool recycle_keep(struct machine *m)
{
    struct vm *vm = &m->vm;
    uint32_t kind = vm->shm->exit_kind;
    if (!cell.config.recycle || !m->restored || m->spoiled || vm->runner->quit || !atomic_load(&first.ready) ||
        (kind != AFW_EXIT_CODE && kind != AFW_EXIT_SIGNAL && kind != AFW_EXIT_KILLED))
        return false;
    if (vm_flush(m))                             /* the second half of an exit, or of an instruction, may be pending */
        return false;
    vm_forget(m);
    m->clean = false;
    m->reset_ns = 0;
    m->state = RUN_KEPT;
    m->deadline = m->next_slot > first.next_slot ? 0 : clock_mono() + IDLE_NS;   /* chunks go back at once */
    return true;
}

void recycle_idle(struct machine *m)
{
    if (put_back(m, snapshot_of_cell()))
        vm_close(m);
}

int recycle(struct machine *m, const struct snapshot *s)
{
    int e = m->clean ? 0 : put_back(m, s);
    uint64_t begun = clock_mono();
    if (!e)
        e = put_vcpu(m);
    m->reset_ns += clock_mono() - begun;
    return e;
}
