/* File locks by fcntl(): what Linux says of their arguments is said, and all are granted, for a guest is one process (docs/internals.md). flock()
 * really locks: fileops.c. See vfs.h.
 */
#include <fcntl.h>
#include <string.h>
#include "vfs.h"

static int lock_arguments(const struct flock *l)
{
    if (l->l_type != F_RDLCK && l->l_type != F_WRLCK && l->l_type != F_UNLCK)
        return -EINVAL;
    if (l->l_whence != SEEK_SET && l->l_whence != SEEK_CUR && l->l_whence != SEEK_END)
        return -EINVAL;
    return 0;
}

int64_t op_lock(struct vfs *vfs, const uint64_t a[6])
{
    struct flock l;
    uint32_t command = (uint32_t)a[2];
    int gets = command == F_GETLK || command == F_OFD_GETLK;
    struct handle *h = a[0] ? handle_get(vfs, a[0]) : 0;
    if (a[0] && (!h || h->access & HANDLE_PATH))
        return -EBADF;
    if (command == F_GET_SEALS || command == F_ADD_SEALS)        /* as of all files that were not made for being sealed */
        return !h || h->kind != BACK_TMP || !S_ISREG(h->mode) ? -EINVAL : command == F_GET_SEALS ? F_SEAL_SEAL : -EPERM;
    if (guest_read(vfs->vm, &l, a[1], sizeof l))
        return -EFAULT;
    int r = lock_arguments(&l);
    if (r < 0)
        return r;
    if (command >= F_OFD_GETLK && l.l_pid)
        return -EINVAL;
    if (gets && l.l_type == F_UNLCK && command == F_GETLK)
        return -EINVAL;
    uint8_t access = h ? h->access : a[3] == O_RDONLY ? HANDLE_READ : a[3] == O_WRONLY ? HANDLE_WRITE : HANDLE_READ | HANDLE_WRITE;
    if (!gets && l.l_type != F_UNLCK && !(access & (l.l_type == F_RDLCK ? HANDLE_READ : HANDLE_WRITE)))
        return -EBADF;
    if (!gets)
        return 0;
    l.l_type = F_UNLCK;
    return guest_write(vfs->vm, a[1], &l, sizeof l);
}
