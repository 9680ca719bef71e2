/* getrandom(): ChaCha20 keyed by the host's seed, with the key replaced after each call (fast key erasure). */
#include "core.h"

static u32 key[8];

static inline u32 rotate(u32 x, u32 n)
{
    return x << n | x >> (32 - n);
}

/* RFC 8439 block function with a zero nonce: the key is used for one call only. */
static void chacha_block(u32 counter, u32 out[16])
{
    u32 in[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
    memcpy(in + 4, key, 32);
    in[12] = counter;
    memcpy(out, in, 64);
    for (u32 i = 0; i < 80; i++) {   /* quarter rounds: four columns, four diagonals, ten times */
        u32 n = i & 3, diagonal = i >> 2 & 1;
        u32 *a = out + n, *b = out + 4 + ((n + diagonal) & 3), *c = out + 8 + ((n + 2 * diagonal) & 3);
        u32 *d = out + 12 + ((n + 3 * diagonal) & 3);
        for (u32 shift = 0x07080c10; shift; shift >>= 16) {
            *a += *b;
            *d = rotate(*d ^ *a, shift & 31);
            *c += *d;
            *b = rotate(*b ^ *c, shift >> 8 & 31);
        }
    }
    for (int i = 0; i < 16; i++)
        out[i] += in[i];
}

void random_bytes(void *buffer, size_t n)
{
    u32 stream[16], counter = 0;
    u8 *p = buffer;
    chacha_block(counter++, stream);
    u32 next[8];
    memcpy(next, stream, 32);        /* first half of the first block: the next key */
    size_t have = 32;
    while (n) {
        if (!have) {
            chacha_block(counter++, stream);
            have = 64;
        }
        size_t take = n < have ? n : have;
        memcpy(p, (u8 *)stream + 64 - have, take);
        have -= take;
        p += take;
        n -= take;
    }
    memcpy(key, next, 32);
    memset(stream, 0, sizeof stream);
    memset(next, 0, sizeof next);
}

/* Mixes the host's seed in and wipes it there, so that no snapshot or later reader of the page has it. */
void random_reseed(void)
{
    u32 *seed = (u32 *)(AFW_CTL + offsetof(struct afw_ctl, seed));
    for (int i = 0; i < 8; i++)
        key[i] ^= seed[i];
    memset(seed, 0, 32);
    u8 drop[1];
    random_bytes(drop, 1);
}

#define GRND_KNOWN 7                 /* NONBLOCK, RANDOM, INSECURE */
s64 sys_getrandom(u64 buffer, u64 n, u64 flags)
{
    if (flags & ~GRND_KNOWN)
        return -EINVAL;
    if (n > 0x1ffffff)
        n = 0x1ffffff;
    if (!user_ok(buffer, n, 1))
        return -EFAULT;
    random_bytes((void *)buffer, n);
    return (s64)n;
}
