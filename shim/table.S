/* Syscall number -> function, two bytes each: the function's offset in the blob. Numbers that nothing serves give ENOSYS. */
#include "asm.h"

#define AFW_CORE
#define AFW_IO
#define X(number, name) .set target_##number, sys_##name;
#include "syscalls.h"

    .section .rodata.syscall_table, "a"
    .globl syscall_table
syscall_table:
    .altmacro
    .macro entry n
    .ifdef target_\n
    .short target_\n - BLOB
    .else
    .short sys_enosys - BLOB
    .endif
    .endm
    .set i, 0
    .rept SYSCALLS
    .if i < GAP_START || i >= GAP_START + GAP
    entry %i
    .endif
    .set i, i + 1
    .endr
    .section .note.GNU-stack, "", @progbits
