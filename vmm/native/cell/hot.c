/* Hot pages: those that a run out of this snapshot writes whatever the program is (interpreter, bootstrap, stacks).
 *
 * A restored VM pays 4 to 17 us for each first write to a page (a copy-on-write fault through KVM's shadow MMU), 1.5 to 3 us if the
 * host populated it before (bench/fleet_vms.py restore: 700 such pages). So one rehearsal run records which pages became private,
 * by /proc/self/pagemap, and later cells populate them as they restore.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "machine.h"

#define RUNS 8192                                /* of consecutive pages */
#define PM_PRESENT (1ull << 63)
#define PM_FILE (1ull << 61)                     /* page of a file or shared: not copied yet */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23                   /* Linux 5.14 */
#endif

struct run {
    uint32_t page, count;
};
static struct run *hot;
static uint32_t n_hot;

/* A damaged list only costs time: what of it makes no sense is left out. */
void hot_load(int fd)
{
    ssize_t n = -1;
    if ((hot = malloc(RUNS * sizeof *hot)))
        n = pread(fd, hot, RUNS * sizeof *hot, 0);
    for (ssize_t i = 0; i < n / (ssize_t)sizeof *hot; i++) {
        if (hot[i].page >= AFW_SYS / PAGE && hot[i].page < PAGES_IN_SPACE && hot[i].count && hot[i].count <= PAGES_IN_SPACE - hot[i].page)
            hot[n_hot++] = hot[i];
    }
}

void hot_populate(struct machine *m, const uint64_t *chunks)
{
    for (uint32_t i = 0; i < n_hot; i++) {
        uint64_t gva = hot[i].page * PAGE, size = hot[i].count * PAGE;
        uint64_t a = gva / AFW_CHUNK, b = (gva + size - 1) / AFW_CHUNK;
        if (chunks[a / 64] >> a % 64 & chunks[b / 64] >> b % 64 & 1 && b - a <= 1)   /* else: they fault as they are touched */
            madvise(m->vm.mem + gva, size, MADV_POPULATE_WRITE);
    }
}

void hot_record(struct machine *m)
{
    static bool done;                            /* the rehearsal has one runner and one VM */
    if (done || cell.config.hot_out < 0 || cell.pagemap_fd < 0)
        return;
    done = true;
    struct run *runs = calloc(RUNS, sizeof *runs);
    uint64_t *entry = malloc(AFW_CHUNK / PAGE * sizeof *entry);
    uint32_t n = 0;
    for (uint64_t c = 0; runs && entry && c < CHUNKS; c++) {
        if (!memory_committed(m, c * AFW_CHUNK, AFW_CHUNK))
            continue;
        uint64_t first = ((uintptr_t)m->vm.mem + c * AFW_CHUNK) / PAGE, want = AFW_CHUNK / PAGE * sizeof *entry;
        if (pread(cell.pagemap_fd, entry, want, (off_t)(first * sizeof *entry)) != (ssize_t)want)
            break;
        for (uint32_t i = 0; i < AFW_CHUNK / PAGE; i++) {
            uint32_t page = (uint32_t)(c * AFW_CHUNK / PAGE + i);
            if ((entry[i] & (PM_PRESENT | PM_FILE)) != PM_PRESENT || page < AFW_SYS / PAGE)
                continue;
            if (n && runs[n - 1].page + runs[n - 1].count == page)
                runs[n - 1].count++;
            else if (n < RUNS)
                runs[n++] = (struct run){page, 1};
        }
    }
    if (n && pwrite(cell.config.hot_out, runs, n * sizeof *runs, 0) != (ssize_t)(n * sizeof *runs))
        (void)!ftruncate(cell.config.hot_out, 0);
    free(entry);
    free(runs);
}
