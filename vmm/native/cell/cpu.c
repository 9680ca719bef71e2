/* The CPU as guests see it: what KVM offers, cut down to the baseline of needs.h.
 *
 * It is given to KVM (KVM_SET_CPUID2) and, the same, to the shim (AFW_CPUID), which answers rewritten cpuid sites from it: where
 * KVM runs guests without trapping cpuid (pvm) that is the only mask there is.
 */
#include <cpuid.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include "machine.h"
#include "needs.h"

#define HYPERVISOR 0x80000000u                   /* leaf 1 ECX */
#define KERNEL_LEAF1_EDX 0x000170ecu             /* de pse msr pae mce mtrr pge mca pat: what KVM itself looks at for CR4 and MSRs */

#define XSAVE_ROOM 2752                          /* x87 to PKRU in the standard form, on CPUs with and without MPX */

static uint32_t baseline(unsigned word, unsigned half)
{
    uint32_t mask = 0;
    for (size_t i = 0; i < sizeof needs_all / sizeof *needs_all; i++) {
        if (needs_all[i].word == word && needs_all[i].bit / 32 == half)
            mask |= 1u << needs_all[i].bit % 32;
    }
    return mask;
}

static void add(struct cpu_model *cpu, uint32_t leaf, uint32_t sub, bool any, uint32_t eax, uint32_t ebx, uint32_t ecx, uint32_t edx)
{
    if (cpu->table.n == AFW_CPUID_MAX)
        return;
    cpu->table.entry[cpu->table.n++] = (struct afw_cpuid_entry){leaf, sub, any, eax, ebx, ecx, edx, 0};
    cpu->kvm.entry[cpu->kvm.head.nent++] = (struct kvm_cpuid_entry2){
        .function = leaf, .index = sub, .flags = any ? 0 : KVM_CPUID_FLAG_SIGNIFCANT_INDEX, .eax = eax, .ebx = ebx, .ecx = ecx, .edx = edx};
}

struct host_cpuid {
    struct kvm_cpuid2 head;
    struct kvm_cpuid_entry2 entry[256];
};

static const struct kvm_cpuid_entry2 *find(const struct host_cpuid *h, uint32_t leaf, uint32_t sub)
{
    static const struct kvm_cpuid_entry2 none;
    for (uint32_t i = 0; i < h->head.nent; i++) {
        const struct kvm_cpuid_entry2 *e = &h->entry[i];
        if (e->function == leaf && (!(e->flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX) || e->index == sub))
            return e;
    }
    return &none;
}

/* pvm (seen on 6.18) reports hardly any feature, not even XSAVE, while its guests run on the bare CPU and see all of it: then the
 * CPU itself is asked. */
static void ask_the_cpu(struct host_cpuid *h)
{
    const struct kvm_cpuid_entry2 *l1 = find(h, 1, 0);
    uint32_t eax, ebx, ecx, edx;
    __cpuid(1, eax, ebx, ecx, edx);
    if (l1->ecx >> 26 & 1 || !(ecx >> 27 & 1))   /* KVM offers XSAVE, or the host does not use it */
        return;
    for (uint32_t i = 0; i < h->head.nent; i++) {
        struct kvm_cpuid_entry2 *e = &h->entry[i];
        if (e->function == 1 || e->function == 7 || e->function == 0x80000001 || (e->function >= 0x80000002 && e->function <= 0x80000004))
            __cpuid_count(e->function, e->index, e->eax, e->ebx, e->ecx, e->edx);
        if (e->function == 1)
            e->ecx |= HYPERVISOR;
    }
}

int cpu_setup(struct cpu_model *cpu, int kvm_fd, char *error, size_t size)
{
    static struct host_cpuid host;
    host.head.nent = sizeof host.entry / sizeof *host.entry;
    if (ioctl(kvm_fd, KVM_GET_SUPPORTED_CPUID, &host)) {
        snprintf(error, size, "KVM_GET_SUPPORTED_CPUID: %s", strerror(errno));
        return -1;
    }
    ask_the_cpu(&host);
    const struct kvm_cpuid_entry2 *l0 = find(&host, 0, 0), *l1 = find(&host, 1, 0), *l7 = find(&host, 7, 0), *e0 = find(&host, 0x80000000, 0),
        *e1 = find(&host, 0x80000001, 0), *xs = find(&host, 0xd, 0);
    uint32_t c1 = l1->ecx & baseline(0, 0), d1 = l1->edx & (baseline(0, 1) | KERNEL_LEAF1_EDX), b7 = l7->ebx & baseline(1, 0);
    uint32_t ce = e1->ecx & baseline(2, 0), de = e1->edx & baseline(2, 1);
    cpu->xcr0 = xs->eax & 7;
    if (!(cpu->xcr0 & 4) || !(c1 >> 28 & 1)) {   /* no AVX: no more than v2 */
        cpu->xcr0 &= 3;
        c1 &= ~(1u << 12 | 1u << 28 | 1u << 29); /* fma avx f16c */
        b7 &= ~(1u << 5);                        /* avx2 */
    }
    cpu->xsave_size = cpu->xcr0 & 4 ? 832 : 576;
    cpu->needs[0] = c1 | (uint64_t)(d1 & baseline(0, 1)) << 32;
    cpu->needs[1] = b7;
    cpu->needs[2] = ce | (uint64_t)de << 32;
    cpu->needs[3] = cpu->xcr0;
    for (size_t i = 0; i < sizeof needs_must / sizeof *needs_must; i++) {
        if (!(cpu->needs[needs_must[i].word] >> needs_must[i].bit & 1)) {
            snprintf(error, size, "the CPU (as KVM shows it) has no %s: agentfw cannot run guests on it", needs_must[i].name);
            return -1;
        }
    }
    memcpy(cpu->vendor, &l0->ebx, 4);
    memcpy(cpu->vendor + 4, &l0->edx, 4);
    memcpy(cpu->vendor + 8, &l0->ecx, 4);

    /* OSXSAVE (ECX 27) follows CR4 in KVM; the shim's table must say it itself. One logical CPU, APIC id 0. */
    add(cpu, 0, 0, true, 0xd, l0->ebx, l0->ecx, l0->edx);
    add(cpu, 1, 0, true, l1->eax, (l1->ebx & 0xff00) | 1 << 16, c1 | 1u << 27 | (l1->ecx & HYPERVISOR), d1);
    add(cpu, 2, 0, true, find(&host, 2, 0)->eax, find(&host, 2, 0)->ebx, find(&host, 2, 0)->ecx, find(&host, 2, 0)->edx);
    for (uint32_t sub = 0; sub < 8; sub++) {     /* Intel's caches; sharing fields say "this CPU only" */
        const struct kvm_cpuid_entry2 *e = find(&host, 4, sub);
        if (!(e->eax & 0x1f))
            break;
        add(cpu, 4, sub, false, e->eax & 0x3fff, e->ebx, e->ecx, e->edx);
    }
    add(cpu, 7, 0, false, 0, b7, 0, 0);
    /* Where KVM cannot hide XCR0's other bits, an XSAVE with a broad mask (ld.so's lazy binding) writes all of AVX-512's state into
     * an area that was made by this answer: it names a size that is enough on every CPU. */
    add(cpu, 0xd, 0, false, (uint32_t)cpu->xcr0, XSAVE_ROOM, XSAVE_ROOM, 0);
    if (cpu->xcr0 & 4)
        add(cpu, 0xd, 2, false, 256, 576, 0, 0);
    add(cpu, 0x40000000, 0, true, 0x40000001, 0x4b4d564b, 0x564b4d56, 0x4d);   /* KVMKVMKVM, no paravirtual feature */
    uint32_t last = e0->eax < 0x80000008 ? e0->eax : 0x80000008;
    if (e0->eax >= 0x8000001d && find(&host, 0x8000001d, 0)->eax & 0x1f)
        last = 0x8000001d;
    add(cpu, 0x80000000, 0, true, last, e0->ebx, e0->ecx, e0->edx);
    add(cpu, 0x80000001, 0, true, e1->eax, 0, ce, de);
    for (uint32_t leaf = 0x80000002; leaf <= 0x80000006 && leaf <= last; leaf++) {
        const struct kvm_cpuid_entry2 *e = find(&host, leaf, 0);
        add(cpu, leaf, 0, true, e->eax, e->ebx, e->ecx, e->edx);
    }
    if (last >= 0x80000008) {
        const struct kvm_cpuid_entry2 *e = find(&host, 0x80000008, 0);
        add(cpu, 0x80000007, 0, true, 0, 0, 0, 1 << 8);   /* invariant TSC: the guest's clock counts on it */
        add(cpu, 0x80000008, 0, true, e->eax, 0, 0, 0);
    }
    for (uint32_t sub = 0; last == 0x8000001d && sub < 8; sub++) {   /* AMD's caches */
        const struct kvm_cpuid_entry2 *e = find(&host, 0x8000001d, sub);
        if (!(e->eax & 0x1f))
            break;
        add(cpu, 0x8000001d, sub, false, e->eax & 0x3fff, e->ebx, e->ecx, e->edx);
    }
    return 0;
}

const char *cpu_missing(const struct cpu_model *cpu, const uint64_t needs[4])
{
    for (size_t i = 0; i < sizeof needs_all / sizeof *needs_all; i++) {
        const struct need *n = &needs_all[i];
        if (needs[n->word] >> n->bit & 1 && !(cpu->needs[n->word] >> n->bit & 1))
            return n->name;
    }
    for (int w = 0; w < 4; w++) {
        uint64_t known = (uint64_t)baseline((unsigned)w, 0) | (uint64_t)baseline((unsigned)w, 1) << 32;
        if (needs[w] & ~known)
            return "a feature unknown to this version";
    }
    return 0;
}
