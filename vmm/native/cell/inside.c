/* What the tables in a guest's own memory say: its mappings (shim/region.c) and its threads (shim/sched.c). Addresses: ctl.
 *
 * All of it is hostile. Walks are bounded, and what comes of them is told to the guest, or used on its behalf in its own memory.
 */
#include <string.h>
#include "calls.h"

#define PAGE 4096ull
#define REGIONS_MAX (1u << 20)

bool region_at(struct caller *c, uint32_t index, struct afw_region *out)
{
    uint32_t n = c->ctl->n_regions;
    return index < n && n <= REGIONS_MAX && !c->read(c, out, c->ctl->regions + (uint64_t)index * sizeof *out, sizeof *out) && out->start < out->end &&
           out->end <= AFW_SPACE_END / PAGE;
}

uint32_t region_above(struct caller *c, uint32_t page)
{
    struct afw_region r;
    uint32_t lo = 0, hi = c->ctl->n_regions;
    if (hi > REGIONS_MAX)
        return REGIONS_MAX;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (!region_at(c, mid, &r) || r.end > page)      /* (the one at the end) */
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

bool memory_allows(struct caller *c, uint64_t gva, uint64_t n, uint32_t prot)
{
    struct afw_region r;
    if (gva < AFW_IMAGE || gva >= AFW_SPACE_END || n > AFW_SPACE_END - gva)
        return false;
    uint64_t page = gva / PAGE, end = (gva + n + PAGE - 1) / PAGE;
    for (uint32_t i = region_above(c, (uint32_t)page); page < end; i++) {
        if (!region_at(c, i, &r) || r.start > page || r.end <= page || !(r.attr & AFW_REGION_MAPPED) || (r.attr & AFW_REGION_SHIM) ||
            (r.attr & prot) != prot)
            return false;
        page = r.end;
    }
    return true;
}

uint64_t thread_read(struct caller *c, uint64_t at, struct guest_thread *out)
{
    uint8_t raw[AFW_THREAD_SIZE];
    uint64_t next;
    if (!at || c->read(c, raw, at, sizeof raw))
        return 0;
    memcpy(&out->tid, raw + AFW_THREAD_TID, sizeof out->tid);
    memcpy(&out->cpu_ns, raw + AFW_THREAD_CPU, sizeof out->cpu_ns);
    memcpy(out->name, raw + AFW_THREAD_NAME, sizeof out->name);
    memcpy(&next, raw + AFW_THREAD_NEXT, sizeof next);
    out->name[sizeof out->name - 1] = 0;
    out->blocked = raw[AFW_THREAD_STATE] == AFW_THREAD_BLOCKED;
    return next ? next : ~0ull;      /* (nothing can be read there) */
}

bool thread_find(struct caller *c, uint32_t tid, struct guest_thread *out)
{
    uint64_t at = c->ctl->threads;
    for (int i = 0; i < AFW_THREADS_MAX && (at = thread_read(c, at, out)); i++)
        if (out->tid == tid)
            return true;
    return false;
}
