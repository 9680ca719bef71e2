/* What /proc/self tells of memory, threads and limits: from the tables in the guest's own memory (inside.c). See proc.h. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "calls.h"
#include "proc.h"
#include "vmm.h"

#define PAGE 4096ull
#define TICK 10000000                /* ns: USER_HZ is 100 */
#define REGIONS 16384                /* of a guest that are listed: more than the pieces a VM can be in (pieces.c) */
#define FULL (VFS_PROC_MAX - 512)    /* no other line is begun */

struct looking {
    struct caller caller;            /* first */
    struct vm *vm;
};

static int look_read(struct caller *c, void *to, uint64_t gva, uint64_t n)
{
    return guest_read(((struct looking *)c)->vm, to, gva, n);
}

static struct looking look(struct vfs *vfs)
{
    return (struct looking){.caller = {.ctl = vfs->vm->ctl, .read = look_read}, .vm = vfs->vm};
}

/* ---- threads ---- */

uint32_t proc_thread(struct vfs *vfs, unsigned i)
{
    static __thread uint32_t id[AFW_THREADS_MAX];    /* the newest comes first in the guest's list, and last here */
    uint32_t n = vfs->proc_threads;
    if (!n) {
        struct looking l = look(vfs);
        struct guest_thread t;
        for (uint64_t at = l.caller.ctl->threads; n < AFW_THREADS_MAX && (at = thread_read(&l.caller, at, &t)); n++)
            id[n] = t.tid;
        if (!n)                      /* (it has not begun) */
            id[n++] = pid_of(vfs);
        vfs->proc_threads = n;
    }
    return i < n ? id[n - 1 - i] : 0;
}

static unsigned thread_count(struct vfs *vfs)
{
    struct looking l = look(vfs);
    struct guest_thread t;
    uint64_t at = l.caller.ctl->threads;
    unsigned n = 0;
    for (; n < AFW_THREADS_MAX && (at = thread_read(&l.caller, at, &t)); n++)
        ;
    return n ? n : 1;
}

bool proc_is_thread(struct vfs *vfs, uint32_t tid)
{
    struct looking l = look(vfs);
    struct guest_thread t;
    return tid == pid_of(vfs) || thread_find(&l.caller, tid, &t);
}

static const char *program(void)
{
    const char *name = vfs_program.program ? strrchr(vfs_program.program, '/') : 0;
    return name ? name + 1 : "agent";
}

/* A thread's name as PR_SET_NAME left it, or the program's */
static struct guest_thread named(struct vfs *vfs, uint32_t tid)
{
    struct looking l = look(vfs);
    struct guest_thread t = {0};
    if (!thread_find(&l.caller, tid, &t))
        t = (struct guest_thread){.tid = tid};
    for (char *s = t.name; *s; s++)
        if (*s == '\n')
            *s = ' ';
    if (!t.name[0])
        snprintf(t.name, sizeof t.name, "%.15s", program());
    return t;
}

static void comm(struct vfs *vfs, struct text *t, uint32_t tid)
{
    line(t, "%s\n", named(vfs, tid).name);
}

void g_comm(struct vfs *vfs, struct text *t)
{
    comm(vfs, t, pid_of(vfs));
}

void g_task_comm(struct vfs *vfs, struct text *t)
{
    comm(vfs, t, vfs->proc_tid);
}

/* ---- memory ---- */

struct sizes { uint64_t mapped, stack, text; };      /* bytes */

static struct sizes sizes_of(struct vfs *vfs)
{
    struct looking l = look(vfs);
    struct afw_region r;
    struct sizes s = {0, 0, 0};
    uint64_t stack = CTL_FIELD(vfs, stack_lo);
    for (uint32_t i = 0; region_at(&l.caller, i, &r); i++) {
        uint64_t size = (uint64_t)(r.end - r.start) * PAGE;
        if (!(r.attr & AFW_REGION_MAPPED) || r.attr & AFW_REGION_SHIM)
            continue;
        s.mapped += size;
        s.stack += r.start * PAGE == stack ? size : 0;
        s.text += r.attr & PROT_EXEC ? size : 0;
    }
    return s;
}

static void map_line(struct text *t, uint64_t start, uint64_t end, uint32_t attr, uint64_t offset, const char *name)
{
    char head[128];
    int n = snprintf(head, sizeof head, "%08llx-%08llx %c%c%c%c %08llx 00:00 0 ", (unsigned long long)start, (unsigned long long)end,
                     attr & PROT_READ ? 'r' : '-', attr & PROT_WRITE ? 'w' : '-', attr & PROT_EXEC ? 'x' : '-', attr & AFW_REGION_SHARED ? 's' : 'p',
                     (unsigned long long)offset);
    line(t, "%s%*s%s\n", head, *name && n < 73 ? 73 - n : 0, "", name);
}

/* One region: the host knows which parts of it are files, and what the image's rights are (the shim takes it for one, with all of them) */
static void map_lines(struct vfs *vfs, struct text *t, const struct afw_region *r)
{
    uint64_t at = r->start * PAGE, end = r->end * PAGE, start, stop, offset;
    uint64_t heap = CTL_FIELD(vfs, brk_start), stack = CTL_FIELD(vfs, stack_lo);
    const char *own = at == heap ? "[heap]" : at == stack ? "[stack]" : "";
    bool image = end <= stack;       /* whole region, or what mprotect() left of it */
    char name[256];
    while (at < end && t->used < FULL) {
        uint64_t from = at;
        uint32_t attr = r->attr;
        int file = memory_module_next(vfs->vm, at, name, &start, &stop, &offset);
        if (!file || start >= end)
            start = end;
        if (at < start) {
            at = start;
            if (image)               /* between two files: nothing, or a file's zeros, which belong to the piece before */
                continue;
            map_line(t, from, at, attr, 0, own);
            continue;
        }
        at = stop < end ? stop : end;
        if (image)
            attr = AFW_REGION_MAPPED | (memory_writable(vfs->vm, from) ? PROT_READ | PROT_WRITE : PROT_READ | PROT_EXEC);
        map_line(t, from, at, attr, offset, name);
    }
}

void g_maps(struct vfs *vfs, struct text *t)
{
    struct looking l = look(vfs);
    struct afw_region r;
    for (uint32_t i = 0; i < REGIONS && t->used < FULL && region_at(&l.caller, i, &r); i++)
        if (r.attr & AFW_REGION_MAPPED && !(r.attr & AFW_REGION_SHIM))
            map_lines(vfs, t, &r);
}

void g_statm(struct vfs *vfs, struct text *t)
{
    struct sizes s = sizes_of(vfs);
    unsigned long long used = used_of(vfs) / PAGE;
    line(t, "%llu %llu 0 %llu 0 %llu 0\n", (unsigned long long)s.mapped / PAGE, used, (unsigned long long)s.text / PAGE, used);
}

/* ---- status and stat ---- */

static void status_of(struct vfs *vfs, struct text *t, uint32_t tid)
{
    unsigned pid = pid_of(vfs);
    struct guest_thread who = named(vfs, tid);
    struct sizes s = sizes_of(vfs);
    unsigned long long kib = used_of(vfs) / 1024, all = s.mapped / 1024, stack = s.stack / 1024;
    line(t, "Name:\t%s\nUmask:\t%04o\nState:\t%s\nTgid:\t%u\nNgid:\t0\nPid:\t%u\nPPid:\t1\nTracerPid:\t0\n", who.name, (unsigned)CTL_FIELD(vfs, umask) & 0777,
         who.blocked ? "S (sleeping)" : "R (running)", pid, tid);
    line(t, "Uid:\t%d\t%d\t%d\t%d\nGid:\t%d\t%d\t%d\t%d\nFDSize:\t%u\nGroups:\t%d \n", VFS_UID, VFS_UID, VFS_UID, VFS_UID, VFS_UID, VFS_UID,
         VFS_UID, VFS_UID, (unsigned)CTL_FIELD(vfs, fd_size), VFS_UID);
    line(t, "NStgid:\t%u\nNSpid:\t%u\nNSpgid:\t%u\nNSsid:\t%u\n", pid, tid, pid, pid);
    line(t, "VmPeak:\t%8llu kB\nVmSize:\t%8llu kB\nVmLck:\t       0 kB\nVmPin:\t       0 kB\nVmHWM:\t%8llu kB\nVmRSS:\t%8llu kB\n", all, all, kib, kib);
    line(t, "RssAnon:\t%8llu kB\nRssFile:\t       0 kB\nRssShmem:\t       0 kB\nVmData:\t%8llu kB\nVmStk:\t%8llu kB\nVmExe:\t       0 kB\n", kib, kib, stack);
    line(t, "VmLib:\t%8llu kB\nVmPTE:\t       0 kB\nVmSwap:\t       0 kB\nThreads:\t%u\nSigQ:\t0/1024\n", (unsigned long long)s.text / 1024, thread_count(vfs));
    line(t, "SigPnd:\t%016x\nShdPnd:\t%016x\nCapInh:\t%016x\nCapPrm:\t%016x\nCapEff:\t%016x\nCapBnd:\t%016x\nCapAmb:\t%016x\n", 0, 0, 0, 0, 0, 0, 0);
    line(t, "NoNewPrivs:\t1\nSeccomp:\t0\nCpus_allowed:\t1\nCpus_allowed_list:\t0\nMems_allowed:\t1\nMems_allowed_list:\t0\n");
    line(t, "voluntary_ctxt_switches:\t%llu\nnonvoluntary_ctxt_switches:\t0\n", (unsigned long long)CTL_FIELD(vfs, n_switch));
}

void g_status(struct vfs *vfs, struct text *t)
{
    status_of(vfs, t, pid_of(vfs));
}

void g_task_status(struct vfs *vfs, struct text *t)
{
    status_of(vfs, t, vfs->proc_tid);
}

static void stat_of(struct vfs *vfs, struct text *t, uint32_t tid, uint64_t cpu_ns)
{
    unsigned pid = pid_of(vfs), nice = (unsigned)CTL_FIELD(vfs, nice);
    struct guest_thread who = named(vfs, tid);
    unsigned long long ticks = cpu_ns / TICK, started = vfs->started / TICK, stack = CTL_FIELD(vfs, stack_hi);
    line(t, "%u (%s) %c 1 %u %u 0 -1 4194304 0 0 0 0 %llu 0 0 0 %u %u %u 0 %llu ", tid, who.name, who.blocked ? 'S' : 'R', pid, pid, ticks, 20 + nice, nice,
         thread_count(vfs), started);
    line(t, "%llu %llu 18446744073709551615 %llu 0 %llu 0 0 0 0 0 0 0 0 0 17 0 0 %u 0 0 0 0 0 %llu 0 0 0 0 0\n", (unsigned long long)sizes_of(vfs).mapped,
         (unsigned long long)used_of(vfs) / PAGE, (unsigned long long)AFW_IMAGE, stack, (unsigned)CTL_FIELD(vfs, policy), (unsigned long long)CTL_FIELD(vfs, brk_start));
}

void g_stat(struct vfs *vfs, struct text *t)
{
    stat_of(vfs, t, pid_of(vfs), CTL_FIELD(vfs, cpu_ns));
}

void g_task_stat(struct vfs *vfs, struct text *t)
{
    stat_of(vfs, t, vfs->proc_tid, named(vfs, vfs->proc_tid).cpu_ns);
}

void g_loadavg(struct vfs *vfs, struct text *t)
{
    struct looking l = look(vfs);
    struct guest_thread who;
    uint64_t at = l.caller.ctl->threads;
    unsigned n = 0, running = 0;
    for (; n < AFW_THREADS_MAX && (at = thread_read(&l.caller, at, &who)); n++)
        running += !who.blocked;
    line(t, "0.00 0.00 0.00 %u/%u %u\n", running, n, pid_of(vfs));
}

void g_limits(struct vfs *vfs, struct text *t)
{
    static const char *const rows[16][2] = {
        {"Max cpu time", "seconds"}, {"Max file size", "bytes"}, {"Max data size", "bytes"}, {"Max stack size", "bytes"}, {"Max core file size", "bytes"},
        {"Max resident set", "bytes"}, {"Max processes", "processes"}, {"Max open files", "files"}, {"Max locked memory", "bytes"},
        {"Max address space", "bytes"}, {"Max file locks", "locks"}, {"Max pending signals", "signals"}, {"Max msgqueue size", "bytes"},
        {"Max nice priority", ""}, {"Max realtime priority", ""}, {"Max realtime timeout", "us"},
    };
    line(t, "%-25s %-20s %-20s %-10s\n", "Limit", "Soft Limit", "Hard Limit", "Units");
    for (size_t i = 0; i < 16; i++) {
        char value[2][24];
        for (size_t k = 0; k < 2; k++) {
            uint64_t v = ctl_field(vfs, offsetof(struct afw_ctl, rlimit) + (2 * i + k) * sizeof(uint64_t), sizeof(uint64_t));
            if (v == ~0ull)
                strcpy(value[k], "unlimited");
            else
                snprintf(value[k], sizeof value[k], "%llu", (unsigned long long)v);
        }
        line(t, "%-25s %-20s %-20s %-10s\n", rows[i][0], value[0], value[1], rows[i][1]);
    }
}
