/* Bits of afw_snapshot_header.needs: CPU features that guests are shown, hence that code in a snapshot may use.
 * Word 0: leaf 1 ECX, EDX << 32. Word 1: leaf 7 EBX, ECX << 32. Word 2: leaf 0x80000001 ECX, EDX << 32. Word 3: XCR0.
 *
 * The list is the fleet's baseline, x86-64-v3 and what every CPU of that level has beside it (AES, PCLMULQDQ, RDRAND, FSGSBASE):
 * a snapshot moves between all of them. ERMS, ADX, SHA are left out, for some lack them.
 */
#ifndef AFW_NEEDS_H
#define AFW_NEEDS_H

struct need { unsigned word, bit; const char *name; };

static const struct need needs_all[] = {
    {0, 0, "sse3"}, {0, 1, "pclmulqdq"}, {0, 9, "ssse3"}, {0, 12, "fma"}, {0, 13, "cx16"}, {0, 19, "sse4_1"}, {0, 20, "sse4_2"},
    {0, 22, "movbe"}, {0, 23, "popcnt"}, {0, 25, "aes"}, {0, 26, "xsave"}, {0, 28, "avx"}, {0, 29, "f16c"}, {0, 30, "rdrand"},
    {0, 32, "fpu"}, {0, 36, "tsc"}, {0, 40, "cx8"}, {0, 47, "cmov"}, {0, 51, "clflush"}, {0, 55, "mmx"}, {0, 56, "fxsr"},
    {0, 57, "sse"}, {0, 58, "sse2"},
    {1, 0, "fsgsbase"}, {1, 3, "bmi1"}, {1, 5, "avx2"}, {1, 8, "bmi2"},
    {2, 0, "lahf_lm"}, {2, 5, "lzcnt"}, {2, 43, "syscall"}, {2, 52, "nx"}, {2, 59, "rdtscp"}, {2, 61, "lm"},
    {3, 0, "x87 state"}, {3, 1, "SSE state"}, {3, 2, "AVX state"},
};
/* Without these nothing runs: CR4 and the shim use them. */
static const struct need needs_must[] = {
    {0, 26, "xsave"}, {0, 36, "tsc"}, {0, 58, "sse2"}, {1, 0, "fsgsbase"}, {2, 43, "syscall"}, {2, 61, "lm"},
};
#endif
