/* Code as huge pages: one fault for 2 MiB of the interpreter's text instead of one for each 4 KiB of it, in each VM.
 *
 * Possible where the snapshot is a file in memory (the worker copies it to one when many VMs will come from it), in parts that guests
 * may only read: what is written is copied a page at a time, and ends the huge page's mapping. The kernel puts the file's pages
 * together when it is asked to, whatever its settings; without that all works as ever.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "machine.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25                         /* Linux 6.1 */
#endif

static bool in_one_extent(const struct afw_snapshot_header *h, uint64_t gpa)
{
    for (uint32_t i = 0; i < h->n_extents; i++) {
        const struct afw_snapshot_extent *x = &h->extent[i];
        if (inside(gpa, HUGE_PAGE, x->gpa, x->gpa + x->size))
            return (x->gpa - x->offset) % HUGE_PAGE == 0;
    }
    return false;
}

bool huge_always(void)
{
    char text[64] = "";
    int fd = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    return n > 0 && strstr(text, "[always]");
}

void huge_pages(struct machine *m, const struct snapshot *s)
{
    static atomic_bool done;                     /* it is the file that changes: once a cell, and quickly found done in the next cell */
    if (atomic_exchange(&done, true))
        return;
    uint64_t end = 0, start = 0;
    for (uint32_t i = 0; i <= s->vcpu->n_protections; i++) {
        const struct saved_protection *p = i < s->vcpu->n_protections ? &s->protection[i] : 0;
        if (p && p->prot == PROT_READ && p->start == end) {
            end = p->end;
            continue;
        }
        for (uint64_t gpa = (start + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE; gpa + HUGE_PAGE <= end; gpa += HUGE_PAGE) {
            if (in_one_extent(&s->h, gpa) && madvise(m->vm.mem + gpa, HUGE_PAGE, MADV_COLLAPSE))
                return;                          /* not a file of that kind, an old kernel, or no such page to be had */
        }
        start = p && p->prot == PROT_READ ? p->start : 0;
        end = p && p->prot == PROT_READ ? p->end : 0;
    }
}
