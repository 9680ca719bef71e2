/* What memory.c of the cell is to the file system, over plain memory with a hole, so that copies fail there as they do in a VM: for
 * harness.c and tests/fuzz/ring_fuzz.c. */
#include <errno.h>
#include <string.h>
#include "guest_memory.h"

void *guest_range(struct vm *v, uint64_t gva, uint64_t len)
{
    return gva < AFW_SYS || gva >= test_memory.size || len > test_memory.size - gva ? 0 : v->mem + gva;
}

/* The bytes before the hole: the cell's copies, too, have moved those when they come to a page that is not there */
static uint64_t before_hole(uint64_t gva, uint64_t len)
{
    if (gva >= test_memory.hole_end || gva + len <= test_memory.hole)
        return len;
    return gva < test_memory.hole ? test_memory.hole - gva : 0;
}

int guest_read(struct vm *v, void *out, uint64_t gva, uint64_t len)
{
    void *p = guest_range(v, gva, len);
    if (!p)
        return -EFAULT;
    uint64_t part = before_hole(gva, len);
    memmove(out, p, part);
    return part == len ? 0 : -EFAULT;
}

int guest_write(struct vm *v, uint64_t gva, const void *data, uint64_t len)
{
    void *p = guest_range(v, gva, len);
    if (!p)
        return -EFAULT;
    uint64_t part = before_hole(gva, len);
    memmove(p, data, part);
    return part == len ? 0 : -EFAULT;
}

int guest_path(struct vm *v, char *out, uint64_t gva, uint64_t len)
{
    if (!len)
        return -ENOENT;
    if (len > 4095)
        return -ENAMETOOLONG;
    if (guest_read(v, out, gva, len))
        return -EFAULT;
    if (memchr(out, 0, len))
        return -EINVAL;
    out[len] = 0;
    return 0;
}

int memory_module_next(struct vm *v, uint64_t gva, char name[256], uint64_t *start, uint64_t *end, uint64_t *offset)
{
    (void)v;
    if (gva > 0x400000)
        return 0;
    strcpy(name, "/usr/bin/python3");
    *start = 0x400000;
    *end = 0x402000;
    *offset = 0;
    return 1;
}

int memory_writable(struct vm *v, uint64_t gva)
{
    (void)v;
    return gva >= 0x401000;
}
