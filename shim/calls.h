/* The I/O half's calls and how each is entered (calls.S):
 *   FD  fd_NAME(struct file *, ...)   the first argument is a descriptor: its file, held for the call
 *   SK  sk_NAME(struct sock *, ...)   the same, of a socket
 *   PL  pl_NAME(...)                  arguments as they are
 *   AT(old, name)                     the old call without a directory: pl_name(AT_FDCWD, ...)
 *   AT2(old, name)                    the same with two paths
 * Read by C (declarations), by calls.S and by the tests. */
#ifndef AT
#define AT(old, name)
#define AT2(old, name)
#define AFW_DEFAULTS
#endif
#ifndef CALL
#define CALL(kind, name) kind(name);
#endif
CALL(FD, read) CALL(FD, write) CALL(FD, readv) CALL(FD, writev) CALL(FD, pread64) CALL(FD, pwrite64) CALL(FD, preadv) CALL(FD, pwritev)
CALL(FD, preadv2) CALL(FD, pwritev2) CALL(FD, dup) CALL(FD, fstat) CALL(FD, lseek) CALL(FD, ftruncate) CALL(FD, fallocate) CALL(FD, fchmod)
CALL(FD, fsync) CALL(FD, syncfs) CALL(FD, fadvise64) CALL(FD, fstatfs) CALL(FD, flock) CALL(FD, getdents64) CALL(FD, fchown) CALL(FD, fchdir)
CALL(FD, timerfd_settime) CALL(FD, timerfd_gettime) CALL(FD, epoll_wait) CALL(FD, epoll_pwait) CALL(FD, epoll_pwait2) CALL(FD, epoll_ctl)
CALL(PL, close) CALL(PL, close_range) CALL(PL, dup2) CALL(PL, dup3) CALL(PL, fcntl) CALL(PL, ioctl)
CALL(PL, pipe) CALL(PL, pipe2) CALL(PL, eventfd) CALL(PL, eventfd2) CALL(PL, timerfd_create) CALL(PL, epoll_create) CALL(PL, epoll_create1)
CALL(PL, poll) CALL(PL, ppoll) CALL(PL, select) CALL(PL, pselect6)
CALL(PL, umask) CALL(PL, openat) CALL(PL, creat) CALL(PL, newfstatat) CALL(PL, stat) CALL(PL, lstat) CALL(PL, faccessat) CALL(PL, faccessat2)
CALL(PL, readlinkat) CALL(PL, mkdirat) CALL(PL, unlinkat) CALL(PL, unlink) CALL(PL, rmdir) CALL(PL, renameat) CALL(PL, renameat2) CALL(PL, linkat)
CALL(PL, symlinkat) CALL(PL, symlink) CALL(PL, fchmodat) CALL(PL, fchownat) CALL(PL, utimensat) CALL(PL, truncate) CALL(PL, statfs)
CALL(PL, getcwd) CALL(PL, chdir) CALL(PL, socket) CALL(PL, socketpair)
CALL(SK, bind) CALL(SK, getsockname) CALL(SK, getpeername) CALL(SK, listen) CALL(SK, accept) CALL(SK, accept4) CALL(SK, connect) CALL(SK, shutdown)
CALL(SK, sendto) CALL(SK, recvfrom) CALL(SK, sendmsg) CALL(SK, recvmsg) CALL(SK, sendmmsg) CALL(SK, setsockopt) CALL(SK, getsockopt)
AT(open, openat) AT(access, faccessat) AT(readlink, readlinkat) AT(mkdir, mkdirat) AT(chmod, fchmodat) AT(chown, fchownat) AT2(rename, renameat) AT2(link, linkat)
#undef CALL
#ifdef AFW_DEFAULTS
#undef AT
#undef AT2
#undef AFW_DEFAULTS
#endif
