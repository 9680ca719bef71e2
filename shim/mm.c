/* Memory calls. What the host must hear of: commitment of chunks, protections, files, and zeroing of much at once; the rest is
 * bookkeeping in the table of regions. */
#include "mm.h"

#define CHUNK PAGE_OF(AFW_CHUNK)
#define LOW_RESERVATION PAGE_OF(0x1000000)   /* PROT_NONE below this size stays low: thread stacks share chunks with the rest */
#define HIGH PAGE_OF(0x80000000)     /* larger ones start here */
/* Unmapped memory is kept and zeroed when it is wanted again: a page that the host has to give anew costs the guest a fault, 20 times
 * the price of a memset. But no more is kept than this part of the limit; the rest goes back. */
#define KEEP(limit) PAGE_OF((limit) / 4)
#define HUGE PAGE_OF(0x200000)       /* large files are mapped so that the host can back them with pages of this size */

static u8 lazy;                      /* reservations in chunks committed since flush() */
static u8 placing;                   /* a place was found and is not yet in the table: whatever the host's answer sets off, no page now */
static u32 told;                     /* SQ index behind what flush() posted */
static u64 brk_end;
static u64 chunks[AFW_SPACE_END / AFW_CHUNK / 64 + 1];

static int committed(page p)
{
    u32 c = p / CHUNK;
    return chunks[c / 64] >> c % 64 & 1;
}

static s64 host(u32 op, page start, page end, u64 arg)
{
    return ring_call(op, ADDRESS(start), ADDRESS(end - start), arg, 0, 0, 0);
}

static s64 commit(page start, page end)
{
    for (page c = start / CHUNK * CHUNK; c < end; c += CHUNK) {
        page run = c;
        while (run < end && !committed(run))
            run += CHUNK;
        if (run == c)
            continue;
        if (host(AFW_OP_COMMIT, c, run, 0) < 0)
            return -ENOMEM;
        lazy = 1;
        for (; c < run; c += CHUNK)
            chunks[c / CHUNK / 64] |= 1ull << c / CHUNK % 64;
    }
    return 0;
}

/* PROT_NONE in committed chunks becomes so for the host, too: with the next exit. From here on A_LAZY means uncommitted. */
static void flush(void)
{
    struct region *r;
    if (!lazy)
        return;
    lazy = 0;
    for (page s = 0, e; !region_room() && (r = region_at(s))->start < SPACE_PAGES; s = e) {
        s = r->start;
        e = r->end;
        if (!(r->attr & A_LAZY))
            continue;
        int open = committed(s);
        page stop = s;
        do
            stop = (stop / CHUNK + 1) * CHUNK;
        while (stop < e && committed(stop) == open);
        if (stop < e) {
            r = region_cut(stop) - 1;
            e = stop;
        }
        if (open) {
            r->attr ^= A_LAZY | A_PROT;
            ring_post(AFW_OP_PROTECT, ADDRESS(s), ADDRESS(e - s), 0, 0, 0, 0);
            told = CTL->sq_tail;
        }
    }
    lazy = region_room() != 0;       /* not all were told: again at the next occasion */
}

/* Before a call returns: what it closed is closed. */
static s64 settle(s64 result)
{
    flush();
    if ((s32)(told - CTL->sq_head) > 0)
        ring_kick();
    return result;
}

/* What is in [start, end), which nobody maps, becomes as fresh memory is. */
static s64 clean(page start, page end)
{
    struct region *r;
    for (page s = start, e; (r = region_piece(s, end)); s = e) {
        s = r->start;
        e = r->end;
        if (!(r->attr & (A_FILE | A_PROT)))
            memset((void *)ADDRESS(s), 0, ADDRESS(e - s));
        else if (host(AFW_OP_ZERO, s, e, 0) < 0)
            return -ENOMEM;
    }
    region_set(start, end, 0);
    return 0;
}

void mm_release(page start, page end)
{
    struct region *r;
    for (page s = start, e; (r = region_piece(s, end)); s = e) {
        s = r->start;
        e = r->end;
        u32 a = r->attr, left = (a & (A_FILE | A_PROT)) | A_DIRTY;
        if (!(a & A_MAP))
            continue;
        /* what of a file is mapped, the host keeps: an unlinked one in /tmp would still take its place there */
        if ((a & A_LAZY) || (((a & A_FILE && a & A_SHARED) || mm_dirty + e - s > KEEP(CTL->memory_limit)) && host(AFW_OP_ZERO, s, e, 0) >= 0))
            left = 0;
        region_change(region_at(s), left);
    }
    region_merge(start, end);
}

/* Maps fresh memory at an unmapped place. */
static s64 map(page start, page end, u32 attr)
{
    u32 prot = attr & PROT_ALL;
    if (prot && mm_used + end - start > PAGE_OF(CTL->memory_limit))
        return -ENOMEM;
    placing = 1;
    s64 r = prot ? commit(start, end) : 0;
    if (!r)
        r = clean(start, end);
    attr |= A_MAP;
    if (!prot) {
        attr |= A_LAZY;
        lazy = 1;
    } else if ((prot & (PROT_W | PROT_X)) != PROT_W) {
        attr |= prot & PROT_W ? 0 : A_PROT;
        if (!r)
            r = host(AFW_OP_PROTECT, start, end, prot);
    }
    placing = 0;
    if (r < 0)
        return r;
    region_set(start, end, attr);
    return settle(0);
}

page kpages(page n)
{
    page at = placing ? 0 : find_gap(n, PAGE_OF(CTL->mmap_base), SPACE_PAGES);
    return at && !map(at, at + n, A_KERNEL | PROT_R | PROT_W) ? at : 0;
}

/* The page range of a call: inside the program's space, and nothing of the shim's. 0 or -EINVAL */
static s64 user_range(u64 addr, u64 len, page *start, page *end)
{
    *start = PAGE_OF(addr);
    *end = *start + PAGES(len);
    if (addr % PAGE || addr < AFW_IMAGE || BEYOND(addr | len) || !len || *end > SPACE_PAGES || region_room())
        return -EINVAL;
    for (struct region *r = region_at(*start); r->start < *end; r++)
        if (r->attr & A_KERNEL)
            return -EINVAL;
    return 0;
}

/* The same of calls that want all of it mapped, and may be given nothing at all. -> up to where it is. Fails by itself */
static page mapped_range(u64 addr, u64 len, page *start, page *end)
{
    s64 r = user_range(addr, len, start, end);
    if (addr % PAGE)
        fail(r);
    if (!len)
        fail(0);
    if (r)
        fail(-ENOMEM);
    return region_covered(*start, *end, 0);
}

#define MAP_SHARED 1                 /* 3: MAP_SHARED_VALIDATE */
#define MAP_PRIVATE 2
#define MAP_FIXED 0x10
#define MAP_ANONYMOUS 0x20
#define MAP_32BIT 0x40
#define MAP_HUGETLB 0x40000
#define MAP_FIXED_NOREPLACE 0x100000

static s64 map_file(page start, page end, u32 attr, u64 handle, u64 type, u64 offset)
{
    placing = 1;
    s64 r = commit(start, end);
    int try = !r;
    if (try)
        r = ring_call(AFW_OP_MAPFILE, handle, ADDRESS(start), ADDRESS(end - start), attr & PROT_ALL, type, offset);
    placing = 0;
    if (try)
        region_set(start, end, r < 0 ? A_FILE | A_DIRTY : A_MAP | A_FILE | attr);
    return settle(r < 0 ? r : 0);
}

s64 sys_mmap(u64 addr, u64 len, u64 prot, u64 flags, u64 fd, u64 offset)
{
    u64 handle = 0;
    u32 type = (flags & 15) - 1, attr = (prot & PROT_ALL) | (type == MAP_PRIVATE - 1 ? 0 : A_SHARED);
    page start, end, n = PAGES(len), base = PAGE_OF(CTL->mmap_base);
    s64 r, mode = 2;                 /* O_RDWR */
    if (offset % PAGE)
        return -EINVAL;
    if (!(flags & MAP_ANONYMOUS)) {
        mode = fd_map_handle((int)fd, &handle);
        if (mode < 0)
            return mode;
    }
    if (!len || type > 2 - (flags / MAP_ANONYMOUS & 1))  /* (MAP_SHARED_VALIDATE is for files) */
        return -EINVAL;
    if (BEYOND(len) || (flags & MAP_HUGETLB) || region_room())
        return -ENOMEM;
    r = user_range(addr, len, &start, &end);
    int is_free = !r && find_gap(n, start, end) == start, fixed = (flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) != 0;
    if (fixed && r)
        return addr % PAGE ? r : -ENOMEM;
    if ((flags & MAP_FIXED_NOREPLACE) && !is_free)
        return -EEXIST;
    if (mode == 1 || (!mode && (attr & (A_SHARED | PROT_W)) == (A_SHARED | PROT_W)))     /* not for reading, not for writing */
        return -EACCES;
    if (fixed)
        mm_release(start, end);
    else {
        if (!is_free || start < base) {
            int high = !attr && n >= LOW_RESERVATION && !(flags & MAP_32BIT);
            page pad = !(flags & MAP_ANONYMOUS) && n >= HUGE ? HUGE - 1 : 0;
            start = find_gap(n + pad, high ? HIGH : base, flags & MAP_32BIT ? HIGH : SPACE_PAGES);
            if (!start)
                return -ENOMEM;
            start = (start + pad) & ~pad;
        }
        end = start + n;
    }
    r = flags & MAP_ANONYMOUS ? map(start, end, attr) : map_file(start, end, attr, handle, type + 1, offset);
    return r ? r : (s64)ADDRESS(start);
}

s64 sys_munmap(u64 addr, u64 len)
{
    page start, end;
    s64 r = user_range(addr, len, &start, &end);
    if (!r)
        mm_release(start, end);
    return r;
}

s64 sys_mprotect(u64 addr, u64 len, u64 prot)
{
    page start, end;
    u32 more = 0;
    struct region *p;
    page all = mapped_range(addr, len, &start, &end), missing = end - all;
    if (prot & ~(u64)PROT_ALL)
        return -EINVAL;
    end = all;
    if (prot) {
        for (page s = start; (p = region_piece(s, end)); s = p->end)
            if (!(p->attr & (PROT_ALL | A_FILE)))
                more += p->end - p->start;
        if (mm_used + more > PAGE_OF(CTL->memory_limit) || commit(start, end))
            return -ENOMEM;
        flush();
    }
    s64 r = 0;
    for (page s = start, e; r >= 0 && (p = region_piece(s, end)); s = e) {
        e = p->end;
        u32 a = p->attr;
        if (a & A_LAZY) {            /* prot is 0 then, too, or the table is full */
            r = prot ? -ENOMEM : 0;
            continue;
        }
        if ((prot & PROT_X) || (a & A_FILE) || (a & A_PROT ? (a & PROT_ALL) != prot : !(prot & PROT_W)))
            r = host(AFW_OP_PROTECT, s, e, prot);
        if (r >= 0)
            region_change(region_at(s), (a & ~(u32)(PROT_ALL | A_PROT)) | (u32)prot | (prot & PROT_W ? 0 : A_PROT));
    }
    region_merge(start, end);
    return settle(r < 0 ? r : missing ? -ENOMEM : 0);
}

#define MADV_DONTNEED 4
/* Bits of the advices up to MADV_COLLAPSE, without MADV_DONTNEED_LOCKED; and without MADV_WIPEONFORK: generators that count on it to see a
 * fork draw from getrandom() each time where it is refused, and are not the same in all VMs of a snapshot. */
#define MADV_KNOWN 0x2fbff1f
s64 sys_madvise(u64 addr, u64 len, u64 advice)
{
    page start, end;
    struct region *p;
    s64 r = 0;
    if (advice > 25 || !(MADV_KNOWN >> advice & 1))
        return -EINVAL;
    int missing = mapped_range(addr, len, &start, &end) < end;
    /* Hints; MADV_FREE may keep the pages. And so may the C library's word that an ending thread's stack is not needed: what lies
     * right below a stack pointer nobody can count on, and the next thread that gets the stack is spared a fault a page. */
    u64 sp = user_frame()->rsp;
    if (advice != MADV_DONTNEED || (sp - ADDRESS(end) < 0x8000 && region_at(PAGE_OF(sp))->start <= start))
        return missing ? -ENOMEM : 0;
    for (page s = start, e; r >= 0 && (p = region_piece(s, end)); s = e) {
        s = p->start;
        e = p->end;
        u32 a = p->attr;
        if ((a & (A_MAP | A_LAZY | A_SHARED)) != A_MAP)
            continue;
        if (!(a & (A_PROT | A_FILE)) && e - s <= 16)
            memset((void *)ADDRESS(s), 0, ADDRESS(e - s));
        else {
            r = host(AFW_OP_ZERO, s, e, a / A_FILE & 1);
            if (r >= 0 && (a & (A_PROT | A_FILE)) == A_PROT)
                r = host(AFW_OP_PROTECT, s, e, a & PROT_ALL);
        }
    }
    region_merge(start, end);
    return r < 0 ? r : missing ? -ENOMEM : 0;
}

#define MREMAP_MAYMOVE 1
#define MREMAP_FIXED 2
s64 sys_mremap(u64 addr, u64 old_len, u64 new_len, u64 flags, u64 new_addr)
{
    page start, end, to, to_end, n = PAGES(new_len);
    s64 r = user_range(addr, old_len, &start, &end);
    /* (MREMAP_DONTUNMAP: not served) */
    if (r || !new_len || flags > 3 || flags == MREMAP_FIXED ||
        (flags > 1 && (user_range(new_addr, new_len, &to, &to_end) || (to < end && start < to_end))))
        return -EINVAL;
    struct region *p = region_at(start);
    if (p->start > start || !(p->attr & A_MAP))
        return -EFAULT;
    if (BEYOND(new_len))
        return -ENOMEM;
    if (n <= end - start) {
        mm_release(start + n, end);
        if (flags <= MREMAP_MAYMOVE)
            return (s64)addr;
        end = start + n;
    }
    p = region_at(start);
    u32 attr = p->attr, type = MAP_ANONYMOUS | (attr & A_SHARED ? MAP_SHARED : MAP_PRIVATE);
    if (p->end < end)
        return -EFAULT;
    u64 len = ADDRESS(end - start);
    if (flags <= MREMAP_MAYMOVE && !(attr & A_FILE) && sys_mmap(ADDRESS(end), new_len - len, attr & PROT_ALL, type | MAP_FIXED_NOREPLACE, 0, 0) >= 0)
        return (s64)addr;
    if (!flags)
        return -ENOMEM;
    u64 at = (u64)sys_mmap(flags > 1 ? new_addr : 0, new_len, PROT_R | PROT_W, flags > 1 ? type | MAP_FIXED : type, 0, 0);
    if ((s64)at < 0)
        return (s64)at;
    if (attr & A_FILE) {
        to = PAGE_OF(at);
        r = ring_call(AFW_OP_REMAP, addr, len, at, ADDRESS(n), 0, 0);
        if (!r)
            region_set(start, end, 0);
        region_set(to, to + n, r ? A_FILE | A_DIRTY : attr);
    } else {        /* pages of nobody's file cannot move, so the content is copied */
        r = attr & PROT_R ? 0 : sys_mprotect(addr, len, PROT_R | PROT_W);
        if (!r) {
            memcpy((void *)at, (void *)addr, len);
            mm_release(start, end);
            r = sys_mprotect(at, new_len, attr & PROT_ALL);
        }
    }
    return r < 0 ? r : (s64)at;
}

s64 sys_brk(u64 addr)
{
    page old = PAGES(brk_end), new = PAGES(addr);
    if (addr < CTL->brk_start || addr > CTL->brk_max || region_room() || (new > old && map(old, new, PROT_R | PROT_W)))
        return (s64)brk_end;
    if (new < old)
        mm_release(new, old);
    brk_end = addr;
    return (s64)addr;
}

void mm_init(void)
{
    region_init();
    brk_end = CTL->brk_start;
    for (page p = 0; p < PAGE_OF(CTL->commit_end); p += CHUNK)
        chunks[p / CHUNK / 64] |= 1ull << p / CHUNK % 64;
    /* Image and interpreter: their segments' rights are the host's; ld.so may change them. Both end below the stack's guard. */
    region_set(PAGE_OF(AFW_IMAGE), PAGE_OF(CTL->stack_lo) - 16, A_MAP | A_FILE | PROT_ALL);
    region_set(PAGE_OF(CTL->stack_lo), PAGE_OF(CTL->stack_hi), A_MAP | PROT_R | PROT_W);
}
