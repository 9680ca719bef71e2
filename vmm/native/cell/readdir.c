/* Listings: `.`, `..`, what the name tree has here, then what lies behind it. See vfs.h.
 *
 * Cookies (d_off): 1, 2 and so on count the dots, the children in the name tree and the entries of a host directory or of /proc;
 * tmpfs entries have their sequence numbers, above TMPFS_COOKIE. A host directory is read on from its descriptor's position; a cookie that is not
 * the next one means starting again and counting.
 */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "vfs.h"

struct dirent_record {                    /* the kernel's linux_dirent_record */
    uint64_t ino;
    int64_t off;
    uint16_t reclen;
    uint8_t type;
    char name[];
};
#define NAME_AT 19                   /* of the name in a record */
#define OUT 32768

struct out {
    size_t used, size;
    uint64_t last;                   /* off of the last one */
    uint8_t bytes[OUT] __attribute__((aligned(8)));
};

/* 1, or 0: does not fit any more */
static int emit(struct out *out, uint64_t ino, uint64_t off, uint32_t mode, const char *name)
{
    size_t len = strlen(name), rec = (NAME_AT + len + 1 + 7) & ~(size_t)7;
    if (rec > out->size - out->used)
        return 0;
    struct dirent_record *d = (struct dirent_record *)(out->bytes + out->used);
    memset(d, 0, rec);
    d->ino = ino;
    d->off = (int64_t)off;
    d->reclen = (uint16_t)rec;
    d->type = IFTODT(mode);
    memcpy(d->name, name, len);
    out->used += rec;
    out->last = off;
    return 1;
}

static uint64_t dir_ino(struct vfs *vfs, const char *path, const struct handle *h)
{
    struct place p;
    if (!h)
        return probe(vfs, path, &p) < 0 ? 1 : (place_done(&p), p.st.st_ino);
    struct stat st;
    return handle_stat(vfs, (struct handle *)h, &st) < 0 ? 1 : st.st_ino;
}

/* Type and number of a child in the name tree */
static void child_stat(struct vfs *vfs, const struct node *c, struct stat *st)
{
    node_stat(c, st);
    if (c->kind == NODE_MOUNT && !fstat(c->fd, st))
        return;
    if (c->kind == NODE_TMP) {
        struct tmpfs *fs = vfs_tmpfs(vfs);
        if (fs)
            tmpfs_stat(tmpfs_root(fs, c->tmp), st);
    }
    if (c->kind == NODE_TMP || c->kind == NODE_PROC)
        st->st_mode = S_IFDIR;
}

/* The host directory from its entry `at` on (dots not counted), whose cookie is base + at. 1: to its end */
static int list_host(struct handle *h, const struct listing *l, uint64_t at, uint64_t base, struct out *out)
{
    uint8_t raw[OUT] __attribute__((aligned(8)));
    if (at < h->dir_next || !at) {
        if (lseek(h->fd, 0, SEEK_SET) < 0)
            return -errno;
        h->dir_next = 0;
    }
    for (;;) {
        int64_t position = lseek(h->fd, 0, SEEK_CUR);
        long n = syscall(SYS_getdents64, h->fd, raw, sizeof raw);
        if (n <= 0)
            return n < 0 ? -errno : 1;
        for (long i = 0; i < n;) {
            const struct dirent_record *d = (const struct dirent_record *)(raw + i);
            i += d->reclen;
            int skip = !strcmp(d->name, ".") || !strcmp(d->name, "..") || (h->node && node_child(h->node, d->name, strlen(d->name))) ||
                       listing_hides(l, d->name);
            if (!skip && h->dir_next >= at && !emit(out, d->ino, base + h->dir_next + 1, DTTOIF(d->type), d->name)) {
                /* the rest comes with the next call: back to where the entry before this one ended */
                if (lseek(h->fd, position, SEEK_SET) < 0)
                    return -errno;
                return out->used ? 0 : -EINVAL;
            }
            if (!skip)
                h->dir_next++;
            position = d->off;
        }
    }
}

struct entries {
    const uint8_t *at, *end;
};

/* Names in what was listed, one after the other */
static const char *next_name(void *entries)
{
    struct entries *e = entries;
    if (e->at == e->end)
        return 0;
    const struct dirent_record *d = (const struct dirent_record *)e->at;
    e->at += d->reclen;
    return d->name;
}

int64_t handle_readdir(struct vfs *vfs, struct handle *h, uint64_t gva, uint64_t len, uint64_t cookie, uint64_t last)
{
    if (h->access & HANDLE_PATH)
        return -EBADF;
    if (!S_ISDIR(h->mode))
        return -ENOTDIR;
    if (h->kind == BACK_HOST && h->fd < 0)
        return -EBADF;
    struct out *out = malloc(sizeof *out);
    struct stat st;
    struct listing l;
    int r = 0;
    uint64_t end = UINT64_MAX;
    if (!out)
        return -ENOMEM;
    if (listing_begin(&l, vfs, h->path) < 0) {
        free(out);
        return -ENOMEM;
    }
    out->used = 0;
    out->size = len < OUT ? len : OUT;
    uint64_t at = cookie, base = 2 + (h->node ? h->node->children : 0);
    int room = 1;
    if (at == 0 && (room = emit(out, dir_ino(vfs, 0, h), 1, S_IFDIR, ".")))
        at = 1;
    if (room && at == 1) {
        char up[PATH_MAX];
        size_t n = (size_t)(strrchr(h->path, '/') - h->path);
        memcpy(up, h->path, n);
        strcpy(up + n, n ? "" : "/");
        room = emit(out, dir_ino(vfs, up, 0), 2, S_IFDIR, "..");
        at += (uint64_t)room;
    }
    const struct node *c = h->node ? h->node->child : 0;
    for (uint64_t i = 2; c && room; c = c->next, i++) {
        if (i < at)
            continue;
        if (listing_hides(&l, c->name)) {
            at++;
            continue;
        }
        child_stat(vfs, c, &st);
        room = emit(out, st.st_ino, i + 1, st.st_mode, c->name);
        at += (uint64_t)room;
    }
    if (room && h->kind == BACK_HOST) {
        if (!fstat(h->fd, &st))
            kept_seen(vfs, &st);
        r = list_host(h, &l, at - base, base, out);
        end = r > 0 ? out->last : UINT64_MAX;
    } else if (room && h->kind == BACK_TMP) {
        const struct tnode *n;
        const char *name;
        const struct tentry *e = tmpfs_first(h->tmp, at);
        for (uint64_t cookie; room && e; e = tmpfs_next(e)) {
            name = tmpfs_entry(e, &cookie, &n);
            tmpfs_stat(n, &st);
            if (!(h->node && node_child(h->node, name, strlen(name))) && !listing_hides(&l, name))
                room = emit(out, st.st_ino, cookie, st.st_mode, name);
        }
    } else if (room && h->kind == BACK_PROC) {
        char name[64];
        vfs->proc_threads = 0;
        for (int next; room && at - base <= 4096 && (next = proc_entry(vfs, h->path, (unsigned)(at - base), name, &st));) {
            at = base + (unsigned)next;
            if (!(h->node && node_child(h->node, name, strlen(name))) && !listing_hides(&l, name))
                room = emit(out, st.st_ino, at, st.st_mode, name);
        }
    }
    int64_t done = (int64_t)out->used;
    if (!done && r < 0)
        done = r;
    else if (!done && !room)
        done = -EINVAL;              /* as Linux: the buffer is too small for one entry */
    else if (done && guest_write(vfs->vm, gva, out->bytes, out->used) < 0)
        done = -EFAULT;
    if (done > 0 && last)
        guest_write(vfs->vm, last, &end, sizeof end);
    if (done > 0 && (h->kind == BACK_HOST || h->kind == BACK_TMP)) {
        struct entries entries = {out->bytes, out->bytes + out->used};
        ahead_listed(vfs, h->path, cookie, out->last, next_name, &entries);
    }
    listing_end(&l);
    free(out);
    return done;
}
