/* /proc/self/fd: the guest's descriptors as links. See fds.c, vfs.h. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include "vfs.h"

#define FD_DIR "/proc/PID/fd/"
#define FD_INO 0x10000               /* of the first link */

int proc_fd(const char *name)
{
    int fd = 0;
    const char *s = name + sizeof FD_DIR - 1;
    if (strncmp(name, FD_DIR, sizeof FD_DIR - 1) || !*s || (*s == '0' && s[1]))
        return -1;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || fd > 99999)
            return -1;
        fd = fd * 10 + *s - '0';
    }
    return fd;
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
