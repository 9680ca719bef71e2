/* Ring operations on paths: opening and looking. Every SQE is hostile: paths are copied by guest_path(), bases and flags are checked here. See vfs.h. */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "vfs.h"

#define SYS_FCHMODAT2 452            /* not in the headers of older systems */
#define OPEN_KEPT (O_ACCMODE | O_TRUNC | O_DIRECTORY | O_SYNC)

/* Copies (gva, len) and finds the directory it is relative to. len 0: the base itself, if empty_ok */
static int get_path(struct vfs *vfs, char path[PATH_MAX], uint64_t gva, uint64_t len, uint64_t base, int empty_ok, const char **dir)
{
    int r = 0;
    if (!len && empty_ok)
        strcpy(path, ".");
    else
        r = guest_path(vfs->vm, path, gva, len);
    if (r < 0)
        return r;
    *dir = "/";
    return *path == '/' ? 0 : handle_base(vfs, base, dir);
}

int walk_op(struct vfs *vfs, uint64_t gva, uint64_t len, uint64_t base, int how, struct place *p)
{
    char path[PATH_MAX];
    const char *dir;
    int r = get_path(vfs, path, gva, len, base, 0, &dir);
    return r < 0 ? r : walk(vfs, dir, path, how, p);
}

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
        return -ELOOP;
    if (S_ISDIR(p->st.st_mode))
        return acc != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) ? -EISDIR : 0;
    if (flags & O_DIRECTORY)
        return -ENOTDIR;
    if (S_ISREG(p->st.st_mode))
        return 0;
    /* The shim serves /dev/null and its like; a mount's FIFOs, sockets and devices are nobody's business */
    return S_ISSOCK(p->st.st_mode) || p->kind == BACK_SYNTH ? -ENXIO : -EACCES;
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
    int r = tmpfs_anonymous(vfs->tmpfs, p->tmp, S_IFREG | (mode & 07777), &p->tmp);
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
        path_refused(vfs);
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

static int64_t op_open(struct vfs *vfs, const uint64_t a[6])
{
    struct place p;
    struct handle *h = 0;
    struct stat st;
    int flags = (int)a[2], how = 0;
    if (flags & O_PATH)
        flags &= O_PATH | O_DIRECTORY | O_NOFOLLOW;
    else if ((flags & O_ACCMODE) == O_ACCMODE || ((flags & O_CREAT) && (flags & O_DIRECTORY)))
        return -EINVAL;
    if ((flags & O_TMPFILE) != O_TMPFILE && (flags & O_CREAT))
        how |= WALK_CREATE;
    if (!(flags & O_NOFOLLOW) && !((flags & O_CREAT) && (flags & O_EXCL)))
        how |= WALK_FOLLOW;
    int r = walk_op(vfs, a[0], a[1], a[4], how, &p);
    if (r < 0)
        return r;
    int64_t n = open_place(vfs, &p, flags, (uint32_t)a[3], &h);
    place_done(&p);
    if (n > 0 && a[5]) {
        r = handle_stat(vfs, h, &st);
        if (!r)
            r = guest_write(vfs->vm, a[5], &st, sizeof st);
        if (r < 0) {
            handle_close(vfs, (uint64_t)n);
            return r;
        }
    }
    return n;
}

static int64_t op_stat(struct vfs *vfs, const uint64_t a[6])
{
    struct place p;
    struct stat st;
    if (!a[1] && (a[2] & AT_EMPTY_PATH) && (uint32_t)a[4] != AFW_CWD) {
        struct handle *h = handle_get(vfs, a[4]);
        int r = h ? handle_stat(vfs, h, &st) : -EBADF;
        return r < 0 ? r : guest_write(vfs->vm, a[3], &st, sizeof st);
    }
    char path[PATH_MAX];
    const char *dir;
    int r = get_path(vfs, path, a[0], a[1], a[4], !!(a[2] & AT_EMPTY_PATH), &dir);
    if (!r)
        r = walk(vfs, dir, path, (a[2] & AT_SYMLINK_NOFOLLOW ? 0 : WALK_FOLLOW) | WALK_LOOK, &p);
    if (r < 0)
        return r;
    place_done(&p);
    return guest_write(vfs->vm, a[3], &p.st, sizeof p.st);
}

static int64_t op_readlink(struct vfs *vfs, const uint64_t a[6])
{
    struct place p;
    char target[PATH_MAX];
    int r;
    if (!a[1]) {                     /* an O_PATH handle of a link */
        struct handle *h = handle_get(vfs, a[4]);
        if (!h)
            return -EBADF;
        if (!S_ISLNK(h->mode))
            return -ENOENT;
        r = walk(vfs, "/", h->path, 0, &p);
    } else
        r = walk_op(vfs, a[0], a[1], a[4], 0, &p);
    if (r < 0)
        return r;
    if ((int64_t)a[3] <= 0)
        r = -EINVAL;
    else
        r = S_ISLNK(p.st.st_mode) ? place_readlink(vfs, &p, target) : -EINVAL;
    place_done(&p);
    if (r > 0) {
        if ((uint64_t)r > a[3])
            r = (int)a[3];
        int w = guest_write(vfs->vm, a[2], target, (uint64_t)r);
        r = w < 0 ? w : r;
    }
    return r;
}

/* By mode bits, as the cell's user would fare */
static int host_may(const struct place *p, unsigned mode)
{
    struct stat st = p->st;
    unsigned bits = st.st_mode & 7;
    if ((mode & W_OK) && place_writable(p) < 0)
        return -EROFS;
    if (!host_readable(p->back, &st))
        return mode & R_OK ? -EACCES : 0;
    if (vfs_uid == 0)
        bits = R_OK | W_OK | (S_ISDIR(st.st_mode) || (st.st_mode & 0111) ? X_OK : 0);
    else if (st.st_uid == VFS_UID)
        bits = (st.st_mode >> 6) & 7;
    else if (st.st_gid == VFS_UID)
        bits = (st.st_mode >> 3) & 7;
    return (bits & mode) == mode ? 0 : -EACCES;
}

static int64_t op_access(struct vfs *vfs, const uint64_t a[6])
{
    struct place p;
    unsigned mode = (unsigned)a[2], have;
    char path[PATH_MAX];
    const char *dir;
    if (mode & ~7u)
        return -EINVAL;
    int r = get_path(vfs, path, a[0], a[1], a[4], !!(a[3] & AT_EMPTY_PATH), &dir);
    if (!r)
        r = walk(vfs, dir, path, (a[3] & AT_SYMLINK_NOFOLLOW ? 0 : WALK_FOLLOW) | WALK_LOOK, &p);
    if (r < 0)
        return r;
    if (p.rule && (mode & (p.rule == AFW_RULE_READ ? W_OK : R_OK | W_OK | X_OK))) {
        place_done(&p);
        path_refused(vfs);
        return p.rule == AFW_RULE_READ ? -EROFS : -EACCES;
    }
    switch (p.kind) {
    case BACK_HOST:
        r = host_may(&p, mode);
        break;
    case BACK_TMP:
        r = tmpfs_may(p.tmp, (int)mode);
        break;
    default:
        have = p.st.st_mode & 7;
        if (S_ISLNK(p.st.st_mode) || (mode & have) == mode)
            r = 0;
        else
            r = (mode & W_OK) && p.kind == BACK_SYNTH ? -EROFS : -EACCES;
    }
    place_done(&p);
    return r;
}

static int64_t op_chmod(struct vfs *vfs, const uint64_t a[6])
{
    struct place p;
    int r = walk_op(vfs, a[0], a[1], a[4], WALK_FOLLOW, &p), fd;
    if (r < 0)
        return r;
    r = place_writable(&p);
    if (!r && p.kind == BACK_TMP)
        r = tmpfs_chmod(p.tmp, (uint32_t)a[2]);
    else if (!r && !S_ISREG(p.st.st_mode) && !S_ISDIR(p.st.st_mode))
        r = -EPERM;
    else if (!r) {
        mode_t mode = (mode_t)a[2] & MODE_BITS;
        r = syscall(SYS_FCHMODAT2, p.fd >= 0 ? p.fd : p.back->fd, "", mode, AT_EMPTY_PATH) < 0 ? -errno : 0;
        if (r == -ENOSYS || r == -EPERM) {           /* before Linux 6.6: by a real descriptor, never by a path */
            fd = host_open_file(&p, O_RDONLY, 0);
            if (fd == -EACCES && S_ISREG(p.st.st_mode))
                fd = host_open_file(&p, O_WRONLY, 0);
            r = fd < 0 ? fd : fchmod(fd, mode) < 0 ? -errno : 0;
            if (fd >= 0)
                close(fd);
        }
    }
    place_done(&p);
    return r;
}

static int64_t op_utimens(struct vfs *vfs, const uint64_t a[6])
{
    struct place p;
    struct timespec times[2], *given = a[2] ? times : 0;
    int r = a[2] ? guest_read(vfs->vm, times, a[2], sizeof times) : 0;
    if (r < 0)
        return r;
    if (!a[1] && (uint32_t)a[4] != AFW_CWD) {
        struct handle *h = handle_get(vfs, a[4]);
        if (!h)
            return -EBADF;
        if (handle_writable(h) < 0)
            return -EROFS;
        if (h->kind == BACK_TMP)
            return tmpfs_utimens(h->tmp, given);
        return utimensat(h->fd, "", given, AT_EMPTY_PATH) < 0 ? -errno : 0;
    }
    char path[PATH_MAX];
    const char *dir;
    r = get_path(vfs, path, a[0], a[1], a[4], 1, &dir);
    if (!r)
        r = walk(vfs, dir, path, a[3] & AT_SYMLINK_NOFOLLOW ? 0 : WALK_FOLLOW, &p);
    if (r < 0)
        return r;
    r = place_writable(&p);
    if (!r && p.kind == BACK_TMP)
        r = tmpfs_utimens(p.tmp, given);
    else if (!r)
        r = utimensat(p.fd >= 0 ? p.fd : p.back->fd, "", given, AT_EMPTY_PATH) < 0 ? -errno : 0;
    place_done(&p);
    return r;
}

static int64_t op_chdir(struct vfs *vfs, const uint64_t a[6])
{
    struct place p;
    char path[PATH_MAX];
    const char *dir;
    int r = get_path(vfs, path, a[0], a[1], a[4], 1, &dir);
    if (!r)
        r = walk(vfs, dir, path, WALK_FOLLOW, &p);
    if (r < 0)
        return r;
    place_done(&p);
    if (!S_ISDIR(p.st.st_mode))
        return -ENOTDIR;
    if ((p.kind == BACK_HOST && host_may(&p, X_OK) < 0) || (p.kind == BACK_TMP && tmpfs_may(p.tmp, X_OK) < 0))
        return -EACCES;
    strcpy(vfs->cwd, p.path);
    return 0;
}

static int64_t op_getcwd(struct vfs *vfs, const uint64_t a[6])
{
    struct place p;
    size_t n = strlen(vfs->cwd) + 1;
    int r = probe(vfs, vfs->cwd, &p);
    if (r < 0)
        return -ENOENT;              /* it was removed */
    place_done(&p);
    if (n > a[1])
        return -ERANGE;
    r = guest_write(vfs->vm, a[0], vfs->cwd, n);
    return r < 0 ? r : (int64_t)n;
}

/* What rules say about a path is said about the directories that it names at that moment. So while a VM with rules is between looking and
 * doing, another VM of this cell that has rules moves nothing: by two moves at the right time a protected file would be where the first
 * one already looked. Those who move go first, or three runners that read would keep the fourth waiting. */
static pthread_rwlock_t moving = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

static int64_t perform(struct vfs *vfs, const struct afw_sqe *sqe)
{
    static int64_t (*const ops[])(struct vfs *, const uint64_t[6]) = {
        [AFW_OP_OPEN] = op_open,       [AFW_OP_STAT] = op_stat,       [AFW_OP_READLINK] = op_readlink, [AFW_OP_ACCESS] = op_access,
        [AFW_OP_CHMOD] = op_chmod,     [AFW_OP_UTIMENS] = op_utimens, [AFW_OP_CHDIR] = op_chdir,       [AFW_OP_GETCWD] = op_getcwd,
    };
    if (sqe->op >= sizeof ops / sizeof *ops || !ops[sqe->op])
        return name_op(vfs, sqe);
    return ops[sqe->op](vfs, sqe->a);
}

int64_t path_op(struct vfs *vfs, const struct afw_sqe *sqe)
{
    if (!vfs_shared || !vfs->vm->rules || !rules_files(vfs->vm->rules))
        return perform(vfs, sqe);
    if (sqe->op == AFW_OP_RENAME)
        pthread_rwlock_wrlock(&moving);
    else
        pthread_rwlock_rdlock(&moving);
    int64_t r = perform(vfs, sqe);
    pthread_rwlock_unlock(&moving);
    return r;
}
