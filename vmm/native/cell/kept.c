/* What stat() finds is left with the guest for the next time it asks: struct afw_kept in abi.h. A stat costs it 33 us, one that is there 1 us.
 *
 * Nothing is left there of paths that a rule speaks of, or of /proc. All of it is void as soon as anything else is found to have been changed
 * lately: who learns that from one file must not be told how another was before. (stat(2), st_ctime: what a file is and holds changes it, and
 * so does its name, both its own and its directory's. System mounts do not change under us in a way that matters.)
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "vfs.h"

#define LIFE 1000000                 /* ns after which what is new begins another table: it is good for 2 ms */
#define RECENT 20000000              /* ns: more than those 2 ms, and a tick of the clock that st_ctime is taken from */

static int recent(const struct stat *st)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return (int64_t)(now.tv_sec - st->st_ctim.tv_sec) * 1000000000 + now.tv_nsec - st->st_ctim.tv_nsec < RECENT;
}

uint64_t kept_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void kept_seen(struct vfs *vfs, const struct stat *st)
{
    vfs->kept.news |= (uint32_t)recent(st);
}

void kept_looked(struct vfs *vfs, const struct place *p)
{
    struct stat st;
    char up[PATH_MAX];
    const char *slash = strrchr(p->rel, '/');
    size_t n = slash ? (size_t)(slash - p->rel) : 0;
    if (p->exists)
        kept_seen(vfs, &p->st);
    if (p->back->flags & AFW_MOUNT_SYSTEM || !*p->rel)
        return;
    memcpy(up, p->rel, n);
    up[n] = 0;
    /* By no symlink: one that the guest made leads to where it must not even learn what there is. (The walk goes by it step by step.) */
    int fd = n ? host_open(p->back, up, O_PATH, 0) : p->back->fd;
    if (fd == -ELOOP)
        return;
    if (fd < 0 || fstat(fd, &st) < 0)
        vfs->kept.news = 1;
    else
        kept_seen(vfs, &st);
    if (n && fd >= 0)
        close(fd);
}

void kept_void(struct vfs *vfs)
{
    uint64_t at = AFW_CTL + offsetof(struct afw_ctl, changes), changes;
    if (!guest_read(vfs->vm, &changes, at, sizeof changes)) {
        changes++;
        guest_write(vfs->vm, at, &changes, sizeof changes);
    }
    vfs->kept.news = 0;
}

int kept_news(struct vfs *vfs)
{
    int news = vfs->kept.news != 0;
    if (news)
        kept_void(vfs);
    return news;
}

/* Room for `size` bytes more behind what is there, or, for what was asked for, instead. 0: where */
static int room(struct vfs *vfs, uint64_t at, uint64_t size, int more, uint64_t *where)
{
    struct kept *k = &vfs->kept;
    uint64_t changes;
    if (guest_read(vfs->vm, &changes, AFW_CTL + offsetof(struct afw_ctl, changes), sizeof changes))
        return -EFAULT;
    if (!more && (!k->head.n || changes != k->head.changes || at - k->head.at > LIFE || k->used + size > AFW_KEPT_SIZE / 2)) {
        k->used = sizeof k->head;
        k->head.n = 0;
        k->head.changes = changes;
        k->head.at = at;
    }
    *where = AFW_KEPT + k->used;
    return size > AFW_KEPT_SIZE - k->used || changes != k->head.changes ? -ENOMEM : 0;
}

static int add(struct vfs *vfs, uint64_t at, const char *path, int flags, int result, const struct stat *st, int more)
{
    struct kept *k = &vfs->kept;
    struct { struct afw_kept_stat s; char more[PATH_MAX]; } one;
    size_t n = strlen(path), size = (offsetof(struct afw_kept_stat, path) + n + 1 + 7) & ~(size_t)7;
    uint64_t where;
    _Static_assert(sizeof *st == sizeof one.s.st, "struct stat");
    if (k->off || flags & ~AT_SYMLINK_NOFOLLOW || room(vfs, at, size, more, &where))
        return -1;
    memset(&one.s, 0, sizeof one.s);
    one.s.size = (uint32_t)size;
    one.s.key = (uint32_t)flags;
    for (size_t i = 0; i < n; i++)
        one.s.key = one.s.key * 31 + (uint8_t)path[i];
    one.s.result = result;
    if (!result)
        memcpy(one.s.st, st, sizeof *st);
    memset((char *)&one + size - 8, 0, 8);
    memcpy((char *)&one + offsetof(struct afw_kept_stat, path), path, n);
    k->head.n++;
    if (guest_write(vfs->vm, where, &one, size) || guest_write(vfs->vm, AFW_KEPT, &k->head, sizeof k->head))
        return -1;
    k->used += (uint32_t)size;
    return 0;
}

int kept_add(struct vfs *vfs, uint64_t at, const char *path, int flags, int result, const struct stat *st)
{
    return add(vfs, at, path, flags, result, st, 0);
}

int kept_more(struct vfs *vfs, uint64_t at, const char *path, int flags, const struct place *dir, const struct stat *st)
{
    if (!st)
        return add(vfs, at, path, flags, -ENOENT, 0, 1);
    return dir->kind == BACK_HOST && recent(st) ? 1 : add(vfs, at, path, flags, 0, st, 1);     /* (it would be news) */
}

void kept_wipe(struct vm *vm)
{
    kept_void(vm->vfs);
    memset(&vm->vfs->kept, 0, offsetof(struct kept, off));
    uint64_t *p = guest_range(vm, AFW_KEPT, AFW_SITES - AFW_KEPT);
    for (size_t i = 0; p && i < (AFW_SITES - AFW_KEPT) / sizeof *p; i++)
        if (p[i])                    /* (a page that is written to is there) */
            p[i] = 0;
}
