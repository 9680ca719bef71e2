/* On the harness only, with 256 MiB: memory ends with ENOMEM, not with a fault, and comes back. */
#include "check.h"
#include <pthread.h>
#include <sys/mman.h>

static void *nothing(void *arg)
{
    return arg;
}

int main(void)
{
    enum { MIB = 1 << 20, PIECES = 300 };
    static char *piece[PIECES];
    int had[3];
    for (int round = 0; round < 3; round++) {
        int n = 0;
        while (n < PIECES && (piece[n] = mmap(0, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED) {
            CHECK(piece[n][0] == 0 && piece[n][MIB - 1] == 0);
            piece[n][0] = piece[n][MIB - 1] = 1;
            n++;
        }
        CHECK(errno == ENOMEM && n > 200 && n < 256);
        CHECK(sbrk(8 * MIB) == (void *)-1 && errno == ENOMEM);
        pthread_t t;
        if (round == 0)                                          /* later the C library has a stack left over */
            CHECK(pthread_create(&t, 0, nothing, 0) == EAGAIN);
        char *none = mmap(0, 100 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(none != MAP_FAILED);                               /* costs nothing until it is opened */
        CHECK(mprotect(none, 100 * MIB, PROT_READ | PROT_WRITE) == -1 && errno == ENOMEM);
        CHECK(mremap(piece[0], MIB, 50 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM);
        CHECK(piece[0][0] == 1 && !munmap(none, 100 * MIB));
        for (int i = 0; i < n; i++)
            CHECK(piece[i][0] == 1 && !munmap(piece[i], MIB));
        had[round] = n;
        CHECK(!pthread_create(&t, 0, nothing, 0) && !pthread_join(t, 0));
    }
    CHECK(had[1] >= had[0] - 4 && had[2] >= had[1] - 1);
    return 0;
}
