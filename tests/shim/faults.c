/* What a handler is told of a fault: signal, si_code, and si_addr by every way that an instruction names memory. */
#include "check.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#define PAGE 4096ul
static sigjmp_buf back;
static siginfo_t info;
static uint8_t *p;                   /* pages: writable, read-only, PROT_NONE, then five writable ones */
static char stack[65536];

static void on_fault(int sig, siginfo_t *i, void *context)
{
    (void)sig, (void)context;
    info = *i;
    siglongjmp(back, 1);
}

#define FAULT(signal, code, address, instruction) \
    do { \
        if (!sigsetjmp(back, 1)) { \
            instruction; \
            CHECK(!"a fault"); \
        } \
        CHECK(info.si_signo == (signal) && info.si_code == (code) && (uint64_t)info.si_addr == (uint64_t)(address)); \
    } while (0)
#define REFUSED(at, text, ...) \
    FAULT(SIGSEGV, SEGV_ACCERR, p + (at), __asm__ volatile(text :: "r"(p), ##__VA_ARGS__ \
                                                          : "memory", "rax", "rbx", "rcx", "rsi", "rdi", "r9", "r10", "r12", "r13", "r14", "r15"))

static void operands(void)
{
    REFUSED(PAGE + 5, "movb $1, 4096+5(%0)");
    REFUSED(2 * PAGE + 7, "movb 8192+7(%0), %%al");
    REFUSED(2 * PAGE + 7, "movzbl 8192+7(%0), %%eax");
    REFUSED(PAGE + 64, "movq $1, (%0,%1)", "r"(PAGE + 64));
    REFUSED(PAGE + 3, "movb $1, 3(%0,%1,4)", "r"(PAGE / 4));
    REFUSED(PAGE + 3, "movb $1, 3(,%1,8)", "r"((uint64_t)(p + PAGE) / 8));
    REFUSED(PAGE + 3, "mov %1, %%r13; movb $1, 3(%%r13)", "r"(p + PAGE));
    REFUSED(PAGE + 3, "mov %1, %%r12; mov %%ax, 3(%%r12)", "r"(p + PAGE));
    REFUSED(PAGE + 3, "mov %1, %%r15; mov %2, %%r14; mov %%r9, -13(%%r14,%%r15,2)", "r"(8l), "r"(p + PAGE));
    REFUSED(PAGE - 4 + 4, "lock incl 4096(%0)");
    REFUSED(PAGE, "movq $1, 4096-4(%0)");                    /* reaches over */
    REFUSED(2 * PAGE, "movq 8192-4(%0), %%rax");
    REFUSED(PAGE, "lea 4096-3(%0), %%rdi; mov $100, %%ecx; rep stosb");
    REFUSED(2 * PAGE, "lea 8192-40(%0), %%rsi; mov %0, %%rdi; mov $10, %%ecx; cld; rep movsq");
    REFUSED(PAGE, "lea 12288(%0), %%rsi; lea 4096-16(%0), %%rdi; mov $10, %%ecx; rep movsq");
    REFUSED(2 * PAGE, "lea 8192(%0), %%rsi; lodsl");
    REFUSED(2 * PAGE + 1, "lea 8193(%0), %%rdi; scasb");
    REFUSED(PAGE + 8, "xadd %%eax, 4104(%0)");
    REFUSED(PAGE + 8, "sete 4104(%0)");
    REFUSED(PAGE + 8, "notl 4104(%0)");
    REFUSED(PAGE + 8, "addl $5, 4104(%0)");
    REFUSED(PAGE + 8, "btsl $3, 4104(%0)");
    REFUSED(PAGE + 16, "movups %%xmm1, 4112(%0)");
    REFUSED(2 * PAGE + 16, "pshufb 8208(%0), %%xmm1");
    REFUSED(2 * PAGE + 16, "palignr $3, 8208(%0), %%xmm1");
    REFUSED(2 * PAGE + 24, "fldl 8216(%0)");
    REFUSED(2 * PAGE + 24, "pushq 8216(%0)");
    REFUSED(2 * PAGE - 8, "mov %%rsp, %%rbx; lea 8192(%0), %%rsp; push %%rax; mov %%rbx, %%rsp");
    REFUSED(3 * PAGE - 8, "mov %%rsp, %%rbx; lea 12288(%0), %%rsp; call 1f; 1: mov %%rbx, %%rsp");
    REFUSED(2 * PAGE + 8, "mov %%rsp, %%rbx; lea 8200(%0), %%rsp; pop %%rax; mov %%rbx, %%rsp");
    REFUSED(2 * PAGE + 8, "mov %%rsp, %%rbx; lea 8200(%0), %%rsp; ret; mov %%rbx, %%rsp");
    if (__builtin_cpu_supports("avx2")) {
        REFUSED(PAGE, "vmovdqu %%ymm0, 4096-8(%0)");
        REFUSED(2 * PAGE, "vpaddd 8192(%0), %%ymm1, %%ymm2");
        REFUSED(2 * PAGE + 9, "mov %1, %%r10; vbroadcastss 9(%%r10), %%ymm9", "r"(p + 2 * PAGE));
    }
    if (__builtin_cpu_supports("avx512f")) {
        REFUSED(PAGE, ".arch .avx512f\nvmovdqu64 %%zmm0, 4096(%0)");
        REFUSED(2 * PAGE + 64, ".arch .avx512f\nmov %1, %%r10; vmovdqu64 64(%%r10), %%zmm20", "r"(p + 2 * PAGE));
    }
    /* relative to RIP, and to FS */
    extern uint8_t here[];
    uint8_t *page = (uint8_t *)((uint64_t)here & ~(PAGE - 1));
    CHECK(!mprotect(page, PAGE, PROT_READ));
    FAULT(SIGSEGV, SEGV_ACCERR, here, __asm__ volatile("movl $77, here(%%rip)" ::: "memory"));
    FAULT(SIGSEGV, SEGV_ACCERR, here, __asm__ volatile("incb here(%%rip)" ::: "memory"));
    FAULT(SIGSEGV, SEGV_ACCERR, p + PAGE + 40, __asm__ volatile("mov %%fs:0, %%rax; mov %0, %%rbx; sub %%rax, %%rbx; movb $1, %%fs:(%%rbx)"
                                                               :: "r"(p + PAGE + 40) : "rax", "rbx", "memory"));
    /* the code itself */
    FAULT(SIGSEGV, SEGV_ACCERR, p + 2 * PAGE, ((void (*)(void))(p + 2 * PAGE))());
}
__asm__(".data; .balign 4096; .globl here; here: .quad 0; .balign 4096; .text");

static void other(void)
{
    extern uint8_t divides[], invalid[];
    FAULT(SIGSEGV, SEGV_MAPERR, 0x10, (void)*(volatile char *)0x10);
    FAULT(SIGSEGV, SEGV_MAPERR, 0, ((void (*)(void))0)());
    FAULT(SIGSEGV, SEGV_MAPERR, 0xffff800000000000, (void)*(volatile char *)0xffff800000000000);
    FAULT(SIGSEGV, SEGV_MAPERR, 0x7ffff0000000, (void)*(volatile char *)0x7ffff0000000);
    FAULT(SIGSEGV, SI_KERNEL, 0, (void)*(volatile char *)0x8000000000000000);
    FAULT(SIGSEGV, SI_KERNEL, 0, __asm__ volatile("hlt"));
    FAULT(SIGSEGV, SI_KERNEL, 0, __asm__ volatile("inb $0x70, %%al" ::: "al"));
    FAULT(SIGTRAP, SI_KERNEL, 0, __asm__ volatile("int3"));
    FAULT(SIGFPE, FPE_INTDIV, divides, __asm__ volatile("xor %%ecx, %%ecx; mov $1, %%eax; xor %%edx, %%edx; .globl divides; divides: div %%ecx" ::: "eax", "ecx", "edx"));
    FAULT(SIGILL, ILL_ILLOPN, invalid, __asm__ volatile(".globl invalid; invalid: ud2"));
}

int main(void)
{
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    stack_t alternative = {.ss_sp = stack, .ss_size = sizeof stack};
    CHECK(!sigaltstack(&alternative, 0));
    for (int i = 0; i < 5; i++)
        CHECK(!sigaction((int[]){SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP}[i], &a, 0));
    p = mmap(0, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED && !mprotect(p + PAGE, PAGE, PROT_READ) && !mprotect(p + 2 * PAGE, PAGE, PROT_NONE));
    operands();
    other();
    return 0;
}
