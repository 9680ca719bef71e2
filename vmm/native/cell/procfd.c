/* /proc/self/fd: the guest's descriptors as links; /proc/self/fdinfo: what they are told of by proc(5). See fds.c, vfs.h. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include "proc.h"

#define FD_DIR "/proc/PID/fd/"
#define INFO_DIR "/proc/PID/fdinfo/"
#define FD_INO 0x10000               /* of the first link */
#define INFO_INO 0x20000

static int number_in(const char *name, const char *dir)
{
    int fd = 0;
    const char *s = name + strlen(dir);
    if (strncmp(name, dir, strlen(dir)) || !*s || (*s == '0' && s[1]))
        return -1;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || fd > 99999)
            return -1;
        fd = fd * 10 + *s - '0';
    }
    return fd;
}

int proc_fd(const char *name)
{
    return number_in(name, FD_DIR);
}

int proc_fdinfo(const char *name)
{
    return number_in(name, INFO_DIR);
}

int proc_fd_stat(struct vfs *vfs, int fd, struct stat *st)
{
    struct guest_fd f;
    if (guest_fd(vfs->vm, (uint64_t)fd, &f) < 0)
        return -ENOENT;
    unsigned how = f.file.flags & O_PATH ? 0 : (f.file.flags & O_ACCMODE) == O_RDONLY ? 0400 : (f.file.flags & O_ACCMODE) == O_WRONLY ? 0200 : 0600;
    *st = (struct stat){.st_dev = VFS_DEV_PROC, .st_ino = FD_INO + (unsigned)fd, .st_mode = S_IFLNK | 0100 | how, .st_nlink = 1, .st_size = 64,
                        .st_uid = VFS_UID, .st_gid = VFS_UID, .st_blksize = 1024};
    return 0;
}

int proc_fd_readlink(struct vfs *vfs, int fd, char out[PATH_MAX])
{
    static const char *const devices[] = {[3] = "null", [5] = "zero", [7] = "full", [8] = "random", [9] = "urandom"};
    struct guest_fd f;
    struct stat st;
    if (guest_fd(vfs->vm, (uint64_t)fd, &f) < 0)
        return -ENOENT;
    struct handle *h = handle_get(vfs, f.file.handle);
    if (h) {
        int gone = !handle_stat(vfs, h, &st) && !st.st_nlink;
        return snprintf(out, PATH_MAX, "%.*s%s", PATH_MAX - 16, h->path, gone ? " (deleted)" : "");
    }
    if (S_ISCHR(f.mode))
        return snprintf(out, PATH_MAX, "/dev/%s", f.file.dev < sizeof devices / sizeof *devices && devices[f.file.dev] ? devices[f.file.dev] : "null");
    return snprintf(out, PATH_MAX, "%s:[%u]", S_ISFIFO(f.mode) ? "pipe" : S_ISSOCK(f.mode) ? "socket" : "anon_inode", f.file.ino);
}

int proc_fdinfo_stat(struct vfs *vfs, int fd, struct stat *st)
{
    int r = proc_fd_stat(vfs, fd, st);
    st->st_ino = INFO_INO + (unsigned)fd;
    st->st_mode = S_IFREG | 0444;
    st->st_size = 0;
    return r;
}

/* As /proc/self/mountinfo numbers them */
static unsigned mount_id(const struct node *n, const struct node *wanted, unsigned *id)
{
    if (n->kind == NODE_MOUNT || n->kind == NODE_TMP || n->kind == NODE_PROC || n == vfs_root) {
        if (n == wanted)
            return *id;
        ++*id;
    }
    for (const struct node *c = n->child; c; c = c->next) {
        unsigned found = mount_id(c, wanted, id);
        if (found)
            return found;
    }
    return 0;
}

void proc_fdinfo_text(struct vfs *vfs, int fd, struct text *t)
{
    struct guest_fd f;
    struct stat st;
    uint64_t place = 0;
    unsigned id = 1;
    if (guest_fd(vfs->vm, (uint64_t)fd, &f) < 0)
        return;
    struct handle *h = handle_get(vfs, f.file.handle);
    call_fd_stat(&f, &st);
    if (h && (handle_stat(vfs, h, &st) || guest_read(vfs->vm, &place, f.place, sizeof place)))
        return;
    line(t, "pos:\t%lld\nflags:\t0%o\nmnt_id:\t%u\nino:\t%llu\n", (long long)place, f.file.flags | (f.closes ? O_CLOEXEC : 0),
         h && h->back ? mount_id(vfs_root, h->back, &id) : 0, (unsigned long long)st.st_ino);
    struct lock_text l;
    for (uint32_t i = 0; h && lock_told(vfs, f.file.handle, h, i, &l); i++) {
        char end[24] = "EOF";
        if (l.end != INT64_MAX)
            snprintf(end, sizeof end, "%lld", (long long)l.end);
        line(t, "lock:\t%u: %s ADVISORY  %s %d %02x:%02x:%llu %lld %s\n", i + 1, l.kind, l.type, l.pid, major(st.st_dev), minor(st.st_dev),
             (unsigned long long)st.st_ino, (long long)l.start, end);
    }
}
