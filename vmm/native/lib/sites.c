/* Branch targets by brute force: a rewritten window must not be jumped into, and jumps come from anywhere in a file (functions' cold
 * parts lie megabytes away). Decoding all of it in Python is slow; looking at each byte as if a jump began there is quick, errs
 * only towards too many targets, and a wrong one hits a given byte with a chance of about size / 2^39. */
#include <string.h>
#include "internal.h"

void afw_sites_far_targets(const uint8_t *code, uint64_t size, uint8_t *bitmap)
{
    for (uint64_t i = 0; i + 5 <= size; i++) {
        uint64_t at;
        if ((code[i] & 0xfe) == 0xe8) /* call, jmp */
            at = i + 1;
        else if (code[i] == 0x0f && (code[i + 1] & 0xf0) == 0x80) /* jcc */
            at = i + 2;
        else
            continue;
        if (at + 4 > size)
            continue;
        int32_t displacement;
        memcpy(&displacement, code + at, 4);
        uint64_t target = at + 4 + (uint64_t)(int64_t)displacement; /* wraps below zero to something huge */
        if (target < size)
            bitmap[target / 8] |= (uint8_t)(1u << target % 8);
    }
}
