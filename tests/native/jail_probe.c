/* Closes the cell's jail around this process, with one read-only and one writable mount, and tries what argv[3] names.
 * Exit 0: it worked; 10: EPERM; 11: EACCES; 12: another errno; or death by SIGSYS. Linked with jail.c. */
#include <errno.h>
#include <fcntl.h>
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
    TRY("getdents_root", open("/", O_RDONLY | O_DIRECTORY));
    TRY("etc_shadow", open("/etc/shadow", O_RDONLY));
    TRY("proc_self_mem", open("/proc/self/mem", O_RDWR));
    TRY("executable", mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0);
    TRY("make_executable", mprotect((void *)((uintptr_t)buffer & ~4095ul), 4096, PROT_READ | PROT_EXEC));
    TRY("tiocsti", ioctl(2, 0x5412, "x"));
    TRY("kvm_create_device", ioctl(2, KVM_CREATE_DEVICE, buffer));
    TRY("kvm_run", ioctl(2, KVM_RUN, 0) == -1 && errno == ENOTTY ? 0 : -1);
    TRY("read_mount", openat(mounts[0], "file", O_RDONLY));
    TRY("write_read_only", openat(mounts[0], "file", O_WRONLY));
    TRY("make_read_only", openat(mounts[0], "new", O_CREAT | O_WRONLY, 0600));
    TRY("unlink_read_only", unlinkat(mounts[0], "file", 0));
    TRY("write_mount", openat(mounts[1], "new", O_CREAT | O_RDWR, 0600));
    TRY("rename", syscall(SYS_renameat2, mounts[1], "a", mounts[1], "b", 0));
    TRY("symlink", symlinkat("x", mounts[1], "link"));
    TRY("above", openat(mounts[1], "../outside", O_RDONLY));
    TRY("memfd", memfd_create("x", MFD_CLOEXEC));
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
