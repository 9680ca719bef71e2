/* What files of the private tmpfs hold: heap or memfd, and their quota. See tmpfs.h. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
#include <linux/falloc.h>
#include "tmpfs.h"

#define HEAP_MAX 65536               /* larger files go into a memfd */

/* To be told to who measures memory: the kernel counts memfds as nobody's */
static void outside(struct tmpfs *fs, uint64_t less, uint64_t more)
{
    struct vm *vm = fs->vfs->vm;
    fs->outside += more - less;
    if (vm && vm->shm)
        __atomic_store_n(&vm->shm->tmp_bytes, fs->outside, __ATOMIC_RELAXED);
}

static void settle(struct tmpfs *fs, struct tnode *n, uint64_t size)
{
    fs->bytes_used -= tmpfs_charge(n->size);
    fs->bytes_used += tmpfs_charge(size);
    if (n->fd >= 0)
        outside(fs, tmpfs_charge(n->size), tmpfs_charge(size));
    n->size = size;
}

static void touch(struct tnode *n)
{
    clock_gettime(CLOCK_REALTIME, &n->mtime);
    n->ctime = n->mtime;
    n->mode &= ~(uint32_t)(S_ISUID | (n->mode & S_IXGRP ? S_ISGID : 0));     /* what was changed is not who made it any more (write(2)) */
}

void tmpdata_free(struct tmpfs *fs, struct tnode *n)
{
    settle(fs, n, 0);
    free(n->heap);
    n->heap = 0;
    n->heap_size = 0;
    if (n->fd >= 0) {
        close(n->fd);
        vfs_fd_drop(fs->vfs);
    }
    n->fd = -1;
}

static int zeros(const uint8_t *p, size_t n)
{
    return !*p && !memcmp(p, p + 1, n - 1);
}

#define STEP 65536
/* All of it, zeros left out: the file has holes there */
static int put(int fd, const uint8_t *p, uint64_t n, uint64_t at)
{
    for (uint64_t done = 0; done < n;) {
        uint64_t piece = n - done < 4096 ? n - done : 4096;
        if (zeros(p + done, piece)) {
            done += piece;
            continue;
        }
        while (done + piece < n && piece < STEP && !zeros(p + done + piece, n - done - piece < 4096 ? n - done - piece : 4096))
            piece += n - done - piece < 4096 ? n - done - piece : 4096;
        ssize_t put = pwrite(fd, p + done, piece, (off_t)(at + done));
        if (put <= 0)
            return put < 0 ? -errno : -EIO;
        done += (uint64_t)put;
    }
    return 0;
}

static int to_memfd(struct tmpfs *fs, struct tnode *n)
{
    int r = vfs_fd_take(fs->vfs);
    if (r < 0)
        return r;
    int fd = memfd_create("tmp", MFD_CLOEXEC);
    if (fd < 0)
        r = -errno;
    else if (n->size && (ftruncate(fd, (off_t)n->size) < 0 || put(fd, n->heap, n->size, 0)))
        r = -ENOMEM;
    if (r < 0) {
        if (fd >= 0)
            close(fd);
        vfs_fd_drop(fs->vfs);
        return r;
    }
    free(n->heap);
    n->heap = 0;
    n->heap_size = 0;
    n->fd = fd;
    outside(fs, 0, tmpfs_charge(n->size));
    return 0;
}

/* Room for bytes up to end; the quota was asked. */
static int storage(struct tmpfs *fs, struct tnode *n, uint64_t end)
{
    if (n->fd >= 0 || end <= n->heap_size)
        return 0;
    if (end > HEAP_MAX && !to_memfd(fs, n))
        return 0;
    uint64_t want = end > HEAP_MAX ? end + end / 8 : 64;
    while (want < end)
        want *= 2;
    uint8_t *grown = realloc(n->heap, want);
    if (!grown)
        return -ENOSPC;
    memset(grown + n->heap_size, 0, want - n->heap_size);
    n->heap = grown;
    n->heap_size = want;
    return 0;
}

/* What is charged is the size: the heap must not stay much larger. What lies behind the size is zero */
static void shrink(struct tnode *n, uint64_t size)
{
    uint64_t want = 64;
    while (want < size)
        want *= 2;
    if (!size) {
        free(n->heap);
        n->heap = 0;
        n->heap_size = 0;
    } else if (want < n->heap_size) {
        uint8_t *less = realloc(n->heap, want);
        if (less) {
            n->heap = less;
            n->heap_size = want;
        }
    }
}

/* The largest size that n may take */
static uint64_t size_max(const struct tmpfs *fs, const struct tnode *n)
{
    return tmpfs_charge(n->size) + ((fs->bytes - fs->bytes_used) & ~(uint64_t)4095);
}

int64_t tmpfs_read(struct vfs *vfs, struct tnode *n, uint64_t gva, uint64_t len, uint64_t offset)
{
    if (offset >= n->size)
        return 0;
    if (len > n->size - offset)
        len = n->size - offset;
    clock_gettime(CLOCK_REALTIME, &n->atime);
    if (n->fd < 0) {
        if (!guest_write(vfs->vm, gva, n->heap + offset, len))
            return (int64_t)len;
        uint64_t done = 0, piece;    /* memory ends somewhere: up to there */
        for (; done < len; done += piece) {
            piece = 4096 - (gva + done) % 4096;
            piece = piece < len - done ? piece : len - done;
            if (guest_write(vfs->vm, gva + done, n->heap + offset + done, piece))
                break;
        }
        return done ? (int64_t)done : -EFAULT;
    }
    struct iovec iov = {guest_range(vfs->vm, gva, len), len};
    if (!iov.iov_base)
        return -EFAULT;
    ssize_t got = preadv(n->fd, &iov, 1, (off_t)offset);
    return got < 0 ? -errno : got;
}

/* Makes room for `len` bytes there, or for as many as the file may have. -> how many */
static int64_t room_at(struct tmpfs *fs, struct tnode *n, uint64_t len, uint64_t offset)
{
    uint64_t max = size_max(fs, n);
    if (offset >= max)
        return offset >= INT64_MAX - VFS_IO_MAX ? -EFBIG : -ENOSPC;
    if (len > max - offset)
        len = max - offset;
    int r = storage(fs, n, offset + len);
    return r < 0 ? r : (int64_t)len;
}

int64_t tmpfs_write(struct vfs *vfs, struct tnode *n, uint64_t gva, uint64_t len, uint64_t offset)
{
    struct tmpfs *fs = vfs->tmpfs;
    if (!len)
        return 0;
    int64_t done = room_at(fs, n, len, offset);
    if (done < 0)
        return done;
    len = (uint64_t)done;
    if (n->fd < 0) {
        if (guest_read(vfs->vm, n->heap + offset, gva, len)) {       /* memory ends somewhere: up to there */
            uint64_t got = 0, piece;
            for (; got < len; got += piece) {
                piece = 4096 - (gva + got) % 4096;
                piece = piece < len - got ? piece : len - got;
                if (guest_read(vfs->vm, n->heap + offset + got, gva + got, piece))
                    break;
            }
            uint64_t end = offset + got > n->size ? offset + got : n->size;
            if (offset + len > end)  /* what a partial copy left behind the end */
                memset(n->heap + end, 0, offset + len - end);
            shrink(n, got ? end : n->size);
            if (!got)
                return -EFAULT;
            done = (int64_t)got;
        }
    } else {
        struct iovec iov = {guest_range(vfs->vm, gva, len), len};
        if (!iov.iov_base)
            return -EFAULT;
        done = pwritev(n->fd, &iov, 1, (off_t)offset);
        if (done < 0)
            return -errno;
    }
    if (done && offset + (uint64_t)done > n->size)
        settle(fs, n, offset + (uint64_t)done);
    touch(n);
    return done;
}

int64_t tmpfs_get(struct tnode *n, void *out, uint64_t len, uint64_t offset)
{
    if (offset >= n->size)
        return 0;
    if (len > n->size - offset)
        len = n->size - offset;
    clock_gettime(CLOCK_REALTIME, &n->atime);
    if (n->fd < 0)
        memcpy(out, n->heap + offset, len);
    ssize_t got = n->fd < 0 ? (ssize_t)len : pread(n->fd, out, len, (off_t)offset);
    return got < 0 ? -errno : got;
}

int64_t tmpfs_put(struct tmpfs *fs, struct tnode *n, const void *data, uint64_t len, uint64_t offset)
{
    int64_t room = room_at(fs, n, len, offset);
    if (room < 0)
        return room;
    len = (uint64_t)room;
    if (n->fd < 0)
        memcpy(n->heap + offset, data, len);
    ssize_t done = n->fd < 0 ? (ssize_t)len : pwrite(n->fd, data, len, (off_t)offset);
    if (done < 0)
        return -errno;
    if (offset + (uint64_t)done > n->size)
        settle(fs, n, offset + (uint64_t)done);
    touch(n);
    return done;
}

/* In the heap a page of zeros is a hole: there is no telling whether somebody wrote them. */
int64_t tmpfs_seek(struct tnode *n, int64_t offset, int whence)
{
    if (n->fd >= 0) {
        off_t at = lseek(n->fd, offset, whence);
        return at < 0 ? -errno : at;
    }
    for (uint64_t at = (uint64_t)offset, next; at < n->size; at = next) {
        uint64_t page = at & ~(uint64_t)4095;
        next = page + 4096 < n->size ? page + 4096 : n->size;
        if (zeros(n->heap + page, next - page) == (whence == SEEK_HOLE))
            return (int64_t)at;
    }
    return whence == SEEK_HOLE ? (int64_t)n->size : -ENXIO;
}

int tmpfs_truncate(struct tmpfs *fs, struct tnode *n, uint64_t size)
{
    if (size > size_max(fs, n))
        return size > INT64_MAX ? -EINVAL : -ENOSPC;
    if (size > n->size) {
        int r = storage(fs, n, size);
        if (r < 0)
            return r;
    }
    if (n->fd >= 0) {
        if (ftruncate(n->fd, (off_t)size) < 0)
            return -errno;
    } else if (size < n->size) {
        memset(n->heap + size, 0, n->size - size);
        shrink(n, size);
    }
    settle(fs, n, size);
    touch(n);
    return 0;
}

static int zero_range(struct tnode *n, uint64_t offset, uint64_t len)
{
    if (offset >= n->size)
        return 0;
    if (len > n->size - offset)
        len = n->size - offset;
    if (n->fd < 0)
        memset(n->heap + offset, 0, len);
    else if (fallocate(n->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)len) < 0)
        return -errno;
    touch(n);
    return 0;
}

int tmpfs_fallocate(struct tmpfs *fs, struct tnode *n, int mode, uint64_t offset, uint64_t len)
{
    uint64_t end = offset + len;     /* both at most INT64_MAX */
    int keep = mode & FALLOC_FL_KEEP_SIZE, r = 0;
    if (!len || end > INT64_MAX)
        return len ? -EFBIG : -EINVAL;
    mode &= ~FALLOC_FL_KEEP_SIZE;
    if (mode == FALLOC_FL_PUNCH_HOLE && keep)
        return zero_range(n, offset, len);
    if (mode == FALLOC_FL_ZERO_RANGE)
        r = zero_range(n, offset, len);
    else if (mode)
        return -EOPNOTSUPP;
    if (!r && !keep && end > n->size)
        r = tmpfs_truncate(fs, n, end);
    if (!r)
        touch(n);
    return r;
}

int tmpfs_host_fd(struct tmpfs *fs, struct tnode *n)
{
    int r = n->fd < 0 ? to_memfd(fs, n) : 0;
    return r < 0 ? r : n->fd;
}

/* ---- to a file and back: savefs.c ---- */

static int get(int fd, uint8_t *p, uint64_t n, uint64_t at)
{
    while (n) {
        ssize_t got = pread(fd, p, n, (off_t)at);
        if (got <= 0)
            return got < 0 ? -errno : -EIO;
        p += got;
        at += (uint64_t)got;
        n -= (uint64_t)got;
    }
    return 0;
}

static int copy(int from, uint64_t offset, uint64_t size, int to, uint64_t at)
{
    uint8_t *buffer = malloc(STEP);
    int r = buffer ? 0 : -ENOMEM;
    for (uint64_t done = 0; !r && done < size; done += STEP) {
        uint64_t n = size - done < STEP ? size - done : STEP;
        r = get(from, buffer, n, offset + done);
        if (!r)
            r = put(to, buffer, n, at + done);
    }
    free(buffer);
    return r;
}

int tmpdata_copy_out(const struct tnode *n, uint64_t offset, uint64_t size, int fd, uint64_t at)
{
    return n->fd >= 0 ? copy(n->fd, offset, size, fd, at) : put(fd, n->heap + offset, size, at);
}

int tmpdata_copy_in(struct tmpfs *fs, struct tnode *n, uint64_t size, int fd, uint64_t at)
{
    int r = tmpfs_truncate(fs, n, size);
    if (!r)
        r = n->fd >= 0 ? copy(fd, at, size, n->fd, 0) : get(fd, n->heap, size, at);
    return r;
}
