/* cell/sites.c: a guest that names and changes code as it likes, answers in the shared area that anybody may have written; and
 * lib/sites.c over the same bytes. Input: steps, a byte for which and its numbers. */
#include <errno.h>
#include <sys/mman.h>
#include "input.h"
#include "internal.h"
#include "vmm.h"

#define CODE 0x800000ull
#define CODE_SIZE 0x40000ull

static struct vm vm;
static struct afw_vm_shm shm;
static struct runner *const runner = (struct runner *)&shm;  /* never looked into */
static uint8_t *memory, *area;                   /* guest addresses from AFW_SYS on; AFW_SITE_AREA bytes */
static uint64_t last_id;
static int full;

static int there(uint64_t gva, uint64_t len)
{
    return (gva >= AFW_SYS && len <= AFW_IMAGE - AFW_SYS && gva <= AFW_IMAGE - len) ||
           (gva >= CODE && len <= CODE_SIZE && gva <= CODE + CODE_SIZE - len);
}

int guest_read(struct vm *v, void *out, uint64_t gva, uint64_t len)
{
    (void)v;
    if (!there(gva, len))
        return -EFAULT;
    memcpy(out, memory + gva - AFW_SYS, len);
    return 0;
}

int guest_write(struct vm *v, uint64_t gva, const void *data, uint64_t len)
{
    (void)v;
    must(gva >= AFW_SITES && len <= 64 && gva + len <= AFW_SITES_END, "a stub outside its area");
    memcpy(memory + gva - AFW_SYS, data, len);
    return 0;
}

int memory_poke(struct vm *v, uint64_t gva, const void *data, uint64_t len)
{
    (void)v;
    must(len == 5 && there(gva, len) && gva >= AFW_IMAGE && *(const uint8_t *)data == 0xe9, "a patch that is no jump in code");
    uint64_t rip = v->run->s.regs.regs.rip;
    must(rip <= gva || rip >= gva + 5, "a patch under the vCPU's feet");
    must(!v->ctl->preempted, "a patch while threads are stopped");
    memcpy(memory + gva - AFW_SYS, data, len);
    return 0;
}

int runner_event(struct runner *r, const struct afw_event *e)
{
    must(r == runner && e->type == AFW_EV_SITES && e->b <= AFW_SITE_AREA, "a question too long");
    if (full)
        return -EAGAIN;
    last_id = e->c;
    return 0;
}

uint8_t *runner_site_area(struct runner *r)
{
    must(r == runner, "another's area");
    return area;
}

static uint64_t address(struct input *in)
{
    uint64_t v = number(in, 4);
    switch (number(in, 1) % 4) {
    case 0: return v << 12;
    case 1: return v | number(in, 4) << 32;
    default: return CODE + v % (CODE_SIZE + 0x1000);
    }
}

static void begin(void)
{
    const struct afw_shim_header shim = {.magic = AFW_SHIM_MAGIC, .text_start = AFW_SHIM, .text_end = AFW_SHIM + 0x8000,
                                         .entry_site = AFW_SHIM + 0x200, .entry_cpuid = AFW_SHIM + 0x300, .entry_xgetbv = AFW_SHIM + 0x400};
    if (!memory) {
        memory = mmap(0, CODE + CODE_SIZE - AFW_SYS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        area = mmap(0, AFW_SITE_AREA + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        must(memory != MAP_FAILED && area != MAP_FAILED && !mprotect(area + AFW_SITE_AREA, 4096, PROT_NONE), "the fuzzer's own memory");
        vm.run = calloc(1, 16384);
        vm.ctl = (struct afw_ctl *)(memory + AFW_CTL - AFW_SYS);
        vm.shm = &shm;
        vm.runner = runner;
    }
    memset(&shm, 0, sizeof shm);
    memset(memory + CODE - AFW_SYS, 0x90, CODE_SIZE);
    memset(vm.ctl, 0, sizeof *vm.ctl);
    memcpy(memory + AFW_SHIM - AFW_SYS, &shim, sizeof shim);
    memset(vm.run, 0, 16384);
    full = 0;
    vm.sites = sites_new(&vm);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    uint8_t *targets = calloc(1, size / 8 + 1);
    afw_sites_far_targets(data, size, targets);
    free(targets);
    begin();
    while (in.left) {
        uint64_t a, n, at;
        struct afw_snapshot_header head = {0};
        switch (number(&in, 1) % 12) {
        case 0:
            a = address(&in);
            sites_code(&vm, (uint32_t)(1 + number(&in, 1) % 2), a, number(&in, 4));
            break;
        case 1:                      /* code changes; a site every now and then, so that answers can be right */
            at = number(&in, 4) % (CODE_SIZE - 256);
            take(&in, memory + CODE - AFW_SYS + at, number(&in, 1));
            break;
        case 2:
            at = number(&in, 4) % (CODE_SIZE - 8);
            memcpy(memory + CODE - AFW_SYS + at, "\xb8\x27\0\0\0\x0f\x05", 7);
            break;
        case 3:                      /* an answer: raw entries */
            n = number(&in, 1);
            for (uint64_t i = 0; i < n && i < 64; i++)
                take(&in, area + i * sizeof(struct afw_site), sizeof(struct afw_site));
            if (number(&in, 1) % 8 == 7)                     /* more than the area has room for, perhaps */
                n = number(&in, 4);
            sites_answer(number(&in, 1) % 8 ? &vm : 0, last_id + !(number(&in, 1) % 8 != 0), n | (number(&in, 1) % 4) << 32);
            break;
        case 4:                      /* one that fits what case 2 wrote */
            n = number(&in, 1) % 32;
            for (uint64_t i = 0; i < n; i++) {
                uint32_t at_and_more = (uint32_t)number(&in, 3); /* and a window that may be too long */
                const struct afw_site s = {.offset = at_and_more % CODE_SIZE, .length = (uint8_t)(7 + at_and_more / CODE_SIZE),
                                           .kind = AFW_SITE_SYSCALL, .site_length = 2};
                memcpy(area + i * sizeof s, &s, sizeof s);
            }
            sites_answer(&vm, last_id, n);
            break;
        case 5:
            a = address(&in);
            sites_unmapped(&vm, a, number(&in, 4) + 1);
            break;
        case 6:
            vm.ctl->n_backstop++;
            vm.ctl->backstop_rip = address(&in);
            for (int i = 0; i < 2; i++, vm.ctl->n_backstop++)
                sites_backstop(&vm);
            break;
        case 7:
            vm.run->s.regs.regs.rip = address(&in);
            vm.run->exit_reason = (uint32_t)number(&in, 1);
            shm.exits = number(&in, 1);
            break;
        case 8:
            vm.ctl->preempted = (uint32_t)number(&in, 1) % 3 == 2;
            break;
        case 9:
            head.site_next = address(&in);
            if (number(&in, 1) % 2)
                head.site_next = AFW_SITES_END - head.site_next % 256;
            sites_load(&vm, &head);
            sites_save(&vm, &head);
            must(head.site_next >= AFW_SITES && head.site_next <= AFW_SITES_END, "stubs outside their area");
            break;
        case 10:
            full = (int)number(&in, 1) % 2;
            break;
        default:
            sites_busy(&vm);
            sites_files_busy(&vm);
        }
    }
    sites_free(vm.sites);
    vm.sites = 0;
    sites_answer(0, last_id, 0);     /* what was asked is over: the next input begins without */
    return 0;
}
