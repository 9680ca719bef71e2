/* What threads hold in registers when a snapshot is taken, they hold in every VM that is made of it: vectors, the x87 stack, MXCSR, TLS. */
#include "check.h"
#include <fcntl.h>
#include <pthread.h>

#define THREADS 4
static volatile int stop, running;
static __thread uint64_t own;
static int avx512;

static void spin(uint64_t seed, uint64_t out[20])
{
    uint32_t csr = 0x1f80 | (uint32_t)(seed & 3) << 13;      /* the rounding is another in each */
    __asm__ volatile("ldmxcsr %3; fninit; fldl (%1)\n"
                     "vmovq %1, %%xmm5; vpbroadcastq (%1), %%ymm7; vpbroadcastq (%1), %%ymm14\n"
                     "1: cmpl $0, %2; je 1b\n"
                     "vmovdqu %%ymm7, (%0); vmovdqu %%ymm14, 32(%0); fstpl 136(%0); stmxcsr 144(%0); movl $0x1f80, 152(%0); ldmxcsr 152(%0); vzeroupper"
                     ::"r"(out), "r"(&seed), "m"(stop), "m"(csr) : "xmm5", "xmm7", "xmm14", "st", "memory");
    CHECK((uint32_t)out[18] == csr && out[17] == seed);
}

static void spin_512(uint64_t seed, uint64_t out[20])
{
    __asm__ volatile(".arch .avx512f\n"
                     "vpbroadcastq %1, %%zmm9; vpbroadcastq %1, %%zmm27; kmovw %k1, %%k5\n"
                     "1: cmpl $0, %2; je 1b\n"
                     "vmovdqu64 %%zmm9, (%0); vmovdqu64 %%zmm27, 64(%0); kmovw %%k5, %%eax; mov %%rax, 128(%0); vzeroupper"
                     ::"r"(out), "r"(seed), "m"(stop) : "rax", "xmm9", "memory");
    for (int i = 8; i < 16; i++)
        CHECK(out[i] == seed);
    CHECK((uint16_t)out[16] == (uint16_t)seed);
}

static void *thread(void *arg)
{
    uint64_t out[20], seed = 0x3ff0123456789abc + (uint64_t)arg;
    own = seed;
    __atomic_add_fetch(&running, 1, __ATOMIC_SEQ_CST);
    if (avx512 && ((uint64_t)arg & 1))
        spin_512(seed, out);
    else
        spin(seed, out);
    for (int i = 0; i < 8; i++)
        CHECK(out[i] == seed);
    CHECK(own == seed);
    return 0;
}

int main(int argc, char **argv)
{
    pthread_t t[THREADS];
    avx512 = argc > 1 && !strcmp(argv[1], "avx512");
    own = 1;
    for (uint64_t i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&t[i], 0, thread, (void *)i));
    while (running < THREADS)
        usleep(1000);
    usleep(30000);
    (void)!open("/dev/agentfw", O_RDWR);         /* the snapshot is taken here; natively there is no such thing */
    usleep(10000);
    stop = 1;
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_join(t[i], 0));
    CHECK(own == 1);
    return 0;
}
