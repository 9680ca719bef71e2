/* The table of regions: a sorted array, since programs have some hundreds and look-ups are far more frequent than changes. */
#include "mm.h"

#define FIRST 2048
#define SPARE 16                     /* entries that one call may need beyond what region_room() saw */
static struct region first_table[FIRST];
#define TABLE ((struct region *)CTL->regions)
#define COUNT CTL->n_regions         /* the sentinel counts */
static struct region *last = first_table;            /* found: programs work where they worked */
static u32 capacity = FIRST;
u32 mm_used, mm_peak, mm_dirty;

void region_init(void)
{
    CTL->regions = (u64)first_table;
    COUNT = 1;
    first_table[0].start = first_table[0].end = ~0u;
}

static u32 counted(const struct region *r)
{
    return (r->attr & (A_MAP | A_FILE)) == A_MAP && (r->attr & PROT_ALL) ? r->end - r->start : 0;
}

struct region *region_at(page p)
{
    if (last->start <= p && p < last->end && last < TABLE + COUNT)
        return last;
    u32 lo = 0, hi = COUNT - 1;
    while (lo < hi) {
        u32 mid = (lo + hi) / 2;
        if (TABLE[mid].end > p)
            hi = mid;
        else
            lo = mid + 1;
    }
    return last = TABLE + lo;
}

static void move(struct region *to, struct region *from)     /* the tail of the table */
{
    u32 n = COUNT + (u32)(to - from);
    if (n > capacity)
        PANIC(5);
    memmove(to, from, (u64)((u8 *)(TABLE + COUNT) - (u8 *)from));
    COUNT = n;
}

struct region *region_cut(page p)
{
    struct region *r = region_at(p);
    if (r->start >= p)
        return r;
    move(r + 1, r);
    r->end = p;
    r[1].start = p;
    return r + 1;
}

struct region *region_piece(page s, page end)
{
    struct region *r = region_cut(s);
    if (r->start >= end)
        return 0;
    region_cut(end);
    return r;
}

void region_merge(page start, page end)
{
    struct region *to = region_at(start), *from;
    if (to != TABLE)
        to--;
    for (from = to; from->start <= end; from++) {
        struct region r = *from;
        if (!r.attr)
            continue;
        if (to != TABLE && to[-1].end == r.start && to[-1].attr == r.attr)
            to[-1].end = r.end;
        else
            *to++ = r;
    }
    move(to, from);
    if (mm_used > mm_peak)
        mm_peak = mm_used;
    CTL->committed_pages = mm_used;
}

void region_change(struct region *r, u32 attr)
{
    mm_used -= counted(r);
    mm_dirty -= r->attr & A_DIRTY ? r->end - r->start : 0;
    r->attr = attr;
    mm_used += counted(r);
    mm_dirty += r->attr & A_DIRTY ? r->end - r->start : 0;
}

void region_set(page start, page end, u32 attr)
{
    region_cut(end);
    struct region *r = region_cut(start), *after = r;
    for (; after->start < end; after++)
        region_change(after, 0);
    move(r + 1, after);
    r->start = start;
    r->end = end;
    r->attr = 0;
    region_change(r, attr);
    region_merge(start, end);
}

int region_room(void)
{
    if (COUNT + SPARE <= capacity)
        return 0;
    if (COUNT + 4 > capacity)
        return -ENOMEM;
    u32 more = capacity * 2;
    page p = kpages(PAGES(more * sizeof(struct region)));
    if (!p)
        return -ENOMEM;
    last = memcpy((void *)ADDRESS(p), TABLE, COUNT * sizeof *TABLE);
    CTL->regions = (u64)last;
    capacity = more;                 /* (the old table is left: together they are never more than the newest) */
    return 0;
}

page find_gap(page size, page from, page end)
{
    for (struct region *r = region_at(from); r->start < end; r++) {
        if (!(r->attr & A_MAP))
            continue;
        if (r->start > from && r->start - from >= size)
            break;
        from = r->end;
    }
    return from < end && end - from >= size ? from : 0;
}

page region_covered(page start, page end, u32 attr)
{
    attr |= A_MAP;
    for (struct region *r = region_at(start); start < end && r->start <= start && (r->attr & attr) == attr; r++)
        start = r->end;
    return start < end ? start : end;
}

int user_ok(u64 addr, u64 len, int write)
{
    if (!len)
        return 1;
    if (BEYOND(addr | len))
        return 0;
    page end = PAGES(addr + len);
    return region_covered(PAGE_OF(addr), end, write ? PROT_W : PROT_R) == end;
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
