/* Ring operations that open files. Every SQE is hostile. See vfs.h. */
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "vfs.h"

#define OPEN_KEPT (O_ACCMODE | O_TRUNC | O_DIRECTORY | O_SYNC)

/* Opens what a walk found at a host path for real. The type was looked at before (no FIFO or device is opened), and is looked at again. */
int host_open_file(const struct place *p, int flags, uint32_t mode)
{
    struct stat st;
    int fd;
    if (!S_ISDIR(p->back->mode)) {   /* a single file: its descriptors are there */
        int from = (flags & O_ACCMODE) == O_RDONLY ? p->back->fd_read : p->back->fd_write;
        if (from < 0)
            return -EACCES;
        if ((flags & O_TRUNC) && ftruncate(p->back->fd_write, 0) < 0)
            return -errno;
        fd = fcntl(from, F_DUPFD_CLOEXEC, 0);
        if (fd < 0)
            return -errno;
    } else {
        fd = host_open(p->back, p->rel, (uint64_t)(unsigned)flags, mode);
        if (fd == -ELOOP)            /* a symlink came after the walk */
            return -EACCES;
        if (fd < 0)
            return fd;
    }
    if (fstat(fd, &st) < 0 || !(S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) || vfs_hidden_dev(st.st_dev) ||
        ((flags & O_ACCMODE) != O_WRONLY && !host_readable(p->back, &st))) {
        close(fd);
        return -EACCES;
    }
    return fd;
}

static int open_type(const struct place *p, int flags)
{
    int acc = flags & O_ACCMODE;
    if (S_ISLNK(p->st.st_mode))
        return flags & O_DIRECTORY ? -ENOTDIR : -ELOOP;
    if (S_ISDIR(p->st.st_mode))
        return acc != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) ? -EISDIR : 0;
    if (flags & O_DIRECTORY)
        return -ENOTDIR;
    if (S_ISREG(p->st.st_mode))      /* (or a bound socket's name: op_mknod()) */
        return p->kind == BACK_HOST && p->st.st_mode & S_ISVTX && !p->st.st_size ? -ENXIO : 0;
    if (S_ISFIFO(p->st.st_mode) && p->kind == BACK_TMP && acc == O_RDONLY && flags & O_NONBLOCK && !(flags & O_TRUNC))
        return 0;                    /* fifo(7): that succeeds though nobody writes, and nobody ever will: its end comes at once */
    /* The shim serves /dev/null and its like; a mount's FIFOs, sockets and devices are nobody's business */
    return S_ISSOCK(p->st.st_mode) || p->kind == BACK_TMP || p->kind == BACK_SYNTH ? -ENXIO : -EACCES;
}

static int open_tmp(struct vfs *vfs, struct place *p, int flags, uint32_t mode)
{
    int acc = flags & O_ACCMODE;
    struct place dir;
    const char *name;
    if (!p->exists) {
        int r = change_in(vfs, p, &dir, &name);
        if (r < 0)
            return r;
        return tmpfs_create(vfs->tmpfs, dir.tmp, name, S_IFREG | mode, 0, &p->tmp);
    }
    int r = tmpfs_may(p->tmp, acc == O_RDONLY ? R_OK : acc == O_WRONLY ? W_OK : R_OK | W_OK);
    if (!r && (flags & O_TRUNC))
        r = tmpfs_may(p->tmp, W_OK);
    return !r && (flags & O_TRUNC) ? tmpfs_truncate(vfs->tmpfs, p->tmp, 0) : r;
}

static int64_t open_tmpfile(struct vfs *vfs, struct place *p, int flags, uint32_t mode, struct handle **h)
{
    uint8_t access = (flags & O_ACCMODE) == O_RDWR ? HANDLE_READ | HANDLE_WRITE : HANDLE_WRITE;
    if ((flags & O_ACCMODE) == O_RDONLY)
        return -EINVAL;
    if (!S_ISDIR(p->st.st_mode))
        return -ENOTDIR;
    if (p->rule)
        return -EROFS;
    if (p->kind == BACK_HOST)        /* a file that nobody sees, on the host's disk: no */
        return place_writable(p) < 0 ? -EROFS : -EOPNOTSUPP;
    if (p->kind != BACK_TMP)
        return -EROFS;
    int r = tmpfs_anonymous(vfs->tmpfs, p->tmp, S_IFREG | (mode & 07777), !(flags & O_EXCL), &p->tmp);
    if (r < 0)
        return r;
    p->node = 0;
    tmpfs_stat(p->tmp, &p->st);
    tmpfs_ref(p->tmp);
    int64_t n = handle_new(vfs, p, -1, access, h);
    tmpfs_unref(vfs->tmpfs, p->tmp);
    return n;
}

static int64_t open_place(struct vfs *vfs, struct place *p, int flags, uint32_t mode, struct handle **h)
{
    int acc = flags & O_ACCMODE, writes = acc != O_RDONLY || (flags & O_TRUNC), fd = -1, r = 0;
    uint8_t access = acc == O_RDONLY ? HANDLE_READ : acc == O_WRONLY ? HANDLE_WRITE : HANDLE_READ | HANDLE_WRITE;
    if (flags & O_PATH) {
        if ((flags & O_DIRECTORY) && !S_ISDIR(p->st.st_mode))
            return -ENOTDIR;
        if (p->kind == BACK_HOST)
            fd = p->fd >= 0 ? p->fd : fcntl(p->back->fd, F_DUPFD_CLOEXEC, 0);
        if (p->kind == BACK_HOST && fd < 0)
            return -errno;
        p->fd = -1;
        return handle_new(vfs, p, fd, HANDLE_PATH, h);
    }
    if ((flags & O_TMPFILE) == O_TMPFILE)
        return open_tmpfile(vfs, p, flags, mode, h);
    if (p->exists && (flags & O_CREAT) && (flags & O_EXCL))
        return -EEXIST;
    if (p->exists)
        r = open_type(p, flags);
    else if (p->slash)
        r = -EISDIR;
    if (r < 0)
        return r;
    if (p->rule && (writes || !p->exists)) {
        path_refused(vfs, p->path, p->rule, EROFS);
        return -EROFS;
    }
    switch (p->kind) {
    case BACK_HOST:
        if ((writes || !p->exists) && place_writable(p) < 0)
            return -EROFS;
        if (!p->exists && (r = take_name(vfs)) < 0)
            return r;
        fd = host_open_file(p, (flags & OPEN_KEPT) | (p->exists ? 0 : O_CREAT | (flags & O_EXCL)), p->exists ? 0 : mode & MODE_BITS);
        /* (in a system mount the file may have been made, and then not be readable) */
        if (fd < 0)
            return p->exists || p->back->flags & AFW_MOUNT_SYSTEM ? fd : made_name(vfs, fd);
        break;
    case BACK_TMP:
        r = open_tmp(vfs, p, flags, mode & 07777);
        break;
    default:
        if (writes || !p->exists)
            r = !p->exists || p->kind == BACK_SYNTH ? -EROFS : -EACCES;
    }
    if (r < 0)
        return r;
    struct stat st;                  /* what was created has a type only now */
    if (p->kind == BACK_HOST && !p->exists && !fstat(fd, &st))
        p->st = st;
    if (p->kind == BACK_TMP)
        tmpfs_stat(p->tmp, &p->st);
    int64_t n = handle_new(vfs, p, fd, access, h);
    if (n > 0 && p->kind == BACK_PROC && S_ISREG(p->st.st_mode)) {
        r = vfs->synth_bytes > (4u << 20) ? -ENOMEM : proc_content(vfs, p->path, &(*h)->owned, &(*h)->size);
        if (r < 0) {
            (*h)->owned = 0;
            handle_close(vfs, (uint64_t)n);
            return r;
        }
        (*h)->data = (*h)->owned;
        vfs->synth_bytes += (*h)->size;
    }
    return n;
}

static int walk_flags(const struct vfs *vfs)
{
    static const struct { uint32_t call, walk; } words[] = {
        {CALL_OPEN, WALK_FD},           {CALL_NO_LINKS, WALK_NO_LINKS},   {CALL_BENEATH, WALK_BENEATH},
        {CALL_NO_MAGIC, WALK_NO_MAGIC}, {CALL_NO_MOUNTS, WALK_NO_MOUNTS}, {CALL_IN_ROOT, WALK_IN_ROOT},
    };
    uint32_t how = 0;
    for (unsigned i = 0; i < sizeof words / sizeof *words && vfs->call & CALL_OPEN; i++)
        how |= vfs->call & words[i].call ? words[i].walk : 0;
    return (int)how;
}

int place_of_handle(struct vfs *vfs, struct handle *h, struct place *p)
{
    struct stat st;
    if (handle_stat(vfs, h, &st) < 0)
        return -ENOENT;
    if (h->kind == BACK_TMP) {
        strcpy(p->path, h->path);
        p->kind = BACK_TMP;
        p->exists = 1;
        p->fd = p->link_fd = -1;
        p->node = h->node;
        p->back = h->back;
        p->rule = h->rule;
        p->tmp = h->tmp;
        p->st = st;
        p->rel = p->path;
        return 0;
    }
    int r = probe(vfs, h->path, p);
    if (!r && (p->st.st_ino != st.st_ino || p->st.st_dev != st.st_dev || p->rule == AFW_RULE_DENY)) {
        place_done(p);
        r = -ENOENT;                 /* it has another name now, or none */
    }
    return r;
}

int place_of_fd(struct vfs *vfs, struct place *p)
{
    struct guest_fd f;
    int fd = p->link_fd;
    place_done(p);
    if (guest_fd(vfs->vm, (uint64_t)fd, &f) < 0)
        return -ENOENT;
    struct handle *h = handle_get(vfs, f.file.handle);
    return h ? place_of_handle(vfs, h, p) : f.file.handle ? -ENOENT : 1;
}

/* AFW_OP_CALL's result for an open file */
static int64_t opened(int flags, const struct place *p, uint32_t what)
{
    int changed = !p->exists || flags & O_TRUNC;
    flags &= ~(O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC);
    flags |= flags & O_PATH ? 0 : 0100000;           /* O_LARGEFILE, as Linux shows it */
    return (int64_t)((uint64_t)(uint32_t)(flags | (changed ? O_TRUNC : 0)) << 32 | what);
}

/* A device that the shim is itself: AFW_OP_CALL's result */
static int64_t open_device(const struct place *p, int flags)
{
    if ((flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL))
        return -EEXIST;
    if (flags & O_DIRECTORY)
        return -ENOTDIR;
    if (p->st.st_rdev >> 8 != 1)
        return -ENXIO;               /* a terminal */
    return opened(flags & ~O_TRUNC, p, AFW_OPENED_DEVICE + (p->st.st_rdev & 0xff));
}

/* The first root of the private directories, and a name for /proc */
static int memfd_place(struct vfs *vfs, const uint64_t a[6], struct place *p)
{
    struct tmpfs *fs = vfs_tmp_roots ? vfs_tmpfs(vfs) : 0;
    char name[256];
    if (!fs)
        return -ENOMEM;
    if (a[1] > 249 || guest_read(vfs->vm, name, a[0], a[1]))
        return -EFAULT;
    memset(p, 0, offsetof(struct place, path));
    p->fd = p->link_fd = -1;
    p->kind = BACK_TMP;
    p->tmp = tmpfs_root(fs, 0);
    p->exists = 1;
    tmpfs_stat(p->tmp, &p->st);
    snprintf(p->path, sizeof p->path, "/memfd:%.*s", (int)a[1], name);
    return 0;
}

/* All of a small file that is to be read, for the reads to come */
static int whole(struct vfs *vfs, struct handle *h, int flags, const struct stat *st)
{
    if (!S_ISREG(st->st_mode) || flags & (O_ACCMODE | O_PATH | O_DIRECT) || st->st_size <= 0 || st->st_size > AFW_WHOLE_SIZE)
        return 0;
    uint64_t size = (uint64_t)st->st_size;
    if (h->kind == BACK_TMP)
        return tmpfs_read(vfs, h->tmp, AFW_WHOLE, size, 0) == (int64_t)size;
    void *to = h->kind == BACK_HOST ? guest_range(vfs->vm, AFW_WHOLE, AFW_WHOLE_SIZE) : 0;
    if (!to || pread(h->fd, to, AFW_WHOLE_SIZE, 0) == (ssize_t)size)
        return to != 0;
    vfs->kept.news = 1;              /* it changes right now; and whose bytes were there must not be read as they are */
    return 0;
}

static const char job[] = "/dev/agentfw";

/* *found: what was opened, or was not, if it came to that */
static int64_t open_at(struct vfs *vfs, const uint64_t a[6], char found[PATH_MAX])
{
    struct place p;
    struct handle *h = 0;
    struct stat st;
    char path[sizeof job];
    int flags = (int)a[2], how = walk_flags(vfs), r, called = vfs->call & CALL_OPEN;
    int64_t n = -ENXIO;
    if (flags & O_PATH)
        flags &= O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    else if ((flags & O_ACCMODE) == O_ACCMODE || ((flags & O_CREAT) && (flags & O_DIRECTORY)))
        return -EINVAL;
    if ((flags & O_TMPFILE) != O_TMPFILE && (flags & O_CREAT))
        how |= WALK_CREATE;
    if (!(flags & O_NOFOLLOW) && !((flags & O_CREAT) && (flags & O_EXCL)))
        how |= WALK_FOLLOW;
    char end = 0;                    /* what is to be made is no directory, whatever is there: said before anybody looks */
    int slash = flags & O_CREAT && a[1] && !guest_read(vfs->vm, &end, a[0] + a[1] - 1, 1) && end == '/';
    if (slash)
        how = (how & ~WALK_FOLLOW) | WALK_NAME;
    if (called && !(vfs->call & CALL_MEMFD) && a[1] == sizeof job - 1 && !guest_path(vfs->vm, path, a[0], a[1]) && !strcmp(path, job))
        return (int64_t)((uint64_t)(uint32_t)(flags & (O_ACCMODE | O_CLOEXEC | O_NONBLOCK)) << 32 | AFW_OPENED_JOB);
    if (vfs->call & CALL_MEMFD) {
        r = memfd_place(vfs, a, &p);
        flags |= O_TMPFILE;
    } else
        r = walk_op(vfs, a[0], a[1], a[4], how, &p);
    if (!r && slash && p.last == 'n') {
        place_done(&p);
        return -EISDIR;
    }
    if (!r && p.link_fd >= 0) {
        uint32_t fd = (uint32_t)p.link_fd;
        r = place_of_fd(vfs, &p);
        if (r == 1)
            return opened(flags & ~O_TRUNC, &p, AFW_OPENED_FD + fd);
    }
    if (r < 0)
        return r;
    int device = called && p.exists && p.node && p.node->kind == NODE_CHAR && !(flags & O_PATH);
    if (device)
        n = open_device(&p, flags);
    else
        n = open_place(vfs, &p, flags, (uint32_t)a[3], &h);
    if (n > 0)
        hot_opened(vfs->vm, p.path, (uint64_t)p.st.st_size);
    strcpy(found, p.path);
    place_done(&p);
    if (n > 0 && a[5]) {
        r = 0;
        if (device)
            st = p.st;
        else
            r = handle_stat(vfs, h, &st);
        if (!r)
            r = guest_write(vfs->vm, a[5], &st, sizeof st);
        if (r < 0) {
            if (!device)
                handle_close(vfs, (uint64_t)n);
            return r;
        }
        if (called && !device && whole(vfs, h, flags, &st))
            n += AFW_OPENED_WHOLE;
    }
    return n > 0 && called && !device ? opened(vfs->call & CALL_MEMFD ? flags & ~O_TMPFILE : flags, &p, (uint32_t)n) : n;
}

/* The path that was to be opened, absolute; 0: there is none */
static int as_said(struct vfs *vfs, const uint64_t a[6], char out[PATH_MAX])
{
    char path[PATH_MAX];
    const char *base = "";
    if (vfs->call & CALL_MEMFD || guest_path(vfs->vm, path, a[0], a[1]) < 0 || (*path != '/' && handle_base(vfs, a[4], &base) < 0))
        return 0;
    size_t n = strlen(base);
    if (n + strlen(path) + 2 > PATH_MAX)
        return 0;
    memcpy(out, base, n);
    if (*path != '/' && (!n || out[n - 1] != '/'))
        out[n++] = '/';
    strcpy(out + n, path);
    return 1;
}

/* Tells people of it: the place, or, if none was found, what the program said */
int64_t op_open(struct vfs *vfs, const uint64_t a[6])
{
    char path[PATH_MAX];
    int acc = (int)a[2] & O_ACCMODE;
    path[0] = 0;
    vfs->told = 0;
    vfs->opens = a[2] & O_PATH ? AFW_SIGHT_NAME : acc == O_RDONLY ? AFW_SIGHT_READ : acc == O_WRONLY ? AFW_SIGHT_WRITE : AFW_SIGHT_READ | AFW_SIGHT_WRITE;
    int64_t n = open_at(vfs, a, path);
    uint8_t mode = vfs->opens;
    vfs->opens = 0;
    if (vfs->told || (!*path && !as_said(vfs, a, path)) || !strcmp(path, job))
        return n;
    sight_file(vfs->vm, path, (struct sight_what){.mode = mode, .error = n < 0 ? (uint16_t)-n : 0}, 0);
    return n;
}

int64_t open_by_path(struct vfs *vfs, const uint64_t path[3], int flags)
{
    struct place p;
    int held = paths_hold(vfs, 0), r = walk_op(vfs, path[0], path[1], path[2], WALK_FOLLOW | WALK_FD, &p);
    int64_t n = -EINVAL;             /* a pipe or its like */
    if (!r && p.link_fd >= 0)
        r = place_of_fd(vfs, &p);
    if (!r) {
        n = open_place(vfs, &p, flags, 0, 0);
        place_done(&p);
    }
    paths_release(held);
    return r < 0 ? r : n;
}
