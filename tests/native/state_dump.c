/* All that can be seen of a VM that is about to run for the first time, as lines of text: guest pages, what this process knows of it, its
 * file system, and what KVM tells of its vCPU. What is meant to differ from life to life is named here, and nowhere else.
 *
 * Lines go to a file beside the executable, which is mapped before main(): the jail opens none.
 */
#include <fcntl.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "machine.h"
#include "vfs.h"

#define ROOM (8u << 20)
static struct shared {
    _Atomic uint64_t dumps;
    uint64_t size;
    char text[ROOM];
} *shared;
static struct {
    struct kvm_msr_list head;
    uint32_t index[1024];
} msrs = {.head.nmsrs = 1024};

__attribute__((constructor)) static void begin(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 8);
    if (n < 0)
        abort();
    strcpy(path + n, ".dump");
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), kvm = open("/dev/kvm", O_RDWR);
    if (fd < 0 || kvm < 0 || ftruncate(fd, sizeof *shared) || ioctl(kvm, KVM_GET_MSR_INDEX_LIST, &msrs))
        abort();
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED)
        abort();
    close(fd);
    close(kvm);
}

__attribute__((format(printf, 1, 2))) static void line(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(shared->text + shared->size, ROOM - shared->size, format, args);
    va_end(args);
    if (n < 0 || (uint64_t)n >= ROOM - shared->size)
        abort();
    shared->size += (uint64_t)n;
}

/* In words, those that are not 0 */
static void bytes(const char *name, const void *data, size_t size)
{
    for (size_t i = 0; i + 4 <= size; i += 4) {
        uint32_t word;
        memcpy(&word, (const uint8_t *)data + i, 4);
        if (word)
            line("%s+%zu %08x\n", name, i, word);
    }
}

static uint64_t hash(const void *data, size_t size)
{
    const uint64_t *w = data;
    uint64_t h = 0xcbf29ce484222325, any = 0;
    for (size_t i = 0; i < size / 8; i++) {
        any |= w[i];
        h = (h ^ w[i]) * 0x9e3779b97f4a7c15;
        h ^= h >> 29;
    }
    return any ? h : 0;
}

static void dump_memory(struct machine *m)
{
    static uint8_t page[PAGE] __attribute__((aligned(64)));
    for (uint64_t p = 0; p < PAGES_IN_SPACE; p++) {
        if (!memory_committed(m, p * PAGE, PAGE)) {
            p += AFW_CHUNK / PAGE - 1;
            continue;
        }
        uint8_t *at = m->vm.mem + p * PAGE;
        int prot = PAGE_PROT(m->prot[p]);
        if (!prot && mprotect(at, PAGE, PROT_READ))
            abort();
        bool lost = guarded_copy(page, at, PAGE);
        if (!prot && mprotect(at, PAGE, PROT_NONE))
            abort();
        if (p == AFW_CTL / PAGE) {               /* new in each life */
            struct afw_ctl *c = (struct afw_ctl *)page;
            c->pid = 0;
            c->tsc_base = c->tsc_mult = c->mono_base = c->real_offset = c->cpu_ns = 0;
            memset(c->random, 0, sizeof c->random);
            bytes("ctl", c, sizeof *c);
        }
        uint64_t h = lost ? 1 : hash(page, PAGE);
        if (h)
            line("page %llx %016llx\n", (unsigned long long)p, (unsigned long long)h);
    }
    uint32_t run = 0;
    for (uint64_t p = 0; p <= PAGES_IN_SPACE; p++) {
        uint32_t value = p < PAGES_IN_SPACE ? m->prot[p] & (uint8_t)~PAGE_SEAM : ~0u;   /* seams are the VM's, not the life's */
        if (value != run)
            line("prot %llx %x\n", (unsigned long long)p, run = value);
    }
}

static void dump_machine(const struct machine *m)
{
    struct machine c = *m;
    struct vm *v = &c.vm;
    v->runner = 0;                               /* where things are */
    v->vm_fd = v->vcpu_fd = 0;
    v->run = 0;
    v->mem = 0;
    v->ctl = 0;
    v->window = 0;
    v->shm = 0;
    v->vfs = 0;
    v->sites = 0;
    v->rules = v->rules ? (struct rules *)1 : 0;
    c.prot = 0;
    c.map = 0;
    c.maps_room = 0;                             /* how much was allocated */
    c.seams = 0;                                 /* the VM's, not the life's */
    c.cpu_ns = c.turns_ns = 0;                   /* time */
    c.clock_tsc_base = c.clock_mult = c.clock_mono_base = c.clock_real_offset = c.tsc_delta = c.command_ns = 0;
    c.reset_ns = c.private_pages = 0;            /* statistics of the reset itself */
    c.clean = false;
    bytes("machine", &c, sizeof c);
    for (uint32_t i = 0; i < m->maps; i++) {
        const struct mapping *x = &m->map[i];
        line("map %llx %llx %llx %s %d %d %d\n", (unsigned long long)x->start, (unsigned long long)x->end, (unsigned long long)x->offset, x->name,
             x->shared, x->writable, x->file != 0);
    }
    struct afw_vm_shm s = *m->vm.shm;
    s.recycled = s.reset_ns = s.private_pages = s.cpu_ns = 0;
    bytes("shm", &s, sizeof s);
}

static void dump_files(struct machine *m)
{
    struct vfs v = *m->vm.vfs;
    struct tmpfs *fs = v.tmpfs;
    line("vfs %s tmpfs %d\n", v.cwd, fs != 0);
    v.vm = 0;
    v.started = 0;                               /* time */
    bytes("vfs", &v, sizeof v);
    bytes("sites", m->vm.sites, malloc_usable_size(m->vm.sites) & ~(size_t)7);
    line("window %016llx\n", (unsigned long long)hash(m->vm.window, sizeof *m->vm.window - 16));
}

static void dump_vcpu(struct machine *m)
{
    int fd = m->vm.vcpu_fd;
    struct kvm_run *run = m->vm.run;
    struct kvm_sregs sregs = {0};
    struct kvm_xsave xsave = {0};
    struct kvm_vcpu_events events = {0};
    struct kvm_debugregs debug = {0};
    struct kvm_xcrs xcrs = {0};
    struct kvm_mp_state mp = {0};
    bytes("regs", &run->s.regs.regs, sizeof run->s.regs.regs);
    line("run dirty %llx valid %llx window %d cr8 %llx reason %u\n", (unsigned long long)run->kvm_dirty_regs,
         (unsigned long long)run->kvm_valid_regs, run->request_interrupt_window, (unsigned long long)run->cr8, run->exit_reason);
    if (ioctl(fd, KVM_GET_SREGS, &sregs) || ioctl(fd, KVM_GET_XSAVE, &xsave) || ioctl(fd, KVM_GET_VCPU_EVENTS, &events) ||
        ioctl(fd, KVM_GET_DEBUGREGS, &debug) || ioctl(fd, KVM_GET_XCRS, &xcrs) || ioctl(fd, KVM_GET_MP_STATE, &mp))
        abort();
    bytes("sregs", &sregs, sizeof sregs);
    bytes("xsave", &xsave, sizeof xsave);
    bytes("events", &events, sizeof events);
    bytes("debug", &debug, sizeof debug);
    bytes("xcrs", &xcrs, sizeof xcrs);
    bytes("mp", &mp, sizeof mp);
    for (uint32_t i = 0; i < msrs.head.nmsrs; i++) {
        struct {
            struct kvm_msrs head;
            struct kvm_msr_entry entry;
        } one = {.head.nmsrs = 1, .entry.index = msrs.index[i]};
        bool time = msrs.index[i] == 0x10 || msrs.index[i] == 0x40000010 || msrs.index[i] == 0x40000020 || msrs.index[i] == 0xe7 ||
                    msrs.index[i] == 0xe8 || msrs.index[i] == 0x34;
        if (!time && ioctl(fd, KVM_GET_MSRS, &one) == 1)
            line("msr %x %llx\n", msrs.index[i], (unsigned long long)one.entry.data);
    }
}

void state_dump(struct machine *m)
{
    if (!m->restored)
        return;
    shared->size = 0;
    line("base %llx\n", (unsigned long long)(uintptr_t)m->vm.mem);
    dump_machine(m);
    dump_files(m);
    dump_memory(m);
    dump_vcpu(m);
    shared->dumps++;
}
