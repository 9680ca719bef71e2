/* Devices that the shim is itself. Which path is one the host says (calls.c). */
#include "io.h"

enum { NUL = 3, ZERO = 5, FULL = 7, RANDOM = 8, URANDOM = 9 };   /* minor numbers */

static s64 dev_read(struct file *f, struct io *io, u32 msg UNUSED, s64 pos UNUSED)
{
    s64 n = io->left;
    if (f->dev == NUL)
        return 0;
    while (io->left) {
        u64 len, piece = io_piece(io, &len);
        user_at(piece, len, 1);
        if (f->dev >= RANDOM)
            random_bytes((void *)piece, len);
        else
            memset((void *)piece, 0, len);
        io_skip(io, len);
    }
    return n;
}

static s64 dev_write(struct file *f, struct io *io, u32 msg UNUSED, s64 pos UNUSED)
{
    return f->dev == FULL ? -ENOSPC : (s64)io->left;
}

const struct ops dev_ops = {.size = sizeof(struct file), .mode = S_IFCHR | 0666, .seek = 1, .read = dev_read, .write = dev_write};
