/* cell/ring.c, calls.c and the whole file system behind them: a guest that puts what it likes into its ring, its control page and its memory.
 * Input: u16 size of a table of rules and the table (0: none), then steps, a byte for which and its numbers. */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include "calls.h"
#include "input.h"
#include "machine.h"
#include "guest_memory.h"
#include "rules.h"
#include "vfs.h"

#define MEMORY (16ull << 20)
#define HOLE (12ull << 20)                       /* pages that copies fail at */
#define HOLE_END (13ull << 20)
#define PATHS 0x500000ull                        /* names that steps can mean by number */
#define NAME 64

struct cell cell;
__thread volatile sig_atomic_t runner_tick;
static struct machine machine;
static struct afw_vm_shm shm;
static struct afw_window *window;
static struct afw_sight *sight;
static int ended, full;

/* ---- what the cell's other files do for these; guest memory: vfs/guest_memory.c ---- */
const struct test_memory test_memory = {MEMORY, HOLE, HOLE_END};

void hot_opened(struct vm *v, const char *path, uint64_t size)
{
    (void)v;
    (void)path;
    (void)size;
}

uint64_t clock_ticks(uint64_t ticks) { return ticks; }

int memory_map_file(struct vm *v, int fd, uint64_t gva, uint64_t len, int prot, enum map_how how, uint64_t offset, const char *name, struct tnode *file)
{
    (void)v, (void)prot, (void)how, (void)file;
    must(fd >= 0 && len && (gva | offset) % PAGE == 0 && *name == '/', "a mapping that is none");
    return gva < AFW_SPACE_END ? 0 : -EINVAL;
}

int memory_commit(struct vm *v, uint64_t gva, uint64_t len) { (void)v; return gva % PAGE || len % PAGE ? -EINVAL : 0; }
int memory_zero(struct vm *v, uint64_t gva, uint64_t len) { (void)v; return gva % PAGE || len % PAGE ? -EINVAL : 0; }
int memory_file_again(struct vm *v, uint64_t gva, uint64_t len) { return memory_zero(v, gva, len); }
int memory_remap(struct vm *v, uint64_t gva, uint64_t len, uint64_t to, uint64_t new_len) { return memory_zero(v, gva | to, len | new_len); }
int memory_protect(struct vm *v, uint64_t gva, uint64_t len, int prot) { (void)v, (void)prot; return gva % PAGE || len % PAGE ? -EINVAL : 0; }
void sites_code(struct vm *v, uint32_t kind, uint64_t gva, uint64_t len) { (void)v, (void)kind, (void)gva, (void)len; }
int sites_busy(struct vm *v) { (void)v; return full; }
int64_t snapshot_save(struct machine *m) { (void)m; return 4096; }
uint64_t clock_mono(void) { return 1000000000; }

int runner_event(struct runner *r, const struct afw_event *e)
{
    (void)r;
    must(e->vm == 0 && (e->type != AFW_EV_FLOW_OPEN || e->arg < AFW_FLOWS) && (e->type != AFW_EV_FLOW || e->arg < AFW_FLOWS), "a bad event");
    return full ? -EAGAIN : 0;
}

void boot_random(struct afw_ctl *ctl)
{
    memset(ctl->random, 7, sizeof ctl->random);
    ctl->random_left = sizeof ctl->random;
}

void vm_end(struct machine *m, uint32_t kind, int code, int signal, const char *text, ...)
{
    char line[512];
    va_list args;
    (void)m, (void)kind, (void)code, (void)signal;
    va_start(args, text);
    vsnprintf(line, sizeof line, text, args);
    va_end(args);
    must(!ended, "a VM that ends twice");
    ended = 1;
}

/* ---- the guest ---- */
static const char names[][NAME] = {
    "/tmp", "/tmp/a", "/tmp/b", "/tmp/a/b", "b", "..", "/etc/hosts", "/etc/link", "/proc/self/status", "/proc/self/maps", "/dev/null", "/dev/fd/1",
    "/proc/self/fd/3", "/", "/tmp/./../tmp//a", "/run/agentfw", "/dev/shm/x", "/proc/self/exe", "/tmp/a/../b/c", "a",
};

static void record(uint32_t type, const void *p, uint32_t n) { must(!vfs_configure(type, p, n), "the fuzzer's own files"); }

static void configure(void)
{
    static const struct { uint64_t bytes, inodes; } tmp = {1 << 20, 64};
    static const struct { uint32_t mode, path; char text[19]; } file = {0444, 10, "/etc/hosts127.0.0.1"};
    static const struct { uint32_t path; char text[15]; } link = {9, "/etc/link/tmp/a"};
    machine.vm.mem = mmap(0, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    window = calloc(1, AFW_WINDOW_DATA);
    sight = calloc(1, AFW_SIGHT_SIZE);
    must(machine.vm.mem != MAP_FAILED && window && sight, "the fuzzer's own memory");
    record(AFW_REC_TMP, &tmp, sizeof tmp);
    record(AFW_REC_FILE, &file, 8 + 19);
    record(AFW_REC_SYMLINK, &link, 4 + 15);
    record(AFW_REC_PROGRAM, "/usr/bin/python3", 16);
    vfs_fd_limit(4096);
    cell.config.snapshot_out = 1;
}

static void begin(void)
{
    uint8_t *mem = machine.vm.mem;
    madvise(mem, MEMORY, MADV_DONTNEED);
    memset(&machine, 0, sizeof machine);
    memset(&shm, 0, sizeof shm);
    memset(window, 0, AFW_WINDOW_DATA);
    memset(sight, 0, AFW_SIGHT_SIZE);
    machine.vm.mem = mem;
    machine.vm.ctl = (struct afw_ctl *)(mem + AFW_CTL);
    machine.vm.shm = &shm;
    machine.vm.window = window;
    machine.vm.shared_sight = sight;
    machine.vm.memory_limit = MEMORY;
    machine.vm.vfs = vfs_new(&machine.vm);
    must(machine.vm.vfs != 0, "the fuzzer's own files");
    memcpy(mem + PATHS, names, sizeof names);
    call_boot(machine.vm.ctl);
    ended = full = 0;
    runner_tick = 0;
    uint64_t table = 0x600000, file = 0x600800;      /* descriptors 0..15, files with handles 0..15 */
    machine.vm.ctl->fd_table = table;
    machine.vm.ctl->fd_size = 16;
    for (uint32_t i = 0; i < 16; i++, file += 64) {
        memcpy(mem + table + i * 8, &file, 8);
        memcpy(mem + file + offsetof(struct afw_file, handle), &i, 4);
    }
}

static uint64_t argument(struct input *in)
{
    uint64_t kind = number(in, 1);
    switch (kind % 8) {
    case 0: return kind / 8;
    case 1: return number(in, 2);
    case 2: return number(in, 8);
    case 3: return AFW_CWD;
    case 4: return 0x700000 + number(in, 2);
    case 5: return HOLE - 64 + number(in, 1);
    case 6: return ~0ull;
    default: return PATHS + kind / 8 % (sizeof names / NAME) * NAME;
    }
}

static void submit(struct input *in)
{
    struct afw_ctl *ctl = machine.vm.ctl;
    uint64_t kind = number(in, 1);
    struct afw_sqe e = {.op = (uint16_t)(kind % 4 == 0 ? number(in, 2) : kind % 4 == 1 ? AFW_OP_CALL + number(in, 2) % 512 : number(in, 1) % 70),
                        .flags = kind & 0x80 ? 1 : 0, .token = 1};
    for (int i = 0; i < 6; i++)
        e.a[i] = argument(in);
    if (kind & 0x40 && e.op < AFW_OP_CALL)           /* the length that goes with the name */
        e.a[1] = e.a[0] >= PATHS && e.a[0] < PATHS + sizeof names ? strlen(names[(e.a[0] - PATHS) / NAME]) : 0;
    memcpy(machine.vm.mem + AFW_SQ + ctl->sq_tail++ % AFW_SQ_LEN * sizeof e, &e, sizeof e);
}

static void consume(void)
{
    struct afw_ctl *ctl = machine.vm.ctl;
    for (int turn = 0; turn < 70 && !ended; turn++) {
        uint32_t before = machine.sq_head;
        enum ring_result r = ring_consume(&machine);
        must(r == RING_ENDED ? ended : !ended, "an end that is none");
        must(machine.sq_head - before <= AFW_SQ_LEN, "more entries than there are");
        if (r != RING_STALLED)
            break;
        full = 0;
    }
    if (!ended)
        ctl->cq_head = machine.cq_tail;              /* a guest that takes its answers */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct rules *rules = 0;
    if (!window)
        configure();
    begin();
    uint64_t n = number(&in, 2);
    n = n < in.left ? n : in.left;
    if (n && !rules_parse(in.at, n, &rules) && rules) {
        if (vfs_rules(machine.vm.vfs, rules) >= 0)
            machine.vm.rules = rules;
    }
    in.at += n;
    in.left -= n;
    while (in.left && !ended) {
        uint64_t kind = number(&in, 1), at, len;
        switch (kind % 8) {
        case 0:                      /* memory: names, buffers, descriptors' table, the ring itself */
            at = kind & 8 ? AFW_SYS + number(&in, 3) : PATHS + number(&in, 3) % 0x300000;
            len = number(&in, 1);
            if (guest_range(&machine.vm, at, len))
                take(&in, machine.vm.mem + at, len);
            break;
        case 1:                      /* the first words of the control page */
            at = number(&in, 1) % 64;
            take(&in, (uint8_t *)machine.vm.ctl + at * 4, 4);
            break;
        case 2:
            full = (int)(kind / 8) & 1;
            runner_tick = (int)(kind / 16) & 1;
            machine.restored = kind / 32 & 1;
            break;
        case 3:
            consume();
            break;
        default:
            submit(&in);
            if (kind & 8)
                consume();
        }
    }
    if (!ended)
        consume();
    must(sight->n_ops <= AFW_SIGHT_OPS && sight->n_files <= AFW_SIGHT_FILES, "more is told than there is room for");
    for (uint32_t i = 0; i < sight->n_ops; i++)
        must(sight->op[i].count && sight->op[i].errors <= sight->op[i].count, "operations that were not");
    vfs_free(machine.vm.vfs);
    rules_free(rules);
    sight_free(&machine.vm);
    return 0;
}
