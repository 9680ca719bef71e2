/* /proc/cpuinfo: what cpuid tells guests (AFW_CPUID), in Linux's words and order (arch/x86/include/asm/cpufeatures.h). See proc.h. */
#include <string.h>
#include "proc.h"
#include "vmm.h"

enum { EAX, EBX, ECX, EDX };
struct features {
    uint32_t leaf;
    int reg;
    const char *names;               /* of the bits from 0 on; "-": Linux shows none */
};
static const struct features features[] = {
    {1, EDX, "fpu vme de pse tsc msr pae mce cx8 apic - sep mtrr pge mca cmov pat pse36 pn clflush - dts acpi mmx fxsr sse sse2 ss ht tm ia64 pbe"},
    {0x80000001, EDX, "- - - - - - - - - - - syscall - - - - - - - mp nx - mmxext - - fxsr_opt pdpe1gb rdtscp - lm 3dnowext 3dnow"},
    {1, ECX, "pni pclmulqdq dtes64 monitor ds_cpl vmx smx est tm2 ssse3 cid sdbg fma cx16 xtpr pdcm - pcid dca sse4_1 sse4_2 x2apic movbe popcnt "
             "tsc_deadline_timer aes xsave - avx f16c rdrand hypervisor"},
    {0x80000001, ECX, "lahf_lm cmp_legacy svm extapic cr8_legacy abm sse4a misalignsse 3dnowprefetch osvw ibs xop skinit wdt - lwp fma4 tce"},
    {7, EBX, "fsgsbase tsc_adjust sgx bmi1 hle avx2 - smep bmi2 erms invpcid rtm cqm - mpx rdt_a avx512f avx512dq rdseed adx smap avx512ifma - clflushopt "
             "clwb intel_pt avx512pf avx512er avx512cd sha_ni avx512bw avx512vl"},
    {7, ECX, "- avx512vbmi umip pku ospke waitpkg avx512_vbmi2 - gfni vaes vpclmulqdq avx512_vnni avx512_bitalg - avx512_vpopcntdq"},
};

static bool answer(struct vfs *vfs, uint32_t leaf, uint32_t r[4])
{
    struct afw_cpuid_table t;
    if (guest_read(vfs->vm, &t, AFW_CPUID, sizeof t))
        return false;
    for (uint32_t i = 0; i < t.n && i < AFW_CPUID_MAX; i++) {
        const struct afw_cpuid_entry *e = &t.entry[i];
        if (e->leaf == leaf && (e->any_subleaf || !e->subleaf)) {
            r[EAX] = e->eax;
            r[EBX] = e->ebx;
            r[ECX] = e->ecx;
            r[EDX] = e->edx;
            return true;
        }
    }
    memset(r, 0, 4 * sizeof *r);
    return false;
}

static void words(struct text *t, const struct features *f, uint32_t bits)
{
    const char *s = f->names;
    for (int bit = 0; bit < 32 && *s; bit++) {
        int n = (int)strcspn(s, " ");
        if (bits >> bit & 1 && *s != '-')
            line(t, " %.*s", n, s);
        s += n + (s[n] == ' ');
    }
}

void g_cpuinfo(struct vfs *vfs, struct text *t)
{
    uint32_t r[4], brand[12];
    char vendor[13] = "", model[49] = "";
    answer(vfs, 0, r);
    uint32_t level = r[EAX];
    memcpy(vendor, &r[EBX], 4);
    memcpy(vendor + 4, &r[EDX], 4);
    memcpy(vendor + 8, &r[ECX], 4);
    bool known = true;
    for (uint32_t i = 0; i < 3; i++)
        known &= answer(vfs, 0x80000002 + i, brand + 4 * i);
    memcpy(model, brand, 48);
    answer(vfs, 1, r);
    uint32_t family = r[EAX] >> 8 & 15, number = (r[EAX] >> 4 & 15) | (r[EAX] >> 12 & 0xf0);
    if (family == 15)
        family += r[EAX] >> 20 & 255;
    line(t, "processor\t: 0\nvendor_id\t: %.12s\ncpu family\t: %u\nmodel\t\t: %u\nmodel name\t: %.48s\nstepping\t: %u\n", vendor, family, number,
         known && *model ? model : "agentfw baseline x86-64 CPU", r[EAX] & 15);
    line(t, "physical id\t: 0\nsiblings\t: 1\ncore id\t\t: 0\ncpu cores\t: 1\nfpu\t\t: yes\nfpu_exception\t: yes\ncpuid level\t: %u\nwp\t\t: yes\nflags\t\t:", level);
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        answer(vfs, features[i].leaf, r);
        words(t, &features[i], r[features[i].reg]);
    }
    line(t, "\nclflush size\t: 64\ncache_alignment\t: 64\naddress sizes\t: 34 bits physical, 48 bits virtual\npower management:\n\n");
}
