/* System calls that the shim hands on as they are, for it has no room and they no hurry: names of files, identity, limits, accounting.
 *
 * Here they become the ring's own operations, which are looked at as those from the guest are (rules, bounds). Descriptors are looked up in
 * the guest's own table: what it says of a handle is worth as much as a handle in an operation of its own.
 * Only memory is read and written here, through the caller: tests/shim runs this file without KVM.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include "calls.h"

#define PATH_LIMIT 4096              /* with the NUL, as in Linux */
#define UID 1000                     /* user and group of all guests, one of each */
#define PAGE 4096ull
#define SECOND 1000000000ull
#define TICK (SECOND / 100)          /* of times() */
#define CWD ((uint64_t)AT_FDCWD)

static int64_t op(struct caller *c, uint16_t code, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3, uint64_t a4, uint64_t a5)
{
    const struct afw_sqe e = {.op = code, .a = {a0, a1, a2, a3, a4, a5}};
    return c->perform(c, &e);
}

/* The program's memory, as it gives it to a call: below is the shim's, and no pointer of the program's leads there. */
static int own(uint64_t gva, uint64_t n)
{
    return gva >= AFW_IMAGE && gva < AFW_SPACE_END && n <= AFW_SPACE_END - gva;
}

static int get(struct caller *c, void *to, uint64_t gva, uint64_t n)
{
    return own(gva, n) ? c->read(c, to, gva, n) : -EFAULT;
}

static int put(struct caller *c, uint64_t gva, const void *data, uint64_t n)
{
    return own(gva, n) ? c->write(c, gva, data, n) : -EFAULT;
}

/* ---- descriptors and paths ---- */

/* The handle behind a descriptor; 0: it is open and the guest's own; -EBADF */
static int64_t handle_of(struct caller *c, uint64_t fd)
{
    uint64_t table = c->ctl->fd_table, entry;
    uint32_t handle;
    if ((uint32_t)fd >= c->ctl->fd_size || c->read(c, &entry, table + (uint32_t)fd * 8ull, sizeof entry) || !(entry &= ~1ull) ||
        c->read(c, &handle, entry + AFW_FILE_HANDLE, sizeof handle))
        return -EBADF;
    return handle;
}

/* A string's length: 1..4095, or -ENOENT, -ENAMETOOLONG, -EFAULT. start: its first bytes, NUL after the end */
#define START 32
static int64_t text(struct caller *c, uint64_t at, char start[START])
{
    char piece[256];
    memset(start, 0, START);
    for (uint64_t n = 0; n < PATH_LIMIT;) {
        uint64_t take = PAGE - (at + n) % PAGE;          /* what follows may not be there, if the NUL comes first */
        if (take > sizeof piece)
            take = sizeof piece;
        if (take > PATH_LIMIT - n)
            take = PATH_LIMIT - n;
        if (get(c, piece, at + n, take))
            return -EFAULT;
        for (uint64_t i = 0; i < take; i++, n++) {
            if (!piece[i])
                return n ? (int64_t)n : -ENOENT;
            if (n < START - 1)
                start[n] = piece[i];
        }
    }
    return -ENAMETOOLONG;
}

/* Length and base of a path; start as of text() */
static int64_t find(struct caller *c, uint64_t dirfd, uint64_t path, uint64_t *base, char start[START])
{
    int64_t n = text(c, path, start), handle;
    *base = AFW_CWD;
    if (n < 0 || (int)dirfd == AT_FDCWD || *start == '/')
        return n;
    handle = handle_of(c, dirfd);
    if (handle <= 0)
        return handle ? handle : -ENOTDIR;
    *base = (uint64_t)handle;
    return n;
}

/* Most calls on a path: path, two arguments, base */
static int64_t at(struct caller *c, uint64_t dirfd, uint64_t path, uint64_t x, uint64_t y, uint16_t code)
{
    char start[START];
    uint64_t base;
    int64_t n = find(c, dirfd, path, &base, start);
    return n < 0 ? n : op(c, code, path, (uint64_t)n, x, y, base, 0);
}

static int64_t two(struct caller *c, uint64_t from_dir, uint64_t from, uint64_t to_dir, uint64_t to, uint64_t flags, uint16_t code)
{
    char start[START];
    uint64_t base, to_base;
    int64_t n = find(c, from_dir, from, &base, start), m = n < 0 ? n : find(c, to_dir, to, &to_base, start);
    return m < 0 ? m : op(c, code, from, (uint64_t)n, to, (uint64_t)m, base | to_base << 32, flags);
}

static int64_t symlink_call(struct caller *c, uint64_t target, uint64_t dirfd, uint64_t path)
{
    char start[START];
    uint64_t base;
    int64_t n = text(c, target, start), m = n < 0 ? n : find(c, dirfd, path, &base, start);
    return m < 0 ? m : op(c, AFW_OP_SYMLINK, target, (uint64_t)n, path, (uint64_t)m, base, 0);
}

/* By handle; descriptors of the guest's own files give `others` */
static int64_t on_handle(struct caller *c, uint64_t fd, uint64_t x, uint64_t y, uint64_t z, uint16_t code, int others)
{
    int64_t handle = handle_of(c, fd);
    return handle <= 0 ? handle ? handle : others : op(c, code, (uint64_t)handle, x, y, z, 0, 0);
}

/* By path what there is by handle only */
static int64_t opened(struct caller *c, uint64_t path, uint64_t flags, uint64_t x, uint16_t code)
{
    char start[START];
    int64_t n = text(c, path, start), handle = n < 0 ? n : op(c, AFW_OP_OPEN, path, (uint64_t)n, flags, 0, AFW_CWD, 0), r;
    if (handle < 0)
        return handle;
    r = op(c, code, (uint64_t)handle, x, 0, 0, 0, 0);
    op(c, AFW_OP_CLOSE, (uint64_t)handle, 0, 0, 0, 0, 0);
    return r;
}

/* ---- opening ---- */

static int is(const char *a, const char *b)
{
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

static const char *after(const char *text, const char *beginning)
{
    while (*beginning)
        if (*text++ != *beginning++)
            return 0;
    return *text ? text : 0;
}

/* What a path means that the guest is itself: AFW_OPENED_*, or AFW_OPENED_FILE; -errno */
static int64_t own_device(struct caller *c, const char *path, uint64_t flags)
{
    static const char names[][8] = {"null", "zero", "full", "random", "urandom"}, stdio[][8] = {"stdin", "stdout", "stderr"};
    const char *number = after(path, "/dev/fd/"), *name = after(path, "/dev/");
    uint32_t fd = 0;
    number = number ? number : after(path, "/proc/self/fd/");
    if (number) {
        for (; *number; number++) {
            if (*number < '0' || *number > '9' || fd > 0xffff)
                return -ENOENT;
            fd = fd * 10 + (uint32_t)(*number - '0');
        }
    } else {
        if (!name || flags & O_PATH)
            return AFW_OPENED_FILE;
        for (uint32_t i = 0; i < sizeof names / sizeof *names; i++)
            if (is(name, names[i]))
                return (int64_t)(AFW_OPENED_DEVICE + i) << 32;
        if (is(name, "tty"))
            return -ENXIO;
        if (is(name, "agentfw"))
            return (int64_t)AFW_OPENED_JOB << 32;
        while (fd < 3 && !is(name, stdio[fd]))
            fd++;
        if (fd == 3)
            return AFW_OPENED_FILE;
    }
    return handle_of(c, fd) < 0 ? -ENOENT : (int64_t)AFW_OPENED_FD << 32 | fd;
}

static int64_t open_call(struct caller *c, uint64_t dirfd, uint64_t path, uint64_t flags, uint64_t mode, uint64_t stat)
{
    char start[START];
    uint64_t base;
    int64_t n = find(c, dirfd, path, &base, start), device = n < 0 ? n : n < START ? own_device(c, start, flags) : 0;
    if (device)
        return device;
    mode &= 07777 & ~(uint64_t)c->ctl->umask;
    return op(c, AFW_OP_OPEN, path, (uint64_t)n, flags & ~(uint64_t)O_CLOEXEC, mode, base, stat);
}

/* ---- status and owners ---- */

static int64_t stat_call(struct caller *c, uint64_t dirfd, uint64_t path, uint64_t out, uint64_t flags)
{
    uint32_t mode;
    int64_t r = own(out, sizeof(struct stat)) ? at(c, dirfd, path, flags & AT_SYMLINK_NOFOLLOW, out, AFW_OP_STAT) : -EFAULT;
    uint64_t where = out + offsetof(struct stat, st_mode);
    if (!r && !get(c, &mode, where, sizeof mode) && (mode & (S_IFMT | S_ISVTX)) == (S_IFREG | S_ISVTX)) {
        mode ^= S_IFREG ^ S_IFSOCK ^ S_ISVTX;            /* a bound socket's name */
        r = put(c, where, &mode, sizeof mode);
    }
    return r;
}

static int64_t readlink_call(struct caller *c, uint64_t dirfd, uint64_t path, uint64_t out, int32_t size)
{
    if (size <= 0)
        return -EINVAL;
    return own(out, (uint32_t)size) ? at(c, dirfd, path, out, (uint32_t)size, AFW_OP_READLINK) : -EFAULT;
}

/* Every file is the one user's, so giving it to oneself works and nothing else does. */
static int64_t mine(uint64_t uid, uint64_t gid)
{
    return ((uint32_t)uid == UID || (uint32_t)uid == ~0u) && ((uint32_t)gid == UID || (uint32_t)gid == ~0u) ? 0 : -EPERM;
}

static int64_t chown_call(struct caller *c, uint64_t dirfd, uint64_t path, uint64_t uid, uint64_t gid, uint64_t flags)
{
    int64_t r = at(c, dirfd, path, F_OK, flags & AT_SYMLINK_NOFOLLOW, AFW_OP_ACCESS);
    return r ? r : mine(uid, gid);
}

static int64_t fchown_call(struct caller *c, uint64_t fd, uint64_t uid, uint64_t gid)
{
    int64_t handle = handle_of(c, fd);
    return handle < 0 ? handle : mine(uid, gid);
}

static int64_t fchdir_call(struct caller *c, uint64_t fd)
{
    int64_t handle = handle_of(c, fd);
    return handle <= 0 ? handle ? handle : -ENOTDIR : op(c, AFW_OP_CHDIR, 0, 0, 0, 0, (uint64_t)handle, 0);
}

static int64_t utimensat_call(struct caller *c, uint64_t fd, uint64_t path, uint64_t times, uint64_t flags)
{
    if (path)
        return at(c, fd, path, times, flags, AFW_OP_UTIMENS);
    int64_t handle = handle_of(c, fd);
    return handle <= 0 ? handle ? handle : -ENOTDIR : op(c, AFW_OP_UTIMENS, 0, 0, times, 0, (uint64_t)handle, 0);
}

/* ---- identity, limits, accounting ---- */

static int64_t put_word(struct caller *c, uint64_t gva, uint32_t value)
{
    return put(c, gva, &value, sizeof value);
}

static int64_t uname_call(struct caller *c, uint64_t out)
{
    static const char name[6][65] = {"Linux", "agent", "6.1.0-agentfw", "#1 agentfw", "x86_64", "(none)"};
    return put(c, out, name, sizeof name);
}

#define RLIMITS 16
#define STACK 3
#define CORE 4
#define NOFILE 7
/* The C library asks for RLIMIT_STACK once, at its start, to size the stacks of threads. Those count in full here, so that first answer is
 * modest; later ones tell of the main thread's stack. */
#define THREAD_STACK 0x200000

void call_boot(struct afw_ctl *ctl)
{
    ctl->umask = 022;
    for (int i = 0; i < 2 * RLIMITS; i++)
        ctl->rlimit[i] = i / 2 == CORE ? 0 : ~0ull;
    ctl->rlimit[2 * STACK] = THREAD_STACK;
    ctl->rlimit[2 * NOFILE] = 1024;
    ctl->rlimit[2 * NOFILE + 1] = 4096;
}

static int64_t prlimit_call(struct caller *c, uint64_t pid, uint64_t which, uint64_t new, uint64_t old)
{
    uint64_t *mine, want[2], had[2];
    if ((uint32_t)pid && (uint32_t)pid != c->ctl->pid)
        return -ESRCH;
    if ((uint32_t)which >= RLIMITS)
        return -EINVAL;
    mine = &c->ctl->rlimit[2 * (uint32_t)which];
    had[0] = mine[0];
    had[1] = mine[1];
    if (new && get(c, want, new, sizeof want))
        return -EFAULT;
    if (new && want[0] > want[1])
        return -EINVAL;
    if (new && want[1] > had[1])
        return -EPERM;
    if (which == STACK && had[0] == THREAD_STACK)
        mine[0] = c->ctl->stack_hi - c->ctl->stack_lo;
    if (new) {
        mine[0] = want[0];
        mine[1] = want[1];
    }
    return old ? put(c, old, had, sizeof had) : 0;
}

static int64_t sysinfo_call(struct caller *c, uint64_t out)
{
    struct { uint64_t uptime, loads[3], total, free, unused[4]; uint16_t processes, pad; uint32_t pad2; uint64_t high[2]; uint32_t unit, pad3; } i;
    uint64_t limit = c->ctl->memory_limit, used = c->ctl->committed_pages;
    _Static_assert(sizeof i == 112, "struct sysinfo");
    memset(&i, 0, sizeof i);
    i.uptime = c->now(c) / SECOND;
    i.total = limit;
    i.free = used < limit / PAGE ? limit - used * PAGE : 0;
    i.processes = 1;
    i.unit = 1;
    return put(c, out, &i, sizeof i);
}

/* The shim adds what it knows: CPU time of all and of this thread (ns), most pages there were */
static int64_t getrusage_call(struct caller *c, int32_t who, uint64_t out, uint64_t all, uint64_t thread, uint64_t pages)
{
    uint64_t u[18] = {0}, ns = who == 1 ? thread : all;
    if (who < -1 || who > 1)
        return -EINVAL;
    if (who >= 0) {
        u[0] = ns / SECOND;
        u[1] = ns % SECOND / 1000;
        u[4] = pages * (PAGE / 1024);
        u[16] = c->ctl->n_switch;    /* voluntary context switches */
    }
    return put(c, out, u, sizeof u);
}

static int64_t times_call(struct caller *c, uint64_t out, uint64_t cpu)
{
    uint64_t t[4] = {cpu / TICK, 0, 0, 0};
    if (out && put(c, out, t, sizeof t))
        return -EFAULT;
    return (int64_t)(c->now(c) / TICK);
}

static int64_t prctl_call(struct caller *c, uint64_t option, uint64_t a, uint64_t thread)
{
    enum { SET_PDEATHSIG = 1, GET_DUMPABLE = 3, SET_DUMPABLE = 4, GET_KEEPCAPS = 7, SET_NAME = 15, GET_NAME = 16, CAPBSET_READ = 23,
           SET_TIMERSLACK = 29, SET_NO_NEW_PRIVS = 38, GET_NO_NEW_PRIVS = 39 };
    const uint64_t yes = 1ull << GET_DUMPABLE | 1ull << GET_NO_NEW_PRIVS;
    const uint64_t fine = yes | 1ull << SET_PDEATHSIG | 1ull << SET_DUMPABLE | 1ull << GET_KEEPCAPS | 1ull << CAPBSET_READ |
                          1ull << SET_TIMERSLACK | 1ull << SET_NO_NEW_PRIVS;
    char name[16] = {0};
    if (option == GET_NAME)
        return c->read(c, name, thread + AFW_THREAD_NAME, sizeof name) ? -EFAULT : put(c, a, name, sizeof name);
    if (option == SET_NAME) {
        for (uint64_t i = 0; i < sizeof name - 1; i++)
            if (get(c, name + i, a + i, 1))
                return -EFAULT;
            else if (!name[i])
                break;
        return c->write(c, thread + AFW_THREAD_NAME, name, sizeof name);
    }
    if (option > GET_NO_NEW_PRIVS || !(fine >> option & 1))
        return -EINVAL;
    return yes >> option & 1;
}

static int64_t affinity_call(struct caller *c, int32_t pid, uint64_t size, uint64_t out)
{
    uint64_t mask = 1;
    if (pid < 0 || (pid && (uint32_t)pid < c->ctl->pid))
        return -ESRCH;               /* (of threads the guest alone knows which there are: above the first's all are taken for one) */
    if (size < 8 || size % 8)
        return -EINVAL;
    return put(c, out, &mask, sizeof mask) ? -EFAULT : 8;
}

static int64_t identity(struct caller *c, uint32_t number, const uint64_t a[6])
{
    int64_t r;
    switch (number) {
    case SYS_setuid:                 /* users, groups, real, effective, saved: all one, and it cannot be changed */
    case SYS_setgid:
        return mine(a[0], UID);
    case SYS_setreuid:
    case SYS_setregid:
        return mine(a[0], a[1]);
    case SYS_setresuid:
    case SYS_setresgid:
        r = mine(a[0], a[1]);
        return r ? r : mine(a[2], UID);
    case SYS_getresuid:
    case SYS_getresgid:
        r = put_word(c, a[0], UID);
        r = r ? r : put_word(c, a[1], UID);
        return r ? r : put_word(c, a[2], UID);
    case SYS_getpgid:
    case SYS_getsid:
        return !(uint32_t)a[0] || (uint32_t)a[0] == c->ctl->pid ? (int64_t)c->ctl->pid : -ESRCH;
    case SYS_uname:
        return uname_call(c, a[0]);
    case SYS_prlimit64:
        return prlimit_call(c, a[0], a[1], a[2], a[3]);
    case SYS_getrlimit:
        return prlimit_call(c, 0, a[0], 0, a[1]);
    case SYS_setrlimit:
        return prlimit_call(c, 0, a[0], a[1], 0);
    case SYS_sysinfo:
        return sysinfo_call(c, a[0]);
    case SYS_getrusage:
        return getrusage_call(c, (int32_t)a[0], a[1], a[2], a[3], a[4]);
    case SYS_times:
        return times_call(c, a[0], a[2]);
    case SYS_prctl:
        return prctl_call(c, (uint32_t)a[0], a[1], a[5]);
    case SYS_getcpu:
        r = a[0] ? put_word(c, a[0], 0) : 0;
        return r || !a[1] ? r : put_word(c, a[1], 0);
    case SYS_sched_getaffinity:
        return affinity_call(c, (int32_t)a[0], (uint32_t)a[1], a[2]);
    case SYS_sched_getparam:
        return put_word(c, a[1], 0);
    case SYS_membarrier:             /* one vCPU: between two instructions of a thread all others have always seen every barrier */
        if (!(uint32_t)a[0])
            return 31;               /* global, private, expedited, and their registrations */
        return (a[0] & (a[0] - 1)) || !(a[0] & 31) ? -EINVAL : 0;
    default:
        return -ENOSYS;
    }
}

int64_t call_perform(struct caller *c, uint32_t number, const uint64_t a[6])
{
    uint64_t mask = c->ctl->umask & 0777, mode = 07777 & ~mask;
    switch (number) {
    case SYS_openat:
        return open_call(c, a[0], a[1], a[2], a[3], a[5]);
    case SYS_stat:
        return stat_call(c, CWD, a[0], a[1], 0);
    case SYS_lstat:
        return stat_call(c, CWD, a[0], a[1], AT_SYMLINK_NOFOLLOW);
    case SYS_newfstatat:
        return stat_call(c, a[0], a[1], a[2], a[3]);
    case SYS_access:
        return at(c, CWD, a[0], a[1], 0, AFW_OP_ACCESS);
    case SYS_faccessat:
        return at(c, a[0], a[1], a[2], 0, AFW_OP_ACCESS);
    case SYS_faccessat2:
        return at(c, a[0], a[1], a[2], a[3] & (AT_SYMLINK_NOFOLLOW | AT_EACCESS), AFW_OP_ACCESS);
    case SYS_readlink:
        return readlink_call(c, CWD, a[0], a[1], (int32_t)a[2]);
    case SYS_readlinkat:
        return readlink_call(c, a[0], a[1], a[2], (int32_t)a[3]);
    case SYS_mkdir:
        return at(c, CWD, a[0], a[1] & mode, 0, AFW_OP_MKDIR);
    case SYS_mkdirat:
        return at(c, a[0], a[1], a[2] & mode, 0, AFW_OP_MKDIR);
    case SYS_unlink:
        return at(c, CWD, a[0], 0, 0, AFW_OP_UNLINK);
    case SYS_rmdir:
        return at(c, CWD, a[0], AT_REMOVEDIR, 0, AFW_OP_UNLINK);
    case SYS_unlinkat:
        return at(c, a[0], a[1], a[2], 0, AFW_OP_UNLINK);
    case SYS_chmod:
        return at(c, CWD, a[0], a[1] & 07777, 0, AFW_OP_CHMOD);
    case SYS_fchmodat:
        return at(c, a[0], a[1], a[2] & 07777, 0, AFW_OP_CHMOD);
    case SYS_fchmod:
        return on_handle(c, a[0], a[1] & 07777, 0, 0, AFW_OP_FCHMOD, 0);
    case SYS_chown:
        return chown_call(c, CWD, a[0], a[1], a[2], 0);
    case SYS_lchown:
        return chown_call(c, CWD, a[0], a[1], a[2], AT_SYMLINK_NOFOLLOW);
    case SYS_fchownat:
        return chown_call(c, a[0], a[1], a[2], a[3], a[4]);
    case SYS_fchown:
        return fchown_call(c, a[0], a[1], a[2]);
    case SYS_rename:
        return two(c, CWD, a[0], CWD, a[1], 0, AFW_OP_RENAME);
    case SYS_renameat:
        return two(c, a[0], a[1], a[2], a[3], 0, AFW_OP_RENAME);
    case SYS_renameat2:
        return two(c, a[0], a[1], a[2], a[3], a[4], AFW_OP_RENAME);
    case SYS_link:
        return two(c, CWD, a[0], CWD, a[1], 0, AFW_OP_LINK);
    case SYS_linkat:
        return two(c, a[0], a[1], a[2], a[3], a[4], AFW_OP_LINK);
    case SYS_symlink:
        return symlink_call(c, a[0], CWD, a[1]);
    case SYS_symlinkat:
        return symlink_call(c, a[0], a[1], a[2]);
    case SYS_utimensat:
        return utimensat_call(c, a[0], a[1], a[2], a[3]);
    case SYS_chdir:
        return at(c, CWD, a[0], 0, 0, AFW_OP_CHDIR);
    case SYS_fchdir:
        return fchdir_call(c, a[0]);
    case SYS_getcwd:
        return own(a[0], 1) ? op(c, AFW_OP_GETCWD, a[0], a[1], 0, 0, 0, 0) : -EFAULT;
    case SYS_truncate:
        return opened(c, a[0], O_WRONLY, a[1], AFW_OP_TRUNCATE);
    case SYS_ftruncate:
        return on_handle(c, a[0], a[1], 0, 0, AFW_OP_TRUNCATE, -EINVAL);
    case SYS_fallocate:
        return on_handle(c, a[0], a[1], a[2], a[3], AFW_OP_FALLOCATE, -ENODEV);
    case SYS_fsync:
    case SYS_fdatasync:
        return on_handle(c, a[0], 0, 0, 0, AFW_OP_FSYNC, -EINVAL);
    case SYS_statfs:
        return own(a[1], 1) ? opened(c, a[0], O_RDONLY, a[1], AFW_OP_STATFS) : -EFAULT;
    case SYS_fstatfs:
        return own(a[1], 1) ? on_handle(c, a[0], a[1], 0, 0, AFW_OP_STATFS, -ENOSYS) : -EFAULT;
    case SYS_umask:
        c->ctl->umask = (uint32_t)a[0] & 0777;
        return (int64_t)mask;
    default:
        return identity(c, number, a);
    }
}
