/* Ways into the shim and out of it. RIP in here is never preempted (shim text), so one static word can hold the user's RSP. */
#include "asm.h"

    .macro push_rest                 /* all but what is on the stack already: struct frame up to rcx */
    push %rcx
    push %rax
    push %rdx
    push %rbx
    push %rbp
    push %rsi
    push %rdi
    push %r15
    push %r14
    push %r13
    push %r12
    push %r11
    push %r10
    push %r9
    push %r8
    .endm

    .section .entry, "ax"
    .globl shim_init, entry_site, entry_lstar, entry_upcall, entry_cpuid, entry_xgetbv, thread_first, context_switch
    .globl fail, memcpy, memset, memmove, memcmp
    .globl traced_entry, traced_exit    /* instructions that the cell replaces by calls in a VM that is traced: tracing.c */

/* A rewritten site: RCX = return address, all else the user's. */
entry_site:
    mov %rsp, user_rsp
    mov kstack_top, %rsp
    push $USER_SS
    push user_rsp
    pushfq
    push $USER_CS
    push %rcx
saved_return:
    push %rax
    push_rest
    cld
    incq CTL_N_LOCAL
traced_entry:
    movl $0, ring_used
    mov %r10, %rcx
    cmp $GAP_START, %eax
    jb 4f
    sub $GAP, %eax                   /* numbers that no call has */
    cmp $GAP_START, %eax
    jb 1f
    cmp $SYSCALLS - GAP, %eax
    jae 1f
4:  mov %eax, %eax
    incq CTL_CALLS(,%rax,8)          /* in the control page, which each VM has for itself anyhow */
    movzwl syscall_table(,%rax,2), %eax
    add $BLOB, %eax
5:  cmp $io_fd, %eax
    jae hold
    push $0
call:
    push $0                          /* the file held for the call, then what it did so far: io.h's PROGRESS */
    call *%rax
out:
    pop %rdx
    pop %rdi
    test %rdi, %rdi
    jz 2f
    mov %rax, %rsi
    call fput
2:
traced_exit:
    mov %rax, F_RAX(%rsp)
    mov CTL_RESCHED, %ecx
    or attention, %ecx
    jnz 3f
    pop %r8                          /* the callee-saved ones are as they were, and RAX is the result */
    pop %r9
    pop %r10
    add $40, %rsp
    pop %rdi
    pop %rsi
    add $16, %rsp
    pop %rdx
    add $24, %rsp
    pop %rcx
    add $8, %rsp
    mov (%rsp), %r11
    popfq
    pop %rsp
    jmp *%rcx
1:  mov $sys_enosys, %eax
    jmp 5b

hold:                                /* a call of a descriptor's file (from io_fd on), or socket (from io_sk on) */
    cmp %edi, CTL_FD_SIZE
    jbe bad
    mov %edi, %edi
    mov CTL_FD_TABLE, %r11
    mov (%r11,%rdi,8), %rdi
    and $-2, %rdi
    jz bad
    cmp $io_sk, %eax
    jb 6f
    cmpq $sock_ops, (%rdi)
    jne notsock
6:  incl 8(%rdi)                     /* struct file: refs */
    push %rdi
    jmp call
bad:
    push $-9                         /* EBADF */
    jmp 7f
notsock:
    push $-88                        /* ENOTSOCK */
7:  pop %rax
    jmp 2b

fail:
    mov kstack_top, %rsp
    sub $F_SIZE + 16, %rsp
    mov %rdi, %rax
    test %rax, %rax
    jns 8f
    mov (%rsp), %rdx
    test %rdx, %rdx
    cmovnz %rdx, %rax
8:  mov 16 + F_R12(%rsp), %r12
    mov 24 + F_R12(%rsp), %r13
    mov 32 + F_R12(%rsp), %r14
    mov 40 + F_R12(%rsp), %r15
    mov 16 + F_RBP(%rsp), %rbp
    mov 24 + F_RBP(%rsp), %rbx
    jmp out
3:  mov %rsp, %rdi
    call syscall_slow
full_exit:
    pop %r8
    pop %r9
    pop %r10
    pop %r11
    pop %r12
    pop %r13
    pop %r14
    pop %r15
    pop %rdi
    pop %rsi
    pop %rbp
    pop %rbx
    pop %rdx
    pop %rax
    pop %rcx
    add $8, %rsp
    iretq

/* `syscall` that was not rewritten: RCX = return address, R11 = flags. CPL 0 on hardware KVM, so first of all down to CPL 3. */
entry_lstar:
    mov %rsp, lstar_frame + 24
    mov $lstar_frame, %rsp
    iretq
lstar_user:
    mov %rsp, user_rsp
    mov kstack_top, %rsp
    push $USER_SS
    push user_rsp
    push %r11
    push $USER_CS
    push %rcx
    mov %rcx, CTL_BACKSTOP_RIP
    incq CTL_N_BACKSTOP
    jmp saved_return
    .globl backstop_counter
    .set backstop_counter, CTL_N_BACKSTOP

/* The cell stopped user code and put RIP here; the real one is in ctl. */
entry_upcall:
    mov kstack_top, %rsp
    push $USER_SS
    push CTL_UP_RSP
    push CTL_UP_RFLAGS
    push $USER_CS
    push CTL_UP_RIP
    push $-1
    push_rest
    cld
    mov %rsp, %rdi
    call upcall
    jmp full_exit

/* A new thread's first steps: context_switch "returns" here, on its frame. */
thread_first:
    mov %rsp, %rdi
    call thread_started
    jmp full_exit

/* Rewritten cpuid: ctl.scratch_rsp = RSP, RSP = return address. Changes EAX..EDX only, flags and stack stay. */
entry_cpuid:
    mov %rsp, CTL_SCRATCH_RET
    mov kstack_top, %rsp
    pushfq
    push %rsi
    push %rdi
    push %r8
    push %r9
    push %r10
    push %r11
    push %rdx
    push %rcx
    push %rbx
    push %rax
    cld
    mov %rsp, %rdi
    call cpuid_lookup
    pop %rax
    pop %rbx
    pop %rcx
    pop %rdx
    pop %r11
    pop %r10
    pop %r9
    pop %r8
    pop %rdi
    pop %rsi
    popfq
1:  mov CTL_SCRATCH_RSP, %rsp
    jmp *CTL_SCRATCH_RET
entry_xgetbv:
    mov %rsp, CTL_SCRATCH_RET
    mov CTL_XCR0, %eax
    mov CTL_XCR0 + 4, %edx
    jmp 1b

/* void context_switch(u64 *save_sp, u64 new_sp) */
context_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret

/* First instruction of a booted VM. The program starts as the kernel would start it: registers 0. */
shim_init:
    mov $main_stack_end - 8, %rsp
    mov %rsp, kstack_top
    sub $F_SIZE, %rsp
    cld
    fninit
    call shim_main
    jmp full_exit

memcpy:
    mov %rdi, %rax
    mov %rdx, %rcx
    rep movsb
    ret
memset:
    mov %rdi, %r8
    mov %esi, %eax
    mov %rdx, %rcx
    rep stosb
    mov %r8, %rax
    ret
memmove:
    mov %rdi, %rax
    mov %rdx, %rcx
    sub %rsi, %rax
    cmp %rdx, %rax                   /* unsigned d - s >= n: forward is right */
    mov %rdi, %rax
    jae 1f
    std
    test $7, %cl                     /* backwards only whole words are quick */
    jnz 2f
    lea -8(%rdi,%rcx), %rdi
    lea -8(%rsi,%rcx), %rsi
    shr $3, %rcx
    rep movsq
    cld
    ret
2:  lea -1(%rdi,%rcx), %rdi
    lea -1(%rsi,%rcx), %rsi
    rep movsb
    cld
    ret
1:  rep movsb
    ret
memcmp:
    mov %rdx, %rcx
    xor %eax, %eax
    cmp %eax, %eax                   /* equal if n = 0 */
    repe cmpsb
    je 1f
    movzbl -1(%rdi), %eax
    movzbl -1(%rsi), %ecx
    sub %ecx, %eax
1:  ret

    .data
    .balign 16
lstar_frame:
    .quad lstar_user, USER_CS, USER_RFLAGS, 0, USER_SS

    .bss
    .globl kstack_top, attention, ring_used
    .balign 16
user_rsp: .skip 8
kstack_top: .skip 8
attention: .skip 4
ring_used: .skip 4
    .balign 16
main_stack: .skip 8192
main_stack_end:
    .section .note.GNU-stack, "", @progbits
