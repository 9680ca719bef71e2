/* Copies that survive a fault: a file mapped into a guest may be truncated on the host, a guest's page may be PROT_NONE. */
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include "machine.h"

/* One instruction may fault: then execution goes on at guarded_end with the rest in RCX. */
__asm__(".text\n"
        ".globl guarded_copy, guarded_insn, guarded_end\n"
        ".type guarded_copy, @function\n"
        "guarded_copy:\n"
        "  mov %rdx, %rcx\n"
        "guarded_insn:\n"
        "  rep movsb\n"
        "guarded_end:\n"
        "  mov %rcx, %rax\n"
        "  ret\n"
        ".size guarded_copy, .-guarded_copy\n");
extern const char guarded_insn[], guarded_end[];

static void on_fault(int sig, siginfo_t *info, void *context)
{
    ucontext_t *u = context;
    (void)info;
    if (u->uc_mcontext.gregs[REG_RIP] == (greg_t)(uintptr_t)guarded_insn) {
        u->uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)guarded_end;
        return;
    }
    signal(sig, SIG_DFL);                        /* the access faults again and ends the cell: its worker reports that */
}

void guard_install(void)
{
    struct sigaction sa = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &sa, 0);
    sigaction(SIGBUS, &sa, 0);
}
