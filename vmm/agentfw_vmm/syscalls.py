"""Which of Linux's system calls a guest has, and which of them the host itself can refuse.

The host sees ring operations, not system calls: what a call does inside the VM (threads, memory, sockets between its own parts)
is the shim's, which is guest code. So there are three kinds of names:

    host    all that the call can do goes by ring operations: the cell refuses those, whatever the guest has become
    guest   done in the VM: the shim can be told to refuse it, which binds programs, but not one that overwrote its shim
    absent  there is no such call in a VM, rules or not
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from ._lib import lib

Kind = Literal["host", "guest", "absent"]

_FIRST = """
read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn
ioctl pread64 pwrite64 readv writev access pipe select sched_yield mremap msync mincore madvise shmget shmat shmctl dup
dup2 pause nanosleep getitimer alarm setitimer getpid sendfile socket connect accept sendto recvfrom sendmsg recvmsg
shutdown bind listen getsockname getpeername socketpair setsockopt getsockopt clone fork vfork execve exit wait4 kill
uname semget semop semctl shmdt msgget msgsnd msgrcv msgctl fcntl flock fsync fdatasync truncate ftruncate getdents
getcwd chdir fchdir rename mkdir rmdir creat link unlink symlink readlink chmod fchmod chown fchown lchown umask
gettimeofday getrlimit getrusage sysinfo times ptrace getuid syslog getgid setuid setgid geteuid getegid setpgid getppid
getpgrp setsid setreuid setregid getgroups setgroups setresuid getresuid setresgid getresgid getpgid setfsuid setfsgid
getsid capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack utime mknod uselib
personality ustat statfs fstatfs sysfs getpriority setpriority sched_setparam sched_getparam sched_setscheduler
sched_getscheduler sched_get_priority_max sched_get_priority_min sched_rr_get_interval mlock munlock mlockall munlockall
vhangup modify_ldt pivot_root _sysctl prctl arch_prctl adjtimex setrlimit chroot sync acct settimeofday mount umount2
swapon swapoff reboot sethostname setdomainname iopl ioperm create_module init_module delete_module get_kernel_syms
query_module quotactl nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid readahead setxattr lsetxattr
fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr tkill time
futex sched_setaffinity sched_getaffinity set_thread_area io_setup io_destroy io_getevents io_submit io_cancel
get_thread_area lookup_dcookie epoll_create epoll_ctl_old epoll_wait_old remap_file_pages getdents64 set_tid_address
restart_syscall semtimedop fadvise64 timer_create timer_settime timer_gettime timer_getoverrun timer_delete
clock_settime clock_gettime clock_getres clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes vserver mbind
set_mempolicy get_mempolicy mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load waitid
add_key request_key keyctl ioprio_set ioprio_get inotify_init inotify_add_watch inotify_rm_watch migrate_pages openat
mkdirat mknodat fchownat futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat pselect6
ppoll unshare set_robust_list get_robust_list splice tee sync_file_range vmsplice move_pages utimensat epoll_pwait
signalfd timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2 epoll_create1 dup3
pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init fanotify_mark prlimit64
name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg setns getcpu process_vm_readv process_vm_writev kcmp
finit_module sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create kexec_file_load bpf execveat
userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx io_pgetevents
rseq
"""
_FROM_424 = """
pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount fspick
pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2 mount_setattr quotactl_fd
landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret process_mrelease futex_waitv
set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount
lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat removexattrat
open_tree_attr
"""
_SERVED = """
read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn
ioctl pread64 pwrite64 readv writev access pipe select sched_yield mremap msync mincore madvise dup dup2 pause nanosleep
getitimer alarm setitimer getpid sendfile socket connect accept sendto recvfrom sendmsg recvmsg shutdown bind listen getsockname
getpeername socketpair setsockopt getsockopt clone exit kill uname fcntl flock fsync fdatasync truncate ftruncate getcwd
chdir fchdir rename mkdir rmdir creat link unlink symlink readlink chmod fchmod chown fchown lchown umask gettimeofday
getrlimit getrusage sysinfo times getuid getgid setuid setgid geteuid getegid setpgid getppid getpgrp setreuid setregid
getgroups setresuid getresuid setresgid getresgid getpgid getsid rt_sigpending rt_sigtimedwait rt_sigqueueinfo
rt_sigsuspend sigaltstack personality statfs fstatfs getpriority setpriority sched_setparam sched_getparam
sched_setscheduler sched_getscheduler sched_get_priority_max sched_get_priority_min mlock munlock mlockall munlockall
prctl arch_prctl setrlimit sync gettid readahead tkill time futex sched_setaffinity sched_getaffinity epoll_create
getdents64 set_tid_address fadvise64 clock_gettime clock_getres clock_nanosleep exit_group epoll_wait epoll_ctl tgkill
openat mkdirat fchownat newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat pselect6 ppoll
set_robust_list utimensat epoll_pwait timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4 eventfd2
epoll_create1 dup3 pipe2 preadv pwritev rt_tgsigqueueinfo prlimit64 syncfs sendmmsg getcpu renameat2 getrandom
membarrier mlock2 preadv2 pwritev2 clone3 close_range faccessat2 epoll_pwait2 setfsuid setfsgid capget mknod mknodat
sched_rr_get_interval ioprio_get sync_file_range recvmmsg memfd_create statx copy_file_range
"""

#: x86-64 numbers by name.
NUMBERS: Mapping[str, int] = MappingProxyType(
    {name: n for n, name in enumerate(_FIRST.split())} | {name: 424 + n for n, name in enumerate(_FROM_424.split())}
)


def _host(*classes: tuple[str, tuple[int, ...]]) -> Mapping[str, tuple[tuple[int, ...], tuple[str, ...]]]:
    found = {}
    for names, operations in classes:
        for name in names.split():
            found[name] = (operations, tuple(names.split()))
    return found


#: name -> (ring operations, names of all calls that do the same: denying one denies them all).
HOST: Mapping[str, tuple[tuple[int, ...], tuple[str, ...]]] = MappingProxyType(
    {
        **_host(
            ("open openat openat2", (lib.AFW_OP_OPEN,)),
            ("getdents getdents64", (lib.AFW_OP_READDIR,)),
            ("readlink readlinkat", (lib.AFW_OP_READLINK,)),
            ("access faccessat faccessat2", (lib.AFW_OP_ACCESS,)),
            ("mkdir mkdirat", (lib.AFW_OP_MKDIR,)),
            ("rename renameat renameat2", (lib.AFW_OP_RENAME,)),
            ("symlink symlinkat", (lib.AFW_OP_SYMLINK,)),
            ("mknod mknodat", (lib.AFW_OP_MKNOD,)),
            ("link linkat", (lib.AFW_OP_LINK,)),
            ("chmod fchmod fchmodat fchmodat2", (lib.AFW_OP_CHMOD, lib.AFW_OP_FCHMOD)),
            ("utime utimes futimesat utimensat", (lib.AFW_OP_UTIMENS,)),
            ("truncate ftruncate", (lib.AFW_OP_TRUNCATE,)),
            ("fallocate", (lib.AFW_OP_FALLOCATE,)),
            ("fsync fdatasync", (lib.AFW_OP_FSYNC,)),
            ("statfs fstatfs", (lib.AFW_OP_STATFS,)),
            ("chdir fchdir", (lib.AFW_OP_CHDIR,)),
            ("getcwd", (lib.AFW_OP_GETCWD,)),
            ("flock", (lib.AFW_OP_FLOCK,)),
            ("socket", (lib.AFW_OP_FLOW_OPEN,)),
            ("connect", (lib.AFW_OP_FLOW_OPEN,)),
        ),
        "unlink": ((lib.AFW_OP_UNLINK,), ("unlink",)),
        "rmdir": ((lib.AFW_RULES_RMDIR,), ("rmdir",)),
        "unlinkat": ((lib.AFW_OP_UNLINK, lib.AFW_RULES_RMDIR), ("unlink", "rmdir", "unlinkat")),
    }
)
_GUEST = frozenset(_SERVED.split()) - HOST.keys()


def kind(name: str) -> Kind | None:
    """None: Linux has no call of that name."""
    if name in HOST:
        return "host"
    if name in _GUEST:
        return "guest"
    return "absent" if name in NUMBERS else None
