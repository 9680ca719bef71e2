/* Signals: actions, masks, pending sets, delivery as the x86-64 kernel does it (sigframe.c builds the frame). */
#include "sig.h"

struct action actions[64];
static struct pending shared;        /* sent to the process */

#define IGNORED_BY_DEFAULT (SIGSET(17) | SIGSET(18) | SIGSET(23) | SIGSET(28))     /* CHLD CONT URG WINCH */
#define STOPS (SIGSET(19) | SIGSET(20) | SIGSET(21) | SIGSET(22))                  /* nobody could continue us: ignored too */
#define UNMASKABLE (SIGSET(SIGKILL) | SIGSET(SIGSTOP))

static int ignored(int sig)
{
    u64 h = actions[sig - 1].handler;
    return h == SIG_IGN || (h == SIG_DFL && (SIGSET(sig) & (IGNORED_BY_DEFAULT | STOPS))) || sig == SIGSTOP;
}

int signals_waiting(struct thread *t)
{
    return ((t->pending.set | shared.set) & (~t->mask | t->sigwait)) != 0;
}

void signals_recalc(void)
{
    /* (with a timer on, each call looks at it: a time slice is long for those of microseconds) */
    attention = ((current->pending.set | shared.set) & ~current->mask) || current->have_saved_mask || itimers_on();
}

static void add(struct pending *p, int sig, int code, u64 a, u64 b)
{
    struct sigq *q, **end = &p->queue;
    if (sig < 32 && (p->set & SIGSET(sig)))
        return;
    p->set |= SIGSET(sig);
    q = kalloc(sizeof *q);
    if (!q)
        return;                      /* the signal stays, its siginfo is lost */
    *q = (struct sigq){0, sig, code, a, b};
    while (*end)
        end = &(*end)->next;
    *end = q;
}

/* Takes the lowest pending signal of `set` out; its siginfo into *info. 0: none */
static int take(struct pending *p, u64 set, struct sigq *info)
{
    set &= p->set;
    if (!set)
        return 0;
    int sig = __builtin_ctzll(set) + 1, more = 0, found = 0;
    *info = (struct sigq){.sig = sig, .code = SI_KERNEL};
    for (struct sigq **q = &p->queue, *e; (e = *q);) {
        if (e->sig == sig && !found) {
            found = 1;
            *info = *e;
            *q = e->next;
            kfree(e);
            continue;
        }
        more |= e->sig == sig;
        q = &e->next;
    }
    if (!more)
        p->set &= ~SIGSET(sig);
    return sig;
}

/* (signals_deliver()'s call of it is replaced in a VM that is traced: tracing.c) */
__attribute__((noinline, noclone)) static int take_any(u64 set, struct sigq *info)
{
    int sig = take(&current->pending, set, info);
    return sig ? sig : take(&shared, set, info);
}

static void drop(struct pending *p, u64 set)
{
    struct sigq info;
    while (take(p, set, &info))
        ;
}

void signals_drop(struct thread *t)
{
    drop(&t->pending, ~0ull);
}

static int wants(struct thread *t, int sig)
{
    return ((~t->mask | t->sigwait) & SIGSET(sig)) != 0;
}

static void send(struct thread *t, int sig, int code, u64 a, u64 b)
{
    if (sig == SIGKILL)
        die(sig);
    struct thread *to = t;
    if (!to && main_thread.state != GONE && wants(&main_thread, sig))
        to = &main_thread;
    for (struct thread *x = FIRST_THREAD; x && !to; x = x->next)
        if (wants(x, sig))
            to = x;
    if (ignored(sig) && to && !((to->mask | to->sigwait) & SIGSET(sig)))
        return;
    /* To the thread that is to take it, even if it was sent to the process: another one could take it first, and then this one's
     * call would have been interrupted for nothing. */
    add(to ? &to->pending : &shared, sig, code, a, b);
    if (to && wants(to, sig))
        interrupt(to);
    signals_recalc();
}

void signal_send(struct thread *t, int sig, int code, u64 value)
{
    send(t, sig, code, CTL->pid, value);
}

void signals_from_host(void)
{
    u64 set = CTL->sigpending;
    CTL->sigpending = 0;
    files_changed++;                 /* as chan_eof() */
    for (int sig = 1; sig <= 64; sig++)
        if (set & SIGSET(sig))
            send(0, sig, SI_USER, 0, 0);
}

/* To the main thread of a forked VM, if there is a handler; unlike others it interrupts no call. */
void signal_forked(void)
{
    if (actions[AFW_FORK_SIGNAL - 1].handler > SIG_IGN) {
        add(&main_thread.pending, AFW_FORK_SIGNAL, SI_KERNEL, 0, 0);
        signals_recalc();
    }
}

void signal_fault(int sig, int code, u64 addr)
{
    if (sig < 1 || sig > 31)
        sig = SIGSEGV;
    if ((current->mask & SIGSET(sig)) || actions[sig - 1].handler <= SIG_IGN)
        die(sig);
    add(&current->pending, sig, code, addr, 0);
}

__attribute__((noinline, noclone)) int signals_deliver(struct frame *f, int upcall)
{
    struct thread *t = current;
    struct sigq info;
    int sig, handlers = 0;
    while ((sig = take_any(~t->mask, &info))) {
        struct action a = actions[sig - 1];
        if (ignored(sig))
            continue;
        if (a.handler == SIG_DFL)
            die(sig);
        if (f->orig_rax != NO_SYSCALL && f->rax == (u64)-ERESTARTSYS) {
            if (a.flags & SA_RESTART)
                sigframe_restart(f);
            else
                f->rax = (u64)-EINTR;
        }
        f->orig_rax = NO_SYSCALL;
        u64 old = t->have_saved_mask ? t->saved_mask : t->mask;
        t->have_saved_mask = 0;
        if (sigframe_push(f, &a, &info, old, upcall && !handlers))
            die(SIGSEGV);
        t->mask |= (a.mask | (a.flags & SA_NODEFER ? 0 : SIGSET(sig))) & ~UNMASKABLE;
        if (a.flags & SA_RESETHAND)
            actions[sig - 1].handler = SIG_DFL;
        handlers++;
    }
    if (f->orig_rax != NO_SYSCALL && f->rax == (u64)-ERESTARTSYS)
        sigframe_restart(f);
    if (t->have_saved_mask) {
        t->mask = t->saved_mask;
        t->have_saved_mask = 0;
    }
    signals_recalc();
    return handlers;
}

u64 signal_swap_mask(u64 mask)
{
    u64 old = current->mask;
    /* Back to the old mask while a signal of the temporary one is pending: its handler runs first, and returns to the old one. */
    if (signals_waiting(current)) {
        current->saved_mask = mask & ~UNMASKABLE;
        current->have_saved_mask = 1;
    } else
        current->mask = mask & ~UNMASKABLE;
    signals_recalc();
    return old;
}

static void note_handlers(void)
{
    u64 set = 0;
    for (int i = 0; i < 32; i++)
        if (actions[i].handler > SIG_IGN)
            set |= 1ull << i;
    CTL->fault_handlers = set;
}

s64 sys_rt_sigaction(u64 sig, u64 new, u64 old, u64 size)
{
    struct action a;
    if (sig - 1 > 63 || size != 8 || (new && (SIGSET(sig) & UNMASKABLE)))
        return -EINVAL;
    struct action *mine = &actions[sig - 1];
    if (new)
        copy_in(&a, new, sizeof a);
    if (old)
        copy_out(old, mine, sizeof a);
    if (!new)
        return 0;
    *mine = a;
    if (ignored((int)sig)) {
        drop(&shared, SIGSET(sig));
        for (struct thread *t = FIRST_THREAD; t; t = t->next)
            drop(&t->pending, SIGSET(sig));
    }
    note_handlers();
    return 0;
}

s64 sys_rt_sigprocmask(u32 how, u64 new, u64 old, u64 size)
{
    u64 m, before = current->mask;
    if (size != 8 || (new && how > 2))
        return -EINVAL;
    if (new)
        copy_in(&m, new, 8);
    if (old)
        copy_out_word(old, before);
    if (new) {
        current->mask = (how == 0 ? before | m : how == 1 ? before & ~m : m) & ~UNMASKABLE;
        signals_recalc();
    }
    return 0;
}

s64 sys_rt_sigpending(u64 out, u64 size)
{
    u64 set = (current->pending.set | shared.set) & current->mask;
    return size > 8 ? -EINVAL : copy_out(out, &set, size);
}

s64 sys_pause(void)
{
    while (block(NEVER) != -EINTR)
        ;
    return -EINTR;
}

s64 sys_rt_sigsuspend(u64 set, u64 size)
{
    u64 m;
    if (size != 8)
        return -EINVAL;
    copy_in(&m, set, 8);
    current->saved_mask = current->mask;
    current->mask = m & ~UNMASKABLE;
    current->have_saved_mask = 1;    /* until the handler returns */
    sys_pause();
    attention = 1;
    return -EINTR;
}

s64 sys_rt_sigtimedwait(u64 set, u64 out, u64 timeout, u64 size)
{
    struct sigq info;
    u64 deadline = NEVER, ns, want;
    if (size != 8)
        return -EINVAL;
    copy_in(&want, set, 8);
    if (out && !user_ok(out, 128, 1))
        return -EFAULT;
    want &= ~UNMASKABLE;
    if (timeout) {
        s64 r = read_timespec(timeout, &ns);
        if (r)
            return r;
        deadline = deadline_after(ns);
    }
    int sig, r = 0;
    while (!(sig = take_any(want, &info))) {
        if (r)
            return r == -ETIMEDOUT ? -EAGAIN : r;
        current->sigwait = want;
        r = block(deadline);
        current->sigwait = 0;
    }
    signals_recalc();
    if (out)
        sigframe_info(out, &info);
    return sig;
}

#define UID_WORD ((u64)CTL->pid | (u64)GUEST_UID << 32)

static s64 post(struct thread *t, u64 sig, int code, u64 a, u64 b)
{
    if (sig > 64)
        return -EINVAL;
    if (sig)
        send(t, (int)sig, code, a, b);
    return 0;
}

s64 sys_kill(u64 pid, u64 sig)
{
    s32 p = (s32)pid;
    if (p != 0 && p != -1 && p != (s32)CTL->pid && p != -(s32)CTL->pid)
        return -ESRCH;
    return post(0, sig, SI_USER, UID_WORD, 0);
}

s64 sys_tkill(u64 tid, u64 sig)
{
    struct thread *t = find_thread(tid);
    return (s32)tid <= 0 || sig > 64 ? -EINVAL : t ? post(t, sig, SI_TKILL, UID_WORD, 0) : -ESRCH;
}

s64 sys_tgkill(u64 pid, u64 tid, u64 sig)
{
    return (s32)pid <= 0 || (s32)tid <= 0 ? -EINVAL : (u32)pid == CTL->pid ? sys_tkill(tid, sig) : -ESRCH;
}

static s64 queueinfo(struct thread *t, u64 sig, u64 info)
{
    u64 i[4];
    copy_in(i, info, sizeof i);
    return post(t, sig, (s32)i[1], i[2], i[3]);
}

s64 sys_rt_sigqueueinfo(u64 pid, u64 sig, u64 info)
{
    return (u32)pid == CTL->pid ? queueinfo(0, sig, info) : -ESRCH;
}

s64 sys_rt_tgsigqueueinfo(u64 pid, u64 tid, u64 sig, u64 info)
{
    struct thread *t = find_thread(tid);
    return (u32)pid == CTL->pid && t ? queueinfo(t, sig, info) : -ESRCH;
}

/* ---- ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF: the first by the clock, the others by CPU time (none of it is a kernel's) ---- */

#define TIMERS 3
static struct { u64 at, every; } timers[TIMERS];     /* at: 0: off */

static u64 timer_now(u64 which)
{
    return which ? cpu_time() : now_mono();
}

u64 itimer_next(void)
{
    return timers[0].at - 1;
}

int itimers_on(void)
{
    return (timers[0].at | timers[1].at | timers[2].at) != 0;
}

void itimers_expire(void)
{
    for (u32 i = 0; i < TIMERS; i++) {
        u64 at = timers[i].at, every = timers[i].every, now = at ? timer_now(i) : 0;
        if (now < at || !at)
            continue;
        timers[i].at = every ? at + every * ((now - at) / every + 1) : 0;
        send(0, "\16\32\33"[i], SI_KERNEL, 0, 0);   /* SIGALRM, SIGVTALRM, SIGPROF */
    }
}

static u64 timer_left(u64 which)
{
    u64 at = timers[which].at, now = timer_now(which);
    return !at ? 0 : at > now ? at - now : 1;
}

static void timer_set(u64 which, u64 ns, u64 every)
{
    u64 at = timer_now(which) + ns;
    timers[which].at = !ns ? 0 : at < ns ? NEVER : at;
    timers[which].every = every;
    CTL->alone = 0;
    signals_recalc();
}

s64 sys_getitimer(u64 which, u64 out)
{
    if (which >= TIMERS)
        return -EINVAL;
    put_timeval(out, timers[which].every);
    put_timeval(out + 16, timer_left(which));
    return 0;
}

s64 sys_setitimer(u64 which, u64 new, u64 old)
{
    u64 every = 0, ns = 0;
    s64 r;
    if (which >= TIMERS)
        return -EINVAL;
    if (new && ((r = read_timeval(new, &every)) || (r = read_timeval(new + 16, &ns))))
        return r;
    if (old)
        sys_getitimer(which, old);
    timer_set(which, ns, every);
    return 0;
}

s64 sys_alarm(u64 seconds)
{
    u64 left = timer_left(0);
    timer_set(0, (u64)(u32)seconds * 1000000000, 0);
    return (s64)((left + 999999999) / 1000000000);
}
