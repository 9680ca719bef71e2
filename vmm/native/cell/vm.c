/* A virtual machine: made, entered, ended. Touched by its runner's thread only. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "machine.h"
#include "rules.h"

#define CLOCK_AGE 1000000000ull                  /* ns; NTP slews by at most 500 ppm: half a millisecond */
#define EXIT_ON_EMULATION_FAILURE 204            /* KVM_CAP_ */

bool rip_in_shim(uint64_t rip)
{
    return (rip >= cell.shim.text_start && rip < cell.shim.text_end) || (rip >= AFW_SITES && rip < AFW_SITES_END) ||
           (rip >= AFW_EXC_STUBS && rip < AFW_EXC_STACK_TOP) || (rip >= AFW_TRACE && rip < AFW_TRACE + PAGE);
}

/* To make a VM, KVM takes a lock of each mapping of this process, and a restored VM is a hundred mappings: made one after the other,
 * the 64th would cost a millisecond more than the first. */
void vm_prepare(struct runner *r)
{
    for (uint32_t i = r->index; i < cell.vms; i += cell.runners)
        r->shell[i] = ioctl(cell.kvm_fd, KVM_CREATE_VM, 0) + 1;
}

int vm_open(struct machine *m)
{
    struct vm *vm = &m->vm;
    int *shell = &vm->runner->shell[vm->id];
    vm->vm_fd = vm->vcpu_fd = -1;
    vm->vm_fd = *shell > 0 ? *shell - 1 : ioctl(cell.kvm_fd, KVM_CREATE_VM, 0);
    *shell = 0;
    if (vm->vm_fd < 0)
        return -errno;
    memory_reserve(m);
    /* Else KVM answers an access that it cannot emulate (AVX to an address without memory) with #UD. Linux 5.15. */
    struct kvm_enable_cap emulation = {.cap = EXIT_ON_EMULATION_FAILURE, .args = {1}};
    ioctl(vm->vm_fd, KVM_ENABLE_CAP, &emulation);
    struct kvm_enable_cap triple_fault = {.cap = KVM_CAP_X86_TRIPLE_FAULT_EVENT, .args = {1}};   /* one that is pending is seen, and taken back */
    if (cell.config.recycle)
        ioctl(vm->vm_fd, KVM_ENABLE_CAP, &triple_fault);
    void *window = mmap(0, AFW_SIGHT_AT + AFW_SIGHT_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, cell.windows_fd, (off_t)vm->id * AFW_WINDOW_STRIDE);
    if (window == MAP_FAILED)
        return -errno;
    vm->window = window;
    vm->shared_sight = (struct afw_sight *)((uint8_t *)window + AFW_SIGHT_AT);
    struct kvm_userspace_memory_region slot = {
        .slot = SLOT_WINDOW, .guest_phys_addr = AFW_WINDOW, .memory_size = AFW_WINDOW_SIZE, .userspace_addr = (uintptr_t)window};
    if (ioctl(vm->vm_fd, KVM_SET_USER_MEMORY_REGION, &slot))
        return -errno;
    vm->vcpu_fd = ioctl(vm->vm_fd, KVM_CREATE_VCPU, 0);
    if (vm->vcpu_fd < 0)
        return -errno;
    /* No paravirtual feature is in its cpuid: then none is there (clock, steal time, asynchronous faults, hypercalls). Linux 5.10. */
    struct kvm_enable_cap paravirtual = {.cap = KVM_CAP_ENFORCE_PV_FEATURE_CPUID, .args = {1}};
    ioctl(vm->vcpu_fd, KVM_ENABLE_CAP, &paravirtual);
    void *run = mmap(0, cell.run_size, PROT_READ | PROT_WRITE, MAP_SHARED, vm->vcpu_fd, 0);
    if (run == MAP_FAILED)
        return -errno;
    vm->run = run;
    vm->run->kvm_valid_regs = KVM_SYNC_X86_REGS;
    vm->vfs = vfs_new(vm);
    vm->sites = sites_new(vm);
    return vm->vfs && vm->sites ? 0 : -ENOMEM;
}

/* What belongs to the program rather than to the VM */
void vm_forget(struct machine *m)
{
    struct vm *vm = &m->vm;
    sites_free(vm->sites);
    vfs_free(vm->vfs);
    rules_free(vm->rules);
    sight_free(vm);
    free(vm->note);
    save_drop(m);
    trace_end(m);
    vm->note = 0;
    vm->sites = 0;
    vm->vfs = 0;
    vm->rules = 0;
    m->maps = 0;                                 /* their files are gone with vfs */
    m->rules_owed = m->stands_owed = m->sight_owed = false;
}

void vm_close(struct machine *m)
{
    struct vm *vm = &m->vm;
    vm_forget(m);
    /* KVM first, then the memory: unmapping under a live VM would walk its MMU for every range. */
    if (vm->run)
        munmap(vm->run, cell.run_size);
    if (vm->vcpu_fd >= 0)
        close(vm->vcpu_fd);
    if (vm->vm_fd >= 0)
        close(vm->vm_fd);
    if (vm->window)
        munmap(vm->window, AFW_SIGHT_AT + AFW_SIGHT_SIZE);
    vm->run = 0;
    vm->window = 0;
    vm->shared_sight = 0;
    vm->vm_fd = vm->vcpu_fd = -1;
    memory_release(m);
    m->state = RUN_FREE;
}

/* The guest's own counters: shown, never trusted. */
void vm_counters(struct machine *m)
{
    struct afw_vm_shm *s = m->vm.shm;
    const volatile struct afw_ctl *ctl = m->vm.ctl;
    s->n_local = ctl->n_local;
    s->n_ring = ctl->n_ring;
    s->n_backstop = ctl->n_backstop;
    s->n_enosys = ctl->n_enosys;
    s->n_switch = ctl->n_switch;
    s->last_enosys = ctl->last_enosys;
}

static void say(struct afw_vm_shm *s, const char *text, va_list args)
{
    vsnprintf(s->text, sizeof s->text, text, args);
}

static void send_last(struct machine *m, uint32_t type)
{
    m->owed = (struct afw_event){.type = type, .vm = m->vm.id};
    m->exit_owed = runner_event(m->vm.runner, &m->owed) != 0;
}

void vm_end(struct machine *m, uint32_t kind, int code, int signal, const char *text, ...)
{
    struct afw_vm_shm *s = m->vm.shm;
    va_list args;
    va_start(args, text);
    say(s, text, args);
    va_end(args);
    share_charge(m->vm.runner, m);
    if (m->vm.ctl)
        vm_counters(m);
    sight_calls(m);
    save_drop(m);
    m->stands = STANDS_ELSEWHERE;
    s->exit_code = code;
    s->exit_signal = signal;
    s->exit_kind = kind;
    __atomic_store_n(&s->state, AFW_VM_DEAD, __ATOMIC_RELEASE);
    if (m->restored)
        hot_record(m);
    runner_notify(m->vm.runner);                 /* of what it said last: somebody waits for that, and not for what follows */
    /* Before the event: the worker may use the window again as soon as it sees it. */
    if (!recycle_keep(m))
        vm_close(m);
    send_last(m, AFW_EV_EXIT);
}

void vm_fail(struct machine *m, const char *text, ...)
{
    struct afw_vm_shm *s = m->vm.shm;
    va_list args;
    va_start(args, text);
    say(s, text, args);
    va_end(args);
    s->exit_kind = AFW_EXIT_INTERNAL;
    __atomic_store_n(&s->state, AFW_VM_DEAD, __ATOMIC_RELEASE);
    vm_close(m);
    send_last(m, AFW_EV_ERROR);
}

#define PIECES 64                                /* more exits than one instruction has: eight bytes each */

/* KVM may hold the second half of an I/O exit back until the next entry; on svm RIP still stands on the `out` before that. And an access
 * to where no memory is comes in pieces, an exit each: what is left of them would be done, RIP and all, at the next entry. */
int vm_flush(struct machine *m)
{
    struct kvm_run *run = m->vm.run;
    int r = 0;
    run->immediate_exit = 1;
    for (int i = 0; i < PIECES && !r; i++)
        r = ioctl(m->vm.vcpu_fd, KVM_RUN, 0);
    int e = r ? errno : EIO;
    run->immediate_exit = 0;
    m->io_pending = false;
    return e == EINTR ? 0 : -e;
}

/* What lies between two entries: has the shim to be told something? Only while the guest stands outside the shim may the cell
 * redirect it; inside, ctl.resched makes the shim look before it leaves. */
static void before_entry(struct machine *m)
{
    if (!m->slice_over)
        return;
    m->slice_over = false;
    volatile struct afw_ctl *ctl = m->vm.ctl;
    if (ctl->alone == 1 && !ctl->wake && !ctl->sigpending)
        return;
    struct kvm_regs *r = &m->vm.run->s.regs.regs;
    struct kvm_vcpu_events events;
    if (m->io_pending || rip_in_shim(r->rip))
        ctl->resched = 1;
    else if (ioctl(m->vm.vcpu_fd, KVM_GET_VCPU_EVENTS, &events) || events.exception.injected || events.exception.pending)
        m->slice_over = true;                    /* the signal came while KVM delivers an exception: it would arrive with our RIP */
    else
        upcall(m, AFW_UP_RESCHED, 0, 0, 0, r);
}

#define CODE_PATIENCE 5000000000ull              /* ns */
enum after { AGAIN, LEAVE };

/* A template does not run a file's code before its sites are known and rewritten: where KVM cannot hide CPU features, the first
 * instructions of ld.so, which choose by them for good, would see the CPU's own. Not for ever: without an answer it runs as it is. */
static bool code_awaited(struct machine *m, bool wait)
{
    if (m->restored || m->sites_given_up || !sites_files_busy(&m->vm))
        return false;
    m->state = RUN_STALLED;
    m->deadline = wait;
    m->sites_wait = true;
    m->deadline_sites = clock_mono() + CODE_PATIENCE;
    return true;
}

static enum after serve_ring(struct machine *m, bool wait)
{
    struct vm *vm = &m->vm;
    switch (ring_consume(m)) {
    case RING_ENDED:
        return LEAVE;
    case RING_STALLED:
        m->state = RUN_STALLED;                  /* the guest counts on an answer: it is not entered before there is one */
        m->deadline = wait;                      /* remember the doorbell */
        return LEAVE;
    case RING_DONE:
        break;
    }
    if (code_awaited(m, wait))
        return LEAVE;
    if (!wait)
        return AGAIN;
    vm_counters(m);
    clock_refresh(m);
    volatile struct afw_ctl *ctl = vm->ctl;
    uint64_t deadline = ctl->deadline;
    if (ring_has_answers(m) || ctl->sigpending || ctl->wake || deadline <= clock_mono())
        return AGAIN;
    m->deadline = deadline;
    ahead_drop(m->vm.vfs);
    m->state = RUN_PARKED;
    vm->shm->state = AFW_VM_PARKED;
    hot_parked(m);
    return LEAVE;
}

static enum after serve_exit(struct machine *m)
{
    struct vm *vm = &m->vm;
    struct kvm_run *run = vm->run;
    struct afw_vm_shm *s = vm->shm;
    switch (run->exit_reason) {
    case KVM_EXIT_IO:
        m->io_pending = true;
        uint16_t port = run->io.direction == KVM_EXIT_IO_OUT ? run->io.port : 0;
        if (port == AFW_PORT_KICK || port == AFW_PORT_WAIT) {
            m->stands = STANDS_DOORBELL;
            bool wait = port == AFW_PORT_WAIT;
            *(wait ? &s->exits_wait : &s->exits_kick) += 1;
            if (m->tracing)
                trace_ring(m);
            sites_backstop(vm);
            return serve_ring(m, wait);
        }
        if (port == AFW_PORT_EXC) {
            s->exits_fault++;
            fault_exception(m);
            return m->state == RUN_READY ? AGAIN : LEAVE;
        }
        if (port == AFW_PORT_PANIC) {
            volatile struct afw_ctl *ctl = vm->ctl;
            vm_end(m, AFW_EXIT_INTERNAL, 0, 0, "shim panic %u at line %u", ctl->panic_code, ctl->panic_line);
            return LEAVE;
        }
        if ((port == AFW_PORT_ENTRY || port == AFW_PORT_LEAVE) && m->tracing) {
            trace_call(m, port == AFW_PORT_LEAVE);
            return AGAIN;
        }
        if (port == AFW_PORT_SIGNAL && m->tracing) {
            trace_delivery(m);
            return AGAIN;
        }
        /* Another port, or `in`: IOPL 3 lets a program try. Linux would have sent it SIGSEGV. */
        fault_access(m, ACCESS_IO, 0);
        return m->state == RUN_READY ? AGAIN : LEAVE;
    case KVM_EXIT_MMIO:                          /* an address without memory */
        s->exits_fault++;
        if (islands_written(m))
            return AGAIN;
        fault_access(m, ACCESS_NOWHERE, run->mmio.phys_addr);
        return m->state == RUN_READY ? AGAIN : LEAVE;
    default:
        break;
    }
    fault_other(m);
    return m->state == RUN_READY ? AGAIN : LEAVE;
}

/* After a full event queue: go on where the ring stopped. */
static bool unstall(struct machine *m)
{
    bool wait = m->deadline;
    m->state = RUN_READY;
    return serve_ring(m, wait) == AGAIN;
}

/* It has used all the CPU time that it may in its life: ended */
static bool used_up(struct machine *m)
{
    if (m->cpu_ns < m->cpu_end)
        return false;
    vm_end(m, AFW_EXIT_KILLED, 0, 0, AFW_TEXT_CPU "it used the %.3f s that it may", (double)m->cpu_allowed / 1e9);
    return true;
}

static void turn(struct machine *m)
{
    struct vm *vm = &m->vm;
    struct kvm_run *run = vm->run;
    struct afw_vm_shm *s = vm->shm;
    if (m->state == RUN_STALLED ? !unstall(m) : code_awaited(m, false))
        return;
    if (s->state == AFW_VM_PARKED && clock_mono() - m->clock_mono_base > CLOCK_AGE)
        clock_refresh(m);                        /* it may have waited for hours */
    hot_job(m, false);
    s->state = AFW_VM_RUNNING;
    for (bool again = false;; again = true) {
        if (again) {
            share_charge(vm->runner, m);
            if (used_up(m))
                return;
        }
        before_entry(m);
        run->immediate_exit = 0;
        runner_entered = run;
        atomic_signal_fence(memory_order_seq_cst);
        int r = -1, e = EINTR;
        if (!runner_tick) {                      /* a tick from here on finds runner_entered and makes KVM_RUN return at once */
            if (m->command_ns) {
                s->restore_ns = clock_mono() - m->command_ns;
                m->command_ns = 0;
            }
            vm->ctl->cpu_ns = m->cpu_ns;
            vm->ctl->cpu_since = clock_guest(m);
            tick_by(vm->runner, ((volatile struct afw_ctl *)vm->ctl)->timer);
            vm->ctl->tick = vm->runner->tick;
            r = ioctl(vm->vcpu_fd, KVM_RUN, 0);
            e = errno;
            m->io_pending = false;
            m->stands = STANDS_ELSEWHERE;
            s->exits++;
        }
        runner_entered = 0;
        if (r < 0) {
            if (e == EINTR) {
                s->exits_signal++;
                m->stands = rip_in_shim(run->s.regs.regs.rip) ? STANDS_ELSEWHERE : STANDS_USER;
                sites_backstop(vm);
                vm_counters(m);
                /* A program that never waits gets its clock here; the shim may be in the middle of reading it. */
                if (!rip_in_shim(run->s.regs.regs.rip) && clock_mono() - m->clock_mono_base > CLOCK_AGE)
                    clock_refresh(m);
                m->slice_over = true;
                return;
            }
            if (e == EFAULT) {
                s->exits_fault++;
                if (!islands_refused(m))
                    fault_access(m, ACCESS_REFUSED, 0);
                if (m->state != RUN_READY)
                    return;
                continue;
            }
            if (e == EAGAIN)
                continue;
            vm_end(m, e == ENOMEM ? AFW_EXIT_MEMORY : AFW_EXIT_INTERNAL, 0, 0, "KVM_RUN: %s", strerror(e));
            return;
        }
        if (serve_exit(m) == LEAVE)
            return;
        if (runner_wanted(vm->runner)) {
            m->slice_over |= runner_tick;
            return;
        }
    }
}

void vm_run(struct machine *m)
{
    turn(m);
    share_charge(m->vm.runner, m);
    if (vm_lives(m))
        used_up(m);
}
