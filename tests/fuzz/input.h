/* What a fuzzer's bytes are taken for, piece by piece; zeros at the end of them. */
#ifndef FUZZ_INPUT_H
#define FUZZ_INPUT_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct input {
    const uint8_t *at;
    size_t left;
};

static inline void take(struct input *in, void *out, size_t n)
{
    size_t have = n < in->left ? n : in->left;
    memset(out, 0, n);
    if (have)
        memcpy(out, in->at, have);
    in->at += have;
    in->left -= have;
}

static inline uint64_t number(struct input *in, size_t bytes)
{
    uint64_t v = 0;
    take(in, &v, bytes);
    return v;
}

/* The code under test went where it must not */
static inline void must(int ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
#endif
