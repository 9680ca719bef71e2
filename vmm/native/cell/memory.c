/* The host's backing of guest memory.
 *
 * One PROT_NONE reservation of the whole guest space of all VMs; chunks become usable by commitment: mapped, and a memslot. After that a
 * guest page's protection and content are those of the host's mapping, which KVM follows through its MMU notifier. Guest page
 * tables are never touched after boot: under shadow paging the guest would not see it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include "machine.h"

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
#define MAPPINGS 16384                           /* a VM: a hostile one cannot make the list long */

#define GIB (1ull << 30)
/* Pages that will be written to at once, most of them, are there before: KVM maps up to eight by one fault then, and never finds them read first. */
#define DATA_AT_ONCE (1u << 20)
#define ZEROS_AT_ONCE (64u << 10)
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23                   /* Linux 5.14 */
#endif

static uint8_t *spaces, *protections;            /* of all VMs, one behind the other */

/* Address space for all VMs at once, at a multiple of 1 GiB: no other mapping shares the page tables of a VM's beginning. As long as
 * those are empty, protections change without a word to KVM, which costs as much as there are VMs in this process; and where guest
 * addresses and the host's are alike to 2 MiB, KVM can map huge pages. */
int memory_setup(void)
{
    uint8_t *all = mmap(0, cell.vms * AFW_SPACE_END + GIB, PROT_NONE, ANON, -1, 0);
    if (all == MAP_FAILED)
        return -errno;
    spaces = all + -(uintptr_t)all % GIB;
    protections = mmap(0, cell.vms * PAGES_IN_SPACE, RW, ANON, -1, 0);
    return protections == MAP_FAILED ? -errno : 0;
}

void memory_reserve(struct machine *m)
{
    m->vm.mem = spaces + m->vm.id * AFW_SPACE_END;
    m->vm.ctl = (struct afw_ctl *)(m->vm.mem + AFW_CTL);
    m->prot = protections + m->vm.id * PAGES_IN_SPACE;
    m->next_slot = SLOT_FIRST;
}

void memory_release(struct machine *m)
{
    /* What cannot be taken away would be the next VM's: then nothing may go on. */
    if (m->vm.mem && (mmap(m->vm.mem, AFW_SPACE_END, PROT_NONE, ANON | MAP_FIXED, -1, 0) == MAP_FAILED ||
                      madvise(m->prot, PAGES_IN_SPACE, MADV_DONTNEED)))
        abort();
    pieces_release(m);
    if (m->maps_room)
        free(m->map);
    m->vm.mem = 0;
    m->vm.ctl = 0;
    m->prot = 0;
    m->map = 0;
    m->maps = m->maps_room = 0;
}

static int mapping_room(struct machine *m, uint32_t n);
static void changed(struct machine *m, uint64_t gva, uint64_t len);

static bool chunk_committed(struct machine *m, uint64_t c)
{
    return m->vm.chunks[c / 64] >> (c % 64) & 1;
}

bool memory_committed(struct machine *m, uint64_t gva, uint64_t len)
{
    if (!inside(gva, len, 0, AFW_SPACE_END))
        return false;
    if (!len)
        return true;
    for (uint64_t c = gva / AFW_CHUNK; c <= (gva + len - 1) / AFW_CHUNK; c++) {
        if (!chunk_committed(m, c))
            return false;
    }
    return true;
}

/* A range that ring operations may change: whole pages, committed, above the system area. */
static int changeable(struct machine *m, uint64_t gva, uint64_t *len)
{
    if (gva % PAGE || !*len || *len > AFW_SPACE_END)
        return -EINVAL;
    *len = page_up(*len);
    if (!inside(gva, *len, AFW_IMAGE, AFW_SPACE_END))
        return -ENOMEM;
    return memory_committed(m, gva, *len) ? 0 : -ENOMEM;
}

/* A hole in the reservation could be filled by any other mapping of this process, inside a memslot: then nothing may go on. */
int remap_failed(struct machine *m, uint64_t gva)
{
    int e = errno;
    unsigned char state;
    m->spoiled = true;
    if (mincore(m->vm.mem + gva, PAGE, &state) && errno == ENOMEM)
        abort();
    return -e;
}

int memory_back(struct machine *m, uint32_t from, uint32_t to)
{
    uint64_t start = (uint64_t)from * AFW_CHUNK, size = (uint64_t)(to - from) * AFW_CHUNK;
    if (m->next_slot >= cell.max_slots)
        return -ENOMEM;
    int e = pieces_room(m, start, size, true);
    if (e)
        return e;
    if (mmap(m->vm.mem + start, size, RW, ANON | MAP_FIXED, -1, 0) == MAP_FAILED)
        return remap_failed(m, start);
    pieces_done(m, start, size, RW, true);
    if (m->roomy)
        madvise(m->vm.mem + start, size, MADV_HUGEPAGE);
    return 0;
}

int memory_slot(struct machine *m, uint32_t from, uint32_t to)
{
    uint64_t start = (uint64_t)from * AFW_CHUNK, size = (uint64_t)(to - from) * AFW_CHUNK;
    struct kvm_userspace_memory_region slot = {
        .slot = m->next_slot, .guest_phys_addr = start, .memory_size = size, .userspace_addr = (uintptr_t)m->vm.mem + start};
    if (ioctl(m->vm.vm_fd, KVM_SET_USER_MEMORY_REGION, &slot)) {
        int e = errno;
        m->spoiled = true;
        mprotect(m->vm.mem + start, size, PROT_NONE);
        return -e;
    }
    m->next_slot++;
    for (uint64_t c = from; c < to; c++)
        m->vm.chunks[c / 64] |= 1ull << (c % 64);
    m->committed += size;
    m->vm.shm->memory_committed = m->committed;
    return 0;
}

int memory_commit(struct vm *vm, uint64_t gva, uint64_t len)
{
    struct machine *m = machine_of(vm);
    if (!inside(gva, len, 0, AFW_SPACE_END) || !len)
        return -EINVAL;
    uint32_t first = (uint32_t)(gva / AFW_CHUNK), end = (uint32_t)((gva + len - 1) / AFW_CHUNK) + 1;
    uint64_t limit = (vm->memory_limit + AFW_CHUNK - 1) / AFW_CHUNK * AFW_CHUNK, wanted = 0;
    if (limit < BOOT_COMMIT)
        limit = BOOT_COMMIT;
    for (uint32_t c = first; c < end; c++)
        wanted += chunk_committed(m, c) ? 0 : AFW_CHUNK;
    if (wanted > limit || m->committed > limit - wanted)
        return -ENOMEM;
    for (uint32_t c = first; c < end;) {
        if (chunk_committed(m, c)) {
            c++;
            continue;
        }
        uint32_t to = c;
        while (to < end && !chunk_committed(m, to))
            to++;
        int e = memory_back(m, c, to);
        if (e || (e = memory_slot(m, c, to)))
            return e;
        c = to;
    }
    return 0;
}

/* These pages are mapped otherwise than at the restore. */
static void changed(struct machine *m, uint64_t gva, uint64_t len)
{
    for (uint64_t p = gva / PAGE; p < (gva + len) / PAGE; p++)
        m->prot[p] |= PAGE_NEW;
}

/* What the guest's PROT_* mean for the host's mapping: KVM reads to execute, and never executes the host's. */
int host_prot(int prot)
{
    return prot & PROT_WRITE ? RW : prot & (PROT_READ | PROT_EXEC) ? PROT_READ : PROT_NONE;
}

int memory_protect(struct vm *vm, uint64_t gva, uint64_t len, int prot)
{
    struct machine *m = machine_of(vm);
    int e = changeable(m, gva, &len);
    if (e || (e = pieces_room(m, gva, len, false)))
        return e;
    for (uint32_t i = 0; prot & PROT_WRITE && i < m->maps; i++)      /* (a private file's memfd can be written to by who opened it to read) */
        if (m->map[i].refused && m->map[i].start < gva + len && m->map[i].end > gva)
            return -EACCES;
    if (mprotect(vm->mem + gva, len, host_prot(prot))) {
        m->spoiled = true;                       /* it may have come half the way */
        return -errno;
    }
    pieces_done(m, gva, len, host_prot(prot), false);
    return 0;
}

int memory_zero(struct vm *vm, uint64_t gva, uint64_t len)
{
    struct machine *m = machine_of(vm);
    int e = changeable(m, gva, &len);
    if (e || (e = pieces_room(m, gva, len, true)) || (e = mapping_room(m, 2)))
        return e;
    if (mmap(vm->mem + gva, len, RW, ANON | MAP_FIXED, -1, 0) == MAP_FAILED)
        return remap_failed(m, gva);
    mapping_cut(m, gva, len);
    pieces_done(m, gva, len, RW, true);
    changed(m, gva, len);
    sites_unmapped(vm, gva, len);
    if (m->restored && len <= ZEROS_AT_ONCE)
        madvise(vm->mem + gva, len, MADV_POPULATE_WRITE);
    return 0;
}

int memory_map_file(struct vm *vm, int host_fd, uint64_t gva, uint64_t len, int prot, enum map_how how, uint64_t offset, const char *guest_name,
                    struct tnode *file)
{
    struct machine *m = machine_of(vm);
    int e = changeable(m, gva, &len);
    if (e)
        return e;
    if (offset % PAGE || offset > INT64_MAX - len)
        return -EINVAL;
    if (m->maps >= MAPPINGS - 1)
        return -ENOMEM;
    if ((e = pieces_room(m, gva, len, true)) || (e = mapping_room(m, 2)))
        return e;
    if (mmap(vm->mem + gva, len, host_prot(prot), (how ? MAP_SHARED : MAP_PRIVATE) | MAP_FIXED | MAP_NORESERVE, host_fd, (off_t)offset) == MAP_FAILED)
        return remap_failed(m, gva);
    mapping_cut(m, gva, len);
    pieces_done(m, gva, len, host_prot(prot), true);
    changed(m, gva, len);
    sites_unmapped(vm, gva, len);
    if (m->restored && how == MAP_OWN && prot & PROT_WRITE && len <= DATA_AT_ONCE)   /* a library's data: its loader is about to relocate it */
        madvise(vm->mem + gva, len, MADV_POPULATE_WRITE);
    e = mapping_add(m, &(struct mapping){gva, gva + len, offset, intern(guest_name), how != MAP_OWN, prot & PROT_WRITE, how == MAP_READ, file});
    /* Patching a shared mapping would write into the file. In a restored VM code begins to run before anybody could have looked at it, and
     * to have it looked at costs more than most libraries ever use: those calls in it that show at the backstop are found there. */
    if (!e && prot & PROT_EXEC && how == MAP_OWN && !m->restored)
        sites_code(vm, AFW_SITES_FILE, gva, len);
    return e;
}

int memory_file_again(struct vm *vm, uint64_t gva, uint64_t len)
{
    struct machine *m = machine_of(vm);
    int e = changeable(m, gva, &len);
    for (uint64_t p = gva, end = gva + len, next; !e && p < end; p = next) {
        struct mapping *x = mapping_at(m, p);
        next = !x ? p + PAGE : x->end < end ? x->end : end;
        if (x && !x->shared && madvise(vm->mem + p, next - p, MADV_DONTNEED))
            e = -errno;
    }
    if (!e)
        sites_unmapped(vm, gva, len);            /* what was patched is as the file has it */
    return e;
}

/* The pages go along, private ones too. No hole is left at any time, nor where the kernel refuses: MREMAP_DONTUNMAP, for files since
 * Linux 5.13, to a place of its own first. More of the file comes with the last step. */
int memory_remap(struct vm *vm, uint64_t gva, uint64_t len, uint64_t to, uint64_t new_len)
{
    struct machine *m = machine_of(vm);
    const struct mapping *x = mapping_at(m, gva);
    int e = changeable(m, gva, &len);
    if (e || (e = changeable(m, to, &new_len)))
        return e;
    if (!x || x->end < gva + len)
        return -EFAULT;
    if (new_len < len || (to < gva + len && gva < to + new_len))
        return -EINVAL;
    struct mapping new = *x;
    new.start = to;
    new.end = to + new_len;
    new.offset += gva - x->start;
    int prot = PAGE_PROT(m->prot[gva / PAGE]);
    if (new.offset > INT64_MAX - new_len || m->maps >= MAPPINGS - 2)
        return -ENOMEM;
    if ((e = pieces_room(m, to, new_len, true)) || (e = pieces_room(m, gva, len, true)) || (m->islands && (e = islands_open(m, gva, len))) ||
        (e = mapping_room(m, 3)))
        return e;
    void *way = mremap(vm->mem + gva, len, len, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, (void *)0);
    e = way == MAP_FAILED ? -errno : 0;
    if (!e && mremap(way, len, new_len, MREMAP_MAYMOVE | MREMAP_FIXED, vm->mem + to) == MAP_FAILED) {
        e = remap_failed(m, to);
        munmap(way, len);
    }
    if (e) {
        memory_zero(vm, to, new_len);
        return e;
    }
    mapping_cut(m, to, new_len);
    if (new.file)
        vfs_mapped(vm->vfs, new.file);           /* the cut may be of its last */
    mapping_cut(m, gva, len);
    mapping_add(m, &new);
    if (new.file)
        vfs_unmapped(vm->vfs, new.file);
    pieces_done(m, to, new_len, prot, true);
    changed(m, to, new_len);
    sites_unmapped(vm, to, new_len);
    return memory_zero(vm, gva, len);
}

/* ---- what is mapped where ---- */

const char *intern(const char *name)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const char *names[4096];              /* a guest that maps more different files sees them without a name in reports */
    static unsigned n;
    const char *found = "";
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < n && !*found; i++) {
        if (!strcmp(names[i], name))
            found = names[i];
    }
    if (!*found && n < sizeof names / sizeof *names && strlen(name) < sizeof ((struct afw_vm_shm *)0)->fault_module) {
        char *copy = strdup(name);
        if (copy)
            found = names[n++] = copy;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* For those that one operation may add: what is mapped must not be forgotten for want of memory. A list that others have, too, is copied. */
static int mapping_room(struct machine *m, uint32_t n)
{
    if (m->maps + n > m->maps_room) {
        uint32_t room = m->maps < 32 ? 64 : m->maps * 2;
        struct mapping *map = realloc(m->maps_room ? m->map : 0, room * sizeof *map);
        if (!map)
            return -ENOMEM;
        if (!m->maps_room && m->maps)
            memcpy(map, m->map, m->maps * sizeof *map);
        m->map = map;
        m->maps_room = room;
    }
    return 0;
}

void mapping_share(struct machine *m, const struct mapping *map, uint32_t n)
{
    if (m->maps_room)
        free(m->map);
    m->map = (struct mapping *)map;              /* not written to while there is no room */
    m->maps = n;
    m->maps_room = 0;
}

int mapping_add(struct machine *m, const struct mapping *x)
{
    int e = mapping_room(m, 1);
    if (e)
        return e;
    m->map[m->maps++] = *x;
    if (x->file)
        vfs_mapped(m->vm.vfs, x->file);
    return 0;
}

void mapping_cut(struct machine *m, uint64_t gva, uint64_t len)
{
    uint64_t end = gva + len;
    for (uint32_t i = 0; i < m->maps;) {
        struct mapping *x = &m->map[i];
        if (x->end <= gva || x->start >= end) {
            i++;
            continue;
        }
        struct mapping tail = *x;
        tail.start = end;
        tail.offset += end - x->start;
        bool has_tail = x->end > end;
        struct tnode *gone = x->start < gva ? 0 : x->file;
        if (x->start < gva) {
            x->end = gva;
            i++;
        } else {
            *x = m->map[--m->maps];
        }
        if (has_tail)                            /* cannot meet the range again */
            mapping_add(m, &tail);
        if (gone)
            vfs_unmapped(m->vm.vfs, gone);
    }
}

struct mapping *mapping_at(struct machine *m, uint64_t gva)
{
    for (uint32_t i = 0; i < m->maps; i++) {
        if (gva >= m->map[i].start && gva < m->map[i].end)
            return &m->map[i];
    }
    return 0;
}

int memory_module(struct vm *vm, uint64_t gva, char name[256], uint64_t *map_start, uint64_t *map_offset)
{
    struct mapping *x = mapping_at(machine_of(vm), gva);
    if (!x)
        return 0;
    strncpy(name, x->name, 255);
    name[255] = 0;
    *map_start = x->start;
    *map_offset = x->offset;
    return 1;
}

int memory_module_next(struct vm *vm, uint64_t gva, char name[256], uint64_t *start, uint64_t *end, uint64_t *offset)
{
    struct machine *m = machine_of(vm);
    struct mapping *x = 0;
    for (uint32_t i = 0; i < m->maps; i++) {
        if (m->map[i].start >= gva && (!x || m->map[i].start < x->start))
            x = &m->map[i];
    }
    if (!x)
        return 0;
    strncpy(name, x->name, 255);
    name[255] = 0;
    *start = x->start;
    *end = x->end;
    *offset = x->offset;
    return 1;
}

/* ---- access ---- */

void *guest_range(struct vm *vm, uint64_t gva, uint64_t len)
{
    /* Below the system area lie the page tables: no operation of the ring may change them. */
    struct machine *m = machine_of(vm);
    if (gva < AFW_SYS || !memory_committed(m, gva, len) || (m->islands && islands_open(m, gva, len)))
        return 0;
    return vm->mem + gva;
}

int guest_read(struct vm *vm, void *out, uint64_t gva, uint64_t len)
{
    void *p = guest_range(vm, gva, len);
    return p && !guarded_copy(out, p, len) ? 0 : -EFAULT;
}

int guest_write(struct vm *vm, uint64_t gva, const void *data, uint64_t len)
{
    void *p = guest_range(vm, gva, len);
    return p && !guarded_copy(p, data, len) ? 0 : -EFAULT;
}

int guest_path(struct vm *vm, char *out, uint64_t gva, uint64_t len)
{
    if (!len)
        return -ENOENT;
    if (len > 4095)
        return -ENAMETOOLONG;
    if (guest_read(vm, out, gva, len))
        return -EFAULT;
    if (memchr(out, 0, len))
        return -EINVAL;
    out[len] = 0;
    return 0;
}

int memory_poke(struct vm *vm, uint64_t gva, const void *data, uint64_t len)
{
    struct machine *m = machine_of(vm);
    if (!len || !guest_range(vm, gva, len))
        return -EFAULT;
    uint64_t from = page_down(gva), to = page_up(gva + len);
    for (uint64_t p = from; p < to; p += PAGE) {
        struct mapping *x = mapping_at(m, p);
        if (x && x->shared)                      /* would change the file */
            return -EPERM;
    }
    bool locked = false;
    for (uint64_t p = from; p < to; p += PAGE)
        locked |= PAGE_PROT(m->prot[p / PAGE]) != RW;
    int e = 0;
    if (locked && mprotect(vm->mem + from, to - from, RW)) {
        m->spoiled = true;
        return -errno;
    }
    uint64_t left = guarded_copy(vm->mem + gva, data, len);
    for (uint64_t p = from; locked && p < to && !e; p += PAGE)
        e = mprotect(vm->mem + p, PAGE, PAGE_PROT(m->prot[p / PAGE])) ? -errno : 0;
    if (e) {
        m->spoiled = true;
        return e;
    }
    return left ? -EFAULT : 0;
}

int memory_writable(struct vm *vm, uint64_t gva)
{
    return gva < AFW_SPACE_END && PAGE_PROT(machine_of(vm)->prot[gva / PAGE]) & PROT_WRITE;
}
