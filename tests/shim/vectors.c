/* All vector registers that the CPU has survive time slices and signals, whatever cpuid says of it: a program may use AVX-512 that it
 * was not told of (and does, where KVM cannot hide it from the first instructions of ld.so). */
#include "check.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

static sigjmp_buf back;
static void on_ill(int sig)
{
    (void)sig;
    siglongjmp(back, 1);
}

static int have_avx, have_avx512;
static volatile int stop, running;

/* Fills registers, spins until `stop`, and gives back what is in them then. */
static void spin_avx(uint64_t seed, uint64_t out[8])
{
    __asm__ volatile("vmovq %1, %%xmm6; vpbroadcastq %%xmm6, %%ymm7; vpbroadcastq %%xmm6, %%ymm14\n"
                     "1: cmpl $0, %2; je 1b\n"
                     "vmovdqu %%ymm7, (%0); vmovdqu %%ymm14, 32(%0)"
                     ::"r"(out), "r"(seed), "m"(stop) : "xmm6", "xmm7", "xmm14", "memory");
}

static void spin_avx512(uint64_t seed, uint64_t out[17])
{
    __asm__ volatile(".arch .avx512f\n"
                     "vpbroadcastq %1, %%zmm9; vpbroadcastq %1, %%zmm27; kmovw %k1, %%k5\n"
                     "1: cmpl $0, %2; je 1b\n"
                     "vmovdqu64 %%zmm9, (%0); vmovdqu64 %%zmm27, 64(%0); kmovw %%k5, %%eax; mov %%rax, 128(%0)"
                     ::"r"(out), "r"(seed), "m"(stop) : "rax", "xmm9", "memory");
}

static void *spin(void *arg)
{
    uint64_t seed = (uint64_t)arg, out[17];
    __atomic_add_fetch(&running, 1, __ATOMIC_SEQ_CST);
    if (have_avx512) {
        spin_avx512(seed, out);
        for (int i = 0; i < 16; i++)
            CHECK(out[i] == seed);
        CHECK((out[16] & 0xffff) == (seed & 0xffff));
    } else if (have_avx) {
        spin_avx(seed, out);
        for (int i = 0; i < 8; i++)
            CHECK(out[i] == seed);
    }
    return 0;
}

static volatile int alarms;
static void on_alarm(int sig)        /* a handler that uses them all */
{
    (void)sig;
    alarms++;
    if (have_avx512)
        __asm__ volatile(".arch .avx512f\nvpxorq %%zmm9, %%zmm9, %%zmm9; vpxorq %%zmm27, %%zmm27, %%zmm27; kxorw %%k5, %%k5, %%k5" ::: "xmm9");
    else if (have_avx)
        __asm__ volatile("vzeroall" ::: "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                                        "xmm12", "xmm13", "xmm14", "xmm15");
    if (alarms == 20)
        stop = 1;
}

int main(void)
{
    struct sigaction ill = {.sa_handler = on_ill, .sa_flags = SA_NODEFER}, alarm = {.sa_handler = on_alarm};
    sigaction(SIGILL, &ill, 0);
    if (!sigsetjmp(back, 1)) {
        __asm__ volatile("vpbroadcastq %%xmm6, %%ymm7" ::: "xmm7");
        have_avx = 1;
        __asm__ volatile(".arch .avx512f\nvpxorq %%zmm27, %%zmm27, %%zmm27; kxorw %%k5, %%k5, %%k5" :::);
        have_avx512 = 1;
    }
    if (!have_avx)
        return 0;
    pthread_t t[5];
    for (uint64_t i = 0; i < 5; i++)
        CHECK(!pthread_create(&t[i], 0, spin, (void *)(0x1111111111111111 * (i + 1))));
    while (running < 5)
        usleep(1000);
    usleep(30000);
    stop = 1;
    for (int i = 0; i < 5; i++)
        CHECK(!pthread_join(t[i], 0));
    /* the same against signal handlers */
    struct itimerval every = {{0, 2000}, {0, 2000}}, off = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &alarm, 0);
    stop = 0;
    setitimer(ITIMER_REAL, &every, 0);
    spin((void *)0x5a5a5a5a5a5a5a5a);
    setitimer(ITIMER_REAL, &off, 0);
    CHECK(alarms >= 20);
    return 0;
}
