/* getrandom(): the host's own bytes, of which the control page always holds some that are this VM's alone (abi.h). */
#include "core.h"

#define MANY 128                     /* so many go to where they are wanted at once */

void random_bytes(void *buffer, size_t n)
{
    u8 *p = buffer;
    while (n) {
        s64 take = (s64)n;
        if (n > MANY) {
            take = ring_call(AFW_OP_RANDOM, (u64)p, n, 0, 0, 0, 0);
            if (take <= 0)           /* a mapped file's end lies before it */
                fail(-EFAULT);
        } else {
            if (CTL->random_left < n)                /* (what is left is not mixed in: it is as good as the next) */
                ring_call(AFW_OP_RANDOM, 0, 0, 0, 0, 0, 0);
            u32 left = CTL->random_left - (u32)n;
            memcpy(p, CTL->random + left, n);
            memset(CTL->random + left, 0, n);        /* what was handed out, no snapshot or later reader of the page has */
            CTL->random_left = left; /* last: a VM that is forked in between has new ones, and what was wiped of them is not handed out */
        }
        p += take;
        n -= take;
    }
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
