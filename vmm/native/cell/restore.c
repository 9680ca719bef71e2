/* A VM from a snapshot file. The file is read and checked once a cell; each restore then is mappings, memslots and registers.
 *
 * The snapshot store is the operator's own: the check is against accidents (damage, another version, another CPU), and every size
 * and address is bounded all the same.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "machine.h"
#include "rules.h"

#define IOPL_3 0x3000
#define STATE_MAX (64u << 20)
#define SAVED_STATE_MAX (256u << 20)

static int read_all(int fd, void *out, size_t n, uint64_t offset)
{
    uint8_t *p = out;
    while (n) {
        ssize_t got = pread(fd, p, n, (off_t)offset);
        if (got <= 0)
            return -1;
        p += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

static bool chunk_set(const struct afw_snapshot_header *h, uint64_t gva, uint64_t len)
{
    if (!len || !inside(gva, len, 0, AFW_SPACE_END))
        return false;
    for (uint64_t c = gva / AFW_CHUNK; c <= (gva + len - 1) / AFW_CHUNK; c++) {
        if (!(h->commit_chunks[c / 64] >> c % 64 & 1))
            return false;
    }
    return true;
}

static const char *check_saved(struct snapshot *s, uint64_t at)
{
    uint64_t size = s->h.vcpu_size;
    at = (at + 7) & ~7ull;
    if (!inside(at, sizeof *s->vm, 0, size))
        return "the saved VM's part is too short";
    const struct saved_vm *vm = (const struct saved_vm *)(s->state + at);
    const struct afw_snapshot_extent *base = (const struct afw_snapshot_extent *)(vm + 1);
    uint64_t left = size - at - sizeof *vm;
    if (vm->n_bases > SAVED_BASES || vm->n_bases > left / sizeof *base || vm->vfs_size != left - vm->n_bases * sizeof *base)
        return "the saved VM's files do not fit";
    uint64_t last = 0;
    for (uint64_t i = 0; i < vm->n_bases; i++) {
        const struct afw_snapshot_extent *x = &base[i];
        if (x->gpa % PAGE || x->size % PAGE || x->offset % PAGE || x->gpa < last || !chunk_set(&s->h, x->gpa, x->size) || x->offset > INT64_MAX - AFW_SPACE_END)
            return "memory of its template is out of bounds";
        last = x->gpa + x->size;
    }
    if (vm->data % PAGE || !inside(vm->data, vm->data_size, 0, s->h.file_size))
        return "content of files is out of bounds";
    s->vm = vm;
    s->base = base;
    s->vfs = (const uint8_t *)(base + vm->n_bases);
    return 0;
}

static const char *check_state(struct snapshot *s)
{
    const struct vcpu_state *v = s->vcpu = (const struct vcpu_state *)s->state;
    uint64_t left = s->h.vcpu_size;
    if (left < sizeof *v)
        return "vCPU state is too short";
    left -= sizeof *v;
    if (v->n_protections > left / sizeof *s->protection)
        return "protections do not fit";
    left -= v->n_protections * sizeof *s->protection;
    if (v->n_mappings > left / sizeof *s->mapping)
        return "mappings do not fit";
    left -= v->n_mappings * sizeof *s->mapping;
    if (s->h.magic == AFW_SAVED_MAGIC ? v->names_size > left : v->names_size != left)
        return "names do not fit";
    s->protection = (const struct saved_protection *)(v + 1);
    s->mapping = (const struct saved_mapping *)(s->protection + v->n_protections);
    const char *names = (const char *)(s->mapping + v->n_mappings);
    for (uint32_t i = 0; i < v->n_protections; i++) {
        const struct saved_protection *p = &s->protection[i];
        if (p->start % PAGE || p->end % PAGE || p->start < AFW_IMAGE || p->end <= p->start || !chunk_set(&s->h, p->start, p->end - p->start) || p->prot > 3)
            return "a protection is out of bounds";
    }
    if (v->names_size && names[v->names_size - 1])
        return "names do not end";
    s->name = calloc(v->n_mappings + 1, sizeof *s->name);
    s->map = s->h.magic == AFW_SAVED_MAGIC ? 0 : calloc(v->n_mappings + 1, sizeof *s->map);
    if (!s->name || (s->h.magic != AFW_SAVED_MAGIC && !s->map))
        return "no memory";
    for (uint32_t i = 0; i < v->n_mappings; i++) {
        const struct saved_mapping *x = &s->mapping[i];
        if (x->name >= v->names_size || x->end <= x->start || x->end > AFW_SPACE_END)
            return "a mapping is out of bounds";
        if (x->flags && (s->h.magic != AFW_SAVED_MAGIC || (x->start | x->end | x->offset) % PAGE || x->start < AFW_IMAGE || x->flags < SAVED_FILE ||
                         !chunk_set(&s->h, x->start, x->end - x->start) || x->offset > INT64_MAX - (x->end - x->start)))
            return "a mapping of a private file is out of bounds";
        s->name[i] = i && x->name == x[-1].name ? s->name[i - 1] : intern(names + x->name);
        if (s->map)
            s->map[i] = (struct mapping){.start = x->start, .end = x->end, .offset = x->offset, .name = s->name[i]};
    }
    return s->h.magic == AFW_SAVED_MAGIC ? check_saved(s, (uint64_t)((const uint8_t *)names + v->names_size - s->state)) : 0;
}

static const char *check(struct snapshot *s, int fd, char *error, size_t size)
{
    struct afw_snapshot_header *h = &s->h;
    struct stat st;
    if (fd < 0)
        return "none was configured";
    if (fstat(fd, &st) || st.st_size < (off_t)sizeof *h || read_all(fd, h, sizeof *h, 0))
        return "the file is too short or cannot be read";
    bool saved = fd == cell.config.saved;
    if (h->magic != (saved ? AFW_SAVED_MAGIC : AFW_SNAPSHOT_MAGIC))
        return "not a snapshot, or an unfinished one";
    if (h->format != AFW_SNAPSHOT_FORMAT || h->abi != AFW_ABI) {
        snprintf(error, size, "format %u, ABI %u; this version reads format %d, ABI %d", h->format, h->abi, AFW_SNAPSHOT_FORMAT, AFW_ABI);
        return error;
    }
    if (h->file_size != (uint64_t)st.st_size)
        return "the file is damaged: its size is not what its head says";
    if (h->vcpu_offset != sizeof *h || h->vcpu_size > (saved ? SAVED_STATE_MAX : STATE_MAX) || h->vcpu_size < sizeof(struct vcpu_state) || !inside(h->vcpu_offset, h->vcpu_size, 0, h->file_size) ||
        h->n_extents > AFW_SNAPSHOT_EXTENTS)
        return "the file is damaged: sizes out of bounds";
    s->state = aligned_alloc(64, (h->vcpu_size + 63u) & ~63u);
    if (!s->state || read_all(fd, s->state, h->vcpu_size, h->vcpu_offset))
        return "the file cannot be read";
    uint64_t crc = h->crc;
    h->crc = 0;
    bool same = crc == crc64(crc64(0, h, sizeof *h), s->state, h->vcpu_size);
    h->crc = crc;
    if (!same)
        return "the file is damaged: wrong checksum";
    if (memcmp(h->shim_sha, cell.shim_sha, sizeof h->shim_sha))
        return "made with another version's shim";
    if (cell.config.has_key && memcmp(h->key, cell.config.key, sizeof h->key))
        return "made for another template (its key differs)";
    const char *missing = cpu_missing(&cell.cpu, h->needs);
    if (missing) {
        snprintf(error, size, "made on a CPU (%.12s) with %s, which this host (%.12s) has not", h->cpu_vendor, missing, cell.cpu.vendor);
        return error;
    }
    if (h->xcr0 != (h->xcr0 & cell.cpu.xcr0))
        return "needs more extended state than this host has";
    if (!(h->commit_chunks[0] & 1) || h->commit_chunks[7] >> (CHUNKS - 7 * 64))
        return "committed chunks out of bounds";
    uint64_t last = 0;
    for (uint32_t i = 0; i < h->n_extents; i++) {
        const struct afw_snapshot_extent *x = &h->extent[i];
        if (x->gpa % PAGE || x->size % PAGE || x->offset % PAGE || !chunk_set(h, x->gpa, x->size) || x->gpa < last || !inside(x->offset, x->size, 0, h->file_size))
            return "the file is damaged: an extent is out of bounds";
        last = x->gpa + x->size;
    }
    return check_state(s);
}

static const char *check_base(const struct snapshot *s, const struct snapshot *base)
{
    if (s->vm->base_crc != base->h.crc)
        return "saved from another template than this";
    for (uint64_t i = 0; i < s->vm->n_bases; i++) {
        if (!inside(s->base[i].offset, s->base[i].size, 0, base->h.file_size))
            return "memory of its template is out of bounds";
    }
    return 0;
}

/* The cell's snapshot, and the template's (which are one, but for cells whose VMs go on from a saved one), checked at their first use;
 * 0 and the reason if they are unusable. */
static const struct snapshot *the_snapshot(bool template, char *error, size_t size)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct snapshot base, saved;
    static bool tried;
    static char why[160];
    bool forks = cell.config.saved >= 0;
    pthread_mutex_lock(&lock);
    if (!tried) {
        char text[160];
        base.fd = cell.config.snapshot_in;
        saved.fd = cell.config.saved;
        const char *e = check(&base, base.fd, text, sizeof text);
        if (!e && forks)
            e = check(&saved, saved.fd, text, sizeof text);
        if (!e && forks)
            e = check_base(&saved, &base);
        if (e)
            snprintf(why, sizeof why, "%s", e);
        tried = true;
    }
    pthread_mutex_unlock(&lock);
    if (*why)
        snprintf(error, size, "%s: %s", forks ? "saved VM" : "snapshot", why);
    return *why ? 0 : forks && !template ? &saved : &base;
}

/* Private files that are mapped shared: what is written through one place is seen through the others. */
static int map_files(struct machine *m, const struct snapshot *s)
{
    for (uint32_t i = 0; i < s->vcpu->n_mappings; i++) {
        const struct saved_mapping *x = &s->mapping[i];
        if (!x->flags)
            continue;
        struct tnode *file = vfs_file(m->vm.vfs, x->flags / SAVED_FILE - 1);
        int fd = file ? vfs_host_fd(m->vm.vfs, file) : -EINVAL;
        if (fd < 0)
            return fd;
        int e = pieces_room(m, x->start, x->end - x->start, true);
        if (e)
            return e;
        if (mmap(m->vm.mem + x->start, x->end - x->start, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, (off_t)x->offset) == MAP_FAILED)
            return -errno;
        pieces_done(m, x->start, x->end - x->start, PROT_READ | PROT_WRITE, true);
    }
    return 0;
}

/* What is new in a VM that goes on: nothing that others of its kind could foresee is left, and its clock does not go back. */
static void renew(struct machine *m, const struct snapshot *s)
{
    struct afw_ctl *ctl = m->vm.ctl;
    uint8_t fill[AFW_FORK_FILL];
    uint64_t at = ctl->fork_fill;
    if (m->clock_mono_base < s->vm->mono)
        ctl->mono_base = m->clock_mono_base = s->vm->mono;
    if (at) {
        for (size_t done = 0; done < sizeof fill; done += 256)   /* so much comes without interruption */
            while (getrandom(fill + done, sizeof fill - done < 256 ? sizeof fill - done : 256, 0) < 0)
                ;
        if (at >= AFW_IMAGE)
            guest_write(&m->vm, at, fill, sizeof fill);   /* (an address that is no good is the guest's own affair) */
    }
    ctl->forked = 1;
    /* It takes up its new pid and clock as it leaves the shim; if it stands in its own code, by an upcall before that goes on. */
    ctl->resched = rip_in_shim(s->vcpu->regs.rip);
    ctl->alone = 0;
    m->slice_over = !ctl->resched;
    m->forked = true;
}

int snapshot_go_on(struct machine *m, char *error, size_t size)
{
    const struct snapshot *s = the_snapshot(false, error, size);
    if (!s)
        return -EINVAL;
    if (m->vm.rules)
        rules_leave(m->vm.rules, s->vm->write_bytes, s->vm->creates);
    int e = vfs_loaded(m->vm.vfs);
    if (e)
        snprintf(error, size, "restore: files: %s", strerror(-e));
    return e;
}

/* Chunks [from, to): where they begin in the file, if they lie there as in memory; else 0. Between extents are holes then, which read as
 * zeros. A mapping less is worth more than it seems: each is told to KVM of all VMs in this process. */
static uint64_t laid_out(const struct snapshot *s, uint32_t from, uint32_t to)
{
    uint64_t start = (uint64_t)from * AFW_CHUNK, size = (uint64_t)(to - from) * AFW_CHUNK, offset = 0;
    for (uint32_t i = 0; i < s->h.n_extents; i++) {
        const struct afw_snapshot_extent *x = &s->h.extent[i];
        if (!inside(x->gpa, x->size, start, start + size))
            continue;
        uint64_t begins = x->offset - (x->gpa - start);
        if (x->offset < x->gpa - start || (offset && begins != offset))
            return 0;
        offset = begins;
    }
    return inside(offset, size, s->h.vcpu_offset + s->h.vcpu_size, s->h.file_size) ? offset : 0;
}

/* Where of the file a template's page is mapped from, and *to not beyond what goes on so; 0: it is anonymous memory */
uint64_t snapshot_source(const struct snapshot *s, uint64_t gpa, uint64_t *to)
{
    const struct afw_snapshot_header *h = &s->h;
    uint32_t from = (uint32_t)(gpa / AFW_CHUNK), end = from + 1;
    while (from && h->commit_chunks[(from - 1) / 64] >> (from - 1) % 64 & 1)
        from--;
    while (end < CHUNKS && h->commit_chunks[end / 64] >> end % 64 & 1)
        end++;
    uint64_t start = (uint64_t)from * AFW_CHUNK, stop = (uint64_t)end * AFW_CHUNK, offset = laid_out(s, from, end);
    if (offset) {
        *to = *to < stop ? *to : stop;
        return offset + (gpa - start);
    }
    for (uint32_t i = 0; i < h->n_extents; i++) {
        const struct afw_snapshot_extent *x = &h->extent[i];
        uint64_t edge = gpa < x->gpa ? x->gpa : x->gpa + x->size;
        if (gpa >= edge)
            continue;
        *to = *to < edge ? *to : edge;
        return gpa < x->gpa ? 0 : x->offset + (gpa - x->gpa);
    }
    return 0;
}

static int map_file(struct machine *m, int fd, uint64_t gpa, uint64_t size, uint64_t offset)
{
    bool noted = fd == cell.config.snapshot_in && cell.config.saved < 0 && islands_known();
    int e = noted ? 0 : pieces_room(m, gpa, size, true);
    if (e)
        return e;
    if (mmap(m->vm.mem + gpa, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd, (off_t)offset) == MAP_FAILED)
        return -errno;
    if (!noted)
        pieces_done(m, gpa, size, PROT_READ | PROT_WRITE, true);
    return 0;
}

static int map_extents(struct machine *m, int fd, const struct afw_snapshot_extent *x, uint64_t n, uint64_t from, uint64_t to)
{
    int e = 0;
    for (; n-- && !e; x++) {
        if (x->gpa / AFW_CHUNK >= from && x->gpa / AFW_CHUNK < to)
            e = map_file(m, fd, x->gpa, x->size, x->offset);
    }
    return e;
}

static int map_memory(struct machine *m, const struct snapshot *s)
{
    const struct afw_snapshot_header *h = &s->h;
    uint32_t from[CHUNKS / 2 + 1], to[CHUNKS / 2 + 1], n = 0;
    for (uint32_t c = 0; c < CHUNKS; c++) {
        if (!(h->commit_chunks[c / 64] >> c % 64 & 1))
            continue;
        if (n && to[n - 1] == c)
            to[n - 1]++;
        else {
            from[n] = c;
            to[n++] = c + 1;
        }
    }
    int e = 0;
    for (uint32_t i = 0; i < n && !e; i++) {
        uint64_t start = (uint64_t)from[i] * AFW_CHUNK, size = (uint64_t)(to[i] - from[i]) * AFW_CHUNK;
        uint64_t offset = s->vm ? 0 : laid_out(s, from[i], to[i]);
        e = offset ? map_file(m, s->fd, start, size, offset) : memory_back(m, from[i], to[i]);
        if (!e && !offset && !s->vm)
            e = map_extents(m, s->fd, h->extent, h->n_extents, from[i], to[i]);
    }
    if (!e && s->vm) {
        e = map_extents(m, cell.config.snapshot_in, s->base, s->vm->n_bases, 0, CHUNKS);
        if (!e)
            e = map_extents(m, s->fd, h->extent, h->n_extents, 0, CHUNKS);
    }
    for (uint32_t i = 0; s->vm && i < h->n_extents; i++)   /* as against the template */
        for (uint64_t p = h->extent[i].gpa / PAGE; p < (h->extent[i].gpa + h->extent[i].size) / PAGE; p++)
            m->prot[p] |= PAGE_NEW;
    if (!e && s->vm)
        e = map_files(m, s);
    if (e)
        return e;
    e = islands_protect(m, s);
    if (e)
        return e;
    if (!s->vm)
        huge_pages(m, s);
    hot_restored(m, h->commit_chunks);
    m->hot_due &= !s->vm;                        /* a copy has its job */
    for (uint32_t i = 0; i < n; i++) {
        int e = memory_slot(m, from[i], to[i]);
        if (e)
            return e;
    }
    return 0;
}

static int list_mappings(struct machine *m, const struct snapshot *s)
{
    if (s->map) {
        mapping_share(m, s->map, s->vcpu->n_mappings);
        return 0;
    }
    m->maps = 0;
    for (uint32_t i = 0; i < s->vcpu->n_mappings; i++) {
        const struct saved_mapping *x = &s->mapping[i];
        struct tnode *file = x->flags ? vfs_file(m->vm.vfs, x->flags / SAVED_FILE - 1) : 0;
        int e = mapping_add(m, &(struct mapping){.start = x->start, .end = x->end, .offset = x->offset, .name = s->name[i], .file = file,
                                                 .shared = x->flags & SAVED_SHARED, .writable = x->flags & SAVED_WRITABLE,
                                                 .refused = x->flags & SAVED_REFUSED});
        if (e)
            return e;
    }
    return 0;
}

/* Memory is the snapshot's, the vCPU's segments and MSRs are set: what else a VM has when it goes on from there, and what is its own. */
static int settle(struct machine *m, const struct snapshot *s, uint32_t pid)
{
    struct kvm_xsave x;
    memcpy(&x, s->vcpu->xsave, sizeof s->vcpu->xsave);
    if (ioctl(m->vm.vcpu_fd, KVM_SET_XSAVE, &x))
        return -errno;
    m->vm.run->s.regs.regs = s->vcpu->regs;
    m->vm.run->s.regs.regs.rflags |= IOPL_3;     /* pvm drops it, and not each KVM's machine asks the bitmap for the first doorbell */
    m->vm.run->kvm_dirty_regs = KVM_SYNC_X86_REGS;
    m->sq_head = s->vcpu->sq_head;
    m->cq_tail = s->vcpu->cq_tail;
    struct afw_ctl *ctl = m->vm.ctl;
    ctl->generation++;
    ctl->n_local = ctl->n_ring = ctl->n_backstop = ctl->n_enosys = ctl->n_switch = 0;   /* the template's */
    memset(ctl->calls, 0, sizeof ctl->calls);
    ctl->memory_limit = m->vm.memory_limit;
    ctl->forked = 0;
    boot_ctl(m, pid);
    if (s->vm)
        renew(m, s);
    m->vm.shm->sites = s->h.sites;
    m->vm.shm->sites_refused = s->h.sites_refused;
    sites_load(&m->vm, &s->h);
    return 0;
}

int snapshot_restore(struct machine *m, uint32_t pid, char *error, size_t size)
{
    const struct snapshot *s = the_snapshot(false, error, size);
    if (!s)
        return -EINVAL;
    int e = s->vm ? vfs_load(m->vm.vfs, s->vfs, s->vm->vfs_size, s->fd, s->vm->data, s->vm->data_size) : 0;
    if (e) {
        snprintf(error, size, "restore: private files: %s", strerror(-e));
        return e;
    }
    e = map_memory(m, s);
    if (!e)
        e = list_mappings(m, s);
    if (e) {
        snprintf(error, size, "restore: memory: %s", strerror(-e));
        return e;
    }
    e = boot_vcpu(m, s->vcpu->fs_base, s->vcpu->gs_base);
    if (!e)
        e = settle(m, s, pid);
    if (e) {
        snprintf(error, size, "restore: vCPU: %s", strerror(-e));
        return e;
    }
    recycle_note(m, s);
    return 0;
}

const struct snapshot *snapshot_base(void)
{
    char error[200];
    return the_snapshot(true, error, sizeof error);
}

const struct snapshot *snapshot_of_cell(void)
{
    char error[200];
    return the_snapshot(false, error, sizeof error);
}

int snapshot_again(struct machine *m, uint32_t pid)
{
    const struct snapshot *s = snapshot_of_cell();
    int e = s ? recycle(m, s) : -EINVAL;
    if (!e)
        e = list_mappings(m, s);
    if (!e) {
        islands_again(m);
        hot_restored(m, s->h.commit_chunks);     /* most are there */
        e = settle(m, s, pid);
    }
    return e ? e : recycle_check(m);
}
