#ifndef GUEST_MEMORY_H
#define GUEST_MEMORY_H
#include "vmm.h"

/* Of the program that guest_memory.c is part of: `vm.mem` is so large, and copies fail from `hole` to `hole_end` */
extern const struct test_memory {
    uint64_t size, hole, hole_end;
} test_memory;
#endif
