/* Signals: what signal.c and sigframe.c share. */
#ifndef SHIM_SIG_H
#define SHIM_SIG_H
#include "core.h"

enum { SIGKILL = 9, SIGSEGV = 11, SIGALRM = 14, SIGSTOP = 19 };
enum { SIG_DFL = 0, SIG_IGN = 1 };
enum { SI_USER = 0, SI_KERNEL = 0x80, SI_TKILL = -6 };
#define SA_RESTORER 0x4000000
#define SA_ONSTACK 0x8000000
#define SA_RESTART 0x10000000
#define SA_NODEFER 0x40000000
#define SA_RESETHAND 0x80000000

struct action {                      /* as rt_sigaction takes it */
    u64 handler, flags, restorer, mask;
};

/* Handler frame on the user's stack, f changed to run it. `old` is the mask that its return brings back. -EFAULT: no room */
s64 sigframe_push(struct frame *f, const struct action *a, const struct sigq *info, u64 old, int upcall);
void sigframe_restart(struct frame *f);              /* the interrupted syscall is to be made again */
void sigframe_info(u64 out, const struct sigq *info);
#endif
