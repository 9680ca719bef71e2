/* The table of regions (region.c) and what mm.c and kalloc.c do with it. Addresses are page numbers here (32 bits: smaller code). */
#ifndef SHIM_MM_H
#define SHIM_MM_H
#include "core.h"

#define PROT_R 1
#define PROT_W 2
#define PROT_X 4
#define PROT_ALL 7
#define A_MAP AFW_REGION_MAPPED      /* somebody has it; without it: free, but not as fresh memory is */
#define A_KERNEL AFW_REGION_SHIM     /* the shim's own */
#define A_FILE AFW_REGION_FILE       /* the host backs it by a file */
#define A_PROT 64                    /* the host's protection is not read+write */
#define A_LAZY 128                   /* PROT_NONE that the host has not been told of, in a chunk that is not committed */
#define A_DIRTY 256                  /* free, and holds what nobody may see: to be zeroed before it is handed out */
#define A_SHARED AFW_REGION_SHARED

typedef u32 page;
#define PAGE_OF(address) ((page)((address) / PAGE))
#define PAGES(bytes) ((page)(((bytes) + PAGE - 1) / PAGE))
#define ADDRESS(p) ((u64)(p) * PAGE)
#define SPACE_PAGES PAGE_OF(AFW_SPACE_END)
#define BEYOND(n) ((n) >> 34)        /* no address and no length there is: AFW_SPACE_END, rounded up. What passes fits a page after additions */

#define region afw_region            /* struct region: the host reads the table, too. Pages in no region are free and as fresh memory is */

/* A region is found by region_at() and good until the table changes: by the calls below, kalloc() and whatever rings the host.
 * The last one of the table is a sentinel: starts and ends at ~0. */
struct region *region_at(page p);    /* first one that ends above p */
struct region *region_cut(page p);   /* makes a border at p; first one that starts at or above p */
struct region *region_piece(page s, page end);       /* first one in [s, end), cut to it; 0: none */
void region_set(page start, page end, u32 attr);     /* the range becomes one region (attr 0: none); merges with neighbours */
void region_change(struct region *r, u32 attr);      /* in place; region_merge() when through with the range */
void region_merge(page start, page end);
int region_room(void);               /* room for the splits of one call: 0 or -ENOMEM */
page find_gap(page size, page from, page end);       /* lowest unmapped range, 0 */
page region_covered(page start, page end, u32 attr); /* up to where all of it is mapped, with these attributes */
void region_init(void);
extern u32 mm_dirty;                 /* pages that are A_DIRTY */

void mm_release(page start, page end);               /* unmap */
page kpages(page n);                 /* zeroed pages for the shim, 0 */
#endif
