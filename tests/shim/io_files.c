/* Files: descriptors' places, appends, directories, names; in a fresh directory under /tmp. */
#include "say.h"
#include <dirent.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>

static char buf[300000], more[300000];

static void *set_later(void *fd)
{
    pause_ms(30);
    return (void *)(long)flock((int)(long)fd, LOCK_UN);
}

static void places(void)
{
    struct stat st;
    int f = open("a", O_RDWR | O_CREAT | O_EXCL, 0666), g;
    T(f);
    T(fcntl(f, F_GETFL));
    T(open("a", O_RDWR | O_CREAT | O_EXCL, 0666));
    T(fstat(f, &st));
    T(st.st_mode);
    T(st.st_size);
    T(write(f, "0123456789", 10));
    T(lseek(f, 0, SEEK_CUR));
    T(fstat(f, &st));
    T(st.st_size);
    T(lseek(f, 2, SEEK_SET));
    g = dup(f);
    T(read(f, buf, 3));
    T(lseek(g, 0, SEEK_CUR));
    T(read(g, buf, 100));
    T(read(f, buf, 100));
    T(pread(f, buf, 4, 8));
    T(pread(f, buf, 4, -1));
    T(pwrite(f, "xy", 2, 15));
    T(lseek(f, 0, SEEK_CUR));
    T(lseek(f, 0, SEEK_END));
    T(lseek(f, -3, SEEK_END));
    T(read(f, buf, 10));
    T(lseek(f, -100, SEEK_CUR));
    T(lseek(f, 5, 99));
    T(lseek(f, 3, SEEK_DATA));
    T(lseek(f, 300, SEEK_DATA));
    T(lseek(f, 100, SEEK_SET));
    T(read(f, buf, 10));
    T(write(f, "z", 1));
    T(fstat(f, &st));
    T(st.st_size);
    struct iovec v[3] = {{"one", 3}, {"", 0}, {"two", 3}}, r[2] = {{buf, 2}, {buf + 2, 100}};
    T(pwritev(f, v, 3, 0));
    T(preadv(f, r, 2, 1));
    T(memcmp(buf, "netwo", 5));
    T(ftruncate(f, 4));
    T(lseek(f, 0, SEEK_END));
    T(ftruncate(f, 50000));
    T(pread(f, buf, sizeof buf, 0));
    T(buf[3] + buf[4] * 1000);
    int n = 0;
    T(lseek(f, 10, SEEK_SET));
    T(ioctl(f, 0x5401, buf));
    T(isatty(f));
    T(fsync(f) + fdatasync(f));
    T(posix_fadvise(f, 0, 0, POSIX_FADV_SEQUENTIAL));
    T(fallocate(f, 0, 0, 60000));
    T(close(f) + close(g));
    f = open("a", O_WRONLY | O_APPEND);
    T(write(f, "end", 3));
    T(lseek(f, 0, SEEK_CUR));
    T(lseek(f, 0, SEEK_SET));
    T(write(f, "!", 1));
    T(lseek(f, 0, SEEK_CUR));
    T(read(f, buf, 1));
    T(close(f));
    f = open("a", O_RDONLY);
    T(write(f, "x", 1));
    T(ftruncate(f, 0));
    T(close(f));
    T(truncate("a", 12));
    T(stat("a", &st));
    T(st.st_size + n);
    T(open("a", O_WRONLY | O_TRUNC) > 0);
    T(stat("a", &st));
    T(st.st_size);
    T(close(3));
}

/* What is read ahead is never stale within this program. */
static void ahead(void)
{
    int w = open("big", O_RDWR | O_CREAT | O_TRUNC, 0600), r = open("big", O_RDONLY);
    for (unsigned i = 0; i < sizeof buf; i++)
        buf[i] = (char)(i * 7 + i / 256);
    T(write(w, buf, 100000));
    long total = 0, bad = 0, n;
    while ((n = read(r, more, 1000)) > 0) {
        bad += memcmp(more, buf + total, (size_t)n) != 0;
        total += n;
    }
    T(total);
    T(bad);
    T(read(r, more, 10));
    T(write(w, "tail", 4));
    T(read(r, more, 10));
    T(read(r, more, 10));
    T(lseek(r, 1000, SEEK_SET));
    T(read(r, more, 10) + read(r, more, 10));
    T(pwrite(w, "NEW!", 4, 1024));
    T(read(r, more, 4) + read(r, more, 4));
    T(memcmp(more, "NEW!", 4));
    T(ftruncate(w, 1030));
    T(read(r, more, 100));
    T(read(r, more, 100));
    T(lseek(r, 0, SEEK_SET));
    T(read(r, more, sizeof more));
    T(unlink("big"));
    T(pread(r, more, 4, 1024));
    struct stat st;
    T(fstat(r, &st));
    T(st.st_nlink);
    T(close(r) + close(w));
}

static int by_name(const void *a, const void *b) { return strcmp(a, b); }
static void list(const char *path)
{
    DIR *d = opendir(path);
    char names[40][24];
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d)) && n < 40;)
        snprintf(names[n++], 24, "%.17s/%d", e->d_name, e->d_type);
    qsort(names, (size_t)n, 24, by_name);
    printf("%s:", path);
    for (int i = 0; i < n; i++)
        printf(" %s", names[i]);
    printf("\n");
    if (d) {
        rewinddir(d);
        int again = 0;
        while (readdir(d))
            again++;
        T(again == n);
        closedir(d);
    }
}

static void names(void)
{
    struct stat st;
    struct timespec times[2] = {{1000, 5}, {2000, 7}};
    T(mkdir("d", 0755));
    T(mkdir("d", 0755));
    T(mkdir("no/d", 0755));
    T(close(open("d/f", O_CREAT | O_WRONLY, 0644)));
    T(symlink("f", "d/l"));
    T(symlink("f", "d/l"));
    T(readlink("d/l", buf, 10));
    T(readlink("d/f", buf, 10));
    T(readlink("d/l", buf, 0));
    T(lstat("d/l", &st));
    T(st.st_mode & S_IFMT);
    T(stat("d/l", &st));
    T(st.st_mode & S_IFMT);
    T(link("d/f", "d/hard"));
    T(stat("d/f", &st));
    T(st.st_nlink);
    list("d");
    T(access("d/f", R_OK | W_OK));
    T(access("d/f", X_OK));
    T(access("d/none", F_OK));
    T(faccessat(AT_FDCWD, "d", X_OK, AT_EACCESS));
    T(rename("d/f", "d/g"));
    T(rename("d/f", "d/g"));
    T(rmdir("d"));
    T(unlink("d"));
    T(unlink("d/l"));
    int d = open("d", O_RDONLY | O_DIRECTORY);
    T(openat(d, "g", O_RDONLY));
    T(fstatat(d, "g", &st, 0));
    T(fstatat(d, "", &st, AT_EMPTY_PATH));
    T(S_ISDIR(st.st_mode));
    T(openat(d, "none", O_RDONLY));
    T(openat(99, "g", O_RDONLY));
    T(openat(4, "g", O_RDONLY));
    T(read(d, buf, 10));
    T(write(d, buf, 10));
    T(open("d", O_WRONLY));
    T(open("d/g", O_RDONLY | O_DIRECTORY));
    T(open("d/g/x", O_RDONLY));
    T(open("", O_RDONLY));
    T(mkdirat(d, "sub", 0700));
    T(unlinkat(d, "sub", 0));
    T(unlinkat(d, "sub", AT_REMOVEDIR));
    T(linkat(d, "g", AT_FDCWD, "d/h", 0));
    T(renameat(d, "h", AT_FDCWD, "d/i"));
    T(symlinkat("x", d, "s"));
    T(readlinkat(d, "s", buf, 10));
    T(chmod("d/g", 0640));
    T(fchmodat(d, "hard", 0600, 0));
    T(stat("d/g", &st));
    T(st.st_mode);
    T(fchmod(4, 0444));
    T(fstat(4, &st));
    T(st.st_mode);
    T(utimensat(d, "g", times, 0));
    T(stat("d/g", &st));
    T(st.st_mtim.tv_sec * 10 + st.st_mtim.tv_nsec);
    times[1].tv_nsec = UTIME_OMIT;
    T(futimens(4, times));
    T(fstat(4, &st));
    T(st.st_mtim.tv_sec);
    T(chown("d/g", getuid(), (gid_t)-1));
    T(chown("d/none", getuid(), (gid_t)-1));
    T(fchown(4, (uid_t)-1, (gid_t)-1));
    T(chdir("d"));
    T(access("g", F_OK));
    T(chdir("none"));
    T(strcmp(strrchr(getcwd(buf, 1000), '/'), "/d"));
    T(getcwd(buf, 2) == 0);
    T(chdir(".."));
    T(fchdir(d));
    T(access("g", F_OK));
    T(fchdir(4));
    T(chdir(".."));
    T(umask(077));
    T(close(open("private", O_CREAT | O_WRONLY, 0666)));
    T(stat("private", &st));
    T(st.st_mode);
    T(umask(022));
    struct statvfs vfs;
    T(statvfs(".", &vfs));
    T(vfs.f_bsize > 0 && vfs.f_namemax > 0);
    T(fstatvfs(d, &vfs));
    T(close(d));
    list(".");
    memset(buf, 'n', 5000);
    buf[5000] = 0;
    T(open(buf, O_RDONLY));
    buf[300] = 0;
    T(open(buf, O_RDONLY));
}

/* Memory that is mapped, and has no file behind it */
static void beyond(void)
{
    int f = open("short", O_RDWR | O_CREAT, 0600), random = open("/dev/urandom", O_RDONLY);
    T(ftruncate(f, 4096));
    char *p = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, f, 0);
    CHECK(p != MAP_FAILED);
    T(getrandom(p, 4096, 0));
    T(getrandom(p + 4096, 4096, 0));
    T(read(random, p + 4096, 4096));
    T(munmap(p, 8192) + close(f) + close(random));
}

static int from, into[2];
static void *send_file(void *count)
{
    return (void *)sendfile(into[1], from, 0, (size_t)count);
}

/* The file is closed, and its number another's, while sendfile() waits for room */
static void replaced(void)
{
    int f = open("others", O_RDWR | O_CREAT, 0600), strange = 0;
    memset(buf, 'o', 100000);
    T(write(f, buf, 100000));
    T(close(f));
    from = open("sent", O_RDWR | O_CREAT, 0600);
    T(ftruncate(from, 100000));
    T(pipe(into));
    void *t = start(send_file, (void *)100000);
    pause_ms(30);
    T(close(from));
    T(open("others", O_RDONLY) == from);
    for (int i = 0; i < 65536; i++)
        CHECK(read(into[0], buf, 1) == 1);
    finish(t);
    T(close(into[1]));
    for (ssize_t n; (n = read(into[0], buf, sizeof buf)) > 0;)
        strange += memchr(buf, 'o', (size_t)n) != 0;
    T(strange);
    T(lseek(from, 0, SEEK_CUR));
    T(close(from) + close(into[0]));
}

static void locks(void)
{
    int a = open("lock", O_RDWR | O_CREAT, 0600), b = open("lock", O_RDWR);
    struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    T(flock(a, LOCK_EX));
    T(flock(b, LOCK_EX | LOCK_NB));
    void *t = start(set_later, (void *)(long)a);
    T(flock(b, LOCK_EX));
    finish(t);
    T(fcntl(a, F_SETLK, &fl));
    T(fcntl(a, F_GETLK, &fl));
    T(fl.l_type);
    T(close(a) + close(b));
}

int main(void)
{
    char directory[] = "/tmp/io-files-XXXXXX";
    setvbuf(stdout, 0, _IOLBF, 0);
    CHECK(mkdtemp(directory) && !chdir(directory));
    places();
    ahead();
    names();
    locks();
    beyond();
    replaced();
    return 0;
}
