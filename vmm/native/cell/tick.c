/* The tick that ends a turn: while a VM runs, a timer sends its runner's thread a signal each slice. The handler sets a flag and immediate_exit of
 * the VM about to be entered, so that a signal just before KVM_RUN is not lost.
 */
#include <stdlib.h>
#include "machine.h"

#define SIGNAL_TICK SIGUSR1
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

__thread struct kvm_run *volatile runner_entered;
__thread volatile sig_atomic_t runner_tick;

static void on_tick(int sig)
{
    (void)sig;
    runner_tick = 1;
    struct kvm_run *run = runner_entered;
    if (run)
        run->immediate_exit = 1;
}

#define SOON 500000ull                           /* ns that a turn lasts whoever wakes up meanwhile: entering a guest is not free */
#define WAKE 100000ull                           /* ns that it lasts whatever its own threads wait for */
#define STRETCH 16                               /* so many times its slice at most */

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
}

static void timer_first(struct runner *r, uint64_t now, uint64_t first)
{
    struct itimerspec t = {.it_interval = timespec_of(r->slice), .it_value = timespec_of(first)};
    timer_settime(r->timer, 0, &t, 0);
    r->tick = now + first;
}

void tick_arm(struct runner *r, bool on)
{
    if (r->armed == on)
        return;
    if (on)
        timer_first(r, clock_mono(), r->slice);
    else
        timer_settime(r->timer, 0, &(struct itimerspec){0}, 0);
    r->armed = on;
}

/* For a turn: a parked VM whose deadline comes before the slice's end has its turn then. */
void tick_turn(struct runner *r, uint64_t deadline)
{
    uint64_t now = clock_mono(), slice = r->slice;
    if (deadline >= now + slice) {
        tick_arm(r, true);
        if (r->tick <= now)
            r->tick += ((now - r->tick) / slice + 1) * slice;
        return;
    }
    uint64_t soon = SOON * (slice / cell.config.slice_ns), first = deadline > now + soon ? deadline - now : soon;
    timer_first(r, now, first < slice ? first : slice);
    r->armed = true;
}

/* The deadline is a guest's word: whatever it says, the turn lasts a while. */
void tick_by(struct runner *r, uint64_t deadline)
{
    if (!deadline || deadline >= r->tick)
        return;
    uint64_t now = clock_mono(), soon = WAKE * (r->slice / cell.config.slice_ns), first = deadline > now + soon ? deadline - now : soon;
    if (now + first < r->tick)
        timer_first(r, now, first);
}

/* Where entering a guest takes longer than a slice (an emulated KVM, a host that gives us hardly any CPU), each turn would be over
 * before the guest has come to its next instruction: slices get longer until turns take about what they should. */
void tick_turn_over(struct runner *r, uint64_t began)
{
    uint64_t took = clock_mono() - began, was = r->slice, least = cell.config.slice_ns;
    if (runner_tick && took > 2 * was)
        r->slice = was * 2 < least * STRETCH ? was * 2 : least * STRETCH;
    else if (was > least)
        r->slice = was - was / 16 > least ? was - was / 16 : least;
    if (r->slice != was)
        tick_arm(r, false);
}

/* KVM gives up making a VM when a signal is pending (mm_take_all_locks: EINTR): no ticks meanwhile. */
void ticks_let(bool on)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGNAL_TICK);
    pthread_sigmask(on ? SIG_UNBLOCK : SIG_BLOCK, &set, 0);
}

/* For the thread that calls it. */
void tick_make(struct runner *r)
{
    struct sigevent sev = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGNAL_TICK};
    sev.sigev_notify_thread_id = (pid_t)r->tid;
    if (timer_create(CLOCK_MONOTONIC, &sev, &r->timer))
        abort();
    r->slice = cell.config.slice_ns;
    ticks_let(true);
}

void tick_handle(void)
{
    struct sigaction sa = {.sa_handler = on_tick, .sa_flags = SA_RESTART};   /* KVM_RUN and ppoll return all the same (signal(7)) */
    sigaction(SIGNAL_TICK, &sa, 0);
}
