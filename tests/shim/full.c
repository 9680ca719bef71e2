/* sendfile() to where there is no room for all of it says how much was written. Argument: how long a file to send. */
#include "check.h"
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

int main(int argc, char **argv)
{
    char from[] = "/tmp/full-from-XXXXXX", to[] = "/tmp/full-to-XXXXXX";
    off_t size = argc > 1 ? atol(argv[1]) : 300000, at = 0;
    int in = mkstemp(from), out = mkstemp(to);
    struct stat st;
    ssize_t n;
    CHECK(in >= 0 && out >= 0 && !unlink(from) && !unlink(to) && !ftruncate(in, size));
    for (off_t i = 0; i < size; i += 4096)
        CHECK(pwrite(in, "x", 1, i) == 1);
    while ((n = sendfile(out, in, &at, (size_t)(size - at))) > 0)
        ;
    CHECK(!fstat(out, &st) && st.st_size == at);
    printf("%s\n", n ? strerrorname_np(errno) : "all");
    fflush(stdout);
    return 0;
}
