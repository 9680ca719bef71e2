/* Calls that name files. Nearly all are one ring call of the same shape: path, length, two arguments, base. */
#include "io.h"

static u32 hidden = 022;
PL(umask)
{
    u32 old = hidden;
    hidden = a & 0777;
    return old;
}
static u64 masked(u64 mode) { return mode & 07777 & ~hidden; }

/* Length and base of a path. */
static u64 find(u64 dirfd, u64 path, u64 *base)
{
    s64 n = user_strlen(path, PATH_MAX);
    if (n <= 0)
        fail(n ? n : -ENOENT);
    *base = (int)dirfd == AT_FDCWD || *(char *)path == '/' ? AFW_CWD : ring_base(need(dirfd));
    return n;
}

static s64 at(u64 dirfd, u64 path, u64 x, u64 y, u16 op)
{
    u64 base, len = find(dirfd, path, &base);
    if (op > AFW_OP_ACCESS)
        files_changed++;
    return ring_call(op, path, len, x, y, base, 0);
}

static s64 two(u64 from_dir, u64 from, u64 to_dir, u64 to, u64 flags, u16 op)
{
    u64 base, to_base, n = find(from_dir, from, &base), m = find(to_dir, to, &to_base);
    files_changed++;
    return ring_call(op, from, n, to, m, base | to_base << 32, flags);
}

PL(openat)
{
    u64 base, len = find(a, b, &base);
    s64 r = dev_open((const char *)b, len, c);
    return r != -1 ? r : ring_open(b, len, c, masked(d), base);
}
PL(creat) { return sys_openat(AT_FDCWD, a, O_CREAT | O_WRONLY | O_TRUNC, b, 0, 0); }

PL(newfstatat)
{
    struct stat st;
    s64 r = 0;
    if (d & AT_EMPTY_PATH && !user_strlen(b, 1))
        file_stat(need(a), &st);
    else
        r = at(a, b, d & AT_SYMLINK_NOFOLLOW, (u64)&st, AFW_OP_STAT);
    if ((st.st_mode & (S_IFMT | S_ISVTX)) == (S_IFREG | S_ISVTX))
        st.st_mode ^= S_IFREG ^ S_IFSOCK ^ S_ISVTX;  /* a bound socket's name (sock.c) */
    return r ? r : copy_out(c, &st, sizeof st);
}
PL(stat) { return sys_newfstatat(AT_FDCWD, a, b, 0, 0, 0); }
PL(lstat) { return sys_newfstatat(AT_FDCWD, a, b, AT_SYMLINK_NOFOLLOW, 0, 0); }

PL(faccessat2) { return at(a, b, c, d & (AT_SYMLINK_NOFOLLOW | AT_EACCESS), AFW_OP_ACCESS); }
PL(faccessat) { return at(a, b, c, 0, AFW_OP_ACCESS); }
PL(readlinkat) { return (int)d <= 0 ? -EINVAL : at(a, b, c, d, AFW_OP_READLINK); }
PL(mkdirat) { return at(a, b, masked(c), 0, AFW_OP_MKDIR); }
PL(unlinkat) { return at(a, b, c, 0, AFW_OP_UNLINK); }
PL(unlink) { return at(AT_FDCWD, a, 0, 0, AFW_OP_UNLINK); }
PL(rmdir) { return at(AT_FDCWD, a, AT_REMOVEDIR, 0, AFW_OP_UNLINK); }
PL(fchmodat) { return at(a, b, c & 07777, 0, AFW_OP_CHMOD); }
PL(chdir) { return at(AT_FDCWD, a, 0, 0, AFW_OP_CHDIR); }
PL(renameat) { return two(a, b, c, d, 0, AFW_OP_RENAME); }
PL(renameat2) { return two(a, b, c, d, e, AFW_OP_RENAME); }
PL(linkat) { return two(a, b, c, d, e, AFW_OP_LINK); }

PL(symlinkat)
{
    u64 base, none, len = find(b, c, &base), n = find(AT_FDCWD, a, &none);
    files_changed++;
    return ring_call(AFW_OP_SYMLINK, a, n, c, len, base, 0);
}
PL(symlink) { return sys_symlinkat(a, AT_FDCWD, b, 0, 0, 0); }

/* Owners: every file is the one user's, so giving it to oneself works and nothing else does. */
s64 sys_getid(void);
static s64 mine(u64 uid, u64 gid)
{
    int me = sys_getid();
    return ((int)uid == me || (int)uid == -1) && ((int)gid == me || (int)gid == -1) ? 0 : -EPERM;
}
FD(fchown) { return mine(b, c); }
PL(fchownat)
{
    s64 r = at(a, b, F_OK, e & AT_SYMLINK_NOFOLLOW, AFW_OP_ACCESS);
    return r ? r : mine(c, d);
}
PL(lchown) { return sys_fchownat(AT_FDCWD, a, b, c, AT_SYMLINK_NOFOLLOW, 0); }

PL(utimensat)
{
    if (b)
        return at(a, b, c, d, AFW_OP_UTIMENS);
    files_changed++;
    return ring_call(AFW_OP_UTIMENS, 0, 0, c, 0, ring_base(need(a)), 0);
}

/* What the ring does by handle only, by path. */
static s64 opened(u64 path, u64 flags, u64 arg, s64 (*call)(struct file *, u64, u64, u64, u64, u64))
{
    s64 fd = sys_openat(AT_FDCWD, path, flags, 0, 0, 0);
    if (fd < 0)
        return fd;
    s64 r = call(peek(fd), arg, 0, 0, 0, 0);
    fd_uninstall(fd);
    return r;
}
FD(ftruncate);
FD(fstatfs);
PL(truncate) { return opened(a, O_WRONLY, b, sys_ftruncate); }
PL(statfs) { return opened(a, O_RDONLY, b, sys_fstatfs); }

PL(getcwd) { return ring_call(AFW_OP_GETCWD, a, b, 0, 0, 0, 0); }
FD(fchdir) { return ring_call(AFW_OP_CHDIR, (u64)".", 1, 0, 0, ring_base(o), 0); }

s64 sys_xattr(void) { return -EOPNOTSUPP; }
