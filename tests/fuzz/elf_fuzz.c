/* cell/elf.c: a program, and the interpreter that it names. Memory is a buffer; every request is checked against what elf.c may ask for.
 * Input: u32 size of the program, the program, the interpreter. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>
#include "input.h"
#include "machine.h"

struct cell cell;
static uint8_t *memory;
static const uint8_t *file[2];
static size_t file_size[2];
static int opened;
static unsigned loaded;

__attribute__((destructor)) static void tell(void) { printf("%u loaded\n", loaded); }

#define SPACE (1ull << 31)                       /* more than an image may have; what lies above is refused, as over the memory limit */

int memory_commit(struct vm *vm, uint64_t gva, uint64_t len)
{
    (void)vm;
    must(gva >= AFW_IMAGE && len && inside(gva, len, AFW_IMAGE, AFW_SPACE_END), "memory outside the guest's addresses is wanted");
    return inside(gva, len, 0, SPACE) ? 0 : -ENOMEM;
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
    must(gva % PAGE == 0 && inside(gva, len, AFW_IMAGE, SPACE), "a protection outside the image");
    return len ? 0 : -EINVAL;
}

int memory_map_file(struct vm *vm, int fd, uint64_t gva, uint64_t len, int prot, enum map_how how, uint64_t offset, const char *name,
                    struct tnode *mapped)
{
    (void)vm, (void)name, (void)prot, (void)mapped;
    size_t size = file_size[opened - 1];
    must(gva % PAGE == 0 && offset % PAGE == 0 && inside(gva, page_up(len), AFW_IMAGE, SPACE), "a mapping outside the image");
    must(how == MAP_OWN && offset <= size && len <= size + PAGE, "a mapping outside the file");
    return pread(fd, memory + gva, len, (off_t)offset) < 0 ? -errno : 0;
}

void sites_code(struct vm *vm, uint32_t kind, uint64_t gva, uint64_t len)
{
    (void)vm, (void)kind;
    must(inside(gva, len, AFW_IMAGE, SPACE), "code outside the image");
}

int vfs_host_open(struct vfs *vfs, const char *path)
{
    (void)vfs;
    must(strlen(path) < 256, "an endless path");
    if (opened == 2)
        return -ENOENT;
    int fd = memfd_create("elf", MFD_CLOEXEC), i = opened++;
    must(fd >= 0 && write(fd, file[i], file_size[i]) == (ssize_t)file_size[i], "the fuzzer's own file");
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char *args[] = {"program", "x"};
    struct input in = {data, size};
    struct machine m = {0};
    struct loaded l;
    char error[200] = "";
    uint64_t first = number(&in, 4);
    if (!memory) {
        memory = mmap(0, SPACE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        must(memory != MAP_FAILED, "the fuzzer's own memory");
        cell.config.program = "/program";
        cell.config.argv = cell.config.env = args;
        cell.config.argc = cell.config.envc = 2;
        cell.cpu.xsave_size = 832;
    }
    first = first < in.left ? first : in.left;
    file[0] = in.at;
    file_size[0] = first;
    file[1] = in.at + first;
    file_size[1] = in.left - first;
    opened = 0;
    int e = elf_load(&m, &l, error, sizeof error);
    must(memchr(error, 0, sizeof error) != 0, "a message without an end");
    must(!e || e == -ENOENT || *error, "a refusal without a word");
    loaded += !e;
    if (!e) {
        uint64_t rsp, lo = page_up(l.end) + GUARD_SIZE;
        must(l.end <= AFW_SPACE_END && l.entry < AFW_SPACE_END, "an end outside the space");
        if (lo + STACK_SIZE < SPACE)
            must(!elf_stack(&m, &l, lo, lo + STACK_SIZE, &rsp) && rsp % 16 == 0 && rsp > lo, "a stack elsewhere");
    }
    madvise(memory, SPACE, MADV_DONTNEED);
    return 0;
}
