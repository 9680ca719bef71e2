/* File mappings: private and shared content, protection, fixed maps over memory and memory over files, and what is left behind. */
#include "check.h"
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define PAGE 4096ul
#define PAGES 40ul
static sigjmp_buf back;
static void on_fault(int sig)
{
    (void)sig;
    siglongjmp(back, 1);
}

static int can_write(volatile char *p)
{
    if (sigsetjmp(back, 1))
        return 0;
    *p = *p;
    return 1;
}

static char expected(size_t i)
{
    return (char)(i / PAGE * 7 + i % 251);
}

static void same(const char *p, size_t from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        CHECK(p[i] == expected(from + i));
}

static int zero(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return 0;
    return 1;
}

int main(void)
{
    struct sigaction a = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &a, 0);
    char name[] = "/tmp/filemap-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0);
    static char content[PAGES * PAGE];
    for (size_t i = 0; i < sizeof content; i++)
        content[i] = expected(i);
    CHECK(pwrite(fd, content, sizeof content - 100, 0) == (ssize_t)sizeof content - 100);
    struct stat st;
    CHECK(!fstat(fd, &st) && st.st_size == (off_t)sizeof content - 100);

    /* private: content, the zero tail of the last page, writes that stay here */
    char *p = mmap(0, sizeof content, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(p != MAP_FAILED);
    same(p, 0, sizeof content - 100);
    CHECK(zero(p + sizeof content - 100, 100));
    p[5] = 'x';
    char c;
    CHECK(pread(fd, &c, 1, 5) == 1 && c == expected(5) && p[5] == 'x');
    /* memory over a part of it, protections of parts, and an offset */
    CHECK(mmap(p + 3 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + 3 * PAGE);
    CHECK(zero(p + 3 * PAGE, 2 * PAGE));
    same(p + 5 * PAGE, 5 * PAGE, PAGE);
    CHECK(!mprotect(p + 6 * PAGE, 3 * PAGE, PROT_READ) && !can_write(p + 7 * PAGE) && can_write(p + 9 * PAGE) && can_write(p + 5 * PAGE));
    CHECK(mmap(p + PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 20 * PAGE) == p + PAGE);
    same(p + PAGE, 20 * PAGE, PAGE);
    CHECK(!can_write(p + PAGE) && can_write(p + 2 * PAGE));
    CHECK(!munmap(p, sizeof content));
    /* what lies where a file was is fresh memory */
    char *q = mmap(p, sizeof content, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(q != MAP_FAILED && zero(q, sizeof content));
    memset(q, 1, sizeof content);
    CHECK(!munmap(q, sizeof content));

    /* shared: both ways, through two mappings */
    char *s = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 2 * PAGE), *r = mmap(0, 4 * PAGE, PROT_READ, MAP_SHARED, fd, 2 * PAGE);
    CHECK(s != MAP_FAILED && r != MAP_FAILED);
    s[10] = 'y';
    CHECK(r[10] == 'y' && pread(fd, &c, 1, 2 * PAGE + 10) == 1 && c == 'y' && !msync(s, 4 * PAGE, MS_SYNC));
    CHECK(pwrite(fd, "z", 1, 2 * PAGE + 11) == 1 && r[11] == 'z' && s[11] == 'z');
    CHECK(!can_write(r) && !mprotect(s, PAGE, PROT_READ) && !can_write(s) && can_write(s + PAGE));
    /* the descriptor may go, the mapping stays */
    int ro = open(name, O_RDONLY);
    CHECK(ro >= 0 && mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ro, 0) == MAP_FAILED && errno == EACCES);
    char *k = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, ro, 30 * PAGE);
    CHECK(k != MAP_FAILED && !close(ro) && !unlink(name) && !close(fd));
    same(k, 30 * PAGE, PAGE);
    k[0] = 1;
    CHECK(s[10] == 'y');
    /* errors */
    CHECK(mmap(0, PAGE, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EBADF);
    CHECK(mmap(0, PAGE, PROT_READ, MAP_PRIVATE, 0, 1) == MAP_FAILED && errno == EINVAL);
    /* shared memory of nobody else is memory */
    char *m = mmap(0, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    m[0] = m[8 * PAGE - 1] = 3;
    CHECK(!madvise(m, 8 * PAGE, MADV_DONTNEED) && m[0] == 3);
    m = mremap(m, 8 * PAGE, 100 * PAGE, MREMAP_MAYMOVE);
    CHECK(m != MAP_FAILED && m[0] == 3 && m[8 * PAGE - 1] == 3);
    return 0;
}
