/* Devices that the shim is itself. Which path is one the host says (calls.c). */
#include "io.h"

enum { NUL, ZERO, FULL, RANDOM, URANDOM };           /* as AFW_OPENED_DEVICE counts them */

static s64 dev_read(struct file *f, struct io *io, u32 msg UNUSED, s64 pos UNUSED)
{
    u8 bytes[128];
    s64 n = io->left;
    if (f->dev == NUL)
        return 0;
    memset(bytes, 0, sizeof bytes);
    while (io->left) {
        if (f->dev >= RANDOM)
            random_bytes(bytes, sizeof bytes);
        io_copy(io, bytes, min64(io->left, sizeof bytes), 1);
    }
    return n;
}

static s64 dev_write(struct file *f, struct io *io, u32 msg UNUSED, s64 pos UNUSED)
{
    return f->dev == FULL ? -ENOSPC : (s64)io->left;
}

const struct ops dev_ops = {.size = sizeof(struct file), .mode = S_IFCHR | 0666, .seek = 1, .read = dev_read, .write = dev_write};
