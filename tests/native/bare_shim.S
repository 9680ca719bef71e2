/* The smallest blob a cell takes: it starts the program and gives it the ring. Guests of these tests are their own shim, so that
 * they can say to the cell whatever they like. Numbers as in abi.h. */
    .section .text, "ax"
    .globl _start
_start:
blob:
    .quad 0x314d4853574641
    .long ABI
    .long blob_end - blob
    .quad text, text_end
    .quad init, fatal, lstar, fatal, fatal, upcall, blob_end, counter, 0
text:
init:
    mov 0x2040c0, %rsp              /* ctl.start_rsp */
    jmp *0x2040b8                   /* ctl.start_rip */
lstar:
    out %al, $0x33
upcall:                             /* note it; a fault goes to the handler the guest left, anything else goes on */
    incq counter
    cmpl $2, 0x2040f0               /* ctl.up_kind == AFW_UP_FAULT */
    je 1f
    jmp *0x2040d8                   /* ctl.up_rip */
1:  jmp *handler
fatal:
    out %al, $0x33
text_end:
    .balign 8
counter: .quad 0
handler: .quad 0
blob_end:
