/* What assembly believes of C's structures. No code. */
#include "asm.h"
#include "core.h"

#define CTL_IS(number, field) _Static_assert((number) == CTL_ADDR + offsetof(struct afw_ctl, field), #field)
#define FRAME_IS(number, field) _Static_assert((number) == offsetof(struct frame, field), #field)
_Static_assert(BLOB == AFW_SHIM && SHIM_MAGIC == AFW_SHIM_MAGIC && SHIM_ABI == AFW_ABI && CTL_ADDR == AFW_CTL, "abi.h");
_Static_assert(SYSCALLS - GAP == AFW_TABLE_SIZE && SYSCALLS == AFW_TABLE_END && GAP_START == AFW_TABLE_GAP && GAP == AFW_TABLE_GAP_SIZE, "abi.h");
CTL_IS(CTL_RESCHED, resched);
CTL_IS(CTL_XCR0, xcr0);
CTL_IS(CTL_UP_RIP, up_rip);
CTL_IS(CTL_UP_RSP, up_rsp);
CTL_IS(CTL_UP_RFLAGS, up_rflags);
CTL_IS(CTL_SCRATCH_RSP, scratch_rsp);
CTL_IS(CTL_SCRATCH_RET, scratch_ret);
CTL_IS(CTL_N_LOCAL, n_local);
CTL_IS(CTL_N_BACKSTOP, n_backstop);
CTL_IS(CTL_BACKSTOP_RIP, backstop_rip);
CTL_IS(CTL_FD_TABLE, fd_table);
CTL_IS(CTL_FD_SIZE, fd_size);
CTL_IS(CTL_CALLS, calls);
_Static_assert(offsetof(struct thread, name) == AFW_THREAD_NAME && AFW_THREAD_NAME + 16 == AFW_THREAD_SIZE, "abi.h");
_Static_assert(offsetof(struct thread, tid) == AFW_THREAD_TID && offsetof(struct thread, state) == AFW_THREAD_STATE, "abi.h");
_Static_assert(offsetof(struct thread, next) == AFW_THREAD_NEXT && offsetof(struct thread, cpu_ns) == AFW_THREAD_CPU, "abi.h");
_Static_assert(offsetof(struct thread, stack_top) == AFW_THREAD_STACK && sizeof(struct frame) - offsetof(struct frame, r9) == AFW_FRAME_SIXTH, "abi.h");
_Static_assert(BLOCKED == AFW_THREAD_BLOCKED, "abi.h");
FRAME_IS(F_R12, r12);
FRAME_IS(F_R12 + 24, r15);
FRAME_IS(F_RDI, rdi);
FRAME_IS(F_RBP, rbp);
FRAME_IS(F_RBP + 8, rbx);
FRAME_IS(F_RAX, rax);
_Static_assert(F_SIZE == sizeof(struct frame), "frame");
_Static_assert(THREAD_TID == offsetof(struct thread, tid), "thread");
_Static_assert(sizeof(struct afw_shim_header) == 104 && sizeof(struct afw_sqe) == 64, "abi.h");
