/* All general registers and flags survive time slices, thread switches and signal handlers that come between any two instructions;
 * and a system call changes RAX, RCX and R11 only. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>

volatile int stop;
static volatile int alarms, running;

/* Puts seed + n into register n, spins, and adds up what is wrong then. The carry flag is in the game as well: the loop keeps it. */
static uint64_t spin_once(uint64_t seed)
{
    uint64_t wrong;
    __asm__ volatile("push %%rbp; mov %1, %%rax\n"
                     "lea 1(%%rax), %%rbx; lea 2(%%rax), %%rcx; lea 3(%%rax), %%rdx; lea 4(%%rax), %%rsi; lea 5(%%rax), %%rdi\n"
                     "lea 6(%%rax), %%rbp; lea 7(%%rax), %%r8; lea 8(%%rax), %%r9; lea 9(%%rax), %%r10; lea 10(%%rax), %%r11\n"
                     "lea 11(%%rax), %%r12; lea 12(%%rax), %%r13; lea 13(%%rax), %%r14; lea 14(%%rax), %%r15\n"
                     "movq %%rax, -72(%%rsp)\n"              /* the red zone is ours, too */
                     "1: stc; nop; nop; nop; nop; jnc 3f\n"
                     "clc; nop; nop; nop; nop; jc 3f\n"
                     "cmpl $0, stop; je 1b\n"
                     "cmpq -72(%%rsp), %%rax; jne 3f\n"
                     "sub %%rax, %%rbx; sub %%rax, %%rcx; sub %%rax, %%rdx; sub %%rax, %%rsi; sub %%rax, %%rdi; sub %%rax, %%rbp\n"
                     "sub %%rax, %%r8; sub %%rax, %%r9; sub %%rax, %%r10; sub %%rax, %%r11; sub %%rax, %%r12; sub %%rax, %%r13\n"
                     "sub %%rax, %%r14; sub %%rax, %%r15\n"
                     "cmp $1, %%rbx; jne 3f; cmp $2, %%rcx; jne 3f; cmp $3, %%rdx; jne 3f; cmp $4, %%rsi; jne 3f; cmp $5, %%rdi; jne 3f\n"
                     "cmp $6, %%rbp; jne 3f; cmp $7, %%r8; jne 3f; cmp $8, %%r9; jne 3f; cmp $9, %%r10; jne 3f; cmp $10, %%r11; jne 3f\n"
                     "cmp $11, %%r12; jne 3f; cmp $12, %%r13; jne 3f; cmp $13, %%r14; jne 3f; cmp $14, %%r15; jne 3f\n"
                     "xor %%eax, %%eax; jmp 4f\n"
                     "3: mov $1, %%eax\n"
                     "4: pop %%rbp"
                     : "=a"(wrong) : "r"(seed)
                     : "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
    return wrong;
}

static void *spin(void *arg)
{
    __atomic_add_fetch(&running, 1, __ATOMIC_SEQ_CST);
    CHECK(spin_once((uint64_t)arg << 40) == 0);
    return 0;
}

static void on_alarm(int sig)
{
    (void)sig;
    if (++alarms == 30)
        stop = 1;
}

/* A call with known registers: what may change and what not. */
static void call(long nr)
{
    uint64_t wrong;
    __asm__ volatile("push %%rbp\n"
                     "mov $21, %%rbx; mov $22, %%rbp; mov $24, %%r10; mov $25, %%r8; mov $26, %%r9; mov $27, %%r12\n"
                     "mov $28, %%r13; mov $29, %%r14; mov $30, %%r15; mov $23, %%rdi; mov $31, %%rsi; mov $32, %%rdx; movq $33, -8(%%rsp)\n"
                     "stc; syscall\n"
                     "mov $1, %%eax; jnc 1f\n"
                     "cmp $21, %%rbx; jne 1f; cmp $22, %%rbp; jne 1f; cmp $23, %%rdi; jne 1f; cmp $24, %%r10; jne 1f; cmp $25, %%r8; jne 1f\n"
                     "cmp $26, %%r9; jne 1f; cmp $27, %%r12; jne 1f; cmp $28, %%r13; jne 1f; cmp $29, %%r14; jne 1f; cmp $30, %%r15; jne 1f\n"
                     "cmp $31, %%rsi; jne 1f; cmp $32, %%rdx; jne 1f; cmpq $33, -8(%%rsp); jne 1f\n"
                     "test $1, %%r11b; jz 1f\n"              /* the carry flag as the call found it */
                     "xor %%eax, %%eax\n"
                     "1: pop %%rbp"
                     : "=a"(wrong) : "a"(nr)
                     : "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
    CHECK(wrong == 0);
}

/* cpuid and xgetbv, which the cell rewrites as well: only their results change, with zeros above; flags and red zone stay. */
static void __attribute__((noinline)) processor(void)
{
    uint64_t wrong;
    __asm__ volatile("push %%rbp\n"
                     "mov $22, %%rbp; mov $24, %%r10; mov $25, %%r8; mov $26, %%r9; mov $27, %%r12; mov $20, %%r11\n"
                     "mov $28, %%r13; mov $29, %%r14; mov $30, %%r15; mov $23, %%rdi; mov $31, %%rsi; movq $33, -8(%%rsp)\n"
                     "mov $-1, %%rax; mov $-1, %%rbx; mov $-1, %%rcx; mov $-1, %%rdx\n"
                     "stc; mov $0, %%ecx; mov $7, %%eax; cpuid\n"
                     "jnc 1f; bt $32, %%rax; jc 1f; bt $32, %%rbx; jc 1f; bt $32, %%rcx; jc 1f; bt $32, %%rdx; jc 1f; mov %%rbx, %%rbp\n"
                     "mov $0, %%ecx; mov $7, %%eax; cpuid\n"
                     "cmp %%rbx, %%rbp; jne 1f; mov $22, %%rbp\n"
                     "mov $-1, %%rdx; stc; mov $0, %%ecx; mov $0, %%eax; xgetbv\n"
                     "jnc 1f; bt $32, %%rdx; jc 1f; test %%rcx, %%rcx; jnz 1f; test $3, %%al; jz 1f\n"
                     "cmp $20, %%r11; jne 1f; cmp $22, %%rbp; jne 1f; cmp $23, %%rdi; jne 1f; cmp $24, %%r10; jne 1f; cmp $25, %%r8; jne 1f\n"
                     "cmp $26, %%r9; jne 1f; cmp $27, %%r12; jne 1f; cmp $28, %%r13; jne 1f; cmp $29, %%r14; jne 1f; cmp $30, %%r15; jne 1f\n"
                     "cmp $31, %%rsi; jne 1f; cmpq $33, -8(%%rsp); jne 1f\n"
                     "xor %%eax, %%eax; jmp 2f\n"
                     "1: mov $1, %%eax\n"
                     "2: pop %%rbp"
                     : "=a"(wrong)
                     :: "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
    CHECK(wrong == 0);
}

int main(void)
{
    for (int i = 0; i < 300; i++)
        processor();
    for (int i = 0; i < 3000; i++) { /* by the backstop, and rewritten once it is */
        call(SYS_getpid);
        call(SYS_sched_yield);
        call(SYS_gettid);
        call(9999);
        call(SYS_close);             /* 23 is not open: an error */
        call(SYS_futex);             /* a misaligned address */
    }
    pthread_t t[4];
    for (uint64_t i = 0; i < 4; i++)
        CHECK(!pthread_create(&t[i], 0, spin, (void *)(i + 1)));
    while (running < 4)
        usleep(1000);
    usleep(30000);
    stop = 1;
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_join(t[i], 0));
    struct sigaction alarm = {.sa_handler = on_alarm};
    struct itimerval every = {{0, 1000}, {0, 1000}}, off = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &alarm, 0);
    stop = 0;
    setitimer(ITIMER_REAL, &every, 0);
    spin((void *)77);
    setitimer(ITIMER_REAL, &off, 0);
    CHECK(alarms >= 30);
    return 0;
}
