/* Memory shared with a cell: making it, the queues, the copies. flow.c has the windows. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <linux/memfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "internal.h"

static uint64_t page_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Sealed against shrinking, or a cell could truncate it and have the worker die of SIGBUS. */
static int sealed_memory(const char *name, uint64_t size, uint8_t **map)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    if (ftruncate(fd, (off_t)size) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        void *p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        if (p != MAP_FAILED) {
            *map = p;
            return fd;
        }
    }
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

struct afw_worker *afw_worker_new(uint32_t vms, uint32_t runners, const uint8_t *config, uint64_t config_size)
{
    if (!vms || vms > AFW_CELL_VMS || !runners || runners > AFW_CELL_RUNNERS || config_size > (1u << 28)) {
        errno = EINVAL;
        return 0;
    }
    struct afw_worker *w = calloc(1, sizeof *w);
    if (!w)
        return 0;
    w->vms = vms;
    w->runners = runners;
    w->memory_fd = w->windows_fd = -1;
    for (uint32_t i = 0; i < AFW_CELL_RUNNERS; i++)
        w->runner_eventfd[i] = -1;
    w->flow = calloc((size_t)vms * AFW_FLOWS, sizeof *w->flow);

    uint64_t config_offset = 4096;
    uint64_t vm_offset = page_up(config_offset + config_size, 4096);
    uint64_t queue_offset = page_up(vm_offset + vms * sizeof(struct afw_vm_shm), 4096);
    uint64_t site_offset = page_up(queue_offset + runners * sizeof(struct afw_runner_queues), 4096);
    uint64_t rules_offset = site_offset + (uint64_t)runners * AFW_SITE_AREA;
    w->memory_size = rules_offset + (uint64_t)vms * AFW_RULES_SIZE;
    w->windows_size = (uint64_t)vms * AFW_WINDOW_STRIDE;
    if (!w->flow || (w->memory_fd = sealed_memory("agentfw-cell", w->memory_size, &w->memory)) < 0 ||
        (w->windows_fd = sealed_memory("agentfw-windows", w->windows_size, &w->windows)) < 0) {
        int error = errno;
        afw_worker_free(w);
        errno = error;
        return 0;
    }
    w->vm_shm = (struct afw_vm_shm *)(w->memory + vm_offset);
    w->queues = (struct afw_runner_queues *)(w->memory + queue_offset);
    w->site_areas = w->memory + site_offset;
    w->rules = w->memory + rules_offset;
    memcpy(w->memory + config_offset, config, config_size);

    struct afw_cell_header *h = (struct afw_cell_header *)w->memory;
    *h = (struct afw_cell_header){
        .magic = AFW_CELL_MAGIC, .abi = AFW_ABI, .runners = runners, .vms = vms,
        .config_offset = config_offset, .config_size = config_size, .vm_offset = vm_offset, .queue_offset = queue_offset,
        .site_offset = site_offset, .rules_offset = rules_offset, .size = w->memory_size,
        .worker_eventfd = -1, .kvm_fd = -1, .windows_fd = w->windows_fd, .runner_eventfd = {-1, -1, -1, -1},
        .parent_pid = (uint32_t)getpid(),
    };
    return w;
}

void afw_worker_free(struct afw_worker *w)
{
    if (!w)
        return;
    if (w->memory)
        munmap(w->memory, w->memory_size);
    if (w->windows)
        munmap(w->windows, w->windows_size);
    if (w->memory_fd >= 0)
        close(w->memory_fd);
    if (w->windows_fd >= 0)
        close(w->windows_fd);
    free(w->flow);
    free(w);
}

int afw_worker_memory_fd(struct afw_worker *w)
{
    return w->memory_fd;
}

int afw_worker_windows_fd(struct afw_worker *w)
{
    return w->windows_fd;
}

void afw_worker_descriptors(struct afw_worker *w, int kvm_fd, int worker_eventfd, const int *runner_eventfd)
{
    struct afw_cell_header *h = (struct afw_cell_header *)w->memory;
    h->kvm_fd = kvm_fd;
    h->worker_eventfd = worker_eventfd;
    for (uint32_t i = 0; i < w->runners; i++)
        h->runner_eventfd[i] = w->runner_eventfd[i] = runner_eventfd[i];
}

uint32_t afw_worker_state(struct afw_worker *w, uint32_t *jail, char text[512])
{
    struct afw_cell_header *h = (struct afw_cell_header *)w->memory;
    uint32_t state = load_acquire(&h->state);
    *jail = h->jail;
    memcpy(text, h->text, 512);
    text[511] = 0;
    return state;
}

void afw_worker_process(struct afw_worker *w, int32_t pid)
{
    w->pid = pid;
}

static const char *bad_event(const struct afw_worker *w, uint32_t runner, const struct afw_event *e)
{
    if (e->type < AFW_EV_READY || e->type > AFW_EV_SIGHT)
        return "unknown event type";
    if (e->vm >= w->vms || e->vm % w->runners != runner)
        return "event for a VM that is not this runner's";
    if ((e->type == AFW_EV_FLOW || e->type == AFW_EV_FLOW_OPEN) && e->arg >= AFW_FLOWS)
        return "flow index out of range";
    if (e->type == AFW_EV_SITES && (e->b > AFW_SITE_AREA || e->arg < AFW_SITES_FILE || e->arg > AFW_SITES_LAZY))
        return "bad site request";
    return 0;
}

int afw_worker_events(struct afw_worker *w, uint32_t runner, struct afw_event *out, uint32_t room, char text[128])
{
    if (runner >= w->runners)
        return -EINVAL;
    struct afw_runner_queues *q = w->queues + runner;
    const char *why = 0;
    uint32_t head = w->event_head[runner];
    uint32_t n = load_acquire(&q->event_tail.value) - head;
    if (n > AFW_QUEUE)
        why = "event queue index out of range";
    if (n > room)
        n = room;
    for (uint32_t i = 0; !why && i < n; i++) {
        out[i] = q->event[(head + i) % AFW_QUEUE];
        why = bad_event(w, runner, out + i);
    }
    if (why) {
        strncpy(text, why, 128);
        return -EPROTO;
    }
    if (n) {
        w->event_head[runner] = head + n;
        store_release(&q->event_head.value, head + n);
        /* Full before our store became visible: the runner set this and waits to be told. Pairs with its own store and load. */
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    }
    if (__atomic_load_n(&q->event_stalled.value, __ATOMIC_RELAXED)) {
        __atomic_store_n(&q->event_stalled.value, 0, __ATOMIC_SEQ_CST);
        eventfd_write(w->runner_eventfd[runner], 1);
    }
    return (int)n;
}

int afw_worker_command(struct afw_worker *w, uint32_t runner, uint32_t type, uint32_t vm, uint64_t a, uint64_t b, uint64_t c)
{
    if (runner >= w->runners)
        return -EINVAL;
    struct afw_runner_queues *q = w->queues + runner;
    uint32_t tail = w->command_tail[runner];
    uint32_t used = tail - load_acquire(&q->command_head.value);
    if (used >= AFW_QUEUE) /* full; a head that makes no sense only ever stops that runner's own queue */
        return -EAGAIN;
    q->command[tail % AFW_QUEUE] = (struct afw_command){.type = type, .vm = vm, .a = a, .b = b, .c = c};
    w->command_tail[runner] = tail + 1;
    store_release(&q->command_tail.value, tail + 1);
    w->tell |= 1u << runner;
    return 0;
}

int afw_worker_flush(struct afw_worker *w)
{
    uint64_t left = 0;
    for (uint64_t dirty = w->dirty; dirty; dirty &= dirty - 1) {
        uint32_t vm = (uint32_t)__builtin_ctzll(dirty);
        if (afw_worker_command(w, vm % w->runners, AFW_CMD_WAKE, vm, 0, 0, 0) < 0)
            left |= 1ull << vm;
    }
    w->dirty = left;
    for (uint32_t i = 0; i < w->runners; i++)
        if (w->tell & 1u << i) {
            eventfd_write(w->runner_eventfd[i], 1);
            /* Who wakes or gets a job need not wait for the end of another's slice. A thread of that process or none, whatever it says. */
            uint32_t tid = __atomic_load_n(&w->queues[i].inside.value, __ATOMIC_SEQ_CST);
            if (tid && w->pid > 0)
                syscall(SYS_tgkill, w->pid, (pid_t)tid, SIGUSR1);
        }
    w->tell = 0;
    return left != 0;
}

void afw_worker_vm(struct afw_worker *w, uint32_t vm, struct afw_vm_shm *out)
{
    memset(out, 0, sizeof *out);
    if (vm >= w->vms)
        return;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    memcpy(out, w->vm_shm + vm, sizeof *out);
    out->fault_module[sizeof out->fault_module - 1] = 0;
    out->text[sizeof out->text - 1] = 0;
    if (out->fault_code_len > sizeof out->fault_code)
        out->fault_code_len = 0;
}

uint64_t afw_worker_other_memory(struct afw_worker *w, uint64_t most)
{
    struct stat st;
    uint64_t sum = fstat(w->windows_fd, &st) ? 0 : (uint64_t)st.st_blocks * 512;
    for (uint32_t i = 0; i < w->vms; i++) {
        uint64_t files = __atomic_load_n(&w->vm_shm[i].tmp_bytes, __ATOMIC_RELAXED);
        sum += files < most ? files : most;
    }
    return sum;
}

uint8_t *afw_worker_site_area(struct afw_worker *w, uint32_t runner)
{
    return runner < w->runners ? w->site_areas + (uint64_t)runner * AFW_SITE_AREA : 0;
}

int afw_worker_site_answer(struct afw_worker *w, uint32_t runner, const uint8_t *packed, uint64_t size)
{
    if (runner >= w->runners || size > AFW_SITE_AREA)
        return -EINVAL;
    uint8_t *area = afw_worker_site_area(w, runner);
    uint64_t keep = page_up(size, 4096);
    memcpy(area, packed, size);
    if (keep < AFW_SITE_AREA)
        fallocate(w->memory_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(uint64_t)(area - w->memory + keep),
                  (off_t)(AFW_SITE_AREA - keep));
    return 0;
}

int afw_worker_rules(struct afw_worker *w, uint32_t vm, const uint8_t *rules, uint64_t size)
{
    if (vm >= w->vms || size > AFW_RULES_SIZE)
        return -EINVAL;
    memcpy(w->rules + (uint64_t)vm * AFW_RULES_SIZE, rules, size);
    return 0;
}

/* SAFETY: the one place that turns (vm, flow) into a pointer; callers go on only if it is not 0. */
int flow_at(struct afw_worker *w, uint32_t vm, uint32_t flow, struct flow_view *v)
{
    if (vm >= w->vms || flow >= AFW_FLOWS)
        return 0;
    uint8_t *base = w->windows + (uint64_t)vm * AFW_WINDOW_STRIDE;
    v->window = (struct afw_window *)base;
    v->shared = &v->window->flow[flow];
    v->own = w->flow + (size_t)vm * AFW_FLOWS + flow;
    v->tx = base + AFW_WINDOW_DATA + (uint64_t)flow * 2 * AFW_RING;
    v->rx = v->tx + AFW_RING;
    return 1;
}

#define KEPT (128 << 10)

/* Zeroes what there is of [at, end), if that is not more than KEPT. To give pages back and have them anew would cost a guest a fault
 * for each, and the kernel a walk through all VMs of the cell. -> 1: done */
static int zeroed(struct afw_worker *w, uint64_t at, uint64_t end)
{
    for (uint64_t left = KEPT;;) {
        off_t data = lseek(w->windows_fd, (off_t)at, SEEK_DATA);
        if (data < 0 || (uint64_t)data >= end)
            return data >= 0 || errno == ENXIO;
        off_t hole = lseek(w->windows_fd, data, SEEK_HOLE);
        uint64_t size = hole > data ? ((uint64_t)hole < end ? (uint64_t)hole : end) - (uint64_t)data : left + 1;
        if (size > left)
            return 0;
        memset(w->windows + data, 0, size);
        left -= size;
        at = (uint64_t)data + size;
    }
}

int afw_window_reset(struct afw_worker *w, uint32_t vm, int keep)
{
    if (vm >= w->vms)
        return -EINVAL;
    uint64_t begin = (uint64_t)vm * AFW_WINDOW_STRIDE;
    /* Gives the pages of the last guest back and reads as zeros. */
    if (!(keep && zeroed(w, begin, begin + AFW_WINDOW_STRIDE)) &&
        fallocate(w->windows_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)begin, AFW_WINDOW_STRIDE) < 0)
        return -errno;
    memset(w->flow + (size_t)vm * AFW_FLOWS, 0, AFW_FLOWS * sizeof *w->flow);
    for (uint32_t i = 0; i < AFW_FLOW_FIRST; i++) {
        struct flow_view v;
        if (flow_at(w, vm, i, &v))
            store_release(&v.shared->hstate, AFW_H_OPEN);
    }
    w->dirty &= ~(1ull << vm);
    return 0;
}
