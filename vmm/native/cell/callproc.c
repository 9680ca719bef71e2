/* System calls about the process and its threads: scheduling (one CPU, no priorities that count), capabilities (none), names, and which
 * memory is there. Nothing of it changes what the host does. Order of the checks: Linux's. See calls.h.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "calls.h"

#define UID 1000
#define PAGE 4096ull
#define SLICE_NS 8000000             /* what a thread has of the vCPU at a time, about */
#define TIMER_SLACK 50000            /* ns, Linux's default */

#define PARENT 1                     /* getppid(): another's process, and all that there is of others */

/* 0 means the caller */
static bool there(struct caller *c, uint64_t tid)
{
    struct guest_thread t;
    return !(uint32_t)tid || (uint32_t)tid == c->ctl->pid || (uint32_t)tid == PARENT || thread_find(c, (uint32_t)tid, &t);
}

/* ---- scheduling ---- */

static int64_t set_scheduler(struct caller *c, int32_t pid, int32_t policy, uint64_t param)
{
    int32_t priority;
    if (!param || pid < 0)
        return -EINVAL;
    if (call_get(c, &priority, param, sizeof priority))
        return -EFAULT;
    if (!there(c, (uint32_t)pid))
        return -ESRCH;
    policy &= ~SCHED_RESET_ON_FORK;
    if (policy == SCHED_FIFO || policy == SCHED_RR)
        return priority < 1 || priority > 99 ? -EINVAL : -EPERM;
    if ((policy != SCHED_OTHER && policy != SCHED_BATCH && policy != SCHED_IDLE) || priority)
        return -EINVAL;
    if (pid == PARENT || (c->ctl->policy == SCHED_IDLE && policy != SCHED_IDLE))
        return -EPERM;               /* there is no way back for who may not raise its priority */
    c->ctl->policy = (uint8_t)policy;
    return 0;
}

static int64_t scheduling(struct caller *c, uint32_t number, const uint64_t a[6])
{
    const uint64_t interval[2] = {0, SLICE_NS}, cpus = 1;
    int32_t pid = (int32_t)a[0], none = 0;
    uint64_t mask = 0;
    uint32_t size = (uint32_t)a[1];
    switch (number) {
    case SYS_sched_setscheduler:
        return (int32_t)a[1] < 0 ? -EINVAL : set_scheduler(c, pid, (int32_t)a[1], a[2]);
    case SYS_sched_setparam:
        return set_scheduler(c, pid, c->ctl->policy, a[1]);
    case SYS_sched_getscheduler:
        return pid < 0 ? -EINVAL : there(c, a[0]) ? c->ctl->policy : -ESRCH;
    case SYS_sched_getparam:
        return !a[1] || pid < 0 ? -EINVAL : there(c, a[0]) ? call_put(c, a[1], &none, sizeof none) : -ESRCH;
    case SYS_sched_rr_get_interval:
        return pid < 0 ? -EINVAL : there(c, a[0]) ? call_put(c, a[1], interval, sizeof interval) : -ESRCH;
    case SYS_sched_get_priority_max:
    case SYS_sched_get_priority_min:
        if (pid == SCHED_FIFO || pid == SCHED_RR)
            return number == SYS_sched_get_priority_max ? 99 : 1;
        return pid >= 0 && pid <= 6 && pid != 4 ? 0 : -EINVAL;
    case SYS_sched_getaffinity:
        if (size < sizeof cpus || size % sizeof cpus)
            return -EINVAL;
        if (!there(c, a[0]))
            return -ESRCH;
        return call_put(c, a[2], &cpus, sizeof cpus) ? -EFAULT : (int64_t)sizeof cpus;
    default:                         /* sched_setaffinity */
        if (size && call_get(c, &mask, a[2], size < sizeof mask ? size : sizeof mask))
            return -EFAULT;
        return !there(c, a[0]) ? -ESRCH : pid == PARENT ? -EPERM : mask & cpus ? 0 : -EINVAL;
    }
}

#define CLOCKS 0x8ff                 /* up to CLOCK_BOOTTIME, and CLOCK_TAI */
static int64_t getres_call(struct caller *c, int32_t id, uint64_t out)
{
    const uint64_t ns[2] = {0, 1};
    struct guest_thread t;
    uint32_t tid = (uint32_t)~(id >> 3);         /* of a negative one, and what CPU time it is in the lowest bits: CPUCLOCK_SCHED 2 */
    if (id < 0 ? (id & 3) != 2 || (tid && !thread_find(c, tid, &t)) : id > 11 || !(CLOCKS >> id & 1))
        return -EINVAL;
    return out ? call_put(c, out, ns, sizeof ns) : 0;
}

static bool whose(struct caller *c, uint32_t which, uint32_t who)
{
    return which == PRIO_PROCESS ? there(c, who) : !who || who == (which == PRIO_USER ? UID : c->ctl->pid);
}

static int64_t set_priority(struct caller *c, uint32_t which, uint32_t who, int32_t nice)
{
    if (which > PRIO_USER)
        return -EINVAL;
    if (!whose(c, which, who))
        return -ESRCH;
    if (which == PRIO_PROCESS && who == PARENT)
        return -EPERM;
    if (nice < c->ctl->nice)
        return -EACCES;
    c->ctl->nice = nice > 19 ? 19 : (uint8_t)nice;
    return 0;
}

/* ---- prctl, capabilities ---- */

static int64_t set_name(struct caller *c, uint64_t from, uint64_t thread)
{
    char name[16] = {0};
    for (uint64_t i = 0; i < sizeof name - 1; i++) {
        if (call_get(c, name + i, from + i, 1))
            return -EFAULT;
        if (!name[i])
            break;
    }
    return c->write(c, thread + AFW_THREAD_NAME, name, sizeof name);
}

static int64_t prctl_call(struct caller *c, const uint64_t a[6])
{
    const int32_t off = 0, on = PR_TSC_ENABLE;
    char name[16];
    switch ((uint32_t)a[0]) {
    case PR_SET_NAME:
        return set_name(c, a[1], a[5]);
    case PR_GET_NAME:
        return c->read(c, name, a[5] + AFW_THREAD_NAME, sizeof name) ? -EFAULT : call_put(c, a[1], name, sizeof name);
    case PR_GET_PDEATHSIG:
    case PR_GET_CHILD_SUBREAPER:
        return call_put(c, a[1], &off, sizeof off);
    case PR_GET_TSC:
        return call_put(c, a[1], &on, sizeof on);
    case PR_SET_PDEATHSIG:
        return a[1] > 64 ? -EINVAL : 0;
    case PR_SET_DUMPABLE:
        return a[1] > 1 ? -EINVAL : 0;
    case PR_CAPBSET_READ:
        return a[1] > 40 ? -EINVAL : 0;
    case PR_SET_NO_NEW_PRIVS:
        return a[1] != 1 || a[2] || a[3] || a[4] ? -EINVAL : 0;
    case PR_GET_NO_NEW_PRIVS:
        return a[1] || a[2] || a[3] || a[4] ? -EINVAL : 1;
    case PR_GET_DUMPABLE:
        return 1;
    case PR_GET_TIMERSLACK:
        return TIMER_SLACK;
    case PR_GET_KEEPCAPS:
    case PR_GET_TIMING:
    case PR_GET_SECCOMP:
    case PR_GET_SECUREBITS:
    case PR_SET_TIMERSLACK:
    case PR_SET_CHILD_SUBREAPER:
        return 0;
    default:
        return -EINVAL;
    }
}

#define CAPABILITY_1 0x19980330u
#define CAPABILITY_2 0x20071026u
#define CAPABILITY_3 0x20080522u
static int64_t capget_call(struct caller *c, uint64_t header, uint64_t data)
{
    struct { uint32_t version; int32_t pid; } h;
    const uint32_t nothing[6] = {0};
    if (call_get(c, &h.version, header, sizeof h.version))
        return -EFAULT;
    if (h.version != CAPABILITY_1 && h.version != CAPABILITY_2 && h.version != CAPABILITY_3) {
        h.version = CAPABILITY_3;
        if (call_put(c, header, &h.version, sizeof h.version))
            return -EFAULT;
        return data ? -EINVAL : 0;   /* who gives no place for an answer asks for the version */
    }
    if (call_get(c, &h, header, sizeof h))
        return -EFAULT;
    if (h.pid < 0)
        return -EINVAL;
    if (!there(c, (uint32_t)h.pid))
        return -ESRCH;
    return data ? call_put(c, data, nothing, h.version == CAPABILITY_1 ? 12 : 24) : 0;
}

static int64_t getgroups_call(struct caller *c, int32_t size, uint64_t list)
{
    const uint32_t group = UID;
    if (size < 0)
        return -EINVAL;
    return size && call_put(c, list, &group, sizeof group) ? -EFAULT : 1;
}

/* ---- which memory is there: all that is mapped ---- */

static int64_t lock_call(struct caller *c, uint64_t addr, uint64_t len, uint32_t prot)
{
    uint64_t start = addr / PAGE * PAGE, end = (addr + len + PAGE - 1) / PAGE * PAGE;
    if (addr + len < addr || end < start)
        return prot ? -ENOMEM : -EINVAL;
    return end == start || memory_allows(c, start, end - start, prot) ? 0 : -ENOMEM;
}

/* Shared mappings are the host's page cache: there is nothing to carry over */
static int64_t msync_call(struct caller *c, uint64_t addr, uint64_t len, uint32_t flags)
{
    uint64_t size = (len + PAGE - 1) / PAGE * PAGE;
    if (flags & ~(uint32_t)(MS_ASYNC | MS_INVALIDATE | MS_SYNC) || addr % PAGE || (flags & MS_ASYNC && flags & MS_SYNC))
        return -EINVAL;
    return addr + size < addr || (size && !memory_allows(c, addr, size, 0)) ? -ENOMEM : 0;
}

static int64_t mincore_call(struct caller *c, uint64_t addr, uint64_t len, uint64_t out)
{
    uint8_t all[PAGE];
    uint64_t pages = len / PAGE + (len % PAGE != 0);
    if (addr % PAGE)
        return -EINVAL;
    if (pages > AFW_SPACE_END / PAGE)
        return -ENOMEM;
    memset(all, 1, sizeof all);
    if (pages && !memory_allows(c, out, pages, PROT_WRITE))
        return -EFAULT;
    if (pages && !memory_allows(c, addr, pages * PAGE, 0))
        return -ENOMEM;
    for (uint64_t done = 0, n; done < pages; done += n) {
        n = pages - done < sizeof all ? pages - done : sizeof all;
        if (call_put(c, out + done, all, n))
            return -EFAULT;
    }
    return 0;
}

int64_t process_call(struct caller *c, uint32_t number, const uint64_t a[6])
{
    switch (number) {
    case SYS_sched_setscheduler:
    case SYS_sched_getscheduler:
    case SYS_sched_setparam:
    case SYS_sched_getparam:
    case SYS_sched_rr_get_interval:
    case SYS_sched_get_priority_max:
    case SYS_sched_get_priority_min:
    case SYS_sched_getaffinity:
    case SYS_sched_setaffinity:
        return scheduling(c, number, a);
    case SYS_clock_getres:
        return getres_call(c, (int32_t)a[0], a[1]);
    case SYS_getpriority:
        if ((uint32_t)a[0] > PRIO_USER)
            return -EINVAL;
        return whose(c, (uint32_t)a[0], (uint32_t)a[1]) ? 20 - c->ctl->nice : -ESRCH;
    case SYS_setpriority:
        return set_priority(c, (uint32_t)a[0], (uint32_t)a[1], (int32_t)a[2]);
    case SYS_ioprio_get:
        if ((uint32_t)a[0] - 1 > 2)
            return -EINVAL;
        return whose(c, (uint32_t)a[0] - 1, (uint32_t)a[1]) ? 0 : -ESRCH;
    case SYS_prctl:
        return prctl_call(c, a);
    case SYS_capget:
        return capget_call(c, a[0], a[1]);
    case SYS_getgroups:
        return getgroups_call(c, (int32_t)a[0], a[1]);
    case SYS_wait4:                  /* there are no children */
        return (uint32_t)a[2] & ~(WNOHANG | WUNTRACED | WCONTINUED | __WNOTHREAD | __WCLONE | __WALL) ? -EINVAL : -ECHILD;
    case SYS_waitid:
        if ((uint32_t)a[0] > P_PIDFD || (uint32_t)a[3] & ~(WNOHANG | WNOWAIT | WEXITED | WSTOPPED | WCONTINUED | __WNOTHREAD | __WCLONE | __WALL) ||
            !(a[3] & (WEXITED | WSTOPPED | WCONTINUED)))
            return -EINVAL;
        return -ECHILD;
    case SYS_setfsuid:
    case SYS_setfsgid:
        return UID;
    case SYS_mlock2:
        if ((uint32_t)a[2] > 1)
            return -EINVAL;
        return lock_call(c, a[0], a[1], PROT_READ);
    case SYS_mlock:
        return lock_call(c, a[0], a[1], PROT_READ);
    case SYS_munlock:
        return lock_call(c, a[0], a[1], 0);
    case SYS_mlockall:
        return (uint32_t)a[0] - 1 > 6 || (uint32_t)a[0] == 4 ? -EINVAL : 0;
    case SYS_munlockall:
        return 0;
    case SYS_msync:
        return msync_call(c, a[0], a[1], (uint32_t)a[2]);
    case SYS_mincore:
        return mincore_call(c, a[0], a[1], a[2]);
    default:
        return -ENOSYS;
    }
}
