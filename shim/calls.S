/* Entering and leaving the I/O half's calls. Stack of a call: user frame, return address (entry.S), the file held for it or 0, what
 * it has done so far (PROGRESS in io.h). A stub is a call to its kind's entry and the function's place in the blob. */
#include "asm.h"
#define O_EBADF 9
#define O_ENOTSOCK 88

    .macro stub kind, prefix, name, target
    .globl sys_\name
sys_\name:
    call enter_\kind
    .short \prefix\target - BLOB
    .endm
#define FD fd, fd_
#define SK sk, sk_
#define PL pl, pl_
#define CALL(kind, name) CALL_(kind, name)
#define CALL_(kind, prefix, name) stub kind, prefix, name, name;
#define AT(old, name) stub at, pl_, old, name;
#define AT2(old, name) stub at2, pl_, old, name;
    .text
#include "calls.h"

enter_at2:
    mov %rsi, %rcx
    push $-100                       /* AT_FDCWD */
    pop %rdx
    mov %rdi, %rsi
    jmp 1f
enter_at:
    mov %rdx, %rcx
    mov %rsi, %rdx
    mov %rdi, %rsi
1:  xor %r8d, %r8d
    push $-100
    pop %rdi
enter_pl:
    pop %rax
    push $0
    jmp 2f
enter_sk:
    mov $sock_ops, %r11d
    jmp 3f
enter_fd:
    xor %r11d, %r11d
3:  cmp %edi, fd_size
    jbe bad
    mov %edi, %edi
    mov fd_table, %rax
    mov (%rax,%rdi,8), %rdi
    and $-2, %rdi
    jz bad
    test %r11d, %r11d
    jz 4f
    cmp %r11, (%rdi)
    jne notsock
4:  pop %rax
    incl 8(%rdi)
    push %rdi
2:  push $0
    movzwl (%rax), %eax
    add $BLOB, %eax
    call *%rax
out:
    pop %rsi
    pop %rdi
    mov %rax, %rsi
    test %rdi, %rdi
    jnz fput
    ret
bad:
    pop %rax
    push $-O_EBADF
    pop %rax
    ret
notsock:
    pop %rax
    push $-O_ENOTSOCK
    pop %rax
    ret

    .globl leave
leave:
    mov kstack_top, %rsp
    sub $F_SIZE + 24, %rsp
    mov %rdi, %rax
    test %rax, %rax
    jns 1f
    cmpq $0, (%rsp)
    cmovne (%rsp), %rax
1:  mov 24(%rsp), %r15               /* the user's, as the frame has them */
    mov 32(%rsp), %r14
    mov 40(%rsp), %r13
    mov 48(%rsp), %r12
    mov 56(%rsp), %rbp
    mov 64(%rsp), %rbx
    jmp out
    .section .note.GNU-stack, "", @progbits
