/* Ring operations on handles, and the dispatch of all file operations. Every SQE is hostile. See vfs.h. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <linux/falloc.h>
#include <unistd.h>
#include "vfs.h"

#define PROC_MAGIC 0x9fa0
#define FALLOC_KNOWN (FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)

/* A handle of a file open for `access`, or its error */
static int file_handle(struct vfs *vfs, uint64_t number, uint8_t access, struct handle **out)
{
    struct handle *h = handle_get(vfs, number);
    if (!h || (h->access & HANDLE_PATH) || (access && !(h->access & access)))
        return -EBADF;
    if (S_ISDIR(h->mode))
        return -EISDIR;
    *out = h;
    return 0;
}

static int64_t op_pread(struct vfs *vfs, const uint64_t a[6])
{
    struct handle *h;
    uint64_t len = a[2] < VFS_IO_MAX ? a[2] : VFS_IO_MAX, offset = a[3];
    int r = file_handle(vfs, a[0], HANDLE_READ, &h), own = offset == UINT64_MAX;
    if (r < 0)
        return r;
    if (!own && (int64_t)offset < 0)
        return -EINVAL;
    if (!len)
        return 0;
    if (h->kind == BACK_HOST) {
        struct iovec iov = {guest_range(vfs->vm, a[1], len), len};
        if (!iov.iov_base)
            return -EFAULT;
        int single = !S_ISDIR(h->back->mode);        /* mounts of one file have one open file for all VMs, with one position */
        struct stat st;
        ssize_t n = preadv2(h->fd, &iov, 1, !own ? (off_t)offset : single ? (off_t)h->pos : -1, 0);
        if (own && single && n > 0)
            h->pos += (uint64_t)n;
        if (n >= 0 && !fstat(h->fd, &st))
            kept_seen(vfs, &st);
        return n < 0 ? -errno : n;
    }
    if (own)
        offset = h->pos;
    int64_t n;
    if (h->kind == BACK_TMP)
        n = tmpfs_read(vfs, h->tmp, a[1], len, offset);
    else {
        uint64_t left = offset < h->size ? h->size - offset : 0;
        n = (int64_t)(len < left ? len : left);
        if (n && guest_write(vfs->vm, a[1], h->data + offset, (uint64_t)n) < 0)
            return -EFAULT;
    }
    if (own && n > 0)
        h->pos += (uint64_t)n;
    return n;
}

/* RLIMIT_FSIZE, as write(2): the bytes of n that may be put at offset, or -EFBIG and SIGXFSZ: none */
int64_t size_limit(struct vfs *vfs, uint64_t offset, uint64_t n)
{
    struct afw_ctl *ctl = vfs->vm->ctl;
    uint64_t limit = ctl ? ctl->rlimit[2 * RLIMIT_FSIZE] : UINT64_MAX;
    if (limit == UINT64_MAX || n <= (offset < limit ? limit - offset : 0))
        return (int64_t)n;
    if (offset < limit)
        return (int64_t)(limit - offset);
    ctl->sigpending |= 1ull << (SIGXFSZ - 1);
    return -EFBIG;
}

/* The same of a size that a file of `now` bytes is to have */
static int size_may_be(struct vfs *vfs, uint64_t now, uint64_t size)
{
    return size > now && size_limit(vfs, size - 1, 1) < 0 ? -EFBIG : 0;
}

static int64_t host_write(const struct handle *h, const struct iovec *iov, uint64_t offset)
{
    int append = offset == UINT64_MAX;
    ssize_t n = pwritev2(h->fd, iov, 1, append ? 0 : (off_t)offset, append ? RWF_APPEND : 0);
    return n < 0 ? -errno : n;
}

/* What a file grows by when something is put at offset, apart from that. It can be filled through a mapping, unseen. */
static int hole_before(const struct handle *h, uint64_t offset, uint64_t *gap)
{
    struct stat st;
    if (fstat(h->fd, &st) < 0)
        return -errno;
    *gap = offset > (uint64_t)st.st_size ? offset - (uint64_t)st.st_size : 0;
    return 0;
}

/* n bytes of ours into a host file, as far as the rules let them; offset ~0: where it ends */
int64_t host_put(struct vfs *vfs, struct handle *h, void *data, uint64_t n, uint64_t offset)
{
    struct iovec iov = {data, n};
    uint64_t gap = 0, granted;
    int r;
    if (!vfs->vm->rules)
        return host_write(h, &iov, offset);
    if (offset != UINT64_MAX && (r = hole_before(h, offset, &gap)) < 0)
        return r;
    granted = rules_take_bytes(vfs->vm->rules, gap + n);
    iov.iov_len = granted > gap ? granted - gap : 0;
    int64_t done = iov.iov_len ? host_write(h, &iov, offset) : -EDQUOT;
    rules_give_back(vfs->vm->rules, granted - (done > 0 ? gap + (uint64_t)done : 0));
    return done;
}

static int64_t write_at(struct vfs *vfs, const uint64_t a[6])
{
    struct handle *h;
    uint64_t len = a[2] < VFS_IO_MAX ? a[2] : VFS_IO_MAX, offset = a[3];
    int r = file_handle(vfs, a[0], HANDLE_WRITE, &h), append = offset == UINT64_MAX;
    if (r < 0)
        return r;
    if (!append && (int64_t)offset < 0)
        return -EINVAL;
    if (!len)
        return 0;
    struct stat st;
    int limited = vfs->vm->ctl && vfs->vm->ctl->rlimit[2 * RLIMIT_FSIZE] != UINT64_MAX;
    if ((append && (h->kind == BACK_TMP || limited)) && (r = handle_stat(vfs, h, &st)) < 0)
        return r;
    if (limited) {
        int64_t may = size_limit(vfs, append ? (uint64_t)st.st_size : offset, len);
        if (may < 0)
            return may;
        len = (uint64_t)may;
    }
    if (h->kind == BACK_TMP)
        return tmpfs_write(vfs, h->tmp, a[1], len, append ? (uint64_t)st.st_size : offset);
    if (h->kind != BACK_HOST)
        return -EBADF;
    void *data = guest_range(vfs->vm, a[1], len);
    return data ? host_put(vfs, h, data, len, offset) : -EFAULT;
}

static int64_t op_pwrite(struct vfs *vfs, const uint64_t a[6])
{
    struct stat st;
    int64_t n = write_at(vfs, a);
    if (n > 0 && a[3] == UINT64_MAX && a[4]) {       /* (on the host others may have written since; nobody can tell) */
        uint64_t end = handle_stat(vfs, handle_get(vfs, a[0]), &st) < 0 ? 0 : (uint64_t)st.st_size;
        int r = guest_write(vfs->vm, a[4], &end, sizeof end);
        return r < 0 ? r : n;
    }
    return n;
}

/* Before `bytes` more of a host file may take room: all of them are granted, or none */
static int take_room(struct vfs *vfs, uint64_t bytes)
{
    uint64_t granted = vfs->vm->rules ? rules_take_bytes(vfs->vm->rules, bytes) : bytes;
    if (granted == bytes)
        return 0;
    rules_give_back(vfs->vm->rules, granted);
    return -EDQUOT;
}

/* Longer: what is added can be written through a mapping, unseen. */
static int host_truncate(struct vfs *vfs, struct handle *h, uint64_t size)
{
    uint64_t more = 0;
    int r = vfs->vm->rules ? hole_before(h, size, &more) : 0;
    if (!r)
        r = take_room(vfs, more);
    if (!r && ftruncate(h->fd, (off_t)size) < 0) {
        r = -errno;
        if (vfs->vm->rules)
            rules_give_back(vfs->vm->rules, more);
    }
    return r;
}

static int64_t op_fstat(struct vfs *vfs, const uint64_t a[6])
{
    struct stat st;
    struct handle *h = handle_get(vfs, a[0]);
    int r = h ? handle_stat(vfs, h, &st) : -EBADF;
    if (!r && h->kind == BACK_HOST)
        kept_seen(vfs, &st);
    return r < 0 ? r : guest_write(vfs->vm, a[1], &st, sizeof st);
}

static int64_t op_truncate(struct vfs *vfs, const uint64_t a[6])
{
    struct handle *h;
    if (!a[0] && a[3]) {             /* a path */
        int64_t n = open_by_path(vfs, a + 2, O_WRONLY);
        if (n < 0)
            return n == -ENXIO ? -EINVAL : n;        /* a socket's or a pipe's name */
        const uint64_t by_handle[6] = {(uint64_t)n, a[1]};
        int64_t r = op_truncate(vfs, by_handle);
        handle_end(vfs, (uint64_t)n);
        return r;
    }
    if (file_handle(vfs, a[0], 0, &h) < 0)
        return handle_get(vfs, a[0]) && !(handle_get(vfs, a[0])->access & HANDLE_PATH) ? -EINVAL : -EBADF;
    if (!(h->access & HANDLE_WRITE) || (int64_t)a[1] < 0)
        return -EINVAL;
    struct stat st;
    int r = handle_stat(vfs, h, &st);
    if (!r)
        r = size_may_be(vfs, (uint64_t)st.st_size, a[1]);
    if (r < 0)
        return r;
    if (h->kind == BACK_TMP)
        return tmpfs_truncate(vfs->tmpfs, h->tmp, a[1]);
    if (h->kind != BACK_HOST)
        return -EINVAL;
    return host_truncate(vfs, h, a[1]);
}

static int64_t op_fsync(struct vfs *vfs, const uint64_t a[6])
{
    struct handle *h = handle_get(vfs, a[0]);
    if (!h || (h->access & HANDLE_PATH))
        return -EBADF;
    if (h->kind != BACK_HOST || handle_writable(h) < 0)
        return 0;
    return fsync(h->fd) < 0 ? -errno : 0;
}

static int64_t op_statfs(struct vfs *vfs, const uint64_t a[6])
{
    struct statfs fs;
    if (!a[0] && a[3]) {             /* a path */
        int64_t n = open_by_path(vfs, a + 2, O_PATH);
        if (n < 0)
            return n;
        const uint64_t by_handle[6] = {(uint64_t)n, a[1]};
        int64_t r = op_statfs(vfs, by_handle);
        handle_end(vfs, (uint64_t)n);
        return r;
    }
    struct handle *h = handle_get(vfs, a[0]);
    if (!h)
        return -EBADF;
    memset(&fs, 0, sizeof fs);
    if (h->kind == BACK_HOST) {
        if (fstatfs(h->fd, &fs) < 0)
            return -errno;
        if (handle_writable(h) < 0)
            fs.f_flags |= 1;         /* ST_RDONLY */
    } else if (h->kind == BACK_TMP) {
        tmpfs_statfs(vfs->tmpfs, &fs);
        if (h->rule)
            fs.f_flags |= 1;
    } else {
        fs.f_type = PROC_MAGIC;
        fs.f_bsize = fs.f_frsize = 4096;
        fs.f_namelen = NAME_MAX;
        fs.f_flags = 1;
    }
    return guest_write(vfs->vm, a[1], &fs, sizeof fs);
}

static int64_t op_flock(struct vfs *vfs, const uint64_t a[6])
{
    struct handle *h = handle_get(vfs, a[0]);
    int op = (int)a[1] & ~LOCK_NB;
    if (!h || (h->access & HANDLE_PATH))
        return -EBADF;
    if (op != LOCK_SH && op != LOCK_EX && op != LOCK_UN)
        return -EINVAL;
    return lock_whole(vfs, (uint32_t)a[0], h, op);
}

static int64_t op_fchmod(struct vfs *vfs, const uint64_t a[6])
{
    struct handle *h = handle_get(vfs, a[0]);
    if (!h || (h->access & HANDLE_PATH))
        return -EBADF;
    if (handle_writable(h) < 0)
        return -EROFS;
    if (h->kind == BACK_TMP)
        return tmpfs_chmod(h->tmp, (uint32_t)a[1]);
    return fchmod(h->fd, (mode_t)a[1] & 01777) < 0 ? -errno : 0;     /* no set-id bits: the host would honour them */
}

static int64_t op_fallocate(struct vfs *vfs, const uint64_t a[6])
{
    struct handle *h;
    int r = file_handle(vfs, a[0], HANDLE_WRITE, &h);
    if (r < 0)
        return r;
    if ((int64_t)a[2] < 0 || (int64_t)a[3] <= 0)
        return -EINVAL;
    if (a[1] & ~(uint64_t)FALLOC_KNOWN)
        return -EOPNOTSUPP;
    struct stat st;
    if ((r = handle_stat(vfs, h, &st)) < 0)
        return r;
    if (!(a[1] & (h->kind == BACK_TMP ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_KEEP_SIZE)) && a[3] <= INT64_MAX - a[2] && (r = size_may_be(vfs, (uint64_t)st.st_size, a[2] + a[3])) < 0)
        return r;
    if (h->kind == BACK_TMP)
        return tmpfs_fallocate(vfs->tmpfs, h->tmp, (int)a[1], a[2], a[3]);
    if (h->kind != BACK_HOST)
        return -EBADF;
    uint64_t more = a[1] & FALLOC_FL_PUNCH_HOLE ? 0 : a[3], gap = 0;
    if (vfs->vm->rules && !(a[1] & FALLOC_FL_KEEP_SIZE) && (r = hole_before(h, a[2], &gap)) < 0)
        return r;
    more += gap;
    r = take_room(vfs, more);
    if (!r && fallocate(h->fd, (int)a[1], (off_t)a[2], (off_t)a[3]) < 0) {
        r = -errno;
        if (vfs->vm->rules && r != -ENOSPC && r != -EDQUOT && r != -EINTR && r != -EIO)      /* those may come half way */
            rules_give_back(vfs->vm->rules, more);
    }
    return r;
}

static int64_t op_mapfile(struct vfs *vfs, const uint64_t a[6])
{
    struct handle *h;
    uint64_t addr = a[1], len = a[2], offset = a[5];
    int prot = (int)a[3], shared;
    struct handle *dir = handle_get(vfs, a[0]);
    int r = file_handle(vfs, a[0], 0, &h);
    if (r < 0)
        return dir && S_ISDIR(dir->mode) ? -ENODEV : r;
    if (a[3] & ~(uint64_t)(PROT_READ | PROT_WRITE | PROT_EXEC) || a[4] - 1 > MAP_SHARED_VALIDATE - 1)
        return -EINVAL;
    shared = a[4] != MAP_PRIVATE;
    if (!len || (addr | offset) & 4095 || len > AFW_SPACE_END || (int64_t)offset < 0 || offset > (uint64_t)INT64_MAX - len)
        return -EINVAL;
    if (!(h->access & HANDLE_READ) || (shared && (prot & PROT_WRITE) && !(h->access & HANDLE_WRITE)))
        return -EACCES;
    if (!S_ISREG(h->mode) || (h->kind != BACK_HOST && h->kind != BACK_TMP))
        return -ENODEV;
    int fd = h->kind == BACK_TMP ? tmpfs_host_fd(vfs->tmpfs, h->tmp) : h->fd;
    vfs->kept.off |= shared && h->kind == BACK_HOST && !(h->back->flags & AFW_MOUNT_SYSTEM);
    enum map_how how = !shared ? MAP_OWN : h->access & HANDLE_WRITE ? MAP_BOTH : MAP_READ;
    return fd < 0 ? fd : memory_map_file(vfs->vm, fd, addr, len, prot, how, offset, h->path, h->kind == BACK_TMP ? h->tmp : 0);
}

static int64_t perform(struct vfs *vfs, const struct afw_sqe *sqe)
{
    const uint64_t *a = sqe->a;
    struct handle *h;
    switch (sqe->op) {
    case AFW_OP_CLOSE:
        h = a[1] ? handle_get(vfs, a[0]) : 0;
        if (h)
            locks_closed(vfs, (uint32_t)a[0], h, 0);
        return h ? 0 : handle_close(vfs, a[0]);
    case AFW_OP_PREAD:
        return op_pread(vfs, a);
    case AFW_OP_PWRITE:
        return op_pwrite(vfs, a);
    case AFW_OP_FSTAT:
        return op_fstat(vfs, a);
    case AFW_OP_READDIR:
        h = handle_get(vfs, a[0]);
        return h ? handle_readdir(vfs, h, a[1], a[2], a[3], a[4]) : -EBADF;
    case AFW_OP_TRUNCATE:
        return op_truncate(vfs, a);
    case AFW_OP_FSYNC:
        return op_fsync(vfs, a);
    case AFW_OP_STATFS:
        return op_statfs(vfs, a);
    case AFW_OP_FLOCK:
        return op_flock(vfs, a);
    case AFW_OP_FCHMOD:
        return op_fchmod(vfs, a);
    case AFW_OP_FALLOCATE:
        return op_fallocate(vfs, a);
    case AFW_OP_MAPFILE:
        return op_mapfile(vfs, a);
    case AFW_OP_LOCK:
        return op_lock(vfs, a);
    case AFW_OP_SEEK:
        return op_seek(vfs, a);
    case AFW_OP_COPY:
        return op_copy(vfs, a);
    default:
        return path_op(vfs, sqe);
    }
}

int64_t file_op(struct vm *vm, const struct afw_sqe *sqe)
{
    vm->vfs->call = (uint32_t)sqe->reserved;
    int64_t r = perform(vm->vfs, sqe);
    kept_news(vm->vfs);
    return r == -EAGAIN && sqe->reserved & CALL_BLOCKS ? -AFW_AGAIN : r;
}
