/* For the guest programs: each must end with 0 natively, too. */
#ifndef CHECK_H
#define CHECK_H
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            char text[300]; \
            int n = snprintf(text, sizeof text, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            _exit(write(2, text, (size_t)n) < 0 ? __LINE__ % 90 + 1 : 1); \
        } \
    } while (0)

static inline uint64_t ns_now(clockid_t id)
{
    struct timespec t;
    CHECK(!clock_gettime(id, &t));
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
#endif
