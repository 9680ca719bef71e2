/* The shim: a flat blob, carried inside the executable. */
#include <stdio.h>
#include <string.h>
#include "machine.h"

__asm__(".section .rodata\n"
        ".globl shim_blob, shim_blob_end\n"
        ".balign 16\n"
        "shim_blob: .incbin \"shim.bin\"\n"
        "shim_blob_end:\n"
        ".previous\n");

int blob_check(struct afw_shim_header *out, char *error, size_t error_size)
{
    size_t size = (size_t)(shim_blob_end - shim_blob);
    if (size < sizeof *out || size > AFW_SHIM_MAX) {
        snprintf(error, error_size, "shim blob of %zu bytes: expected %zu to %d", size, sizeof *out, AFW_SHIM_MAX);
        return -1;
    }
    memcpy(out, shim_blob, sizeof *out);
    if (out->magic != AFW_SHIM_MAGIC || out->abi != AFW_ABI) {
        snprintf(error, error_size, "shim blob with magic %llx and ABI %u: expected %llx and %u", (unsigned long long)out->magic, out->abi,
                 (unsigned long long)AFW_SHIM_MAGIC, AFW_ABI);
        return -1;
    }
    const uint64_t entry[] = {out->init, out->entry_site, out->entry_lstar, out->entry_cpuid, out->entry_xgetbv, out->entry_upcall};
    for (size_t i = 0; i < sizeof entry / sizeof *entry; i++) {
        if (entry[i] < AFW_SHIM || entry[i] >= AFW_SHIM + size) {
            snprintf(error, error_size, "shim blob: entry %zu at %llx lies outside", i, (unsigned long long)entry[i]);
            return -1;
        }
    }
    uint64_t table = (AFW_TABLE_END - AFW_TABLE_GAP_SIZE) * sizeof(uint16_t);
    if (out->syscall_table && !inside(out->syscall_table, table, AFW_SHIM, AFW_SHIM + size)) {
        snprintf(error, error_size, "shim blob: the table of system calls lies outside");
        return -1;
    }
    if (out->text_start < AFW_SHIM || out->text_start > out->text_end || out->text_end > AFW_SHIM + size || out->bss_end > AFW_SITES) {
        snprintf(error, error_size, "shim blob: text or bss lies outside its place");
        return -1;
    }
    return 0;
}
