/* The table of regions: a sorted array, since programs have some hundreds and look-ups are far more frequent than changes. */
#include "mm.h"

#define FIRST 1024
#define SPARE 16                     /* entries that one call may need beyond what region_room() saw */
static struct region first_table[FIRST];
struct region *regions = first_table;
u32 n_regions;
static u32 capacity = FIRST;
u64 mm_used, mm_peak;

static u64 counted(const struct region *r)
{
    return (r->attr & (A_MAP | A_FILE)) == A_MAP && (r->attr & PROT_ALL) ? r->end - r->start : 0;
}

u32 region_at(u64 addr)
{
    static u32 last;                 /* programs work where they worked */
    if (last < n_regions && regions[last].end > addr && (regions[last].start <= addr || !last || regions[last - 1].end <= addr))
        return last;
    u32 lo = 0, hi = n_regions;
    while (lo < hi) {
        u32 mid = (lo + hi) / 2;
        if (regions[mid].end > addr)
            hi = mid;
        else
            lo = mid + 1;
    }
    last = lo;
    return lo;
}

static void move(u32 to, u32 from)   /* the tail of the table */
{
    memmove(&regions[to], &regions[from], (n_regions - from) * sizeof *regions);
    n_regions += to - from;
}

u32 region_cut(u64 addr)
{
    u32 i = region_at(addr);
    if (i == n_regions || regions[i].start >= addr)
        return i;
    if (n_regions >= capacity)
        PANIC(5);
    move(i + 1, i);
    regions[i].end = addr;
    regions[i + 1].start = addr;
    return i + 1;
}

void region_merge(u64 start, u64 end)
{
    u32 to = region_at(start);
    if (to)
        to--;
    u32 from = to;
    for (; from < n_regions && regions[from].start <= end; from++) {
        struct region r = regions[from];
        if (!r.attr)
            continue;
        if (to && regions[to - 1].end == r.start && regions[to - 1].attr == r.attr)
            regions[to - 1].end = r.end;
        else
            regions[to++] = r;
    }
    if (from != to)
        move(to, from);
    if (mm_used > mm_peak)
        mm_peak = mm_used;
    CTL->committed_pages = mm_used / PAGE;
}

void region_set(u64 start, u64 end, u32 attr)
{
    u32 i = region_cut(start), j = region_cut(end);
    if (i == j) {
        if (n_regions >= capacity)
            PANIC(5);
        move(i + 1, i);
        regions[i].attr = 0;
        j = i + 1;
    }
    for (u32 k = i; k < j; k++)
        mm_used -= counted(&regions[k]);
    regions[i] = (struct region){start, end, attr};
    mm_used += counted(&regions[i]);
    if (j != i + 1)
        move(i + 1, j);
    region_merge(start, end);
}

void region_change(u32 i, u32 attr)
{
    mm_used -= counted(&regions[i]);
    regions[i].attr = attr;
    mm_used += counted(&regions[i]);
}

int region_room(void)
{
    if (n_regions + SPARE <= capacity)
        return 0;
    if (n_regions + 4 > capacity)
        return -ENOMEM;
    u32 more = capacity * 2;
    struct region *t = (struct region *)kpages(more * sizeof *t);
    if (!t)
        return -ENOMEM;
    memcpy(t, regions, n_regions * sizeof *t);
    struct region *old = regions;
    u64 bytes = (capacity * sizeof *t + PAGE - 1) & ~(PAGE - 1);
    regions = t;
    capacity = more;
    if (old != first_table)
        mm_release((u64)old, (u64)old + bytes);
    return 0;
}

u64 find_gap(u64 size, u64 from, u64 end)
{
    for (u32 i = region_at(from); i < n_regions; i++) {
        if (!(regions[i].attr & A_MAP))
            continue;
        if (regions[i].start > from && regions[i].start - from >= size)
            break;
        if (regions[i].end > from)
            from = regions[i].end;
    }
    return from < end && end - from >= size ? from : 0;
}

int region_covered(u64 start, u64 end, u32 attr)
{
    for (u32 i = region_at(start); i < n_regions && regions[i].start <= start; i++) {
        if ((regions[i].attr & (attr | A_MAP)) != (attr | A_MAP))
            return 0;
        start = regions[i].end;
        if (start >= end)
            return 1;
    }
    return 0;
}

int user_ok(u64 addr, u64 len, int write)
{
    if (!len)
        return 1;
    return addr + len > addr && region_covered(addr, addr + len, write ? PROT_W : PROT_R);
}

s64 user_strlen(u64 addr, u64 max)
{
    u64 n = 0;
    while (n < max) {
        u32 i = region_at(addr + n);
        if (i == n_regions || regions[i].start > addr + n || !(regions[i].attr & A_MAP) || !(regions[i].attr & PROT_R))
            return -EFAULT;
        for (u64 end = regions[i].end; n < max && addr + n < end; n++)
            if (!AT(u8, addr + n))
                return (s64)n;
    }
    return -ENAMETOOLONG;
}
