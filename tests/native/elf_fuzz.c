/* elf.c against damaged files, without a VM: memory is a buffer, every request is checked against what elf.c may ask for.
 * Arguments: file, seed, rounds. Sanitizers find the rest. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "machine.h"

struct cell cell;
static uint8_t *memory;
static uint64_t committed_to;
static const uint8_t *image;
static size_t image_size;
static uint64_t state;

static uint64_t rnd(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void check(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "elf.c asked for %s\n", what);
        abort();
    }
}

#define SPACE (1ull << 31)                       /* more than IMAGE_MAX; what lies above is refused, as over the memory limit */

int memory_commit(struct vm *vm, uint64_t gva, uint64_t len)
{
    (void)vm;
    if (!inside(gva, len, 0, SPACE))
        return -ENOMEM;
    if (gva + len > committed_to)
        committed_to = gva + len;
    return 0;
}

void *guest_range(struct vm *vm, uint64_t gva, uint64_t len)
{
    (void)vm;
    return inside(gva, len, AFW_SYS, SPACE) ? memory + gva : 0;
}

int guest_write(struct vm *vm, uint64_t gva, const void *data, uint64_t len)
{
    void *p = guest_range(vm, gva, len);
    if (!p)
        return -EFAULT;
    memcpy(p, data, len);
    return 0;
}

int memory_protect(struct vm *vm, uint64_t gva, uint64_t len, int prot)
{
    (void)vm, (void)prot;
    check(gva % PAGE == 0 && inside(gva, len, AFW_IMAGE, SPACE), "a protection outside the image");
    return len ? 0 : -EINVAL;
}

int memory_map_file(struct vm *vm, int fd, uint64_t gva, uint64_t len, int prot, int shared, uint64_t offset, const char *name,
                    struct tnode *file)
{
    (void)vm, (void)name, (void)prot, (void)file;
    check(gva % PAGE == 0 && offset % PAGE == 0 && inside(gva, page_up(len), AFW_IMAGE, SPACE), "a mapping outside the image");
    check(!shared && offset <= image_size && len <= image_size + PAGE, "a mapping outside the file");
    ssize_t n = pread(fd, memory + gva, len, (off_t)offset);
    return n < 0 ? -errno : 0;
}

void sites_code(struct vm *vm, uint32_t kind, uint64_t gva, uint64_t len) { (void)vm, (void)kind, (void)gva, (void)len; }

int vfs_host_open(struct vfs *vfs, const char *path)
{
    (void)vfs;
    check(strlen(path) < 256, "an endless path");
    int fd = memfd_create("elf", MFD_CLOEXEC);
    if (write(fd, image, image_size) != (ssize_t)image_size)
        abort();
    return fd;
}

static void damage(uint8_t *p, size_t n)
{
    static const uint64_t values[] = {0, 1, 0xff, 0xfff, 0x1000, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, ~0ull, 0x3c0000000, 0x400000, ~0xfffull};
    size_t head = n < 1024 ? n : 1024;           /* ELF header and program headers: where it matters */
    for (uint64_t k = 1 + rnd() % 6; k; k--) {
        size_t at = rnd() % (head - 8);
        uint64_t v = values[rnd() % (sizeof values / 8)];
        switch (rnd() % 3) {
        case 0: p[at] ^= (uint8_t)(1 << rnd() % 8); break;
        case 1: memcpy(p + (at & ~7ull), &v, 8); break;
        default: memcpy(p + (at & ~3ull), &v, 4); break;
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    int fd = open(argv[1], O_RDONLY);
    static uint8_t good[1 << 20], bad[1 << 20];
    ssize_t n = read(fd, good, sizeof good);     /* a larger file is one that was truncated */
    if (n < 1024)
        return 2;
    state = strtoull(argv[2], 0, 10) * 2 + 1;
    memory = mmap(0, SPACE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cell.config.program = "/program";
    char *args[] = {"program", "x"};
    cell.config.argv = cell.config.env = args;
    cell.config.argc = cell.config.envc = 2;
    cell.cpu.xsave_size = 832;
    unsigned loaded = 0;
    for (unsigned long i = strtoul(argv[3], 0, 10); i; i--) {
        struct machine m = {0};
        struct loaded l;
        char error[200] = "";
        memcpy(bad, good, (size_t)n);
        damage(bad, (size_t)n);
        image = bad;
        image_size = (size_t)n - (rnd() % 4 ? 0 : rnd() % (size_t)n);
        if (!image_size)
            continue;
        int e = elf_load(&m, &l, error, sizeof error);
        if (!e) {
            uint64_t rsp, lo = page_up(l.end) + GUARD_SIZE;
            check(l.end <= AFW_SPACE_END && l.entry < AFW_SPACE_END, "an end outside the space");
            loaded++;
            if (lo + STACK_SIZE < SPACE)
                check(!elf_stack(&m, &l, lo, lo + STACK_SIZE, &rsp) && rsp % 16 == 0 && rsp > lo, "a stack elsewhere");
        }
        madvise(memory, SPACE, MADV_DONTNEED);
    }
    printf("%u loaded\n", loaded);
    return 0;
}
