/* Ends with 1 if cpuid or xgetbv tell of more than x86-64-v3; in VMs only. */
#include "check.h"

int main(void)
{
    unsigned a, d;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx"))
        return 0;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return a != 7 || __builtin_cpu_supports("avx512f");
}
