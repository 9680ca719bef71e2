/* The submission and completion rings of one VM.
 *
 * The guest stands still while its ring is consumed, but all of it is hostile all the same: indices are checked against our own
 * copies, each entry is copied once, and what an entry says is checked where it is used.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <x86intrin.h>
#include "calls.h"
#include "machine.h"
#include "sockopt.h"
#include "rules.h"

#define RANDOM_MAX (1u << 20)
#define SITES_PATIENCE 10000000000ull            /* ns that a template waits for the worker's list of sites */

/* Room for one more answer; -1: the guest's index is corrupt or it let the ring overflow. */
static int answer_room(struct machine *m)
{
    uint32_t head = __atomic_load_n(&m->vm.ctl->cq_head, __ATOMIC_ACQUIRE), used = m->cq_tail - head;
    return used < AFW_CQ_LEN ? 0 : -1;
}

static void answer(struct machine *m, uint32_t token, int64_t res)
{
    struct afw_cqe *cq = (struct afw_cqe *)(m->vm.mem + AFW_CQ);
    cq[m->cq_tail % AFW_CQ_LEN] = (struct afw_cqe){.token = token, .res = res};
    __atomic_store_n(&m->vm.ctl->cq_tail, ++m->cq_tail, __ATOMIC_RELEASE);
}

bool ring_has_answers(struct machine *m)
{
    return __atomic_load_n(&m->vm.ctl->cq_head, __ATOMIC_ACQUIRE) != m->cq_tail;
}

static void program_exit(struct machine *m, const struct afw_sqe *e)
{
    int status = (int)(e->a[0] & 0xff), signal = (int)(e->a[1] & 0x7f);
    if (signal)
        vm_end(m, AFW_EXIT_SIGNAL, 0, signal, "killed by signal %d (%s)", signal, strsignal(signal));
    else
        vm_end(m, AFW_EXIT_CODE, status, 0, "exit code %d", status);
}

/* READY: the answer that restored VMs shall see (0) is in the ring when the memory is saved; the template's own becomes 1 after. */
static int64_t ready(struct machine *m, const struct afw_sqe *e)
{
    if (m->restored)
        return 0;
    if (!m->sites_given_up && sites_busy(&m->vm)) {   /* its sites belong into the snapshot */
        m->sites_wait = true;
        m->deadline_sites = clock_mono() + SITES_PATIENCE;
        return -EAGAIN;
    }
    struct afw_event ev = {.type = AFW_EV_READY, .vm = m->vm.id};
    int64_t res;
    uint32_t at = m->cq_tail;
    if (vfs_open_handles(m->vm.vfs)) {
        res = -EBUSY;
    } else if (cell.config.snapshot_out < 0) {
        res = -EBADF;
    } else {
        answer(m, e->token, 0);
        __atomic_store_n(&m->vm.ctl->sq_head, ++m->sq_head, __ATOMIC_RELEASE);
        res = snapshot_save(m);
        m->sq_head--;                            /* ring_consume goes on from before this entry */
        m->cq_tail = at;
        __atomic_store_n(&m->vm.ctl->cq_tail, at, __ATOMIC_RELEASE);
    }
    if (res < 0)
        ev.b = (uint64_t)res;
    else
        ev.a = (uint64_t)res;
    /* Space was seen before the work began; if the worker's queue is full all the same, the file is written again. */
    return runner_event(m->vm.runner, &ev) ? -EAGAIN : res == -EBUSY ? res : 1;
}

static int64_t memory_op(struct vm *vm, const struct afw_sqe *e)
{
    int r;
    switch (e->op) {
    case AFW_OP_COMMIT:
        return memory_commit(vm, e->a[0], e->a[1]);
    case AFW_OP_ZERO:
        return e->a[2] ? memory_file_again(vm, e->a[0], e->a[1]) : memory_zero(vm, e->a[0], e->a[1]);
    case AFW_OP_REMAP:
        return memory_remap(vm, e->a[0], e->a[1], e->a[2], e->a[3]);
    default:
        if (e->a[2] & ~(uint64_t)(PROT_READ | PROT_WRITE | PROT_EXEC))
            return -EINVAL;
        r = memory_protect(vm, e->a[0], e->a[1], (int)e->a[2]);
        /* Writable as well: its code is not there yet; what it will run comes by the backstop. */
        if (!r && e->a[2] & PROT_EXEC && !(e->a[2] & PROT_WRITE))
            sites_code(vm, AFW_SITES_MEMORY, e->a[0], page_up(e->a[1]));
        return r;
    }
}

/* The rules' word on an entry: 0, -errno, or 1: the VM has ended */
static int judge(struct machine *m, const struct afw_sqe *e)
{
    const struct rules *rules = m->vm.rules;
    enum rules_verdict verdict = rules_op(rules, e);
    if (verdict == RULES_OK)
        return 0;
    m->vm.shm->refused_calls++;
    if (verdict == RULES_REFUSE)
        return -rules_error(rules);
    vm_end(m, AFW_EXIT_SIGNAL, 0, SIGSYS, "the rules permit no %s()",
           e->op == AFW_OP_UNLINK && e->a[2] & AT_REMOVEDIR ? "rmdir" : rules_op_name(e->op));
    return 1;
}

/* -> bytes, fewer than were wanted if that is much: the guest asks again, and others have their turn in between */
static int64_t random_op(struct machine *m, const struct afw_sqe *e)
{
    uint8_t bytes[4096];
    uint64_t want = e->a[1] < RANDOM_MAX ? e->a[1] : RANDOM_MAX, done = 0;
    if (!e->a[0]) {
        boot_random(m->vm.ctl);
        return AFW_RANDOM;
    }
    while (done < want) {
        uint64_t n = want - done < sizeof bytes ? want - done : sizeof bytes;
        if (getrandom(bytes, n, 0) != (ssize_t)n)
            continue;
        if (guest_write(&m->vm, e->a[0] + done, bytes, n))
            break;
        done += n;
    }
    explicit_bzero(bytes, sizeof bytes);
    return done || !want ? (int64_t)done : -EFAULT;
}

static int64_t cpuid_op(struct vm *vm, const struct afw_sqe *e)
{
    const struct afw_cpuid_table *t = (const struct afw_cpuid_table *)(vm->mem + AFW_CPUID);
    uint64_t r[4] = {0};
    for (uint32_t i = 0, n = t->n; i < n && i < AFW_CPUID_MAX; i++) {
        struct afw_cpuid_entry x = t->entry[i];
        if (x.leaf != (uint32_t)e->a[0] || (!x.any_subleaf && x.subleaf != (uint32_t)e->a[1]))
            continue;
        r[0] = x.eax;
        r[1] = x.ebx;
        r[2] = x.ecx;
        r[3] = x.edx;
        break;
    }
    return guest_write(vm, e->a[2], r, sizeof r);
}

static int64_t socket_question(struct vm *vm, const struct afw_sqe *e)
{
    uint8_t v[SOCKOPT_ROOM] = {0};
    if (e->a[4] != AFW_SOCKET_KIND && guest_read(vm, v, e->a[3], sizeof v))
        return -EFAULT;
    int64_t r = socket_op(e, v, vm->ctl->pid);
    return r > 0 && guest_write(vm, e->a[3], v, sizeof v) ? -EFAULT : r;
}

/* -EAGAIN: the entry stays in the ring until the worker's queue has room. File operations never mean that by it. */
static int64_t perform(struct machine *m, const struct afw_sqe *e, bool *later)
{
    int64_t r;
    *later = false;
    if ((e->op >= AFW_OP_OPEN && e->op <= AFW_OP_COPY) || e->op == AFW_OP_MAPFILE)
        return file_op(&m->vm, e);
    if (e->op >= AFW_OP_COMMIT && e->op <= AFW_OP_REMAP)
        return memory_op(&m->vm, e);
    switch (e->op) {
    case AFW_OP_NOP:
        return 0;
    case AFW_OP_FLOW_OPEN:
        r = flow_open(m, e);
        break;
    case AFW_OP_FLOW_KICK:
        r = flow_kick(m, e);
        break;
    case AFW_OP_SOCKET:
        return socket_question(&m->vm, e);
    case AFW_OP_READY:
        r = ready(m, e);
        break;
    case AFW_OP_RANDOM:
        return random_op(m, e);
    case AFW_OP_CPUID:
        return cpuid_op(&m->vm, e);
    default:
        return -ENOSYS;
    }
    *later = r == -EAGAIN;
    return r;
}

/* What calls.c asks of a VM */
struct asking {
    struct caller caller;                        /* first */
    struct machine *m;
    bool ended;
};

static int asking_read(struct caller *c, void *to, uint64_t gva, uint64_t n)
{
    return guest_read(&((struct asking *)c)->m->vm, to, gva, n);
}

static int asking_write(struct caller *c, uint64_t gva, const void *data, uint64_t n)
{
    return guest_write(&((struct asking *)c)->m->vm, gva, data, n);
}

static int64_t asking_perform(struct caller *c, const struct afw_sqe *e)
{
    struct asking *a = (struct asking *)c;
    bool later;
    int64_t r = a->m->vm.rules && !a->ended ? judge(a->m, e) : 0;
    if (r > 0 || a->ended) {                     /* nothing more is done for a VM that has ended */
        a->ended = true;
        return -EINTR;
    }
    return r ? r : perform(a->m, e, &later);
}

static uint64_t asking_now(struct caller *c)
{
    (void)c;
    return clock_mono();
}

static int64_t call(struct machine *m, const struct afw_sqe *e, bool *ended)
{
    struct asking a = {.caller = {m->vm.ctl, asking_read, asking_write, asking_perform, asking_now, m->vm.memory_limit}, .m = m};
    int64_t r = call_perform(&a.caller, e->op - AFW_OP_CALL, e->a);
    *ended = a.ended;
    return r;
}

enum ring_result ring_consume(struct machine *m)
{
    struct vm *vm = &m->vm;
    const struct afw_sqe *sq = (const struct afw_sqe *)(vm->mem + AFW_SQ);
    uint32_t tail = __atomic_load_n(&vm->ctl->sq_tail, __ATOMIC_ACQUIRE);
    if (tail - m->sq_head > AFW_SQ_LEN) {
        vm_end(m, AFW_EXIT_HOSTILE, 0, 0, "corrupt ring: sq_tail %u with sq_head %u", tail, m->sq_head);
        return RING_ENDED;
    }
    uint64_t began = __rdtsc();
    while (m->sq_head != tail) {
        struct afw_sqe e;
        memcpy(&e, (const void *)&sq[m->sq_head % AFW_SQ_LEN], sizeof e);
        bool reply = !(e.flags & AFW_SQE_NOREPLY), later;
        if (reply && answer_room(m)) {
            vm_end(m, AFW_EXIT_HOSTILE, 0, 0, "corrupt ring: no room for an answer (cq_head %u, cq_tail %u)", vm->ctl->cq_head, m->cq_tail);
            return RING_ENDED;
        }
        if (e.op == AFW_OP_EXIT) {
            vm->shm->ring_ops++;
            sight_op(m, e.op, 0, began);
            program_exit(m, &e);
            return RING_ENDED;
        }
        if (e.op == AFW_OP_READY && !reply) {
            vm_end(m, AFW_EXIT_HOSTILE, 0, 0, "corrupt ring: READY without an answer");
            return RING_ENDED;
        }
        bool ended = false;
        e.reserved = 0;                          /* filecalls.c's to say */
        int64_t res = vm->rules ? judge(m, &e) : 0;
        later = false;
        if (!res)
            res = e.op >= AFW_OP_CALL ? call(m, &e, &ended) : perform(m, &e, &later);
        else
            ended = res > 0;
        if (ended)
            return RING_ENDED;
        if (later)
            return RING_STALLED;
        vm->shm->ring_ops++;
        began = sight_op(m, e.op, res, began);
        __atomic_store_n(&vm->ctl->sq_head, ++m->sq_head, __ATOMIC_RELEASE);
        if (reply)
            answer(m, e.token, res);
        /* 64 entries may be 64 times 64 MiB to copy: others have their turn, and a command to end this is heard */
        if (runner_tick && m->sq_head != tail)
            return RING_STALLED;
    }
    return RING_DONE;
}
