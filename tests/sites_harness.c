/* sites.c with this process as its guest: patched code runs natively, the "shim" makes the call that the site would have made. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "vmm.h"

#define CODE 0x800000
#define CODE_SIZE 0x100000
#define SAVED (AFW_SYS + 0x8000)     /* unused page of the system area */
#define COUNT (AFW_SYS + 0x8008)

static struct vm vm;
static struct afw_vm_shm shm;
static struct afw_event last_event;
static uint8_t *area;
static int events, event_error;

static int inside(uint64_t gva, uint64_t len)
{
    return (gva >= AFW_SYS && len <= AFW_IMAGE - AFW_SYS && gva <= AFW_IMAGE - len) ||
           (gva >= CODE && len <= CODE_SIZE && gva <= CODE + CODE_SIZE - len);
}

int guest_read(struct vm *v, void *out, uint64_t gva, uint64_t len)
{
    (void)v;
    if (!inside(gva, len))
        return -EFAULT;
    memcpy(out, (void *)gva, len);
    return 0;
}

int guest_write(struct vm *v, uint64_t gva, const void *data, uint64_t len)
{
    (void)v;
    if (!inside(gva, len))
        return -EFAULT;
    memcpy((void *)gva, data, len);
    return 0;
}

int memory_poke(struct vm *v, uint64_t gva, const void *data, uint64_t len)
{
    return guest_write(v, gva, data, len);
}

int runner_event(struct runner *r, const struct afw_event *e)
{
    (void)r;
    if (event_error)
        return event_error;
    last_event = *e;
    events++;
    return 0;
}

uint8_t *runner_site_area(struct runner *r)
{
    (void)r;
    return area;
}

static uint8_t *abs32(uint8_t *at, const char *op, size_t n, uint32_t address)
{
    memcpy(at, op, n);
    memcpy(at + n, &address, 4);
    return at + n + 4;
}

/* Entries that do natively what the site would have done. */
static void make_shim(void)
{
    struct afw_shim_header *h = (struct afw_shim_header *)AFW_SHIM;
    uint8_t *at = (uint8_t *)AFW_SHIM + 0x200;
    h->magic = AFW_SHIM_MAGIC;
    h->entry_site = (uint64_t)at;
    at = abs32(at, "\x48\x89\x0c\x25", 4, SAVED);            /* mov %rcx, SAVED */
    at = abs32(at, "\x4c\x8b\x1c\x25", 4, COUNT);            /* mov COUNT, %r11 */
    memcpy(at, "\x4d\x8d\x5b\x01", 4), at += 4;              /* lea 1(%r11), %r11 */
    at = abs32(at, "\x4c\x89\x1c\x25", 4, COUNT);            /* mov %r11, COUNT */
    memcpy(at, "\x0f\x05", 2), at += 2;                      /* syscall */
    at = abs32(at, "\x48\x8b\x0c\x25", 4, SAVED);            /* mov SAVED, %rcx */
    at = abs32(at, "\xff\x24\x25", 3, SAVED);                /* jmp *SAVED */
    uint32_t scratch = AFW_CTL + offsetof(struct afw_ctl, scratch_rsp);
    for (int i = 0; i < 2; i++) {
        *(i ? &h->entry_xgetbv : &h->entry_cpuid) = (uint64_t)at;
        at = abs32(at, "\x48\x89\x24\x25", 4, SAVED);        /* mov %rsp, SAVED */
        at = abs32(at, "\x48\x8b\x24\x25", 4, scratch);      /* mov scratch_rsp, %rsp */
        memcpy(at, i ? "\x0f\x01\xd0" : "\x0f\xa2", 3), at += i ? 3 : 2;
        at = abs32(at, "\xff\x24\x25", 3, SAVED);
    }
}

struct afw_vm_shm *harness_start(void)
{
    if (!area) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        int rwx = PROT_READ | PROT_WRITE | PROT_EXEC;
        if (mmap((void *)AFW_SYS, AFW_IMAGE - AFW_SYS, rwx, flags, -1, 0) != (void *)AFW_SYS ||
            mmap((void *)CODE, CODE_SIZE, rwx, flags, -1, 0) != (void *)CODE)
            return 0;
        area = mmap(0, AFW_SITE_AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        vm.run = calloc(1, 4096 * 4);
        vm.ctl = (struct afw_ctl *)AFW_CTL;
        vm.shm = &shm;
        make_shim();
    }
    memset(&shm, 0, sizeof shm);
    memset(vm.ctl, 0, sizeof *vm.ctl);
    *(uint64_t *)COUNT = 0;
    sites_free(vm.sites);
    vm.sites = sites_new(&vm);
    vm.run->s.regs.regs.rip = 0;
    events = event_error = 0;
    return &shm;
}

uint8_t *harness_area(void) { return area; }
struct afw_event *harness_event(void) { return &last_event; }
int harness_events(void) { return events; }
void harness_event_error(int error) { event_error = error; }
void harness_code(uint32_t kind, uint64_t gva, uint64_t len) { sites_code(&vm, kind, gva, len); }
void harness_answer(int gone, uint64_t request, uint64_t count) { sites_answer(gone ? 0 : &vm, request, count); }
void harness_unmapped(uint64_t gva, uint64_t len) { sites_unmapped(&vm, gva, len); }
int harness_busy(void) { return sites_busy(&vm); }
void harness_rip(uint64_t rip) { vm.run->s.regs.regs.rip = rip; }
void harness_preempted(uint32_t n) { vm.ctl->preempted = n; }
uint64_t harness_count(void) { return *(uint64_t *)COUNT; }
uint64_t harness_next(int save, uint64_t value)
{
    struct afw_snapshot_header h = {.site_next = value};
    if (!save)
        sites_load(&vm, &h);
    sites_save(&vm, &h);
    return h.site_next;
}

void harness_backstop(uint64_t rip)
{
    vm.ctl->n_backstop++;
    vm.ctl->backstop_rip = rip;
    sites_backstop(&vm);
}

/* Runs the function at `gva` with these registers (rax rbx rcx rdx rsi rdi rbp r8..r15, flags); they come back as it left them. */
static uint64_t *regs_at, fn_at, rsp_at;
void harness_run(uint64_t gva, uint64_t *regs)
{
    regs_at = regs;
    fn_at = gva;
    __asm__ volatile(
        "push %%rbx; push %%rbp; push %%r12; push %%r13; push %%r14; push %%r15; sub $136, %%rsp\n"
        "mov %%rsp, %[rsp]\n"
        "mov $18, %%ecx; 1: movq $0, -152(%%rsp,%%rcx,8); loop 1b\n"
        "mov %[regs], %%rax\n"
        "push 120(%%rax); popfq\n"
        "mov 8(%%rax), %%rbx; mov 16(%%rax), %%rcx; mov 24(%%rax), %%rdx; mov 32(%%rax), %%rsi; mov 40(%%rax), %%rdi\n"
        "mov 48(%%rax), %%rbp; mov 56(%%rax), %%r8; mov 64(%%rax), %%r9; mov 72(%%rax), %%r10; mov 80(%%rax), %%r11\n"
        "mov 88(%%rax), %%r12; mov 96(%%rax), %%r13; mov 104(%%rax), %%r14; mov 112(%%rax), %%r15; mov (%%rax), %%rax\n"
        "call *%[fn]\n"
        "mov %[rsp], %%rsp\n"
        "pushfq; push %%rax; mov %[regs], %%rax\n"
        "mov %%rbx, 8(%%rax); mov %%rcx, 16(%%rax); mov %%rdx, 24(%%rax); mov %%rsi, 32(%%rax); mov %%rdi, 40(%%rax)\n"
        "mov %%rbp, 48(%%rax); mov %%r8, 56(%%rax); mov %%r9, 64(%%rax); mov %%r10, 72(%%rax); mov %%r11, 80(%%rax)\n"
        "mov %%r12, 88(%%rax); mov %%r13, 96(%%rax); mov %%r14, 104(%%rax); mov %%r15, 112(%%rax)\n"
        "pop (%%rax); pop 120(%%rax)\n"
        "add $136, %%rsp; pop %%r15; pop %%r14; pop %%r13; pop %%r12; pop %%rbp; pop %%rbx\n"
        : [rsp] "+m"(rsp_at)
        : [regs] "m"(regs_at), [fn] "m"(fn_at)
        : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");
}
