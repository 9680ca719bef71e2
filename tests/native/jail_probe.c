/* Closes the cell's jail around this process, with one read-only and one writable mount, and tries what argv[3] names.
 * Exit 0: it worked; 10: EPERM; 11: EACCES; 12: another errno; or death by SIGSYS. Linked with jail.c. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <linux/prctl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "machine.h"

struct cell cell;
static struct afw_cell_header header;
static int mounts[2];

int vfs_landlock_paths(void (*allow)(int fd, int writable, void *arg), void *arg)
{
    allow(mounts[0], 0, arg);
    allow(mounts[1], 1, arg);
    return 0;
}

static void *other_thread(void *arg)
{
    (void)arg;
    syscall(SYS_execve, "/bin/true", 0, 0);      /* filters and all: TSYNC reached this thread as well */
    return 0;
}

static pthread_barrier_t closed;
static void *waiting_thread(void *arg)
{
    pthread_barrier_wait(&closed);               /* started: glibc's own calls at a thread's start are behind us */
    pthread_barrier_wait(&closed);
    return other_thread(arg);
}

/* The one call that opens files in a cell */
static long open2(int dir, const char *path, uint64_t flags)
{
    struct open_how how = {.flags = flags, .mode = flags & O_CREAT ? 0600 : 0};
    return syscall(SYS_openat2, dir, path, &how, sizeof how);
}

/* No power of root's but those over files */
static long powers(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct set[2];
    if (syscall(SYS_capget, &head, set))
        return -1;
    uint32_t low = set[0].effective | set[0].permitted, rest = set[0].inheritable | set[1].effective | set[1].permitted | set[1].inheritable;
    return low & ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH | 1u << CAP_FOWNER) || rest ? -1 : 0;
}

static long attempt(const char *what)
{
    static char buffer[4096];
#define TRY(name, call) if (!strcmp(what, name)) return (long)(call)
    TRY("socket", socket(AF_INET, SOCK_STREAM, 0));
    TRY("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, (int *)buffer));
    TRY("execve", syscall(SYS_execve, "/bin/true", 0, 0));
    TRY("fork", syscall(SYS_fork));
    TRY("clone", syscall(SYS_clone, 0x11, 0, 0, 0, 0));
    TRY("clone3", syscall(SYS_clone3, buffer, 88));
    TRY("ptrace", syscall(SYS_ptrace, 0, 0, 0, 0));
    TRY("kill", syscall(SYS_kill, getppid(), 0));
    TRY("tgkill", syscall(SYS_tgkill, getppid(), getppid(), 0));
    TRY("io_uring", syscall(SYS_io_uring_setup, 1, buffer));
    TRY("bpf", syscall(SYS_bpf, 0, buffer, 0));
    TRY("mount", syscall(SYS_mount, 0, 0, 0, 0, 0));
    TRY("unshare", syscall(SYS_unshare, 0));
    TRY("process_vm_writev", syscall(SYS_process_vm_writev, getppid(), 0, 0, 0, 0, 0));
    TRY("int80", ({ long r; __asm__ volatile("int $0x80" : "=a"(r) : "a"(20) : "memory"); r; }));
    TRY("x32", syscall(0x40000000 + SYS_getpid));
    TRY("prctl", prctl(PR_SET_DUMPABLE, 1));
    TRY("personality", syscall(SYS_personality, 0));
    TRY("setrlimit", syscall(SYS_prlimit64, 0, RLIMIT_CORE, buffer, 0));
    TRY("getdents_root", open2(AT_FDCWD, "/", O_RDONLY | O_DIRECTORY));
    TRY("etc_shadow", open2(AT_FDCWD, "/etc/shadow", O_RDONLY));
    TRY("proc_self_mem", open2(AT_FDCWD, "/proc/self/mem", O_RDWR));
    TRY("executable", mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0);
    TRY("make_executable", mprotect((void *)((uintptr_t)buffer & ~4095ul), 4096, PROT_READ | PROT_EXEC));
    TRY("tiocsti", ioctl(2, 0x5412, "x"));
    TRY("kvm_create_device", ioctl(2, KVM_CREATE_DEVICE, buffer));
    TRY("kvm_run", ioctl(2, KVM_RUN, 0) == -1 && errno == ENOTTY ? 0 : -1);
    TRY("read_mount", open2(mounts[0], "file", O_RDONLY));
    TRY("write_read_only", open2(mounts[0], "file", O_WRONLY));
    TRY("make_read_only", open2(mounts[0], "new", O_CREAT | O_WRONLY));
    TRY("unlink_read_only", unlinkat(mounts[0], "file", 0));
    TRY("write_mount", open2(mounts[1], "new", O_CREAT | O_RDWR));
    TRY("rename", syscall(SYS_renameat2, mounts[1], "a", mounts[1], "b", 0));
    TRY("symlink", symlinkat("x", mounts[1], "link"));
    TRY("above", open2(mounts[1], "../outside", O_RDONLY));
    TRY("memfd", memfd_create("x", MFD_CLOEXEC));
    TRY("openat", openat(mounts[0], "file", O_RDONLY));
    TRY("copy_descriptor", fcntl(2, F_DUPFD_CLOEXEC, 0));
    TRY("signal_owner", fcntl(2, F_SETOWN, getppid()));    /* with the two that follow: SIGKILL to any process of this user */
    TRY("signal_number", fcntl(2, F_SETSIG, SIGKILL));
    TRY("signal_async", fcntl(2, F_SETFL, O_ASYNC));
    TRY("fioasync", ioctl(2, 0x5452, buffer));
    TRY("pkey_mprotect", syscall(SYS_pkey_mprotect, (uintptr_t)buffer & ~4095ul, 4096, PROT_READ | PROT_EXEC, -1));
    TRY("open_by_handle", syscall(SYS_open_by_handle_at, mounts[0], buffer, O_RDONLY));
    TRY("mknod", syscall(SYS_mknodat, mounts[1], "device", S_IFCHR | 0600, 0x101));
    TRY("timer_create", syscall(SYS_timer_create, 0, 0, buffer));
    TRY("shmget", syscall(SYS_shmget, 0, 4096, 0700));
    TRY("splice", syscall(SYS_splice, 2, 0, 2, 0, 1, 0));
    TRY("set_affinity", syscall(SYS_sched_setaffinity, getppid(), 8, buffer));
    TRY("core", ({ struct rlimit r; getrlimit(RLIMIT_CORE, &r) || r.rlim_max ? -1 : 0; }));
    fprintf(stderr, "unknown attempt %s\n", what);
    _exit(99);
}

int main(int argc, char **argv)
{
    char error[200] = "";
    if (argc != 4)
        return 98;
    cell.header = &header;
    for (int i = 0; i < 2; i++) {
        mounts[i] = open(argv[i + 1], O_PATH | O_DIRECTORY);
        if (mounts[i] < 0)
            return 97;
    }
    pthread_t thread;
    bool threaded = !strcmp(argv[3], "other_thread");
    pthread_barrier_init(&closed, 0, 2);
    int failed = jail_early(error, sizeof error) || (threaded && pthread_create(&thread, 0, waiting_thread, 0));
    if (!failed && threaded)
        pthread_barrier_wait(&closed);
    if (!failed && !strcmp(argv[3], "powers"))
        return powers() ? 94 : 0;
    if (failed || jail_late(error, sizeof error)) {
        fprintf(stderr, "%s\n", error);
        return 96;
    }
    if (threaded) {
        pthread_barrier_wait(&closed);
        pthread_join(thread, 0);
        return 95;
    }
    if (!strcmp(argv[3], "bits"))
        return (int)header.jail;
    return attempt(argv[3]) >= 0 ? 0 : errno == EPERM ? 10 : errno == EACCES ? 11 : 12;
}
