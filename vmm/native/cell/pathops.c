/* Ring operations on paths: looking, and what belongs to a file itself. Every SQE is hostile: paths are copied by
 * guest_path(), bases and flags are checked here. See vfs.h. */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "vfs.h"

#define SYS_FCHMODAT2 452            /* not in the headers of older systems */

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
    return *path == '/' && !(vfs->call & CALL_IN_ROOT) ? 0 : handle_base(vfs, base, dir);
}

int walk_op(struct vfs *vfs, uint64_t gva, uint64_t len, uint64_t base, int how, struct place *p)
{
    char path[PATH_MAX];
    const char *dir;
    int r = get_path(vfs, path, gva, len, base, 0, &dir);
    return r < 0 ? r : walk(vfs, dir, path, how, p);
}

/* The same of operations whose AT_EMPTY_PATH means what the base is open on, be it no directory; 1: it is not the host's */
static int walk_or_base(struct vfs *vfs, const uint64_t a[6], uint64_t flags, int how, struct place *p)
{
    char path[PATH_MAX];
    const char *dir;
    if (!a[1] && flags & AT_EMPTY_PATH && (uint32_t)a[4] != AFW_CWD) {
        struct handle *h = handle_get(vfs, a[4]);
        return h ? place_of_handle(vfs, h, p) : -EBADF;
    }
    int r = get_path(vfs, path, a[0], a[1], a[4], !!(flags & AT_EMPTY_PATH), &dir);
    if (!r)
        r = walk(vfs, dir, path, flags & AT_SYMLINK_NOFOLLOW ? how : how | WALK_FOLLOW | WALK_FD, p);
    return !r && p->link_fd >= 0 ? place_of_fd(vfs, p) : r;
}

static int put_stat(struct vfs *vfs, const struct stat *st, uint64_t out, int extended)
{
    struct statx x;
    if (!extended)
        return guest_write(vfs->vm, out, st, sizeof *st);
    call_statx(st, &x);
    return guest_write(vfs->vm, out, &x, sizeof x);
}

/* Is it the name of a bound socket, in a host directory? See op_mknod */
static int is_socket_name(const struct place *p)
{
    return p->kind == BACK_HOST && S_ISREG(p->st.st_mode) && p->st.st_mode & S_ISVTX && !p->st.st_size;
}

static int64_t stat_as(struct vfs *vfs, const uint64_t a[6], int extended)
{
    struct place p;
    struct stat st;
    if (!a[1] && (a[2] & AT_EMPTY_PATH) && (uint32_t)a[4] != AFW_CWD) {
        struct handle *h = handle_get(vfs, a[4]);
        int r = h ? handle_stat(vfs, h, &st) : -EBADF;
        return r < 0 ? r : put_stat(vfs, &st, a[3], extended);
    }
    char path[PATH_MAX];
    const char *dir;
    uint64_t at = kept_clock();
    int r = get_path(vfs, path, a[0], a[1], a[4], !!(a[2] & AT_EMPTY_PATH), &dir), keep = !r && (uint32_t)a[4] == AFW_CWD;
    if (!r)
        r = walk(vfs, dir, path, (a[2] & AT_SYMLINK_NOFOLLOW ? 0 : WALK_FOLLOW | WALK_FD) | WALK_LOOK, &p);
    keep &= !r || ((r == -ENOENT || r == -ENOTDIR) && !vfs->vm->rules);
    int news = kept_news(vfs);
    if (!r && p.link_fd >= 0) {
        struct guest_fd f;
        uint64_t fd = (uint64_t)p.link_fd;
        r = place_of_fd(vfs, &p);
        if (r == 1) {
            if (guest_fd(vfs->vm, fd, &f) < 0)
                return -ENOENT;
            call_fd_stat(&f, &st);
            return put_stat(vfs, &st, a[3], extended);
        }
    }
    if (r < 0) {
        if (keep && !kept_add(vfs, at, path, (int)a[2], r, 0) && !news && r == -ENOENT && !a[2])
            ahead_of_package(vfs, at, path);
        return r;
    }
    place_done(&p);
    if (is_socket_name(&p))
        p.st.st_mode ^= S_IFREG ^ S_IFSOCK ^ S_ISVTX;
    if (keep && !p.rule && p.kind != BACK_PROC && !kept_add(vfs, at, path, (int)a[2], 0, &p.st) && !news)
        ahead_of_stat(vfs, at, path, (int)a[2], &p);
    return put_stat(vfs, &p.st, a[3], extended);
}

static int64_t op_stat(struct vfs *vfs, const uint64_t a[6])
{
    return stat_as(vfs, a, 0);
}

static int64_t op_statx(struct vfs *vfs, const uint64_t a[6])
{
    return stat_as(vfs, a, 1);
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

/* connect() to a unix socket's name: unix(7) wants write permission. */
static int64_t find_socket(struct vfs *vfs, const uint64_t a[6])
{
    struct place p;
    int r = walk_op(vfs, a[0], a[1], a[4], WALK_FOLLOW, &p);
    if (r < 0)
        return r;
    if (p.kind == BACK_TMP)
        r = tmpfs_may(p.tmp, W_OK) < 0 ? -EACCES : S_ISSOCK(p.st.st_mode) ? socket_number(&p, -1, &p.st) : -ECONNREFUSED;
    else
        r = is_socket_name(&p) ? socket_number(&p, p.fd, &p.st) : -ECONNREFUSED;
    place_done(&p);
    return r;
}

static int64_t op_access(struct vfs *vfs, const uint64_t a[6])
{
    if (a[2] == AFW_SOCKET_NUMBER)
        return find_socket(vfs, a);
    struct place p;
    unsigned mode = (unsigned)a[2], have;
    if (mode & ~7u)
        return -EINVAL;
    int r = walk_or_base(vfs, a, a[3], WALK_LOOK, &p);
    if (r)
        return r < 0 ? r : mode & X_OK ? -EACCES : 0;
    if (p.rule && (mode & (p.rule == AFW_RULE_READ ? W_OK : R_OK | W_OK | X_OK))) {
        place_done(&p);
        r = p.rule == AFW_RULE_READ ? EROFS : EACCES;
        path_refused(vfs, p.path, p.rule, r);
        return -r;
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
    int fd, r = walk_or_base(vfs, a, a[3], 0, &p);
    if (r)
        return r < 0 ? r : 0;
    r = place_writable(&p);
    if (!r && S_ISLNK(p.st.st_mode))
        r = -EOPNOTSUPP;
    else if (!r && p.kind == BACK_TMP)
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
    int r = 0;
    if (vfs->call & CALL_TIMES)
        given = (struct timespec *)(uintptr_t)a[2];
    else if (a[2])
        r = guest_read(vfs->vm, times, a[2], sizeof times);
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

/* Owners: every file is the one user's, so giving it to oneself works and nothing else does. */
static int64_t op_chown(struct vfs *vfs, const uint64_t a[6])
{
    struct place p;
    struct stat st;
    int r;
    if (!a[1] && (uint32_t)a[4] != AFW_CWD) {
        struct handle *h = handle_get(vfs, a[4]);
        if (!h)
            return -EBADF;
        r = handle_writable(h);
        if (!r)
            r = handle_stat(vfs, h, &st);
    } else {
        char path[PATH_MAX];
        const char *dir;
        r = get_path(vfs, path, a[0], a[1], a[4], 1, &dir);
        if (!r)
            r = walk(vfs, dir, path, a[5] & AT_SYMLINK_NOFOLLOW ? 0 : WALK_FOLLOW, &p);
        if (r < 0)
            return r;
        place_done(&p);
        r = place_writable(&p);
        st = p.st;
    }
    if (r < 0)
        return r;
    uint32_t uid = (uint32_t)a[2], gid = (uint32_t)a[3];
    return (uid == UINT32_MAX || (uid == VFS_UID && st.st_uid == VFS_UID)) && (gid == UINT32_MAX || (gid == VFS_UID && st.st_uid == VFS_UID)) ? 0 : -EPERM;
}

/* There are none: setting, getting and removing say so, a list of them is empty. */
static int64_t op_xattr(struct vfs *vfs, const uint64_t a[6])
{
    struct place p;
    int r = 0;
    if (!a[1]) {
        struct handle *h = handle_get(vfs, a[4]);
        if (a[4] && (!h || h->access & HANDLE_PATH))
            return -EBADF;
    } else {
        r = walk_op(vfs, a[0], a[1], a[4], a[3] & AT_SYMLINK_NOFOLLOW ? 0 : WALK_FOLLOW, &p);
        if (r < 0)
            return r;
        place_done(&p);
        if (p.kind == BACK_TMP && a[2] != 2)
            r = tmpfs_may(p.tmp, a[2] == 1 ? R_OK : W_OK);
    }
    return r < 0 ? r : a[2] == 2 ? 0 : -EOPNOTSUPP;
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
        [AFW_OP_STATX] = op_statx,     [AFW_OP_CHOWN] = op_chown,     [AFW_OP_XATTR] = op_xattr,
    };
    if (sqe->op >= sizeof ops / sizeof *ops || !ops[sqe->op])
        return name_op(vfs, sqe);
    return ops[sqe->op](vfs, sqe->a);
}

int paths_hold(struct vfs *vfs, int move)
{
    if (!vfs_shared || !vfs->vm->rules || !rules_files(vfs->vm->rules))
        return 0;
    if (move)
        pthread_rwlock_wrlock(&moving);
    else
        pthread_rwlock_rdlock(&moving);
    return 1;
}

void paths_release(int held)
{
    if (held)
        pthread_rwlock_unlock(&moving);
}

int64_t path_op(struct vfs *vfs, const struct afw_sqe *sqe)
{
    int held = paths_hold(vfs, sqe->op == AFW_OP_RENAME);
    int64_t r = perform(vfs, sqe);
    paths_release(held);
    return r;
}
