/* ELF images: parse (every field is hostile), map, and build the first stack.
 *
 * Segments whose file offset and address agree modulo the page size are mapped, so that text is the host's page cache, shared by all
 * VMs; others are read. Addresses: ET_EXEC where it was linked, everything else one after the other from AFW_IMAGE up.
 */
#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "machine.h"
#include "needs.h"

#define PHDRS 64
#define IMAGE_MAX (1ull << 30)

struct parsed {
    Elf64_Ehdr eh;
    Elf64_Phdr ph[PHDRS];
    uint64_t lo, hi;                             /* page-rounded extent of PT_LOAD, link addresses */
    uint64_t size;                               /* of the file */
};

static int bad(char *error, size_t size, const char *text)
{
    snprintf(error, size, "%s", text);
    return -ENOEXEC;
}

/* Refused with what it is for, as far as that is known. The head's other fields may be of any byte order: only its own numbers are looked at. */
static int foreign(const Elf64_Ehdr *e, char *error, size_t size)
{
    static const struct { uint16_t machine; char name[8]; } known[] = {
        {EM_386, "i386"}, {EM_ARM, "ARM"}, {EM_AARCH64, "AArch64"}, {EM_RISCV, "RISC-V"}, {EM_PPC64, "PowerPC"}, {EM_S390, "s390"}, {EM_X86_64, "x32"}};
    const char *name = "another machine";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (e->e_machine == known[i].machine || e->e_machine == __builtin_bswap16(known[i].machine))
            name = known[i].name;
    snprintf(error, size, "not an x86-64 ELF file, but one for %s", name);
    return -ENOEXEC;
}

static int parse(int fd, struct parsed *p, char *error, size_t n)
{
    struct stat st;
    if (fstat(fd, &st))
        return -errno;
    if (!S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof p->eh)
        return bad(error, n, "not an ELF file");
    p->size = (uint64_t)st.st_size;
    if (pread(fd, &p->eh, sizeof p->eh, 0) != sizeof p->eh)
        return bad(error, n, "cannot be read");
    const Elf64_Ehdr *e = &p->eh;
    if (memcmp(e->e_ident, ELFMAG, SELFMAG))
        return bad(error, n, "not an ELF file");
    if (e->e_ident[EI_CLASS] != ELFCLASS64 || e->e_ident[EI_DATA] != ELFDATA2LSB || e->e_machine != EM_X86_64)
        return foreign(e, error, n);
    if (e->e_type != ET_EXEC && e->e_type != ET_DYN)
        return bad(error, n, "an ELF file, but neither a program nor position-independent");
    if (e->e_phentsize != sizeof(Elf64_Phdr) || !e->e_phnum || e->e_phnum > PHDRS)
        return bad(error, n, "ELF program headers of an unexpected size or number");
    size_t bytes = e->e_phnum * sizeof(Elf64_Phdr);
    if (!inside(e->e_phoff, bytes, 0, p->size) || pread(fd, p->ph, bytes, (off_t)e->e_phoff) != (ssize_t)bytes)
        return bad(error, n, "ELF program headers lie outside the file");
    p->lo = ~0ull;
    p->hi = 0;
    for (int i = 0; i < e->e_phnum; i++) {
        const Elf64_Phdr *h = &p->ph[i];
        if (h->p_type != PT_LOAD || !h->p_memsz)
            continue;
        if (h->p_filesz > h->p_memsz || !inside(h->p_offset, h->p_filesz, 0, p->size))
            return bad(error, n, "an ELF segment lies outside the file");
        if (!inside(h->p_vaddr, h->p_memsz, 0, AFW_SPACE_END))
            return bad(error, n, "an ELF segment lies outside the address space");
        if (h->p_vaddr < p->hi && p->lo != ~0ull)
            return bad(error, n, "ELF segments overlap or are not in order");
        if (p->lo == ~0ull)
            p->lo = page_down(h->p_vaddr);
        p->hi = h->p_vaddr + h->p_memsz;
    }
    if (p->lo == ~0ull)
        return bad(error, n, "an ELF file without segments to load");
    p->hi = page_up(p->hi);
    if (p->hi - p->lo > IMAGE_MAX)
        return bad(error, n, "ELF image of more than 1 GiB");
    return 0;
}

static int protection(uint32_t flags)
{
    return (flags & PF_R ? PROT_READ : 0) | (flags & PF_W ? PROT_WRITE : 0) | (flags & PF_X ? PROT_EXEC : 0);
}

/* Bytes of the file into guest memory, by hand. */
static int read_in(struct vm *vm, int fd, uint64_t gva, uint64_t n, uint64_t offset)
{
    while (n) {
        uint64_t piece = n < (1u << 20) ? n : 1u << 20;
        void *to = guest_range(vm, gva, piece);
        ssize_t got = to ? pread(fd, to, piece, (off_t)offset) : -1;
        if (got <= 0)
            return to && got == 0 ? -EIO : -EFAULT;
        gva += (uint64_t)got;
        offset += (uint64_t)got;
        n -= (uint64_t)got;
    }
    return 0;
}

static int zero(struct vm *vm, uint64_t gva, uint64_t n)
{
    static const uint8_t zeros[4096];
    while (n) {
        uint64_t piece = n < sizeof zeros ? n : sizeof zeros;
        if (guest_write(vm, gva, zeros, piece))
            return -EFAULT;
        gva += piece;
        n -= piece;
    }
    return 0;
}

static int load_segment(struct vm *vm, int fd, const Elf64_Phdr *h, uint64_t base, const char *name, uint64_t *done_to)
{
    int prot = protection(h->p_flags), e;
    uint64_t at = base + h->p_vaddr, page = page_down(at), file_end = at + h->p_filesz, end = page_up(at + h->p_memsz);
    bool shares_page = page < *done_to;          /* with the segment before it: mapping would undo that one's last page */
    if ((h->p_vaddr ^ h->p_offset) % PAGE == 0 && !shares_page && h->p_filesz) {
        /* p_offset - (at - page) >= 0: both have the same remainder */
        e = memory_map_file(vm, fd, page, file_end - page, prot, MAP_OWN, h->p_offset - (at - page), name, 0);
        if (e)
            return e;
        if (h->p_memsz > h->p_filesz && file_end % PAGE) {   /* bss begins inside the file's last page */
            uint64_t tail = page_up(file_end) - file_end;
            if (!(prot & PROT_WRITE) && (e = memory_protect(vm, page_down(file_end), PAGE, PROT_READ | PROT_WRITE)))
                return e;
            if ((e = zero(vm, file_end, tail)))
                return e;
            if (!(prot & PROT_WRITE) && (e = memory_protect(vm, page_down(file_end), PAGE, prot)))
                return e;
        }
        if (page_up(file_end) < end && !(prot & PROT_WRITE) && (e = memory_protect(vm, page_up(file_end), end - page_up(file_end), prot)))
            return e;
    } else {
        if (shares_page && (e = memory_protect(vm, page, *done_to - page, PROT_READ | PROT_WRITE)))
            return e;
        if ((e = read_in(vm, fd, at, h->p_filesz, h->p_offset)))
            return e;
        if (!shares_page && (e = memory_protect(vm, page, end - page, prot)))
            return e;                            /* a shared page stays writable: rather that than break a program */
        if (prot & PROT_EXEC)
            sites_code(vm, AFW_SITES_FILE, page, end - page);   /* a file's bytes: cached by content, of any size */
    }
    *done_to = end;
    return 0;
}

/* Load one file; `at`: where to put it unless it is ET_EXEC. */
static int load(struct machine *m, const char *path, uint64_t at, struct image *out, char *error, size_t n)
{
    struct vm *vm = &m->vm;
    struct parsed p;
    int fd = vfs_host_open(vm->vfs, path), e;
    if (fd < 0)
        return fd;
    e = parse(fd, &p, error, n);
    if (e)
        goto end;
    uint64_t base = p.eh.e_type == ET_EXEC ? 0 : page_up(at) - p.lo;
    out->base = base;
    out->lo = p.lo + base;
    out->hi = p.hi + base;
    if (out->lo < AFW_IMAGE || out->lo > AFW_SPACE_END || !inside(out->lo, p.hi - p.lo, AFW_IMAGE, AFW_SPACE_END)) {
        e = bad(error, n, "ELF image outside the guest's addresses (lowest is 0x400000)");
        goto end;
    }
    e = memory_commit(vm, out->lo, out->hi - out->lo);
    if (e) {
        snprintf(error, n, "the image does not fit into the memory limit");
        goto end;
    }
    uint64_t done_to = 0;
    out->phdr = 0;
    out->interp[0] = 0;
    for (int i = 0; i < p.eh.e_phnum && !e; i++) {
        const Elf64_Phdr *h = &p.ph[i];
        if (h->p_type == PT_LOAD && h->p_memsz) {
            e = load_segment(vm, fd, h, base, path, &done_to);
            if (e)
                snprintf(error, n, "segment %d cannot be loaded: %s", i, strerror(-e));
            if (inside(p.eh.e_phoff, p.eh.e_phnum * sizeof *h, h->p_offset, h->p_offset + h->p_filesz))
                out->phdr = base + h->p_vaddr + (p.eh.e_phoff - h->p_offset);
        } else if (h->p_type == PT_INTERP) {
            if (h->p_filesz < 2 || h->p_filesz > sizeof out->interp || !inside(h->p_offset, h->p_filesz, 0, p.size) ||
                pread(fd, out->interp, h->p_filesz, (off_t)h->p_offset) != (ssize_t)h->p_filesz || out->interp[h->p_filesz - 1])
                e = bad(error, n, "the ELF file's interpreter path is broken");
        }
    }
    out->phnum = p.eh.e_phnum;
    out->entry = base + p.eh.e_entry;
    if (!e && !inside(out->entry, 1, out->lo, out->hi))
        e = bad(error, n, "the ELF entry point lies outside the image");
end:
    close(fd);
    return e;
}

int elf_load(struct machine *m, struct loaded *out, char *error, size_t size)
{
    memset(out, 0, sizeof *out);
    int e = load(m, cell.config.program, AFW_IMAGE, &out->image, error, size);
    if (e)
        return e;
    out->entry = out->image.entry;
    out->end = out->image.hi;
    if (out->image.interp[0]) {
        struct image in;
        char why[160] = "";
        e = load(m, out->image.interp, out->image.hi + GUARD_SIZE, &in, why, sizeof why);
        if (!e && in.lo < out->image.hi)
            e = bad(why, sizeof why, "overlaps the program");
        if (e) {
            snprintf(error, size, "interpreter %.100s: %s", out->image.interp, *why ? why : strerror(-e));
            return e;
        }
        out->entry = in.entry;
        out->interp_base = in.base;
        out->end = in.hi;
    }
    return 0;
}

/* ---- stack ---- */

struct builder {
    struct vm *vm;
    uint64_t sp, lo;
};

/* Put bytes below the stack pointer; 0 if there is no room. */
static uint64_t push(struct builder *b, const void *data, uint64_t n)
{
    if (n > b->sp - b->lo || guest_write(b->vm, b->sp - n, data, n))
        return 0;
    return b->sp -= n;
}

int elf_stack(struct machine *m, const struct loaded *l, uint64_t lo, uint64_t hi, uint64_t *rsp)
{
    struct config *c = &cell.config;
    struct builder b = {&m->vm, hi - 16, lo + STACK_SIZE / 4};   /* as Linux: strings and tables take a part of the stack only */
    uint64_t words[2 + 512 + 512 + 48], w = 0, execfn, platform, random;
    uint8_t bytes[16];
    if (c->argc > 512 || c->envc > 510)
        return -E2BIG;
    execfn = push(&b, c->program, strlen(c->program) + 1);
    platform = push(&b, "x86_64", 7);
    while (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        ;
    random = push(&b, bytes, sizeof bytes);
    explicit_bzero(bytes, sizeof bytes);
    if (!execfn || !platform || !random)
        return -E2BIG;
    words[w++] = c->argc;
    for (uint32_t i = 0; i < c->argc; i++) {
        if (!(words[w++] = push(&b, c->argv[i], strlen(c->argv[i]) + 1)))
            return -E2BIG;
    }
    words[w++] = 0;
    for (uint32_t i = 0; i < c->envc; i++) {
        if (!(words[w++] = push(&b, c->env[i], strlen(c->env[i]) + 1)))
            return -E2BIG;
    }
    words[w++] = 0;
    const uint64_t aux[][2] = {
        {AT_PHDR, l->image.phdr}, {AT_PHENT, sizeof(Elf64_Phdr)}, {AT_PHNUM, l->image.phdr ? l->image.phnum : 0},
        {AT_PAGESZ, PAGE}, {AT_BASE, l->interp_base}, {AT_FLAGS, 0}, {AT_ENTRY, l->image.entry},
        {AT_UID, 1000}, {AT_EUID, 1000}, {AT_GID, 1000}, {AT_EGID, 1000}, {AT_SECURE, 0},
        {AT_RANDOM, random}, {AT_HWCAP, cell.cpu.needs[0] >> 32}, {AT_HWCAP2, 2 /* FSGSBASE */}, {AT_CLKTCK, 100},
        {AT_EXECFN, execfn}, {AT_PLATFORM, platform}, {AT_MINSIGSTKSZ, cell.cpu.xsave_size + 1024}, {AT_NULL, 0},
    };
    for (size_t i = 0; i < sizeof aux / sizeof *aux; i++) {
        words[w++] = aux[i][0];
        words[w++] = aux[i][1];
    }
    b.sp &= ~15ull;
    if (w % 2)
        b.sp -= 8;                               /* RSP is a multiple of 16 at the entry */
    *rsp = push(&b, words, w * 8);
    return *rsp ? 0 : -E2BIG;
}
