/* Inside the private tmpfs: tmpfs.c (names) and tmpdata.c (what files hold). */
#ifndef AFW_TMPFS_H
#define AFW_TMPFS_H
#include <time.h>
#include "vfs.h"

struct tentry {                      /* a name */
    struct tentry *hash_next, *next, *prev;
    struct tnode *dir, *node;
    uint64_t seq;                    /* rises within the tmpfs */
    uint32_t len;
    char name[];
};

/* A file's bytes lie in the heap while it is small, so that thousands of small files need no descriptors; in a memfd once it is large or
 * was mapped. If no descriptor is to be had, a large file stays in the heap (and cannot be mapped). */
struct tnode {
    struct tnode *all_next, *all_prev;
    struct tnode *up;                /* directory: the one that holds it; roots: 0 */
    struct tentry *first, *last;     /* directory: oldest and newest name */
    uint32_t count;
    uint32_t mode;
    uint32_t nlink;
    uint32_t refs;                   /* handles, and 1 for a root */
    uint32_t number;                 /* while it is saved (savefs.c) */
    int fd;                          /* memfd, or -1 */
    uint8_t unnamed;                 /* by O_TMPFILE, and without O_EXCL: it may get a name (open(2)) */
    uint64_t ino, size;
    uint8_t *heap;
    uint64_t heap_size;              /* allocated; zero from size on */
    char *target;                    /* symlink */
    struct timespec atime, mtime, ctime;
};

struct tmpfs {
    struct vfs *vfs;
    uint64_t bytes, bytes_used;      /* quota: sizes rounded up to pages, holes counted */
    uint64_t inodes, inodes_used;
    uint64_t outside;                /* of bytes_used, what is in memfds */
    uint64_t ino, seq, seed;
    struct tentry **table;
    uint32_t buckets, entries, roots;
    struct tnode **root;
    struct tnode *all;
};

static inline uint64_t tmpfs_charge(uint64_t size)
{
    return (size + 4095) & ~(uint64_t)4095;
}
void tmpdata_free(struct tmpfs *fs, struct tnode *n);           /* its bytes, and their charge */
/* For savefs.c: a node that has no name yet; one more name of it, in order */
int tmpfs_node(struct tmpfs *fs, uint32_t mode, const char *target, struct tnode **out);
int tmpfs_enter(struct tmpfs *fs, struct tnode *dir, const char *name, struct tnode *n);
int tmpdata_copy_out(const struct tnode *n, uint64_t offset, uint64_t size, int fd, uint64_t at);
int tmpdata_copy_in(struct tmpfs *fs, struct tnode *n, uint64_t size, int fd, uint64_t at);
#endif
