/* Which address an instruction was refused at: KVM says of a page that may not be accessed that it is so, and not which.
 *
 * The instruction's memory operands are computed from its bytes and registers (Intel SDM vol. 2, chapter 2), and the first of them that the
 * host's protection forbids is the answer. All input is the guest's; what comes of it is told to the guest only.
 */
#include <string.h>
#include <sys/ioctl.h>
#include "machine.h"

#define WIDEST 64                                /* bytes of an operand that may reach into the next page */
#define STATE 4096                               /* of XSAVE's */

struct instruction {
    uint8_t code[16];
    uint32_t len, at;                            /* bytes there are; bytes read */
    const struct kvm_regs *r;
    uint64_t segment;                            /* base of FS or GS, if it has that prefix */
    uint8_t rex, map, op, vex, evex_scale;       /* map: 0: one byte, 1: 0F, 2: 0F 38, 3: 0F 3A */
    bool small, short_address;                   /* prefixes 66, 67 */
};

static uint64_t value(const struct kvm_regs *r, unsigned n)
{
    const uint64_t v[16] = {r->rax, r->rcx, r->rdx, r->rbx, r->rsp, r->rbp, r->rsi, r->rdi,
                            r->r8, r->r9, r->r10, r->r11, r->r12, r->r13, r->r14, r->r15};
    return v[n & 15];
}

static uint8_t next(struct instruction *i)
{
    return i->at < i->len ? i->code[i->at++] : 0;
}

static int64_t displacement(struct instruction *i, unsigned size)
{
    uint32_t v = 0;
    if (size == 1)
        return (int8_t)next(i);
    for (unsigned k = 0; k < 4; k++)
        v |= (uint32_t)next(i) << 8 * k;
    return (int32_t)v;
}

/* Prefixes and opcode */
static void begin(struct instruction *i, uint64_t fs, uint64_t gs)
{
    uint8_t b;
    for (;; i->rex = 0) {
        b = next(i);
        if ((b & 0xf0) == 0x40) {
            i->rex = b;
            b = next(i);
        }
        if (b == 0x66)
            i->small = true;
        else if (b == 0x67)
            i->short_address = true;
        else if (b == 0x64)
            i->segment = fs;
        else if (b == 0x65)
            i->segment = gs;
        else if (b != 0xf0 && b != 0xf2 && b != 0xf3 && b != 0x26 && b != 0x2e && b != 0x36 && b != 0x3e)
            break;
    }
    i->vex = b == 0xc4 || b == 0xc5 || b == 0x62 ? b : 0;
    if (b == 0xc5) {
        next(i);
        i->map = 1;
        b = next(i);
    } else if (i->vex) {
        uint8_t one = next(i);
        next(i);
        i->rex = (uint8_t)(~one >> 5 & 7);       /* R, X, B, inverted */
        i->map = one & (b == 0x62 ? 7 : 31);
        i->evex_scale = b == 0x62 ? (uint8_t)(16u << (next(i) >> 5 & 3)) : 0;
        b = next(i);
    } else if (b == 0x0f) {
        b = next(i);
        i->map = b == 0x38 ? 2 : b == 0x3a ? 3 : 1;
        if (i->map > 1)
            b = next(i);
    }
    i->op = b;
}

static bool has_modrm(const struct instruction *i)
{
    uint8_t o = i->op;
    if (i->map > 1)
        return true;
    if (i->map)
        return !(o == 0x05 || o == 0x0b || o == 0x77 || (o >= 0x30 && o < 0x38) || (o >= 0x80 && o < 0x90) || o == 0xa2 || (o & 0xf8) == 0xc8);
    if (o < 0x40)
        return (o & 7) < 4;
    return o == 0x63 || o == 0x69 || o == 0x6b || (o >= 0x80 && o < 0x90) || o == 0xc0 || o == 0xc1 || o == 0xc6 || o == 0xc7 ||
           (o >= 0xd0 && o < 0xd4) || (o >= 0xd8 && o < 0xe0) || o == 0xf6 || o == 0xf7 || o == 0xfe || o == 0xff;
}

static unsigned immediate(const struct instruction *i, unsigned reg)      /* bytes; they count where an address is relative to RIP */
{
    uint8_t o = i->op;
    unsigned full = i->small ? 2 : 4;
    if (i->map == 3)
        return 1;
    if (i->map == 1)
        return (o >= 0x70 && o < 0x74) || o == 0xa4 || o == 0xac || o == 0xba || o == 0xc2 || (o >= 0xc4 && o < 0xc7);
    if (i->map)
        return 0;
    if (o == 0x80 || o == 0x83 || o == 0xc0 || o == 0xc1 || o == 0xc6 || o == 0x6b || (o == 0xf6 && reg < 2))
        return 1;
    return o == 0x81 || o == 0xc7 || o == 0x69 || (o == 0xf7 && reg < 2) ? full : 0;
}

#define RW (PROT_READ | PROT_WRITE)

static bool forbidden(struct machine *m, uint64_t address, int need)
{
    if (address >= AFW_SPACE_END)
        return false;
    uint8_t page = m->prot[address / PAGE], byte;
    /* What may be read and cannot lies behind a file's end. (Where no memory is KVM does not refuse: that is another exit.) */
    return (PAGE_PROT(page) & (page & PAGE_ISLAND ? PROT_READ : RW) & need) != need ||
           (mapping_at(m, address) && guest_read(&m->vm, &byte, address, 1));
}

/* The first byte from `address` on that `need` (PROT_*) is missing for, among `size`, which are less than two pages */
static bool refused(struct machine *m, uint64_t address, uint64_t size, int need, uint64_t *out)
{
    uint64_t then = page_down(address + size - 1);
    *out = forbidden(m, address, need) ? address : then;
    return forbidden(m, *out, need);
}

static bool by_modrm(struct machine *m, struct instruction *i, uint64_t *out)
{
    uint8_t b = next(i), mod = b >> 6, rm = b & 7, reg = b >> 3 & 7;
    uint64_t base = 0, size = i->map == 1 && (i->op == 0xae || i->op == 0xc7) ? STATE : WIDEST;
    bool relative = false;
    uint64_t push = i->r->rsp - 8;
    if (mod != 3) {
        if (rm == 4) {
            uint8_t sib = next(i);
            unsigned index = (sib >> 3 & 7) | (i->rex & 2) << 2;
            if (i->vex && i->map == 2 && ((i->op & 0xfc) == 0x90 || (i->op & 0xfc) == 0xa0))
                return false;                    /* gathers and scatters: many addresses, of a vector */
            rm = sib & 7;
            base = index == 4 ? 0 : value(i->r, index) << (sib >> 6);
        }
        if (mod == 0 && rm == 5 && (b & 7) != 4)
            relative = true;
        else if (mod || rm != 5)
            base += value(i->r, rm | (i->rex & 1u) << 3);
        int64_t d = mod == 1 ? displacement(i, 1) : mod == 2 || rm == 5 ? displacement(i, 4) : 0;
        if (relative)
            base = i->r->rip + i->at + immediate(i, reg);
        for (unsigned scale = mod == 1 && i->evex_scale ? i->evex_scale : 1; scale; scale /= 2) {    /* EVEX's byte counts in units */
            uint64_t address = base + (uint64_t)(d * (int)scale);
            if (i->short_address)
                address = (uint32_t)address;
            /* Whether it reads or writes is not looked at: what cannot even be read is the likelier answer */
            if (refused(m, address + i->segment, size, PROT_READ, out) || refused(m, address + i->segment, size, RW, out))
                return true;
        }
    }
    /* call and push of what it is, pop to it */
    return !i->map && ((i->op == 0xff && (reg == 2 || reg == 6) && refused(m, push, 8, RW, out)) ||
                       (i->op == 0x8f && refused(m, i->r->rsp, 8, PROT_READ, out)));
}

static bool by_opcode(struct machine *m, struct instruction *i, uint64_t *out)
{
    const struct kvm_regs *r = i->r;
    uint8_t o = i->op;
    if (i->map)
        return false;
    switch (o) {
    case 0xa4: case 0xa5:                        /* movs */
        return refused(m, r->rsi + i->segment, 8, PROT_READ, out) || refused(m, r->rdi, 8, RW, out);
    case 0xa6: case 0xa7:                        /* cmps */
        return refused(m, r->rsi + i->segment, 8, PROT_READ, out) || refused(m, r->rdi, 8, PROT_READ, out);
    case 0xaa: case 0xab:                        /* stos */
        return refused(m, r->rdi, 8, RW, out);
    case 0xae: case 0xaf:                        /* scas */
        return refused(m, r->rdi, 8, PROT_READ, out);
    case 0xac: case 0xad:                        /* lods */
        return refused(m, r->rsi + i->segment, 8, PROT_READ, out);
    case 0xd7:                                   /* xlat */
        return refused(m, r->rbx + (r->rax & 0xff) + i->segment, 1, PROT_READ, out);
    case 0xc9:                                   /* leave */
        return refused(m, r->rbp, 8, PROT_READ, out);
    case 0xa0: case 0xa1: case 0xa2: case 0xa3: {    /* mov to and from an address */
        uint64_t address = (uint32_t)displacement(i, 4);
        address |= (uint64_t)displacement(i, 4) << 32;
        return refused(m, address + i->segment, 8, o < 0xa2 ? PROT_READ : RW, out);
    }
    case 0xc2: case 0xc3: case 0x9d:             /* ret, popf */
        return refused(m, r->rsp, 8, PROT_READ, out);
    case 0x68: case 0x6a: case 0x9c: case 0xe8:  /* push, pushf, call */
        return refused(m, r->rsp - 8, 8, RW, out);
    default:
        return (o & 0xf0) == 0x50 && (o & 8 ? refused(m, r->rsp, 8, PROT_READ, out) : refused(m, r->rsp - 8, 8, RW, out));
    }
}

bool operand_refused(struct machine *m, const struct kvm_regs *r, uint64_t *out)
{
    struct instruction i = {.r = r};
    struct kvm_sregs s;
    if (refused(m, r->rip, 1, PROT_READ, out))   /* the code itself */
        return true;
    for (i.len = sizeof i.code - 1; i.len && guest_read(&m->vm, i.code, r->rip, i.len); i.len--)
        ;
    if (!i.len || ioctl(m->vm.vcpu_fd, KVM_GET_SREGS, &s))
        return false;
    begin(&i, s.fs.base, s.gs.base);
    if (has_modrm(&i) ? by_modrm(m, &i, out) : by_opcode(m, &i, out))
        return true;
    return refused(m, r->rip, 15, PROT_READ, out);
}
