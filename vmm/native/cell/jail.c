/* What a cell cannot do any more once it runs guests: gain privileges, open anything outside its mounts, make sockets, start
 * processes, map executable memory.
 *
 * Calls that the files of the cell may make after the jail are those of `allowed` below. Calls that nothing here ever makes kill
 * the process (a guest has taken it over); the rest fail with EPERM. Without Landlock in the kernel the mounts are still guarded by
 * openat2(RESOLVE_BENEATH) on their descriptors, and the header's jail bits say so.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "machine.h"

#define JAIL_NO_NEW_PRIVS 1u
#define JAIL_SECCOMP 2u
#define JAIL_LANDLOCK 4u
#define JAIL_RLIMITS 8u

/* ---- Landlock. Numbers are the kernel's ABI; headers of older systems lack the newer ones. ---- */

#define LL_CREATE 444
#define LL_ADD_RULE 445
#define LL_RESTRICT 446
#define LL_FILE_READ (1ull << 2)
#define LL_FILE_WRITE (1ull << 1)
#define LL_TRUNCATE (1ull << 14)                 /* ABI 3 */
#define LL_READ (LL_FILE_READ | 1ull << 3)       /* and read directories */
#define LL_CHANGE (LL_FILE_WRITE | 1ull << 4 | 1ull << 5 | 1ull << 7 | 1ull << 8 | 1ull << 12 | 1ull << 13 | LL_TRUNCATE)
                                                 /* remove directory, file; make directory, file, symlink; refer */
struct ruleset_attr {
    uint64_t fs, net, scoped;
};
struct path_attr {
    uint64_t allowed;
    int32_t fd;
} __attribute__((packed));

struct landlock {
    int fd, error;
    uint64_t handled;
};

static void allow_mount(int fd, int writable, void *arg)
{
    struct landlock *l = arg;
    struct stat st;
    struct path_attr rule = {.allowed = LL_READ | (writable ? LL_CHANGE : 0), .fd = fd};
    if (fstat(fd, &st)) {
        l->error = errno;
        return;
    }
    if (!S_ISDIR(st.st_mode))
        rule.allowed &= LL_FILE_READ | LL_FILE_WRITE | LL_TRUNCATE;
    rule.allowed &= l->handled;
    if (syscall(LL_ADD_RULE, l->fd, 1, &rule, 0))
        l->error = errno;
}

static int landlock(char *error, size_t size)
{
    long abi = syscall(LL_CREATE, 0, 0, 1u);
    if (abi < 1)
        return 0;                                /* not in this kernel, or switched off */
    static const uint64_t by_abi[] = {0, 0x1fff, 0x3fff, 0x7fff, 0x7fff, 0xffff};
    struct ruleset_attr attr = {.fs = by_abi[abi < 5 ? abi : 5], .net = abi >= 4 ? 3 : 0, .scoped = abi >= 6 ? 3 : 0};
    struct landlock l = {.handled = attr.fs};
    l.fd = (int)syscall(LL_CREATE, &attr, abi >= 6 ? 24u : abi >= 4 ? 16u : 8u, 0);
    if (l.fd < 0) {
        snprintf(error, size, "landlock_create_ruleset: %s", strerror(errno));
        return -1;
    }
    vfs_landlock_paths(allow_mount, &l);
    if (!l.error && syscall(LL_RESTRICT, l.fd, 0))
        l.error = errno;
    close(l.fd);
    if (l.error) {
        snprintf(error, size, "landlock: %s", strerror(l.error));
        return -1;
    }
    cell.header->jail |= JAIL_LANDLOCK;
    return 0;
}

/* Of root's powers those over files remain: mounts may hold files of other users. */
static int drop_capabilities(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct set[2];
    if (syscall(SYS_capget, &head, set))
        return -1;
    set[0].effective = set[0].permitted &= 1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH | 1u << CAP_FOWNER;
    set[1].effective = set[1].permitted = set[0].inheritable = set[1].inheritable = 0;
    return (int)syscall(SYS_capset, &head, set);
}

int jail_early(char *error, size_t size)
{
    if (drop_capabilities()) {
        snprintf(error, size, "capabilities: %s", strerror(errno));
        return -1;
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) {
        snprintf(error, size, "no_new_privs: %s", strerror(errno));
        return -1;
    }
    cell.header->jail |= JAIL_NO_NEW_PRIVS;
    return landlock(error, size);
}

/* ---- seccomp ---- */

static const uint16_t allowed[] = {
    /* waiting, time, threads' own business */
    SYS_futex, SYS_write, SYS_read, SYS_ppoll, SYS_poll, SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep, SYS_timer_settime, SYS_timer_delete,
    SYS_restart_syscall, SYS_rt_sigreturn, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_sigaltstack, SYS_sched_yield, SYS_getpid, SYS_gettid,
    SYS_exit, SYS_exit_group, SYS_getrandom,
    /* memory; mmap and mprotect are below */
    SYS_munmap, SYS_madvise, SYS_mremap, SYS_mincore, SYS_brk,
    /* files: vfs.c, tmpfs.c, fileops.c */
    SYS_openat2, SYS_readlinkat, SYS_newfstatat, SYS_fstat, SYS_statx, SYS_getdents64, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev,
    SYS_preadv2, SYS_pwritev2, SYS_readv, SYS_writev, SYS_ftruncate, SYS_fallocate, SYS_fadvise64, SYS_mkdirat, SYS_unlinkat, SYS_renameat2, SYS_symlinkat,
    SYS_linkat, SYS_fchmod, SYS_fchmodat, 452 /* fchmodat2 */, SYS_faccessat, SYS_faccessat2, SYS_utimensat, SYS_fsync, SYS_fdatasync, SYS_fstatfs,
    SYS_memfd_create, SYS_flock, SYS_lseek, SYS_copy_file_range, SYS_name_to_handle_at, SYS_close,
};

/* Nothing in a cell calls these. */
static const uint16_t deadly[] = {
    SYS_execve, SYS_execveat, SYS_fork, SYS_vfork, SYS_clone, SYS_clone3, SYS_socket, SYS_socketpair, SYS_connect, SYS_bind, SYS_listen, SYS_accept,
    SYS_accept4, SYS_sendto, SYS_sendmsg, SYS_recvmsg, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kill, SYS_tkill, SYS_pidfd_open,
    SYS_pidfd_getfd, SYS_pidfd_send_signal, SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_setns, SYS_unshare, SYS_bpf, SYS_perf_event_open,
    SYS_init_module, SYS_finit_module, SYS_kexec_load, SYS_io_uring_setup, SYS_userfaultfd, SYS_keyctl, SYS_add_key, SYS_setuid, SYS_setgid,
    SYS_setresuid, SYS_setresgid, SYS_capset, SYS_memfd_secret,
};

static const uint32_t ioctls[] = {
    KVM_RUN, KVM_GET_REGS, KVM_SET_REGS, KVM_GET_SREGS, KVM_SET_SREGS, KVM_CREATE_VM, KVM_CREATE_VCPU, KVM_SET_USER_MEMORY_REGION, KVM_SET_CPUID2,
    KVM_GET_MSRS, KVM_SET_MSRS, KVM_GET_XSAVE, KVM_SET_XSAVE, KVM_SET_XCRS, KVM_SET_DEVICE_ATTR, KVM_ENABLE_CAP, KVM_GET_VCPU_EVENTS,
    KVM_SET_VCPU_EVENTS, KVM_GET_DEBUGREGS, KVM_SET_DEBUGREGS, KVM_GET_XCRS, KVM_GET_MP_STATE, PAGEMAP_SCAN,
};

struct program {
    struct sock_filter code[400];
    unsigned n;
};

static void emit(struct program *p, uint16_t code, uint32_t k, uint8_t jt, uint8_t jf)
{
    p->code[p->n++] = (struct sock_filter){code, jt, jf, k};
}

#define LOAD (BPF_LD | BPF_W | BPF_ABS)
#define EQUAL (BPF_JMP | BPF_JEQ | BPF_K)
#define BITS (BPF_JMP | BPF_JSET | BPF_K)
#define RETURN (BPF_RET | BPF_K)
#define ARG(i) ((uint32_t)offsetof(struct seccomp_data, args) + 8 * (i))   /* low half */
#define DENY (SECCOMP_RET_ERRNO | EPERM)

static void build(struct program *p)
{
    emit(p, LOAD, offsetof(struct seccomp_data, arch), 0, 0);
    emit(p, EQUAL, AUDIT_ARCH_X86_64, 1, 0);
    emit(p, RETURN, SECCOMP_RET_KILL_PROCESS, 0, 0);
    emit(p, LOAD, offsetof(struct seccomp_data, nr), 0, 0);
    /* ioctl: by request; the descriptors are all ours, and no KVM request means anything to another kind of file */
    unsigned n = sizeof ioctls / sizeof *ioctls;
    emit(p, EQUAL, SYS_ioctl, 0, (uint8_t)(2 * n + 2));
    emit(p, LOAD, ARG(1), 0, 0);
    for (unsigned i = 0; i < n; i++) {
        emit(p, EQUAL, ioctls[i], 0, 1);
        emit(p, RETURN, SECCOMP_RET_ALLOW, 0, 0);
    }
    emit(p, RETURN, DENY, 0, 0);
    /* no executable memory */
    for (int i = 0; i < 2; i++) {
        emit(p, EQUAL, i ? SYS_mprotect : SYS_mmap, 0, 4);
        emit(p, LOAD, ARG(2), 0, 0);
        emit(p, BITS, PROT_EXEC, 0, 1);
        emit(p, RETURN, DENY, 0, 0);
        emit(p, RETURN, SECCOMP_RET_ALLOW, 0, 0);
    }
    /* fcntl copies descriptors and locks without waiting; F_SETOWN with O_ASYNC would send any signal to any process of this user */
    static const uint32_t fcntls[] = {F_DUPFD_CLOEXEC, F_OFD_SETLK, F_OFD_GETLK};
    n = sizeof fcntls / sizeof *fcntls;
    emit(p, EQUAL, SYS_fcntl, 0, (uint8_t)(2 * n + 2));
    emit(p, LOAD, ARG(1), 0, 0);
    for (unsigned i = 0; i < n; i++) {
        emit(p, EQUAL, fcntls[i], 0, 1);
        emit(p, RETURN, SECCOMP_RET_ALLOW, 0, 0);
    }
    emit(p, RETURN, DENY, 0, 0);
    /* abort(): a signal to itself */
    emit(p, EQUAL, SYS_tgkill, 0, 4);
    emit(p, LOAD, ARG(0), 0, 0);
    emit(p, EQUAL, (uint32_t)getpid(), 0, 1);
    emit(p, RETURN, SECCOMP_RET_ALLOW, 0, 0);
    emit(p, RETURN, SECCOMP_RET_KILL_PROCESS, 0, 0);
    for (unsigned i = 0; i < sizeof allowed / sizeof *allowed; i++) {
        emit(p, EQUAL, allowed[i], 0, 1);
        emit(p, RETURN, SECCOMP_RET_ALLOW, 0, 0);
    }
    for (unsigned i = 0; i < sizeof deadly / sizeof *deadly; i++) {
        emit(p, EQUAL, deadly[i], 0, 1);
        emit(p, RETURN, SECCOMP_RET_KILL_PROCESS, 0, 0);
    }
    emit(p, RETURN, DENY, 0, 0);
}

static int limit(int resource, rlim_t value)
{
    struct rlimit r;
    if (getrlimit(resource, &r))
        return -1;
    if (value > r.rlim_max)
        value = r.rlim_max;
    r.rlim_cur = r.rlim_max = value;
    return setrlimit(resource, &r);
}

int jail_late(char *error, size_t size)
{
    /* Not RLIMIT_NPROC: Linux 6.13 and later start a kernel thread a VM in our name, and no other call can make a thread. */
    if (limit(RLIMIT_CORE, 0) || limit(RLIMIT_NOFILE, 65536) || limit(RLIMIT_MSGQUEUE, 0)) {
        snprintf(error, size, "rlimits: %s", strerror(errno));
        return -1;
    }
    cell.header->jail |= JAIL_RLIMITS;
    static struct program p;
    build(&p);
    struct sock_fprog prog = {(unsigned short)p.n, p.code};
    long r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &prog);
    if (r) {
        snprintf(error, size, "seccomp: %s", r > 0 ? "a thread cannot take the filter" : strerror(errno));
        return -1;
    }
    cell.header->jail |= JAIL_SECCOMP;
    return 0;
}
