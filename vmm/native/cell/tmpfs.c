/* Private in-memory directories of a VM: nodes, names, quota. See vfs.h; what files hold is in tmpdata.c.
 *
 * All nodes belong to the guest's user, who is not root: the owner's permission bits count. Names hang in one hash table a tmpfs and in a
 * list a directory, in the order in which they came; each has a sequence number, which is the cookie of listings.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
#include "tmpfs.h"

#define STATFS_MAGIC 0x01021994

static void now(struct timespec *ts)
{
    clock_gettime(CLOCK_REALTIME, ts);
}

static uint64_t hash(const struct tmpfs *fs, const struct tnode *dir, const char *name, size_t len)
{
    uint64_t h = fs->seed ^ dir->ino * 0x9e3779b97f4a7c15;
    for (size_t i = 0; i < len; i++) {
        h = (h ^ (uint8_t)name[i]) * 0x100000001b3;
        h ^= h >> 29;
    }
    return (h ^ h >> 32) & (fs->buckets - 1);
}

static struct tentry *entry_find(const struct tmpfs *fs, const struct tnode *dir, const char *name, size_t len)
{
    struct tentry *e = fs->table[hash(fs, dir, name, len)];
    while (e && (e->dir != dir || e->len != len || memcmp(e->name, name, len)))
        e = e->hash_next;
    return e;
}

static void table_grow(struct tmpfs *fs)
{
    struct tentry **old = fs->table, **table = calloc(fs->buckets * 2, sizeof *table);
    uint32_t n = fs->buckets;
    if (!table)
        return;                      /* longer chains, nothing worse */
    fs->table = table;
    fs->buckets = n * 2;
    for (uint32_t i = 0; i < n; i++)
        for (struct tentry *e = old[i], *next; e; e = next) {
            next = e->hash_next;
            uint64_t h = hash(fs, e->dir, e->name, e->len);
            e->hash_next = table[h];
            table[h] = e;
        }
    free(old);
}

/* Puts a new entry into dir; the caller has made room in the quota and counts links. */
static int entry_add(struct tmpfs *fs, struct tnode *dir, const char *name, struct tnode *node)
{
    size_t len = strlen(name);
    struct tentry *e = malloc(sizeof *e + len + 1);
    if (!e)
        return -ENOMEM;
    if (fs->entries >= fs->buckets)
        table_grow(fs);
    uint64_t h = hash(fs, dir, name, len);
    memcpy(e->name, name, len + 1);
    e->len = (uint32_t)len;
    e->dir = dir;
    e->node = node;
    e->seq = ++fs->seq;
    e->hash_next = fs->table[h];
    fs->table[h] = e;
    e->next = 0;
    e->prev = dir->last;
    *(dir->last ? &dir->last->next : &dir->first) = e;
    dir->last = e;
    dir->count++;
    fs->entries++;
    now(&dir->mtime);
    dir->ctime = dir->mtime;
    return 0;
}

static void entry_del(struct tmpfs *fs, struct tentry *e)
{
    struct tnode *dir = e->dir;
    struct tentry **at = &fs->table[hash(fs, dir, e->name, e->len)];
    while (*at != e)
        at = &(*at)->hash_next;
    *at = e->hash_next;
    *(e->prev ? &e->prev->next : &dir->first) = e->next;
    *(e->next ? &e->next->prev : &dir->last) = e->prev;
    dir->count--;
    fs->entries--;
    now(&dir->mtime);
    dir->ctime = dir->mtime;
    free(e);
}

static struct tnode *node_make(struct tmpfs *fs, uint32_t mode)
{
    struct tnode *n = calloc(1, sizeof *n);
    if (!n)
        return 0;
    n->ino = ++fs->ino;
    n->mode = mode;
    n->fd = -1;
    n->nlink = S_ISDIR(mode) ? 2 : 1;
    now(&n->atime);
    n->mtime = n->ctime = n->atime;
    n->all_next = fs->all;
    if (fs->all)
        fs->all->all_prev = n;
    fs->all = n;
    return n;
}

static void node_drop(struct tmpfs *fs, struct tnode *n)
{
    if (n->nlink || n->refs)
        return;
    tmpdata_free(fs, n);
    if (n->target)
        fs->bytes_used -= tmpfs_charge(strlen(n->target));
    free(n->target);
    *(n->all_prev ? &n->all_prev->all_next : &fs->all) = n->all_next;
    if (n->all_next)
        n->all_next->all_prev = n->all_prev;
    fs->inodes_used--;
    free(n);
}

struct tmpfs *tmpfs_new(struct vfs *vfs, uint64_t bytes, uint64_t inodes, uint32_t roots)
{
    struct tmpfs *fs = calloc(1, sizeof *fs);
    if (!fs)
        return 0;
    fs->vfs = vfs;
    fs->bytes = bytes;
    fs->inodes = inodes;
    fs->roots = roots;
    fs->buckets = 64;
    fs->seq = TMPFS_COOKIE;
    const void *random = (const void *)getauxval(AT_RANDOM);
    if (random)
        memcpy(&fs->seed, random, sizeof fs->seed);
    fs->table = calloc(fs->buckets, sizeof *fs->table);
    fs->root = calloc(roots, sizeof *fs->root);
    for (uint32_t i = 0; fs->root && i < roots; i++) {
        fs->root[i] = node_make(fs, S_IFDIR | S_ISVTX | 0777);
        if (!fs->root[i])
            roots = 0;
        else
            fs->root[i]->refs = 1;
    }
    if (!fs->table || !fs->root || !roots) {
        tmpfs_free(fs);
        return 0;
    }
    return fs;
}

void tmpfs_free(struct tmpfs *fs)
{
    for (uint32_t i = 0; fs->table && i < fs->buckets; i++)
        for (struct tentry *e = fs->table[i], *next; e; e = next) {
            next = e->hash_next;
            free(e);
        }
    for (struct tnode *n = fs->all, *next; n; n = next) {
        next = n->all_next;
        tmpdata_free(fs, n);
        free(n->target);
        free(n);
    }
    free(fs->table);
    free(fs->root);
    free(fs);
}

struct tnode *tmpfs_root(struct tmpfs *fs, uint32_t i)
{
    return fs->root[i];
}

int tmpfs_may(const struct tnode *n, int mask)
{
    return ((n->mode >> 6) & (uint32_t)mask) == (uint32_t)mask ? 0 : -EACCES;
}

int tmpfs_lookup(struct tmpfs *fs, struct tnode *dir, const char *rel, struct tnode **node)
{
    while (*rel) {
        size_t len = strcspn(rel, "/");
        if (S_ISLNK(dir->mode))
            return -ELOOP;
        if (!S_ISDIR(dir->mode))
            return -ENOTDIR;
        if (tmpfs_may(dir, X_OK))
            return -EACCES;
        if (len > NAME_MAX)
            return -ENAMETOOLONG;
        struct tentry *e = entry_find(fs, dir, rel, len);
        if (!e)
            return -ENOENT;
        dir = e->node;
        rel += len + (rel[len] == '/');
    }
    *node = dir;
    return 0;
}

void tmpfs_stat(const struct tnode *n, struct stat *st)
{
    memset(st, 0, sizeof *st);
    st->st_dev = VFS_DEV_TMP;
    st->st_ino = n->ino;
    st->st_mode = n->mode;
    st->st_nlink = n->nlink;
    st->st_uid = st->st_gid = VFS_UID;
    st->st_blksize = 4096;
    st->st_size = (off_t)(S_ISDIR(n->mode) ? 40 + n->count * 20 : n->target ? strlen(n->target) : n->size);
    st->st_blocks = S_ISREG(n->mode) ? (blkcnt_t)(tmpfs_charge(n->size) / 512) : 0;
    st->st_atim = n->atime;
    st->st_mtim = n->mtime;
    st->st_ctim = n->ctime;
}

const char *tmpfs_target(const struct tnode *n)
{
    return n->target;
}

/* May a name be made in, or taken from, dir? An unlinked directory takes none. */
static int dir_may(const struct tnode *dir)
{
    return dir->nlink ? tmpfs_may(dir, W_OK | X_OK) : -ENOENT;
}

static int node_charged(struct tmpfs *fs, uint32_t mode, const char *target, struct tnode **out)
{
    uint64_t charge = target ? tmpfs_charge(strlen(target)) : 0;
    if (fs->inodes_used >= fs->inodes || charge > fs->bytes - fs->bytes_used)
        return -ENOSPC;
    struct tnode *n = node_make(fs, mode);
    if (!n)
        return -ENOMEM;
    fs->inodes_used++;
    n->target = target ? strdup(target) : 0;
    if (target && !n->target) {
        n->nlink = 0;
        node_drop(fs, n);
        return -ENOMEM;
    }
    fs->bytes_used += charge;
    *out = n;
    return 0;
}

int tmpfs_create(struct tmpfs *fs, struct tnode *dir, const char *name, uint32_t mode, const char *target, struct tnode **out)
{
    struct tnode *n = 0;
    if (strlen(name) > NAME_MAX)
        return -ENAMETOOLONG;
    if (entry_find(fs, dir, name, strlen(name)))
        return -EEXIST;
    int r = dir_may(dir);
    if (S_ISDIR(mode))
        mode |= dir->mode & S_ISGID;
    if (!r)
        r = node_charged(fs, mode, target, &n);
    if (r < 0)
        return r;
    r = entry_add(fs, dir, name, n);
    if (r < 0) {
        n->nlink = 0;
        node_drop(fs, n);
        return r;
    }
    if (S_ISDIR(mode)) {
        dir->nlink++;
        n->up = dir;
    }
    *out = n;
    return 0;
}

int tmpfs_anonymous(struct tmpfs *fs, struct tnode *dir, uint32_t mode, int linkable, struct tnode **out)
{
    int r = dir_may(dir);
    if (!r)
        r = node_charged(fs, mode, 0, out);
    if (!r) {
        (*out)->nlink = 0;           /* the caller's reference keeps it */
        (*out)->unnamed = (uint8_t)linkable;
    }
    return r;
}

int tmpfs_node(struct tmpfs *fs, uint32_t mode, const char *target, struct tnode **out)
{
    int r = node_charged(fs, mode, target, out);
    if (!r)
        (*out)->nlink = 0;
    return r;
}

int tmpfs_enter(struct tmpfs *fs, struct tnode *dir, const char *name, struct tnode *n)
{
    int is_dir = S_ISDIR(n->mode);
    if (entry_find(fs, dir, name, strlen(name)) || (is_dir && (n->up || n == dir)))
        return -EEXIST;
    if (!is_dir && n->nlink && fs->inodes_used >= fs->inodes)
        return -ENOSPC;
    int r = entry_add(fs, dir, name, n);
    if (r < 0)
        return r;
    fs->inodes_used += !is_dir && n->nlink;
    n->nlink += is_dir ? 2 : 1;
    if (is_dir) {
        n->up = dir;
        dir->nlink++;
    }
    return 0;
}

int tmpfs_unlink(struct tmpfs *fs, struct tnode *dir, const char *name, int rmdir)
{
    struct tentry *e = entry_find(fs, dir, name, strlen(name));
    if (!e)
        return -ENOENT;
    struct tnode *n = e->node;
    int r = dir_may(dir);
    if (r < 0)
        return r;
    if (S_ISDIR(n->mode) ? !rmdir : rmdir)
        return rmdir ? -ENOTDIR : -EISDIR;
    if (rmdir && n->count)
        return -ENOTEMPTY;
    entry_del(fs, e);
    if (S_ISDIR(n->mode)) {
        dir->nlink--;
        n->nlink = 0;
        n->up = 0;
    } else {
        if (n->nlink > 1)
            fs->inodes_used--;       /* what the link was charged */
        n->nlink--;
    }
    now(&n->ctime);
    node_drop(fs, n);
    return 0;
}

int tmpfs_link(struct tmpfs *fs, struct tnode *n, struct tnode *dir, const char *name)
{
    if (S_ISDIR(n->mode))
        return -EPERM;
    if (strlen(name) > NAME_MAX)
        return -ENAMETOOLONG;
    if (entry_find(fs, dir, name, strlen(name)))
        return -EEXIST;
    int r = dir_may(dir);
    if (r < 0)
        return r;
    if (!n->nlink && !n->unnamed)
        return -ENOENT;
    if (n->nlink && fs->inodes_used >= fs->inodes)   /* a link costs an inode, as on Linux: names take memory */
        return -ENOSPC;
    r = entry_add(fs, dir, name, n);
    if (r < 0)
        return r;
    fs->inodes_used += n->nlink > 0;
    n->nlink++;
    n->unnamed = 0;
    now(&n->ctime);
    return 0;
}

/* Is dir below (or at) n? Unlinked directories have no way up. */
static int is_below(const struct tnode *dir, const struct tnode *n)
{
    while (dir) {
        if (dir == n)
            return 1;
        dir = dir->up;
    }
    return 0;
}

static void moved(struct tnode *n, struct tnode *from, struct tnode *to)
{
    if (S_ISDIR(n->mode) && from != to) {
        from->nlink--;
        to->nlink++;
    }
    if (S_ISDIR(n->mode))
        n->up = to;
    now(&n->ctime);
}

int tmpfs_rename(struct tmpfs *fs, struct tnode *from, const char *name, struct tnode *to, const char *new_name, unsigned flags)
{
    struct tentry *e = entry_find(fs, from, name, strlen(name)), *f = entry_find(fs, to, new_name, strlen(new_name));
    int r;
    if (!e)
        return -ENOENT;
    if (strlen(new_name) > NAME_MAX)
        return -ENAMETOOLONG;
    if (f && (flags & RENAME_NOREPLACE))
        return -EEXIST;
    if (!f && (flags & RENAME_EXCHANGE))
        return -ENOENT;
    if (S_ISDIR(e->node->mode) && is_below(to, e->node))
        return -EINVAL;
    if (f && S_ISDIR(f->node->mode) && is_below(from, f->node))
        return flags & RENAME_EXCHANGE ? -EINVAL : -ENOTEMPTY;
    if (f && f->node == e->node)
        return 0;
    if ((r = dir_may(from)) < 0 || (r = dir_may(to)) < 0)
        return r;
    /* A directory that gets another parent is written to: its `..` */
    int written = from != to && S_ISDIR(e->node->mode) && tmpfs_may(e->node, W_OK);
    if (flags & RENAME_EXCHANGE) {
        if (written || (from != to && S_ISDIR(f->node->mode) && tmpfs_may(f->node, W_OK)))
            return -EACCES;
        struct tnode *n = e->node;
        e->node = f->node;
        f->node = n;
        moved(n, from, to);
        moved(e->node, to, from);
        now(&from->mtime);
        from->ctime = to->ctime = to->mtime = from->mtime;
        return 0;
    }
    if (f && S_ISDIR(f->node->mode) && !S_ISDIR(e->node->mode))
        return -EISDIR;
    if (f && !S_ISDIR(f->node->mode) && S_ISDIR(e->node->mode))
        return -ENOTDIR;
    if (written)
        return -EACCES;
    if (f && S_ISDIR(f->node->mode) && f->node->count)
        return -ENOTEMPTY;
    struct tnode *n = e->node;
    r = entry_add(fs, to, new_name, n);              /* first what can fail; a double name is gone in a moment */
    if (r < 0)
        return r;
    if (f) {
        struct tnode *old = f->node;
        entry_del(fs, f);
        if (S_ISDIR(old->mode)) {
            to->nlink--;
            old->nlink = 0;
            old->up = 0;
        } else {
            if (old->nlink > 1)
                fs->inodes_used--;
            old->nlink--;
        }
        now(&old->ctime);
        node_drop(fs, old);
    }
    entry_del(fs, e);
    moved(n, from, to);
    return 0;
}

int tmpfs_chmod(struct tnode *n, uint32_t mode)
{
    n->mode = (n->mode & S_IFMT) | (mode & 07777);
    now(&n->ctime);
    return 0;
}

int tmpfs_utimens(struct tnode *n, const struct timespec times[2])
{
    struct timespec t;
    now(&t);
    for (int i = 0; i < 2; i++)
        if (times && times[i].tv_nsec != UTIME_NOW && times[i].tv_nsec != UTIME_OMIT && (uint64_t)times[i].tv_nsec >= 1000000000)
            return -EINVAL;
    struct timespec *at[2] = {&n->atime, &n->mtime};
    for (int i = 0; i < 2; i++)
        if (!times || times[i].tv_nsec == UTIME_NOW)
            *at[i] = t;
        else if (times[i].tv_nsec != UTIME_OMIT)
            *at[i] = times[i];
    n->ctime = t;
    return 0;
}

void tmpfs_ref(struct tnode *n)
{
    n->refs++;
}

void tmpfs_unref(struct tmpfs *fs, struct tnode *n)
{
    n->refs--;
    node_drop(fs, n);
}

const struct tentry *tmpfs_first(const struct tnode *dir, uint64_t cookie)
{
    const struct tentry *e = dir->first;
    if (cookie > TMPFS_COOKIE && dir->last && cookie >= dir->last->seq)
        return 0;
    while (e && e->seq <= cookie)
        e = e->next;
    return e;
}

const struct tentry *tmpfs_next(const struct tentry *e)
{
    return e->next;
}

const char *tmpfs_entry(const struct tentry *e, uint64_t *cookie, const struct tnode **node)
{
    *cookie = e->seq;
    *node = e->node;
    return e->name;
}

void tmpfs_statfs(const struct tmpfs *fs, struct statfs *out)
{
    memset(out, 0, sizeof *out);
    out->f_type = STATFS_MAGIC;
    out->f_bsize = out->f_frsize = 4096;
    out->f_blocks = fs->bytes / 4096;
    out->f_bfree = out->f_bavail = (fs->bytes - fs->bytes_used) / 4096;
    out->f_files = fs->inodes;
    out->f_ffree = fs->inodes - fs->inodes_used;
    out->f_namelen = NAME_MAX;
}
