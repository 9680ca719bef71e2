/* The table of regions (region.c) and what mm.c and kalloc.c do with it. Addresses are page numbers here (32 bits: smaller code). */
#ifndef SHIM_MM_H
#define SHIM_MM_H
#include "core.h"

#define PROT_R 1
#define PROT_W 2
#define PROT_X 4
#define PROT_ALL 7
#define A_MAP 8                      /* somebody has it; without it: free, but not as fresh memory is */
#define A_KERNEL 16                  /* the shim's own */
#define A_FILE 32                    /* the host backs it by a file */
#define A_PROT 64                    /* the host's protection is not read+write */
#define A_LAZY 128                   /* PROT_NONE that the host has not been told of, in a chunk that is not committed */
#define A_DIRTY 256                  /* free, and holds what nobody may see: to be zeroed before it is handed out */
#define A_SHARED 512

typedef u32 page;
#define PAGE_OF(address) ((page)((address) / PAGE))
#define PAGES(bytes) ((page)(((bytes) + PAGE - 1) / PAGE))
#define ADDRESS(p) ((u64)(p) * PAGE)
#define SPACE_PAGES PAGE_OF(AFW_SPACE_END)

struct region {
    page start, end;
    u32 attr;                        /* PROT_*, A_*; pages in no region are free and as fresh memory is */
};
extern struct region *regions;
extern u32 n_regions;

u32 region_at(page p);               /* first one that ends above p, or n_regions */
u32 region_cut(page p);              /* makes a border at p; first one that starts at or above p */
void region_set(page start, page end, u32 attr);     /* the range becomes one region (attr 0: none); merges with neighbours */
void region_change(u32 i, u32 attr);                 /* in place; region_merge() when through with the range */
void region_merge(page start, page end);
int region_room(void);               /* room for the splits of one call: 0 or -ENOMEM */
page find_gap(page size, page from, page end);       /* lowest unmapped range, 0 */
int region_covered(page start, page end, u32 attr);  /* all of it mapped, with these attributes */

/* Walks the regions in [s, end), cut to it: `for (page s = start, e; (i = region_piece(&s, end)) != NO_REGION; s = e) e = regions[i].end`.
 * The table may change in the loop. */
#define NO_REGION (~0u)
u32 region_piece(page *s, page end);

void mm_release(page start, page end);               /* unmap */
page kpages(page n);                 /* zeroed pages for the shim, 0 */
#endif
