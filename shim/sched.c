/* Threads on the VM's one vCPU: run queue, sleepers, idling, birth and death. */
#include "core.h"

struct thread main_thread;
struct thread *current = &main_thread;

static u8 main_xsave[8192] __attribute__((aligned(64)));
static struct thread *run_first;    /* by turns: who had least of the vCPU comes first */
static u64 least;                    /* turns of who ran last: nobody who begins to want it has much less */
static struct thread *sleepers;      /* by deadline */
static struct thread *reap;          /* ended, its memory not yet freed: its stack was in use */
static u32 n_threads = 1;
static u32 next_tid, generation;
static u64 cpu_at_switch;

#define MAX_THREADS AFW_THREADS_MAX
#define KSTACK 5120                  /* at least */

static u64 next_deadline(void)
{
    u64 deadline = itimer_next();
    return sleepers && sleepers->deadline < deadline ? sleepers->deadline : deadline;
}

/* Does anything besides the current thread want the vCPU, now or at some time? Who has slept comes before those that compute: if the
 * host's tick would be late for that, it hears of it. */
static void note_alone(void)
{
    CTL->timer = next_deadline();
    CTL->alone = !run_first && !sleepers && !itimers_on() && CTL->sq_tail == CTL->sq_head;
    if (CTL->timer < CTL->tick)
        ring_kick();
}

#define LEAD 4000000                 /* ns of lead for who has slept: it comes before those that compute, but not for long */
static void enqueue(struct thread *t)
{
    struct thread **p = &run_first;
    if ((s64)(least - LEAD - t->turns) > 0)
        t->turns = least - LEAD;
    while (*p && (s64)(t->turns - (*p)->turns) >= 0)
        p = &(*p)->run_next;
    t->state = READY;
    t->run_next = *p;
    *p = t;
    CTL->alone = 0;
}

/* What the current thread has used since the last call is its own. */
static void account(void)
{
    u64 cpu = cpu_time(), used = cpu - cpu_at_switch;
    current->cpu_ns += used;
    current->turns += used;
    cpu_at_switch = cpu;
}

static void sleep_add(struct thread *t, u64 deadline)
{
    struct thread **p = &sleepers;
    while (*p && (*p)->deadline <= deadline)
        p = &(*p)->sleep_next;
    t->deadline = deadline;
    t->sleep_next = *p;
    t->sleep_prev = p;
    if (*p)
        (*p)->sleep_prev = &t->sleep_next;
    *p = t;
}

static void sleep_del(struct thread *t)
{
    if (!t->sleep_prev)
        return;
    *t->sleep_prev = t->sleep_next;
    if (t->sleep_next)
        t->sleep_next->sleep_prev = t->sleep_prev;
    t->sleep_prev = 0;
}

static void unblock(struct thread *t, int result)
{
    sleep_del(t);
    t->result = result;
    enqueue(t);
}

void wake(struct thread *t)
{
    if (t->state == BLOCKED)
        unblock(t, 0);
    else
        t->woken = 1;
}

void interrupt(struct thread *t)
{
    if (t->state == BLOCKED)
        unblock(t, -EINTR);
}

static void expire(void)
{
    while (sleepers && sleepers->deadline <= now_mono())
        unblock(sleepers, -ETIMEDOUT);
    itimers_expire();
}

u32 xstate_mask, xstate_size;
#define XSTATE_KNOWN 0xe7            /* x87, SSE, AVX, AVX-512 */

static u32 xgetbv(void)
{
    u32 a, d;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return a & XSTATE_KNOWN;
}

/* What the CPU really has: where KVM cannot hide a feature (pvm) programs may use it, whatever ctl.xcr0 and cpuid tell them. Sizes are
 * those of XSAVE's standard form: AVX ends at 832; AVX-512 at 2,688 on Intel's CPUs, at 2,432 on AMD's. */
static void xstate_init(void)
{
    xstate_mask = xgetbv();
    xstate_size = xstate_mask & 0xe0 ? 2688 : 832;
}

static void restored(void)
{
    u32 pid = CTL->pid;
    generation = CTL->generation;
    if (next_tid < pid)
        next_tid = pid;
    cpu_time_restart();
    cpu_at_switch = cpu_time();
    if (CTL->forked)                 /* its threads keep their ids: mutexes that they hold know them by those */
        signal_forked();
    else {
        /* As fork() in the child: the C library keeps the thread's id where set_tid_address() pointed. */
        if (main_thread.clear_tid && user_ok(main_thread.clear_tid, 4, 1) && AT(u32, main_thread.clear_tid) == main_thread.tid)
            AT(u32, main_thread.clear_tid) = pid;
        main_thread.tid = pid;
        xstate_mask &= xgetbv();
        main_thread.cpu_ns = 0;
    }
    io_restored();
}

void after_exit(void)
{
    CTL->wake = 0;
    if (unlikely(CTL->generation != generation))
        restored();
    if (CTL->sigpending)
        signals_from_host();
    flows_poll();
}

static void switch_to(struct thread *t)
{
    struct thread *old = current;
    account();
    CTL->n_switch++;
    if (old->state != GONE)
        xsave(old->xsave);
    old->fs = get_fs();
    old->gs = get_gs();
    current = t;
    kstack_top = t->stack_top;
    xrstor(t->xsave);
    set_fs(t->fs);
    set_gs(t->gs);
    context_switch(&old->stack_pointer, t->stack_pointer);
}

/* First thing a thread does when it has the vCPU again. */
static void arrived(void)
{
    current->state = RUNNING;
    if (reap && reap != current) {
        kfree(reap);
        reap = 0;
    }
    signals_recalc();
    note_alone();
}

/* The current thread is queued, blocked or gone: go on with the next that can run. */
static void schedule(void)
{
    for (;;) {
        expire();
        if (!run_first)
            flows_poll();
        if (run_first)
            break;
        CTL->timer = NEVER;
        ring_out_wait(next_deadline());
        after_exit();
    }
    struct thread *t = run_first;
    run_first = t->run_next;
    least = t->turns;
    if (t != current)
        switch_to(t);
    arrived();
}

int block(u64 deadline)
{
    struct thread *t = current;
    if (t->woken) {
        t->woken = 0;
        return 0;
    }
    if (signals_waiting(t))
        return -EINTR;
    t->state = BLOCKED;
    if (deadline != NEVER)
        sleep_add(t, deadline);
    schedule();
    t->woken = 0;
    attention |= t->result == -EINTR;    /* the call may have to be restarted */
    return t->result;
}

void yield_cpu(void)
{
    expire();
    if (!run_first)
        return;
    account();
    enqueue(current);
    schedule();
}

void waitq_add(struct waitq *q, struct waiter *w)
{
    struct waiter **p = &q->first;
    while (*p)                       /* first come, first served; queues are short */
        p = &(*p)->next;
    w->next = 0;
    w->prev = p;
    w->thread = current;
    *p = w;
}

void waitq_del(struct waiter *w)
{
    if (!w->prev)
        return;
    *w->prev = w->next;
    if (w->next)
        w->next->prev = w->prev;
    w->prev = 0;
}

int wake_one(struct waitq *q)
{
    struct waiter *w = q->first;
    if (!w)
        return 0;
    waitq_del(w);
    wake(w->thread);
    return 1;
}

int wake_all(struct waitq *q)
{
    int n = 0;
    while (wake_one(q))
        n++;
    return n;
}

int wait_on(struct waitq *q, u64 deadline)
{
    struct waiter w;
    waitq_add(q, &w);
    int r = block(deadline);
    waitq_del(&w);
    return r;
}

static void slice_over(void)
{
    CTL->resched = 0;
    if (CTL->sq_tail != CTL->sq_head)
        ring_kick();
    else
        after_exit();
    note_alone();
    yield_cpu();
}

/* The slow way out of a syscall: time slice over, signals. */
void syscall_slow(struct frame *f)
{
    if (CTL->resched)
        slice_over();
    itimers_expire();
    if (f->orig_rax != NO_SYSCALL)   /* (rt_sigreturn's frame is the interrupted one, all of it) */
        f->r11 = f->rflags;
    signals_deliver(f, 0);
}

/* The cell stopped user code: see abi.h, ctl.up_*. */
void upcall(struct frame *f)
{
    int fault = CTL->up_kind == AFW_UP_FAULT;
    CTL->preempted++;
    current->on_upcall++;
    if (fault)
        signal_fault(CTL->up_signal, CTL->up_code, CTL->up_addr);
    else
        slice_over();
    if (!signals_deliver(f, 1)) {
        CTL->preempted--;
        current->on_upcall--;
    }
}

u64 thread_cpu_time(struct thread *t)
{
    return t->cpu_ns + (t == current ? cpu_time() - cpu_at_switch : 0);
}

/* ---- birth ---- */

struct thread *find_thread(u64 tid)
{
    struct thread *t = FIRST_THREAD;
    while (t && t->tid != (u32)tid)
        t = t->next;
    return t;
}

void thread_started(struct frame *f)
{
    arrived();
    signals_deliver(f, 0);
}

#define CLONE_VM 0x100
#define CLONE_PARENT_SETTID 0x100000
#define CLONE_CHILD_CLEARTID 0x200000
#define CLONE_CHILD_SETTID 0x1000000
#define CLONE_SETTLS 0x80000
#define CLONE_THREADLIKE 0x10f00     /* VM, FS, FILES, SIGHAND, THREAD */

s64 sys_nofork(void)
{
    static u8 told;
    static const char text[] = "agentfw: no child processes here: fork and exec fail\n";
    if (!told) {
        told = 1;
        io_say(text, sizeof text - 1);
    }
    CTL->n_enosys++;
    CTL->last_enosys = (u32)user_frame()->orig_rax;
    return -ENOSYS;
}

static s64 clone(u64 flags, u64 sp, u64 parent_tid, u64 child_tid, u64 tls)
{
    if ((flags & CLONE_THREADLIKE) != CLONE_THREADLIKE)
        return sys_nofork();
    if (!sp || tls >> 47)            /* (not canonical: WRFSBASE would fault) */
        return sp ? -EPERM : -EINVAL;
    if (n_threads >= MAX_THREADS)
        return -EAGAIN;
    u32 tid = next_tid + 1;
    if (flags & CLONE_PARENT_SETTID)
        copy_out(parent_tid, &tid, 4);
    if (flags & CLONE_CHILD_SETTID)
        copy_out(child_tid, &tid, 4);
    /* One block: thread, extended state, shim stack. kalloc() puts 16 bytes before it. */
    u64 state = (sizeof(struct thread) + 64 + xstate_size + 63) & ~63ul;
    u64 size = ((state + KSTACK + 16 + PAGE - 1) & ~(PAGE - 1)) - 16;
    struct thread *t = kalloc(size);
    if (!t)
        return -EAGAIN;
    t->xsave = (u8 *)(((u64)(t + 1) + 63) & ~63ul);
    t->stack_top = (((u64)t + size) & ~15ul) - 8;
    struct frame *f = (struct frame *)(t->stack_top - sizeof *f);
    *f = *user_frame();
    f->rax = 0;
    f->rcx = f->rip;
    f->r11 = f->rflags;
    f->rsp = sp;
    f->orig_rax = NO_SYSCALL;
    u64 *s = (u64 *)f - 7;           /* what context_switch pops, and where it returns */
    s[6] = (u64)thread_first;
    t->stack_pointer = (u64)s;
    xsave(t->xsave);
    t->fs = flags & CLONE_SETTLS ? tls : get_fs();
    t->gs = get_gs();
    t->tid = next_tid = tid;
    t->turns = current->turns;
    t->mask = current->mask;
    memcpy(t->name, current->name, sizeof t->name);
    if (flags & CLONE_CHILD_CLEARTID)
        t->clear_tid = child_tid;
    t->next = FIRST_THREAD;
    t->prev = (struct thread **)&CTL->threads;
    if (FIRST_THREAD)                     /* (even the main thread may have ended) */
        FIRST_THREAD->prev = &t->next;
    CTL->threads = (u64)t;
    n_threads++;
    enqueue(t);
    return tid;
}

s64 sys_clone(u64 flags, u64 sp, u64 parent_tid, u64 child_tid, u64 tls)
{
    return clone(flags, sp, parent_tid, child_tid, tls);
}

s64 sys_clone3(u64 args, u64 size)
{
    struct { u64 flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls; } a;
    if (size < sizeof a)
        return -EINVAL;
    copy_in(&a, args, sizeof a);
    return clone(a.flags, a.stack ? a.stack + a.stack_size : 0, a.parent_tid, a.child_tid, a.tls);
}

/* ---- death ---- */

static __attribute__((noreturn)) void end(u64 code, u64 sig)
{
    io_exit();
    ring_call(AFW_OP_EXIT, code, sig, 0, 0, 0, 0);
    PANIC(1);
}

void die(int sig)
{
    end((u64)sig + 128, (u64)sig);
}

s64 sys_exit_group(u64 code)
{
    end((u8)code, 0);
}

s64 sys_exit(u64 code)
{
    struct thread *t = current;
    futex_robust(t);
    if (t->clear_tid && user_ok(t->clear_tid, 4, 1)) {
        AT(u32, t->clear_tid) = 0;
        futex_wake(t->clear_tid, 1, ~0u);
    }
    if (--n_threads == 0)
        sys_exit_group(code);
    signals_drop(t);
    *t->prev = t->next;
    if (t->next)
        t->next->prev = t->prev;
    CTL->preempted -= t->on_upcall;
    t->state = GONE;
    if (t != &main_thread)
        reap = t;                    /* schedule() idles on its stack; the next to arrive frees it */
    schedule();
    PANIC(2);
}

s64 sys_sched_yield(void)
{
    for (struct thread *t = run_first; t; t = t->run_next)   /* it waits for what another is to do: all others come first */
        current->turns = t->turns;
    yield_cpu();
    return 0;
}

s64 sys_gettid(void)
{
    return current->tid;
}

s64 sys_set_tid_address(u64 address)
{
    current->clear_tid = address;
    return current->tid;
}

/* ---- boot ---- */

void shim_main(void)
{
    struct frame *f = user_frame();  /* zero, as all memory is at boot */
    f->rip = CTL->start_rip;
    f->rsp = CTL->start_rsp;
    f->cs = 0x33;
    f->ss = 0x2b;
    f->rflags = 0x3202;
    xstate_init();
    if (CTL->abi != AFW_ABI || xstate_size > sizeof main_xsave)
        PANIC(3);
    u32 mxcsr = 0x1f80;
    __asm__ volatile("ldmxcsr %0" ::"m"(mxcsr));
    main_thread.xsave = main_xsave;
    main_thread.stack_top = kstack_top;
    main_thread.state = RUNNING;
    main_thread.prev = (struct thread **)&CTL->threads;
    CTL->threads = (u64)&main_thread;
    main_thread.tid = next_tid = CTL->pid;
    generation = CTL->generation;
    mm_init();
    note_alone();
    io_init();
}
