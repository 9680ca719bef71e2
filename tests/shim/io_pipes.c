/* Descriptors, pipes, eventfd, devices. */
#include "say.h"
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static char big[200000], got[200000];
static int p[2], q[2];
static volatile int done;

static void *drain_slowly(void *unused)
{
    (void)unused;
    long total = 0, n;
    while ((n = read(p[0], got, 7001)) > 0)
        total += n;
    return (void *)total;
}
static void *write_later(void *text)
{
    pause_ms(30);
    return (void *)write(p[1], text, strlen(text));
}
static void *read_one(void *unused)
{
    char c;
    (void)unused;
    long n = read(q[0], &c, 1);
    done = 1;
    return (void *)(n < 0 ? -errno : n);
}
static volatile sig_atomic_t caught;
static void interrupt(void *t)       /* until it was in read() when the signal came */
{
    for (int i = 0; i < 100 && !done; i++) {
        pause_ms(20);
        if (!done)
            pthread_kill(*(pthread_t *)t, SIGUSR1);
    }
    done = 0;
}
static void on_signal(int sig) { caught = sig; }

static void descriptors(void)
{
    struct stat st;
    T(pipe(p));
    T(fcntl(p[0], F_GETFL));
    T(fcntl(p[1], F_GETFL));
    T(fcntl(p[0], F_GETFD));
    T(fcntl(p[0], F_SETFD, FD_CLOEXEC));
    T(fcntl(p[0], F_GETFD));
    T(fstat(p[0], &st));
    T(st.st_mode & S_IFMT);
    T(dup(p[0]));
    T(fcntl(p[0], F_DUPFD, 100));
    T(fcntl(p[0], F_DUPFD_CLOEXEC, 100));
    T(fcntl(101, F_GETFD));
    T(fcntl(100, F_GETFD));
    T(dup2(p[0], 50));
    T(dup2(p[0], p[0]));
    T(dup2(99, 99));
    T(dup2(99, 50));
    T(dup3(p[0], p[0], 0));
    T(dup3(p[0], 60, O_CLOEXEC));
    T(fcntl(60, F_GETFD));
    T(close_range(50, 60, 0));
    T(close(50));
    T(close(100) + close(101));
    T(close(5));
    T(close(-1));
    T(read(77, got, 1));
    T(write(p[0], "x", 1));
    T(read(p[1], got, 1));
    T(lseek(p[0], 0, SEEK_CUR));
    T(pread(p[0], got, 1, 0));
    T(fcntl(p[0], 9999));
    T(fcntl(p[1], F_GETPIPE_SZ));
    int n = -1;
    T(ioctl(p[0], FIONREAD, &n));
    T(n);
    T(write(p[1], "hello", 5));
    T(ioctl(p[0], FIONREAD, &n));
    T(n);
    T(isatty(p[0]));
    int on = 1;
    T(ioctl(p[0], FIONBIO, &on));
    T(fcntl(p[0], F_GETFL) & O_NONBLOCK);
    T(read(p[0], got, 3));
    T(read(p[0], got, 100));
    T(read(p[0], got, 100));
    T(read(p[0], got, 0));
    T(fcntl(p[0], F_SETFL, 0));
    struct iovec v[3] = {{"ab", 2}, {"", 0}, {"cdef", 4}};
    T(writev(p[1], v, 3));
    struct iovec r[2] = {{got, 3}, {got + 10, 100}};
    T(readv(p[0], r, 2));
    T(memcmp(got, "abc", 3) || memcmp(got + 10, "def", 3));
    T(syscall(SYS_writev, p[1], v, -1));
    T(syscall(SYS_write, p[1], 8, 5));
    T(syscall(SYS_pipe2, 8, 0));
}

static void capacity(void)
{
    T(fcntl(p[1], F_SETFL, O_NONBLOCK));
    T(write(p[1], big, 100000));
    T(write(p[1], big, 1));
    T(read(p[0], got, 4096));
    T(write(p[1], big, 4096));
    T(read(p[0], got, sizeof got));
    T(fcntl(p[1], F_SETFL, 0));
    void *t = start(drain_slowly, 0);
    T(write(p[1], big, sizeof big));
    T(close(p[1]));
    T(finish(t));
    T(read(p[0], got, 1));
    T(close(p[0]));
    T(pipe(p));
    signal(SIGPIPE, SIG_IGN);
    T(close(p[0]));
    T(write(p[1], "x", 1));
    signal(SIGPIPE, on_signal);
    T(write(p[1], "x", 1));
    T(caught);
    T(close(p[1]));
}

static void waiting(void)
{
    T(pipe(p));
    void *t = start(write_later, "later");
    T(read(p[0], got, 10));
    T(finish(t));
    T(pipe(q));
    struct sigaction sa = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &sa, 0);
    t = start(read_one, 0);
    interrupt(t);
    T(finish(t));                    /* -EINTR */
    sa.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &sa, 0);
    t = start(read_one, 0);
    pause_ms(30);
    pthread_kill(*(pthread_t *)t, SIGUSR1);
    pause_ms(30);
    T(write(q[1], "y", 1));
    T(finish(t));                    /* restarted */
    t = start(read_one, 0);
    pause_ms(30);
    T(close(q[1]));
    T(finish(t));                    /* end of file */
    T(close(q[0]));
}

static void events(void)
{
    uint64_t v = 3;
    int e = eventfd(2, EFD_NONBLOCK), s = eventfd(0, EFD_SEMAPHORE | EFD_NONBLOCK);
    T(write(e, &v, 8));
    T(read(e, &v, 8));
    T(v);
    T(read(e, &v, 8));
    T(read(e, &v, 7));
    v = ~0ull;
    T(write(e, &v, 8));
    v = ~0ull - 1;
    T(write(e, &v, 8));
    v = 1;
    T(write(e, &v, 8));
    T(read(e, &v, 8));
    T(v == ~0ull - 1);
    v = 2;
    T(write(s, &v, 8));
    T(read(s, &v, 8));
    T(v);
    T(read(s, &v, 8));
    T(read(s, &v, 8));
    T(close(e) + close(s));
}

static void devices(void)
{
    struct stat st;
    int n = open("/dev/null", O_RDWR), z = open("/dev/zero", O_RDONLY), u = open("/dev/urandom", O_RDONLY), f = open("/dev/full", O_WRONLY);
    T(n >= 0 && z >= 0 && u >= 0 && f >= 0);
    T(read(n, got, 10));
    T(write(n, got, 10));
    T(write(f, got, 10));
    memset(got, 1, 300);
    T(read(z, got, 300));
    T(got[0] | got[299]);
    T(read(u, got, 300));
    T(memcmp(got, got + 150, 150) != 0);
    T(lseek(n, 10, SEEK_SET));
    T(fstat(n, &st));
    T(st.st_mode);
    T(st.st_rdev);
    T(pread(z, got, 5, 100));
    T(write(z, got, 5));
    T(close(n) + close(z) + close(u) + close(f));
    T(pipe(p));
    T(p[0] * 100 + p[1]);
    char name[40];
    snprintf(name, sizeof name, "/dev/fd/%d", p[1]);
    n = open(name, O_WRONLY);
    T(n);
    T(write(n, "via", 3));
    T(read(p[0], got, 10));
    T(open("/dev/fd/77", O_RDONLY));
}

int main(void)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    descriptors();
    capacity();
    waiting();
    events();
    devices();
    return 0;
}
