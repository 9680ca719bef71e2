/* File locks: fcntl()'s, which belong to the process or to a description, and flock()'s. fcntl_locking(2), flock(2). See vfs.h.
 *
 * What a VM holds is in a table of its own: it bounds how much that can be, and is all there is to locks on what nobody else may write to: private
 * files, and those of read-only mounts, where a lock that the host's programs saw would let a guest hold them up. Files that a VM may write to on the
 * host are locked there, too, so that other VMs and the host's processes see it. POSIX locks belong to a process, and a cell is one for many VMs: there
 * they are locks of an open file description that the cell makes for the VM and this file. The kernel decides then; the table follows.
 */
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "vfs.h"

#define LOCKS_MAX 2048               /* ranges that a VM holds: ENOLCK */
#define PROCESS 0                    /* owner of POSIX locks; others are handles */
#define END INT64_MAX                /* as the kernel's OFFSET_MAX */

struct range {
    uint64_t dev, ino;
    int64_t start, end;              /* the last byte */
    uint32_t owner;
    int16_t type;                    /* F_RDLCK, F_WRLCK; asked for: F_UNLCK, too */
    int16_t whole;                   /* by flock(): of these and fcntl()'s neither knows of the other */
};
struct owned {                       /* a host file with POSIX locks */
    uint64_t dev, ino;
    int fd;
};
struct locks {
    struct range range[LOCKS_MAX];
    uint32_t n, files;
    struct owned *file;
};

static int same_file(const struct range *a, uint64_t dev, uint64_t ino)
{
    return a->ino == ino && a->dev == dev;
}

static int mine(const struct range *a, const struct range *b)
{
    return same_file(a, b->dev, b->ino) && a->owner == b->owner && a->whole == b->whole;
}

static int overlap(const struct range *a, const struct range *b)
{
    return a->start <= b->end && b->start <= a->end;
}

/* What of this VM stands against r, or 0: of the owner who was first there, the first range */
static const struct range *conflict(const struct locks *l, const struct range *r)
{
    const struct range *found = 0;
    for (uint32_t i = 0; l && i < l->n; i++) {
        const struct range *o = &l->range[i];
        if (same_file(o, r->dev, r->ino) && o->owner != r->owner && o->whole == r->whole && overlap(o, r) &&
            (o->type == F_WRLCK || r->type == F_WRLCK) && (!found || (found->owner == o->owner && o->start < found->start)))
            found = o;
    }
    return found;
}

static struct locks *table(struct vfs *vfs)
{
    if (!vfs->locks)
        vfs->locks = calloc(1, sizeof *vfs->locks);      /* (pages that are not used cost nothing) */
    return vfs->locks;
}

/* Is there room for what r makes of the table? A range that lies in the middle of another one makes two of that. */
static int room(const struct locks *l, const struct range *r)
{
    uint32_t more = r->type != F_UNLCK;
    for (uint32_t i = 0; i < l->n; i++)
        more += mine(&l->range[i], r) && l->range[i].start < r->start && l->range[i].end > r->end;
    return l->n + more <= LOCKS_MAX ? 0 : -ENOLCK;
}

static void put(struct locks *l, uint32_t at, const struct range *r)
{
    memmove(l->range + at + 1, l->range + at, (l->n++ - at) * sizeof *r);
    l->range[at] = *r;
}

/* r is what its owner has of these bytes from now on; room() was asked. Owners of a file stand in the order in which they came. */
static void settle(struct locks *l, struct range r)
{
    uint32_t kept = 0, n = l->n, at = n;
    struct range tail = {.type = F_UNLCK};
    for (uint32_t i = 0; i < n; i++) {
        struct range o = l->range[i];
        if (at == n && mine(&o, &r))
            at = kept;
        int touches = o.start <= (r.end == END ? END : r.end + 1) && r.start <= (o.end == END ? END : o.end + 1);
        if (!mine(&o, &r) || !touches) {
            l->range[kept++] = o;
        } else if (o.type == r.type) {
            r.start = o.start < r.start ? o.start : r.start;
            r.end = o.end > r.end ? o.end : r.end;
        } else {
            if (o.end > r.end) {
                tail = o;
                tail.start = o.start > r.end ? o.start : r.end + 1;
            }
            if (o.start < r.start) {
                if (o.end >= r.start)
                    o.end = r.start - 1;
                l->range[kept++] = o;
            } else if (tail.type != F_UNLCK) {
                l->range[kept++] = tail;
                tail.type = F_UNLCK;
            }
        }
    }
    l->n = kept;
    at = at < kept ? at : kept;
    if (tail.type != F_UNLCK)
        put(l, at, &tail);
    if (r.type != F_UNLCK)
        put(l, at, &r);
}

/* Of which file: numbers of ours are nobody's devices */
static int file_of(struct vfs *vfs, struct handle *h, struct range *r)
{
    struct stat st;
    int e = handle_stat(vfs, h, &st);
    r->dev = h->kind == BACK_HOST ? st.st_dev : ~(uint64_t)h->kind;
    r->ino = st.st_ino;
    return e;
}

/* ---- on the host ---- */

static int on_host(const struct handle *h)
{
    return h->kind == BACK_HOST && !handle_writable(h);
}

/* The same file once more, a description of its own: by the descriptor, whatever its name is now. Both ways if it can be, for the first lock may be
 * shared and the next exclusive. */
static int open_again(struct vfs *vfs, const struct handle *h)
{
    static const uint64_t ways[] = {O_RDWR, O_RDONLY, O_WRONLY};
    char link[40];
    struct stat was, is;
    int fd = -1, e = vfs_fd_take(vfs);
    if (e < 0)
        return -ENOLCK;
    snprintf(link, sizeof link, "/proc/self/fd/%d", h->fd);
    for (unsigned i = 0; i < sizeof ways / sizeof *ways && fd < 0; i++) {
        struct open_how how = {.flags = ways[i] | O_CLOEXEC | O_NONBLOCK | O_NOCTTY};
        fd = (int)syscall(SYS_openat2, AT_FDCWD, link, &how, sizeof how);
    }
    if (fd >= 0 && !fstat(h->fd, &was) && !fstat(fd, &is) && was.st_ino == is.st_ino && was.st_dev == is.st_dev)
        return fd;
    if (fd >= 0)
        close(fd);
    vfs_fd_drop(vfs);
    return -ENOLCK;
}

static void forget(struct vfs *vfs, int fd)
{
    close(fd);
    vfs_fd_drop(vfs);
}

/* The descriptor that stands for the VM's process at this file */
static int process_fd(struct vfs *vfs, struct handle *h, const struct range *r)
{
    struct locks *l = vfs->locks;
    for (uint32_t i = 0; i < l->files; i++)
        if (l->file[i].ino == r->ino && l->file[i].dev == r->dev)
            return l->file[i].fd;
    struct owned *more = realloc(l->file, (l->files + 1) * sizeof *more);
    if (!more)
        return -ENOLCK;
    l->file = more;
    int fd = open_again(vfs, h);
    if (fd >= 0)
        l->file[l->files++] = (struct owned){r->dev, r->ino, fd};
    return fd;
}

/* That of a description: the handle's own, but all of a mount of one file are one there */
static int description_fd(struct vfs *vfs, struct handle *h)
{
    if (S_ISDIR(h->back->mode))
        return h->fd;
    if (h->lock_fd <= 0) {
        int fd = open_again(vfs, h);
        if (fd < 0)
            return fd;
        h->lock_fd = fd;
    }
    return h->lock_fd;
}

static int host_lock(struct vfs *vfs, struct handle *h, const struct range *r, int command, struct flock *l)
{
    int fd = r->owner == PROCESS ? process_fd(vfs, h, r) : description_fd(vfs, h);
    *l = (struct flock){.l_type = r->type, .l_whence = SEEK_SET, .l_start = r->start, .l_len = r->end == END ? 0 : r->end - r->start + 1};
    if (fd < 0)
        return fd;
    int e = fcntl(fd, command, l) < 0 ? -errno : 0;
    return e == -EBADF ? -ENOLCK : e == -EACCES ? -EAGAIN : e;       /* (a descriptor of ours that is not open for that) */
}

/* ---- the calls ---- */

/* struct flock to first and last byte, as the kernel's flock_to_posix_lock() */
static int range_of(struct vfs *vfs, struct handle *h, const struct flock *l, uint64_t place, struct range *r)
{
    struct stat st;
    int64_t from = 0, start;
    if (l->l_whence == SEEK_CUR)
        from = (int64_t)place;
    else if (l->l_whence == SEEK_END) {
        if (h && handle_stat(vfs, h, &st))
            return -EINVAL;
        from = h ? st.st_size : 0;
    } else if (l->l_whence != SEEK_SET)
        return -EINVAL;
    if (from < 0)
        return -EINVAL;
    if (l->l_start > END - from)
        return -EOVERFLOW;
    start = from + l->l_start;
    if (start < 0)
        return -EINVAL;
    r->start = start;
    r->end = END;
    if (l->l_len > 0) {
        if (l->l_len - 1 > END - start)
            return -EOVERFLOW;
        r->end = start + (l->l_len - 1);
    } else if (l->l_len < 0) {
        if (start + l->l_len < 0)
            return -EINVAL;
        r->end = start - 1;
        r->start = start + l->l_len;
    }
    r->type = l->l_type;
    return l->l_type == F_RDLCK || l->l_type == F_WRLCK || l->l_type == F_UNLCK ? 0 : -EINVAL;
}

static int test(struct vfs *vfs, struct handle *h, const struct range *r, struct flock *answer)
{
    struct flock found = {.l_type = F_UNLCK};
    const struct range *own = r->type == F_UNLCK ? 0 : conflict(vfs->locks, r);
    if (r->type == F_UNLCK)          /* as of Linux 6.5: what this very description holds there */
        for (uint32_t i = 0; vfs->locks && i < vfs->locks->n && !own; i++)
            if (mine(&vfs->locks->range[i], r) && overlap(&vfs->locks->range[i], r))
                own = &vfs->locks->range[i];
    if (own)
        found = (struct flock){.l_type = own->type, .l_start = own->start, .l_len = own->end == END ? 0 : own->end - own->start + 1,
                               .l_pid = own->owner == PROCESS ? (int32_t)vfs->vm->ctl->pid : -1};
    else if (h && on_host(h) && r->type != F_UNLCK) {
        int e = table(vfs) ? host_lock(vfs, h, r, F_OFD_GETLK, &found) : -ENOMEM;
        if (e < 0)
            return e;
        found.l_pid = found.l_pid == -1 ? -1 : 0;    /* of a description, or another VM's; of a process that a guest has no number for */
    }
    if (found.l_type == F_UNLCK)
        answer->l_type = F_UNLCK;
    else
        *answer = found;
    return 0;
}

static int take(struct vfs *vfs, struct handle *h, const struct range *r)
{
    struct flock as;
    struct locks *l = table(vfs);
    int e = l ? room(l, r) : -ENOLCK;
    if (!e && r->type != F_UNLCK && conflict(l, r))
        e = -EAGAIN;
    if (!e && on_host(h))
        e = host_lock(vfs, h, r, F_OFD_SETLK, &as);
    if (!e)
        settle(l, *r);
    return e;
}

int64_t op_lock(struct vfs *vfs, const uint64_t a[6])
{
    struct flock l;
    struct range r = {.owner = PROCESS};
    uint32_t command = (uint32_t)a[2];
    int gets = command == F_GETLK || command == F_OFD_GETLK, ofd = command >= F_OFD_GETLK;
    struct handle *h = a[0] ? handle_get(vfs, a[0]) : 0;
    if (a[0] && (!h || h->access & HANDLE_PATH))
        return -EBADF;
    if (command == F_GET_SEALS || command == F_ADD_SEALS)        /* as of all files that were not made for being sealed */
        return !h || h->kind != BACK_TMP || !S_ISREG(h->mode) ? -EINVAL : command == F_GET_SEALS ? F_SEAL_SEAL : -EPERM;
    if (guest_read(vfs->vm, &l, a[1], sizeof l))
        return -EFAULT;
    if (command == F_GETLK && l.l_type != F_RDLCK && l.l_type != F_WRLCK)
        return -EINVAL;
    int e = range_of(vfs, h, &l, a[4], &r);
    if (e < 0)
        return e;
    uint8_t access = h ? h->access : a[3] == O_RDONLY ? HANDLE_READ : a[3] == O_WRONLY ? HANDLE_WRITE : HANDLE_READ | HANDLE_WRITE;
    if (!gets && l.l_type != F_UNLCK && !(access & (l.l_type == F_RDLCK ? HANDLE_READ : HANDLE_WRITE)))
        return -EBADF;
    if (ofd && l.l_pid)
        return -EINVAL;
    r.owner = ofd ? (uint32_t)a[0] : PROCESS;
    if (h && (e = file_of(vfs, h, &r)) < 0)
        return e;
    if (!gets)
        return h ? take(vfs, h, &r) : 0;             /* (pipes and their like are locked by nobody) */
    if (h)
        e = test(vfs, h, &r, &l);
    else
        l.l_type = F_UNLCK;
    return e ? e : guest_write(vfs->vm, a[1], &l, sizeof l);
}

/* Converting a lock gives the old one up first, as Linux does: it is lost where the new one is not to be had. */
int lock_whole(struct vfs *vfs, uint32_t number, struct handle *h, int op)
{
    struct range r = {.owner = number, .whole = 1, .end = END, .type = op == LOCK_SH ? F_RDLCK : op == LOCK_EX ? F_WRLCK : F_UNLCK};
    struct locks *l = table(vfs);
    int e = l ? file_of(vfs, h, &r) : -ENOLCK;
    if (e < 0 || h->lock == (op == LOCK_UN ? 0 : op))
        return e;
    if (r.type != F_UNLCK && (e = room(l, &r)) < 0)
        return e;
    struct range none = r;
    none.type = F_UNLCK;
    settle(l, none);
    h->lock = 0;
    e = r.type != F_UNLCK && conflict(l, &r) ? -EAGAIN : 0;
    if (on_host(h)) {                /* (asked even then: what is held there is to be given up) */
        int fd = description_fd(vfs, h);
        int on = fd < 0 ? fd : flock(fd, (e ? LOCK_UN : op) | LOCK_NB) < 0 ? -errno : 0;
        e = e ? e : on;
    }
    if (!e && op != LOCK_UN) {
        settle(l, r);
        h->lock = (uint8_t)op;
    }
    return e;
}

void locks_closed(struct vfs *vfs, uint32_t number, struct handle *h, int last)
{
    struct locks *l = vfs->locks;
    struct range r;
    if (!l || (!l->n && !l->files) || h->access & HANDLE_PATH)
        return;
    if (file_of(vfs, h, &r) < 0)
        return;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct range *o = &l->range[i];
        if (!(last && o->owner == number) && !(o->owner == PROCESS && same_file(o, r.dev, r.ino)))
            l->range[kept++] = *o;
    }
    l->n = kept;
    for (uint32_t i = 0; i < l->files; i++)
        if (l->file[i].ino == r.ino && l->file[i].dev == r.dev) {
            forget(vfs, l->file[i].fd);
            l->file[i] = l->file[--l->files];
            break;
        }
}

void locks_handle_gone(struct vfs *vfs, struct handle *h)
{
    if (h->lock_fd > 0)
        forget(vfs, h->lock_fd);
    h->lock_fd = 0;
}

void locks_free(struct vfs *vfs)
{
    for (uint32_t i = 0; vfs->locks && i < vfs->locks->files; i++)
        forget(vfs, vfs->locks->file[i].fd);
    if (vfs->locks)
        free(vfs->locks->file);
    free(vfs->locks);
    vfs->locks = 0;
}

int lock_told(struct vfs *vfs, uint32_t number, struct handle *h, uint32_t i, struct lock_text *out)
{
    const struct locks *l = vfs->locks;
    struct range r;
    if (!l || !l->n || file_of(vfs, h, &r) < 0)
        return 0;
    for (uint32_t k = 0; k < l->n; k++) {
        const struct range *o = &l->range[k];
        if (!same_file(o, r.dev, r.ino) || (o->owner != number && o->owner != PROCESS) || i--)
            continue;
        *out = (struct lock_text){.kind = o->whole ? "FLOCK " : o->owner == PROCESS ? "POSIX " : "OFDLCK", .type = o->type == F_WRLCK ? "WRITE" : "READ",
                                  .pid = o->owner == PROCESS || o->whole ? (int32_t)vfs->vm->ctl->pid : -1, .start = o->start, .end = o->end};
        return 1;
    }
    return 0;
}
