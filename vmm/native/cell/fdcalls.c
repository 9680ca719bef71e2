/* System calls on descriptors that the shim hands on: places, sizes, locks, bytes from file to file. See filecalls.c. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include "filecalls.h"

int call_handle(struct call *c, uint64_t fd, int none, uint64_t *handle)
{
    struct guest_fd f;
    int r = call_fd(c->c, fd, &f);
    if (r < 0 || f.file.handle == AFW_LOST_HANDLE)
        return -EBADF;
    *handle = f.file.handle;
    return *handle ? 0 : none;
}

int call_on(struct call *c, uint16_t op, uint64_t x, uint64_t y, uint64_t z, int others)
{
    c->e->op = op;
    memset(c->e->a, 0, sizeof c->e->a);
    c->e->a[1] = x;
    c->e->a[2] = y;
    c->e->a[3] = z;
    return call_handle(c, c->a[0], others, &c->e->a[0]);
}

static int stream(struct call *c)    /* -ESPIPE of what has no places; -EBADF; 0 */
{
    struct guest_fd f;
    int r = call_fd(c->c, c->a[0], &f);
    if (r < 0 || f.file.flags & O_PATH)
        return -EBADF;
    return S_ISFIFO(f.mode) ? -ESPIPE : 0;
}

static int fcntl_on(struct call *c)
{
    struct guest_fd f;
    int r = call_fd(c->c, c->a[0], &f);
    if (r < 0 || f.file.flags & O_PATH)
        return -EBADF;
    switch ((uint32_t)c->a[1]) {
    case F_GETLK:
    case F_SETLK:
    case F_SETLKW:
    case F_OFD_GETLK:
    case F_OFD_SETLK:
    case F_OFD_SETLKW:
        if (!memory_allows(c->c, c->a[2], sizeof(struct flock), PROT_READ))
            return -EFAULT;
        r = call_on(c, AFW_OP_LOCK, c->a[2], (uint32_t)c->a[1], f.file.flags & O_ACCMODE, 0);
        if (f.file.handle && c->c->read(c->c, &c->e->a[4], f.place, sizeof c->e->a[4]))
            return -EFAULT;
        c->e->reserved = (uint32_t)c->a[1] == F_SETLKW || (uint32_t)c->a[1] == F_OFD_SETLKW ? CALL_BLOCKS : 0;
        return r;
    case F_SETOWN:
    case F_GETOWN:
    case F_SETSIG:
    case F_GETSIG:
        return 1;
    case F_GETLEASE:
        c->e->reserved = F_UNLCK;
        return S_ISREG(f.mode) || f.file.handle ? 1 : -EINVAL;
    case F_GET_SEALS:
        return f.file.handle ? call_on(c, AFW_OP_LOCK, 0, F_GET_SEALS, 0, 0) : -EINVAL;
    case F_ADD_SEALS:
        return f.file.handle ? call_on(c, AFW_OP_LOCK, 0, F_ADD_SEALS, 0, 0) : -EINVAL;
    }
    return -EINVAL;
}

/* What has no handle: the file systems of pipes, sockets, devices and the rest */
static int other_statfs(struct call *c)
{
    struct guest_fd f;
    struct statfs s = {.f_bsize = 4096, .f_frsize = 4096, .f_namelen = NAME_MAX};
    if (call_fd(c->c, c->a[0], &f))
        return -EBADF;
    s.f_type = S_ISFIFO(f.mode) ? 0x50495045 : S_ISSOCK(f.mode) ? 0x534f434b : S_ISCHR(f.mode) ? 0x01021994 : 0x09041934;
    return call_put(c->c, c->a[1], &s, sizeof s) ? -EFAULT : 1;
}

static int fallocate_on(struct call *c)
{
    struct guest_fd f;
    uint64_t mode = (uint32_t)c->a[1];
    int r = call_fd(c->c, c->a[0], &f);
    if (r < 0)
        return r;
    if (f.file.flags & O_PATH)
        return -EBADF;
    if ((int64_t)c->a[2] < 0 || (int64_t)c->a[3] <= 0)
        return -EINVAL;
    if (mode & ~0x7full || (mode & FALLOC_FL_PUNCH_HOLE && mode != (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)))
        return -EOPNOTSUPP;
    if (!(f.file.flags & O_ACCMODE))
        return -EBADF;
    r = call_on(c, AFW_OP_FALLOCATE, mode, c->a[2], c->a[3], S_ISFIFO(f.mode) ? -ESPIPE : -ENODEV);
    return r;
}

/* ---- from file to file ---- */

struct end {                         /* of what is moved */
    struct guest_fd f;
    uint64_t user, at;               /* where the offset is the program's, or 0; the offset */
};

static int get_place(struct call *c, struct end *end)
{
    if (end->user)
        return call_get(c->c, &end->at, end->user, sizeof end->at);
    end->at = 0;
    return end->f.file.handle ? c->c->read(c->c, &end->at, end->f.place, sizeof end->at) : 0;
}

static int moved(struct call *c, struct end *end, int64_t n)
{
    end->at += (uint64_t)n;
    if (end->user)
        return call_put(c->c, end->user, &end->at, sizeof end->at);
    return c->c->write(c->c, end->f.place, &end->at, sizeof end->at);
}

static int move(struct call *c, struct end *from, struct end *to, uint64_t n, int ranges)
{
    *c->e = (struct afw_sqe){.op = AFW_OP_COPY, .a = {from->f.file.handle, from->at, to->f.file.handle, to->at, n, (uint64_t)ranges}};
    int64_t r = c->c->perform(c->c, c->e);
    if (r > 0 && (moved(c, from, r) || moved(c, to, r)))
        return -EFAULT;
    c->e->reserved = (uint64_t)r;
    return r < 0 ? (int)r : 1;
}

static int readable(const struct guest_fd *f)
{
    return !(f->file.flags & O_PATH) && (f->file.flags & O_ACCMODE) != O_WRONLY;
}

static int writable(const struct guest_fd *f)
{
    return !(f->file.flags & O_PATH) && f->file.flags & O_ACCMODE;
}

/* The sixth argument: the entry has the thread in its place */
static uint64_t sixth(struct call *c)
{
    uint64_t stack = 0, value = 0;
    if (!c->c->read(c->c, &stack, c->a[5] + AFW_THREAD_STACK, sizeof stack))
        c->c->read(c->c, &value, stack - AFW_FRAME_SIXTH, sizeof value);
    return value;
}

/* Errors in the order of vfs_copy_file_range() */
static int copy_file_range_on(struct call *c)
{
    struct end from = {.user = c->a[1]}, to = {.user = c->a[3]};
    if (call_fd(c->c, c->a[0], &from.f) || from.f.file.flags & O_PATH || call_fd(c->c, c->a[2], &to.f) || to.f.file.flags & O_PATH)
        return -EBADF;
    if (get_place(c, &from) || get_place(c, &to))
        return -EFAULT;
    if ((uint32_t)sixth(c))
        return -EINVAL;
    uint64_t sizes[2] = {from.f.file.handle, to.f.file.handle};
    for (int i = 0; i < 2; i++) {    /* directories, then what is no file */
        *c->e = (struct afw_sqe){.op = AFW_OP_SEEK, .a = {sizes[i], 0, SEEK_END}};
        if (sizes[i] && c->c->perform(c->c, c->e) == -EISDIR)
            return -EISDIR;
    }
    if (!from.f.file.handle || !to.f.file.handle)
        return -EINVAL;
    if (!readable(&from.f) || !writable(&to.f) || to.f.file.flags & O_APPEND)
        return -EBADF;
    return move(c, &from, &to, c->a[4], 1);
}

/* Between two files. To a pipe, a socket or a device the shim sends, which knows when those take more: that is AFW_AGAIN. */
static int sendfile_on(struct call *c)
{
    struct end from = {.user = c->a[2]}, to = {.user = 0};
    if (from.user && get_place(c, &from))
        return -EFAULT;
    if (call_fd(c->c, c->a[1], &from.f) || !readable(&from.f))
        return -EBADF;
    if (from.user && !from.f.file.handle && !S_ISCHR(from.f.mode))
        return -ESPIPE;
    if (get_place(c, &from))
        return -EFAULT;
    if ((int64_t)from.at < 0)
        return -EINVAL;
    if (call_fd(c->c, c->a[0], &to.f) || !writable(&to.f))
        return -EBADF;
    if (from.at == INT64_MAX)
        return -EOVERFLOW;
    *c->e = (struct afw_sqe){.op = AFW_OP_SEEK, .a = {from.f.file.handle, 0, SEEK_END}};
    if (!from.f.file.handle || to.f.file.flags & O_APPEND || c->c->perform(c->c, c->e) < 0)
        return -EINVAL;
    if (!to.f.file.handle)
        return !S_ISFIFO(to.f.mode) && !S_ISSOCK(to.f.mode) && !S_ISCHR(to.f.mode) ? -EINVAL : -AFW_AGAIN;
    return get_place(c, &to) ? -EFAULT : move(c, &from, &to, c->a[3], 0);
}

static int ioctl_on(struct call *c)
{
    struct guest_fd f, g;
    uint64_t place;
    int r = call_fd(c->c, c->a[0], &f);
    if (r < 0 || f.file.flags & O_PATH)
        return -EBADF;
    *c->e = (struct afw_sqe){.op = AFW_OP_SEEK, .a = {f.file.handle, 0, SEEK_END}};
    int64_t size = f.file.handle ? c->c->perform(c->c, c->e) : -ENOTTY;
    switch ((uint32_t)c->a[1]) {
    case FIONREAD: {                 /* ioctl_fionread(2) */
        if (size < 0 || c->c->read(c->c, &place, f.place, sizeof place))
            break;
        int32_t n = (int32_t)((uint64_t)size - place);
        return call_put(c->c, c->a[2], &n, sizeof n) ? -EFAULT : 1;
    }
    case FICLONE:                    /* none of ours shares blocks; who asks copies then */
        return call_fd(c->c, c->a[2], &g) ? -EBADF : size == -EISDIR ? -EISDIR : size < 0 ? -EINVAL : -EOPNOTSUPP;
    case FIGETBSZ: {
        int32_t n = 4096;
        if (!f.file.handle)
            break;
        return call_put(c->c, c->a[2], &n, sizeof n) ? -EFAULT : 1;
    }
    }
    return -ENOTTY;
}

int fd_call(struct call *c, uint32_t nr)
{
    const uint64_t *a = c->a;
    struct guest_fd f;
    int r;
    switch (nr) {
    case SYS_ftruncate:
        return (int64_t)a[1] < 0 ? -EINVAL : call_on(c, AFW_OP_TRUNCATE, a[1], 0, 0, -EINVAL);
    case SYS_fallocate:
        return fallocate_on(c);
    case SYS_fsync:
    case SYS_fdatasync:
        return call_on(c, AFW_OP_FSYNC, 0, 0, 0, -EINVAL);
    case SYS_fstatfs:
        r = call_on(c, AFW_OP_STATFS, a[1], 0, 0, 1);
        return r == 1 ? other_statfs(c) : r || call_own(c->c, a[1], 120) ? r : -EFAULT;
    case SYS_flock:
        if (((uint32_t)a[1] & ~(uint32_t)LOCK_NB) - 1 > 1 && ((uint32_t)a[1] & ~(uint32_t)LOCK_NB) != LOCK_UN)
            return -EINVAL;
        r = call_on(c, AFW_OP_FLOCK, (uint32_t)a[1], 0, 0, 1);
        c->e->reserved = r || a[1] & LOCK_NB ? 0 : CALL_BLOCKS;
        return r;
    case SYS_fchmod:
        return call_on(c, AFW_OP_FCHMOD, a[1] & 07777, 0, 0, call_fd(c->c, a[0], &f) || S_ISCHR(f.mode) ? -EPERM : 1);
    case SYS_fchown:
        if (call_fd(c->c, a[0], &f) || f.file.flags & O_PATH)
            return -EBADF;
        memset(c->e->a, 0, sizeof c->e->a);
        c->e->op = AFW_OP_CHOWN;
        c->e->a[2] = (uint32_t)a[1];
        c->e->a[3] = (uint32_t)a[2];
        return call_handle(c, a[0], S_ISCHR(f.mode) && (uint32_t)(a[1] & a[2]) != UINT32_MAX ? -EPERM : 1, &c->e->a[4]);
    case SYS_syncfs:
        return call_fd(c->c, a[0], &f) || f.file.flags & O_PATH ? -EBADF : 1;
    case SYS_fadvise64:
        r = stream(c);
        return r < 0 ? r : (int64_t)a[2] < 0 || (uint32_t)a[3] > 5 ? -EINVAL : 1;
    case SYS_sync_file_range:
        r = stream(c);
        return r == -EBADF ? r : (int64_t)a[1] < 0 || (int64_t)a[2] < 0 || (uint32_t)a[3] & ~7u ? -EINVAL : r < 0 ? r : 1;
    case SYS_fcntl:
        return fcntl_on(c);
    case SYS_ioctl:
        return ioctl_on(c);
    case SYS_sendfile:
        return sendfile_on(c);
    case SYS_copy_file_range:
        return copy_file_range_on(c);
    }
    return -ENOSYS;
}
