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
#include <sys/stat.h>
#include <unistd.h>
#include "machine.h"

#define STATE_MAX (64u << 20)

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
    if (v->names_size != left)
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
    if (!s->name)
        return "no memory";
    for (uint32_t i = 0; i < v->n_mappings; i++) {
        const struct saved_mapping *x = &s->mapping[i];
        if (x->name >= v->names_size || x->end <= x->start || x->end > AFW_SPACE_END)
            return "a mapping is out of bounds";
        s->name[i] = i && x->name == x[-1].name ? s->name[i - 1] : intern(names + x->name);
    }
    return 0;
}

static const char *check(struct snapshot *s, int fd, char *error, size_t size)
{
    struct afw_snapshot_header *h = &s->h;
    struct stat st;
    if (fd < 0)
        return "none was configured";
    if (fstat(fd, &st) || st.st_size < (off_t)sizeof *h || read_all(fd, h, sizeof *h, 0))
        return "the file is too short or cannot be read";
    if (h->magic != AFW_SNAPSHOT_MAGIC)
        return "not a snapshot, or an unfinished one";
    if (h->format != AFW_SNAPSHOT_FORMAT || h->abi != AFW_ABI) {
        snprintf(error, size, "format %u, ABI %u; this version reads format %d, ABI %d", h->format, h->abi, AFW_SNAPSHOT_FORMAT, AFW_ABI);
        return error;
    }
    if (h->file_size != (uint64_t)st.st_size)
        return "the file is damaged: its size is not what its head says";
    if (h->vcpu_offset != sizeof *h || h->vcpu_size > STATE_MAX || h->vcpu_size < sizeof(struct vcpu_state) || !inside(h->vcpu_offset, h->vcpu_size, 0, h->file_size) ||
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

/* The cell's snapshot, checked at its first use; 0 and the reason if it is unusable. */
static const struct snapshot *the_snapshot(char *error, size_t size)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct snapshot s;
    static bool tried;
    static char why[160];
    pthread_mutex_lock(&lock);
    if (!tried) {
        char text[160];
        const char *e = check(&s, cell.config.snapshot_in, text, sizeof text);
        if (e)
            snprintf(why, sizeof why, "%s", e);
        tried = true;
    }
    pthread_mutex_unlock(&lock);
    if (*why)
        snprintf(error, size, "snapshot: %s", why);
    return *why ? 0 : &s;
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
    for (uint32_t i = 0; i < n; i++) {
        int e = memory_back(m, from[i], to[i]);
        if (e)
            return e;
    }
    for (uint32_t i = 0; i < h->n_extents; i++) {
        const struct afw_snapshot_extent *x = &h->extent[i];
        int e = pieces_room(m, x->gpa, x->size, true);
        if (e)
            return e;
        if (mmap(m->vm.mem + x->gpa, x->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, cell.config.snapshot_in, (off_t)x->offset) == MAP_FAILED)
            return -errno;
        pieces_done(m, x->gpa, x->size, PROT_READ | PROT_WRITE, true);
    }
    for (uint32_t i = 0; i < s->vcpu->n_protections; i++) {
        const struct saved_protection *p = &s->protection[i];
        int e = pieces_room(m, p->start, p->end - p->start, false);
        if (e)
            return e;
        if (mprotect(m->vm.mem + p->start, p->end - p->start, (int)p->prot))
            return -errno;
        pieces_done(m, p->start, p->end - p->start, (int)p->prot, false);
    }
    hot_populate(m, h->commit_chunks);           /* before there are memslots: KVM need not be told */
    for (uint32_t i = 0; i < n; i++) {
        int e = memory_slot(m, from[i], to[i]);
        if (e)
            return e;
    }
    return 0;
}

static int list_mappings(struct machine *m, const struct snapshot *s)
{
    m->maps = 0;
    for (uint32_t i = 0; i < s->vcpu->n_mappings; i++) {
        const struct saved_mapping *x = &s->mapping[i];
        int e = mapping_add(m, &(struct mapping){.start = x->start, .end = x->end, .offset = x->offset, .name = s->name[i]});
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
    m->vm.run->kvm_dirty_regs = KVM_SYNC_X86_REGS;
    m->sq_head = s->vcpu->sq_head;
    m->cq_tail = s->vcpu->cq_tail;
    struct afw_ctl *ctl = m->vm.ctl;
    ctl->generation++;
    ctl->n_local = ctl->n_ring = ctl->n_backstop = ctl->n_enosys = ctl->n_switch = 0;   /* the template's */
    ctl->memory_limit = m->vm.memory_limit;
    boot_ctl(m, pid);
    m->vm.shm->sites = s->h.sites;
    m->vm.shm->sites_refused = s->h.sites_refused;
    sites_load(&m->vm, &s->h);
    return 0;
}

int snapshot_restore(struct machine *m, uint32_t pid, char *error, size_t size)
{
    const struct snapshot *s = the_snapshot(error, size);
    if (!s)
        return -EINVAL;
    int e = map_memory(m, s);
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

const struct snapshot *snapshot_of_cell(void)
{
    char error[200];
    return the_snapshot(error, sizeof error);
}

int snapshot_again(struct machine *m, uint32_t pid)
{
    const struct snapshot *s = snapshot_of_cell();
    int e = s ? recycle(m, s) : -EINVAL;
    if (!e)
        e = list_mappings(m, s);
    if (!e)
        e = settle(m, s, pid);
    return e ? e : recycle_check(m);
}
