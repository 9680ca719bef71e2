/* agentfw-cell FD: a process that holds up to 64 VMs of one tenant.
 *
 * FD is a memfd laid out as cell.h says, made by the worker, which is trusted until the jail is closed; after that a guest may have
 * taken this process over, and the worker trusts it no more.
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "machine.h"

struct cell cell;

static void fail(const char *text, ...)
{
    char line[512];
    va_list args;
    va_start(args, text);
    vsnprintf(line, sizeof line, text, args);
    va_end(args);
    fprintf(stderr, "agentfw-cell: %s\n", line);
    if (cell.header) {
        memcpy(cell.header->text, line, sizeof line);
        __atomic_store_n(&cell.header->state, 2, __ATOMIC_RELEASE);
    }
    exit(1);
}

/* ---- descriptors ---- */

static int kept[512];
static unsigned n_kept;

static void keep(int fd)
{
    if (n_kept == sizeof kept / sizeof *kept)
        fail("the configuration names too many descriptors");
    kept[n_kept++] = fd;
}

static int by_number(const void *a, const void *b)
{
    return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

/* Nothing that this process was not meant to have: an inherited socket or file would outlive every jail. */
static void close_others(const uint8_t *records, uint64_t size, int memfd)
{
    keep(memfd);
    keep(2);
    keep(cell.kvm_fd);
    keep(cell.windows_fd);
    keep(cell.worker_eventfd);
    for (uint32_t i = 0; i < cell.runners; i++)
        keep(cell.runner_eventfd[i]);
    config_fds(records, size, keep);
    qsort(kept, n_kept, sizeof *kept, by_number);
    unsigned from = 0;
    for (unsigned i = 0; i < n_kept; i++) {
        if (kept[i] < 0 || fcntl(kept[i], F_GETFD) < 0)
            fail("descriptor %d of the configuration is not open", kept[i]);
        if ((unsigned)kept[i] > from && syscall(SYS_close_range, from, kept[i] - 1, 0))
            fail("close_range: %s", strerror(errno));
        from = (unsigned)kept[i] + 1;
    }
    if (syscall(SYS_close_range, from, ~0u, 0))
        fail("close_range: %s", strerror(errno));
    for (int fd = 0; fd < 2; fd++) {             /* so that no later descriptor is mistaken for a standard stream */
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR | O_CLOEXEC) != fd)
            fail("/dev/null: %s", strerror(errno));
    }
}

/* ---- the shared memory ---- */

static void map_shared(int memfd)
{
    struct stat st;
    if (fstat(memfd, &st) || st.st_size < (off_t)sizeof(struct afw_cell_header))
        fail("descriptor %d is no cell memory", memfd);
    uint64_t size = (uint64_t)st.st_size;
    uint8_t *base = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    if (base == MAP_FAILED)
        fail("cell memory: %s", strerror(errno));
    struct afw_cell_header *h = (struct afw_cell_header *)base;
    if (h->magic != AFW_CELL_MAGIC || h->abi != AFW_ABI)
        fail("cell memory with magic %x and ABI %u: expected %x and %u", h->magic, h->abi, AFW_CELL_MAGIC, AFW_ABI);
    cell.header = h;
    cell.vms = h->vms;
    cell.runners = h->runners;
    if (!cell.vms || cell.vms > AFW_CELL_VMS || !cell.runners || cell.runners > AFW_CELL_RUNNERS)
        fail("%u VMs and %u runners: at most %d and %d", cell.vms, cell.runners, AFW_CELL_VMS, AFW_CELL_RUNNERS);
    if (h->size > size || h->vm_offset % 64 || h->queue_offset % 64 || h->site_offset % PAGE ||
        !inside(h->vm_offset, cell.vms * sizeof *cell.shm, sizeof *h, size) ||
        !inside(h->queue_offset, cell.runners * sizeof *cell.queues, sizeof *h, size) ||
        !inside(h->site_offset, (uint64_t)cell.runners * AFW_SITE_AREA, sizeof *h, size) ||
        !inside(h->rules_offset, (uint64_t)cell.vms * AFW_RULES_SIZE, sizeof *h, size) ||
        !inside(h->config_offset, h->config_size, sizeof *h, size))
        fail("the layout of the cell memory is out of bounds");
    cell.shm = (struct afw_vm_shm *)(base + h->vm_offset);
    cell.queues = (struct afw_runner_queues *)(base + h->queue_offset);
    cell.site_area = base + h->site_offset;
    cell.rules = base + h->rules_offset;
    cell.kvm_fd = h->kvm_fd;
    cell.windows_fd = h->windows_fd;
    cell.worker_eventfd = h->worker_eventfd;
    memcpy(cell.runner_eventfd, h->runner_eventfd, sizeof cell.runner_eventfd);
    struct stat w;
    if (fstat(cell.windows_fd, &w) || w.st_size < (off_t)(cell.vms * (uint64_t)AFW_WINDOW_STRIDE))
        fail("the windows' memory is too small for %u VMs", cell.vms);
}

static void check_kvm(void)
{
    int fd = cell.kvm_fd, version = ioctl(fd, KVM_GET_API_VERSION, 0);
    if (version != KVM_API_VERSION)
        fail("KVM API version %d: expected %d", version, KVM_API_VERSION);
    int sync = ioctl(fd, KVM_CHECK_EXTENSION, KVM_CAP_SYNC_REGS), slots = ioctl(fd, KVM_CHECK_EXTENSION, KVM_CAP_NR_MEMSLOTS);
    if (!(sync & KVM_SYNC_X86_REGS) || ioctl(fd, KVM_CHECK_EXTENSION, KVM_CAP_IMMEDIATE_EXIT) <= 0 || ioctl(fd, KVM_CHECK_EXTENSION, KVM_CAP_XCRS) <= 0)
        fail("this kernel's KVM is too old: it lacks SYNC_REGS, IMMEDIATE_EXIT or XCRS");
    cell.max_slots = slots > 0 ? (uint32_t)slots : 32;
    int run = ioctl(fd, KVM_GET_VCPU_MMAP_SIZE, 0);
    if (run < (int)sizeof(struct kvm_run))
        fail("KVM_GET_VCPU_MMAP_SIZE: %d", run);
    cell.run_size = (size_t)run;
    /* The TSC's rate, from a vCPU: the system-wide ioctl is younger. */
    int vm = ioctl(fd, KVM_CREATE_VM, 0), vcpu = vm < 0 ? -1 : ioctl(vm, KVM_CREATE_VCPU, 0), khz = vcpu < 0 ? -1 : ioctl(vcpu, KVM_GET_TSC_KHZ, 0);
    if (vcpu < 0)
        fail("KVM cannot make a VM: %s", strerror(errno));
    close(vcpu);
    close(vm);
    clock_setup(khz > 0 ? (uint32_t)khz : 0);
}

int main(int argc, char **argv)
{
    static struct runner runner[AFW_CELL_RUNNERS];
    char error[400], *end;
    if (argc != 2) {
        fprintf(stderr, "usage: agentfw-cell FD (started by agentfw, not by hand)\n");
        return 2;
    }
    long memfd = strtol(argv[1], &end, 10);
    if (*end || memfd < 0 || memfd > 1 << 20)
        fail("bad descriptor %s", argv[1]);
    map_shared((int)memfd);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || (uint32_t)getppid() != cell.header->parent_pid)
        fail("the worker has gone");
    cell.header->jail |= 1 << 4;
    /* Before this process is made undumpable, which gives /proc/self to root. */
    cell.pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (cell.pagemap_fd >= 0)
        keep(cell.pagemap_fd);
    /* A cell must not be looked into by others of its user, and a 4 KiB page that a restored VM writes must not cost it 2 MiB. */
    prctl(PR_SET_DUMPABLE, 0);
    if (huge_always())
        prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);   /* else memory gets none unasked, and code shall have them (huge.c) */
    const uint8_t *records = (uint8_t *)cell.header + cell.header->config_offset;
    uint64_t records_size = cell.header->config_size;
    close_others(records, records_size, (int)memfd);
    if (config_parse(records, records_size, error, sizeof error) || blob_check(&cell.shim, error, sizeof error) ||
        cpu_setup(&cell.cpu, cell.kvm_fd, error, sizeof error))
        fail("%s", error);
    if (cell.config.snapshot_in < 0 && cell.config.save < 0 && cell.pagemap_fd >= 0) {
        close(cell.pagemap_fd);
        cell.pagemap_fd = -1;
    }
    sha256(cell.shim_sha, shim_blob, (size_t)(shim_blob_end - shim_blob));
    check_kvm();
    /* An arena of a thread's own grows by mprotect() of a few pages at a time, each of which is told to KVM of all VMs. */
    mallopt(M_ARENA_MAX, 1);
    guard_install();
    pieces_setup();
    int space = memory_setup();
    if (space)
        fail("address space for %u VMs: %s", cell.vms, strerror(-space));
    recycle_setup();
    for (uint32_t i = 0; i < cell.runners; i++) {
        int flags = fcntl(cell.runner_eventfd[i], F_GETFL);
        if (flags < 0 || fcntl(cell.runner_eventfd[i], F_SETFL, flags | O_NONBLOCK))
            fail("runner %u's eventfd: %s", i, strerror(errno));
    }
    if (jail_early(error, sizeof error))
        fail("jail: %s", error);
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_BLOCK, &all, 0);         /* a terminal's Ctrl-C is the worker's business; runners unblock their tick */
    for (uint32_t i = 0; i < cell.runners; i++) {
        int e = runner_start(&runner[i], i);
        if (e)
            fail("runner %u: %s", i, strerror(-e));
    }
    runners_await();
    if (jail_late(error, sizeof error))
        fail("jail: %s", error);
    __atomic_store_n(&cell.header->state, 1, __ATOMIC_RELEASE);
    uint64_t one = 1;
    if (write(cell.worker_eventfd, &one, sizeof one) < 0)
        return 1;
    runners_release();
    for (uint32_t i = 0; i < cell.runners; i++)
        pthread_join(runner[i].thread, 0);
    return 0;
}
