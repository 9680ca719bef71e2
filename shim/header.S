/* struct afw_shim_header: the first thing in the blob. */
#include "asm.h"
    .section .header, "a"
    .quad SHIM_MAGIC
    .long SHIM_ABI
    .long blob_size
    .quad text_start
    .quad text_end
    .quad shim_init
    .quad entry_site
    .quad entry_lstar
    .quad entry_cpuid
    .quad entry_xgetbv
    .quad entry_upcall
    .quad bss_end
    .quad backstop_counter
    .quad syscall_table
    .section .note.GNU-stack, "", @progbits
