/* System calls about files that the shim hands on (calls.c): each becomes one of the ring's operations, or is answered here.
 *
 * Order of errors as in Linux: flags, then the path's own, then the descriptor that it is relative to. See calls.h, abi.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <linux/openat2.h>
#include "filecalls.h"

#define OPEN_VALID (O_ACCMODE | O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC | O_APPEND | O_NONBLOCK | O_SYNC | O_DSYNC | O_ASYNC | O_DIRECT | 0100000 | \
                    O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC | O_PATH | O_TMPFILE)
#define STAT_FLAGS (AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH | 0x6000 /* AT_STATX_SYNC_TYPE */)
#define RESOLVE_KNOWN (RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH | RESOLVE_IN_ROOT | RESOLVE_CACHED)
#ifndef RESOLVE_CACHED
#define RESOLVE_CACHED 0x20
#endif
#define MEMFD_KNOWN 0x1f             /* CLOEXEC, ALLOW_SEALING, HUGETLB, NOEXEC_SEAL, EXEC */
#define SYS_FCHMODAT2 452

/* Bytes before the NUL. -EFAULT, -ENAMETOOLONG */
static int64_t length(struct call *c, uint64_t gva)
{
    char piece[512];
    for (uint64_t n = 0; n < PATH_MAX;) {
        uint64_t take = sizeof piece - (gva + n) % sizeof piece;     /* within a page */
        if (gva + n < gva || call_get(c->c, piece, gva + n, take))
            return -EFAULT;
        const char *end = memchr(piece, 0, take);
        if (end)
            return n + (uint64_t)(end - piece) < PATH_MAX ? (int64_t)(n + (uint64_t)(end - piece)) : -ENAMETOOLONG;
        n += take;
    }
    return -ENAMETOOLONG;
}

#define EMPTY 1                      /* the path may be: what the descriptor is open on */
/* Path and length into e->a[i] and the next, the base it is relative to into *base; 0 or -errno; 1: empty, of a descriptor without a handle */
static int path(struct call *c, uint64_t fd, uint64_t gva, int how, unsigned i, uint64_t *base)
{
    char first = 0;
    int64_t n = length(c, gva);
    if (n < 0)
        return (int)n;
    if (!n && !(how & EMPTY))
        return -ENOENT;
    c->e->a[i] = gva;
    c->e->a[i + 1] = (uint64_t)n;
    *base = AFW_CWD;
    if (n && call_get(c->c, &first, gva, 1))
        return -EFAULT;
    if (first == '/' || (int)fd == AT_FDCWD)
        return 0;
    return call_handle(c, fd, n ? -ENOTDIR : 1, base);
}

/* Nearly all: path and base in their places */
static int at(struct call *c, uint16_t op, uint64_t fd, uint64_t gva, int how)
{
    memset(c->e->a, 0, sizeof c->e->a);
    c->e->op = op;
    return path(c, fd, gva, how, 0, &c->e->a[4]);
}

static int two(struct call *c, uint16_t op, uint64_t fd, uint64_t from, uint64_t to_fd, uint64_t to, uint64_t flags)
{
    uint64_t base, to_base;
    c->e->op = op;
    int r = path(c, fd, from, op == AFW_OP_LINK && flags & AT_EMPTY_PATH ? EMPTY : 0, 0, &base);
    if (r)
        return r < 0 ? r : -EXDEV;   /* a pipe's or a socket's file system */
    r = path(c, to_fd, to, 0, 2, &to_base);
    if (r == -ENOENT || r == -EFAULT || r == -ENAMETOOLONG) {        /* of which the operation tells, if there is nothing wrong with the first */
        c->e->a[2] = r == -EFAULT ? 0 : to;
        c->e->a[3] = r == -ENOENT ? 0 : r == -EFAULT ? 1 : PATH_MAX;
        to_base = AFW_CWD;
    } else if (r < 0)
        return r;
    c->e->a[4] = base | to_base << 32;
    c->e->a[5] = flags;
    return 0;
}

static uint64_t masked(struct call *c, uint64_t mode)
{
    return mode & 07777 & ~(uint64_t)c->c->ctl->umask;
}

/* ---- opening ---- */

static int open_as(struct call *c, uint64_t fd, uint64_t gva, uint64_t flags, uint64_t mode)
{
    uint64_t unnamed = O_TMPFILE & ~O_DIRECTORY;
    if (flags & unnamed && !(flags & O_PATH) && ((flags & (O_TMPFILE | O_CREAT)) != O_TMPFILE || !(flags & (O_WRONLY | O_RDWR))))
        return -EINVAL;
    int r = at(c, AFW_OP_OPEN, fd, gva, 0);
    c->e->a[2] = flags & OPEN_VALID;
    c->e->a[3] = flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)) ? masked(c, mode) : 0;
    c->e->a[5] = c->a[4];
    c->e->reserved = CALL_OPEN;
    return r;
}

static int open_how(struct call *c)
{
    struct open_how how = {0, 0, 0};
    uint64_t size = c->a[3];
    if (size < sizeof how)
        return -EINVAL;
    if (size > 4096)
        return -E2BIG;
    if (call_get(c->c, &how, c->a[2], sizeof how))
        return -EFAULT;
    for (uint64_t i = sizeof how; i < size; i++) {
        uint8_t more;
        if (call_get(c->c, &more, c->a[2] + i, 1))
            return -EFAULT;
        if (more)
            return -E2BIG;
    }
    if (how.flags & ~(uint64_t)OPEN_VALID || how.mode & ~07777ull || (how.mode && !(how.flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)))))
        return -EINVAL;
    if (how.flags & O_PATH && how.flags & ~(uint64_t)(O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC))
        return -EINVAL;
    if (how.resolve & ~(uint64_t)RESOLVE_KNOWN || (how.resolve & (RESOLVE_BENEATH | RESOLVE_IN_ROOT)) == (RESOLVE_BENEATH | RESOLVE_IN_ROOT))
        return -EINVAL;
    /* (all that a look-up needs is there: nothing is ever waited for) */
    if (how.resolve & RESOLVE_CACHED && how.flags & (O_TRUNC | O_CREAT | (O_TMPFILE & ~O_DIRECTORY)))
        return -EAGAIN;
    int r = open_as(c, c->a[0], c->a[1], how.flags, how.mode);
    static const struct { uint64_t resolve; uint32_t call; } words[] = {
        {RESOLVE_NO_SYMLINKS, CALL_NO_LINKS}, {RESOLVE_BENEATH, CALL_BENEATH},   {RESOLVE_NO_MAGICLINKS, CALL_NO_MAGIC},
        {RESOLVE_IN_ROOT, CALL_IN_ROOT},      {RESOLVE_NO_XDEV, CALL_NO_MOUNTS},
    };
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        c->e->reserved |= how.resolve & words[i].resolve ? words[i].call : 0;
    if (!r && how.resolve & RESOLVE_IN_ROOT && (int)c->a[0] != AT_FDCWD)          /* an absolute path, too */
        r = call_handle(c, c->a[0], -ENOTDIR, &c->e->a[4]);
    return r;
}

static int memfd(struct call *c)
{
    if (c->a[1] & ~(uint64_t)MEMFD_KNOWN || (c->a[1] & 8 && c->a[1] & 16))
        return -EINVAL;
    int64_t n = length(c, c->a[0]);
    if (n < 0 || n > 249)            /* NAME_MAX less "memfd:" */
        return n == -EFAULT ? -EFAULT : -EINVAL;
    if (c->a[1] & 4)
        return -ENODEV;              /* no huge pages */
    c->e->op = AFW_OP_OPEN;
    c->e->a[0] = c->a[0];
    c->e->a[1] = (uint64_t)n;
    c->e->a[2] = O_RDWR | (c->a[1] & 1 ? O_CLOEXEC : 0);
    c->e->a[3] = 0777;
    c->e->a[5] = c->a[4];
    c->e->reserved = CALL_OPEN | CALL_MEMFD;
    return 0;
}

/* ---- looking ---- */

static int answer_stat(struct call *c, uint64_t fd, uint64_t out, int extended)
{
    struct guest_fd f;
    struct stat st;
    int r = call_fd(c->c, fd, &f);
    if (r < 0)
        return r;
    call_fd_stat(&f, &st);
    if (!extended)
        return call_put(c->c, out, &st, sizeof st);
    struct statx x;
    call_statx(&st, &x);
    return call_put(c->c, out, &x, sizeof x);
}

static int stat_at(struct call *c, uint64_t fd, uint64_t gva, uint64_t out, uint64_t flags, int extended)
{
    if (flags & ~(uint64_t)STAT_FLAGS || (extended && (flags & 0x6000) == 0x6000))
        return -EINVAL;
    int r = at(c, extended ? AFW_OP_STATX : AFW_OP_STAT, fd, gva, flags & AT_EMPTY_PATH ? EMPTY : 0);
    if (r == 1) {
        r = answer_stat(c, fd, out, extended);
        return r < 0 ? r : 1;
    }
    c->e->a[2] = flags & (AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH);
    c->e->a[3] = out;
    return r || call_own(c->c, out, extended ? sizeof(struct statx) : sizeof(struct stat)) ? r : -EFAULT;
}

static int access_at(struct call *c, uint64_t fd, uint64_t gva, uint64_t mode, uint64_t flags)
{
    if (mode & ~7ull || flags & ~(uint64_t)(AT_EACCESS | AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH))
        return -EINVAL;
    int r = at(c, AFW_OP_ACCESS, fd, gva, flags & AT_EMPTY_PATH ? EMPTY : 0);
    c->e->a[2] = mode;
    c->e->a[3] = flags;
    return r;
}

static int readlink_at(struct call *c, uint64_t fd, uint64_t gva, uint64_t out, uint64_t size)
{
    if ((int)size <= 0)
        return -EINVAL;
    int r = at(c, AFW_OP_READLINK, fd, gva, (int)fd == AT_FDCWD ? 0 : EMPTY);
    c->e->a[2] = out;
    c->e->a[3] = (uint32_t)size;
    return r ? r == 1 ? -ENOENT : r : call_own(c->c, out, 1) ? 0 : -EFAULT;
}

/* ---- changing ---- */

static int make_at(struct call *c, uint16_t op, uint64_t fd, uint64_t gva, uint64_t mode)
{
    uint32_t type = mode & S_IFMT;
    if (op == AFW_OP_MKNOD && !type)
        type = S_IFREG;
    if (op == AFW_OP_MKNOD && type != S_IFREG && type != S_IFSOCK && type != S_IFIFO)
        return type == S_IFCHR || type == S_IFBLK || type == S_IFDIR ? -EPERM : -EINVAL;
    int r = at(c, op, fd, gva, 0);
    c->e->a[2] = op == AFW_OP_MKNOD ? masked(c, mode) | type : masked(c, mode) & 01777;
    return r;
}

static int chmod_at(struct call *c, uint64_t fd, uint64_t gva, uint64_t mode, uint64_t flags)
{
    if (flags & ~(uint64_t)(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH))
        return -EINVAL;
    int r = at(c, AFW_OP_CHMOD, fd, gva, flags & AT_EMPTY_PATH ? EMPTY : 0);
    c->e->a[2] = mode & 07777;
    c->e->a[3] = flags;
    return r == 1 ? -EPERM : r;
}

static int chown_at(struct call *c, uint64_t fd, uint64_t gva, uint64_t uid, uint64_t gid, uint64_t flags)
{
    if (flags & ~(uint64_t)(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH))
        return -EINVAL;
    int r = at(c, AFW_OP_CHOWN, fd, gva, flags & AT_EMPTY_PATH ? EMPTY : 0);
    c->e->a[2] = (uint32_t)uid;
    c->e->a[3] = (uint32_t)gid;
    c->e->a[5] = flags & AT_SYMLINK_NOFOLLOW;
    return r;
}

/* utimensat(), and the older ones: struct timeval[2] or struct utimbuf at `times` */
static int times_at(struct call *c, uint64_t fd, uint64_t gva, uint64_t times, uint64_t flags, long unit)
{
    struct timespec t[2];
    if (flags & ~(uint64_t)(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH))
        return -EINVAL;
    if (times && unit == 2) {        /* whole seconds, two of them */
        int64_t s[2];
        if (call_get(c->c, s, times, sizeof s))
            return -EFAULT;
        t[0] = (struct timespec){s[0], 0};
        t[1] = (struct timespec){s[1], 0};
    } else if (times && call_get(c->c, t, times, sizeof t))
        return -EFAULT;
    for (int i = 0; times && i < 2 && unit == 1000; i++) {
        if ((uint64_t)t[i].tv_nsec >= 1000000)
            return -EINVAL;
        t[i].tv_nsec *= unit;
    }
    if (times && unit == 1 && t[0].tv_nsec == UTIME_OMIT && t[1].tv_nsec == UTIME_OMIT)
        return 1;
    int r;
    if (!gva && (int)fd != AT_FDCWD) {
        if (flags)
            return -EINVAL;
        memset(c->e->a, 0, sizeof c->e->a);
        c->e->op = AFW_OP_UTIMENS;
        r = call_handle(c, fd, 1, &c->e->a[4]);
        struct guest_fd f;
        if (!call_fd(c->c, fd, &f) && f.file.flags & O_PATH)
            return -EBADF;
    } else
        r = at(c, AFW_OP_UTIMENS, fd, gva, flags & AT_EMPTY_PATH ? EMPTY : 0);
    if (times)
        memcpy(c->times, t, sizeof t);
    c->e->a[2] = times ? (uint64_t)(uintptr_t)c->times : 0;
    c->e->a[3] = flags & AT_SYMLINK_NOFOLLOW;
    c->e->reserved = r ? 0 : CALL_TIMES;
    return r;
}

/* (path, name, ...): where extended attributes would be */
static int xattr_at(struct call *c, uint64_t nr)
{
    unsigned kind = (unsigned)(nr - SYS_setxattr) % 3, what = (unsigned)(nr - SYS_setxattr) / 3;
    int r;
    if (what != 2 && length(c, c->a[1]) < 0)     /* listing names none */
        return -EFAULT;
    if (kind == 2) {
        memset(c->e->a, 0, sizeof c->e->a);
        c->e->op = AFW_OP_XATTR;
        r = call_handle(c, c->a[0], 0, &c->e->a[4]);
        if (r < 0)
            return r;
    } else if ((r = at(c, AFW_OP_XATTR, (uint64_t)AT_FDCWD, c->a[0], 0)) < 0)
        return r;
    c->e->a[2] = what;
    c->e->a[3] = kind == 1 ? AT_SYMLINK_NOFOLLOW : 0;
    return r;
}

/* 0: *e is an operation now. 1: the answer is c.e->reserved. -errno */
static int prepare(struct call *c, uint32_t nr)
{
    const uint64_t *a = c->a, cwd = (uint64_t)AT_FDCWD;
    int r;
    switch (nr) {
    case SYS_open:
        return open_as(c, cwd, a[0], a[1], a[2]);
    case SYS_creat:
        return open_as(c, cwd, a[0], O_CREAT | O_WRONLY | O_TRUNC, a[1]);
    case SYS_openat:
        return open_as(c, a[0], a[1], a[2], a[3]);
    case SYS_openat2:
        return open_how(c);
    case SYS_memfd_create:
        return memfd(c);
    case SYS_stat:
        return stat_at(c, cwd, a[0], a[1], 0, 0);
    case SYS_lstat:
        return stat_at(c, cwd, a[0], a[1], AT_SYMLINK_NOFOLLOW, 0);
    case SYS_newfstatat:
        return stat_at(c, a[0], a[1], a[2], (uint32_t)a[3], 0);
    case SYS_statx:
        return a[3] & 0x80000000 ? -EINVAL : stat_at(c, a[0], a[1], a[4], (uint32_t)a[2], 1);
    case SYS_access:
        return access_at(c, cwd, a[0], (uint32_t)a[1], 0);
    case SYS_faccessat:
        return access_at(c, a[0], a[1], (uint32_t)a[2], 0);
    case SYS_faccessat2:
        return access_at(c, a[0], a[1], (uint32_t)a[2], (uint32_t)a[3]);
    case SYS_readlink:
        return readlink_at(c, cwd, a[0], a[1], a[2]);
    case SYS_readlinkat:
        return readlink_at(c, a[0], a[1], a[2], a[3]);
    case SYS_mkdir:
        return make_at(c, AFW_OP_MKDIR, cwd, a[0], a[1]);
    case SYS_mkdirat:
        return make_at(c, AFW_OP_MKDIR, a[0], a[1], a[2]);
    case SYS_mknod:
        return make_at(c, AFW_OP_MKNOD, cwd, a[0], a[1]);
    case SYS_mknodat:
        return make_at(c, AFW_OP_MKNOD, a[0], a[1], a[2]);
    case SYS_unlink:
        return at(c, AFW_OP_UNLINK, cwd, a[0], 0);
    case SYS_rmdir:
    case SYS_unlinkat:
        if (nr == SYS_unlinkat && (uint32_t)a[2] & ~(uint32_t)AT_REMOVEDIR)
            return -EINVAL;
        r = nr == SYS_rmdir ? at(c, AFW_OP_UNLINK, cwd, a[0], 0) : at(c, AFW_OP_UNLINK, a[0], a[1], 0);
        c->e->a[2] = nr == SYS_rmdir ? AT_REMOVEDIR : (uint32_t)a[2];
        return r;
    case SYS_rename:
        return two(c, AFW_OP_RENAME, cwd, a[0], cwd, a[1], 0);
    case SYS_renameat:
        return two(c, AFW_OP_RENAME, a[0], a[1], a[2], a[3], 0);
    case SYS_renameat2:
        return (uint32_t)a[4] & ~3u || (a[4] & 3) == 3 ? -EINVAL : two(c, AFW_OP_RENAME, a[0], a[1], a[2], a[3], a[4] & 3);
    case SYS_link:
        return two(c, AFW_OP_LINK, cwd, a[0], cwd, a[1], 0);
    case SYS_linkat:
        if ((uint32_t)a[4] & ~(uint32_t)(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH))
            return -EINVAL;
        return two(c, AFW_OP_LINK, a[0], a[1], a[2], a[3], (uint32_t)a[4]);
    case SYS_symlink:
    case SYS_symlinkat: {
        uint64_t none;
        c->e->op = AFW_OP_SYMLINK;
        r = path(c, cwd, a[0], 0, 0, &none);
        if (r < 0)
            return r;
        r = nr == SYS_symlink ? path(c, cwd, a[1], 0, 2, &c->e->a[4]) : path(c, a[1], a[2], 0, 2, &c->e->a[4]);
        return r;
    }
    case SYS_chmod:
        return chmod_at(c, cwd, a[0], a[1], 0);
    case SYS_fchmodat:
        return chmod_at(c, a[0], a[1], a[2], 0);
    case SYS_FCHMODAT2:
        return chmod_at(c, a[0], a[1], a[2], (uint32_t)a[3]);
    case SYS_chown:
        return chown_at(c, cwd, a[0], a[1], a[2], 0);
    case SYS_lchown:
        return chown_at(c, cwd, a[0], a[1], a[2], AT_SYMLINK_NOFOLLOW);
    case SYS_fchownat:
        return chown_at(c, a[0], a[1], a[2], a[3], (uint32_t)a[4]);
    case SYS_utimensat:
        return times_at(c, a[0], a[1], a[2], (uint32_t)a[3], 1);
    case SYS_utimes:
        return times_at(c, cwd, a[0], a[1], 0, 1000);
    case SYS_futimesat:
        return times_at(c, a[0], a[1], a[2], 0, 1000);
    case SYS_utime:
        return times_at(c, cwd, a[0], a[1], 0, 2);
    case SYS_truncate:
    case SYS_statfs:
        if (nr == SYS_truncate && (int64_t)a[1] < 0)
            return -EINVAL;
        c->e->op = nr == SYS_truncate ? AFW_OP_TRUNCATE : AFW_OP_STATFS;
        r = path(c, cwd, a[0], 0, 2, &c->e->a[4]);
        c->e->a[1] = a[1];
        return r || nr == SYS_truncate || call_own(c->c, a[1], 120) ? r : -EFAULT;
    case SYS_chdir:
        return at(c, AFW_OP_CHDIR, cwd, a[0], 0);
    case SYS_fchdir:
        memset(c->e->a, 0, sizeof c->e->a);
        c->e->op = AFW_OP_CHDIR;
        return call_handle(c, a[0], -ENOTDIR, &c->e->a[4]);
    case SYS_getcwd:
        c->e->op = AFW_OP_GETCWD;
        c->e->a[0] = a[0];
        c->e->a[1] = a[1];
        return call_own(c->c, a[0], 1) ? 0 : -EFAULT;
    case SYS_umask:
        c->e->reserved = c->c->ctl->umask & 0777;
        c->c->ctl->umask = (uint32_t)a[0] & 0777;
        return 1;
    }
    if (nr >= SYS_setxattr && nr <= SYS_fremovexattr)
        return xattr_at(c, nr);
    return fd_call(c, nr);
}

int64_t file_call(struct caller *c, uint32_t number, const uint64_t a[6])
{
    struct afw_sqe e = {0};
    struct call call = {.c = c, .e = &e, .a = a};
    int r = prepare(&call, number);
    return r == 1 ? (int64_t)e.reserved : r < 0 ? r : c->perform(c, &e);
}
