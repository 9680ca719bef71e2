/* Ring operations that look for data in a file and move it to another one: lseek(2) with SEEK_DATA, copy_file_range(2), sendfile(2). See vfs.h. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "vfs.h"

#define PIECE 0x40000

/* Open for that, and a file */
static int file_of(struct vfs *vfs, uint64_t number, uint8_t access, struct handle **out)
{
    *out = handle_get(vfs, number);
    if (!*out || !((*out)->access & access))
        return -EBADF;
    return S_ISDIR((*out)->mode) ? -EISDIR : S_ISREG((*out)->mode) ? 0 : -EINVAL;
}

int64_t op_seek(struct vfs *vfs, const uint64_t a[6])
{
    struct handle *h = handle_get(vfs, a[0]);
    struct stat st;
    int whence = (int)a[2], r = h && !(h->access & HANDLE_PATH) ? handle_stat(vfs, h, &st) : -EBADF;
    if (r < 0)
        return r;
    if (a[2] != SEEK_END && a[2] != SEEK_DATA && a[2] != SEEK_HOLE)
        return -EINVAL;
    if (whence == SEEK_END)
        return S_ISREG(st.st_mode) ? st.st_size : -EISDIR;
    if ((int64_t)a[1] < 0 || (int64_t)a[1] >= st.st_size)
        return -ENXIO;
    if (h->kind == BACK_TMP && S_ISREG(st.st_mode))
        return tmpfs_seek(h->tmp, (int64_t)a[1], whence);
    if (h->kind == BACK_HOST) {      /* (nobody goes by the place that this leaves: fileops.c) */
        off_t at = S_ISREG(st.st_mode) ? lseek(h->fd, (off_t)a[1], whence) : -1;
        if (at >= 0 || (S_ISREG(st.st_mode) && errno == ENXIO))
            return at >= 0 ? at : -ENXIO;
    }
    return whence == SEEK_DATA ? (int64_t)a[1] : st.st_size;
}

static int64_t piece_in(struct handle *h, void *p, uint64_t n, uint64_t at)
{
    if (h->kind == BACK_HOST) {
        ssize_t got = pread(h->fd, p, n, (off_t)at);
        return got < 0 ? -errno : got;
    }
    if (h->kind == BACK_TMP)
        return tmpfs_get(h->tmp, p, n, at);
    uint64_t left = at < h->size ? h->size - at : 0;
    n = n < left ? n : left;
    if (n)
        memcpy(p, h->data + at, n);
    return (int64_t)n;
}

static int64_t through_memory(struct vfs *vfs, struct handle *from, uint64_t at, struct handle *to, uint64_t to_at, uint64_t n)
{
    uint64_t done = 0, size = n < PIECE ? n : PIECE;
    uint8_t *buffer = malloc(size ? size : 1);
    int64_t got = buffer ? 0 : -ENOMEM, put = 0;
    while (buffer && done < n) {
        got = piece_in(from, buffer, n - done < size ? n - done : size, at + done);
        if (got <= 0)
            break;
        put = to->kind == BACK_TMP ? tmpfs_put(vfs->tmpfs, to->tmp, buffer, (uint64_t)got, to_at + done) : host_put(vfs, to, buffer, (uint64_t)got, to_at + done);
        done += put > 0 ? (uint64_t)put : 0;
        if (put < got)
            break;
    }
    free(buffer);
    return done ? (int64_t)done : got < 0 ? got : put < 0 ? put : 0;
}

int64_t op_copy(struct vfs *vfs, const uint64_t a[6])
{
    struct handle *from, *to;
    struct stat is, was;
    uint64_t at = a[1], to_at = a[3], n = a[4] < VFS_IO_MAX ? a[4] : VFS_IO_MAX;
    int ranges = (int)a[5], r = file_of(vfs, a[0], HANDLE_READ, &from);
    if (r < 0)
        return r;
    r = file_of(vfs, a[2], HANDLE_WRITE, &to);
    if (!r)
        r = handle_stat(vfs, from, &is);
    if (!r)
        r = handle_stat(vfs, to, &was);
    if (r < 0)
        return r;
    if (to->kind != BACK_HOST && to->kind != BACK_TMP)
        return -EBADF;
    if (ranges && (at + a[4] < at || to_at + a[4] < to_at))          /* as generic_copy_file_checks() */
        return -EOVERFLOW;
    if ((int64_t)at < 0 || (int64_t)to_at < 0)
        return -EINVAL;
    if (ranges) {
        if (from->kind != to->kind || is.st_dev != was.st_dev)
            return -EXDEV;
        if (to_at == INT64_MAX)
            return -EFBIG;
        uint64_t left = at < (uint64_t)is.st_size ? (uint64_t)is.st_size - at : 0, all = a[4] < left ? a[4] : left;
        if (is.st_ino == was.st_ino && to_at + all > at && to_at < at + all)
            return -EINVAL;
        n = n < left ? n : left;
    } else if (n > INT64_MAX - at)
        n = INT64_MAX - at;
    n = n < INT64_MAX - to_at ? n : INT64_MAX - to_at;
    if (!n)
        return 0;
    int64_t may = size_limit(vfs, to_at, n);
    if (may < 0)
        return may;
    n = (uint64_t)may;
    if (ranges && to->kind == BACK_HOST && !vfs->vm->rules) {        /* a file system that can share blocks does */
        off_t in = (off_t)at, out = (off_t)to_at;
        ssize_t done = syscall(SYS_copy_file_range, from->fd, &in, to->fd, &out, n, 0);
        if (done >= 0 || (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP))
            return done < 0 ? -errno : done;
    }
    return through_memory(vfs, from, at, to, to_at, n);
}
