/* The guest's clock: it computes CLOCK_MONOTONIC from the TSC with what lies in the control page; here it is kept true.
 * A refresh never lets the guest's time go back: if the old formula ran ahead, the new one runs slower until it is caught up. */
#include <x86intrin.h>
#include "machine.h"

static uint64_t nominal_mult, start_tsc, start_mono;

uint64_t clock_mono(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

uint64_t clock_ticks(uint64_t ticks)
{
    return (uint64_t)(((unsigned __int128)ticks * nominal_mult) >> 32);
}

/* TSC and monotonic time of one moment: the best of three, for an interrupt may come between. */
static void moment(uint64_t *tsc, uint64_t *mono)
{
    uint64_t best = ~0ull;
    for (int i = 0; i < 3; i++) {
        uint64_t a = __rdtsc(), ns = clock_mono(), b = __rdtsc();
        if (b - a < best) {
            best = b - a;
            *tsc = a + (b - a) / 2;
            *mono = ns;
        }
        if (best < 2000)
            break;
    }
}

void clock_setup(uint32_t tsc_khz)
{
    moment(&start_tsc, &start_mono);
    if (tsc_khz)
        nominal_mult = (uint64_t)(((unsigned __int128)1000000 << 32) / tsc_khz);
    else {                                       /* KVM does not know: measure for 20 ms */
        struct timespec t = {0, 20000000};
        nanosleep(&t, 0);
        uint64_t tsc, mono;
        moment(&tsc, &mono);
        nominal_mult = (uint64_t)(((unsigned __int128)(mono - start_mono) << 32) / (tsc - start_tsc));
    }
}

/* The rate as this host's CLOCK_MONOTONIC has it: NTP slews that by up to 500 ppm, KVM's figure is nominal. */
static uint64_t true_mult(uint64_t tsc, uint64_t mono)
{
    if (mono - start_mono < 200000000 || tsc <= start_tsc)
        return nominal_mult;
    uint64_t m = (uint64_t)(((unsigned __int128)(mono - start_mono) << 32) / (tsc - start_tsc)), slack = nominal_mult / 500;
    return m > nominal_mult - slack && m < nominal_mult + slack ? m : nominal_mult;
}

/* CLOCK_REALTIME less CLOCK_MONOTONIC. NTP slews both, so it changes when somebody sets the clock; what it seems to change by besides is
 * how long it took to read them, and the guest's time must not go back by that. */
static uint64_t real_offset(struct machine *m)
{
    uint64_t offset = 0, best = ~0ull;
    for (int i = 0; i < 3 && best > 500; i++) {
        struct timespec real;
        uint64_t a = clock_mono();
        clock_gettime(CLOCK_REALTIME, &real);
        uint64_t b = clock_mono();
        if (b - a >= best)
            continue;
        best = b - a;
        offset = (uint64_t)real.tv_sec * 1000000000 + (uint64_t)real.tv_nsec - a - best / 2;
    }
    uint64_t change = offset - m->clock_real_offset;
    if (change + best + 100 > 2 * best + 200)
        m->clock_real_offset = offset;
    return m->clock_real_offset;
}

uint64_t clock_guest(const struct machine *m)
{
    return m->clock_mono_base + (uint64_t)(((unsigned __int128)(__rdtsc() + m->tsc_delta - m->clock_tsc_base) * m->clock_mult) >> 32);
}

void clock_refresh(struct machine *m)
{
    struct afw_ctl *ctl = m->vm.ctl;
    uint64_t tsc, mono;
    moment(&tsc, &mono);
    uint64_t mult = true_mult(tsc, mono), guest_tsc = tsc + m->tsc_delta, base = mono;
    /* What the guest would say now */
    uint64_t old_base = m->clock_tsc_base, old_mult = m->clock_mult;
    if (old_mult) {
        uint64_t said = m->clock_mono_base + (uint64_t)(((unsigned __int128)(guest_tsc - old_base) * old_mult) >> 32);
        if (said > mono) {
            base = said;
            mult -= mult / 2000;
        }
    }
    ctl->tsc_base = m->clock_tsc_base = guest_tsc;
    ctl->tsc_mult = m->clock_mult = mult;
    ctl->mono_base = m->clock_mono_base = base;
    ctl->real_offset = real_offset(m);
    ctl->cpu_ns = m->cpu_ns;
}
