/* A machine from nothing: tables, segments, MSRs, control page; then the program's image and stack.
 *
 * Guest code runs at CPL 3 from its first instruction (pvm interprets CPL 0 at a microsecond an instruction). CPL 0 exists only
 * for the few instructions of LSTAR and exception stubs on hardware KVM.
 */
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <x86intrin.h>
#include "calls.h"
#include "machine.h"

#define PTE_TABLE 0x27ull                        /* present, writable, user, accessed */
#define PTE_LEAF 0xe7ull                         /* and dirty, 2 MiB: set beforehand, so that no walk dirties the tables' pages */
#define SEL_KCODE 0x10
#define SEL_UDATA 0x2b
#define SEL_UCODE 0x33
#define SEL_TSS 0x40
#define TSS_BITMAP 0x68
#define TSS_LIMIT 0x78
#define MSR_STAR 0xc0000081
#define MSR_LSTAR 0xc0000082
#define MSR_CSTAR 0xc0000083
#define MSR_SFMASK 0xc0000084
#define MSR_TSC 0x10

void boot_tables(struct machine *m)
{
    uint8_t *mem = m->vm.mem;
    uint64_t *pml4 = (uint64_t *)(mem + AFW_PML4), *pdpt = (uint64_t *)(mem + AFW_PDPT), *pd = (uint64_t *)(mem + AFW_PD);
    pml4[0] = AFW_PDPT | PTE_TABLE;
    for (uint64_t g = 0; g < AFW_GIB; g++)
        pdpt[g] = (AFW_PD + g * PAGE) | PTE_TABLE;
    for (uint64_t i = 1; i < AFW_GIB * 512ull; i++)   /* the first 2 MiB stay unmapped: null pointers fault, tables are out of sight */
        pd[i] = i << 21 | PTE_LEAF;

    uint64_t *gdt = (uint64_t *)(mem + AFW_GDT);
    gdt[2] = 0x00af9b000000ffff;                 /* 0x10 kernel code, 64 bit */
    gdt[3] = 0x00cf93000000ffff;                 /* 0x18 kernel data */
    gdt[5] = 0x00cff3000000ffff;                 /* 0x2b user data */
    gdt[6] = 0x00affb000000ffff;                 /* 0x33 user code, 64 bit */
    gdt[8] = (uint64_t)TSS_LIMIT | (uint64_t)(AFW_TSS & 0xffffff) << 16 | 0x8bull << 40 | (uint64_t)(AFW_TSS >> 24 & 0xff) << 56;
    uint64_t stack = AFW_EXC_STACK_TOP;
    memcpy(mem + AFW_TSS + 4, &stack, 8);        /* RSP0 */
    memcpy(mem + AFW_TSS + 0x24, &stack, 8);     /* IST1: also a trap taken inside the LSTAR stub finds a stack */
    /* IOPL 3 allows the doorbells, but pvm drops IOPL at its first return to CPL 3 and asks the bitmap: ports 0x30..0x33, no others. */
    mem[AFW_TSS + 0x66] = TSS_BITMAP;
    memset(mem + AFW_TSS + TSS_BITMAP, 0xff, TSS_LIMIT + 1 - TSS_BITMAP);
    mem[AFW_TSS + TSS_BITMAP + AFW_PORT_KICK / 8] = 0xf0;

    for (uint64_t v = 0; v < 256; v++) {
        uint64_t at = AFW_EXC_STUBS + 16 * v, type = v == 3 || v == 4 ? 0xee01 : 0x8e01;   /* int3 and into from CPL 3; IST 1 */
        uint64_t *gate = (uint64_t *)(mem + AFW_IDT + 16 * v);
        gate[0] = (at & 0xffff) | (uint64_t)SEL_KCODE << 16 | type << 32 | (at >> 16 & 0xffff) << 48;
        gate[1] = at >> 32;
        const uint8_t stub[] = {0x68, (uint8_t)v, 0, 0, 0, 0xe6, AFW_PORT_EXC, 0xeb, 0xfe};   /* push $v; out %al, $port; jmp . */
        memcpy(mem + at, stub, sizeof stub);
    }
    memcpy(mem + AFW_CPUID, &cell.cpu.table, sizeof cell.cpu.table);
    memcpy(mem + AFW_SHIM, shim_blob, (size_t)(shim_blob_end - shim_blob));
}

static int set_msrs(struct machine *m)
{
    struct {
        struct kvm_msrs head;
        struct kvm_msr_entry entry[4];
    } x = {.head.nmsrs = 4, .entry = {{.index = MSR_STAR, .data = 0x10ull << 32 | 0x23ull << 48}, {.index = MSR_LSTAR, .data = cell.shim.entry_lstar},
                                      {.index = MSR_SFMASK, .data = 0}, {.index = MSR_CSTAR, .data = cell.shim.entry_lstar}}};
    int n = ioctl(m->vm.vcpu_fd, KVM_SET_MSRS, &x);
    return n < 0 ? -errno : n >= 3 ? 0 : -EIO;   /* CSTAR is for 32-bit code, which there is none of */
}

/* Guest rdtsc = host rdtsc where KVM can do that; otherwise the difference is measured once and counted in. */
static void set_tsc(struct machine *m)
{
    uint64_t zero = 0;
    struct kvm_device_attr offset = {.group = KVM_VCPU_TSC_CTRL, .attr = KVM_VCPU_TSC_OFFSET, .addr = (uintptr_t)&zero};
    m->tsc_delta = 0;
    if (!ioctl(m->vm.vcpu_fd, KVM_SET_DEVICE_ATTR, &offset))
        return;
    struct {
        struct kvm_msrs head;
        struct kvm_msr_entry entry;
    } x = {.head.nmsrs = 1, .entry.index = MSR_TSC};
    uint64_t before = __rdtsc();
    if (ioctl(m->vm.vcpu_fd, KVM_GET_MSRS, &x) == 1) {
        uint64_t after = __rdtsc(), mid = before + (after - before) / 2;
        m->tsc_delta = x.entry.data - mid;
    }
}

int boot_msrs(struct machine *m)
{
    set_tsc(m);
    return set_msrs(m);
}

int boot_vcpu(struct machine *m, uint64_t fs_base, uint64_t gs_base)
{
    int fd = m->vm.vcpu_fd;
    if (ioctl(fd, KVM_SET_CPUID2, &cell.cpu.kvm))
        return -errno;
    /* A new vCPU's are the same each time, and to ask for them is a trip through KVM. */
    static __thread struct kvm_sregs fresh;
    static __thread bool known;
    if (!known && ioctl(fd, KVM_GET_SREGS, &fresh))
        return -errno;
    known = true;
    struct kvm_sregs s = fresh;
    s.cs = (struct kvm_segment){.limit = 0xffffffff, .selector = SEL_UCODE, .present = 1, .type = 11, .dpl = 3, .s = 1, .l = 1, .g = 1};
    s.ss = s.ds = s.es = s.fs = s.gs =
        (struct kvm_segment){.limit = 0xffffffff, .selector = SEL_UDATA, .present = 1, .type = 3, .dpl = 3, .db = 1, .s = 1, .g = 1};
    s.fs.base = fs_base;
    s.gs.base = gs_base;
    s.tr = (struct kvm_segment){.base = AFW_TSS, .limit = TSS_LIMIT, .selector = SEL_TSS, .type = 11, .present = 1};
    s.ldt = (struct kvm_segment){.unusable = 1, .type = 2};
    s.gdt.base = AFW_GDT;
    s.gdt.limit = 0x7f;
    s.idt.base = AFW_IDT;
    s.idt.limit = 0xfff;
    s.cr0 = 0x80050033;                          /* PG AM WP NE ET MP PE */
    s.cr2 = 0;
    s.cr3 = AFW_PML4;
    s.cr4 = 0x50620;                             /* OSXSAVE FSGSBASE OSXMMEXCPT OSFXSR PAE */
    s.efer = 0x501;                              /* LMA LME SCE */
    if (ioctl(fd, KVM_SET_SREGS, &s))
        return -errno;
    /* On pvm this changes nothing (XCR0 is the host's): the shim's answers and its XSAVE mask hold there. */
    struct kvm_xcrs x = {.nr_xcrs = 1, .xcrs = {{.xcr = 0, .value = cell.cpu.xcr0}}};
    ioctl(fd, KVM_SET_XCRS, &x);
    return boot_msrs(m);
}

void boot_random(struct afw_ctl *ctl)
{
    while (getrandom(ctl->random, sizeof ctl->random, 0) != sizeof ctl->random)
        ;
    ctl->random_left = sizeof ctl->random;
}

void boot_ctl(struct machine *m, uint32_t pid)
{
    struct afw_ctl *ctl = m->vm.ctl;
    ctl->pid = pid;
    ctl->resched = 0;
    ctl->wake = 1;                               /* the worker may have filled the window before */
    ctl->sigpending = 0;
    boot_random(ctl);
    m->clock_mult = 0;
    clock_refresh(m);
}

int boot(struct machine *m)
{
    struct vm *vm = &m->vm;
    char error[200] = "";
    int e = memory_commit(vm, 0, BOOT_COMMIT);
    if (e) {
        vm_fail(m, "cannot give the VM its first memory: %s", strerror(-e));
        return e;
    }
    boot_tables(m);
    struct loaded l;
    e = elf_load(m, &l, error, sizeof error);
    if (e) {
        vm_fail(m, "%s: %s", cell.config.program, *error ? error : strerror(-e));
        return e;
    }
    uint64_t stack_lo = page_up(l.end) + GUARD_SIZE, stack_hi = stack_lo + STACK_SIZE, brk = stack_hi + GUARD_SIZE;
    struct afw_ctl *ctl = vm->ctl;
    ctl->abi = AFW_ABI;
    ctl->brk_start = brk;
    ctl->brk_max = brk + BRK_SIZE;
    ctl->mmap_base = ctl->brk_max + GUARD_SIZE;
    ctl->stack_lo = stack_lo;
    ctl->stack_hi = stack_hi;
    uint64_t mmap_base = ctl->mmap_base;
    e = memory_commit(vm, 0, mmap_base + 1);
    if (!e)
        e = memory_protect(vm, stack_lo - GUARD_SIZE, GUARD_SIZE, PROT_NONE);
    if (e) {
        vm_fail(m, "%s: no memory for image, stack and heap: %s", cell.config.program, strerror(-e));
        return e;
    }
    ctl->commit_end = mmap_base + 1 > BOOT_COMMIT ? (mmap_base + AFW_CHUNK) / AFW_CHUNK * AFW_CHUNK : BOOT_COMMIT;
    ctl->memory_limit = vm->memory_limit;
    ctl->xcr0 = cell.cpu.xcr0;
    ctl->xsave_size = cell.cpu.xsave_size;
    uint64_t rsp;
    e = elf_stack(m, &l, stack_lo, stack_hi, &rsp);
    if (e) {
        vm_fail(m, "%s: arguments and environment do not fit on the stack", cell.config.program);
        return e;
    }
    call_boot(ctl);
    ctl->start_rip = l.entry;
    ctl->start_rsp = rsp;
    boot_ctl(m, 2);
    e = boot_vcpu(m, 0, 0);
    if (e) {
        vm_fail(m, "vCPU set-up: %s", strerror(-e));
        return e;
    }
    m->vm.run->s.regs.regs = (struct kvm_regs){.rip = cell.shim.init, .rsp = AFW_EXC_STACK_TOP, .rflags = 0x3202};
    m->vm.run->kvm_dirty_regs = KVM_SYNC_X86_REGS;
    return 0;
}
