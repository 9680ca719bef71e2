/* A VM's open files: numbers checked at each use, host descriptors counted. See vfs.h. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "vfs.h"

/* Handle n is handle[n - 1]: 0 is none, so that a forgotten number is not somebody's file */

/* Of the cell's descriptors one half is dealt out, so that no VM can take what another needs; the other is a common pool. */
#define RESERVE 512                  /* for what is not the guests': VMs, vCPUs, mounts */
static uint32_t share;
static _Atomic int64_t pool;

void vfs_fd_limit(uint64_t total)
{
    uint64_t half = total > RESERVE ? (total - RESERVE) / 2 : 0;
    share = (uint32_t)(half / AFW_CELL_VMS) < 4 ? 4 : (uint32_t)(half / AFW_CELL_VMS);
    pool = (int64_t)half;
}

int vfs_fd_take(struct vfs *vfs)
{
    if (vfs->host_fds >= VFS_FDS)
        return -EMFILE;
    if (vfs->host_fds >= share && atomic_fetch_sub(&pool, 1) <= 0) {
        atomic_fetch_add(&pool, 1);
        return -ENFILE;
    }
    vfs->host_fds++;
    return 0;
}

void vfs_fd_drop(struct vfs *vfs)
{
    if (vfs->host_fds-- > share)
        atomic_fetch_add(&pool, 1);
}

static int grow(struct vfs *vfs)
{
    if (vfs->slots >= VFS_HANDLES)
        return -EMFILE;
    uint32_t n = vfs->slots ? vfs->slots * 2 : 16;
    struct handle **grown = realloc(vfs->handle, n * sizeof *grown);
    if (!grown)
        return -ENOMEM;
    memset(grown + vfs->slots, 0, (n - vfs->slots) * sizeof *grown);
    vfs->handle = grown;
    vfs->slots = n;
    return 0;
}

static int slot_free(struct vfs *vfs, uint32_t *slot)
{
    for (uint32_t i = 0; vfs->open < vfs->slots && i < vfs->slots; i++)
        if (!vfs->handle[i]) {
            *slot = i;
            return 0;
        }
    *slot = vfs->slots;
    return grow(vfs);
}

int64_t handle_new(struct vfs *vfs, const struct place *p, int fd, uint8_t access, struct handle **out)
{
    uint32_t slot = 0;
    size_t len = strlen(p->path) + 1;
    struct handle *h = 0;
    int r = slot_free(vfs, &slot);
    if (!r && fd >= 0)
        r = vfs_fd_take(vfs);
    if (!r) {
        h = calloc(1, sizeof *h + len);
        if (!h) {
            r = -ENOMEM;
            if (fd >= 0)
                vfs_fd_drop(vfs);
        }
    }
    if (r < 0) {
        if (fd >= 0)
            close(fd);
        return r;
    }
    h->kind = p->kind;
    h->access = access;
    h->fd = fd;
    h->lock_fd = -1;
    h->node = p->node;
    h->back = p->back;
    h->mode = p->st.st_mode;
    h->rule = p->rule;
    h->tmp = p->kind == BACK_TMP ? p->tmp : 0;
    if (h->tmp)
        tmpfs_ref(h->tmp);
    if (p->kind == BACK_SYNTH || p->kind == BACK_PROC)
        h->st = p->st;
    if (p->kind == BACK_SYNTH && p->node && p->node->kind == NODE_FILE) {
        h->data = p->node->data;
        h->size = p->node->size;
    }
    memcpy(h->path, p->path, len);
    vfs->handle[slot] = h;
    vfs->open++;
    if (out)
        *out = h;
    return (int64_t)slot + 1;
}

int handle_at(struct vfs *vfs, uint32_t number, const char *path, struct handle **out)
{
    int r = 0;
    while (!r && number > vfs->slots)
        r = grow(vfs);
    if (r < 0)
        return r;
    if (vfs->handle[number - 1])
        return -EEXIST;
    struct handle *h = calloc(1, sizeof *h + strlen(path) + 1);
    if (!h)
        return -ENOMEM;
    strcpy(h->path, path);
    h->fd = h->lock_fd = -1;
    vfs->handle[number - 1] = *out = h;
    vfs->open++;
    return 0;
}

static struct handle *slot(struct vfs *vfs, uint64_t number)
{
    return number - 1 < vfs->slots ? vfs->handle[number - 1] : 0;
}

struct handle *handle_get(struct vfs *vfs, uint64_t number)
{
    struct handle *h = slot(vfs, number);
    return h && !h->lost ? h : 0;
}

int handle_close(struct vfs *vfs, uint64_t number)
{
    struct handle *h = slot(vfs, number);
    if (h)
        locks_closed(vfs, (uint32_t)number, h, 1);
    return handle_end(vfs, number);
}

int handle_end(struct vfs *vfs, uint64_t number)
{
    struct handle *h = slot(vfs, number);
    if (!h)
        return -EBADF;
    locks_handle_gone(vfs, h);
    if (h->fd >= 0) {
        close(h->fd);
        vfs_fd_drop(vfs);
    }
    if (h->tmp)
        tmpfs_unref(vfs->tmpfs, h->tmp);
    if (h->owned) {
        vfs->synth_bytes -= h->size;
        free(h->owned);
    }
    free(h);
    vfs->handle[number - 1] = 0;
    vfs->open--;
    return 0;
}

void handles_free(struct vfs *vfs)
{
    for (uint32_t i = 0; i < vfs->slots; i++)
        if (vfs->handle[i])
            handle_close(vfs, i + 1);
    locks_free(vfs);
    free(vfs->handle);
    vfs->handle = 0;
    vfs->slots = 0;
}

int handle_writable(const struct handle *h)
{
    if (h->rule)
        return -EROFS;
    return h->kind == BACK_TMP || (h->kind == BACK_HOST && h->back->flags & AFW_MOUNT_WRITABLE) ? 0 : -EROFS;
}

int handle_stat(struct vfs *vfs, struct handle *h, struct stat *st)
{
    (void)vfs;
    switch (h->kind) {
    case BACK_HOST:
        if (fstat(h->fd, st) < 0)
            return -errno;
        host_stat(h->back, st);
        return 0;
    case BACK_TMP:
        tmpfs_stat(h->tmp, st);
        return 0;
    default:
        *st = h->st;
        return 0;
    }
}

int handle_base(struct vfs *vfs, uint64_t base, const char **path)
{
    if ((uint32_t)base == AFW_CWD) {
        *path = vfs->cwd;
        return 0;
    }
    struct handle *h = handle_get(vfs, base);
    if (!h)
        return -EBADF;
    if (!S_ISDIR(h->mode))
        return -ENOTDIR;
    *path = h->path;
    return 0;
}

/* If path is from or below it: what it is called now, malloc()ed or in place */
static int renamed(const char *path, const char *from, const char *to, char out[PATH_MAX])
{
    size_t n = strlen(from), k = strlen(to);
    if (strncmp(path, from, n) || (path[n] && path[n] != '/') || k + strlen(path + n) >= PATH_MAX)
        return 0;
    memcpy(out, to, k);
    strcpy(out + k, path + n);
    return 1;
}

void handles_renamed(struct vfs *vfs, const char *from, const char *to)
{
    char name[PATH_MAX];
    if (renamed(vfs->cwd, from, to, name))
        strcpy(vfs->cwd, name);
    for (uint32_t i = 0; i < vfs->slots; i++) {
        struct handle *h = vfs->handle[i];
        if (!h || !renamed(h->path, from, to, name))
            continue;
        struct handle *moved = realloc(h, sizeof *h + strlen(name) + 1);
        if (!moved)
            continue;                /* names the old place: opening below it fails, nothing worse */
        strcpy(moved->path, name);
        vfs->handle[i] = moved;
    }
}
