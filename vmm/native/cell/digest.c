/* CRC-64 (accidental damage of snapshots) and SHA-256 (which shim a snapshot was made with). */
#include <string.h>
#include "machine.h"

uint64_t crc64(uint64_t crc, const void *data, size_t n)
{
    static uint64_t table[256];
    static atomic_bool ready;
    if (!atomic_load_explicit(&ready, memory_order_acquire)) {   /* two threads may both fill it: with the same values */
        for (unsigned i = 0; i < 256; i++) {
            uint64_t c = i;
            for (int k = 0; k < 8; k++)
                c = c & 1 ? c >> 1 ^ 0xc96c5795d7870f42 : c >> 1;
            table[i] = c;
        }
        atomic_store_explicit(&ready, true, memory_order_release);
    }
    const uint8_t *p = data;
    crc = ~crc;
    while (n--)
        crc = table[(crc ^ *p++) & 0xff] ^ crc >> 8;
    return ~crc;
}

static uint32_t ror(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void sha256_block(uint32_t h[8], const uint8_t *p, const uint32_t k[64])
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = ror(w[i - 15], 7) ^ ror(w[i - 15], 18) ^ w[i - 15] >> 3, b = ror(w[i - 2], 17) ^ ror(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t t1 = s[7] + (ror(s[4], 6) ^ ror(s[4], 11) ^ ror(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
        uint32_t t2 = (ror(s[0], 2) ^ ror(s[0], 13) ^ ror(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        h[i] += s[i];
}

/* The constants are by definition the first 32 bits of the fractional parts of square and cube roots of primes: computed, with
 * integers, so that no table needs trust. */
static uint32_t root_fraction(unsigned prime, int power)
{
    unsigned __int128 target = (unsigned __int128)prime << (power == 2 ? 64 : 96), low = 0, high = (unsigned __int128)1 << 38;
    while (high - low > 1) {
        unsigned __int128 mid = (low + high) / 2, value = power == 2 ? mid * mid : mid * mid * mid;
        if (value <= target)
            low = mid;
        else
            high = mid;
    }
    return (uint32_t)low;
}

void sha256(uint8_t out[32], const void *data, size_t n)
{
    uint32_t h[8], k[64];
    for (unsigned found = 0, candidate = 2; found < 64; candidate++) {
        bool prime = true;
        for (unsigned d = 2; d * d <= candidate; d++)
            prime &= candidate % d != 0;
        if (!prime)
            continue;
        k[found] = root_fraction(candidate, 3);
        if (found < 8)
            h[found] = root_fraction(candidate, 2);
        found++;
    }
    const uint8_t *p = data;
    size_t left = n;
    for (; left >= 64; left -= 64, p += 64)
        sha256_block(h, p, k);
    uint8_t last[128] = {0};
    memcpy(last, p, left);
    last[left] = 0x80;
    size_t blocks = left < 56 ? 1 : 2;
    uint64_t bits = (uint64_t)n * 8;
    for (int i = 0; i < 8; i++)
        last[blocks * 64 - 1 - i] = (uint8_t)(bits >> (8 * i));
    for (size_t i = 0; i < blocks; i++)
        sha256_block(h, last + 64 * i, k);
    for (int i = 0; i < 32; i++)
        out[i] = (uint8_t)(h[i / 4] >> (24 - 8 * (i % 4)));
}
