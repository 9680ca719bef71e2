/* In place of libFuzzer where there is no clang: every file named (or in a directory named) once, then `rounds` damaged copies of them.
 *   fuzzer -rounds=N -seed=S PATH...
 * What breaks is written to ./crash-input before the sanitizer ends the program: the last input that was begun. */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>
#include "input.h"

#define SIZE_MAX_INPUT 65536
static struct { uint8_t *data; size_t size; } inputs[4096];
static unsigned n_inputs;
static uint64_t state = 88172645463325252ull;

static uint64_t rnd(uint64_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % n;
}

static void add(const char *path)
{
    static uint8_t buffer[SIZE_MAX_INPUT];
    struct stat st;
    char below[4096];
    if (stat(path, &st))
        exit(2);
    if (S_ISDIR(st.st_mode)) {
        DIR *d = opendir(path);
        for (struct dirent *e; d && (e = readdir(d));)
            if (*e->d_name != '.' && snprintf(below, sizeof below, "%s/%s", path, e->d_name) < (int)sizeof below)
                add(below);
        closedir(d);
        return;
    }
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(buffer, 1, sizeof buffer, f) : 0;
    if (f)
        fclose(f);
    if (n_inputs == sizeof inputs / sizeof *inputs)
        return;
    inputs[n_inputs].data = memcpy(malloc(n + 1), buffer, n);
    inputs[n_inputs++].size = n;
}

static void run(const uint8_t *data, size_t n)
{
    uint8_t *exact = malloc(n ? n : 1);              /* so that a byte too many is seen */
    memcpy(exact, data, n);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
}

int main(int argc, char **argv)
{
    static uint8_t bad[SIZE_MAX_INPUT];
    unsigned long rounds = 0;
    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], "-rounds=", 8))
            rounds = strtoul(argv[i] + 8, 0, 10);
        else if (!strncmp(argv[i], "-seed=", 6))
            state += strtoull(argv[i] + 6, 0, 10) * 0x9e3779b97f4a7c15ull;
        else
            add(argv[i]);
    for (unsigned i = 0; i < n_inputs; i++)
        run(inputs[i].data, inputs[i].size);
    for (unsigned long r = 0; r < rounds && n_inputs; r++) {
        unsigned from = (unsigned)rnd(n_inputs), other = (unsigned)rnd(n_inputs);
        size_t n = inputs[from].size;
        memcpy(bad, inputs[from].data, n);
        for (uint64_t k = 1 + rnd(8); k && n > 8; k--) {     /* half of it at the beginning, where heads are */
            static const uint64_t odd[] = {0, 1, 0xff, 0xfff, 0x1000, 0x7fffffff, 0xffffffff, ~0ull, 0x7fffffffffffffff,
                                           ~0xfffull, 0x3c0000000, 0x400000, 0x200000};
            size_t at = rnd(n > 1032 && rnd(2) ? 1024 : n - 8), piece = rnd(64);
            switch (rnd(5)) {
            case 0: bad[at] ^= (uint8_t)(1 << rnd(8)); break;
            case 1: memcpy(bad + at, &odd[rnd(sizeof odd / 8)], 1 + rnd(8)); break;
            case 2: bad[at] = (uint8_t)rnd(256); break;
            case 3: n -= rnd(n / 4 + 1); break;
            default:
                if (inputs[other].size > piece && at + piece < n)
                    memcpy(bad + at, inputs[other].data + rnd(inputs[other].size - piece), piece);
            }
        }
        FILE *f = fopen("crash-input", "wb");
        if (f) {
            fwrite(bad, 1, n, f);
            fclose(f);
        }
        run(bad, n);
    }
    unlink("crash-input");
    printf("%u inputs, %lu rounds\n", n_inputs, rounds);
    return 0;
}
