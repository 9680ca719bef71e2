/* What /proc and /sys tell: only this VM's own matters, as far as Python and common libraries read them. See vfs.h.
 *
 * One table of canonical paths; "PID" stands for the guest's process id. Not listed: not there.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "vfs.h"

#define CONTENT_MAX 65536

struct text {
    char *bytes;
    size_t used, size;
};
typedef void generate(struct vfs *vfs, struct text *t);

static void bytes(struct text *t, const char *data, size_t len)
{
    if (len > CONTENT_MAX - t->used)
        len = CONTENT_MAX - t->used;
    if (t->used + len + 1 > t->size) {
        size_t want = (t->used + len + 1) * 2;
        char *grown = realloc(t->bytes, want);
        if (!grown)
            return;
        t->bytes = grown;
        t->size = want;
    }
    if (len)
        memcpy(t->bytes + t->used, data, len);
    t->used += len;
}

static void __attribute__((format(printf, 2, 3))) line(struct text *t, const char *format, ...)
{
    char buffer[PATH_MAX + 128];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(buffer, sizeof buffer, format, args);
    va_end(args);
    if (n > 0)
        bytes(t, buffer, (size_t)n < sizeof buffer ? (size_t)n : sizeof buffer - 1);
}

/* A field of the control page. The guest may have written anything there; it is told to nobody but the guest. */
#define CTL_FIELD(vfs, field) ctl_field(vfs, offsetof(struct afw_ctl, field), sizeof((struct afw_ctl *)0)->field)
static uint64_t ctl_field(struct vfs *vfs, size_t offset, size_t size)
{
    uint64_t value = 0;
    return guest_read(vfs->vm, &value, AFW_CTL + offset, size) < 0 ? 0 : value;
}

static unsigned pid_of(struct vfs *vfs)
{
    return (unsigned)CTL_FIELD(vfs, pid) & 0x3fffffff;
}

static uint64_t memory_of(struct vfs *vfs)
{
    return vfs->vm->memory_limit ? vfs->vm->memory_limit : vfs_program.memory;
}

static uint64_t used_of(struct vfs *vfs)
{
    uint64_t pages = CTL_FIELD(vfs, committed_pages), limit = memory_of(vfs) / 4096;
    return (pages < limit ? pages : limit) * 4096;
}

static uint64_t clock_ns(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static const char *comm(void)
{
    const char *name = vfs_program.program ? strrchr(vfs_program.program, '/') : 0;
    return name ? name + 1 : "agent";
}

static void g_cmdline(struct vfs *vfs, struct text *t)
{
    (void)vfs;
    bytes(t, vfs_program.args, vfs_program.args_size);
}

static void g_environ(struct vfs *vfs, struct text *t)
{
    (void)vfs;
    bytes(t, vfs_program.env, vfs_program.env_size);
}

static void g_comm(struct vfs *vfs, struct text *t)
{
    (void)vfs;
    line(t, "%.15s\n", comm());
}

static void g_status(struct vfs *vfs, struct text *t)
{
    unsigned pid = pid_of(vfs);
    unsigned long long kib = used_of(vfs) / 1024;
    line(t, "Name:\t%.15s\nUmask:\t0022\nState:\tR (running)\nTgid:\t%u\nNgid:\t0\nPid:\t%u\nPPid:\t1\nTracerPid:\t0\n", comm(), pid, pid);
    line(t, "Uid:\t%d\t%d\t%d\t%d\nGid:\t%d\t%d\t%d\t%d\nFDSize:\t256\nGroups:\t%d \n", VFS_UID, VFS_UID, VFS_UID, VFS_UID, VFS_UID, VFS_UID,
         VFS_UID, VFS_UID, VFS_UID);
    line(t, "VmPeak:\t%8llu kB\nVmSize:\t%8llu kB\nVmLck:\t       0 kB\nVmHWM:\t%8llu kB\nVmRSS:\t%8llu kB\nRssAnon:\t%8llu kB\n", kib, kib, kib, kib, kib);
    line(t, "VmData:\t%8llu kB\nVmStk:\t    8192 kB\nVmSwap:\t       0 kB\nThreads:\t1\nSigQ:\t0/1024\n", kib);
    line(t, "SigPnd:\t%016x\nShdPnd:\t%016x\nCapInh:\t%016x\nCapPrm:\t%016x\nCapEff:\t%016x\nCapBnd:\t%016x\n", 0, 0, 0, 0, 0, 0);
    line(t, "NoNewPrivs:\t1\nSeccomp:\t0\nCpus_allowed:\t1\nCpus_allowed_list:\t0\n");
    line(t, "Mems_allowed:\t1\nMems_allowed_list:\t0\nvoluntary_ctxt_switches:\t0\nnonvoluntary_ctxt_switches:\t0\n");
}

static void g_stat(struct vfs *vfs, struct text *t)
{
    unsigned pid = pid_of(vfs);
    unsigned long long ticks = CTL_FIELD(vfs, cpu_ns) / 10000000, used = used_of(vfs);
    line(t, "%u (%.15s) R 1 %u %u 0 -1 4194304 0 0 0 0 %llu 0 0 0 20 0 1 0 1 %llu %llu 18446744073709551615 ", pid, comm(), pid, pid, ticks, used,
         used / 4096);
    line(t, "0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n");
}

static void g_statm(struct vfs *vfs, struct text *t)
{
    unsigned long long pages = used_of(vfs) / 4096;
    line(t, "%llu %llu 0 0 0 %llu 0\n", pages, pages, pages);
}

static void map_line(struct text *t, uint64_t start, uint64_t end, const char *rights, uint64_t offset, const char *name)
{
    line(t, "%08llx-%08llx %s %08llx 00:00 0 %26s%s\n", (unsigned long long)start, (unsigned long long)end, rights, (unsigned long long)offset, "", name);
}

/* Files, heap and main stack, in order. What else is mapped, and with which rights, only the shim knows. */
static void g_maps(struct vfs *vfs, struct text *t)
{
    uint64_t own[2][2] = {{CTL_FIELD(vfs, stack_lo), CTL_FIELD(vfs, stack_hi)}, {CTL_FIELD(vfs, brk_start), CTL_FIELD(vfs, brk_max)}};
    char name[256];
    uint64_t start, end, offset, at = 0;
    int shown[2] = {0, 0}, more = 1;
    while (more && t->used < CONTENT_MAX - 512) {
        more = memory_module_next(vfs->vm, at, name, &start, &end, &offset);
        for (int i = 0; i < 2; i++)
            if (!shown[i] && (!more || own[i][0] < start)) {
                map_line(t, own[i][0], own[i][1], "rw-p", 0, i ? "[heap]" : "[stack]");
                shown[i] = 1;
            }
        if (more)
            map_line(t, start, end, "r-xp", offset, name);
        at = end;
    }
}

static void g_limits(struct vfs *vfs, struct text *t)
{
    static const char *const rows[][4] = {
        {"Max cpu time", "unlimited", "unlimited", "seconds"},    {"Max file size", "unlimited", "unlimited", "bytes"},
        {"Max data size", "unlimited", "unlimited", "bytes"},     {"Max stack size", "8388608", "8388608", "bytes"},
        {"Max core file size", "0", "0", "bytes"},                {"Max resident set", "unlimited", "unlimited", "bytes"},
        {"Max processes", "1024", "1024", "processes"},           {"Max open files", "1024", "1024", "files"},
        {"Max locked memory", "65536", "65536", "bytes"},         {"Max address space", "unlimited", "unlimited", "bytes"},
        {"Max file locks", "unlimited", "unlimited", "locks"},    {"Max pending signals", "1024", "1024", "signals"},
        {"Max msgqueue size", "819200", "819200", "bytes"},       {"Max nice priority", "0", "0", ""},
        {"Max realtime priority", "0", "0", ""},                  {"Max realtime timeout", "unlimited", "unlimited", "us"},
    };
    (void)vfs;
    line(t, "%-25s %-20s %-20s %-10s\n", "Limit", "Soft Limit", "Hard Limit", "Units");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        line(t, "%-25s %-20s %-20s %-10s\n", rows[i][0], rows[i][1], rows[i][2], rows[i][3]);
}

static void mounts_below(struct vfs *vfs, const struct node *n, const char *path, int info, unsigned *id, struct text *t)
{
    const char *at = *path ? path : "/";
    int above;
    if (vfs->vm->rules && path_rule(vfs, at, &above) == AFW_RULE_HIDE)
        return;
    const char *type = n->kind == NODE_MOUNT ? "agentfw" : n->kind == NODE_TMP ? "tmpfs" : n->kind == NODE_PROC ? (path[1] == 's' ? "sysfs" : "proc") : 0;
    const char *mode = n->kind == NODE_TMP || (n->flags & AFW_MOUNT_WRITABLE) ? "rw" : "ro";
    if (n == vfs_root && !type)
        type = "agentfw";
    if (type && info)
        line(t, "%u 1 0:%u / %s %s - %s %s %s\n", *id, 40 + *id, at, mode, type, type, mode);
    else if (type)
        line(t, "%s %s %s %s 0 0\n", type, at, type, mode);
    *id += !!type;
    for (const struct node *c = n->child; c; c = c->next) {
        char below[PATH_MAX];
        if (snprintf(below, sizeof below, "%s/%s", path, c->name) < (int)sizeof below)
            mounts_below(vfs, c, below, info, id, t);
    }
}

static void g_mounts(struct vfs *vfs, struct text *t)
{
    unsigned id = 1;
    mounts_below(vfs, vfs_root, "", 0, &id, t);
}

static void g_mountinfo(struct vfs *vfs, struct text *t)
{
    unsigned id = 1;
    mounts_below(vfs, vfs_root, "", 1, &id, t);
}

static void g_meminfo(struct vfs *vfs, struct text *t)
{
    unsigned long long total = memory_of(vfs) / 1024, used = used_of(vfs) / 1024, left = total - used;
    line(t, "MemTotal:       %8llu kB\nMemFree:        %8llu kB\nMemAvailable:   %8llu kB\nBuffers:               0 kB\n", total, left, left);
    line(t, "Cached:                0 kB\nSwapCached:            0 kB\nActive:         %8llu kB\nInactive:              0 kB\n", used);
    line(t, "SwapTotal:             0 kB\nSwapFree:              0 kB\nShmem:                 0 kB\nSlab:                  0 kB\nSReclaimable:          0 kB\n");
}

static void g_cpuinfo(struct vfs *vfs, struct text *t)
{
    (void)vfs;
    line(t, "processor\t: 0\nvendor_id\t: AgentFW\ncpu family\t: 6\nmodel\t\t: 1\nmodel name\t: agentfw baseline x86-64 CPU\nstepping\t: 1\n");
    line(t, "physical id\t: 0\nsiblings\t: 1\ncore id\t\t: 0\ncpu cores\t: 1\nfpu\t\t: yes\ncpuid level\t: 13\nwp\t\t: yes\n");
    line(t, "flags\t\t: fpu tsc cx8 cmov mmx fxsr sse sse2 syscall nx lm pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm\n");
    line(t, "clflush size\t: 64\ncache_alignment\t: 64\naddress sizes\t: 34 bits physical, 48 bits virtual\n\n");
}

static void g_uptime(struct vfs *vfs, struct text *t)
{
    uint64_t up = clock_ns(CLOCK_MONOTONIC) / 10000000;
    (void)vfs;
    line(t, "%llu.%02llu 0.00\n", (unsigned long long)up / 100, (unsigned long long)up % 100);
}

static void g_cpustat(struct vfs *vfs, struct text *t)
{
    unsigned long long user = CTL_FIELD(vfs, cpu_ns) / 10000000, up = clock_ns(CLOCK_MONOTONIC) / 10000000, idle = up > user ? up - user : 0;
    line(t, "cpu  %llu 0 0 %llu 0 0 0 0 0 0\ncpu0 %llu 0 0 %llu 0 0 0 0 0 0\nintr 0\nctxt 0\n", user, idle, user, idle);
    line(t, "btime %llu\nprocesses 1\nprocs_running 1\nprocs_blocked 0\n",
         (unsigned long long)((clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC)) / 1000000000));
}

static void g_self(struct vfs *vfs, struct text *t)
{
    line(t, "%u", pid_of(vfs));
}

static void g_thread_self(struct vfs *vfs, struct text *t)
{
    line(t, "%u/task/%u", pid_of(vfs), pid_of(vfs));
}

static void g_exe(struct vfs *vfs, struct text *t)
{
    struct place p;                  /* a venv's python is a symlink; the link shows what it leads to */
    const char *shown = vfs_program.program ? vfs_program.program : "/";
    if (!vfs->in_exe) {              /* the way there may lead over this link: a guest with a writable mount can make it so */
        vfs->in_exe = 1;
        if (!walk(vfs, "/", shown, WALK_FOLLOW, &p)) {
            place_done(&p);
            shown = p.path;
        }
        vfs->in_exe = 0;
    }
    line(t, "%s", shown);
}

static void g_cwd(struct vfs *vfs, struct text *t)
{
    line(t, "%s", vfs->cwd);
}

static void g_agentfw(struct vfs *vfs, struct text *t)
{
    if (vfs->vm->note)
        bytes(t, vfs->vm->note, strlen(vfs->vm->note));
}

enum { DIR_, FILE_, LINK_ };
static const struct entry {
    const char *path;
    int kind;
    generate *make;
    const char *fixed;               /* or this text */
} entries[] = {
    {"/proc", DIR_, 0, 0},
    {"/proc/self", LINK_, g_self, 0},
    {"/proc/thread-self", LINK_, g_thread_self, 0},
    {"/proc/PID", DIR_, 0, 0},
    {"/proc/PID/cmdline", FILE_, g_cmdline, 0},
    {"/proc/PID/environ", FILE_, g_environ, 0},
    {"/proc/PID/comm", FILE_, g_comm, 0},
    {"/proc/PID/status", FILE_, g_status, 0},
    {"/proc/PID/stat", FILE_, g_stat, 0},
    {"/proc/PID/statm", FILE_, g_statm, 0},
    {"/proc/PID/maps", FILE_, g_maps, 0},
    {"/proc/PID/limits", FILE_, g_limits, 0},
    {"/proc/PID/mounts", FILE_, g_mounts, 0},
    {"/proc/PID/mountinfo", FILE_, g_mountinfo, 0},
    {"/proc/PID/cgroup", FILE_, 0, "0::/\n"},
    {"/proc/PID/oom_score_adj", FILE_, 0, "0\n"},
    {"/proc/PID/exe", LINK_, g_exe, 0},
    {"/proc/PID/cwd", LINK_, g_cwd, 0},
    {"/proc/PID/root", LINK_, 0, "/"},
    {"/proc/PID/fd", DIR_, 0, 0},    /* procfd.c */
    {"/proc/PID/task", DIR_, 0, 0},
    {"/proc/PID/task/PID", DIR_, 0, 0},
    {"/proc/PID/task/PID/comm", FILE_, g_comm, 0},
    {"/proc/PID/task/PID/stat", FILE_, g_stat, 0},
    {"/proc/PID/task/PID/status", FILE_, g_status, 0},
    {"/proc/mounts", LINK_, 0, "self/mounts"},
    {"/proc/agentfw", FILE_, g_agentfw, 0},   /* what a forked VM is told of itself; in others it is empty */
    {"/proc/meminfo", FILE_, g_meminfo, 0},
    {"/proc/cpuinfo", FILE_, g_cpuinfo, 0},
    {"/proc/uptime", FILE_, g_uptime, 0},
    {"/proc/stat", FILE_, g_cpustat, 0},
    {"/proc/loadavg", FILE_, 0, "0.00 0.00 0.00 1/1 1\n"},
    {"/proc/version", FILE_, 0, "Linux version 6.1.0-agentfw (agentfw) #1 agentfw\n"},
    {"/proc/filesystems", FILE_, 0, "nodev\tproc\nnodev\ttmpfs\n"},
    {"/proc/sys", DIR_, 0, 0},
    {"/proc/sys/kernel", DIR_, 0, 0},
    {"/proc/sys/kernel/ostype", FILE_, 0, "Linux\n"},
    {"/proc/sys/kernel/osrelease", FILE_, 0, "6.1.0-agentfw\n"},
    {"/proc/sys/kernel/hostname", FILE_, 0, "agent\n"},
    {"/proc/sys/kernel/pid_max", FILE_, 0, "4194304\n"},
    {"/proc/sys/kernel/threads-max", FILE_, 0, "1024\n"},
    {"/proc/sys/kernel/ngroups_max", FILE_, 0, "65536\n"},
    {"/proc/sys/kernel/cap_last_cap", FILE_, 0, "40\n"},
    {"/proc/sys/vm", DIR_, 0, 0},
    {"/proc/sys/vm/overcommit_memory", FILE_, 0, "0\n"},
    {"/proc/sys/vm/max_map_count", FILE_, 0, "65530\n"},
    {"/proc/sys/fs", DIR_, 0, 0},
    {"/proc/sys/fs/file-max", FILE_, 0, "1024\n"},
    {"/proc/sys/fs/nr_open", FILE_, 0, "1024\n"},
    {"/proc/sys/fs/pipe-max-size", FILE_, 0, "1048576\n"},
    {"/proc/sys/net", DIR_, 0, 0},
    {"/proc/sys/net/core", DIR_, 0, 0},
    {"/proc/sys/net/core/somaxconn", FILE_, 0, "4096\n"},
    {"/sys", DIR_, 0, 0},
    {"/sys/devices", DIR_, 0, 0},
    {"/sys/devices/system", DIR_, 0, 0},
    {"/sys/devices/system/cpu", DIR_, 0, 0},
    {"/sys/devices/system/cpu/online", FILE_, 0, "0\n"},
    {"/sys/devices/system/cpu/possible", FILE_, 0, "0\n"},
    {"/sys/devices/system/cpu/present", FILE_, 0, "0\n"},
    {"/sys/devices/system/cpu/cpu0", DIR_, 0, 0},
};
#define ENTRIES (sizeof entries / sizeof *entries)

/* The table's name of a path: its own pid becomes PID. -ENOENT: longer than any */
static int normal(struct vfs *vfs, const char *path, char out[128])
{
    char pid[16];
    size_t used = 0, n = (size_t)snprintf(pid, sizeof pid, "%u", pid_of(vfs));
    for (const char *s = path; *s;) {
        size_t len = strcspn(s + 1, "/");
        int own = len == n && !memcmp(s + 1, pid, n);
        if (used + 1 + (own ? 3 : len) >= 128 || (len == 3 && !memcmp(s + 1, "PID", 3)))
            return -ENOENT;
        used += (size_t)sprintf(out + used, "/%.*s", own ? 3 : (int)len, own ? "PID" : s + 1);
        s += 1 + len;
    }
    return 0;
}

static const struct entry *find(struct vfs *vfs, const char *path)
{
    char name[128];
    if (normal(vfs, path, name) < 0)
        return 0;
    for (size_t i = 0; i < ENTRIES; i++)
        if (!strcmp(entries[i].path, name))
            return &entries[i];
    return 0;
}

static void entry_stat(struct vfs *vfs, const struct entry *e, struct stat *st)
{
    memset(st, 0, sizeof *st);
    st->st_dev = VFS_DEV_PROC;
    st->st_ino = 1 + (uint64_t)(e - entries);
    st->st_mode = e->kind == DIR_ ? S_IFDIR | 0555 : e->kind == LINK_ ? S_IFLNK | 0777 : S_IFREG | 0444;
    st->st_nlink = e->kind == DIR_ ? 2 : 1;
    st->st_blksize = 4096;
    if (!strncmp(e->path, "/proc/PID", 9))
        st->st_uid = st->st_gid = VFS_UID;
    uint64_t t = CTL_FIELD(vfs, real_offset) / 1000000000;
    st->st_atim.tv_sec = st->st_mtim.tv_sec = st->st_ctim.tv_sec = (time_t)(t & INT32_MAX);
}

int proc_link_fd(struct vfs *vfs, const char *path)
{
    char name[128];
    return normal(vfs, path, name) < 0 ? -1 : proc_fd(name);
}

int proc_stat(struct vfs *vfs, const char *path, struct stat *st)
{
    const struct entry *e = find(vfs, path);
    int fd = proc_link_fd(vfs, path);
    if (fd >= 0)
        return proc_fd_stat(vfs, fd, st);
    if (e) {
        entry_stat(vfs, e, st);
        return 0;
    }
    char up[PATH_MAX];               /* nothing there, or a link on the way? */
    strcpy(up, path);
    for (char *slash = strrchr(up, '/'); slash > up; slash = strrchr(up, '/')) {
        *slash = 0;
        if ((e = find(vfs, up)))
            return e->kind == LINK_ ? -ELOOP : e->kind == FILE_ ? -ENOTDIR : -ENOENT;
    }
    return -ENOENT;
}

static int make(struct vfs *vfs, const char *path, int kind, struct text *t)
{
    const struct entry *e = find(vfs, path);
    if (!e || e->kind != kind)
        return -ENOENT;
    if (e->fixed)
        bytes(t, e->fixed, strlen(e->fixed));
    else
        e->make(vfs, t);
    if (!t->bytes)                   /* empty, or out of memory: no difference worth a word */
        t->bytes = calloc(1, 1);
    return t->bytes ? 0 : -ENOMEM;
}

int proc_readlink(struct vfs *vfs, const char *path, char out[PATH_MAX])
{
    struct text t = {0, 0, 0};
    int fd = proc_link_fd(vfs, path);
    if (fd >= 0)
        return proc_fd_readlink(vfs, fd, out);
    int r = make(vfs, path, LINK_, &t);
    if (!r && t.used >= PATH_MAX)
        r = -ENAMETOOLONG;
    if (!r) {
        memcpy(out, t.bytes, t.used);
        out[t.used] = 0;
        r = (int)t.used;
    }
    free(t.bytes);
    return r;
}

int proc_content(struct vfs *vfs, const char *path, uint8_t **data, uint64_t *size)
{
    struct text t = {0, 0, 0};
    int r = make(vfs, path, FILE_, &t);
    if (r < 0) {
        free(t.bytes);
        return r;
    }
    *data = (uint8_t *)t.bytes;
    *size = t.used;
    return 0;
}

int proc_entry(struct vfs *vfs, const char *path, unsigned i, char name[64], struct stat *st)
{
    char dir[128];
    if (normal(vfs, path, dir) < 0)
        return 0;
    size_t n = strlen(dir);
    unsigned left = i;
    struct guest_fd f;
    if (!strcmp(dir, "/proc/PID/fd")) {      /* by number: what opens or closes meanwhile neither hides nor doubles another */
        if (!guest_fd_next(vfs->vm, i, &f) || proc_fd_stat(vfs, (int)f.fd, st) < 0)
            return 0;
        snprintf(name, 64, "%u", f.fd);
        return (int)f.fd + 1;
    }
    for (size_t k = 0; k < ENTRIES; k++) {
        const char *p = entries[k].path;
        if (strncmp(p, dir, n) || p[n] != '/' || strchr(p + n + 1, '/') || left--)
            continue;
        if (!strcmp(p + n + 1, "PID"))
            snprintf(name, 64, "%u", pid_of(vfs));
        else
            snprintf(name, 64, "%s", p + n + 1);
        entry_stat(vfs, &entries[k], st);
        return (int)i + 1;
    }
    return 0;
}
