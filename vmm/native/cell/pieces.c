/* How many pieces (VMAs of this process) a VM's memory is in. The kernel allows a process only so many (vm.max_map_count, mostly
 * 65,530), and a guest that protects every other page would take them from all VMs of the cell.
 *
 * Counted are the page addresses where an operation began or ended, until a new mapping covers them: an upper bound, since the
 * kernel merges what it can. One half of what there is is dealt out, so that no VM can take what another needs; the other is a
 * common pool.
 */
#include <errno.h>
#include <stdio.h>
#include "machine.h"

#define DEFAULT_MAX 65530            /* of a kernel that does not tell */
#define RESERVE 2048                 /* this process itself: libraries, heaps, windows, vCPUs */
#define STEP 64                      /* taken from the pool and given back in such lots */
#define EACH 12000                   /* a VM; programs have some hundreds */

static uint32_t share = 256;
static _Atomic int64_t pool;

/* Before the jail. */
void pieces_setup(void)
{
    long max = DEFAULT_MAX;
    FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
    if (f) {
        if (fscanf(f, "%ld", &max) != 1 || max <= 0)
            max = DEFAULT_MAX;
        fclose(f);
    }
    int64_t reserve = RESERVE + (cell.config.recycle ? (int64_t)cell.vms * RECYCLE_SEAMS : 0);
    int64_t half = max > 2 * reserve ? (max - reserve) / 2 : max / 4;
    share = half / cell.vms < EACH ? (uint32_t)(half / cell.vms) : EACH;
    pool = half;
}

static bool edge(const struct machine *m, uint64_t page)
{
    return m->prot[page] & PAGE_EDGE;
}

static void mark(struct machine *m, uint64_t page)
{
    if (page < PAGES_IN_SPACE && !edge(m, page)) {
        m->prot[page] |= PAGE_EDGE;
        m->edges++;
    }
}

/* What is beyond the share comes from the pool: taken before the edges are made, given back when they are few again. */
static int draw(struct machine *m, uint32_t edges)
{
    while (share + m->drawn < edges) {
        if (edges > EACH || atomic_fetch_sub(&pool, STEP) < STEP) {
            if (edges <= EACH)
                atomic_fetch_add(&pool, STEP);
            return -ENOMEM;
        }
        m->drawn += STEP;
    }
    while (m->drawn && share + m->drawn >= edges + 2 * STEP) {
        atomic_fetch_add(&pool, STEP);
        m->drawn -= STEP;
    }
    return 0;
}

int pieces_room(struct machine *m, uint64_t gva, uint64_t len, bool fresh)
{
    uint64_t first = gva / PAGE, end = first + len / PAGE;
    int64_t edges = (int64_t)m->edges + !edge(m, first) + (end < PAGES_IN_SPACE && !edge(m, end));
    for (uint64_t p = first + 1; fresh && p < end; p++)
        edges -= edge(m, p);
    return edges <= (int64_t)m->edges ? 0 : draw(m, (uint32_t)edges);
}

void pieces_done(struct machine *m, uint64_t gva, uint64_t len, int prot, bool fresh)
{
    uint64_t first = gva / PAGE, end = first + len / PAGE;
    uint8_t value = (uint8_t)(prot ^ (PROT_READ | PROT_WRITE)), kept = fresh ? PAGE_NEW | PAGE_SEAM : PAGE_EDGE | PAGE_NEW | PAGE_SEAM;
    uint32_t gone = 0;
    for (uint64_t p = first; p < end; p++) {
        uint8_t now = (uint8_t)((m->prot[p] & kept) | value);
        gone += fresh && edge(m, p);
        if (m->prot[p] != now)                   /* most are 0, and the array is sparse */
            m->prot[p] = now;
    }
    m->edges -= gone;
    mark(m, first);
    mark(m, end);
    if (gone)
        draw(m, m->edges);
}

void pieces_release(struct machine *m)
{
    atomic_fetch_add(&pool, m->drawn);
    m->drawn = m->edges = 0;
}

int pieces_as(struct machine *m, uint32_t edges)
{
    m->edges = edges;
    return draw(m, edges);
}

void pieces_reset(struct machine *m, uint32_t edges)
{
    pieces_release(m);
    m->edges = edges;
    draw(m, edges);                              /* a new one had as many: what is not to be had now was not needed then */
}
