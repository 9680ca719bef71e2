/* Drives the cell's file system without a VM: frames on standard input, answers on standard output (driver.py).
 *
 * Frame: u32 command, u32 size, payload. Answer: i64 result, u32 size, bytes. Guest memory: guest_memory.c.
 */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "guest_memory.h"
#include "internal.h"
#include "vfs.h"

#define MEMORY (160ull << 20)
#define HOLE (16ull << 20)
#define HOLE_END (17ull << 20)
static struct vm vm;

const struct test_memory test_memory = {MEMORY, HOLE, HOLE_END};

static char mapped[256];
void hot_opened(struct vm *v, const char *path, uint64_t size)
{
    (void)v;
    (void)path;
    (void)size;
}

uint64_t clock_ticks(uint64_t ticks) { return ticks; }

int memory_map_file(struct vm *v, int fd, uint64_t gva, uint64_t len, int prot, enum map_how how, uint64_t offset, const char *name, struct tnode *file)
{
    (void)file;
    if (!guest_range(v, gva, len))
        return -ENOMEM;
    snprintf(mapped, sizeof mapped, "%s", name);
    void *p = mmap(v->mem + gva, len, prot & (PROT_READ | PROT_WRITE), MAP_FIXED | (how == MAP_OWN ? MAP_PRIVATE : MAP_SHARED), fd, (off_t)offset);
    return p == MAP_FAILED ? -errno : 0;
}

/* What jail.c allows for files, as far as the file system asked for it, and what this program needs itself; the rest kills */
static void jail(void)
{
    static const uint16_t calls[] = {
        SYS_openat2, SYS_readlinkat, SYS_newfstatat, SYS_fstat, SYS_getdents64, SYS_preadv, SYS_preadv2, SYS_pwritev, SYS_pwritev2, SYS_pread64,
        SYS_pwrite64, SYS_ftruncate, SYS_fallocate, SYS_mkdirat, SYS_unlinkat, SYS_renameat2, SYS_symlinkat, SYS_linkat, SYS_fchmod, 452, SYS_utimensat,
        SYS_fsync, SYS_fstatfs, SYS_memfd_create, SYS_flock, SYS_lseek, SYS_copy_file_range, SYS_name_to_handle_at, SYS_dup, SYS_fcntl, SYS_close, SYS_read, SYS_write, SYS_brk, SYS_mmap, SYS_munmap,
        SYS_mremap, SYS_madvise, SYS_futex, SYS_clock_gettime, SYS_getrandom, SYS_exit_group};
    static struct sock_filter code[2 * sizeof calls / sizeof *calls + 2];
    size_t n = 0;
    code[n++] = (struct sock_filter){BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        code[n++] = (struct sock_filter){BPF_JMP | BPF_JEQ | BPF_K, 0, 1, calls[i]};
        code[n++] = (struct sock_filter){BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    }
    code[n++] = (struct sock_filter){BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS};
    struct sock_fprog program = {(unsigned short)n, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        abort();
}

static int64_t call(uint16_t op, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3, uint64_t a4, uint64_t a5)
{
    struct afw_sqe sqe = {.op = op, .a = {a0, a1, a2, a3, a4, a5}};
    return file_op(&vm, &sqe);
}

/* Opens a path again and again, reading it as file or directory: rounds that saw the needle << 32 | rounds that opened it */
static int64_t hunt(const uint8_t *p)
{
    uint64_t path, len, flags, rounds, seen = 0, opened = 0;
    char text[4097];
    memcpy(&path, p, 8);
    memcpy(&len, p + 8, 8);
    memcpy(&flags, p + 16, 8);
    memcpy(&rounds, p + 24, 8);
    const char *needle = (const char *)p + 32;
    for (uint64_t i = 0; i < rounds; i++) {
        const uint64_t buffer = 0x800000;
        int64_t h = call(AFW_OP_OPEN, path, len, flags, 0600, AFW_CWD, 0);
        if (h < 0)
            continue;
        opened++;
        int64_t n = call(AFW_OP_PREAD, (uint64_t)h, buffer, 4096, 0, 0, 0);
        if (n == -EISDIR)
            n = call(AFW_OP_READDIR, (uint64_t)h, buffer, 4096, 0, 0, 0);
        if (n > 0) {
            memcpy(text, vm.mem + buffer, (size_t)n);
            seen += !!memmem(text, (size_t)n, needle, strlen(needle));
        }
        call(AFW_OP_CLOSE, (uint64_t)h, 0, 0, 0, 0, 0);
    }
    return (int64_t)(seen << 32 | opened);
}

static void landlock(int fd, int writable, void *arg)
{
    (void)fd;
    *(uint32_t *)arg += writable ? 0x10000 : 1;
}

static int64_t host_read(const uint8_t *p, uint32_t size, uint8_t *out, uint32_t *out_size)
{
    char path[4096];
    memcpy(path, p, size);
    path[size] = 0;
    int fd = vfs_host_open(vm.vfs, path);
    if (fd < 0)
        return fd;
    ssize_t n = pread(fd, out, 4096, 0);
    close(fd);
    *out_size = n > 0 ? (uint32_t)n : 0;
    return n;
}

static void take(void *out, size_t n)
{
    if (n && fread_unlocked(out, 1, n, stdin) != n) {
        vfs_free(vm.vfs);
        rules_free(vm.rules);
        sight_free(&vm);
        exit(0);
    }
}

int main(void)
{
    vm.mem = mmap(0, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (vm.mem == MAP_FAILED || mprotect(vm.mem + HOLE, HOLE_END - HOLE, PROT_NONE))
        return 1;
    vm.memory_limit = 256 << 20;
    vm.shared_sight = calloc(1, AFW_SIGHT_SIZE);
    struct afw_ctl *ctl = (struct afw_ctl *)(vm.mem + AFW_CTL);
    vm.ctl = ctl;
    call_boot(ctl);
    ctl->pid = 4711;
    ctl->committed_pages = 1000;
    /* what the shim would say: the image, and a stack; two threads */
    static const struct afw_region regions[] = {{0x400, 0x405, 0x2f}, {0x500, 0x600, 0xb}, {0x600, 0x601, 0x1b}, {~0u, ~0u, 0}};
    uint8_t *first = vm.mem + AFW_SYS + 0x1000, *second = first + AFW_THREAD_SIZE;
    memcpy(vm.mem + AFW_SYS, regions, sizeof regions);
    ctl->regions = AFW_SYS;
    ctl->n_regions = 4;
    ctl->stack_lo = 0x500000;
    ctl->stack_hi = 0x600000;
    ctl->threads = AFW_SYS + 0x1000;
    memcpy(first + AFW_THREAD_TID, &(uint32_t){4712}, 4);
    memcpy(first + AFW_THREAD_NEXT, &(uint64_t){AFW_SYS + 0x1000 + AFW_THREAD_SIZE}, 8);
    memcpy(first + AFW_THREAD_NAME, "worker", 7);
    first[AFW_THREAD_STATE] = AFW_THREAD_BLOCKED;
    memcpy(second + AFW_THREAD_TID, &(uint32_t){4711}, 4);
    uint8_t *in = malloc(8 << 20), *out = malloc(8 << 20);
    for (;;) {
        uint32_t command, size, out_size = 0, type;
        int64_t result = 0;
        uint64_t gva, len, a[6];
        uint16_t op;
        take(&command, 4);
        take(&size, 4);
        if (size >= 8 << 20)
            return 2;
        take(in, size);
        switch (command) {
        case 1:
            memcpy(&type, in, 4);
            result = vfs_configure(type, in + 4, size - 4);
            break;
        case 2:
            vfs_free(vm.vfs);
            vm.vfs = vfs_new(&vm);
            result = vm.vfs ? 0 : -ENOMEM;
            break;
        case 3:
            memcpy(&gva, in, 8);
            memcpy(vm.mem + gva, in + 8, size - 8);
            break;
        case 4:
            memcpy(&gva, in, 8);
            memcpy(&len, in + 8, 8);
            memcpy(out, vm.mem + gva, len);
            out_size = (uint32_t)len;
            break;
        case 5:
            memcpy(&op, in, 2);
            memcpy(a, in + 2, sizeof a);
            result = call(op, a[0], a[1], a[2], a[3], a[4], a[5]);
            break;
        case 6:
            result = vfs_open_handles(vm.vfs);
            break;
        case 7:
            jail();
            break;
        case 8:
            in[size] = 0;
            result = hunt(in);
            break;
        case 9:
            type = 0;
            vfs_landlock_paths(landlock, &type);
            result = type;
            break;
        case 10:
            result = host_read(in, size, out, &out_size);
            break;
        case 11:
            out_size = (uint32_t)strlen(mapped);
            memcpy(out, mapped, out_size);
            break;
        case 12: {
            struct rules *old = vm.rules, *rules;
            vm.rules = 0;
            rules_free(old);
            uint8_t *exact = malloc(size);           /* so that a look behind the table is seen */
            memcpy(exact, in, size);
            result = size ? rules_parse(exact, size, &rules) : 0;
            free(exact);
            if (size && !result && (result = vfs_rules(vm.vfs, rules)))
                rules_free(rules);
            break;
        }
        case 13: {                   /* one pattern alone against a path: own action | above << 8 */
            uint32_t n;
            int above;
            struct rules *rules;
            memcpy(&n, in, 4);
            in[size] = 0;
            result = rules_parse(in + 4, n, &rules);
            if (result < 0)
                break;
            result = rules_path(rules, (char *)in + 4 + n, &above);
            result |= above << 8;
            rules_free(rules);
            break;
        }
        case 14: {                   /* may the one path's directory become the other's? */
            uint32_t n;
            struct rules *rules;
            memcpy(&n, in, 4);
            in[size] = 0;
            result = rules_parse(in + 4, n, &rules);
            if (result < 0)
                break;
            const char *from = (char *)in + 4 + n;
            result = rules_may_move(rules, from, from + strlen(from) + 1);
            rules_free(rules);
            break;
        }
        case 15:                     /* what it did so far, as the worker gets it */
            result = sight_copy(vm.shared_sight, out);
            out_size = (uint32_t)result;
            break;
        default:
            return 3;
        }
        fwrite(&result, 8, 1, stdout);
        fwrite(&out_size, 4, 1, stdout);
        fwrite(out, 1, out_size, stdout);
        fflush(stdout);
    }
}
