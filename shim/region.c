/* The table of regions: a sorted array, since programs have some hundreds and look-ups are far more frequent than changes. */
#include "mm.h"

#define FIRST 2048
#define SPARE 16                     /* entries that one call may need beyond what region_room() saw */
static struct region first_table[FIRST];
struct region *regions = first_table;
u32 n_regions;
static u32 capacity = FIRST;
u32 mm_used, mm_peak;

static u32 counted(const struct region *r)
{
    return (r->attr & (A_MAP | A_FILE)) == A_MAP && (r->attr & PROT_ALL) ? r->end - r->start : 0;
}

u32 region_at(page p)
{
    static u32 last;                 /* programs work where they worked */
    u32 lo = last, hi = n_regions;
    if (lo < hi && regions[lo].start <= p && p < regions[lo].end)
        return lo;
    lo = 0;
    while (lo < hi) {
        u32 mid = (lo + hi) / 2;
        if (regions[mid].end > p)
            hi = mid;
        else
            lo = mid + 1;
    }
    last = lo;
    return lo;
}

static void move(u32 to, u32 from)   /* the tail of the table */
{
    if (n_regions + to - from > capacity)
        PANIC(5);
    memmove(&regions[to], &regions[from], (n_regions - from) * sizeof *regions);
    n_regions += to - from;
}

u32 region_cut(page p)
{
    u32 i = region_at(p);
    if (i == n_regions || regions[i].start >= p)
        return i;
    move(i + 1, i);
    regions[i].end = p;
    regions[i + 1].start = p;
    return i + 1;
}

u32 region_piece(page *s, page end)
{
    u32 i = region_cut(*s);
    if (i == n_regions || regions[i].start >= end)
        return NO_REGION;
    *s = regions[i].start;
    region_cut(end);
    return i;
}

void region_merge(page start, page end)
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
    move(to, from);
    if (mm_used > mm_peak)
        mm_peak = mm_used;
    CTL->committed_pages = mm_used;
}

void region_change(u32 i, u32 attr)
{
    mm_used -= counted(&regions[i]);
    regions[i].attr = attr;
    mm_used += counted(&regions[i]);
}

void region_set(page start, page end, u32 attr)
{
    u32 i = region_cut(start), j = region_cut(end);
    for (u32 k = i; k < j; k++)
        region_change(k, 0);
    move(i + 1, j);
    regions[i] = (struct region){start, end, 0};
    region_change(i, attr);
    region_merge(start, end);
}

int region_room(void)
{
    if (n_regions + SPARE <= capacity)
        return 0;
    if (n_regions + 4 > capacity)
        return -ENOMEM;
    u32 more = capacity * 2;
    page p = kpages(PAGES(more * sizeof(struct region)));
    if (!p)
        return -ENOMEM;
    regions = memcpy((void *)ADDRESS(p), regions, n_regions * sizeof *regions);
    capacity = more;                 /* (the old table is left: together they are never more than the newest) */
    return 0;
}

page find_gap(page size, page from, page end)
{
    for (u32 i = region_at(from); i < n_regions; i++) {
        if (!(regions[i].attr & A_MAP))
            continue;
        if (regions[i].start > from && regions[i].start - from >= size)
            break;
        from = regions[i].end;
    }
    return from < end && end - from >= size ? from : 0;
}

int region_covered(page start, page end, u32 attr)
{
    attr |= A_MAP;
    for (u32 i = region_at(start); i < n_regions && regions[i].start <= start && (regions[i].attr & attr) == attr; i++) {
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
    if (addr >= AFW_SPACE_END || len > AFW_SPACE_END)
        return 0;
    return region_covered(PAGE_OF(addr), PAGES(addr + len), write ? PROT_W : PROT_R);
}

void copy_in(void *to, u64 from, u64 n)
{
    if (!user_ok(from, n, 0))
        fail(-EFAULT);
    memcpy(to, (void *)from, n);
}

s64 copy_out(u64 to, const void *from, u64 n)
{
    if (!user_ok(to, n, 1))
        fail(-EFAULT);
    memcpy((void *)to, from, n);
    return 0;
}

s64 copy_out_word(u64 to, u64 value)
{
    return copy_out(to, &value, 8);
}

s64 user_strlen(u64 addr, u64 max)
{
    for (u64 n = 0; n < max; n++) {
        if ((!n || (addr + n) % PAGE == 0) && !user_ok(addr + n, 1, 0))
            return -EFAULT;
        if (!AT(u8, addr + n))
            return (s64)n;
    }
    return -ENAMETOOLONG;
}
