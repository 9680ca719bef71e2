/* Devices that the shim is itself, and the paths that reopen descriptors. */
#include "io.h"

enum { NUL, ZERO, FULL, RANDOM, URANDOM, TTY, AGENTFW, STDIN };
static const char names[] = "null\0zero\0full\0random\0urandom\0tty\0agentfw\0stdin\0stdout\0stderr\0";

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

extern s64 job_open(u64 flags);

/* A descriptor of an open description under another number; files that keep no place of their own need no more. */
static s64 reopen(u64 fd, u64 flags)
{
    struct file *f = peek(fd);
    if (!f)
        fail(-ENOENT);
    f->refs++;
    return fd_install(f, flags);
}

/* Bytes of `with`, if the path starts so and goes on. */
static u32 starts(const char *path, u64 len, const char *with, u32 n)
{
    return len > n && !memcmp(path, with, n) ? n : 0;
}

s64 dev_open(const char *path, u64 len, u64 flags)
{
    u32 fd = 0, i = starts(path, len, "/dev/fd/", 8) + starts(path, len, "/proc/self/fd/", 14);
    if (i) {
        for (; i < len; i++) {
            u32 digit = path[i] - '0';
            if (digit > 9 || fd > FD_MAX)
                fail(-ENOENT);
            fd = fd * 10 + digit;
        }
        return reopen(fd, flags);
    }
    i = starts(path, len, "/dev/", 5);
    if (!i || flags & O_PATH)
        return -1;
    path += i;
    len -= i;
    i = 0;
    for (const char *name = names;; i++) {
        u32 n = 0;
        while (name[n])
            n++;
        if (!n)
            return -1;
        if (n == len && !memcmp(path, name, n))
            break;
        name += n + 1;
    }
    if (i == TTY)
        fail(-ENXIO);
    if (i == AGENTFW)
        return job_open(flags);
    if (i >= STDIN)
        return reopen(i - STDIN, flags);
    struct file *f = file_new(&dev_ops, flags);
    f->dev = i;
    return fd_install(f, flags);
}
