/* Memory for the shim itself: size classes over pages from mm.c, whole pages above. 16 bytes before each block name its kind. */
#include "mm.h"

struct block {
    u32 class;                       /* index, or LARGE */
    u32 pages;
    struct block *next;              /* while free */
};
#define LARGE 255
#define HEAD 16ul
#define CLASSES 7                    /* 32 .. 2048 bytes, head included */
#define REFILL 4                     /* pages */

static struct block *free_blocks[CLASSES];
static u64 fresh, fresh_end;         /* unused rest of the newest pages; zero, as is a block's payload when it is handed out */

void *kalloc(size_t size)
{
    struct block *b;
    u32 class = 0;
    while (class < CLASSES && size + HEAD > 32ul << class)
        class++;
    if (class == CLASSES) {
        if (BEYOND(size) || region_room())
            return 0;
        page p = kpages(PAGES(size + HEAD));
        if (!p)
            return 0;
        b = (struct block *)ADDRESS(p);
        b->class = LARGE;
        b->pages = PAGES(size + HEAD);
        return (u8 *)b + HEAD;
    }
    u64 bytes = 32ul << class;
    b = free_blocks[class];
    if (b) {
        free_blocks[class] = b->next;
        memset((u8 *)b + 8, 0, bytes - 8);
        return (u8 *)b + HEAD;
    }
    if (fresh + bytes > fresh_end) {
        if (region_room())
            return 0;
        page p = kpages(REFILL);
        if (!p)
            return 0;
        u64 at = ADDRESS(p);
        if (at != fresh_end)
            fresh = at;
        fresh_end = at + ADDRESS(REFILL);
    }
    b = (struct block *)fresh;
    fresh += bytes;
    b->class = class;
    return (u8 *)b + HEAD;
}

void kfree(void *p)
{
    if (!p)
        return;
    struct block *b = (struct block *)((u8 *)p - HEAD);
    if (b->class == LARGE) {
        if (region_room())
            return;                  /* lost, like all else now */
        mm_release(PAGE_OF((u64)b), PAGE_OF((u64)b) + b->pages);
        return;
    }
    if (b->class >= CLASSES)
        PANIC(6);
    b->next = free_blocks[b->class];
    free_blocks[b->class] = b;
}
