/* Inside the file system of a cell.
 *
 *   vfs.c      the name tree: mounts, synthetic files and links, private directories; one a cell, fixed before the jail
 *   walk.c     guest path -> place; filerules.c: what rules say about it
 *   handles.c  a VM's table of open files
 *   tmpfs.c    private in-memory directories, one tmpfs a VM; tmpdata.c: what its files hold
 *   synth.c    content of /proc, /sys
 *   readdir.c  listings, merged from the name tree and what lies behind it
 *   fds.c      the guest's descriptors; procfd.c: /proc/self/fd
 *   locks.c    file locks
 *   copyops.c  from file to file
 *   openops.c  ring operations that open a path; pathops.c: that look at it; nameops.c: that make, remove, move and link names
 *   fileops.c  on handles, and the dispatch
 *
 * How names are looked up. The *name tree* has a node for every configured path and its parents. The deepest mount, private directory or
 * /proc above a path *backs* it. A canonical path (absolute, no `.`, `..`, symlinks) is all that names a place: directories that are
 * open and the current directory are kept as canonical paths and looked up again, so nothing depends on what a host directory was
 * moved to. Host files are reached only by openat2(mount, rest, BENEATH | NO_SYMLINKS | NO_MAGICLINKS): symlinks are read by us and
 * resolved in the guest's terms, and one swapped in between makes the call fail.
 *
 * Owners as the guest sees them: it is uid and gid 1000. Files of the cell's user are shown as 1000 (a root cell: not in system mounts),
 * root's as 0, others as 65534.
 */
#ifndef AFW_VFS_H
#define AFW_VFS_H
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include "calls.h"
#include "rules.h"
#include "vmm.h"

#define VFS_UID 1000
#define VFS_NOBODY 65534
#define VFS_HANDLES 4096             /* a VM */
#define VFS_FDS 1000                 /* host descriptors a VM holds at most */
#define VFS_IO_MAX AFW_IO_MAX        /* bytes an operation moves at most */
#define VFS_PROC_MAX (1u << 19)      /* bytes of a file in /proc */
#define VFS_DEV_SYNTH 0x40           /* st_dev of what is not the host's */
#define VFS_DEV_TMP 0x41
#define VFS_DEV_PROC 0x42

#define MODE_BITS 01777              /* no set-id bits on host files: the host would honour them */

/* ---- vfs.c ---- */
enum node_kind { NODE_DIR, NODE_MOUNT, NODE_TMP, NODE_PROC, NODE_FILE, NODE_LINK, NODE_CHAR };
struct node {
    enum node_kind kind;
    uint32_t ino;
    uint32_t mode;                   /* st_mode; of mounts: only the type */
    uint32_t children;
    struct node *parent, *child, *next;
    int fd;                          /* MOUNT: O_PATH */
    int fd_read, fd_write;           /* MOUNT of a file: opened before the jail (an O_PATH file cannot be opened again), or -1 */
    uint32_t flags;                  /* MOUNT: AFW_MOUNT_* */
    uint32_t tmp;                    /* TMP: which of the tmpfs's roots */
    const uint8_t *data;             /* FILE content, LINK target (NUL-terminated) */
    uint64_t size;
    uint64_t rdev;                   /* CHAR */
    char name[];
};
struct vfs_program {                 /* what /proc tells */
    char *program;
    char *args, *env;                /* NUL-separated */
    size_t args_size, env_size;
    uint64_t memory;
};
extern struct vfs_program vfs_program;
extern int vfs_shared;               /* there are host directories that VMs may write to */
extern struct node *vfs_root;
extern uint64_t vfs_tmp_bytes, vfs_tmp_inodes;
extern uint32_t vfs_tmp_roots;       /* 0: no TMP record */
extern uint32_t vfs_uid, vfs_gid;     /* the cell's */
struct node *node_child(const struct node *dir, const char *name, size_t len);
int vfs_hidden_dev(uint64_t dev);    /* the host's own /proc, /sys, /dev: never shown, even inside a mount of / */

/* kept.c: what the guest has of struct afw_kept, as the cell knows it */
struct kept {
    struct afw_kept head;
    uint32_t used;                   /* bytes at AFW_KEPT */
    uint32_t news;                   /* the operation under way has seen what is new */
    uint32_t off;                    /* a file that others may write to is mapped: what they say by that is not seen here */
};
struct handle;
struct tmpfs;
struct vfs {
    struct vm *vm;
    char cwd[PATH_MAX];              /* canonical */
    struct handle **handle;          /* VFS_HANDLES pointers, grown */
    uint32_t slots, open;
    uint32_t host_fds;
    struct tmpfs *tmpfs;             /* made at the first use */
    uint64_t synth_bytes;            /* generated content held by handles */
    int in_exe;                      /* /proc/self/exe is being resolved */
    uint32_t proc_tid;               /* thread that the /proc path just looked up names */
    uint8_t boot_id[16];             /* drawn when it is first asked for; each life has its own */
    uint32_t proc_threads;           /* that are known while a directory is read; 0: none was asked for yet */
    uint64_t started;                /* CLOCK_MONOTONIC, ns */
    void (*on_link)(struct vfs *vfs, const char *link);   /* told of each symlink that a walk follows, or 0 */
    struct rules *link_rules;        /* its result */
    int link_error;
    struct loading *loading;         /* savefs.c */
    struct locks *locks;             /* locks.c; 0: there was none yet */
    uint32_t call;                   /* CALL_*: of the operation under way */
    uint8_t opens;                   /* AFW_SIGHT_*: it opens a file so; 0: it does not */
    uint8_t told;                    /* that it was refused */
    struct kept kept;
    struct ahead *ahead;             /* ahead.c */
};
struct tmpfs *vfs_tmpfs(struct vfs *vfs);            /* 0: out of memory */

/* ---- walk.c ---- */
enum backing { BACK_SYNTH, BACK_HOST, BACK_TMP, BACK_PROC };
struct tnode;
struct place {
    enum backing kind;
    int exists;
    int fd;                          /* HOST: O_PATH descriptor, else -1 */
    char last;                       /* how the walked path ended: 'n' a name, '.' , ':' (..), '/' (the root) */
    char slash;                      /* it had a trailing slash */
    uint8_t rule;                    /* AFW_RULE_* that holds here, or 0 */
    int link_fd;                     /* WALK_FD: it is the link of this descriptor, else -1 */
    const struct node *node;         /* the node exactly here, or 0 */
    const struct node *back;         /* MOUNT, TMP or PROC node that backs this path, or 0 */
    const char *rel;                 /* the path below back, in .path; "" is back itself */
    struct tnode *tmp;               /* TMP */
    struct stat st;                  /* as the guest sees it, if it exists */
    char path[PATH_MAX];             /* canonical */
};
#define WALK_FOLLOW 1                /* follow a symlink at the end */
#define WALK_CREATE 2                /* the last name need not exist: exists = 0, its directory does */
#define WALK_LOOK 8                  /* only what stat() tells is wanted: it may be denied. All other walks to there fail */
#define WALK_FD 16                   /* the link of a descriptor at the end is not followed: what is open is meant, which has no name perhaps */
#define WALK_NO_LINKS 32             /* openat2(): -ELOOP at any symlink */
#define WALK_BENEATH 64              /* openat2(): -EXDEV where the path leaves the base */
#define WALK_NO_MAGIC 128            /* openat2(): -ELOOP at a link in /proc that leads to what is open, or to where the process is */
#define WALK_IN_ROOT 256             /* openat2(): the base is the root */
#define WALK_NO_MOUNTS 512           /* openat2(): -EXDEV where another mount begins */
#define WALK_NAME 4                  /* the last name itself is meant, slash or not: to be made, removed, renamed */
/* 0 or -errno; 0 needs place_done(). base: canonical directory. */
int walk(struct vfs *vfs, const char *base, const char *path, int how, struct place *p);
int probe(struct vfs *vfs, const char *canonical, struct place *p);         /* no symlink is followed; -ELOOP: there is one on the way */
int place_parent(struct vfs *vfs, const struct place *p, struct place *dir, const char **name);
void place_done(struct place *p);
/* A file in a directory (HOST, TMP), without opening it: 0, -errno, or 1: it is not plain (a link, a mount, a socket's name, a rule's) */
int probe_child(struct vfs *vfs, const struct place *dir, const char *name, struct stat *st);
/* -> length, or -errno */
int place_readlink(struct vfs *vfs, const struct place *p, char out[PATH_MAX]);
int host_open(const struct node *mount, const char *rel, uint64_t flags, uint32_t mode);     /* -> descriptor or -errno */
void host_stat(const struct node *mount, struct stat *st);                  /* owner as the guest sees it */
int socket_number(const struct place *p, int fd, const struct stat *st);     /* nameops.c: what the shim knows a bound socket's file by, 1 .. 0x7fffffff */
int host_readable(const struct node *mount, const struct stat *st);         /* system mounts: "other" may read it */
int place_writable(const struct place *p);           /* 0, or -EROFS: may anything be changed here? */
void node_stat(const struct node *n, struct stat *st);

/* ---- filerules.c; all but the first only in a VM with rules ---- */
int vfs_alias(const uint8_t *payload, uint32_t size);
int path_rule(struct vfs *vfs, const char *path, int *above);               /* AFW_RULE_* or 0; *above: of the directories above it */
int paths_may_move(struct vfs *vfs, const char *from, const char *to);      /* a directory: is nothing below it let out of its rules? */
void path_refused(struct vfs *vfs, const char *path, int action, int error); /* counts, and tells: a canonical path, AFW_RULE_* (0: not known), errno */
struct listing {
    struct vfs *vfs;
    const char *directory;
    struct rules_cursor *at;
};
int listing_begin(struct listing *l, struct vfs *vfs, const char *directory);    /* -ENOMEM; else listing_end() */
int listing_hides(const struct listing *l, const char *name);
void listing_end(struct listing *l);

/* ---- fds.c ---- */
#define GUEST_FDS 4096               /* as the shim's FD_MAX */
int guest_fd(struct vm *vm, uint64_t fd, struct guest_fd *out);             /* -EBADF */
int guest_fd_next(struct vm *vm, uint32_t from, struct guest_fd *out);      /* the first from there on: 1, or 0 */

/* ---- handles.c ---- */
#define HANDLE_READ 1
#define HANDLE_WRITE 2
#define HANDLE_PATH 4                /* O_PATH */
struct handle {
    enum backing kind;
    uint8_t access;                  /* HANDLE_* */
    uint8_t rule;                    /* AFW_RULE_READ or 0: of its path */
    uint8_t lock;                    /* by flock(): 0, LOCK_SH, LOCK_EX */
    uint8_t lost;                    /* of a forked VM: could not be opened again; handle_get() does not find it */
    int fd;                          /* HOST */
    int lock_fd;                     /* of a mount of one file, once it was locked (locks.c), or -1 */
    const struct node *node, *back;
    struct tnode *tmp;               /* TMP: holds a reference */
    const uint8_t *data;             /* SYNTH and PROC files */
    uint8_t *owned;                  /* data that must be freed */
    uint64_t size;
    uint64_t pos;                    /* for offset -1; HOST: only of a mount of one file */
    uint64_t dir_next;               /* HOST directories: ordinal of the entry that the descriptor's position is at */
    uint32_t mode;                   /* st_mode when opened */
    struct stat st;                  /* SYNTH and PROC */
    char path[];                     /* canonical at the time of opening; renames of this VM are followed */
};
/* New handle for a place; takes fd over (also on failure). -> number or -errno */
int64_t handle_new(struct vfs *vfs, const struct place *p, int fd, uint8_t access, struct handle **out);
struct handle *handle_get(struct vfs *vfs, uint64_t number);                /* 0: no such handle */
int handle_close(struct vfs *vfs, uint64_t number);
int handle_end(struct vfs *vfs, uint64_t number);    /* one for the moment, which the guest never had: none of its descriptors is closed */
int handle_at(struct vfs *vfs, uint32_t number, const char *path, struct handle **out);     /* an empty one: savefs.c fills it */
int handle_writable(const struct handle *h);         /* 0, or -EROFS: may its file be changed, were it open for that? */
void handles_free(struct vfs *vfs);
int handle_stat(struct vfs *vfs, struct handle *h, struct stat *st);
void vfs_fd_limit(uint64_t total);   /* descriptors that the cell may open */
int vfs_fd_take(struct vfs *vfs);    /* count one more host descriptor: 0, -EMFILE, -ENFILE */
void vfs_fd_drop(struct vfs *vfs);
/* Directory that a ring base means: canonical path, or -EBADF, -ENOTDIR */
int handle_base(struct vfs *vfs, uint64_t base, const char **path);
void handles_renamed(struct vfs *vfs, const char *from, const char *to);    /* canonical directories */

/* ---- tmpfs.c, tmpdata.c ---- */
struct tmpfs *tmpfs_new(struct vfs *vfs, uint64_t bytes, uint64_t inodes, uint32_t roots);
void tmpfs_free(struct tmpfs *fs);
struct tnode *tmpfs_root(struct tmpfs *fs, uint32_t i);
/* Below dir; "" is dir itself. 0 and *node, or -ENOENT, -ENOTDIR, -EACCES, -ELOOP (a symlink on the way, not at the end) */
int tmpfs_lookup(struct tmpfs *fs, struct tnode *dir, const char *rel, struct tnode **node);
void tmpfs_stat(const struct tnode *n, struct stat *st);
const char *tmpfs_target(const struct tnode *n);
int tmpfs_may(const struct tnode *n, int mask);      /* R_OK, W_OK, X_OK by the owner's bits: 0 or -EACCES */
int tmpfs_create(struct tmpfs *fs, struct tnode *dir, const char *name, uint32_t mode, const char *target, struct tnode **out);
int tmpfs_anonymous(struct tmpfs *fs, struct tnode *dir, uint32_t mode, int linkable, struct tnode **out);    /* O_TMPFILE */
int tmpfs_unlink(struct tmpfs *fs, struct tnode *dir, const char *name, int rmdir);
int tmpfs_link(struct tmpfs *fs, struct tnode *node, struct tnode *dir, const char *name);
int tmpfs_rename(struct tmpfs *fs, struct tnode *from, const char *name, struct tnode *to, const char *new_name, unsigned flags);
int tmpfs_chmod(struct tnode *n, uint32_t mode);
int tmpfs_utimens(struct tnode *n, const struct timespec times[2]);
void tmpfs_ref(struct tnode *n);
void tmpfs_unref(struct tmpfs *fs, struct tnode *n);
/* The first entry after cookie (TMPFS_COOKIE + something), the one after that; 0 at the end. Until the directory changes */
#define TMPFS_COOKIE 0x10000
struct tentry;
const struct tentry *tmpfs_first(const struct tnode *dir, uint64_t cookie);
const struct tentry *tmpfs_next(const struct tentry *e);
const char *tmpfs_entry(const struct tentry *e, uint64_t *cookie, const struct tnode **node);
void tmpfs_statfs(const struct tmpfs *fs, struct statfs *out);
int64_t tmpfs_read(struct vfs *vfs, struct tnode *n, uint64_t gva, uint64_t len, uint64_t offset);
int64_t tmpfs_write(struct vfs *vfs, struct tnode *n, uint64_t gva, uint64_t len, uint64_t offset);
int64_t tmpfs_get(struct tnode *n, void *out, uint64_t len, uint64_t offset);         /* the same with memory of ours */
int64_t tmpfs_put(struct tmpfs *fs, struct tnode *n, const void *data, uint64_t len, uint64_t offset);
int64_t tmpfs_seek(struct tnode *n, int64_t offset, int whence);             /* SEEK_DATA, SEEK_HOLE; offset lies in the file */
int tmpfs_truncate(struct tmpfs *fs, struct tnode *n, uint64_t size);
int tmpfs_fallocate(struct tmpfs *fs, struct tnode *n, int mode, uint64_t offset, uint64_t len);
int tmpfs_host_fd(struct tmpfs *fs, struct tnode *n);                       /* for mmap: its memfd, or -errno; not to be closed */

/* ---- savefs.c ---- */
void vfs_loading_free(struct vfs *vfs);

/* ---- synth.c ---- */
int proc_stat(struct vfs *vfs, const char *path, struct stat *st);          /* -ENOENT, -ENOTDIR, -ELOOP */
int proc_readlink(struct vfs *vfs, const char *path, char out[PATH_MAX]);   /* -> length */
int proc_content(struct vfs *vfs, const char *path, uint8_t **data, uint64_t *size);            /* malloc()ed */
/* The name in a directory at i (0: the first): where the next one is, or 0: there is none */
int proc_entry(struct vfs *vfs, const char *path, unsigned i, char name[64], struct stat *st);

/* ---- procfd.c: paths with PID for the process ---- */
int proc_fd(const char *name);                       /* of /proc/PID/fd/N: N, else -1 */
int proc_fd_stat(struct vfs *vfs, int fd, struct stat *st);                 /* of the link */
int proc_fd_readlink(struct vfs *vfs, int fd, char out[PATH_MAX]);
int proc_fdinfo(const char *name);                   /* of /proc/PID/fdinfo/N: N, else -1 */
int proc_fdinfo_stat(struct vfs *vfs, int fd, struct stat *st);
int proc_link_fd(struct vfs *vfs, const char *path); /* synth.c: the same of a guest path */

/* ---- kept.c ---- */
void kept_seen(struct vfs *vfs, const struct stat *st);      /* of a file of the host's that an operation has looked at */
void kept_looked(struct vfs *vfs, const struct place *p);    /* for one, and found it or not */
int kept_news(struct vfs *vfs);      /* was it new? Then what the guest has is void */
uint64_t kept_clock(void);
/* What stat() of `path`, as the guest wrote it, was found to be, and nothing of it before `at` (CLOCK_MONOTONIC, ns). -1: it is not kept */
int kept_add(struct vfs *vfs, uint64_t at, const char *path, int flags, int result, const struct stat *st);

/* The same of a file in a directory that was not asked for; st 0: there is none. 1: it would be news */
int kept_more(struct vfs *vfs, uint64_t at, const char *path, int flags, const struct place *dir, const struct stat *st);

/* ---- ahead.c ---- */
/* A directory was listed from one cookie to another; next(entries): each name, then 0 */
void ahead_listed(struct vfs *vfs, const char *directory, uint64_t from, uint64_t to, const char *(*next)(void *entries), void *entries);
void ahead_of_stat(struct vfs *vfs, uint64_t at, const char *path, int flags, const struct place *p);    /* found there, and nothing new: perhaps others, too */
void ahead_of_package(struct vfs *vfs, uint64_t at, const char *path);       /* not found: its directory may be a package */

/* ---- locks.c ---- */
int64_t op_lock(struct vfs *vfs, const uint64_t a[6]);
int lock_whole(struct vfs *vfs, uint32_t number, struct handle *h, int op);       /* flock(): LOCK_SH, LOCK_EX, LOCK_UN; never waits */
void locks_closed(struct vfs *vfs, uint32_t number, struct handle *h, int last);  /* a descriptor of h is closed; `last`: there is no other */
void locks_handle_gone(struct vfs *vfs, struct handle *h);
void locks_free(struct vfs *vfs);
struct lock_text {
    const char *kind, *type;
    int32_t pid;
    int64_t start, end;
};
int lock_told(struct vfs *vfs, uint32_t number, struct handle *h, uint32_t i, struct lock_text *out);   /* the i-th that its fdinfo names; 0: no more */

/* ---- copyops.c, and what it wants of fileops.c ---- */
int64_t op_seek(struct vfs *vfs, const uint64_t a[6]);
int64_t op_copy(struct vfs *vfs, const uint64_t a[6]);
int64_t size_limit(struct vfs *vfs, uint64_t offset, uint64_t n);
int64_t host_put(struct vfs *vfs, struct handle *h, void *data, uint64_t n, uint64_t offset);

/* ---- readdir.c ---- */
int64_t handle_readdir(struct vfs *vfs, struct handle *h, uint64_t gva, uint64_t len, uint64_t cookie, uint64_t last);

/* ---- openops.c ---- */
int64_t op_open(struct vfs *vfs, const uint64_t a[6]);
/* What a handle is open on, as a place; in /tmp it need not have a name any more. 0, which needs place_done(), or -errno */
int place_of_handle(struct vfs *vfs, struct handle *h, struct place *p);
int place_of_fd(struct vfs *vfs, struct place *p);   /* the same of a descriptor (p->link_fd). 1: it is not the host's */
int host_open_file(const struct place *p, int flags, uint32_t mode);         /* -> descriptor or -errno */
int64_t open_by_path(struct vfs *vfs, const uint64_t path[3], int flags);    /* (gva, len, base): a handle for the moment */

/* ---- pathops.c ---- */
int64_t path_op(struct vfs *vfs, const struct afw_sqe *sqe);
/* While paths are looked at and used no other VM moves any (pathops.c); `move`: this one does. -> what paths_release() wants */
int paths_hold(struct vfs *vfs, int move);
void paths_release(int held);
int walk_op(struct vfs *vfs, uint64_t gva, uint64_t len, uint64_t base, int how, struct place *p);

/* ---- nameops.c ---- */
int64_t name_op(struct vfs *vfs, const struct afw_sqe *sqe);
/* The place's directory, in which something is to be changed, and for host directories a descriptor in it */
int change_in(struct vfs *vfs, const struct place *p, struct place *dir, const char **name);
int take_name(struct vfs *vfs);      /* a name more in a host directory: 0, or -EDQUOT */
int made_name(struct vfs *vfs, int r);           /* r of the call that it was taken for; an error: it is given back */
#endif
