/* getrandom(): ChaCha20 keyed by the host's seed, with the key replaced after each call (fast key erasure). */
#include "core.h"

static u32 key[8];

static inline u32 rotate(u32 x, int n)
{
    return x << n | x >> (32 - n);
}

static void quarter(u32 *s, int a, int b, int c, int d)
{
    s[a] += s[b];
    s[d] = rotate(s[d] ^ s[a], 16);
    s[c] += s[d];
    s[b] = rotate(s[b] ^ s[c], 12);
    s[a] += s[b];
    s[d] = rotate(s[d] ^ s[a], 8);
    s[c] += s[d];
    s[b] = rotate(s[b] ^ s[c], 7);
}

/* RFC 8439 block function with a zero nonce: the key is used for one call only. */
static void chacha_block(const u32 k[8], u32 counter, u32 out[16])
{
    u32 in[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
    memcpy(in + 4, k, 32);
    in[12] = counter;
    memcpy(out, in, 64);
    for (int i = 0; i < 10; i++) {
        for (int c = 0; c < 4; c++)
            quarter(out, c, 4 + c, 8 + c, 12 + c);
        for (int c = 0; c < 4; c++)
            quarter(out, c, 4 + (c + 1) % 4, 8 + (c + 2) % 4, 12 + (c + 3) % 4);
    }
    for (int i = 0; i < 16; i++)
        out[i] += in[i];
}

void random_bytes(void *buffer, size_t n)
{
    u32 stream[16], counter = 0;
    u8 *p = buffer;
    chacha_block(key, counter++, stream);
    u32 next[8];
    memcpy(next, stream, 32);        /* first half of the first block: the next key */
    size_t have = 32;
    while (n) {
        if (!have) {
            chacha_block(key, counter++, stream);
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
