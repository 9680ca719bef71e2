/* From a guest path to a place: the name tree, what backs it, symlinks resolved in the guest's terms. See vfs.h. */
#include <fcntl.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "vfs.h"

#define MAX_LINKS 40                 /* as Linux */

int host_open(const struct node *mount, const char *rel, uint64_t flags, uint32_t mode)
{
    struct open_how how = {
        .flags = flags | O_CLOEXEC | (flags & O_PATH ? O_NOFOLLOW : O_NOFOLLOW | O_NONBLOCK | O_NOCTTY),
        .mode = mode,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    for (int tries = 0;; tries++) {
        long fd = syscall(SYS_openat2, mount->fd, *rel ? rel : ".", &how, sizeof how);
        if (fd >= 0)
            return (int)fd;
        /* EAGAIN: a rename elsewhere on the host raced with the check that we stay beneath */
        if ((errno != EAGAIN && errno != EINTR) || tries == 64)
            return -errno;
    }
}

void host_stat(const struct node *mount, struct stat *st)
{
    int system = mount->flags & AFW_MOUNT_SYSTEM;
    st->st_uid = st->st_uid == vfs_uid && (vfs_uid || !system) ? VFS_UID : st->st_uid ? VFS_NOBODY : 0;
    st->st_gid = st->st_gid == vfs_gid && (vfs_gid || !system) ? VFS_UID : st->st_gid ? VFS_NOBODY : 0;
}

int host_readable(const struct node *mount, const struct stat *st)
{
    return !(mount->flags & AFW_MOUNT_SYSTEM) || (st->st_mode & S_IROTH);
}

/* In a system mount the directories above a file must be open to "other" too. Looked at once: what was found open is remembered, for
 * /usr does not change under us in a way that matters, and three more openat2 for each import would. */
#define SEEN 1024
static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;
static struct seen {
    const struct node *mount;
    char *dir;
} seen[SEEN];

static struct seen *seen_slot(const struct node *mount, const char *dir, size_t len)
{
    uint64_t h = (uintptr_t)mount;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (uint8_t)dir[i]) * 0x100000001b3;
    return &seen[(h ^ h >> 32) % SEEN];
}

static int system_dir_open(const struct node *mount, const char *dir, size_t len)
{
    struct seen *slot = seen_slot(mount, dir, len);
    pthread_mutex_lock(&seen_lock);
    int hit = slot->dir && slot->mount == mount && strlen(slot->dir) == len && !memcmp(slot->dir, dir, len);
    pthread_mutex_unlock(&seen_lock);
    if (hit)
        return 0;
    const char *up = memrchr(dir, '/', len);
    if (len) {
        int r = system_dir_open(mount, dir, up ? (size_t)(up - dir) : 0);
        if (r < 0)
            return r;
    }
    char *copy = strndup(dir, len);
    if (!copy)
        return -ENOMEM;
    struct stat st;
    int fd = host_open(mount, copy, O_PATH | O_DIRECTORY, 0);
    int r = fd < 0 ? fd : fstat(fd, &st) < 0 ? -errno : st.st_mode & S_IXOTH ? 0 : -EACCES;
    if (fd >= 0)
        close(fd);
    if (!r) {
        pthread_mutex_lock(&seen_lock);
        char *old = slot->dir;
        slot->dir = copy;
        slot->mount = mount;
        copy = old;
        pthread_mutex_unlock(&seen_lock);
    }
    free(copy);
    return r;
}

static int probe_host(struct place *p)
{
    const struct node *m = p->back;
    if (!S_ISDIR(m->mode)) {         /* a single file */
        if (*p->rel)
            return -ENOTDIR;
        if (fstat(m->fd, &p->st) < 0)
            return -errno;
    } else {
        p->fd = host_open(m, p->rel, O_PATH, 0);
        if (p->fd < 0)
            return p->fd;
        if (fstat(p->fd, &p->st) < 0)
            return -errno;
        if (vfs_hidden_dev(p->st.st_dev))
            return -EACCES;
        if ((m->flags & AFW_MOUNT_SYSTEM) && *p->rel) {
            const char *up = strrchr(p->rel, '/');
            int r = system_dir_open(m, p->rel, up ? (size_t)(up - p->rel) : 0);
            if (r < 0)
                return r;
        }
    }
    host_stat(m, &p->st);
    return 0;
}

/* Deepest node and backing of p->path. -ELOOP: a link of the name tree lies on the way; -ENOTDIR: a file does */
static int place_nodes(struct place *p)
{
    const struct node *n = vfs_root;
    const char *s = p->path + 1;
    p->back = 0;
    p->rel = s;
    for (;;) {
        if (n->kind == NODE_MOUNT || n->kind == NODE_TMP || n->kind == NODE_PROC) {
            p->back = n;
            p->rel = s;
        }
        if (!*s)
            break;
        if (n->kind == NODE_LINK)
            return -ELOOP;
        if (n->kind == NODE_FILE || n->kind == NODE_CHAR)
            return -ENOTDIR;
        size_t len = strcspn(s, "/");
        if (len > NAME_MAX)
            return -ENAMETOOLONG;
        n = node_child(n, s, len);
        if (!n)
            break;
        s += len + (s[len] == '/');
    }
    p->node = n;
    return 0;
}

int probe(struct vfs *vfs, const char *canonical, struct place *p)
{
    if (p->path != canonical)
        strcpy(p->path, canonical);
    p->fd = -1;
    p->tmp = 0;
    p->exists = 0;
    p->kind = BACK_SYNTH;
    p->rule = 0;
    p->link_fd = -1;
    if (vfs->vm->rules) {            /* before anything is looked at: what is hidden or denied cannot be told from what is not there */
        int above, r, rule = path_rule(vfs, p->path, &above);
        p->rule = (uint8_t)rule;
        if (rule == AFW_RULE_HIDE || above >= AFW_RULE_DENY) {
            r = rule == AFW_RULE_HIDE ? -ENOENT : -EACCES;
            path_refused(vfs, p->path, rule, -r);
            return r;
        }
    }
    int r = place_nodes(p);
    if (r < 0)
        return r;
    const struct node *n = p->node;
    if (n && (n->kind == NODE_FILE || n->kind == NODE_LINK || n->kind == NODE_CHAR)) {
        node_stat(n, &p->st);
        p->exists = 1;
        if (p->rule == AFW_RULE_DENY)
            p->st.st_mode &= S_IFMT;
        return 0;
    }
    r = -ENOENT;
    if (p->back && p->back->kind == NODE_MOUNT) {
        p->kind = BACK_HOST;
        r = probe_host(p);
        /* A parent of mounts must be a directory whatever lies behind it */
        if (!r && n && n->kind == NODE_DIR && !S_ISDIR(p->st.st_mode))
            r = -ENOENT;
    } else if (p->back && p->back->kind == NODE_TMP) {
        struct tmpfs *fs = vfs_tmpfs(vfs);
        p->kind = BACK_TMP;
        r = fs ? tmpfs_lookup(fs, tmpfs_root(fs, p->back->tmp), p->rel, &p->tmp) : -ENOMEM;
        if (!r)
            tmpfs_stat(p->tmp, &p->st);
    } else if (p->back) {
        p->kind = BACK_PROC;
        r = proc_stat(vfs, p->path, &p->st);
    }
    if (r < 0 && p->fd >= 0) {
        close(p->fd);
        p->fd = -1;
    }
    if (r < 0 && n && n->kind == NODE_DIR) {
        p->kind = BACK_SYNTH;
        node_stat(n, &p->st);
        r = 0;
    }
    p->exists = !r;
    if (p->kind == BACK_HOST)
        kept_looked(vfs, p);
    if (p->exists && p->rule == AFW_RULE_DENY)
        p->st.st_mode &= S_IFMT;
    return r;
}

static int dots(const char *name, size_t n)          /* 1 for ".", 2 for ".." */
{
    return n == 1 && name[0] == '.' ? 1 : n == 2 && name[0] == '.' && name[1] == '.' ? 2 : 0;
}

int probe_child(struct vfs *vfs, const struct place *dir, const char *name, struct stat *st)
{
    char path[PATH_MAX];
    size_t len = strlen(dir->path), n = strlen(name);
    struct tnode *node;
    int above, r;
    len -= len == 1;
    if (!n || n > NAME_MAX || strchr(name, '/') || dots(name, n) || (dir->node && node_child(dir->node, name, n)) || len + 1 + n >= sizeof path)
        return 1;
    if (vfs->vm->rules) {
        snprintf(path, sizeof path, "%.*s/%s", (int)len, dir->path, name);
        if (path_rule(vfs, path, &above) || above)
            return 1;
    }
    if (dir->kind == BACK_TMP) {
        r = tmpfs_lookup(vfs_tmpfs(vfs), dir->tmp, name, &node);
        if (!r)
            tmpfs_stat(node, st);
        return r < 0 ? r : S_ISLNK(st->st_mode);
    }
    if (dir->kind != BACK_HOST || dir->fd < 0)
        return 1;
    if (fstatat(dir->fd, name, st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (S_ISLNK(st->st_mode) || st->st_mode & S_ISVTX || vfs_hidden_dev(st->st_dev) ||
        (dir->back->flags & AFW_MOUNT_SYSTEM && system_dir_open(dir->back, dir->rel, strlen(dir->rel)) < 0))
        return 1;
    host_stat(dir->back, st);
    return 0;
}

/* A walk's end at a place: 0, or closed and -EACCES, since it is denied and more than its stat is wanted. */
static int permitted(struct vfs *vfs, struct place *p, int how)
{
    if (p->rule != AFW_RULE_DENY || (how & WALK_LOOK))
        return 0;
    place_done(p);
    path_refused(vfs, p->path, AFW_RULE_DENY, EACCES);
    return -EACCES;
}

void place_done(struct place *p)
{
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
}

int place_parent(struct vfs *vfs, const struct place *p, struct place *dir, const char **name)
{
    const char *slash = strrchr(p->path, '/');
    char up[PATH_MAX];
    size_t len = slash == p->path ? 1 : (size_t)(slash - p->path);
    memcpy(up, p->path, len);
    up[len] = 0;
    *name = slash + 1;
    int r = probe(vfs, up, dir);
    if (r < 0)
        return r == -ELOOP ? -ENOENT : r;            /* swapped since the walk */
    if (!S_ISDIR(dir->st.st_mode)) {
        place_done(dir);
        return -ENOTDIR;
    }
    return permitted(vfs, dir, 0);
}

int place_readlink(struct vfs *vfs, const struct place *p, char out[PATH_MAX])
{
    ssize_t n;
    const char *target = 0;
    switch (p->kind) {
    case BACK_HOST:
        n = readlinkat(p->fd, "", out, PATH_MAX);
        if (n < 0)
            return -errno;
        if (n == PATH_MAX)
            return -ENAMETOOLONG;
        out[n] = 0;
        return (int)n;
    case BACK_PROC:
        return proc_readlink(vfs, p->path, out);
    case BACK_TMP:
        target = tmpfs_target(p->tmp);
        break;
    case BACK_SYNTH:
        target = (const char *)p->node->data;
        break;
    }
    return snprintf(out, PATH_MAX, "%s", target);    /* targets are at most PATH_MAX - 1 bytes */
}

int place_writable(const struct place *p)
{
    if (p->rule)
        return -EROFS;
    if (p->kind == BACK_TMP)
        return 0;
    return p->kind == BACK_HOST && (p->back->flags & AFW_MOUNT_WRITABLE) ? 0 : -EROFS;
}

/* Appends a name; -ENAMETOOLONG */
static int append(char path[PATH_MAX], size_t *len, const char *name, size_t n)
{
    size_t at = *len == 1 ? 0 : *len;
    if (n > NAME_MAX || at + 1 + n >= PATH_MAX)
        return -ENAMETOOLONG;
    path[at] = '/';
    memcpy(path + at + 1, name, n);
    *len = at + 1 + n;
    path[*len] = 0;
    return 0;
}

/* Next component of *s: its length, *s behind it and its slashes; *last = nothing follows, *slash = only slashes did */
static size_t component(const char **s, const char **name, int *last, int *slash)
{
    while (**s == '/')
        ++*s;
    *name = *s;
    size_t n = strcspn(*s, "/");
    *s += n;
    *slash = **s == '/';
    while (**s == '/')
        ++*s;
    *last = !**s;
    return n;
}

/* No `..`: the path as it would be without symlinks, in one probe. 1: this must be walked slowly. */
static int walk_fast(struct vfs *vfs, const char *base, const char *path, int how, struct place *p)
{
    size_t len;
    const char *name;
    int last = 0, slash = 0;
    strcpy(p->path, *path == '/' ? "/" : base);
    len = strlen(p->path);
    p->last = '/';
    while (*path && !last) {
        size_t n = component(&path, &name, &last, &slash);
        if (!n)
            break;
        int d = dots(name, n);
        if (d == 2 || (d && p->last == 'n'))         /* a dot behind a name: that directory must be searchable */
            return 1;
        p->last = d ? '.' : 'n';
        if (!d && append(p->path, &len, name, n) < 0)
            return 1;                /* the slow walk finds which error comes first */
    }
    if (p->last == '.')
        slash = 1;
    int r = probe(vfs, p->path, p);
    p->slash = (char)slash;
    if (r == -ELOOP || (r == -ENOENT && (how & WALK_CREATE)))
        return 1;
    if (r < 0)
        return r;
    if ((S_ISLNK(p->st.st_mode) && ((how & WALK_FOLLOW) || slash)) || (slash && !S_ISDIR(p->st.st_mode))) {
        place_done(p);
        return 1;
    }
    return permitted(vfs, p, how);
}

/* A link in /proc that is not followed by its text: below a process */
static int is_magic(const struct place *p)
{
    const char *pid = strchr(p->path + 1, '/');
    return p->kind == BACK_PROC && pid && strchr(pid + 1, '/');
}

int walk(struct vfs *vfs, const char *base, const char *path, int how, struct place *p)
{
    if (!*path)
        return -ENOENT;
    if (*path == '/' && how & WALK_BENEATH)
        return -EXDEV;
    const int resolve = WALK_NO_LINKS | WALK_BENEATH | WALK_NO_MAGIC | WALK_IN_ROOT | WALK_NO_MOUNTS;
    int r = how & resolve ? 1 : walk_fast(vfs, base, path, how, p);
    if (r <= 0)
        return r;
    const struct node *home = 0;
    char rest[PATH_MAX], target[PATH_MAX], here[PATH_MAX];
    size_t len;
    int links = 0, last = 0, slash = 0, probed = 0, named = 0;       /* named: p is `here` */
    if (strlen(path) >= sizeof rest)
        return -ENAMETOOLONG;
    strcpy(rest, path);
    strcpy(here, *path == '/' && !(how & WALK_IN_ROOT) ? "/" : base);
    len = strlen(here);
    size_t top = len;
    if (how & WALK_NO_MOUNTS) {
        if ((r = probe(vfs, here, p)) < 0)
            return r;
        home = p->back;
        place_done(p);
    }
    p->last = '/';
    p->slash = 0;
    const char *s = rest, *name;
    while (*s) {
        size_t n = component(&s, &name, &last, &slash);
        if (!n)
            break;                   /* the path was slashes only */
        p->last = 'n';
        p->slash = (char)slash;
        int d = dots(name, n);
        if (d) {
            p->last = d == 2 ? ':' : '.';
            if (named && p->kind == BACK_TMP && tmpfs_may(p->tmp, X_OK))
                return -EACCES;
            named = d == 1 && named;
            if (d == 2 && how & WALK_BENEATH && len <= top)
                return -EXDEV;
            if (d == 2 && len > (how & WALK_IN_ROOT ? top : 1)) {
                len = (size_t)(strrchr(here, '/') - here);
                len += !len;
                here[len] = 0;
            }
            probed = 0;
            continue;
        }
        size_t before = len;
        r = append(here, &len, name, n);
        if (r < 0)
            return r;
        r = probe(vfs, here, p);
        if (how & WALK_NO_MOUNTS && p->back != home) {
            place_done(p);
            return -EXDEV;
        }
        if (r == -ENOENT && last && (how & WALK_CREATE)) {
            if (p->rule >= AFW_RULE_DENY)
                return -EACCES;
            if (!p->back && !p->node)
                p->kind = BACK_SYNTH;
            return 0;                /* exists = 0 */
        }
        if (r == -ELOOP)             /* every prefix was looked at: somebody swaps symlinks in while we walk */
            return -ENOENT;
        if (r < 0)
            return r;
        int follow = S_ISLNK(p->st.st_mode) && (!last || (how & WALK_FOLLOW) || (slash && !(how & WALK_NAME)));
        if (p->rule == AFW_RULE_DENY && (!last || follow))
            return permitted(vfs, p, 0);
        if (follow && how & resolve && is_magic(p)) {            /* as nd_jump_link() */
            place_done(p);
            return how & (WALK_NO_MAGIC | WALK_NO_LINKS) ? -ELOOP : -EXDEV;
        }
        if (follow && last && !slash && how & WALK_FD && p->kind == BACK_PROC && (p->link_fd = proc_link_fd(vfs, p->path)) >= 0)
            follow = 0;
        if (how & WALK_NO_LINKS && (follow || p->link_fd >= 0)) {
            place_done(p);
            return -ELOOP;
        }
        if (follow) {
            if (++links > MAX_LINKS) {
                place_done(p);
                return -ELOOP;
            }
            if (vfs->on_link)
                vfs->on_link(vfs, here);
            int t = place_readlink(vfs, p, target);
            place_done(p);
            if (t <= 0)
                return t < 0 ? t : -ENOENT;
            /* what is left of the path comes behind the target, with the slash that made it a directory */
            size_t left = strlen(s);
            if ((size_t)t + 1 + left >= sizeof rest)
                return -ENAMETOOLONG;
            memmove(rest + t + slash, s, left + 1);
            memcpy(rest, target, (size_t)t);
            if (slash)
                rest[t] = '/';
            s = rest;
            if (*target == '/' && how & WALK_BENEATH)
                return -EXDEV;
            len = *target == '/' ? how & WALK_IN_ROOT ? top : 1 : before;
            here[0] = '/';
            here[len] = 0;
            probed = named = 0;
            last = 0;
            continue;
        }
        if ((!last || (slash && !(how & WALK_NAME))) && !S_ISDIR(p->st.st_mode)) {
            place_done(p);
            return -ENOTDIR;
        }
        if (last) {
            probed = 1;
            break;
        }
        place_done(p);
        named = 1;
    }
    if (probed)
        return permitted(vfs, p, how);
    r = probe(vfs, here, p);         /* ended by dots or at the root: always a directory */
    if (!r && how & WALK_NO_MOUNTS && p->back != home) {
        place_done(p);
        return -EXDEV;
    }
    if (r == -ELOOP)
        return -ENOENT;
    if (!r && !S_ISDIR(p->st.st_mode)) {
        place_done(p);
        return -ENOTDIR;
    }
    return r ? r : permitted(vfs, p, how);
}
