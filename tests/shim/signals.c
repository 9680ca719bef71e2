/* Signals: delivery, masks, stacks, siginfo, restart, faults; registers survive handlers. */
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>

static volatile sig_atomic_t got, order[64], n_order;
static volatile long value;
static void on_signal(int sig)
{
    got = sig;
    if (n_order < 64)
        order[n_order++] = sig;
}

static void on_info(int sig, siginfo_t *info, void *context)
{
    (void)context;
    got = sig;
    value = value * 10 + info->si_value.sival_int;
    CHECK(info->si_signo == sig && info->si_code == SI_QUEUE && info->si_pid == getpid());
}

static void set(int sig, void (*handler)(int), int flags)
{
    struct sigaction a = {.sa_handler = handler, .sa_flags = flags};
    CHECK(!sigaction(sig, &a, 0));
}

static sigjmp_buf back;
static void *fault_at;
static char alt[16384];
static volatile int on_alt;
static void on_fault(int sig, siginfo_t *info, void *context)
{
    char here;
    on_alt = &here >= alt && &here < alt + sizeof alt;
    fault_at = info->si_addr;
    got = sig;
    CHECK(((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] != 0);
    siglongjmp(back, 1);
}

static void clobber(int sig)         /* everything a handler may use */
{
    got = sig;
    __asm__ volatile("pxor %%xmm0,%%xmm0; pxor %%xmm1,%%xmm1; pxor %%xmm7,%%xmm7; pxor %%xmm15,%%xmm15; fninit"
                     ::: "xmm0", "xmm1", "xmm7", "xmm15", "memory");
}

static void skip_instruction(int sig, siginfo_t *info, void *context)
{
    (void)info;
    got = sig;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;    /* ud2 */
}

static pthread_t main_thread;
static void *kick_main(void *arg)
{
    usleep(20000);
    pthread_kill(main_thread, (int)(long)arg);
    return 0;
}

static int pipe_like_wait(uint64_t *elapsed)
{
    struct timespec t = {5, 0}, left = {0, 0};
    uint64_t start = ns_now(CLOCK_MONOTONIC);
    int r = nanosleep(&t, &left);
    *elapsed = ns_now(CLOCK_MONOTONIC) - start;
    CHECK(r == 0 || (left.tv_sec <= 4 && left.tv_nsec > 0));
    return r ? errno : 0;
}

int main(void)
{
    uint64_t elapsed;
    pthread_t t;
    main_thread = pthread_self();
    set(SIGUSR1, on_signal, 0);
    CHECK(!raise(SIGUSR1) && got == SIGUSR1);
    got = 0;
    CHECK(!kill(getpid(), SIGUSR1) && got == SIGUSR1);

    /* masks and order: lowest first, standard signals once, queued ones each with its value */
    sigset_t all, old, pending;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &old);
    set(SIGUSR2, on_signal, 0);
    struct sigaction q = {.sa_sigaction = on_info, .sa_flags = SA_SIGINFO};
    sigaction(SIGRTMIN, &q, 0);
    got = 0;
    n_order = 0;
    raise(SIGUSR2), raise(SIGUSR1), raise(SIGUSR1);
    for (int i = 1; i <= 3; i++)
        CHECK(!sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = i}));
    CHECK(!got && !sigpending(&pending) && sigismember(&pending, SIGUSR1) && sigismember(&pending, SIGUSR2));
    sigprocmask(SIG_SETMASK, &old, 0);
    CHECK(value == 123 && n_order == 2);

    /* ignored ones vanish, also when they wait */
    set(SIGUSR1, SIG_IGN, 0);
    CHECK(!raise(SIGUSR1));
    sigprocmask(SIG_BLOCK, &all, &old);
    set(SIGUSR1, on_signal, 0);
    raise(SIGUSR1);
    set(SIGUSR1, SIG_IGN, 0);
    sigpending(&pending);
    CHECK(!sigismember(&pending, SIGUSR1));
    sigprocmask(SIG_SETMASK, &old, 0);

    /* sigsuspend, sigtimedwait */
    sigset_t usr, none;
    struct timespec ms = {0, 5000000};
    sigemptyset(&none);
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR2);
    sigprocmask(SIG_BLOCK, &usr, &old);
    got = 0;
    raise(SIGUSR2);
    CHECK(!got && sigsuspend(&none) == -1 && errno == EINTR && got == SIGUSR2);
    sigprocmask(SIG_BLOCK, 0, &pending);
    CHECK(sigismember(&pending, SIGUSR2));
    /* the waiting calls with a mask of their own: the handler runs under it, and the old one is back afterwards */
    int epoll = epoll_create1(0);
    struct epoll_event event;
    struct timespec second = {1, 0};
    for (int way = 0; way < 6; way++) {
        if (way < 3)
            raise(SIGUSR2);          /* pending before */
        else
            pthread_create(&t, 0, kick_main, (void *)SIGUSR2);
        got = 0;
        errno = 0;
        int r = way % 3 == 0 ? ppoll(0, 0, &second, &none) : way % 3 == 1 ? pselect(0, 0, 0, 0, &second, &none)
                                                                         : epoll_pwait(epoll, &event, 1, 1000, &none);
        CHECK(r == -1 && errno == EINTR && got == SIGUSR2);
        sigprocmask(SIG_BLOCK, 0, &pending);
        CHECK(sigismember(&pending, SIGUSR2) && !sigismember(&pending, SIGUSR1));
        CHECK(way < 3 || !pthread_join(t, 0));
        got = 0;
        raise(SIGUSR2);
        CHECK(!got && ppoll(0, 0, &ms, 0) == 0 && !got && sigtimedwait(&usr, 0, &ms) == SIGUSR2);
    }
    siginfo_t info;
    CHECK(sigtimedwait(&usr, &info, &ms) == -1 && errno == EAGAIN);
    pthread_create(&t, 0, kick_main, (void *)SIGUSR2);
    got = 0;
    CHECK(sigwaitinfo(&usr, &info) == SIGUSR2 && info.si_code == SI_USER && !got);
    pthread_join(t, 0);
    sigprocmask(SIG_SETMASK, &old, 0);

    /* sleepers wake: by another thread, by a timer */
    set(SIGUSR2, on_signal, SA_RESTART);
    pthread_create(&t, 0, kick_main, (void *)SIGUSR2);
    CHECK(pipe_like_wait(&elapsed) == EINTR && elapsed < 4000000000 && got == SIGUSR2);
    pthread_join(t, 0);
    set(SIGALRM, on_signal, 0);
    struct itimerval it = {{0, 0}, {0, 10000}}, was;
    CHECK(!setitimer(ITIMER_REAL, &it, 0) && pipe_like_wait(&elapsed) == EINTR && got == SIGALRM && elapsed >= 9000000);
    CHECK(!getitimer(ITIMER_REAL, &was) && !was.it_value.tv_sec && !was.it_value.tv_usec);

    /* a spinning thread is interrupted, and its registers are as they were */
    struct itimerval every = {{0, 2000}, {0, 2000}}, off = {{0, 0}, {0, 0}};
    set(SIGALRM, clobber, 0);
    got = 0;
    setitimer(ITIMER_REAL, &every, 0);
    double a = 1.5, b = 2.5, c = 3.5, d = 4.5;
    long double x = 1.25L;
    for (uint64_t start = ns_now(CLOCK_MONOTONIC); ns_now(CLOCK_MONOTONIC) - start < 50000000;)
        for (int i = 0; i < 20000; i++) {
            __asm__ volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d));
            x += 0.5L;
            x -= 0.5L;
        }
    setitimer(ITIMER_REAL, &off, 0);
    CHECK(got == SIGALRM && a == 1.5 && b == 2.5 && c == 3.5 && d == 4.5 && x == 1.25L);
    alarm(100);
    CHECK(alarm(0) == 100);

    /* faults: on the alternate stack, with the address; returning past the instruction */
    stack_t st = {.ss_sp = alt, .ss_size = sizeof alt};
    CHECK(!sigaltstack(&st, 0));
    struct sigaction f = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND};
    for (int i = 0; i < 3; i++) {
        sigaction(SIGSEGV, &f, 0);
        fault_at = 0;
        if (!sigsetjmp(back, 1)) {
            *(volatile int *)(uintptr_t)0x123 = 1;
            CHECK(0);
        }
        CHECK(got == SIGSEGV && fault_at == (void *)0x123 && on_alt);
        struct sigaction now;
        sigaction(SIGSEGV, 0, &now);
        CHECK(now.sa_handler == SIG_DFL);
    }
    struct sigaction ill = {.sa_sigaction = skip_instruction, .sa_flags = SA_SIGINFO};
    sigaction(SIGILL, &ill, 0);
    got = 0;
    __asm__ volatile("ud2");
    CHECK(got == SIGILL);
    f.sa_flags = SA_SIGINFO;
    sigaction(SIGFPE, &f, 0);
    if (!sigsetjmp(back, 1)) {
        volatile int zero = 0;
        got = 100 / zero;
    }
    CHECK(got == SIGFPE && !on_alt);

    /* errors */
    CHECK(kill(getpid(), 65) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_tgkill, getpid(), 999999, SIGUSR2) == -1 && errno == ESRCH);
    CHECK(sigaction(SIGKILL, &f, 0) == -1 && errno == EINVAL);
    return 0;
}
