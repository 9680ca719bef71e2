/* A cell without KVM, for testing the shim: the blob runs in this process at its real addresses.
 *
 *   harness [-s SIGNAL:MS]... [-m MEMORY_MIB] [-p FILE] BLOB PROGRAM [ARG...]
 *
 * The program is a static ET_EXEC. Its `syscall` instructions are caught by syscall user dispatch and go to entry_lstar; `out`
 * faults, and the fault handler does what a cell does at that doorbell; a timer plays the time slice. What the blob answers with
 * ENOSYS stays so: nothing of the program's calls reaches the kernel. The result is the program's (128+n for signals, 99: everybody
 * waits for nothing, 98: the harness was refused something). -p: write a "restore" (new pid, generation) when the file is opened.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <x86intrin.h>
#include "abi.h"
#include "calls.h"
#include "sockopt.h"

#define CTL ((volatile struct afw_ctl *)AFW_CTL)
#define WIN ((volatile struct afw_window *)AFW_WINDOW)
#define HEADER ((struct afw_shim_header *)AFW_SHIM)
#define SLICE_US 1000
#define COMMITTED 0x4000000ul        /* two chunks */

extern char __executable_start[], etext[];
static volatile uint8_t selector = SYSCALL_DISPATCH_FILTER_ALLOW;
static uint64_t signal_at[8];
static int signal_number[8], n_signals;
static uint8_t alt_stack[65536] __attribute__((aligned(64)));

/* No libc from here on while the guest runs: its FS base is not ours, and only this file's syscalls pass. */
static long sys6(long n, long a, long b, long c, long d, long e, long f)
{
    long r;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return r;
}
#define SYS(n, a, b, c) sys6(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)

static void say(const char *text)
{
    size_t n = 0;
    while (text[n])
        n++;
    SYS(SYS_write, 2, text, n);
}

static void say_hex(const char *name, uint64_t v)
{
    char b[20] = "0x";
    for (int i = 0; i < 16; i++)
        b[2 + i] = "0123456789abcdef"[v >> (60 - 4 * i) & 15];
    b[18] = ' ';
    b[19] = 0;
    say(name);
    say(b);
}

static void drain(void)              /* what the guest wrote to stdout and stderr */
{
    for (int i = 1; i <= 2; i++) {
        volatile struct afw_flow *f = &WIN->flow[i];
        uint8_t *ring = (uint8_t *)AFW_WINDOW + AFW_WINDOW_DATA + (uint64_t)i * 2 * AFW_RING;
        if (f->tx_tail != f->tx_head)
            WIN->ready[0] |= 1u << i;
        for (; f->tx_tail != f->tx_head; f->tx_tail++)
            SYS(SYS_write, i, ring + f->tx_tail % AFW_RING, 1);
    }
}

__attribute__((noreturn)) static void leave(int code)
{
    drain();
    for (;;)
        SYS(SYS_exit_group, code, 0, 0);
}

static uint64_t mono(void)
{
    struct timespec t;
    SYS(SYS_clock_gettime, CLOCK_MONOTONIC, &t, 0);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void due_signals(void)
{
    uint64_t now = mono();
    for (int i = 0; i < n_signals; i++)
        if (signal_at[i] <= now) {
            CTL->sigpending |= 1ull << (signal_number[i] - 1);
            signal_at[i] = ~0ull;
        }
}

static void entered(void)
{
    struct timespec t;
    SYS(SYS_clock_gettime, CLOCK_PROCESS_CPUTIME_ID, &t, 0);
    CTL->cpu_ns = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
    CTL->cpu_since = mono();
    due_signals();
}

/* The test knows them */
static uint8_t next_random(void)
{
    static uint32_t n;
    return (uint8_t)(n++ * 2654435761u >> 24);
}

static void fill_random(void)
{
    for (int i = 0; i < AFW_RANDOM; i++)
        CTL->random[i] = next_random();
    CTL->random_left = AFW_RANDOM;
}

static int64_t operation(const struct afw_sqe *e);

/* Guest memory is this process's; a bad address is found out by the kernel, as it is by a cell */
static int memory(void *to, const void *from, uint64_t n)
{
    struct { const void *at; uint64_t n; } local = {to, n}, remote = {from, n};
    return sys6(SYS_process_vm_readv, SYS(SYS_getpid, 0, 0, 0), (long)&local, 1, (long)&remote, 1, 0) == (long)n ? 0 : -EFAULT;
}

static int call_read(struct caller *c, void *to, uint64_t gva, uint64_t n)
{
    (void)c;
    return memory(to, (void *)gva, n);
}

static int call_write(struct caller *c, uint64_t gva, const void *data, uint64_t n)
{
    (void)c;
    return memory((void *)gva, data, n);
}

static int64_t call_operation(struct caller *c, const struct afw_sqe *e)
{
    (void)c;
    return operation(e);
}

static uint64_t call_now(struct caller *c)
{
    (void)c;
    return mono();
}

static int same(const char *a, const char *b)
{
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

static int64_t socket_number(const char *path)
{
    struct stat st;
    long r = SYS(SYS_stat, path, &st, 0);
    return r < 0 ? r : (st.st_mode & 0170000) == 0140000 ? (int64_t)(1 + st.st_ino % 0x7fffffff) : -ECONNREFUSED;
}

/* What the cell's file system says of paths that the guest is itself; -1: of no other */
static int64_t opened(const char *path, uint64_t kept, uint64_t st)
{
    static const struct { const char *path; uint32_t what; } own[] = {
        {"/dev/null", AFW_OPENED_DEVICE + 3}, {"/dev/zero", AFW_OPENED_DEVICE + 5}, {"/dev/full", AFW_OPENED_DEVICE + 7},
        {"/dev/random", AFW_OPENED_DEVICE + 8}, {"/dev/urandom", AFW_OPENED_DEVICE + 9}, {"/dev/agentfw", AFW_OPENED_JOB},
        {"/dev/stdin", AFW_OPENED_FD}, {"/dev/stdout", AFW_OPENED_FD + 1}, {"/dev/stderr", AFW_OPENED_FD + 2}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (same(path, own[i].path)) {
            if (st)
                SYS(SYS_stat, path, st, 0);
            return (int64_t)(kept << 32 | own[i].what);
        }
    const char *fds = "/dev/fd/", *s = path;
    for (; *fds && *s == *fds; s++)
        fds++;
    if (*fds)
        return -1;
    uint32_t n = 0;
    for (; *s; s++)
        n = n * 10 + (uint32_t)*s - '0';
    return n < CTL->fd_size && ((const uint64_t *)CTL->fd_table)[n] ? (int64_t)(kept << 32 | (AFW_OPENED_FD + n)) : -ENOENT;
}

static int64_t operation(const struct afw_sqe *e)
{
    const uint64_t *a = e->a;
    struct caller caller = {(struct afw_ctl *)AFW_CTL, call_read, call_write, call_operation, call_now, ((struct afw_ctl *)AFW_CTL)->memory_limit};
    if (e->op >= AFW_OP_CALL)
        return call_perform(&caller, e->op - AFW_OP_CALL, a);
    switch (e->op) {
    case AFW_OP_NOP:
    case AFW_OP_FLOW_KICK:
        drain();
        return 0;
    case AFW_OP_COMMIT:
        if (a[0] % AFW_CHUNK || a[1] % AFW_CHUNK || a[0] + a[1] > AFW_SPACE_END)
            return -EINVAL;
        return SYS(SYS_mprotect, a[0], a[1], PROT_READ | PROT_WRITE | PROT_EXEC);
    case AFW_OP_ZERO:
        if (a[0] % 4096 || a[1] % 4096)
            return -EINVAL;
        if (a[2])
            return SYS(SYS_madvise, a[0], a[1], MADV_DONTNEED);
        return sys6(SYS_mmap, (long)a[0], (long)a[1], 7, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) < 0 ? -ENOMEM : 0;
    case AFW_OP_PROTECT:
        if (a[0] % 4096 || a[1] % 4096)
            return -EINVAL;
        return SYS(SYS_mprotect, a[0], a[1], !a[2] ? PROT_NONE : a[2] & PROT_WRITE ? 7 : PROT_READ | PROT_EXEC);
    case AFW_OP_UNLINK:
    case AFW_OP_ACCESS:
    case AFW_OP_OPEN: {
        char path[4096];
        for (uint64_t i = 0; i < a[1] && i < 4095; i++)
            path[i] = ((char *)a[0])[i];
        path[a[1] < 4095 ? a[1] : 4095] = 0;
        if (e->op == AFW_OP_ACCESS)
            return a[2] == AFW_SOCKET_NUMBER ? socket_number(path) : SYS(SYS_access, path, a[2], 0);
        if (e->op == AFW_OP_UNLINK)
            return SYS(SYS_unlink, path, 0, 0);
        uint64_t kept = a[2] & ~(uint64_t)(O_CREAT | O_EXCL | O_TRUNC);
        int64_t what = e->reserved & CALL_OPEN ? opened(path, kept, a[5]) : -1;
        if (what != -1)
            return what;
        long fd = sys6(SYS_openat, AT_FDCWD, (long)path, (long)a[2], (long)a[3], 0, 0);
        if (fd >= 0 && a[5])
            SYS(SYS_fstat, fd, a[5], 0);
        return fd < 0 || !(e->reserved & CALL_OPEN) ? fd : (int64_t)((kept | 0100000 | (a[2] & O_CREAT ? O_TRUNC : 0)) << 32 | (uint32_t)fd);
    }
    case AFW_OP_MKNOD: {
        char path[4096];
        for (uint64_t i = 0; i < a[1] && i < 4095; i++)
            path[i] = ((char *)a[0])[i];
        path[a[1] < 4095 ? a[1] : 4095] = 0;
        long r = SYS(SYS_mknod, path, a[2] & ~(uint64_t)AFW_SOCKET_NUMBER, 0);
        return r || !(a[2] & AFW_SOCKET_NUMBER) ? r : socket_number(path);
    }
    case AFW_OP_LOCK:
        return a[0] ? SYS(SYS_fcntl, a[0], a[2], a[1]) : 0;
    case AFW_OP_CLOSE:
        return a[1] ? 0 : SYS(SYS_close, a[0], 0, 0);
    case AFW_OP_SEEK:
        return SYS(SYS_lseek, a[0], a[1], a[2]);
    case AFW_OP_COPY: {
        long in = (long)a[1], out = (long)a[3];
        return sys6(SYS_copy_file_range, (long)a[0], (long)&in, (long)a[2], (long)&out, (long)a[4], 0);
    }
    case AFW_OP_PREAD:
        return sys6(SYS_pread64, (long)a[0], (long)a[1], (long)a[2], (long)a[3], 0, 0);
    case AFW_OP_PWRITE:
        return sys6(SYS_pwrite64, (long)a[0], (long)a[1], (long)a[2], (long)a[3], 0, 0);
    case AFW_OP_STAT: {
        char path[4096] = {0};
        for (uint64_t i = 0; i < a[1] && i < 4095; i++)
            path[i] = ((char *)a[0])[i];
        return sys6(SYS_newfstatat, AT_FDCWD, (long)path, (long)a[3], (long)a[2], 0, 0);
    }
    case AFW_OP_FSTAT:
        return SYS(SYS_fstat, a[0], a[1], 0);
    case AFW_OP_TRUNCATE:
        return SYS(SYS_ftruncate, a[0], a[1], 0);
    case AFW_OP_MAPFILE: {
        long r = sys6(SYS_mmap, (long)a[1], (long)a[2], (long)a[3], MAP_FIXED | (a[4] != 2 ? MAP_SHARED : MAP_PRIVATE), (int)a[0], (long)a[5]);
        return r < 0 ? r : 0;
    }
    case AFW_OP_REMAP: {
        long r = sys6(SYS_mremap, (long)a[0], (long)a[1], (long)a[3], MREMAP_MAYMOVE | MREMAP_FIXED, (long)a[2], 0);
        if (r >= 0)
            sys6(SYS_mmap, (long)a[0], (long)a[1], 7, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        return r < 0 ? r : 0;
    }
    case AFW_OP_SOCKET:
        return socket_op(e, (uint8_t *)a[3], CTL->pid);
    case AFW_OP_READY:               /* as if restored at once in another VM */
        CTL->pid += 1000;
        CTL->generation++;
        fill_random();
        return 0;
    case AFW_OP_RANDOM:
        if (!a[0]) {
            fill_random();
            return 0;
        }
        for (uint64_t i = 0; i < a[1]; i++)
            ((uint8_t *)a[0])[i] = next_random();
        return (int64_t)a[1];
    case AFW_OP_EXIT:
        if (a[1])
            say_hex("guest killed by signal ", a[1]), say("\n");
        leave(a[1] ? 128 + (int)a[1] : (int)a[0]);
    }
    return -ENOSYS;
}

static void consume(void)
{
    struct afw_sqe *sq = (struct afw_sqe *)AFW_SQ;
    struct afw_cqe *cq = (struct afw_cqe *)AFW_CQ;
    while (CTL->sq_head != CTL->sq_tail) {
        struct afw_sqe e = sq[CTL->sq_head++ % AFW_SQ_LEN];
        int64_t r = operation(&e);
        if (e.flags & AFW_SQE_NOREPLY) {
            if (r < 0) {
                say_hex("refused a posted operation: ", e.op);
                leave(98);
            }
            continue;
        }
        cq[CTL->cq_tail % AFW_CQ_LEN] = (struct afw_cqe){e.token, 0, r};
        CTL->cq_tail++;
    }
}

static void wait_port(void)
{
    consume();
    drain();
    while (!CTL->sigpending && !CTL->wake && CTL->cq_head == CTL->cq_tail && !WIN->ready[0] && mono() < CTL->deadline) {
        uint64_t until = CTL->deadline;
        for (int i = 0; i < n_signals; i++)
            if (signal_at[i] < until)
                until = signal_at[i];
        if (until == ~0ull) {
            say("harness: everybody waits, and for nothing\n");
            leave(99);
        }
        struct timespec t = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
        sys6(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, (long)&t, 0, 0, 0);
        due_signals();
    }
}

static int in_shim(uint64_t rip)
{
    return (rip >= HEADER->text_start && rip < HEADER->text_end) || (rip >= AFW_SITES && rip < AFW_SITES_END);
}

static void upcall(gregset_t *g, unsigned kind)
{
    CTL->up_rip = (uint64_t)(*g)[REG_RIP];
    CTL->up_rsp = (uint64_t)(*g)[REG_RSP];
    CTL->up_rflags = (uint64_t)(*g)[REG_EFL];
    CTL->up_kind = kind;
    (*g)[REG_RIP] = (greg_t)HEADER->entry_upcall;
}

static void fault(int sig, siginfo_t *info, gregset_t *g)
{
    uint64_t rip = (uint64_t)(*g)[REG_RIP];
    const uint8_t *code = (const uint8_t *)rip;
    if (sig == SIGSEGV && info->si_code == SI_KERNEL && in_shim(rip) && code[0] == 0xe6) {
        (*g)[REG_RIP] += 2;
        if (code[1] == AFW_PORT_KICK)
            consume();
        else if (code[1] == AFW_PORT_WAIT)
            wait_port();
        else {
            say_hex("shim panic ", CTL->panic_code);
            say_hex("line ", CTL->panic_line);
            say("\n");
            leave(97);
        }
        entered();
        return;
    }
    if (!in_shim(rip) && (CTL->fault_handlers >> (sig - 1) & 1)) {
        CTL->up_signal = (uint32_t)sig;
        CTL->up_code = (uint64_t)info->si_code;
        CTL->up_addr = (uint64_t)info->si_addr;
        upcall(g, AFW_UP_FAULT);
        return;
    }
    say_hex("fault ", (uint64_t)sig);
    say_hex("at ", rip);
    say_hex("address ", (uint64_t)info->si_addr);
    say_hex("rsp ", (uint64_t)(*g)[REG_RSP]);
    say(in_shim(rip) ? "in the shim\n" : "\n");
    leave(128 + sig);
}

static void on_signal(int sig, siginfo_t *info, void *context)
{
    gregset_t *g = &((ucontext_t *)context)->uc_mcontext.gregs;
    if (sig == SIGSYS) {             /* the `syscall` instruction, as the CPU does it */
        if (in_shim((uint64_t)(*g)[REG_RIP])) {
            say("a syscall in the shim\n");
            leave(96);
        }
        (*g)[REG_RAX] = info->si_syscall;
        (*g)[REG_RCX] = (*g)[REG_RIP];
        (*g)[REG_R11] = (*g)[REG_EFL];
        (*g)[REG_RIP] = (greg_t)HEADER->entry_lstar;
    } else if (sig == SIGALRM) {
        entered();
        if (in_shim((uint64_t)(*g)[REG_RIP]))
            CTL->resched = 1;
        else if (!CTL->alone || CTL->sigpending || CTL->wake)
            upcall(g, AFW_UP_RESCHED);
    } else
        fault(sig, info, g);
}

__asm__(".text\nrestorer: mov $15, %eax\nsyscall\n");
extern void restorer(void);

static void need(int ok, const char *what)
{
    if (ok)
        return;
    perror(what);
    exit(98);
}

static void install(void)
{
    struct { void *handler; unsigned long flags; void *restorer; uint64_t mask; } a = {
        on_signal, SA_SIGINFO | SA_ONSTACK | 0x4000000, restorer, ~0ull};
    static const int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGALRM};
    stack_t st = {.ss_sp = alt_stack, .ss_size = sizeof alt_stack};
    need(!sigaltstack(&st, 0), "sigaltstack");
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
        need(!sys6(SYS_rt_sigaction, caught[i], (long)&a, 0, 8, 0, 0), "sigaction");
}

static void clocks(void)
{
    struct timespec t;
    uint64_t m0 = mono(), t0 = __rdtsc();
    usleep(20000);
    uint64_t m1 = mono(), t1 = __rdtsc();
    CTL->tsc_base = t1;
    CTL->mono_base = m1;
    CTL->tsc_mult = (uint64_t)((((unsigned __int128)(m1 - m0)) << 32) / (t1 - t0));
    clock_gettime(CLOCK_REALTIME, &t);
    CTL->real_offset = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec - mono();
}

static uint64_t load(const char *path, Elf64_Ehdr *e, uint64_t *end)
{
    int fd = open(path, O_RDONLY);
    need(fd >= 0 && read(fd, e, sizeof *e) == sizeof *e && e->e_type == ET_EXEC, path);
    Elf64_Phdr ph[16];
    need(e->e_phnum <= 16 && pread(fd, ph, e->e_phnum * sizeof *ph, (off_t)e->e_phoff) > 0, path);
    uint64_t phdr = 0;
    for (int i = 0; i < e->e_phnum; i++) {
        if (ph[i].p_type != PT_LOAD)
            continue;
        need(pread(fd, (void *)ph[i].p_vaddr, ph[i].p_filesz, (off_t)ph[i].p_offset) == (ssize_t)ph[i].p_filesz, path);
        if (ph[i].p_offset <= e->e_phoff && e->e_phoff < ph[i].p_offset + ph[i].p_filesz)
            phdr = ph[i].p_vaddr + e->e_phoff - ph[i].p_offset;
        if (ph[i].p_vaddr + ph[i].p_memsz > *end)
            *end = ph[i].p_vaddr + ph[i].p_memsz;
    }
    close(fd);
    return phdr;
}

static uint64_t stack(uint64_t top, char **argv, const Elf64_Ehdr *e, uint64_t phdr)
{
    uint64_t strings[64], n = 0, sp = top - 64;
    memset((void *)sp, 0x5a, 16);    /* AT_RANDOM */
    uint64_t random = sp;
    for (; argv[n] && n < 60; n++) {
        sp -= strlen(argv[n]) + 1;
        strings[n] = (uint64_t)strcpy((char *)sp, argv[n]);
    }
    uint64_t auxv[] = {AT_PHDR, phdr, AT_PHENT, 56, AT_PHNUM, e->e_phnum, AT_PAGESZ, 4096, AT_ENTRY, e->e_entry, AT_UID, 1000, AT_EUID, 1000,
                       AT_GID, 1000, AT_EGID, 1000, AT_SECURE, 0, AT_RANDOM, random, AT_HWCAP, 0x178bfbff, AT_HWCAP2, 2, AT_NULL, 0};
    uint64_t words = 1 + n + 1 + 1 + sizeof auxv / 8;
    uint64_t *w = (uint64_t *)((sp & ~15ull) - ((words + (words & 1)) * 8));
    uint64_t start = (uint64_t)w;
    *w++ = n;
    for (uint64_t i = 0; i < n; i++)
        *w++ = strings[i];
    w += 2;
    memcpy(w, auxv, sizeof auxv);
    return start;
}

int main(int argc, char **argv)
{
    uint64_t memory = 1024;
    int option;
    while ((option = getopt(argc, argv, "+s:m:")) != -1) {
        if (option == 's') {
            int ms;
            need(n_signals < 8 && sscanf(optarg, "%d:%d", &signal_number[n_signals], &ms) == 2, "-s");
            signal_at[n_signals++] = mono() + (uint64_t)ms * 1000000;
        } else if (option == 'm')
            memory = strtoul(optarg, 0, 10);
        else
            return 98;
    }
    if (argc - optind < 2)
        return 98;
    void *space = mmap((void *)AFW_SYS, AFW_WINDOW + AFW_WINDOW_SIZE - AFW_SYS, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    need(space == (void *)AFW_SYS, "guest memory");
    need(!mprotect(space, COMMITTED - AFW_SYS, 7) && !mprotect((void *)AFW_WINDOW, AFW_WINDOW_SIZE, 3), "mprotect");
    int fd = open(argv[optind], O_RDONLY);
    need(fd >= 0 && read(fd, (void *)AFW_SHIM, AFW_SHIM_MAX) > 0, argv[optind]);
    close(fd);
    Elf64_Ehdr e;
    uint64_t end = 0, phdr = load(argv[optind + 1], &e, &end);
    CTL->abi = AFW_ABI;
    CTL->pid = 77;
    CTL->generation = 1;
    CTL->memory_limit = memory << 20;
    CTL->stack_lo = ((end + 0xffff) & ~0xffffull) + 0x10000;
    CTL->stack_hi = CTL->stack_lo + 0x800000;
    CTL->brk_start = CTL->stack_hi;
    CTL->brk_max = CTL->brk_start + 0x1000000;
    CTL->mmap_base = CTL->brk_max;
    CTL->commit_end = COMMITTED;
    call_boot((struct afw_ctl *)AFW_CTL);
    CTL->start_rip = e.e_entry;
    CTL->start_rsp = stack(CTL->stack_hi, argv + optind + 1, &e, phdr);
    unsigned a, b, c, d;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    CTL->xcr0 = a & 0xe7;
    CTL->xsave_size = (a & 0xe0) ? 2688 : 832;
    (void)b, (void)c;
    for (int i = 0; i < 4; i++)
        WIN->flow[i].hstate = AFW_H_OPEN;
    fill_random();
    need(HEADER->magic == AFW_SHIM_MAGIC && HEADER->abi == AFW_ABI, "blob");
    clocks();
    install();
    struct itimerval slice = {{0, SLICE_US}, {0, SLICE_US}};
    need(!setitimer(ITIMER_REAL, &slice, 0), "setitimer");
    need(!prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, __executable_start, etext - __executable_start, &selector), "syscall dispatch");
    selector = SYSCALL_DISPATCH_FILTER_BLOCK;
    __asm__ volatile("jmp *%0" ::"r"(HEADER->init));
    __builtin_unreachable();
}
