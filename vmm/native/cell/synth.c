/* What /proc and /sys tell: only this VM's own matters, as far as Python and common libraries read them. See vfs.h.
 *
 * One table of canonical paths; "PID" stands for the guest's process id, "TID" for any of its threads'. Not listed: not there.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include "proc.h"

void text_bytes(struct text *t, const char *data, size_t len)
{
    if (len > VFS_PROC_MAX - t->used)
        len = VFS_PROC_MAX - t->used;
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

void line(struct text *t, const char *format, ...)
{
    char buffer[PATH_MAX + 128];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(buffer, sizeof buffer, format, args);
    va_end(args);
    if (n > 0)
        text_bytes(t, buffer, (size_t)n < sizeof buffer ? (size_t)n : sizeof buffer - 1);
}

uint64_t ctl_field(struct vfs *vfs, size_t offset, size_t size)
{
    uint64_t value = 0;
    return guest_read(vfs->vm, &value, AFW_CTL + offset, size) < 0 ? 0 : value;
}

unsigned pid_of(struct vfs *vfs)
{
    return (unsigned)CTL_FIELD(vfs, pid) & 0x3fffffff;
}

static uint64_t memory_of(struct vfs *vfs)
{
    return vfs->vm->memory_limit ? vfs->vm->memory_limit : vfs_program.memory;
}

uint64_t used_of(struct vfs *vfs)
{
    uint64_t pages = CTL_FIELD(vfs, committed_pages), limit = memory_of(vfs) / 4096;
    return (pages < limit ? pages : limit) * 4096;
}

uint64_t clock_ns(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static void g_cmdline(struct vfs *vfs, struct text *t)
{
    (void)vfs;
    text_bytes(t, vfs_program.args, vfs_program.args_size);
}

static void g_environ(struct vfs *vfs, struct text *t)
{
    (void)vfs;
    text_bytes(t, vfs_program.env, vfs_program.env_size);
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
    line(t, "%u/task/%u", pid_of(vfs), pid_of(vfs));   /* (which thread asks, the host is not told) */
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

static void draw(uint8_t id[16])
{
    while (getrandom(id, 16, 0) != 16)
        ;
    id[6] = 0x40 | (id[6] & 15);     /* version 4 */
    id[8] = 0x80 | (id[8] & 63);
}

static void uuid_line(struct text *t, const uint8_t id[16])
{
    for (int i = 0; i < 16; i++)
        line(t, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", id[i]);
    line(t, "\n");
}

static void g_uuid(struct vfs *vfs, struct text *t)
{
    uint8_t id[16];
    (void)vfs;
    draw(id);
    uuid_line(t, id);
}

static void g_boot_id(struct vfs *vfs, struct text *t)
{
    if (!vfs->boot_id[6])
        draw(vfs->boot_id);
    uuid_line(t, vfs->boot_id);
}

static void g_agentfw(struct vfs *vfs, struct text *t)
{
    if (vfs->vm->note)
        text_bytes(t, vfs->vm->note, strlen(vfs->vm->note));
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
    {"/proc/PID/fdinfo", DIR_, 0, 0},
    {"/proc/PID/task", DIR_, 0, 0},
    {"/proc/PID/task/TID", DIR_, 0, 0},
    {"/proc/PID/task/TID/comm", FILE_, g_task_comm, 0},
    {"/proc/PID/task/TID/stat", FILE_, g_task_stat, 0},
    {"/proc/PID/task/TID/status", FILE_, g_task_status, 0},
    {"/proc/mounts", LINK_, 0, "self/mounts"},
    {"/proc/agentfw", FILE_, g_agentfw, 0},   /* what a forked VM is told of itself; in others it is empty */
    {"/proc/meminfo", FILE_, g_meminfo, 0},
    {"/proc/cpuinfo", FILE_, g_cpuinfo, 0},
    {"/proc/uptime", FILE_, g_uptime, 0},
    {"/proc/stat", FILE_, g_cpustat, 0},
    {"/proc/loadavg", FILE_, g_loadavg, 0},
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
    {"/proc/sys/kernel/random", DIR_, 0, 0},
    {"/proc/sys/kernel/random/boot_id", FILE_, g_boot_id, 0},
    {"/proc/sys/kernel/random/uuid", FILE_, g_uuid, 0},
    {"/proc/sys/kernel/random/entropy_avail", FILE_, 0, "256\n"},
    {"/proc/sys/kernel/random/poolsize", FILE_, 0, "256\n"},
    {"/proc/sys/vm", DIR_, 0, 0},
    {"/proc/sys/vm/overcommit_memory", FILE_, 0, "0\n"},
    {"/proc/sys/vm/max_map_count", FILE_, 0, "65530\n"},
    {"/proc/sys/fs", DIR_, 0, 0},
    {"/proc/sys/fs/file-max", FILE_, 0, "4096\n"},
    {"/proc/sys/fs/nr_open", FILE_, 0, "4096\n"},
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

/* The id of one of its threads, as a decimal number, or 0 */
static uint32_t thread_of(struct vfs *vfs, const char *s, size_t len)
{
    uint32_t tid = 0;
    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9' || i > 8 || (s[0] == '0'))
            return 0;
        tid = tid * 10 + (uint32_t)(s[i] - '0');
    }
    return tid && proc_is_thread(vfs, tid) ? tid : 0;
}

#define TASKS "/proc/PID/task"
/* The table's name of a path: its own pid becomes PID, a thread's id TID (vfs->proc_tid). -ENOENT: longer than any */
static int normal(struct vfs *vfs, const char *path, char out[128])
{
    char pid[16];
    size_t used = 0, n = (size_t)snprintf(pid, sizeof pid, "%u", pid_of(vfs));
    for (const char *s = path; *s;) {
        size_t len = strcspn(s + 1, "/");
        const char *own = len == n && !memcmp(s + 1, pid, n) ? "PID" : 0;
        uint32_t tid = used == sizeof TASKS - 1 && !memcmp(out, TASKS, used) ? thread_of(vfs, s + 1, len) : 0;
        if (tid) {
            vfs->proc_tid = tid;
            own = "TID";
        }
        if (used + 1 + (own ? 3 : len) >= 128 || (len == 3 && (!memcmp(s + 1, "PID", 3) || !memcmp(s + 1, "TID", 3))))
            return -ENOENT;
        used += (size_t)sprintf(out + used, "/%.*s", own ? 3 : (int)len, own ? own : s + 1);
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

static int info_fd(struct vfs *vfs, const char *path)
{
    char name[128];
    return normal(vfs, path, name) < 0 ? -1 : proc_fdinfo(name);
}

int proc_stat(struct vfs *vfs, const char *path, struct stat *st)
{
    const struct entry *e = find(vfs, path);
    int fd = proc_link_fd(vfs, path), info = info_fd(vfs, path);
    if (fd >= 0)
        return proc_fd_stat(vfs, fd, st);
    if (info >= 0)
        return proc_fdinfo_stat(vfs, info, st);
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
        text_bytes(t, e->fixed, strlen(e->fixed));
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
    int info = info_fd(vfs, path), r = 0;
    if (info >= 0)
        proc_fdinfo_text(vfs, info, &t);
    else
        r = make(vfs, path, FILE_, &t);
    if (!r && !t.bytes)
        r = info >= 0 ? -ENOENT : -ENOMEM;
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
    int info = !strcmp(dir, "/proc/PID/fdinfo");
    if (info || !strcmp(dir, "/proc/PID/fd")) {      /* by number: what opens or closes meanwhile neither hides nor doubles another */
        if (!guest_fd_next(vfs->vm, i, &f) || (info ? proc_fdinfo_stat : proc_fd_stat)(vfs, (int)f.fd, st) < 0)
            return 0;
        snprintf(name, 64, "%u", f.fd);
        return (int)f.fd + 1;
    }
    for (size_t k = 0; k < ENTRIES; k++) {
        const char *p = entries[k].path;
        if (strncmp(p, dir, n) || p[n] != '/' || strchr(p + n + 1, '/'))
            continue;
        if (!strcmp(p + n + 1, "TID")) {
            uint32_t tid = proc_thread(vfs, i);
            if (!tid)
                return 0;
            snprintf(name, 64, "%u", tid);
            entry_stat(vfs, &entries[k], st);
            return (int)i + 1;
        }
        if (left--)
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
