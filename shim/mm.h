/* The table of regions (region.c) and what mm.c and kalloc.c do with it. */
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
#define A_LAZY 128                   /* fresh PROT_NONE that the host has not been told of */
#define A_DIRTY 256                  /* holds what nobody may see: zero it before it is handed out */
#define A_SHARED 512

struct region {
    u64 start, end;
    u32 attr;                        /* PROT_*, A_*; addresses in no region are free and as fresh memory is */
};
extern struct region *regions;
extern u32 n_regions;

u32 region_at(u64 addr);             /* first one that ends above addr, or n_regions */
u32 region_cut(u64 addr);            /* makes a border at addr; first one that starts at or above addr */
void region_set(u64 start, u64 end, u32 attr);       /* the range becomes one region (attr 0: none); merges with neighbours */
void region_change(u32 i, u32 attr);                 /* in place; region_merge() when through with the range */
void region_merge(u64 start, u64 end);
int region_room(void);               /* room for the splits of one call: 0 or -ENOMEM */
void region_init(void);
u64 find_gap(u64 size, u64 from, u64 end);           /* lowest unmapped range, 0 */
int region_covered(u64 start, u64 end, u32 attr);    /* all of it mapped, with these attributes */

/* [start, end) becomes fresh: committed, zero, read+write for the host. It must be unmapped. */
s64 mm_fresh(u64 start, u64 end);
s64 mm_commit(u64 start, u64 end);
void mm_release(u64 start, u64 end); /* unmap */
u64 kpages(u64 bytes);               /* zeroed pages for the shim, 0 */
#endif
