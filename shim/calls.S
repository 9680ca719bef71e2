/* Old calls without a directory: the same with AT_FDCWD put in front. What is not theirs to give is 0. */
#include "asm.h"

    .macro old name, entry, new
    .globl sys_\name
sys_\name:
    call \entry
    jmp sys_\new
    .endm
    .text
    old open, at, openat
    old access, at, faccessat
    old readlink, at, readlinkat
    old mkdir, at, mkdirat
    old chmod, at, fchmodat
    old chown, at, fchownat
    old rename, at2, renameat
    old link, at2, linkat
at2:                                 /* (from, to) */
    mov %rsi, %rcx
    push $-100                       /* AT_FDCWD */
    pop %rdx
    jmp 1f
at:
    mov %rdx, %rcx
    mov %rsi, %rdx
1:  mov %rdi, %rsi
    xor %r8d, %r8d
    push $-100
    pop %rdi
    ret
    .section .note.GNU-stack, "", @progbits
