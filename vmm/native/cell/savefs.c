/* A VM's private tree, open handles and current directory as bytes, and back. See save.c.
 *
 * What is read back was written by a cell that a guest may have taken over: every count, length, index and order is checked. Quotas
 * are reckoned anew.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include "tmpfs.h"

struct saved_fs {
    uint64_t ino, seq;
    uint32_t files, roots, entries, handles;
    uint32_t cwd, has_tmpfs;
};
struct saved_file {
    uint64_t ino, size, place;       /* place: of its content in the data */
    int64_t times[6];
    uint32_t mode, root;             /* root: 1 + which; 0: none */
    uint32_t target, reserved;       /* bytes of the symlink's target, which follow */
};
struct saved_entry {                 /* a directory's in their order, the name follows */
    uint64_t seq;
    uint32_t dir, file;
    uint32_t len, reserved;
};
struct saved_handle {                /* the path follows, then owned content */
    uint64_t pos, dev, ino, owned;
    uint32_t number, kind, access, lock;
    uint32_t mode, file;             /* file: 1 + number of a private one */
    uint32_t path, reserved;
    struct stat st;
};
struct loading {                     /* between vfs_load() and vfs_loaded() */
    struct tnode **file;
    uint32_t files;
    struct { uint64_t dev, ino; } *host;   /* by handle number - 1: what the file must be */
};

/* ---- to bytes ---- */

int buffer_add(struct buffer *b, const void *data, size_t n)
{
    if (n > b->room - b->size) {
        size_t room = (b->room + n) * 2;
        uint8_t *p = realloc(b->data, room);
        if (!p)
            return -ENOMEM;
        b->data = p;
        b->room = room;
    }
    memcpy(b->data + b->size, data, n);
    b->size += n;
    return 0;
}

int vfs_file_number(const struct tnode *file)
{
    return (int)file->number;
}

static int add_file(struct buffer *out, struct tmpfs *fs, const struct tnode *n, uint64_t *place)
{
    struct saved_file f = {.ino = n->ino, .size = n->size, .place = *place, .mode = n->mode, .target = n->target ? (uint32_t)strlen(n->target) : 0,
                           .times = {n->atime.tv_sec, n->atime.tv_nsec, n->mtime.tv_sec, n->mtime.tv_nsec, n->ctime.tv_sec, n->ctime.tv_nsec}};
    for (uint32_t i = 0; i < fs->roots; i++)
        if (fs->root[i] == n)
            f.root = i + 1;
    *place += tmpfs_charge(n->size);
    int e = buffer_add(out, &f, sizeof f);
    return e || !n->target ? e : buffer_add(out, n->target, f.target);
}

static int add_entries(struct buffer *out, const struct tnode *dir, uint32_t *count)
{
    int e = 0;
    for (const struct tentry *t = dir->first; t && !e; t = t->next) {
        struct saved_entry s = {.seq = t->seq, .dir = dir->number, .file = t->node->number, .len = t->len};
        e = buffer_add(out, &s, sizeof s);
        if (!e)
            e = buffer_add(out, t->name, t->len);
        ++*count;
    }
    return e;
}

static int add_handle(struct buffer *out, uint32_t number, const struct handle *h)
{
    struct stat st;
    struct saved_handle s = {.pos = h->pos, .number = number, .kind = h->kind, .access = h->access, .lock = h->lock, .mode = h->mode, .st = h->st,
                             .file = h->tmp ? h->tmp->number + 1 : 0, .path = (uint32_t)strlen(h->path), .owned = h->owned ? h->size : 0};
    if (h->kind == BACK_HOST && !fstat(h->fd, &st)) {
        s.dev = st.st_dev;
        s.ino = st.st_ino;
    }
    int e = buffer_add(out, &s, sizeof s);
    if (!e)
        e = buffer_add(out, h->path, s.path);
    return e || !s.owned ? e : buffer_add(out, h->owned, s.owned);
}

int vfs_save(struct vfs *vfs, struct buffer *out, uint64_t *data_size)
{
    struct tmpfs *fs = vfs->tmpfs;
    struct saved_fs head = {.cwd = (uint32_t)strlen(vfs->cwd), .has_tmpfs = fs != 0, .handles = vfs->open};
    uint64_t place = 0;
    size_t at = out->size;
    int e = buffer_add(out, &head, sizeof head);
    if (!e)
        e = buffer_add(out, vfs->cwd, head.cwd);
    for (struct tnode *n = fs ? fs->all : 0; n && !e; n = n->all_next) {
        n->number = head.files++;
        e = add_file(out, fs, n, &place);
    }
    for (struct tnode *n = fs ? fs->all : 0; n && !e; n = n->all_next)
        e = add_entries(out, n, &head.entries);
    for (uint32_t i = 0; i < vfs->slots && !e; i++)
        if (vfs->handle[i])
            e = add_handle(out, i + 1, vfs->handle[i]);
    if (fs) {
        head.ino = fs->ino;
        head.seq = fs->seq;
        head.roots = fs->roots;
    }
    *data_size = place;
    if (!e)
        memcpy(out->data + at, &head, sizeof head);
    return e;
}

int vfs_save_data(struct vfs *vfs, int fd, uint64_t base, uint64_t *at, uint64_t budget)
{
    uint64_t place = 0, end = *at + budget;
    int e = 0;
    for (struct tnode *n = vfs->tmpfs->all; n && !e && *at < end; n = n->all_next) {
        uint64_t next = place + tmpfs_charge(n->size);
        if (*at < next) {
            uint64_t from = *at - place, room = tmpfs_charge(end - *at), size = n->size - from < room ? n->size - from : room;
            e = tmpdata_copy_out(n, from, size, fd, base + *at);
            *at += tmpfs_charge(size);
        }
        place = next;
    }
    return e;
}

/* ---- and back ---- */

struct reader {
    const uint8_t *p, *end;
    int bad;
};

static const void *take(struct reader *r, uint64_t n)
{
    const uint8_t *p = r->p;
    if (r->bad || n > (uint64_t)(r->end - p)) {
        r->bad = 1;
        return 0;
    }
    r->p += n;
    return p;
}

static int get(struct reader *r, void *out, size_t n)
{
    const void *p = take(r, n);
    if (!p)
        return -EINVAL;
    memcpy(out, p, n);
    return 0;
}

/* malloc()ed text without NULs */
static int text(struct reader *r, uint64_t n, uint64_t max, char **out)
{
    const char *p = n <= max ? take(r, n) : 0;
    if (!p || memchr(p, 0, n))
        return -EINVAL;
    *out = strndup(p, n);
    return *out ? 0 : -ENOMEM;
}

static int canonical(const char *path)
{
    if (*path != '/')
        return 0;
    for (const char *s = path; *s && path[1];) {
        size_t n = strcspn(++s, "/");
        if (!n || n > NAME_MAX || (s[0] == '.' && (n == 1 || (n == 2 && s[1] == '.'))))
            return 0;
        s += n;
    }
    return 1;
}

static int is_root(const struct tmpfs *fs, const struct tnode *n)
{
    for (uint32_t i = 0; i < fs->roots; i++)
        if (fs->root[i] == n)
            return 1;
    return 0;
}

static int load_file(struct vfs *vfs, struct reader *r, const struct saved_fs *head, uint32_t i, int fd, uint64_t data, uint64_t data_size)
{
    struct tmpfs *fs = vfs->tmpfs;
    struct loading *l = vfs->loading;
    struct saved_file f;
    char *target = 0;
    int e = get(r, &f, sizeof f);
    if (e)
        return e;
    uint32_t type = f.mode & S_IFMT;
    if ((f.mode & ~(uint32_t)(S_IFMT | 07777)) || (type != S_IFREG && type != S_IFDIR && type != S_IFLNK && type != S_IFSOCK && type != S_IFIFO) || (type == S_IFLNK) != !!f.target ||
        (type != S_IFREG && f.size) || f.root > head->roots || (f.root && type != S_IFDIR) || !f.ino || f.ino > head->ino)
        return -EINVAL;
    if (f.size && (f.place > data_size || f.size > data_size - f.place))
        return -EINVAL;
    if (f.target && (e = text(r, f.target, PATH_MAX - 1, &target)))
        return e;
    struct tnode *n;
    if (f.root) {
        n = tmpfs_root(fs, f.root - 1);
        if (n->ino != UINT64_MAX)
            return -EINVAL;          /* that root came before */
    } else {
        e = tmpfs_node(fs, f.mode, target, &n);
        free(target);
        if (e)
            return e;
        n->refs++;                   /* until all is there */
    }
    l->file[i] = n;
    n->ino = f.ino;
    n->mode = f.mode;
    if (f.size)
        e = tmpdata_copy_in(fs, n, f.size, fd, data + f.place);
    n->atime = (struct timespec){f.times[0], f.times[1]};
    n->mtime = (struct timespec){f.times[2], f.times[3]};
    n->ctime = (struct timespec){f.times[4], f.times[5]};
    return e;
}

static int load_entry(struct vfs *vfs, struct reader *r, const struct saved_fs *head)
{
    struct loading *l = vfs->loading;
    struct saved_entry s;
    char *name = 0;
    int e = get(r, &s, sizeof s);
    if (!e && (s.dir >= l->files || s.file >= l->files || s.seq > head->seq || s.seq <= TMPFS_COOKIE || !s.len))
        e = -EINVAL;
    if (!e)
        e = text(r, s.len, NAME_MAX, &name);
    if (e)
        return e;
    struct tnode *dir = l->file[s.dir], *n = l->file[s.file];
    if (!S_ISDIR(dir->mode) || is_root(vfs->tmpfs, n) || strchr(name, '/') || !strcmp(name, ".") || !strcmp(name, "..") || (dir->last && dir->last->seq >= s.seq))
        e = -EINVAL;
    struct timespec mtime = dir->mtime, ctime = dir->ctime;
    if (!e)
        e = tmpfs_enter(vfs->tmpfs, dir, name, n);
    if (!e) {
        dir->last->seq = s.seq;
        dir->mtime = mtime;
        dir->ctime = ctime;
    }
    free(name);
    return e;
}

/* No directory lies in itself, and what holds names can be reached. */
static int check_tree(const struct tmpfs *fs, const struct loading *l)
{
    for (uint32_t i = 0; i < l->files; i++) {
        const struct tnode *d = l->file[i];
        for (uint32_t steps = 0; d->up; d = d->up)
            if (steps++ > PATH_MAX)
                return -EINVAL;
        if (l->file[i]->count && !is_root(fs, d))
            return -EINVAL;
    }
    return 0;
}

static int load_tree(struct vfs *vfs, struct reader *r, const struct saved_fs *head, int fd, uint64_t data, uint64_t data_size)
{
    if (head->roots != vfs_tmp_roots || head->files > vfs_tmp_inodes + vfs_tmp_roots || head->files < head->roots || !head->roots)
        return -EINVAL;
    vfs->tmpfs = tmpfs_new(vfs, vfs_tmp_bytes, vfs_tmp_inodes, vfs_tmp_roots);
    vfs->loading->file = calloc(head->files, sizeof *vfs->loading->file);
    if (!vfs->tmpfs || !vfs->loading->file)
        return -ENOMEM;
    int e = 0;
    for (uint32_t i = 0; i < head->roots; i++)
        vfs->tmpfs->root[i]->ino = UINT64_MAX;
    for (uint32_t i = 0; i < head->files && !e; i++) {
        e = load_file(vfs, r, head, i, fd, data, data_size);
        vfs->loading->files += !e;
    }
    for (uint32_t i = 0; i < head->roots && !e; i++)
        e = vfs->tmpfs->root[i]->ino == UINT64_MAX ? -EINVAL : 0;
    for (uint32_t i = 0; i < head->entries && !e; i++)
        e = load_entry(vfs, r, head);
    if (!e)
        e = check_tree(vfs->tmpfs, vfs->loading);
    vfs->tmpfs->ino = head->ino;
    vfs->tmpfs->seq = head->seq;
    return e;
}

static int load_handle(struct vfs *vfs, struct reader *r)
{
    struct saved_handle s;
    char *path = 0;
    int e = get(r, &s, sizeof s);
    if (!e && (!s.number || s.number > VFS_HANDLES || s.kind > BACK_PROC || (s.access & ~(uint32_t)(HANDLE_READ | HANDLE_WRITE | HANDLE_PATH)) ||
               (s.kind == BACK_TMP) != !!s.file || s.owned > VFS_PROC_MAX || (s.owned && s.kind != BACK_PROC) || vfs->synth_bytes + s.owned > (8u << 20)))
        e = -EINVAL;
    if (!e && s.file && s.file > vfs->loading->files)
        e = -EINVAL;
    if (!e)
        e = text(r, s.path, PATH_MAX - 1, &path);
    const void *owned = !e && s.owned ? take(r, s.owned) : 0;
    if (!e && (!canonical(path) || r->bad))
        e = -EINVAL;
    struct handle *h = 0;
    if (!e)
        e = handle_at(vfs, s.number, path, &h);
    free(path);
    if (e)
        return e;
    h->kind = s.kind;
    h->access = (uint8_t)s.access;
    h->pos = s.pos;
    h->mode = s.mode;
    h->st = s.st;
    if (owned) {
        h->owned = malloc(s.owned);
        if (!h->owned)
            return -ENOMEM;
        memcpy(h->owned, owned, s.owned);
        h->data = h->owned;
        h->size = s.owned;
        vfs->synth_bytes += s.owned;
    }
    vfs->loading->host[s.number - 1].dev = s.dev;
    vfs->loading->host[s.number - 1].ino = s.ino;
    if (s.kind == BACK_TMP) {
        struct tnode *n = vfs->loading->file[s.file - 1];
        if ((n->mode & S_IFMT) != (s.mode & S_IFMT))
            return -EINVAL;
        h->tmp = n;
        tmpfs_ref(n);
        if (s.lock == LOCK_SH || s.lock == LOCK_EX)
            return lock_whole(vfs, s.number, h, (int)s.lock) ? -EINVAL : 0;
    } else
        h->lost = !h->owned;         /* until it is opened again */
    return 0;
}

int vfs_load(struct vfs *vfs, const uint8_t *p, uint64_t size, int fd, uint64_t data, uint64_t data_size)
{
    struct reader r = {p, p + size, 0};
    struct saved_fs head;
    char *cwd = 0;
    int e = get(&r, &head, sizeof head);
    if (!e)
        e = text(&r, head.cwd, PATH_MAX - 1, &cwd);
    if (!e && canonical(cwd))
        strcpy(vfs->cwd, cwd);
    free(cwd);
    vfs->loading = calloc(1, sizeof *vfs->loading);
    if (vfs->loading)
        vfs->loading->host = calloc(VFS_HANDLES, sizeof *vfs->loading->host);
    if (!vfs->loading || !vfs->loading->host)
        return -ENOMEM;
    if (!e && head.has_tmpfs)
        e = load_tree(vfs, &r, &head, fd, data, data_size);
    for (uint32_t i = 0; i < head.handles && !e; i++)
        e = load_handle(vfs, &r);
    return e ? e : r.p == r.end ? 0 : -EINVAL;
}

struct tnode *vfs_file(struct vfs *vfs, uint32_t number)
{
    return vfs->loading && number < vfs->loading->files ? vfs->loading->file[number] : 0;
}

int vfs_host_fd(struct vfs *vfs, struct tnode *file)
{
    return S_ISREG(file->mode) ? tmpfs_host_fd(vfs->tmpfs, file) : -EINVAL;
}

/* What the handle was opened on, if it is still there and the rules allow it; no longer: it stays lost. */
static void open_again(struct vfs *vfs, struct handle *h, uint64_t dev, uint64_t ino)
{
    static const int how[] = {O_RDONLY, O_RDONLY, O_WRONLY, O_RDWR};
    struct place p;
    struct stat st;
    int flags = how[h->access & 3], fd = -1;
    if (walk(vfs, "/", h->path, 0, &p) < 0)
        return;
    int fits = p.exists && p.kind == h->kind && (p.st.st_mode & S_IFMT) == (h->mode & S_IFMT);
    if (fits && p.kind == BACK_HOST) {
        if (h->access & HANDLE_PATH) {
            fd = p.fd >= 0 ? p.fd : fcntl(p.back->fd, F_DUPFD_CLOEXEC, 0);
            p.fd = -1;
        } else if (!(h->access & HANDLE_WRITE) || (!p.rule && !place_writable(&p)))
            fd = host_open_file(&p, flags, 0);
        if (fd >= 0 && (fstat(fd, &st) || st.st_dev != dev || st.st_ino != ino || vfs_fd_take(vfs))) {
            close(fd);
            fd = -1;
        }
        fits = fd >= 0;
    }
    if (fits) {
        h->fd = fd;
        h->node = p.node;
        h->back = p.back;
        h->rule = p.rule;
        if (p.kind == BACK_SYNTH && p.node && p.node->kind == NODE_FILE) {
            h->data = p.node->data;
            h->size = p.node->size;
        }
        h->lost = 0;
    }
    place_done(&p);
}

static void under_rules(struct vfs *vfs, struct handle *h)
{
    int above, action = path_rule(vfs, h->path, &above);
    h->lost = action >= AFW_RULE_DENY;
    h->rule = action == AFW_RULE_READ ? AFW_RULE_READ : 0;
    if (h->rule)
        h->access &= (uint8_t)~HANDLE_WRITE;
}

int vfs_loaded(struct vfs *vfs)
{
    struct loading *l = vfs->loading;
    if (!l)
        return 0;
    for (uint32_t i = 0; i < vfs->slots; i++)
        if (vfs->handle[i] && vfs->handle[i]->lost)
            open_again(vfs, vfs->handle[i], l->host[i].dev, l->host[i].ino);
        else if (vfs->handle[i] && vfs->handle[i]->kind == BACK_TMP && vfs->vm->rules)
            under_rules(vfs, vfs->handle[i]);
    vfs_loading_free(vfs);
    return 0;
}

void vfs_loading_free(struct vfs *vfs)
{
    struct loading *l = vfs->loading;
    if (!l)
        return;
    for (uint32_t i = 0; i < l->files; i++)
        if (!is_root(vfs->tmpfs, l->file[i]))
            tmpfs_unref(vfs->tmpfs, l->file[i]);     /* nobody's: it goes */
    free(l->file);
    free(l->host);
    free(l);
    vfs->loading = 0;
}
