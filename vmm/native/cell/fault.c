/* Faults of guest code: to the guest's own handler if it has one (an upcall into the shim), else to a report.
 *
 * They come three ways: an exception stub rings AFW_PORT_EXC; KVM_RUN says EFAULT where the host's page forbids the access; an
 * address without a memslot gives MMIO, or an emulation error if it was an instruction fetch.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include "calls.h"
#include "machine.h"

#define USER_FLAGS 0x240cd5ull                   /* CF PF AF ZF SF DF OF AC ID; no TF: the shim is not single-stepped */
#define FIXED_FLAGS 0x3202ull                    /* IOPL 3, IF, the bit that is always 1 */

struct fault {
    int signal;
    uint64_t code;                               /* si_code */
    bool known;                                  /* addr is */
    uint64_t addr;
    const char *what;
    struct kvm_regs at;                          /* registers of the faulting instruction */
};

void upcall(struct machine *m, uint32_t kind, uint32_t signal, uint64_t code, uint64_t addr, const struct kvm_regs *at)
{
    struct afw_ctl *ctl = m->vm.ctl;
    struct kvm_regs regs = *at;
    ctl->up_rip = regs.rip;
    ctl->up_rsp = regs.rsp;
    ctl->up_rflags = regs.rflags;
    ctl->up_kind = kind;
    ctl->up_signal = signal;
    ctl->up_code = code;
    ctl->up_addr = addr;
    regs.rip = cell.shim.entry_upcall;
    regs.rflags = (regs.rflags & USER_FLAGS) | FIXED_FLAGS;
    m->vm.run->s.regs.regs = regs;
    m->vm.run->kvm_dirty_regs = KVM_SYNC_X86_REGS;
}

static const char *signal_name(int signal)
{
    switch (signal) {
    case SIGSEGV: return "SIGSEGV";
    case SIGBUS: return "SIGBUS";
    case SIGFPE: return "SIGFPE";
    case SIGILL: return "SIGILL";
    case SIGTRAP: return "SIGTRAP";
    default: return "signal";
    }
}

static void report(struct machine *m, const struct fault *f)
{
    struct vm *vm = &m->vm;
    struct afw_vm_shm *s = vm->shm;
    const struct kvm_regs *r = &f->at;
    const uint64_t regs[18] = {r->rax, r->rbx, r->rcx, r->rdx, r->rsi, r->rdi, r->rbp, r->rsp, r->r8, r->r9,
                               r->r10, r->r11, r->r12, r->r13, r->r14, r->r15, r->rip, r->rflags};
    char place[340], address[40] = "";
    memcpy(s->fault_regs, regs, sizeof regs);
    s->fault_rip = r->rip;
    s->fault_addr = f->known ? f->addr : 0;
    s->fault_flags = f->known;
    s->fault_code_len = 0;
    for (uint32_t n = sizeof s->fault_code; n && !s->fault_code_len; n--) {
        if (!guest_read(vm, s->fault_code, r->rip, n))
            s->fault_code_len = n;
    }
    s->fault_module[0] = 0;
    if (memory_module(vm, r->rip, s->fault_module, &s->fault_map_start, &s->fault_map_offset) && s->fault_module[0])
        snprintf(place, sizeof place, "%s, file offset 0x%llx", s->fault_module,
                 (unsigned long long)(r->rip - s->fault_map_start + s->fault_map_offset));
    else
        snprintf(place, sizeof place, "%s", rip_in_shim(r->rip) ? "the shim" : "no file's code");
    if (f->known)
        snprintf(address, sizeof address, ", address 0x%llx", (unsigned long long)f->addr);
    vm_end(m, AFW_EXIT_SIGNAL, 0, f->signal, "%s (%s%s) at 0x%llx in %s", signal_name(f->signal), f->what, address, (unsigned long long)r->rip, place);
}

static void deliver(struct machine *m, const struct fault *f)
{
    uint64_t handlers = ((volatile struct afw_ctl *)m->vm.ctl)->fault_handlers;
    if (handlers >> (f->signal - 1) & 1 && !rip_in_shim(f->at.rip))
        upcall(m, AFW_UP_FAULT, (uint32_t)f->signal, f->code, f->known ? f->addr : 0, &f->at);
    else {
        trace_signal(m, f->signal, f->code, f->known ? f->addr : 0, 0);
        report(m, f);
    }
}

static const struct {
    uint8_t signal, code;
    bool error_code;
    const char *what;
} vectors[32] = {
    [0] = {SIGFPE, 1, false, "integer division error"}, [1] = {SIGTRAP, 2, false, "trace trap"},
    [2] = {SIGSEGV, 0x80, false, "NMI"}, [3] = {SIGTRAP, 0x80, false, "breakpoint"},
    [4] = {SIGSEGV, 0x80, false, "overflow trap"}, [5] = {SIGSEGV, 0x80, false, "bound error"},
    [6] = {SIGILL, 2, false, "invalid instruction"}, [7] = {SIGSEGV, 0x80, false, "no floating point"},
    [8] = {SIGSEGV, 0x80, true, "double fault"}, [9] = {SIGSEGV, 0x80, false, "coprocessor error"},
    [10] = {SIGSEGV, 0x80, true, "invalid TSS"}, [11] = {SIGBUS, 0x80, true, "segment not present"},
    [12] = {SIGBUS, 0x80, true, "stack fault"}, [13] = {SIGSEGV, 0x80, true, "general protection"},
    [14] = {SIGSEGV, 1, true, "page fault"}, [16] = {SIGFPE, 7, false, "floating point error"},
    [17] = {SIGBUS, 1, true, "alignment check"}, [19] = {SIGFPE, 7, false, "SIMD floating point error"},
    [21] = {SIGSEGV, 0x80, true, "control protection"}, [29] = {SIGSEGV, 0x80, true, "VMM communication"},
    [30] = {SIGSEGV, 0x80, true, "security exception"},
};

void fault_exception(struct machine *m)
{
    struct vm *vm = &m->vm;
    struct fault f = {.at = vm->run->s.regs.regs};
    struct kvm_sregs s;
    uint64_t frame[7], *at = frame + 1;
    int e = vm_flush(m);
    if (e || ioctl(vm->vcpu_fd, KVM_GET_SREGS, &s)) {
        vm_end(m, AFW_EXIT_INTERNAL, 0, 0, "registers of an exception cannot be read: %s", strerror(e ? -e : errno));
        return;
    }
    if (guest_read(vm, frame, f.at.rsp, sizeof frame)) {
        vm_end(m, AFW_EXIT_HOSTILE, 0, 0, "exception doorbell with a stack at 0x%llx", (unsigned long long)f.at.rsp);
        return;
    }
    uint64_t v = frame[0] & 0xff;
    f.signal = v < 32 && vectors[v].what ? vectors[v].signal : SIGSEGV;
    f.code = v < 32 && vectors[v].what ? vectors[v].code : 0x80;
    f.what = v < 32 && vectors[v].what ? vectors[v].what : "interrupt instruction";
    if (v < 32 && vectors[v].error_code)
        at++;
    if (v == 6 && !guest_range(vm, at[0], 1)) {  /* KVM's word for code it could not fetch: no memory is there */
        f.signal = SIGSEGV;
        f.code = 1;
        f.what = "address without memory";
        f.known = true;
        f.addr = at[0];
    } else if (v == 14) {
        f.known = true;
        f.addr = s.cr2;
    } else if (v == 0 || v == 6 || v == 16 || v == 19) {   /* as Linux: si_addr is the instruction */
        f.known = true;
        f.addr = at[0];
    }
    f.at.rip = at[0];
    f.at.rflags = at[2];
    f.at.rsp = at[3];
    deliver(m, &f);
    if (m->state != RUN_READY || (s.cs.selector & 3) == 3)
        return;
    s.cs = (struct kvm_segment){.limit = 0xffffffff, .selector = 0x33, .present = 1, .type = 11, .dpl = 3, .s = 1, .l = 1, .g = 1};
    s.ss = (struct kvm_segment){.limit = 0xffffffff, .selector = 0x2b, .present = 1, .type = 3, .dpl = 3, .db = 1, .s = 1, .g = 1};
    if (ioctl(vm->vcpu_fd, KVM_SET_SREGS, &s))
        vm_end(m, AFW_EXIT_INTERNAL, 0, 0, "KVM_SET_SREGS: %s", strerror(errno));
}

struct reader {
    struct caller caller;                        /* first */
    struct vm *vm;
};

static int reader_read(struct caller *c, void *to, uint64_t gva, uint64_t n)
{
    return guest_read(((struct reader *)c)->vm, to, gva, n);
}

/* The host's word is about its own memory; what the program has there its table of mappings says: SEGV_MAPERR, SEGV_ACCERR, or behind a
 * file's end BUS_ADRERR. */
static void by_mapping(struct machine *m, struct fault *f)
{
    struct reader r = {.caller = {.ctl = m->vm.ctl, .read = reader_read}, .vm = &m->vm};
    uint8_t byte;
    if (!f->known)
        return;
    f->code = memory_allows(&r.caller, f->addr, 1, 0) ? 2 : 1;
    if (memory_allows(&r.caller, f->addr, 1, PROT_READ) && mapping_at(m, f->addr) && guest_read(&m->vm, &byte, f->addr, 1)) {
        f->signal = SIGBUS;
        f->what = "address behind the end of a mapped file";
    }
}

void fault_access(struct machine *m, enum access how, uint64_t address)
{
    static const char *const what[] = {"I/O port", "address without memory", "access that the page's protection forbids"};
    struct fault f = {.signal = SIGSEGV, .code = how == ACCESS_IO ? 0x80 : how == ACCESS_NOWHERE ? 1 : 2, .known = how == ACCESS_NOWHERE, .addr = address,
                      .at = m->vm.run->s.regs.regs, .what = what[how]};
    if (how == ACCESS_REFUSED)
        f.known = operand_refused(m, &f.at, &f.addr);
    by_mapping(m, &f);
    int e = vm_flush(m);                         /* KVM's emulation ends here; the upcall's registers come after it */
    if (e && e != -EFAULT) {
        vm_end(m, AFW_EXIT_INTERNAL, 0, 0, "KVM_RUN: %s", strerror(-e));
        return;
    }
    deliver(m, &f);
}

void fault_other(struct machine *m)
{
    struct kvm_run *run = m->vm.run;
    struct kvm_regs *r = &run->s.regs.regs;
    unsigned long long rip = r->rip;
    switch (run->exit_reason) {
    case KVM_EXIT_INTERNAL_ERROR:
        if (run->internal.suberror == KVM_INTERNAL_ERROR_EMULATION) {
            /* A fetch from, or an access KVM cannot emulate to, an address without memory. */
            bool fetch = !guest_range(&m->vm, rip, 1);
            struct fault f = {.signal = SIGSEGV, .code = 1, .known = fetch, .addr = fetch ? rip : 0, .at = *r, .what = "address without memory"};
            deliver(m, &f);
            return;
        }
        vm_end(m, AFW_EXIT_INTERNAL, 0, 0, "KVM internal error %u at 0x%llx", run->internal.suberror, rip);
        return;
    case KVM_EXIT_SHUTDOWN:
        /* Only a guest that wrote over the system area gets here. */
        m->spoiled = true;
        vm_end(m, AFW_EXIT_SIGNAL, 0, SIGSEGV, "SIGSEGV: no fault can be delivered any more (triple fault) at 0x%llx", rip);
        return;
    case KVM_EXIT_FAIL_ENTRY:
        vm_end(m, AFW_EXIT_INTERNAL, 0, 0, "KVM cannot enter the guest: reason 0x%llx", (unsigned long long)run->fail_entry.hardware_entry_failure_reason);
        return;
    default:
        vm_end(m, AFW_EXIT_INTERNAL, 0, 0, "unexpected KVM exit %u at 0x%llx", run->exit_reason, rip);
    }
}
