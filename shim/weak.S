/* The I/O half, as long as it is not there: each of its calls answers ENOSYS. Goes away with it. */
#define AFW_IO
#define X(number, name) .weak sys_##name; .set sys_##name, no_call;
    .text
no_call:
    jmp sys_enosys
#include "syscalls.h"

    .weak io_init, io_restored, io_exit, flows_poll, fd_map_handle
    .set io_init, no_io
    .set io_restored, no_io
    .set io_exit, no_io
    .set flows_poll, no_io
    .set fd_map_handle, no_handle
no_io:
    ret
no_handle:
    mov $-9, %rax
    ret
    .section .note.GNU-stack, "", @progbits
