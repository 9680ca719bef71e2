/* getrandom: writes three answers in hex; on the harness, whose seed is known, the test computes them. */
#include "check.h"
#include <sys/random.h>

int main(void)
{
    static const size_t sizes[] = {100, 7, 300};
    unsigned char b[300], zero[100] = {0};
    for (int i = 0; i < 3; i++) {
        memset(b, 0, sizeof b);
        CHECK(getrandom(b, sizes[i], i == 1 ? GRND_NONBLOCK : 0) == (ssize_t)sizes[i]);
        CHECK(i == 1 || memcmp(b, zero, 100));
        for (size_t j = 0; j < sizes[i]; j++)
            printf("%02x", b[j]);
        printf("\n");
    }
    CHECK(getrandom(b, 10, 0x100) == -1 && errno == EINVAL);
    void *volatile bad = (void *)8;
    CHECK(getrandom(bad, 10, 0) == -1 && errno == EFAULT);
    CHECK(getrandom(b, 0, 0) == 0);
    fflush(stdout);
    return 0;
}
