/* Numbers by chance that are the same in each run of a seed: xorshift (Marsaglia 2003). Whoever includes it sets `state`, not to 0. */
#ifndef CHANCE_H
#define CHANCE_H
#include <stdint.h>

static uint32_t state = 12345;
static uint32_t rnd(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state % n;
}
#endif
