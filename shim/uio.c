/* User memory: pieces to read from and write to, and small values. */
#include "io.h"

void *alloc(size_t size)
{
    void *p = kalloc(size);
    if (!p)
        fail(-ENOMEM);
    return p;
}

void *user_at(u64 at, u64 n, int write)
{
    if (!user_ok(at, n, write))
        fail(-EFAULT);
    return (void *)at;
}

void io_kernel(struct io *io, void *p, u64 len)
{
    io->v = &io->one;
    io->at = 0;
    io->left = len;
    io->one.iov_base = p;
    io->one.iov_len = len;
    io->kernel = 1;
    io->flags = 0;
    io->message = io->many = io->control = 0;
}

void io_buf(struct io *io, u64 buf, u64 len)
{
    io_kernel(io, (void *)buf, min64(len, 0x7ffff000));
    io->kernel = 0;
}

void io_vec(struct io *io, u64 iov, u64 n)
{
    if (n > IOV_MAX)
        fail(-EINVAL);
    io_buf(io, 0, 0);
    io->v = user_at(iov, n * sizeof *io->v, 0);
    for (u32 i = 0; i < n; i++) {
        s64 len = io->v[i].iov_len;
        if (len < 0)
            fail(-EINVAL);
        io->left = min64(io->left + len, 0x7ffff000);
    }
}

u64 io_piece(struct io *io, u64 *len)
{
    while (io->at >= io->v->iov_len) {   /* callers see to it that left > 0 */
        io->v++;
        io->at = 0;
    }
    *len = min64(io->v->iov_len - io->at, io->left);
    return (u64)io->v->iov_base + io->at;
}

void io_skip(struct io *io, u64 n)
{
    io->at += n;
    io->left -= n;
}

void io_copy(struct io *io, void *p, u64 n, int to_user)
{
    while (n) {
        u64 len, piece = io_piece(io, &len);
        len = min64(len, n);
        if (!io->kernel)
            user_at(piece, len, to_user);
        if (to_user)
            memcpy((void *)piece, p, len);
        else
            memcpy(p, (void *)piece, len);
        p = (u8 *)p + len;
        n -= len;
        io_skip(io, len);
    }
}
