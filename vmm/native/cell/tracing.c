/* strace: each system call of a VM, as it begins and as it ends, told to the worker with what its arguments point to.
 *
 * The shim knows nothing of it. In a VM that is traced, two instructions on its way into and out of every call are replaced by calls of a
 * few bytes at AFW_TRACE, which do what was there and ring AFW_PORT_ENTRY or AFW_PORT_LEAVE; and so is the call by which it takes a signal
 * that is to be delivered (AFW_PORT_SIGNAL). The guest stands still meanwhile, so
 * what its registers point to is what the call sees. Which bytes are to be copied for which call is the worker's table (AFW_REC_TRACE).
 * All that is read is the guest's word, and goes on as bytes: here nothing depends on it but how much is copied, which has bounds.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include "asm.h"
#include "machine.h"
#if __has_include("shim_places.h")
#include "shim_places.h"             /* where the build put what is patched here: hatch_build.py. A cell of another shim has none */
#endif

#define CALLS 512                                /* open at once that are told from each other; of more it is not said who answered them */
#define STACK 16384                              /* a thread's shim stack is smaller; its frame is at the stack's top */
#define RECORD (32 << 10)
#define OLD_MASK 296                             /* uc_sigmask, from where RSP is when a handler has returned */
#define VECTORS 16                               /* pieces of one readv() or sendmsg() that are looked at */
#define PATIENCE 2000                            /* ms that a runner waits for a worker that does not read */

struct frame {                                   /* shim/core.h */
    uint64_t r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, number, rip, cs, rflags, rsp;
};
struct tracing {
    struct call {
        uint64_t frame;
        bool host;
    } call[CALLS];
    uint32_t calls, lost;
};

static struct {
    int fd;
    const struct afw_trace_copy *copy;
    uint32_t copies;
} plan = {.fd = -1};

int trace_configure(const uint8_t *p, uint32_t size)
{
    if (size < 8 || (size - 8) % sizeof *plan.copy)
        return -EINVAL;
    uint32_t fd;
    memcpy(&fd, p, sizeof fd);
    struct afw_trace_copy *copies = malloc(size);
    if (!copies)
        return -ENOMEM;
    memcpy(copies, p + 8, size - 8);
    plan.copies = (size - 8) / sizeof *copies;
    for (uint32_t i = 0; i < plan.copies; i++)
        if (copies[i].arg > 5 || copies[i].size > 5 || !copies[i].unit)
            return -EINVAL;
    plan.copy = copies;
    signal(SIGPIPE, SIG_IGN);
    plan.fd = (int)fd;
    return 0;
}

#ifdef SHIM_TRACED_ENTRY
static void call_at(uint8_t *code, uint64_t at, uint64_t target, size_t room)
{
    int32_t far = (int32_t)(target - (at + 5));
    memset(code, 0x90, room);                    /* nop */
    code[0] = 0xe8;
    memcpy(code + 1, &far, sizeof far);
}

#define ENTRY_ROOM 11                            /* movl $0, ring_used */
#define LEAVE_ROOM 5                             /* mov %rax, F_RAX(%rsp) */
#define LEAVE_CODE 32
#define SIGNAL_CODE 48
#define CALL_ROOM 5                              /* call take_any */

/* Where signals_deliver() calls take_any(); 0: nowhere */
static uint64_t taken_at(void)
{
    const uint8_t *code = shim_blob + (SHIM_SIGNALS_DELIVER - AFW_SHIM);
    for (uint32_t i = 0; i < 256 && code + i + CALL_ROOM <= shim_blob_end; i++) {
        int32_t far;
        memcpy(&far, code + i + 1, sizeof far);
        if (code[i] == 0xe8 && SHIM_SIGNALS_DELIVER + i + CALL_ROOM + (int64_t)far == SHIM_TAKE_ANY)
            return SHIM_SIGNALS_DELIVER + i;
    }
    return 0;
}

static int patch(struct vm *vm, bool on)
{
    const uint64_t taken = taken_at();
    const uint8_t *entry = shim_blob + (SHIM_TRACED_ENTRY - AFW_SHIM), *leave = shim_blob + (SHIM_TRACED_EXIT - AFW_SHIM);
    uint8_t code[96] = {0}, there[ENTRY_ROOM], back[LEAVE_ROOM], take[CALL_ROOM];
    if (!taken || entry[0] != 0xc7 || leave[0] != 0x48 || leave[4] != F_RAX)
        return -ENOTSUP;
    memcpy(there, entry, sizeof there);
    memcpy(back, leave, sizeof back);
    call_at(take, taken, on ? AFW_TRACE + SIGNAL_CODE : SHIM_TAKE_ANY, sizeof take);
    if (on) {
        const uint8_t ring_entry[] = {0xe6, AFW_PORT_ENTRY, 0xc3}, ring_leave[] = {0xe6, AFW_PORT_LEAVE, 0xc3};   /* out; ret */
        memcpy(code, entry, ENTRY_ROOM);
        memcpy(code + ENTRY_ROOM, ring_entry, sizeof ring_entry);
        memcpy(code + LEAVE_CODE, leave, LEAVE_ROOM);
        code[LEAVE_CODE + 4] += 8;               /* the return address lies above */
        memcpy(code + LEAVE_CODE + LEAVE_ROOM, ring_leave, sizeof ring_leave);
        const uint8_t ring_signal[] = {0x56, 0xe8, 0, 0, 0, 0, 0x5e, 0x85, 0xc0, 0x74, 2, 0xe6, AFW_PORT_SIGNAL, 0xc3};
        memcpy(code + SIGNAL_CODE, ring_signal, sizeof ring_signal);   /* push %rsi; call; pop %rsi; test %eax, %eax; jz 1f; out; 1: ret */
        call_at(code + SIGNAL_CODE + 1, AFW_TRACE + SIGNAL_CODE + 1, SHIM_TAKE_ANY, CALL_ROOM);
        call_at(there, SHIM_TRACED_ENTRY, AFW_TRACE, sizeof there);
        call_at(back, SHIM_TRACED_EXIT, AFW_TRACE + LEAVE_CODE, sizeof back);
        if (guest_write(vm, AFW_TRACE, code, sizeof code))
            return -EFAULT;
    }
    if (!on) {                                   /* most are as they are: no page is made private for it */
        uint8_t is[LEAVE_ROOM];
        if (!guest_read(vm, is, SHIM_TRACED_EXIT, sizeof is) && !memcmp(is, back, sizeof is))
            return 0;
    }
    const uint8_t ports = on ? 0x80 : 0xf0;      /* of the TSS's bitmap: boot_tables() */
    return guest_write(vm, AFW_TSS + 0x68 + AFW_PORT_KICK / 8, &ports, 1) || guest_write(vm, SHIM_TRACED_ENTRY, there, sizeof there) ||
                   guest_write(vm, SHIM_TRACED_EXIT, back, sizeof back) || guest_write(vm, taken, take, sizeof take)
               ? -EFAULT : 0;
}
#endif

int trace_begin(struct machine *m)
{
    if (plan.fd < 0) {
#ifdef SHIM_TRACED_ENTRY
        if (m->forked)                           /* perhaps of one that was traced */
            return patch(&m->vm, false);
#endif
        return 0;
    }
#ifdef SHIM_TRACED_ENTRY
    m->tracing = calloc(1, sizeof *m->tracing);
    return m->tracing ? patch(&m->vm, true) : -ENOMEM;
#else
    return -ENOTSUP;
#endif
}

void trace_end(struct machine *m)
{
    free(m->tracing);
    m->tracing = 0;
}

/* ---- a record ---- */

static __thread union {
    struct afw_trace head;
    uint8_t bytes[RECORD];
} record;
static __thread uint32_t used;

static uint64_t argument(uint32_t i)
{
    return i < 6 ? record.head.arg[i] : 0;
}

/* Bytes at a guest address, as many of `n` as can be read */
static void chunk(struct vm *vm, uint32_t place, uint64_t gva, uint64_t n, bool text)
{
    struct afw_trace_chunk c = {.place = (uint16_t)place};
    if (used + sizeof c > RECORD)
        return;
    uint8_t *out = record.bytes + used + sizeof c;
    uint64_t room = RECORD - used - sizeof c;
    n = n < room ? n : room;
    while (c.size < n) {
        uint64_t part = PAGE - (gva + c.size) % PAGE;
        part = part < n - c.size ? part : n - c.size;
        if (guest_read(vm, out + c.size, gva + c.size, part)) {
            c.error = EFAULT;
            break;
        }
        uint8_t *end = text ? memchr(out + c.size, 0, part) : 0;
        if (end) {
            c.size = (uint32_t)(end - out) + 1;
            break;
        }
        c.size += (uint32_t)part;
    }
    memcpy(record.bytes + used, &c, sizeof c);
    used += (uint32_t)sizeof c + c.size;
    record.head.chunks++;
}

/* The array of struct iovec, then what of it is within `left` bytes */
static void vector(struct vm *vm, uint32_t place, uint64_t gva, uint64_t count, uint64_t left, uint64_t limit)
{
    struct iovec v[VECTORS];
    count = count < VECTORS ? count : VECTORS;
    chunk(vm, place, gva, count * sizeof *v, false);
    if (!count || guest_read(vm, v, gva, count * sizeof *v))
        return;
    for (uint64_t i = 0; i < count && left; i++) {
        uint64_t n = v[i].iov_len < left ? v[i].iov_len : left;
        chunk(vm, place + 1 + (uint32_t)i, (uintptr_t)v[i].iov_base, n < limit ? n : limit, false);
        left -= n;
    }
}

static void copy(struct vm *vm, const struct afw_trace_copy *c)
{
    uint64_t at = argument(c->arg), size = argument(c->size), n;
    int64_t result = (int64_t)record.head.result;
    uint32_t length;
    if (!at)
        return;
    switch (c->kind) {
    case AFW_COPY_TEXT:
        chunk(vm, c->arg, at, c->limit, true);
        return;
    case AFW_COPY_BYTES:
        chunk(vm, c->arg, at, c->limit, false);
        return;
    case AFW_COPY_COUNTED:
    case AFW_COPY_RESULT:
        n = c->kind == AFW_COPY_RESULT ? (uint64_t)result : size;
        if (c->kind == AFW_COPY_RESULT && result <= 0)
            n = 0;
        chunk(vm, c->arg, at, n < c->limit / c->unit ? n * c->unit : c->limit, false);
        return;
    case AFW_COPY_LENGTH:
        if (!guest_read(vm, &length, size, sizeof length))
            chunk(vm, c->arg, at, length < c->limit ? length : c->limit, false);
        return;
    case AFW_COPY_VECTOR:
        vector(vm, c->arg * AFW_TRACE_PIECES, at, size, record.head.kind == AFW_TRACE_LEAVE ? (uint64_t)result : ~0ull, c->limit);
        return;
    case AFW_COPY_MESSAGE: {
        struct {                                 /* struct msghdr */
            uint64_t name;
            uint32_t name_size, pad;
            uint64_t iov, iov_count, control, control_size, flags;
        } h;
        chunk(vm, c->arg, at, sizeof h, false);
        if (guest_read(vm, &h, at, sizeof h))
            return;
        if (h.name)
            chunk(vm, AFW_TRACE_NAME, h.name, h.name_size < 128 ? h.name_size : 128, false);
        vector(vm, AFW_TRACE_PIECES, h.iov, h.iov_count, record.head.kind == AFW_TRACE_LEAVE ? (uint64_t)result : ~0ull, c->limit);
        return;
    }
    default:
        return;
    }
}

/* A worker that does not read is waited for, but not for ever: its commands wait meanwhile. */
static void send_record(struct machine *m)
{
    record.head.lost = m->tracing->lost;
    struct pollfd p = {.fd = plan.fd, .events = POLLOUT};
    for (int waited = 0;; waited += 10) {
        if (write(plan.fd, record.bytes, used) >= 0) {
            m->tracing->lost = 0;
            return;
        }
        if ((errno != EAGAIN && errno != EINTR) || waited >= PATIENCE)
            break;
        poll(&p, 1, 10);
    }
    m->tracing->lost++;
}

static void begin_record(struct machine *m, uint32_t kind, uint64_t number, uint64_t result)
{
    used = sizeof record.head;
    record.head = (struct afw_trace){
        .vm = m->vm.id, .kind = kind, .number = number, .result = result, .ns = clock_mono(), .cpu_ns = m->cpu_ns};
#ifdef SHIM_CURRENT
    uint64_t current;
    if (!guest_read(&m->vm, &current, SHIM_CURRENT, sizeof current))
        guest_read(&m->vm, &record.head.tid, current + THREAD_TID, sizeof record.head.tid);
#endif
}

static struct call *call_of(struct tracing *t, uint64_t frame)
{
    for (uint32_t i = 0; i < t->calls; i++)
        if (t->call[i].frame == frame)
            return &t->call[i];
    return 0;
}

void trace_call(struct machine *m, bool leave)
{
    struct vm *vm = &m->vm;
    struct tracing *t = m->tracing;
    uint64_t at = vm->run->s.regs.regs.rsp + 8;
    struct frame f;
    if (guest_read(vm, &f, at, sizeof f))
        return;
    struct call *c = call_of(t, at);
    begin_record(m, leave ? AFW_TRACE_LEAVE : AFW_TRACE_ENTRY, f.number, leave ? f.rax : 0);
    record.head.host = leave && c && c->host;
    const uint64_t arguments[6] = {f.rdi, f.rsi, f.rdx, f.r10, f.r8, f.r9};
    memcpy(record.head.arg, arguments, sizeof arguments);
    if (!leave && f.number == SYS_rt_sigreturn)
        chunk(vm, 0, f.rsp + OLD_MASK, sizeof(uint64_t), false);
    if (leave && c) {
        *c = t->call[--t->calls];
    } else if (!leave) {
        if (!c && t->calls < CALLS)
            c = &t->call[t->calls++];
        if (c)
            *c = (struct call){.frame = at};
    }
    bool failed = leave && f.rax > -4096ull;
    for (uint32_t i = 0; i < plan.copies; i++) {
        const struct afw_trace_copy *x = &plan.copy[i];
        if (x->number == f.number && x->leave == leave && !failed)
            copy(vm, x);
    }
    send_record(m);
}

/* A signal whose handler did not run yet, or that ends the VM. Of those that are sent and ignored nothing is known here. */
void trace_signal(struct machine *m, int signal, uint64_t code, uint64_t a, uint64_t b)
{
    if (!m->tracing)
        return;
    begin_record(m, AFW_TRACE_SIGNAL, (uint32_t)signal, code);
    record.head.arg[0] = a;
    record.head.arg[1] = b;
    send_record(m);
}

void trace_delivery(struct machine *m)
{
    struct {                                     /* shim/core.h */
        uint64_t next;
        int32_t sig, code;
        uint64_t a, b;
    } info;
    const struct kvm_regs *r = &m->vm.run->s.regs.regs;
    if (!guest_read(&m->vm, &info, r->rsi, sizeof info))
        trace_signal(m, (int)r->rax, (uint64_t)(int64_t)info.code, info.a, info.b);
}

/* A ring is rung: on whose stack? */
void trace_ring(struct machine *m)
{
    struct tracing *t = m->tracing;
    uint64_t rsp = m->vm.run->s.regs.regs.rsp;
    struct call *best = 0;
    for (uint32_t i = 0; i < t->calls; i++) {
        struct call *c = &t->call[i];
        if (c->frame >= rsp && c->frame - rsp < STACK && (!best || c->frame < best->frame))
            best = c;
    }
    if (best)
        best->host = true;
}
