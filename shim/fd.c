/* Descriptors, open file descriptions, and the calls that work on any of them. */
#include "io.h"
#include <sys/ioctl.h>

static u32 next_ino;

void *file_new(const struct ops *ops, u32 flags)
{
    struct file *f = alloc(ops->size);
    f->ops = ops;
    f->refs = 1;
    f->flags = flags & ~(O_CLOEXEC | O_CREAT | O_EXCL | O_TRUNC | O_NOCTTY);
    f->ino = ++next_ino;
    return f;
}

struct file *peek(u64 fd)
{
    return (u32)fd < fd_size ? (struct file *)(fd_table[(u32)fd] & ~1ul) : 0;
}

struct file *need(u64 fd)
{
    struct file *f = peek(fd);
    if (!f)
        fail(-EBADF);
    return f;
}

s64 fput(struct file *f, s64 result)
{
    if (!--f->refs) {
        epoll_forget(f);
        if (f->ops->close)
            f->ops->close(f);
        kfree(f);
    }
    return result;
}

/* Room for descriptor n? */
static int grow(u32 n)
{
    if (n >= NOFILE)
        return 0;
    while (n >= fd_size) {
        u32 size = fd_size ? fd_size * 2 : 32;
        u64 *t = kalloc(size * sizeof *t);
        if (!t)
            return 0;
        memcpy(t, fd_table, fd_size * sizeof *t);
        kfree(fd_table);
        fd_table = t;
        fd_size = size;
    }
    return 1;
}

s64 fd_install_from(struct file *f, u64 lowest, u32 flags)
{
    u32 n = lowest;
    while (peek(n))
        n++;
    if (!grow(n))
        return fput(f, -EMFILE);
    fd_table[n] = (u64)f | ((flags & O_CLOEXEC) != 0);
    return n;
}

s64 fd_install(void *f, u32 flags) { return fd_install_from(f, 0, flags); }

void fd_uninstall(u64 fd)
{
    struct file *f = peek(fd);
    if (f) {
        fd_table[(u32)fd] = 0;
        file_notify(f, 0);
        if (f->handle && f->refs > 1)            /* POSIX locks go with any of a file's descriptors */
            ring_post(AFW_OP_CLOSE, f->handle, 1, 0, 0, 0, 0);
        fput(f, 0);
    }
}

s64 fd_pair(void *first, void *second, u32 flags, u64 user)
{
    int fds[2];
    fds[0] = fd_install(first, flags);
    fds[1] = fd_install(second, flags);
    if (fds[1] < 0 || !user_ok(user, sizeof fds, 1)) {
        fd_uninstall(fds[0]);
        fd_uninstall(fds[1]);
        return fds[1] < 0 ? fds[1] : -EFAULT;
    }
    return copy_out(user, fds, sizeof fds);
}

void file_notify(void *file, u32 events)
{
    struct file *f = file;
    if (f) {
        wake_all(&f->wq);
        epoll_mark(f->items, events);
    }
}

void file_wait_for(void *other, void *file, u32 msg, u64 deadline)
{
    struct file *f = file, *o = other;
    if (msg & MSG_DONTWAIT || f->flags & O_NONBLOCK)
        fail(-EAGAIN);
    o->refs++;
    int r = io_wait(&o->wq, deadline);
    fput(o, 0);
    if (r)
        fail(r == -ETIMEDOUT ? -EAGAIN : deadline == NEVER ? -ERESTARTSYS : -EINTR);
}

void file_wait(void *file, u32 msg, u64 deadline) { file_wait_for(file, file, msg, deadline); }

/* ---- read and write ---- */
#define WRITE 1
#define VEC 2
#define POS 4
static s64 rw(struct file *o, u64 buf, u64 n, s64 pos, u32 how)
{
    s64 (*op)(struct file *, struct io *, u32, s64) = how & WRITE ? o->ops->write : o->ops->read;
    struct io io;
    if (!(how & POS))
        pos = -1;
    else if (pos < 0)
        fail(-EINVAL);
    else if (!o->ops->seek)
        fail(-ESPIPE);
    if (o->flags & O_PATH || (o->flags & O_ACCMODE) == (how & WRITE ? O_RDONLY : O_WRONLY))
        fail(-EBADF);
    if (!op)
        fail(-EINVAL);
    if (how & VEC) {
        io_vec(&io, buf, n);
        if (!io.left)
            return 0;
    } else
        io_buf(&io, buf, n);
    return op(o, &io, 0, pos);
}
FD(read) { return rw(o, b, c, d, 0); }
FD(write) { return rw(o, b, c, d, WRITE); }
FD(readv) { return rw(o, b, c, d, VEC); }
FD(writev) { return rw(o, b, c, d, VEC | WRITE); }
FD(pread64) { return rw(o, b, c, d, POS); }
FD(pwrite64) { return rw(o, b, c, d, POS | WRITE); }
FD(preadv) { return rw(o, b, c, d, VEC | POS); }
FD(pwritev) { return rw(o, b, c, d, VEC | POS | WRITE); }
FD(preadv2) { return f & ~7ul ? -EOPNOTSUPP : rw(o, b, c, d, (s64)d == -1 ? VEC : VEC | POS); }
FD(pwritev2) { return f & ~7ul ? -EOPNOTSUPP : rw(o, b, c, d, (s64)d == -1 ? VEC | WRITE : VEC | POS | WRITE); }

/* ---- descriptors ---- */
PL(close)
{
    need(a);
    fd_uninstall(a);
    return 0;
}
PL(close_range)
{
    if (a > b)
        return -EINVAL;
    for (u32 n = a; n <= b && n < fd_size; n++) {
        if (!(c & 4))
            fd_uninstall(n);
        else if (fd_table[n])
            fd_table[n] |= 1;
    }
    return 0;
}
FD(dup)
{
    o->refs++;
    return fd_install(o, 0);
}
PL(dup3)
{
    u32 to = b;
    if ((u32)a == to || c & ~(u64)O_CLOEXEC)
        return -EINVAL;
    struct file *o = need(a);
    if (!grow(to))
        return -EBADF;
    o->refs++;                       /* before the other goes: closing it may be what ends a */
    fd_uninstall(to);
    fd_table[to] = (u64)o | (c != 0);
    return to;
}
PL(dup2)
{
    if ((u32)a != (u32)b)
        return sys_dup3(a, b, 0, 0, 0, 0);
    need(a);
    return (u32)b;
}

/* flock(), and what of fcntl() is about files: the host says when it is to wait. */
PL(lock)
{
    s64 r;
    while ((r = sys_change(a, b, c, d, e)) == -AFW_AGAIN)   /* (who gets a lock has heard from others) */
        if (io_block(deadline_after(5000000)) == -EINTR)     /* nobody tells when another VM lets go */
            return -ERESTARTSYS;
    return r;
}

PL(fcntl)
{
    struct file *o = need(a);
    u64 *entry = &fd_table[(u32)a];
    u32 keep = O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME | O_ASYNC;
    switch ((u32)b) {
    case F_DUPFD:
    case F_DUPFD_CLOEXEC:
        if ((u32)c >= NOFILE)
            return -EINVAL;
        o->refs++;
        return fd_install_from(o, c, b == F_DUPFD ? 0 : O_CLOEXEC);
    case F_GETFD:
        return *entry & 1;
    case F_SETFD:
        *entry = (u64)o | (c & 1);
        return 0;
    case F_GETFL:
        return o->flags;
    case F_SETFL:
        o->flags = (o->flags & ~keep) | (c & keep);
        return 0;
    case F_SETPIPE_SZ:
    case F_GETPIPE_SZ:
        return pipe_size(o, (u32)b == F_SETPIPE_SZ, c);
    }
    return sys_lock(a, b, c, d, e, f);
}

PL(ioctl)
{
    struct file *o = need(a);
    switch ((u32)b) {
    case FIOCLEX:
    case FIONCLEX:
        fd_table[(u32)a] = (u64)o | (b == FIOCLEX);
        return 0;
    case FIONBIO:
        o->flags &= ~O_NONBLOCK;
        if (*(u32 *)user_at(c, 4, 0))
            o->flags |= O_NONBLOCK;
        return 0;
    }
    return o->ops->ioctl ? o->ops->ioctl(o, (u32)b, c) : (u32)b == TCGETS ? -ENOTTY : sys_ask(a, b, c, d, e);
}

void io_exit(void)
{
    for (u32 n = 0; n < fd_size; n++)
        fd_uninstall(n);
}
