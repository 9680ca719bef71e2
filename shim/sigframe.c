/* The frame of a signal handler, laid out as the x86-64 kernel does (struct rt_sigframe, XSAVE state behind it), and the way back. */
#include "sig.h"

struct context {                     /* struct sigcontext_64 */
    u64 general[15], rsp, rip, eflags;
    u16 cs, gs, fs, ss;
    u64 err, trapno, oldmask, cr2, fpstate;
    u64 from_upcall;                 /* reserved to the kernel: the context was stopped by an upcall */
    u64 reserved[7];
};
#define GENERAL offsetof(struct context, rsp)        /* what comes first, and in the order of struct frame */

struct sigframe {
    u64 restorer;
    u64 uc_flags, uc_link;           /* struct ucontext */
    u64 alt_sp;
    u32 alt_flags, pad;
    u64 alt_size;
    struct context c;
    u64 mask;
    u8 info[128];
};
#define UC_FLAGS 7                   /* UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS */
#define SW_RESERVED 464              /* in the FXSAVE area: software's own bytes, which say what follows */
#define MAGIC1 0x46505853u
#define MAGIC2 0x46505845u
#define XSAVE_HEADER 512
#define SS_ONSTACK 1
#define SS_DISABLE 2
#define FLAGS_USER 0x40dd5ul         /* that a handler may change on return: AC OF DF TF SF ZF AF PF CF */
#define DF_TF_RF 0x10500ul

static int on_altstack(struct thread *t, u64 sp)
{
    return sp - t->alt_sp - 1 < t->alt_size;
}

static u32 alt_state(struct thread *t, u64 sp)
{
    return !t->alt_size ? SS_DISABLE : on_altstack(t, sp) ? SS_ONSTACK : 0;
}

void sigframe_info(u64 out, const struct sigq *q)
{
    memset((void *)out, 0, 128);
    AT(u32, out) = (u32)q->sig;
    AT(s32, out + 8) = q->code;
    AT(u64, out + 16) = q->a;
    AT(u64, out + 24) = q->b;
}

/* RIP = entry_site with RCX = return address and RAX = number is a syscall, wherever the site was and however it was made. */
void sigframe_restart(struct frame *f)
{
    f->rcx = f->rip;
    f->rax = f->orig_rax;
    f->rip = (u64)entry_site;
    f->orig_rax = NO_SYSCALL;
}

s64 sigframe_push(struct frame *f, const struct action *a, const struct sigq *info, u64 old, int upcall)
{
    struct thread *t = current;
    u64 size = xstate_size, sp = f->rsp - 128;
    if ((a->flags & SA_ONSTACK) && t->alt_size && !on_altstack(t, f->rsp))
        sp = t->alt_sp + t->alt_size;
    u64 fp = (sp - size - 4) & ~63ul;
    u64 at = ((fp - sizeof(struct sigframe)) & ~15ul) - 8;
    if (!(a->flags & SA_RESTORER) || !user_ok(at, fp + size + 4 - at, 1))
        return -EFAULT;
    struct sigframe *s = (struct sigframe *)at;
    memset(s, 0, sizeof *s);
    s->restorer = a->restorer;
    s->uc_flags = UC_FLAGS;
    s->alt_sp = t->alt_sp;
    s->alt_flags = alt_state(t, f->rsp);
    s->alt_size = t->alt_size;
    memcpy(&s->c, f, GENERAL);
    s->c.rsp = f->rsp;
    s->c.rip = f->rip;
    s->c.eflags = f->rflags;
    s->c.cs = 0x33;
    s->c.ss = 0x2b;
    s->c.cr2 = info->a;
    s->c.oldmask = s->mask = old;
    s->c.fpstate = fp;
    s->c.from_upcall = (u64)upcall;
    sigframe_info((u64)s->info, info);

    static const u32 initial[7] = {[0] = 0x37f, [6] = 0x1f80};   /* FCW, MXCSR: all else of the state starts as 0 */
    static u8 blank[XSAVE_HEADER + 64] __attribute__((aligned(64)));
    memset((void *)(fp + SW_RESERVED), 0, XSAVE_HEADER + 64 - SW_RESERVED);   /* XSAVE leaves these alone */
    xsave((void *)fp);
    u32 *sw = (u32 *)(fp + SW_RESERVED);
    sw[0] = MAGIC1;
    sw[1] = (u32)size + 4;
    *(u64 *)(sw + 2) = xstate_mask;
    sw[4] = (u32)size;
    *(u32 *)(fp + size) = MAGIC2;
    memcpy(blank, initial, sizeof initial);
    xrstor(blank);

    f->rdi = (u64)info->sig;
    f->rsi = (u64)s->info;
    f->rdx = (u64)&s->uc_flags;
    f->rax = 0;
    f->rip = a->handler;
    f->rsp = at;
    f->rflags &= ~DF_TF_RF;
    return 0;
}

static s64 set_altstack(u64 sp, u32 flags, u64 size)
{
    struct thread *t = current;
    if (flags & ~(SS_DISABLE | SS_ONSTACK))
        return -EINVAL;
    if (flags & SS_DISABLE)
        sp = size = 0;
    else if (size < 2048)
        return -ENOMEM;
    t->alt_sp = sp;
    t->alt_size = size;
    return 0;
}

s64 sys_rt_sigreturn(void)
{
    struct thread *t = current;
    struct frame *f = user_frame();
    struct sigframe *s = (struct sigframe *)(f->rsp - 8);
    u64 size = xstate_size;
    if (!user_ok((u64)s, sizeof *s, 0))
        die(SIGSEGV);
    u64 fp = s->c.fpstate;
    memcpy(f, &s->c, GENERAL);
    f->rsp = s->c.rsp;
    f->rip = s->c.rip;
    f->rflags = (f->rflags & ~FLAGS_USER) | (s->c.eflags & FLAGS_USER);
    f->orig_rax = NO_SYSCALL;
    t->mask = s->mask & ~(SIGSET(SIGKILL) | SIGSET(SIGSTOP));
    set_altstack(s->alt_sp, s->alt_flags, s->alt_size);
    if (s->c.from_upcall && t->on_upcall) {
        t->on_upcall--;
        CTL->preempted--;
    }
    if (fp && user_ok(fp, size, 0)) {
        /* The handler may have written anything there, and XRSTOR faults on what it does not like. */
        memcpy(t->xsave, (void *)fp, size);
        u64 *header = (u64 *)(t->xsave + XSAVE_HEADER);
        header[0] = AT(u32, fp + SW_RESERVED) == MAGIC1 ? header[0] & xstate_mask : 3;
        memset(header + 1, 0, 56);
        *(u32 *)(t->xsave + 24) &= 0xffff;       /* MXCSR */
        xrstor(t->xsave);
    }
    attention = 1;                   /* leave by the full exit */
    return (s64)f->rax;
}

s64 sys_sigaltstack(u64 new, u64 old)
{
    struct thread *t = current;
    u64 sp = user_frame()->rsp, is[3], was[3] = {t->alt_sp, alt_state(t, sp), t->alt_size};
    s64 r = 0;
    if (new) {
        copy_in(is, new, sizeof is);
        r = on_altstack(t, sp) ? -EPERM : set_altstack(is[0], (u32)is[1], is[2]);
    }
    return r || !old ? r : copy_out(old, was, sizeof was);
}
