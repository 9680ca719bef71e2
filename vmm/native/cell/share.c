/* Who gets the CPU: time used is charged to the VM and to the cell, limits are kept by waiting, turns go to who had least.
 *
 * Charged is the CPU time of the runner's thread, whatever it was spent on: guest code, exits, ring operations, restoring. So a guest
 * has no way to use time that does not count. A limit is a credit that grows with the clock, up to what a period gives, and falls by
 * what is used; who has none left is not entered until it has some again. A debt (a long ring operation) is paid back in full.
 */
#include "machine.h"

#define MILLION 1000000
#define PERIOD 100000000ull                      /* ns: as much credit may gather as this much time gives */
#define DEBT 10000000000ull                      /* ns: and as much debt */
#define LEAD 5000000ull                          /* ns of CPU time by which who slept goes before the others */

static struct {
    pthread_mutex_t lock;
    struct credit credit;
} common = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t thread_cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int64_t part(uint64_t ns, uint32_t rate) { return (int64_t)((unsigned __int128)ns * rate / MILLION); }

static void take(struct credit *c, uint64_t ns)
{
    int64_t floor = -part(DEBT, c->rate);
    c->ns = ns > DEBT || c->ns - (int64_t)ns < floor ? floor : c->ns - (int64_t)ns;
}

/* -> 0: go on; else the time from which on it may */
static uint64_t wait_until(struct credit *c, uint64_t now)
{
    if (now > c->at) {
        uint64_t past = now - c->at;
        int64_t most = part(PERIOD, c->rate), gain = part(past < 2 * DEBT ? past : 2 * DEBT, c->rate);
        if (c->ns + gain >= most) {
            c->ns = most;
            c->at = now;
        } else {
            c->ns += gain;
            c->at += (uint64_t)gain * MILLION / c->rate;   /* what did not make a whole nanosecond is not lost */
        }
    }
    return c->ns > 0 ? 0 : c->at + (uint64_t)(1 - c->ns) * MILLION / c->rate + 1;
}

static void set(struct credit *c, uint64_t rate)
{
    uint32_t was = c->rate;
    uint64_t now = clock_mono();
    if (was)
        wait_until(c, now);                      /* up to here by the old rate */
    c->rate = rate > SHARE_MOST ? SHARE_MOST : rate && rate < SHARE_LEAST ? SHARE_LEAST : (uint32_t)rate;
    if (!was) {                                  /* begin with what one turn takes, at most */
        c->at = now;
        c->ns = part(PERIOD, c->rate);
    }
    if (c->rate && c->ns < -part(DEBT, c->rate))
        c->ns = -part(DEBT, c->rate);
}

void share_cell(uint64_t rate)
{
    pthread_mutex_lock(&common.lock);
    struct credit c = common.credit;
    set(&c, rate);
    common.credit.ns = c.ns;
    common.credit.at = c.at;
    __atomic_store_n(&common.credit.rate, c.rate, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&common.lock);
}

void share_limit(struct machine *m, uint64_t rate, uint64_t cpu_ns)
{
    set(&m->credit, rate);
    m->cpu_allowed = cpu_ns;
    m->cpu_end = cpu_ns && cpu_ns < ~0ull - m->cpu_ns ? m->cpu_ns + cpu_ns : ~0ull;
}

void share_charge(struct runner *r, struct machine *m)
{
    uint64_t now = thread_cpu(), used = now - r->cpu_mark;
    r->cpu_mark = now;
    if (m) {
        m->vm.shm->cpu_ns = m->cpu_ns += used;
        m->turns_ns += used;
        if (m->credit.rate)
            take(&m->credit, used);
    }
    if (__atomic_load_n(&common.credit.rate, __ATOMIC_RELAXED)) {
        pthread_mutex_lock(&common.lock);
        if (common.credit.rate)
            take(&common.credit, used);
        pthread_mutex_unlock(&common.lock);
    }
}

uint64_t share_wait(uint64_t *now)
{
    if (!__atomic_load_n(&common.credit.rate, __ATOMIC_RELAXED))
        return 0;
    if (!*now)
        *now = clock_mono();
    pthread_mutex_lock(&common.lock);
    uint64_t until = common.credit.rate ? wait_until(&common.credit, *now) : 0;
    pthread_mutex_unlock(&common.lock);
    return until;
}

uint64_t share_wait_vm(struct machine *m, uint64_t *now)
{
    if (!m->credit.rate)
        return 0;
    if (!*now)
        *now = clock_mono();
    return wait_until(&m->credit, *now);
}

/* Least time first. Who slept does not bring along all it did not use then, only a small lead: it is served at once, and cannot keep
 * the others waiting for long. */
bool share_before(struct runner *r, struct machine *m, const struct machine *other)
{
    if (m->turns_ns + LEAD < r->turns_ns)
        m->turns_ns = r->turns_ns - LEAD;
    return !other || m->turns_ns < other->turns_ns;
}

void share_turn(struct runner *r, const struct machine *m)
{
    if (r->turns_ns < m->turns_ns)
        r->turns_ns = m->turns_ns;
}
