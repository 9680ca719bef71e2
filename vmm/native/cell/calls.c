/* System calls that the shim hands on as they are, for it has no room and they no hurry: identity, limits, accounting; files: filecalls.c.
 *
 * Here they become the ring's own operations, which are looked at as those from the guest are (rules, bounds). Descriptors are looked up in
 * the guest's own table: what it says of a handle is worth as much as a handle in an operation of its own.
 * Only memory is read and written here, through the caller: tests/shim runs this file without KVM.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include "calls.h"

#define UID 1000                     /* user and group of all guests, one of each */
#define PAGE 4096ull
#define SECOND 1000000000ull
#define TICK (SECOND / 100)          /* of times() */

int call_own(struct caller *c, uint64_t gva, uint64_t n)
{
    return memory_allows(c, gva, n, PROT_WRITE);
}

int call_get(struct caller *c, void *to, uint64_t gva, uint64_t n)
{
    return memory_allows(c, gva, n, PROT_READ) ? c->read(c, to, gva, n) : -EFAULT;
}

int call_put(struct caller *c, uint64_t gva, const void *data, uint64_t n)
{
    return call_own(c, gva, n) ? c->write(c, gva, data, n) : -EFAULT;
}

/* ---- descriptors ---- */

int call_fd(struct caller *c, uint64_t fd, struct guest_fd *out)
{
    uint64_t table = c->ctl->fd_table, entry;
    uint16_t kind[2];
    if ((uint32_t)fd >= c->ctl->fd_size || c->read(c, &entry, table + (uint32_t)fd * 8ull, sizeof entry) || !(entry & ~1ull))
        return -EBADF;
    out->closes = entry & 1;
    entry &= ~1ull;
    if (c->read(c, &out->file, entry, sizeof out->file) || c->read(c, kind, out->file.ops, sizeof kind))
        return -EBADF;
    out->fd = (uint32_t)fd;
    out->mode = out->file.handle ? 0 : kind[1];
    out->place = entry + AFW_FILE_PLACE;
    return 0;
}

void call_fd_stat(const struct guest_fd *f, struct stat *st)
{
    memset(st, 0, sizeof *st);
    st->st_dev = 12;
    st->st_ino = f->file.ino;
    st->st_nlink = 1;
    st->st_mode = f->mode ? f->mode : 0600;
    st->st_blksize = 4096;
    if (S_ISCHR(f->mode))
        st->st_rdev = 0x100 | (f->file.dev & 0xff);
}

void call_statx(const struct stat *st, struct statx *x)
{
    memset(x, 0, sizeof *x);
    x->stx_mask = STATX_BASIC_STATS;
    x->stx_blksize = (uint32_t)st->st_blksize;
    x->stx_nlink = (uint32_t)st->st_nlink;
    x->stx_uid = st->st_uid;
    x->stx_gid = st->st_gid;
    x->stx_mode = (uint16_t)st->st_mode;
    x->stx_ino = st->st_ino;
    x->stx_size = (uint64_t)st->st_size;
    x->stx_blocks = (uint64_t)st->st_blocks;
    x->stx_rdev_major = major(st->st_rdev);
    x->stx_rdev_minor = minor(st->st_rdev);
    x->stx_dev_major = major(st->st_dev);
    x->stx_dev_minor = minor(st->st_dev);
    x->stx_atime = (struct statx_timestamp){.tv_sec = st->st_atim.tv_sec, .tv_nsec = (uint32_t)st->st_atim.tv_nsec};
    x->stx_mtime = (struct statx_timestamp){.tv_sec = st->st_mtim.tv_sec, .tv_nsec = (uint32_t)st->st_mtim.tv_nsec};
    x->stx_ctime = (struct statx_timestamp){.tv_sec = st->st_ctim.tv_sec, .tv_nsec = (uint32_t)st->st_ctim.tv_nsec};
}

/* ---- identity, limits, accounting ---- */

/* There is one user and one group, and nobody can be another. */
static int64_t mine(uint64_t uid, uint64_t gid)
{
    return ((uint32_t)uid == UID || (uint32_t)uid == ~0u) && ((uint32_t)gid == UID || (uint32_t)gid == ~0u) ? 0 : -EPERM;
}

static int64_t put_word(struct caller *c, uint64_t gva, uint32_t value)
{
    return call_put(c, gva, &value, sizeof value);
}

static int64_t uname_call(struct caller *c, uint64_t out)
{
    static const char name[6][65] = {"Linux", "agent", "6.1.0-agentfw", "#1 agentfw", "x86_64", "(none)"};
    return call_put(c, out, name, sizeof name);
}

#define RLIMITS 16
#define DATA 2
#define STACK 3
#define CORE 4
#define NOFILE 7
#define AS 9
/* The C library asks for RLIMIT_STACK once, at its start, to size the stacks of threads. Those count in full here, so that first answer is
 * modest; later ones tell of the main thread's stack. */
#define THREAD_STACK 0x200000

void call_boot(struct afw_ctl *ctl)
{
    ctl->umask = 022;
    for (int i = 0; i < 2 * RLIMITS; i++)
        ctl->rlimit[i] = i == 2 * CORE ? 0 : ~0ull;
    ctl->rlimit[2 * STACK] = THREAD_STACK;
    ctl->rlimit[2 * NOFILE] = 1024;
    ctl->rlimit[2 * NOFILE + 1] = 4096;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static int64_t prlimit_call(struct caller *c, uint64_t pid, uint32_t which, uint64_t new, uint64_t old)
{
    uint64_t *mine, want[2], had[2];
    if ((uint32_t)pid && (uint32_t)pid != c->ctl->pid)
        return -ESRCH;
    if (which >= RLIMITS)
        return -EINVAL;
    mine = &c->ctl->rlimit[2 * which];
    had[0] = mine[0];
    had[1] = mine[1];
    if (new && call_get(c, want, new, sizeof want))
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
        if (which == AS || which == DATA)    /* both count what the shim counts: accessible memory that is no file's */
            c->ctl->memory_limit = least(c->memory, least(c->ctl->rlimit[2 * AS], c->ctl->rlimit[2 * DATA]));
    }
    return old ? call_put(c, old, had, sizeof had) : 0;
}

static int64_t sysinfo_call(struct caller *c, uint64_t out)
{
    struct { uint64_t uptime, loads[3], total, free, unused[4]; uint16_t processes, pad; uint32_t pad2; uint64_t high[2]; uint32_t unit, pad3; } i;
    uint64_t limit = c->memory, used = c->ctl->committed_pages;
    _Static_assert(sizeof i == 112, "struct sysinfo");
    memset(&i, 0, sizeof i);
    i.uptime = c->now(c) / SECOND;
    i.total = limit;
    i.free = used < limit / PAGE ? limit - used * PAGE : 0;
    i.processes = 1;
    i.unit = 1;
    return call_put(c, out, &i, sizeof i);
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
    return call_put(c, out, u, sizeof u);
}

static int64_t times_call(struct caller *c, uint64_t out, uint64_t cpu)
{
    uint64_t t[4] = {cpu / TICK, 0, 0, 0};
    if (out && call_put(c, out, t, sizeof t))
        return -EFAULT;
    return (int64_t)(c->now(c) / TICK);
}

static int64_t time_call(struct caller *c, uint64_t out)
{
    uint64_t t = (c->now(c) + c->ctl->real_offset) / SECOND;
    return out && call_put(c, out, &t, sizeof t) ? -EFAULT : (int64_t)t;
}

static int64_t identity(struct caller *c, uint32_t number, const uint64_t a[6])
{
    int64_t r;
    switch (number) {
    case SYS_setuid:                 /* users, groups, real, effective, saved: all one, and it cannot be changed */
    case SYS_setgid:
        return (uint32_t)a[0] == ~0u ? -EINVAL : mine(a[0], UID);
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
        return (uint32_t)a[0] < RLIMITS && !a[1] ? -EFAULT : prlimit_call(c, 0, a[0], 0, a[1]);
    case SYS_setrlimit:
        return (uint32_t)a[0] < RLIMITS && !a[1] ? -EFAULT : prlimit_call(c, 0, a[0], a[1], 0);
    case SYS_sysinfo:
        return sysinfo_call(c, a[0]);
    case SYS_getrusage:
        return getrusage_call(c, (int32_t)a[0], a[1], a[2], a[3], a[4]);
    case SYS_time:
        return time_call(c, a[0]);
    case SYS_times:
        return times_call(c, a[0], a[2]);
    case SYS_getcpu:
        r = a[0] ? put_word(c, a[0], 0) : 0;
        return r || !a[1] ? r : put_word(c, a[1], 0);
    case SYS_membarrier:             /* one vCPU: between two instructions of a thread all others have always seen every barrier */
        if (!(uint32_t)a[0])
            return 31;               /* global, private, expedited, and their registrations */
        return (a[0] & (a[0] - 1)) || !(a[0] & 31) ? -EINVAL : 0;
    default:
        return process_call(c, number, a);
    }
}

int64_t call_perform(struct caller *c, uint32_t number, const uint64_t a[6])
{
    int64_t r = file_call(c, number, a);
    return r == -ENOSYS ? identity(c, number, a) : r;
}
