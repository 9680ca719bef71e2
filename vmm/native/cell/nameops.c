/* Ring operations that make, remove, move or link names: each changes a directory. Every SQE is hostile. See vfs.h. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "vfs.h"

int change_in(struct vfs *vfs, const struct place *p, struct place *dir, const char **name)
{
    if (p->rule) {
        path_refused(vfs, p->path, p->rule, EROFS);
        return -EROFS;
    }
    int r = place_parent(vfs, p, dir, name);
    if (r < 0)
        return r;
    r = place_writable(dir);
    if (r < 0)
        place_done(dir);
    return r;
}

int take_name(struct vfs *vfs)
{
    return vfs->vm->rules ? rules_take_name(vfs->vm->rules) : 0;
}

int made_name(struct vfs *vfs, int r)
{
    if (r < 0 && vfs->vm->rules)
        rules_give_name(vfs->vm->rules);
    return r;
}

/* The directory for what is made at path a0,a1 (base a4), where nothing is yet; `slash`: the name may end with one. */
static int new_name(struct vfs *vfs, const uint64_t a[6], int slash, struct place *p, struct place *dir, const char **name)
{
    int r = walk_op(vfs, a[0], a[1], a[4], WALK_CREATE | WALK_NAME, p);
    if (r < 0)
        return r;
    place_done(p);
    if (p->exists)
        return -EEXIST;
    return p->slash && !slash ? -ENOENT : change_in(vfs, p, dir, name);
}

static int64_t op_mkdir(struct vfs *vfs, const uint64_t a[6])
{
    struct place p, dir;
    const char *name;
    struct tnode *made;
    int r = new_name(vfs, a, 1, &p, &dir, &name);
    if (r < 0)
        return r;
    if (dir.kind == BACK_TMP)
        r = tmpfs_create(vfs->tmpfs, dir.tmp, name, S_IFDIR | ((uint32_t)a[2] & 07777), 0, &made);
    else if (!(r = take_name(vfs)))
        r = made_name(vfs, mkdirat(dir.fd, name, (mode_t)a[2] & MODE_BITS) < 0 ? -errno : 0);
    place_done(&dir);
    return r;
}

int socket_number(const struct place *p, int fd, const struct stat *st)
{
    uint64_t h = p->kind == BACK_TMP ? st->st_ino : (st->st_dev * 0x9e3779b97f4a7c15) ^ st->st_ino ^ st->st_ino >> 29;
    /* On the host the next file may get the inode of one that was removed, while the socket bound to that lives on: they differ by this */
    union {
        struct file_handle head;
        uint8_t all[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    } f = {.head.handle_bytes = MAX_HANDLE_SZ};
    int mount;
    if (fd >= 0 && !name_to_handle_at(fd, "", &f.head, &mount, AT_EMPTY_PATH))
        for (unsigned i = 0; i < f.head.handle_bytes; i++)
            h = (h ^ f.head.f_handle[i]) * 0x100000001b3;
    h ^= h >> 32;
    return (int)(h & 0x1fffffff) | (p->kind == BACK_TMP ? 0x20000000 : 0x40000000);
}

/* A file, or the name of a socket or, in private directories, of a pipe, which opens only as openops.c says. A socket's on the host is an empty file
 * with the sticky bit: stat() knows it by that. */
static int64_t op_mknod(struct vfs *vfs, const uint64_t a[6])
{
    struct place p, dir;
    const char *name;
    struct tnode *made;
    uint32_t mode = (uint32_t)a[2];
    struct stat st = {0};
    if (!S_ISREG(mode) && !S_ISSOCK(mode) && !S_ISFIFO(mode))
        return -EPERM;
    int r = new_name(vfs, a, 0, &p, &dir, &name);
    if (r < 0)
        return r;
    if (dir.kind == BACK_TMP)
        r = tmpfs_create(vfs->tmpfs, dir.tmp, name, (mode & S_IFMT) | (mode & 07777), 0, &made);
    else if (S_ISFIFO(mode))         /* the host's processes could open it */
        r = -EPERM;
    else if (!(r = take_name(vfs))) {
        int fd = host_open_file(&p, O_WRONLY | O_CREAT | O_EXCL, (S_ISSOCK(mode) ? S_ISVTX : 0) | (mode & MODE_BITS));
        r = made_name(vfs, fd < 0 ? fd : 0);
        if (!r && mode & AFW_SOCKET_NUMBER && !fstat(fd, &st))
            r = socket_number(&dir, fd, &st);
        if (fd >= 0)
            close(fd);
    }
    if (!r && dir.kind == BACK_TMP) {
        tmpfs_stat(made, &st);
        r = mode & AFW_SOCKET_NUMBER ? socket_number(&dir, -1, &st) : 0;
    }
    place_done(&dir);
    return r;
}

static int64_t op_unlink(struct vfs *vfs, const uint64_t a[6])
{
    struct place p, dir;
    const char *name;
    int rmdir = !!(a[2] & AT_REMOVEDIR);
    if (a[2] & ~(uint64_t)AT_REMOVEDIR)
        return -EINVAL;
    int r = walk_op(vfs, a[0], a[1], a[4], WALK_NAME, &p);
    if (r < 0)
        return r;
    place_done(&p);
    if (p.last != 'n')
        return !rmdir ? -EISDIR : p.last == '.' ? -EINVAL : p.last == '/' ? -EBUSY : -ENOTEMPTY;
    if (p.slash && !S_ISDIR(p.st.st_mode))
        return -ENOTDIR;
    if (p.node)                      /* part of what the operator set up */
        return S_ISDIR(p.st.st_mode) && !rmdir ? -EISDIR : p.node->kind == NODE_DIR || p.node->kind == NODE_MOUNT ? -EBUSY : -EROFS;
    r = change_in(vfs, &p, &dir, &name);
    if (r < 0)
        return r;
    if (dir.kind == BACK_TMP)
        r = tmpfs_unlink(vfs->tmpfs, dir.tmp, name, rmdir);
    else
        r = unlinkat(dir.fd, name, rmdir ? AT_REMOVEDIR : 0) < 0 ? -errno : 0;
    place_done(&dir);
    return r;
}

static int rename_places(struct vfs *vfs, const struct place *from, const struct place *to, unsigned flags)
{
    struct place d1, d2;
    const char *n1, *n2;
    if (from->last != 'n')
        return -EBUSY;
    if (to->last != 'n')
        return flags & RENAME_NOREPLACE ? -EEXIST : -EBUSY;
    if (!from->exists || (flags & RENAME_EXCHANGE && !to->exists))
        return -ENOENT;
    if (to->exists && flags & RENAME_NOREPLACE)
        return -EEXIST;
    if (flags & RENAME_EXCHANGE && to->slash && !S_ISDIR(to->st.st_mode))
        return -ENOTDIR;
    if (!S_ISDIR(from->st.st_mode) && (from->slash || (to->slash && !(flags & RENAME_EXCHANGE))))
        return -ENOTDIR;
    if (from->node || (to->node && to->exists))
        return -EBUSY;
    int r = change_in(vfs, from, &d1, &n1);
    if (r < 0)
        return r;
    r = change_in(vfs, to, &d2, &n2);
    if (!r) {
        if (d1.kind != d2.kind || (d1.kind == BACK_HOST && d1.back != d2.back))
            r = -EXDEV;
        else if (vfs->vm->rules && ((S_ISDIR(from->st.st_mode) && !paths_may_move(vfs, from->path, to->path)) ||
                                    (flags & RENAME_EXCHANGE && S_ISDIR(to->st.st_mode) && !paths_may_move(vfs, to->path, from->path)))) {
            path_refused(vfs, from->path, 0, EACCES);
            r = -EACCES;
        }
        else if (d1.kind == BACK_TMP)
            r = tmpfs_rename(vfs->tmpfs, d1.tmp, n1, d2.tmp, n2, flags);
        else                         /* glibc would call renameat for flags 0, which the jail does not know */
            r = syscall(SYS_renameat2, d1.fd, n1, d2.fd, n2, flags) < 0 ? -errno : 0;
        place_done(&d2);
    }
    place_done(&d1);
    if (!r && strcmp(from->path, to->path)) {
        if (flags & RENAME_EXCHANGE) /* three steps by a name that no walk can produce */
            handles_renamed(vfs, to->path, "//");
        handles_renamed(vfs, from->path, to->path);
        if (flags & RENAME_EXCHANGE)
            handles_renamed(vfs, "//", from->path);
    }
    return r;
}

static int64_t op_rename(struct vfs *vfs, const uint64_t a[6])
{
    struct place from, to;
    unsigned flags = (unsigned)a[5];
    if (a[5] & ~(uint64_t)(RENAME_NOREPLACE | RENAME_EXCHANGE) || flags == (RENAME_NOREPLACE | RENAME_EXCHANGE))
        return -EINVAL;
    int r = walk_op(vfs, a[0], a[1], a[4] & 0xffffffff, WALK_NAME, &from);
    if (r == -ENOENT) {              /* what is wrong with the other comes first, unless the directory is what is missing */
        r = walk_op(vfs, a[0], a[1], a[4] & 0xffffffff, WALK_NAME | WALK_CREATE, &from);
        if (r < 0)
            return -ENOENT;          /* (nor is it told that a rule hides it) */
    }
    if (r < 0)
        return r;
    r = walk_op(vfs, a[2], a[3], a[4] >> 32, WALK_NAME | WALK_CREATE, &to);
    if (!r) {
        r = rename_places(vfs, &from, &to, flags);
        place_done(&to);
    }
    place_done(&from);
    return r;
}

static int64_t op_symlink(struct vfs *vfs, const uint64_t a[6])
{
    struct place p, dir;
    char target[PATH_MAX];
    const char *name;
    struct tnode *made;
    int r = guest_path(vfs->vm, target, a[0], a[1]);
    if (!r)
        r = walk_op(vfs, a[2], a[3], a[4], WALK_CREATE | WALK_NAME, &p);
    if (r < 0)
        return r;
    place_done(&p);
    if (p.exists)
        return -EEXIST;
    if (p.slash)
        return -ENOENT;
    r = change_in(vfs, &p, &dir, &name);
    if (r < 0)
        return r;
    if (dir.kind == BACK_TMP)
        r = tmpfs_create(vfs->tmpfs, dir.tmp, name, S_IFLNK | 0777, target, &made);
    else if (!(r = take_name(vfs)))
        r = made_name(vfs, symlinkat(target, dir.fd, name) < 0 ? -errno : 0);
    place_done(&dir);
    return r;
}

static int link_places(struct vfs *vfs, const struct place *from, const struct place *to)
{
    struct place d1, d2;
    const char *n1, *n2;
    if (to->exists)
        return -EEXIST;
    if (to->slash)
        return -ENOENT;
    if (S_ISDIR(from->st.st_mode))
        return -EPERM;
    int r = change_in(vfs, to, &d2, &n2);
    if (r < 0)
        return r;
    /* memfd_create()'s files are on no mount that has names */
    int nowhere = from->kind == BACK_TMP && !strncmp(from->path, "/memfd:", 7);
    /* Only within one mount: through a link a file of a read-only one could be written, and one that a rule protects */
    if (nowhere || from->node || from->rule || from->kind != d2.kind || (d2.kind == BACK_HOST && from->back != d2.back))
        r = -EXDEV;
    else if (d2.kind == BACK_TMP)
        r = tmpfs_link(vfs->tmpfs, from->tmp, d2.tmp, n2);
    else {
        r = place_parent(vfs, from, &d1, &n1);
        if (!r) {
            r = take_name(vfs);
            r = r < 0 ? r : made_name(vfs, linkat(d1.fd, n1, d2.fd, n2, 0) < 0 ? -errno : 0);
            place_done(&d1);
        }
    }
    place_done(&d2);
    return r;
}

static int64_t op_link(struct vfs *vfs, const uint64_t a[6])
{
    struct place from, to;
    int r;
    if (a[5] & ~(uint64_t)(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH))
        return -EINVAL;
    if (!a[1] && a[5] & AT_EMPTY_PATH && (uint32_t)a[4] != AFW_CWD) {
        struct handle *h = handle_get(vfs, a[4] & 0xffffffff);
        r = h ? place_of_handle(vfs, h, &from) : -EBADF;
    } else {
        r = walk_op(vfs, a[0], a[1], a[4] & 0xffffffff, a[5] & AT_SYMLINK_FOLLOW ? WALK_FOLLOW | WALK_FD : 0, &from);
        if (!r && from.link_fd >= 0)
            r = place_of_fd(vfs, &from);
    }
    if (r)
        return r < 0 ? r : -EXDEV;
    r = walk_op(vfs, a[2], a[3], a[4] >> 32, WALK_CREATE | WALK_NAME, &to);
    if (!r) {
        r = link_places(vfs, &from, &to);
        place_done(&to);
    }
    place_done(&from);
    return r;
}

int64_t name_op(struct vfs *vfs, const struct afw_sqe *sqe)
{
    switch (sqe->op) {
    case AFW_OP_MKDIR:
        return op_mkdir(vfs, sqe->a);
    case AFW_OP_MKNOD:
        return op_mknod(vfs, sqe->a);
    case AFW_OP_UNLINK:
        return op_unlink(vfs, sqe->a);
    case AFW_OP_RENAME:
        return op_rename(vfs, sqe->a);
    case AFW_OP_SYMLINK:
        return op_symlink(vfs, sqe->a);
    case AFW_OP_LINK:
        return op_link(vfs, sqe->a);
    default:
        return -ENOSYS;
    }
}
