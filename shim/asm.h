/* Numbers that assembly needs. layout.c asserts each against the C side. */
#ifndef SHIM_ASM_H
#define SHIM_ASM_H

#define BLOB 0x210000                /* AFW_SHIM */
#define SHIM_MAGIC 0x314d4853574641  /* AFW_SHIM_MAGIC */
#define SHIM_ABI 9                   /* AFW_ABI */
#define CTL_ADDR 0x204000
#define CTL_RESCHED (CTL_ADDR + 12)
#define CTL_XCR0 (CTL_ADDR + 200)
#define CTL_UP_RIP (CTL_ADDR + 216)
#define CTL_UP_RSP (CTL_ADDR + 224)
#define CTL_UP_RFLAGS (CTL_ADDR + 232)
#define CTL_SCRATCH_RSP (CTL_ADDR + 264)
#define CTL_SCRATCH_RET (CTL_ADDR + 272)
#define CTL_N_LOCAL (CTL_ADDR + 304)
#define CTL_N_BACKSTOP (CTL_ADDR + 320)
#define CTL_BACKSTOP_RIP (CTL_ADDR + 344)
#define CTL_FD_TABLE (CTL_ADDR + 96)
#define CTL_FD_SIZE (CTL_ADDR + 104)
#define CTL_CALLS (CTL_ADDR + 952)

#define USER_CS 0x33
#define USER_SS 0x2b
#define USER_RFLAGS 0x3202           /* IOPL 3 (for `out`), IF */

/* struct frame (core.h) */
#define F_R12 32
#define F_RDI 64
#define F_RBP 80
#define F_RAX 104
#define F_SIZE 168
#define THREAD_TID 76                /* struct thread's tid, for tracing.c */

#define SYSCALLS 453                 /* the table ends here, and leaves out GAP numbers from GAP_START on */
#define GAP_START 335
#define GAP 89
#endif
