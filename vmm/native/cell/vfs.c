/* The name tree of a cell, from its configuration; making and freeing a VM's file system. See vfs.h. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>
#include "proc.h"
#include "vfs.h"

#define MAX_CHILDREN 4000            /* of one node; readdir's cookies below TMPFS_COOKIE count them */
#define MAX_NODES 65536

struct node *vfs_root;
struct vfs_program vfs_program;
uint64_t vfs_tmp_bytes, vfs_tmp_inodes;
int vfs_shared;
uint32_t vfs_tmp_roots, vfs_uid, vfs_gid;
static uint32_t nodes;
static uint64_t hidden[3];
static int64_t started;              /* st_*time of what is synthetic */

int vfs_hidden_dev(uint64_t dev)
{
    return dev == hidden[0] || dev == hidden[1] || dev == hidden[2];
}

struct node *node_child(const struct node *dir, const char *name, size_t len)
{
    for (struct node *n = dir->child; n; n = n->next)
        if (!strncmp(n->name, name, len) && !n->name[len])
            return n;
    return 0;
}

void node_stat(const struct node *n, struct stat *st)
{
    memset(st, 0, sizeof *st);
    st->st_dev = VFS_DEV_SYNTH;
    st->st_ino = n->ino;
    st->st_mode = n->mode;
    st->st_nlink = 1;
    if (n->kind == NODE_DIR) {
        st->st_mode = S_IFDIR | 0755;
        st->st_nlink = 2;
    }
    st->st_size = (off_t)n->size;
    st->st_blocks = (blkcnt_t)((n->size + 511) / 512);
    st->st_rdev = n->rdev;
    st->st_blksize = 4096;
    st->st_atim.tv_sec = st->st_mtim.tv_sec = st->st_ctim.tv_sec = started;
}

static struct node *node_new(struct node *parent, const char *name, size_t len)
{
    if (nodes >= MAX_NODES || (parent && parent->children >= MAX_CHILDREN))
        return 0;
    struct node *n = calloc(1, sizeof *n + len + 1);
    if (!n)
        return 0;
    memcpy(n->name, name, len);
    n->kind = NODE_DIR;
    n->mode = S_IFDIR | 0755;
    n->ino = ++nodes;
    n->fd = n->fd_read = n->fd_write = -1;
    n->parent = parent;
    if (parent) {                    /* at the end: listings keep the order of the configuration */
        struct node **at = &parent->child;
        while (*at)
            at = &(*at)->next;
        *at = n;
        parent->children++;
    }
    return n;
}

/* The node of an absolute path, made with its parents; it must still be a plain directory (-EEXIST). */
static int node_at(const char *path, size_t len, struct node **out)
{
    if (!len || *path != '/' || len >= PATH_MAX || memchr(path, 0, len))
        return -EINVAL;
    struct node *n = vfs_root;
    for (size_t i = 0; i < len;) {
        while (i < len && path[i] == '/')
            i++;
        size_t start = i;
        while (i < len && path[i] != '/')
            i++;
        size_t k = i - start;
        if (!k)
            break;
        if (k > NAME_MAX || (path[start] == '.' && (k == 1 || (k == 2 && path[start + 1] == '.'))))
            return -EINVAL;
        if (n->kind == NODE_FILE || n->kind == NODE_LINK || n->kind == NODE_CHAR || (n->kind == NODE_MOUNT && !S_ISDIR(n->mode)))
            return -ENOTDIR;
        struct node *c = node_child(n, path + start, k);
        if (!c)
            c = node_new(n, path + start, k);
        if (!c)
            return -ENOMEM;
        n = c;
    }
    *out = n;
    return n->kind == NODE_DIR ? 0 : -EEXIST;
}

static int node_make(const char *path, enum node_kind kind, struct node **out)
{
    int r = node_at(path, strlen(path), out);
    if (!r)
        (*out)->kind = kind;
    return r;
}

static int start(void)
{
    static const struct {
        const char *path;
        uint32_t major, minor;
    } chars[] = {{"/dev/null", 1, 3},    {"/dev/zero", 1, 5},    {"/dev/full", 1, 7}, {"/dev/random", 1, 8},
                 {"/dev/urandom", 1, 9}, {"/dev/tty", 5, 0}};
    static const char *const links[][2] = {{"/dev/fd", "/proc/self/fd"},
                                           {"/dev/stdin", "/proc/self/fd/0"},
                                           {"/dev/stdout", "/proc/self/fd/1"},
                                           {"/dev/stderr", "/proc/self/fd/2"}};
    struct node *n;
    struct stat st;
    vfs_uid = geteuid();
    vfs_gid = getegid();
    umask(0);                        /* the guest's umask is the shim's */
    hidden[0] = stat("/proc", &st) ? 0 : st.st_dev;
    hidden[1] = stat("/sys", &st) ? 0 : st.st_dev;
    hidden[2] = stat("/dev", &st) ? 0 : st.st_dev;
    if (!stat("/", &st))             /* a host without mounts there */
        for (int i = 0; i < 3; i++)
            if (hidden[i] == st.st_dev)
                hidden[i] = 0;
    struct rlimit limit = {0, 0};    /* the jail raises the soft limit to the hard one or to 65536 */
    getrlimit(RLIMIT_NOFILE, &limit);
    vfs_fd_limit(limit.rlim_max < 65536 ? limit.rlim_max : 65536);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    started = now.tv_sec;
    vfs_root = node_new(0, "", 0);
    if (!vfs_root)
        return -ENOMEM;
    int r = node_make("/proc", NODE_PROC, &n);
    if (!r)
        r = node_make("/sys", NODE_PROC, &n);
    for (size_t i = 0; !r && i < sizeof chars / sizeof *chars; i++) {
        r = node_make(chars[i].path, NODE_CHAR, &n);
        n->mode = S_IFCHR | 0666;
        n->rdev = makedev(chars[i].major, chars[i].minor);
    }
    for (size_t i = 0; !r && i < sizeof links / sizeof *links; i++) {
        r = node_make(links[i][0], NODE_LINK, &n);
        n->mode = S_IFLNK | 0777;
        n->data = (const uint8_t *)links[i][1];
        n->size = strlen(links[i][1]);
    }
    return r;
}

/* An O_PATH descriptor of a file cannot be opened again without /proc, which the jail takes away: do it now. */
static int reopen(int fd, int flags)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

static int add_mount(const uint8_t *p, uint32_t size)
{
    int32_t fd;
    uint32_t flags;
    struct node *n;
    struct stat st;
    if (size < 8)
        return -EINVAL;
    memcpy(&fd, p, 4);
    memcpy(&flags, p + 4, 4);
    if (flags & ~(uint32_t)(AFW_MOUNT_WRITABLE | AFW_MOUNT_SYSTEM))
        return -EINVAL;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
        return -EINVAL;
    int r = node_at((const char *)p + 8, size - 8, &n);
    if (r < 0)
        return r;
    if (S_ISREG(st.st_mode)) {
        if (n->child || n == vfs_root)
            return -EEXIST;
        n->fd_read = reopen(fd, O_RDONLY);
        n->fd_write = flags & AFW_MOUNT_WRITABLE ? reopen(fd, O_RDWR) : -1;
    }
    vfs_shared |= flags & AFW_MOUNT_WRITABLE && S_ISDIR(st.st_mode);
    n->kind = NODE_MOUNT;
    n->mode = st.st_mode & S_IFMT;
    n->fd = fd;
    n->flags = flags;
    return 0;
}

/* u32 path length, path, rest */
static int add_synthetic(enum node_kind kind, uint32_t mode, const uint8_t *p, uint32_t size)
{
    uint32_t len;
    struct node *n;
    if (size < 4)
        return -EINVAL;
    memcpy(&len, p, 4);
    if (len > size - 4)
        return -EINVAL;
    const uint8_t *rest = p + 4 + len;
    uint32_t left = size - 4 - len;
    if (kind == NODE_LINK && (!left || left >= PATH_MAX || memchr(rest, 0, left)))
        return -EINVAL;
    int r = node_at((const char *)p + 4, len, &n);
    if (r < 0)
        return r;
    if (n->child || n == vfs_root)
        return -EEXIST;
    uint8_t *data = malloc(left + 1);
    if (!data)
        return -ENOMEM;
    memcpy(data, rest, left);
    data[left] = 0;
    n->kind = kind;
    n->mode = kind == NODE_LINK ? S_IFLNK | 0777 : S_IFREG | (mode & 0555);
    n->data = data;
    n->size = left;
    return 0;
}

static int add_tmp(const uint8_t *p, uint32_t size)
{
    static const char standard[] = "/tmp\0/var/tmp\0/dev/shm";     /* ends with a NUL of its own */
    if (size < 16 || vfs_tmp_roots)
        return -EINVAL;
    memcpy(&vfs_tmp_bytes, p, 8);
    memcpy(&vfs_tmp_inodes, p + 8, 8);
    const char *lists[2] = {standard, (const char *)p + 16};
    size_t sizes[2] = {sizeof standard, size - 16};
    for (int i = 0; i < 2; i++)
        for (size_t at = 0; at < sizes[i];) {
            struct node *n;
            size_t len = strnlen(lists[i] + at, sizes[i] - at);
            int r = len ? node_at(lists[i] + at, len, &n) : -EINVAL;
            if (r == -EEXIST && n->kind == NODE_TMP)
                r = 0;               /* named twice */
            else if (!r) {
                n->kind = NODE_TMP;
                n->mode = S_IFDIR;
                n->tmp = vfs_tmp_roots++;
            }
            if (r < 0)
                return r;
            at += len + 1;
        }
    return 0;
}

static int add_string(char **list, size_t *list_size, const uint8_t *p, uint32_t size)
{
    size_t len = strnlen((const char *)p, size);
    char *grown = realloc(*list, *list_size + len + 1);
    if (!grown)
        return -ENOMEM;
    memcpy(grown + *list_size, p, len);
    grown[*list_size + len] = 0;
    *list = grown;
    *list_size += len + 1;
    return 0;
}

int vfs_configure(uint32_t type, const uint8_t *p, uint32_t size)
{
    uint32_t mode;
    size_t ignored = 0;
    if (!vfs_root) {
        int r = start();
        if (r < 0)
            return r;
    }
    switch (type) {
    case AFW_REC_MOUNT:
        return add_mount(p, size);
    case AFW_REC_FILE:
        if (size < 8)
            return -EINVAL;
        memcpy(&mode, p, 4);
        return add_synthetic(NODE_FILE, mode, p + 4, size - 4);
    case AFW_REC_SYMLINK:
        return add_synthetic(NODE_LINK, 0, p, size);
    case AFW_REC_TMP:
        return add_tmp(p, size);
    case AFW_REC_ALIAS:
        return vfs_alias(p, size);
    case AFW_REC_PROGRAM:
        free(vfs_program.program);
        vfs_program.program = 0;
        return add_string(&vfs_program.program, &ignored, p, size);
    case AFW_REC_ARG:
        return add_string(&vfs_program.args, &vfs_program.args_size, p, size);
    case AFW_REC_ENV:
        return add_string(&vfs_program.env, &vfs_program.env_size, p, size);
    case AFW_REC_MEMORY:
        if (size >= 8)
            memcpy(&vfs_program.memory, p, 8);
    }
    return 0;
}

static int landlock_below(const struct node *n, void (*allow)(int, int, void *), void *arg)
{
    int count = 0;
    if (n->kind == NODE_MOUNT) {
        allow(n->fd, n->flags & AFW_MOUNT_WRITABLE, arg);
        count++;
    }
    for (const struct node *c = n->child; c; c = c->next)
        count += landlock_below(c, allow, arg);
    return count;
}

int vfs_landlock_paths(void (*allow)(int fd, int writable, void *arg), void *arg)
{
    return vfs_root ? landlock_below(vfs_root, allow, arg) : 0;
}

struct vfs *vfs_new(struct vm *vm)
{
    if (!vfs_root && start() < 0)
        return 0;
    struct vfs *vfs = calloc(1, sizeof *vfs);
    if (!vfs)
        return 0;
    vfs->vm = vm;
    vfs->started = clock_ns(CLOCK_MONOTONIC);
    strcpy(vfs->cwd, "/");
    return vfs;
}

/* A plain directory of the name tree inside a private directory exists there too, so that files can be made in it */
static void tmp_parents(struct tmpfs *fs, const struct node *n, struct tnode *dir)
{
    for (const struct node *c = n->child; c; c = c->next) {
        struct tnode *made = 0;
        if (c->kind != NODE_DIR)
            continue;
        if (!tmpfs_create(fs, dir, c->name, S_IFDIR | 0755, 0, &made))
            tmp_parents(fs, c, made);
    }
}

static void tmp_nodes(struct tmpfs *fs, const struct node *n)
{
    if (n->kind == NODE_TMP)
        tmp_parents(fs, n, tmpfs_root(fs, n->tmp));
    for (const struct node *c = n->child; c; c = c->next)
        tmp_nodes(fs, c);
}

struct tmpfs *vfs_tmpfs(struct vfs *vfs)
{
    if (!vfs->tmpfs) {
        vfs->tmpfs = tmpfs_new(vfs, vfs_tmp_bytes, vfs_tmp_inodes, vfs_tmp_roots);
        if (vfs->tmpfs)
            tmp_nodes(vfs->tmpfs, vfs_root);
    }
    return vfs->tmpfs;
}

void vfs_free(struct vfs *vfs)
{
    if (!vfs)
        return;
    vfs_loading_free(vfs);
    ahead_drop(vfs);
    handles_free(vfs);
    if (vfs->tmpfs)
        tmpfs_free(vfs->tmpfs);
    free(vfs);
}

void vfs_mapped(struct vfs *vfs, struct tnode *file)
{
    (void)vfs;
    tmpfs_ref(file);
}

void vfs_unmapped(struct vfs *vfs, struct tnode *file)
{
    tmpfs_unref(vfs->tmpfs, file);
}

int vfs_open_handles(struct vfs *vfs)
{
    return (int)vfs->open;
}

int vfs_host_open(struct vfs *vfs, const char *guest_path)
{
    struct place p;
    struct stat st;
    int r = walk(vfs, vfs->cwd, guest_path, WALK_FOLLOW, &p);
    if (r < 0)
        return r;
    int fd = -EACCES;
    if (p.kind == BACK_HOST && S_ISREG(p.st.st_mode)) {
        if (!S_ISDIR(p.back->mode))
            fd = p.back->fd_read < 0 ? -EACCES : fcntl(p.back->fd_read, F_DUPFD_CLOEXEC, 0);
        else
            fd = host_open(p.back, p.rel, O_RDONLY, 0);
        if (fd == -1)
            fd = -errno;
    }
    if (fd >= 0 && (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || !host_readable(p.back, &st))) {
        close(fd);
        fd = -EACCES;
    }
    place_done(&p);
    return fd;
}
