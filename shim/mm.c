/* Memory calls. What the host must hear of: commitment of chunks, protections, files, and zeroing of much at once; the rest is
 * bookkeeping in the table of regions. */
#include "mm.h"

#define LOW_RESERVATION 0x1000000ul  /* PROT_NONE below this size stays low: thread stacks share chunks with the rest */
#define HIGH 0x80000000ul            /* larger ones start here */
#define ZERO_BY_HOST 0x400000ul      /* more dirt than this: fresh pages from the host are cheaper than memset */
#define GIVE_BACK 0x800000ul         /* so much unmapped at once goes back to the host */

static u8 lazy;                      /* fresh PROT_NONE in committed chunks that the host has not been told of */
static u32 told;                     /* SQ index behind what flush() posted */
static u64 brk_end;
static u64 chunks[AFW_SPACE_END / AFW_CHUNK / 64 + 1];

static u64 page_up(u64 n)
{
    return (n + PAGE - 1) & ~(PAGE - 1);
}

static int committed(u64 addr)
{
    u64 c = addr / AFW_CHUNK;
    return chunks[c / 64] >> c % 64 & 1;
}

s64 mm_commit(u64 start, u64 end)
{
    u64 c = start & ~(u64)(AFW_CHUNK - 1);
    while (c < end) {
        u64 run = c;
        while (run < end && !committed(run))
            run += AFW_CHUNK;
        if (run == c) {
            c += AFW_CHUNK;
            continue;
        }
        if (ring_call(AFW_OP_COMMIT, c, run - c, 0, 0, 0, 0) < 0)
            return -ENOMEM;
        for (; c < run; c += AFW_CHUNK)
            chunks[c / AFW_CHUNK / 64] |= 1ull << c / AFW_CHUNK % 64;
        lazy = 1;                    /* reservations that lie in them are open now */
    }
    return 0;
}

/* Tell the host of them. Goes out with the next exit. */
static void flush(void)
{
    if (!lazy)
        return;
    lazy = 0;
    for (u32 i = 0; i < n_regions; i++) {
        if (!(regions[i].attr & A_LAZY))
            continue;
        u64 start = regions[i].start, end = regions[i].end, stop = start;
        int open = committed(start);
        do
            stop = (stop & ~(u64)(AFW_CHUNK - 1)) + AFW_CHUNK;
        while (stop < end && committed(stop) == open);
        if (stop < end) {
            if (region_room()) {
                lazy = 1;
                return;
            }
            i = region_cut(stop) - 1;
            end = stop;
        }
        if (open) {
            ring_post(AFW_OP_PROTECT, start, end - start, 0, 0, 0, 0);
            regions[i].attr = (regions[i].attr & ~A_LAZY) | A_PROT;
            told = CTL->sq_tail;
        }
    }
}

/* Before a call returns: what it closed is closed. */
static s64 settle(s64 result)
{
    flush();
    if ((s32)(told - CTL->sq_head) > 0)
        ring_kick();
    return result;
}

static s64 zero(u64 start, u64 end)
{
    if (end - start <= ZERO_BY_HOST) {
        memset((void *)start, 0, end - start);
        return 0;
    }
    return ring_call(AFW_OP_ZERO, start, end - start, 0, 0, 0, 0);
}

s64 mm_fresh(u64 start, u64 end)
{
    s64 r = mm_commit(start, end);
    for (u32 i = region_at(start); !r && i < n_regions && regions[i].start < end; i++) {
        u64 s = regions[i].start > start ? regions[i].start : start, e = regions[i].end < end ? regions[i].end : end;
        if (regions[i].attr & (A_FILE | A_PROT))
            r = ring_call(AFW_OP_ZERO, s, e - s, 0, 0, 0, 0);
        else if (regions[i].attr & A_DIRTY)
            r = zero(s, e);
    }
    if (r < 0)
        return -ENOMEM;
    region_set(start, end, 0);
    return 0;
}

void mm_release(u64 start, u64 end)
{
    u32 i = region_cut(start);
    region_cut(end);
    for (; i < n_regions && regions[i].start < end; i++) {
        u32 a = regions[i].attr;
        if (!(a & A_MAP))
            continue;
        u64 size = regions[i].end - regions[i].start;
        if (a & A_LAZY)
            a &= A_DIRTY;
        else if (size >= GIVE_BACK && ring_call(AFW_OP_ZERO, regions[i].start, size, 0, 0, 0, 0) >= 0)
            a = 0;
        else
            a = (a & (A_FILE | A_PROT)) | A_DIRTY;
        region_change(i, a);
    }
    region_merge(start, end);
}

u64 kpages(u64 bytes)
{
    bytes = page_up(bytes);
    u64 at = find_gap(bytes, CTL->mmap_base, AFW_SPACE_END);
    if (!at || mm_used + bytes > CTL->memory_limit || mm_fresh(at, at + bytes))
        return 0;
    region_set(at, at + bytes, A_MAP | A_KERNEL | PROT_R | PROT_W);
    return at;
}

/* The range may be mapped over or unmapped: inside the program's space, and nothing of the shim's. */
static int user_range(u64 start, u64 end)
{
    if (start < AFW_IMAGE || end > AFW_SPACE_END || end <= start)
        return 0;
    for (u32 i = region_at(start); i < n_regions && regions[i].start < end; i++)
        if (regions[i].attr & A_KERNEL)
            return 0;
    return 1;
}

static s64 protect(u64 start, u64 end, u64 prot)
{
    return ring_call(AFW_OP_PROTECT, start, end - start, prot, 0, 0, 0);
}

#define MAP_TYPE 15
#define MAP_SHARED 1
#define MAP_FIXED 0x10
#define MAP_ANONYMOUS 0x20
#define MAP_32BIT 0x40
#define MAP_HUGETLB 0x40000
#define MAP_FIXED_NOREPLACE 0x100000

static s64 place(u64 addr, u64 len, u64 prot, u64 flags)
{
    if (flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) {
        if (addr % PAGE)
            return -EINVAL;
        if (!user_range(addr, addr + len))
            return -ENOMEM;
        if ((flags & MAP_FIXED_NOREPLACE) && find_gap(len, addr, addr + len) != addr)
            return -EEXIST;
        return (s64)addr;
    }
    addr &= ~(PAGE - 1);
    if (addr >= CTL->mmap_base && addr + len > addr && addr + len <= AFW_SPACE_END && find_gap(len, addr, addr + len) == addr)
        return (s64)addr;
    u64 at = 0;
    if (flags & MAP_32BIT)
        at = find_gap(len, CTL->mmap_base, HIGH);
    else if (!prot && len >= LOW_RESERVATION)
        at = find_gap(len, HIGH, AFW_SPACE_END);
    else
        at = find_gap(len, CTL->mmap_base, AFW_SPACE_END);
    return at ? (s64)at : -ENOMEM;
}

s64 sys_mmap(u64 addr, u64 len, u64 prot, u64 flags, u64 fd, u64 offset)
{
    u64 type = flags & MAP_TYPE, handle = 0;
    int readable, writable, anonymous = (flags & MAP_ANONYMOUS) != 0;
    if (!len || offset % PAGE || type < 1 || type > 3)
        return -EINVAL;
    if (len > AFW_SPACE_END || (flags & MAP_HUGETLB) || region_room())
        return -ENOMEM;
    len = page_up(len);
    prot &= PROT_ALL;
    if (!anonymous) {
        s64 r = fd_map_handle((int)fd, &handle, &writable, &readable);
        if (r < 0)
            return r;
        if (!readable || ((type & MAP_SHARED) && (prot & PROT_W) && !writable))
            return -EACCES;
    } else if (prot && mm_used + len > CTL->memory_limit)
        return -ENOMEM;
    s64 at = place(addr, len, prot, flags);
    if (at < 0)
        return at;
    u64 start = (u64)at, end = start + len;
    if (flags & MAP_FIXED)
        mm_release(start, end);
    if (!anonymous) {
        u32 attr = A_FILE | (type & MAP_SHARED ? A_SHARED : 0);
        s64 r = mm_commit(start, end);
        if (r)
            return r;
        r = ring_call(AFW_OP_MAPFILE, handle, start, len, prot, type & MAP_SHARED ? 1 : 2, offset);
        region_set(start, end, r < 0 ? A_FILE | A_DIRTY : A_MAP | attr | (u32)prot);
        return settle(r < 0 ? r : at);
    }
    if (!prot) {
        /* Costs nothing: what lies there stays until it is made accessible. Only another protection or a file must go now. */
        u32 dirty = 0, i = region_at(start);
        for (; i < n_regions && regions[i].start < end; i++)
            dirty |= regions[i].attr;
        if (dirty & (A_FILE | A_PROT)) {
            if (mm_fresh(start, end))
                return -ENOMEM;
            dirty = 0;
        }
        region_set(start, end, A_MAP | A_LAZY | (dirty & A_DIRTY));
        lazy = 1;
        return settle(at);
    }
    if (mm_fresh(start, end))
        return -ENOMEM;
    u32 attr = A_MAP | (u32)prot | (type & MAP_SHARED ? A_SHARED : 0) | (prot & PROT_W ? 0 : A_PROT);
    if ((attr & A_PROT) || (prot & PROT_X)) {
        s64 r = protect(start, end, prot);
        if (r < 0)
            return r;
    }
    region_set(start, end, attr);
    return settle(at);
}

s64 sys_munmap(u64 addr, u64 len)
{
    u64 end = addr + page_up(len);
    if (addr % PAGE || !len || !user_range(addr, end))
        return -EINVAL;
    if (region_room())
        return -ENOMEM;
    mm_release(addr, end);
    return 0;
}

/* Region i is about to become accessible or protected: what it holds must be the program's. */
static s64 reveal(u32 i)
{
    u32 a = regions[i].attr;
    if (!(a & A_DIRTY))
        return 0;
    s64 r = a & A_PROT ? ring_call(AFW_OP_ZERO, regions[i].start, regions[i].end - regions[i].start, 0, 0, 0, 0)
                       : zero(regions[i].start, regions[i].end);
    if (r < 0)
        return -ENOMEM;
    region_change(i, a & ~(A_DIRTY | A_PROT));
    return 0;
}

s64 sys_mprotect(u64 addr, u64 len, u64 prot)
{
    u64 end = addr + page_up(len);
    if (addr % PAGE || (prot & ~(u64)PROT_ALL))
        return -EINVAL;
    if (!len)
        return 0;
    if (!user_range(addr, end) || !region_covered(addr, end, 0) || region_room())
        return -ENOMEM;
    u64 more = 0;
    u32 first = region_cut(addr), i;
    region_cut(end);
    for (i = first; i < n_regions && regions[i].start < end; i++)
        if (!(regions[i].attr & (PROT_ALL | A_FILE)))
            more += regions[i].end - regions[i].start;
    s64 r = 0;
    if (prot && more && (mm_used + more > CTL->memory_limit || mm_commit(addr, end)))
        r = -ENOMEM;
    flush();                         /* from here on, A_LAZY means: in an uncommitted chunk */
    first = region_at(addr);
    int tell = 0;
    for (i = first; !r && i < n_regions && regions[i].start < end; i++) {
        if (prot)
            r = reveal(i);
        u32 a = regions[i].attr;
        int open = !(a & (A_FILE | A_PROT));
        if (!(a & A_LAZY))
            tell |= (prot & PROT_X) || (a & A_FILE) || (open ? !(prot & PROT_W) : (a & PROT_ALL) != prot);
    }
    if (!r && tell) {
        for (u64 s = addr; r >= 0 && s < end;) {
            i = region_at(s);
            u64 e = regions[i].end;
            if (!prot && (regions[i].attr & A_LAZY)) {
                s = e;
                continue;
            }
            while (e < end && !(!prot && (regions[i + 1].attr & A_LAZY)))
                e = regions[++i].end;
            if (e > end)
                e = end;
            r = protect(s, e, prot);
            s = e;
        }
    }
    for (i = region_at(addr); r >= 0 && i < n_regions && regions[i].start < end; i++) {
        u32 a = regions[i].attr & ~(u32)PROT_ALL;
        if (prot)
            a &= ~A_LAZY;
        if (!(a & A_LAZY))
            a = prot & PROT_W ? a & ~A_PROT : a | A_PROT;
        region_change(i, a | (u32)prot);
    }
    region_merge(addr, end);
    return settle(r < 0 ? r : 0);
}

#define MADV_DONTNEED 4
s64 sys_madvise(u64 addr, u64 len, u64 advice)
{
    u64 end = addr + page_up(len);
    if (addr % PAGE || end < addr)
        return -EINVAL;
    if (advice > 21 || (advice > 4 && advice < 8))
        return -EINVAL;
    if (!len)
        return 0;
    if (!user_range(addr, end) || !region_covered(addr, end, 0))
        return -ENOMEM;
    if (advice != MADV_DONTNEED)
        return 0;                    /* hints; MADV_FREE may keep the pages */
    for (u32 i = region_at(addr); i < n_regions && regions[i].start < end; i++) {
        u32 a = regions[i].attr;
        u64 s = regions[i].start > addr ? regions[i].start : addr, e = regions[i].end < end ? regions[i].end : end;
        if (a & (A_FILE | A_LAZY | A_SHARED))   /* a file's private pages keep what the program wrote: the old content is the file's, which is gone */
            continue;
        if (a & A_PROT) {
            if (ring_call(AFW_OP_ZERO, s, e - s, 0, 0, 0, 0) < 0 || protect(s, e, a & PROT_ALL) < 0)
                return -ENOMEM;
        } else if (e - s <= 16 * PAGE)
            memset((void *)s, 0, e - s);
        else if (ring_call(AFW_OP_ZERO, s, e - s, 0, 0, 0, 0) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* [start, end) becomes accessible memory with the attributes of its neighbour. */
static s64 extend(u64 start, u64 end, u32 attr)
{
    if (!(attr & PROT_ALL)) {
        region_set(start, end, A_MAP | A_LAZY);
        lazy = 1;
        return settle(0);
    }
    if (mm_used + (end - start) > CTL->memory_limit || mm_fresh(start, end))
        return -ENOMEM;
    if ((attr & A_PROT) && protect(start, end, attr & PROT_ALL) < 0)
        return -ENOMEM;
    region_set(start, end, attr);
    return settle(0);
}

#define MREMAP_MAYMOVE 1
#define MREMAP_FIXED 2
s64 sys_mremap(u64 addr, u64 old_len, u64 new_len, u64 flags, u64 new_addr)
{
    u64 old = page_up(old_len), len = page_up(new_len), end = addr + old;
    if (addr % PAGE || !len || !old || (flags & ~3ull) || ((flags & MREMAP_FIXED) && !(flags & MREMAP_MAYMOVE)))
        return -EINVAL;
    if (len > AFW_SPACE_END || region_room())
        return -ENOMEM;
    if (!user_range(addr, end) || !region_covered(addr, end, 0))
        return -EFAULT;
    u32 attr = regions[region_at(addr)].attr;
    if (flags & MREMAP_FIXED) {
        if (new_addr % PAGE || !user_range(new_addr, new_addr + len) || (new_addr < end && addr < new_addr + len))
            return -EINVAL;
    } else if (len <= old) {
        if (len < old)
            mm_release(addr + len, end);
        return (s64)addr;
    }
    if (attr & A_FILE) {
        if (attr & A_SHARED || len > old)
            return -ENOMEM;          /* the file behind it is not known any more */
        attr = (attr & PROT_ALL) | A_MAP | (attr & PROT_W ? 0 : A_PROT);
    }
    if (region_at(addr) != region_at(end - 1))
        return -EFAULT;
    if (attr & A_LAZY)
        attr &= ~A_DIRTY;
    if (!(flags & MREMAP_FIXED) && addr + len <= AFW_SPACE_END && (addr >= CTL->mmap_base) &&
        find_gap(len - old, end, addr + len) == end) {
        s64 r = extend(end, addr + len, attr);
        return r ? r : (s64)addr;
    }
    if (!(flags & MREMAP_MAYMOVE))
        return -ENOMEM;
    if (flags & MREMAP_FIXED)
        mm_release(new_addr, new_addr + len);
    else
        new_addr = find_gap(len, CTL->mmap_base, AFW_SPACE_END);
    if (!new_addr || !(attr & (PROT_ALL | A_LAZY)))
        return -ENOMEM;              /* (PROT_NONE with content: nothing here can read it) */
    /* The old part is given up in the same step, so only the difference counts; content is copied, pages cannot move. */
    s64 r = extend(new_addr, new_addr + len, attr & PROT_ALL ? A_MAP | PROT_R | PROT_W : attr);
    if (r)
        return r;
    if (attr & PROT_R)
        memcpy((void *)new_addr, (void *)addr, old < len ? old : len);
    mm_release(addr, end);
    if ((attr & PROT_ALL) && (attr & PROT_ALL) != (PROT_R | PROT_W)) {
        r = sys_mprotect(new_addr, len, attr & PROT_ALL);
        if (r)
            return r;
    }
    return (s64)new_addr;
}

s64 sys_brk(u64 addr)
{
    u64 old = page_up(brk_end), new = page_up(addr);
    if (addr < CTL->brk_start || addr > CTL->brk_max || region_room())
        return (s64)brk_end;
    if (new > old && extend(old, new, A_MAP | PROT_R | PROT_W))
        return (s64)brk_end;
    if (new < old)
        mm_release(new, old);
    brk_end = addr;
    return (s64)addr;
}

s64 sys_msync(u64 addr, u64 len)     /* shared mappings are the host's page cache: nothing to carry over. mlock: all is resident */
{
    if (addr % PAGE)
        return -EINVAL;
    return region_covered(addr, addr + len, 0) || !len ? 0 : -ENOMEM;
}

s64 sys_mincore(u64 addr, u64 len, u64 out)
{
    u64 pages = page_up(len) / PAGE;
    if (addr % PAGE)
        return -EINVAL;
    if (!region_covered(addr, addr + page_up(len), 0))
        return -ENOMEM;
    if (!user_ok(out, pages, 1))
        return -EFAULT;
    memset((void *)out, 1, pages);
    return 0;
}

void mm_init(void)
{
    brk_end = CTL->brk_start;
    for (u64 c = 0; c < CTL->commit_end / AFW_CHUNK; c++)
        chunks[c / 64] |= 1ull << c % 64;
    /* Image and interpreter: their segments' rights are the host's; ld.so may change them. Both end below the stack's guard. */
    region_set(AFW_IMAGE, CTL->stack_lo - PAGE, A_MAP | A_FILE | PROT_ALL);
    region_set(CTL->stack_lo, CTL->stack_hi, A_MAP | PROT_R | PROT_W);
}
