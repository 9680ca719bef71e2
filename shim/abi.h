/* The border between guest and host: memory layout, control page, rings, flows.
 *
 * One file, three readers: the shim (freestanding C), the cell (C) and Python (cffi; hatch_build.py feeds it to cdef() after
 * dropping preprocessor lines other than `#define NAME integer`). So: fixed-width types, no expressions in defines, no bit
 * fields, no implicit padding. tests/test_abi.py asserts sizes and offsets from both sides. Change anything: raise AFW_ABI.
 *
 * Everything in guest memory and in the I/O window is hostile to its host reader: copy once, check the copy, use the copy.
 */
#ifndef AFW_ABI_H
#define AFW_ABI_H
#include <stdint.h>

#define AFW_ABI 9

/* ---- Guest address space. GVA = GPA; 2 MiB leaves, user+write+exec; GVA 0..2 MiB is not mapped (null dereferences fault,
 * and the page tables, which lie there as GPA, are out of the guest's sight). Everything runs at CPL 3. ---- */
#define AFW_PML4 0x1000
#define AFW_PDPT 0x2000
#define AFW_PD 0x3000                /* AFW_GIB page directories, one a GiB */
#define AFW_GIB 16                   /* address space, GiB; the last GiB holds the I/O window */
#define AFW_SPACE_END 0x3c0000000    /* 15 GiB: end of ordinary guest addresses */
#define AFW_WINDOW 0x3c0000000       /* GVA of the VM's I/O window */
#define AFW_CHUNK 0x2000000          /* 32 MiB: unit of memory commitment (AFW_OP_COMMIT, memslots) */

#define AFW_SYS 0x200000             /* the 2 MiB system area: tables, control page, rings, shim, site stubs */
#define AFW_GDT 0x200000
#define AFW_TSS 0x200800
#define AFW_IDT 0x201000
#define AFW_EXC_STUBS 0x202000       /* 256 x 16 bytes: push vector; out AFW_PORT_EXC */
#define AFW_EXC_STACK_TOP 0x204000
#define AFW_CTL 0x204000             /* struct afw_ctl */
#define AFW_SQ 0x205000              /* struct afw_sqe[AFW_SQ_LEN] */
#define AFW_CQ 0x206000              /* struct afw_cqe[AFW_CQ_LEN] */
#define AFW_CPUID 0x207000           /* struct afw_cpuid_table */
#define AFW_TRACE 0x208000           /* code of a VM that is traced, written by the cell: tracing.c */
#define AFW_SHIM 0x210000            /* the blob; starts with struct afw_shim_header */
#define AFW_SHIM_MAX 0x9000          /* 36 KiB of text, rodata and data; bss follows up to AFW_KEPT */
#define AFW_KEPT 0x260000            /* struct afw_kept: what paths were found to be lately */
#define AFW_KEPT_SIZE 0x8000
#define AFW_WHOLE 0x270000           /* bytes of the file opened last, if they are no more than */
#define AFW_WHOLE_SIZE 0x10000
#define AFW_SITES 0x280000           /* stubs of rewritten sites, written by the cell only */
#define AFW_SITES_END 0x400000
#define AFW_IMAGE 0x400000           /* lowest address of program images (ET_EXEC links here; PIE is put here) */

/* Ports: `out %al, $port` is the doorbell. */
#define AFW_PORT_KICK 0x30           /* consume the SQ, complete synchronous entries, resume */
#define AFW_PORT_WAIT 0x31           /* consume the SQ; if no CQE, signal or `wake` is pending, park until ctl.deadline */
#define AFW_PORT_EXC 0x32            /* from an exception stub; stack: vector, [error code], RIP, CS, RFLAGS, RSP, SS */
#define AFW_PORT_ENTRY 0x34          /* traced VMs only: a system call begins, RSP + 8 is its frame (core.h) */
#define AFW_PORT_LEAVE 0x35          /* and ends */
#define AFW_PORT_SIGNAL 0x36         /* RAX: a signal that is delivered now, RSI: its struct sigq (core.h) */
#define AFW_PORT_PANIC 0x33          /* shim invariant broken: ctl.panic_code, ctl.panic_line */

/* Head of the shim blob, at AFW_SHIM. All are guest addresses. */
#define AFW_SHIM_MAGIC 0x314d4853574641
struct afw_shim_header {
    uint64_t magic;
    uint32_t abi;
    uint32_t size;                   /* bytes of the blob */
    uint64_t text_start;             /* [text_start, text_end): an interrupted RIP in here (or in AFW_SITES) is not preempted: */
    uint64_t text_end;               /* the cell only sets ctl.resched; the shim looks at it before it leaves */
    uint64_t init;                   /* first RIP of a booted VM: sets up, then starts the program at ctl.start_rip/start_rsp */
    uint64_t entry_site;             /* rewritten syscall: RCX = return address, all else as before `syscall` */
    uint64_t entry_lstar;            /* MSR_LSTAR; reached at CPL 0 on hardware KVM: goes to CPL 3 by iretq at once */
    uint64_t entry_cpuid;            /* rewritten cpuid / xgetbv: ctl.scratch_rsp = RSP, RSP = return address */
    uint64_t entry_xgetbv;
    uint64_t entry_upcall;           /* the cell came in between: see ctl.up_* */
    uint64_t bss_end;
    uint64_t backstop_counter;       /* address of the uint64_t counting LSTAR entries that came from a site (not from entry_site) */
    uint64_t syscall_table;          /* address of the uint16_t[] by which numbers are dispatched (AFW_TABLE_*); 0: none. The cell, applying
                                      * afw_rules.guest, copies there what setsid (EPERM) or an unknown number (ENOSYS) has */
};

#define AFW_TABLE_END 453            /* numbers from here on are unknown, and those in the gap, which the table leaves out */
#define AFW_TABLE_GAP 335
#define AFW_TABLE_GAP_SIZE 89
#define AFW_TABLE_SIZE 364           /* entries: AFW_TABLE_END less the gap */
#define AFW_TABLE_EPERM 112          /* setsid */
#define AFW_TABLE_ENOSYS 101         /* ptrace */

struct afw_sqe {
    uint16_t op;                     /* enum afw_op */
    uint16_t flags;                  /* AFW_SQE_* */
    uint32_t token;                  /* returned in the CQE */
    uint64_t a[6];
    uint64_t reserved;
};
#define AFW_SQE_NOREPLY 1            /* no CQE */

struct afw_cqe {
    uint32_t token;
    uint32_t flags;                  /* 0 */
    int64_t res;                     /* >= 0, or -errno */
};

#define AFW_SQ_LEN 64
#define AFW_CQ_LEN 128

#define AFW_RANDOM 256
/* The control page. "h": written by the host while the vCPU stands still (the exceptions say so); "g": written by the guest. */
struct afw_ctl {
    uint32_t abi;                    /* h */
    uint32_t pid;                    /* h  getpid(); another one after each restore */
    uint32_t generation;             /* h  raised at each restore: the shim takes up pid and clock when it sees a new one */
    uint32_t resched;                /* h  time slice ended inside the shim, or a signal came: look before leaving */
    uint32_t sq_head;                /* h  free-running */
    uint32_t sq_tail;                /* g  free-running */
    uint32_t cq_head;                /* g  free-running */
    uint32_t cq_tail;                /* h  free-running */
    uint64_t deadline;               /* g  for AFW_PORT_WAIT: CLOCK_MONOTONIC ns, ~0 = none */
    uint64_t wake;                   /* h  set to 1 when the worker touched the I/O window; g clears */
    uint64_t sigpending;             /* h  bit n-1: signal n sent to the process from outside; g clears what it took */
    /* clock: ns = mono_base + (((rdtsc() - tsc_base) * tsc_mult) >> 32), the product 128 bits wide */
    uint64_t tsc_base;               /* h */
    uint64_t tsc_mult;               /* h */
    uint64_t mono_base;              /* h */
    uint64_t real_offset;            /* h  CLOCK_REALTIME = monotonic + real_offset, ns */
    uint64_t cpu_ns;                 /* h  CPU time the VM used up to the last entry, ns (CLOCK_PROCESS_CPUTIME_ID) */
    /* what AFW_OP_CALL looks at */
    uint64_t fd_table;               /* g  address of a uint64_t a descriptor: its struct file, bit 0 apart; 0: not open */
    uint32_t fd_size;                /* g  descriptors in it */
    uint32_t umask;                  /* h */
    uint32_t random_left;            /* h, g  bytes of random[] that were not handed out: its first ones */
    uint32_t reserved_call[3];
    /* memory map, fixed at boot */
    uint64_t brk_start;              /* h */
    uint64_t brk_max;                /* h */
    uint64_t mmap_base;              /* h  anonymous and file mappings lie in [mmap_base, AFW_SPACE_END) */
    uint64_t stack_lo;               /* h  main stack [stack_lo, stack_hi); below it a guard the cell keeps PROT_NONE */
    uint64_t stack_hi;               /* h */
    uint64_t commit_end;             /* h  chunks below this are committed at boot */
    uint64_t memory_limit;           /* h  bytes; the cell refuses commitments beyond it */
    uint64_t start_rip;              /* h  where the program (its interpreter) starts */
    uint64_t start_rsp;              /* h */
    uint64_t xcr0;                   /* h  feature mask that XSAVE uses and xgetbv(0) answers */
    uint64_t xsave_size;             /* h  bytes of the standard-format area for xcr0 */
    /* upcall: the cell stopped guest code at up_rip and resumes at entry_upcall, other registers as they were */
    uint64_t up_rip;                 /* h */
    uint64_t up_rsp;                 /* h */
    uint64_t up_rflags;              /* h */
    uint32_t up_kind;                /* h  enum afw_upcall */
    uint32_t up_signal;              /* h  AFW_UP_FAULT: SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP */
    uint64_t up_code;                /* h  si_code */
    uint64_t up_addr;                /* h  si_addr, 0 if not known */
    uint64_t scratch_rsp;            /* site stubs of cpuid/xgetbv save RSP here */
    uint64_t scratch_ret;
    uint64_t fault_handlers;         /* g  bit n-1: signal n has a handler, so the cell may turn a fault into AFW_UP_FAULT */
    uint32_t preempted;              /* g  threads stopped by an upcall; sites are patched lazily only while it is 0 */
    uint32_t panic_code;             /* g */
    uint32_t panic_line;             /* g */
    uint32_t last_enosys;            /* g  number of the last call answered ENOSYS */
    /* counters, g, free-running; shown by --stats, believed by nobody */
    uint64_t n_local;                /* syscalls answered without leaving the guest */
    uint64_t n_ring;                 /* syscalls that needed the ring */
    uint64_t n_backstop;             /* of both: those that came through LSTAR */
    uint64_t n_enosys;
    uint64_t n_switch;               /* thread switches */
    uint64_t backstop_rip;           /* return address of the newest LSTAR entry; the cell counts repeats at its next exit */
    uint64_t committed_pages;        /* g  pages handed out */
    uint32_t reserved_trace;
    uint32_t alone;                  /* g  1: no other thread wants the vCPU or waits for a time: no RESCHED upcall at a slice's end
                                      * (signals and `wake` make one all the same). 0 is always right */
    uint32_t forked;                 /* h  1: this generation goes on from where a running VM stood, 0: from the template's READY */
    uint32_t reserved_forked;
    uint64_t fork_fill;              /* g  address of AFW_FORK_FILL bytes that get random content in every VM that goes on so; 0: none */
    uint64_t rlimit[32];             /* h  soft and hard of each resource; as umask set at boot, then kept by the calls that change it */
    uint8_t random[AFW_RANDOM];      /* h  the host's getrandom(), fresh at boot, at each restore and by AFW_OP_RANDOM; g wipes what it takes */
    uint64_t regions;                /* g  address of the table of mappings: struct afw_region[n_regions], by address; the last one stands for the end */
    uint64_t threads;                /* g  address of the first struct thread, which goes on at AFW_THREAD_NEXT; 0: the end */
    uint32_t n_regions;              /* g  */
    uint8_t nice;                    /* h  0..19 */
    uint8_t policy;                  /* h  SCHED_OTHER, SCHED_BATCH or SCHED_IDLE */
    uint16_t reserved_policy;
    uint64_t changes;                /* h, g  raised by what may make stale that which is kept of files: by this VM's own changes, and whatever
                                      * it may have heard of others' */
    uint64_t cpu_since;              /* h  what the clock above said at the last entry, which is when cpu_ns was counted */
    uint64_t timer;                  /* g  when somebody wants the vCPU, by that clock; 0, ~0: nobody at any known time. The slice ends then */
    uint64_t tick;                   /* h  when the slice ends as it is: a kick makes the host look at an earlier `timer` */
    uint64_t calls[AFW_TABLE_SIZE];  /* g  system calls by their place in the table (what is beyond it: n_enosys); believed by nobody */
};
/* What stat() found, kept for the next one who asks: written by the cell, as it answers, with what it expects to be asked next. Good
 * while ctl.changes is `changes`, for 2 ms from `at` on. */
struct afw_kept {
    uint64_t changes;
    uint64_t at;                     /* CLOCK_MONOTONIC, ns: nothing of it was looked at before */
    uint64_t n;                      /* struct afw_kept_stat, one behind the other */
};
struct afw_kept_stat {
    uint32_t size;                   /* of all of it, a multiple of 8 */
    uint32_t key;                    /* AT_SYMLINK_NOFOLLOW or 0, then for each byte of the path: times 31, plus the byte */
    int64_t result;                  /* 0 or -errno */
    uint64_t st[18];                 /* struct stat */
    uint8_t path[8];                 /* with a NUL; as it was given, relative to the current directory if it is not absolute */
};
struct afw_file {                    /* a struct file begins so */
    uint64_t ops;                    /* address of: uint16_t size, uint16_t st_mode of what is the guest's own */
    uint32_t refs;
    uint32_t flags;                  /* O_* */
    uint32_t ino;
    uint32_t dev;                    /* devices: the minor number */
    uint32_t handle;                 /* the host's; 0: a file of the guest's own */
    uint32_t reserved;
};
#define AFW_FILE_PLACE 48            /* behind it, uint64_t, if there is a handle: where the next read() or write() begins */
struct afw_region {                  /* pages that are in none are free */
    uint32_t start;                  /* page numbers */
    uint32_t end;
    uint32_t attr;                   /* AFW_REGION_*, and what only the shim knows of */
};
#define AFW_REGION_PROT 7            /* PROT_* */
#define AFW_REGION_MAPPED 8          /* not: free, though the host has memory there */
#define AFW_REGION_SHIM 16           /* mapped, and not the program's */
#define AFW_REGION_FILE 32
#define AFW_REGION_SHARED 512
#define AFW_LOST_HANDLE 0xfffffffe   /* of the template's files in a VM made of it: nobody's handle */
#define AFW_THREAD_TID 0x4c          /* in struct thread: uint32_t */
#define AFW_THREAD_STATE 0x50        /* uint8_t: AFW_THREAD_BLOCKED, or it runs or could */
#define AFW_THREAD_BLOCKED 2
#define AFW_THREAD_STACK 0x78        /* uint64_t, address: where its shim stack ends; a call's sixth argument lies AFW_FRAME_SIXTH below */
#define AFW_FRAME_SIXTH 160
#define AFW_THREAD_NEXT 0x80         /* uint64_t, address */
#define AFW_THREAD_CPU 0xb0          /* uint64_t, ns used */
#define AFW_THREAD_NAME 0xb8         /* 16 bytes */
#define AFW_THREAD_SIZE 0xc8         /* of all these */
#define AFW_THREADS_MAX 4096
#define AFW_FORK_FILL 2496           /* the state of Python's global random generator (MT19937) */
#define AFW_FORK_SIGNAL 63           /* its handler, if there is one, runs in the main thread of a forked VM when that next goes on */

/* cpuid answers of the fleet's baseline, host-filled; looked up by (leaf, subleaf), else zeros: by the cell (AFW_OP_CPUID), but in the guest, so that it
 * goes where a snapshot goes. */
#define AFW_CPUID_MAX 120
struct afw_cpuid_entry {
    uint32_t leaf;
    uint32_t subleaf;
    uint32_t any_subleaf;            /* 1: subleaf is not looked at */
    uint32_t eax;
    uint32_t ebx;
    uint32_t ecx;
    uint32_t edx;
    uint32_t reserved;
};
struct afw_cpuid_table {
    uint32_t n;
    uint32_t reserved[7];
    struct afw_cpuid_entry entry[AFW_CPUID_MAX];
};

enum afw_upcall {
    AFW_UP_RESCHED = 1,              /* time slice over, or a signal is pending */
    AFW_UP_FAULT = 2                 /* deliver up_signal to the thread that ran */
};

/* Ring operations. "path" is (pointer, length), no NUL inside, at most 4,095 bytes; "base" is a directory handle or AFW_CWD.
 * Handles are small integers of the cell, per VM, checked on every use. All file operations complete within the kick. */
#define AFW_CWD 0xffffffff
#define AFW_IO_MAX 0x4000000         /* bytes that one PREAD or PWRITE moves at most; fewer of a larger request do not mean the end */
enum afw_op {
    AFW_OP_NOP = 0,
    /* files */
    AFW_OP_OPEN = 1,                 /* path a0,a1  flags a2  mode a3  base a4  a5 = guest address for a struct stat, or 0 -> handle */
    AFW_OP_CLOSE = 2,                /* handle a0  a1: 0, or 1: it stays, but a descriptor of it was closed */
    AFW_OP_PREAD = 3,                /* handle a0  buf a1  len a2  offset a3 (-1: the host file's own position) -> bytes */
    AFW_OP_PWRITE = 4,               /* handle a0  buf a1  len a2  offset a3 (-1: append)  a4 = address for where an append ended, or 0 -> bytes */
    AFW_OP_STAT = 5,                 /* path a0,a1  AT_* flags a2  out a3 (struct stat, 144 bytes)  base a4 */
    AFW_OP_FSTAT = 6,                /* handle a0  out a1 */
    AFW_OP_READDIR = 7,              /* handle a0  buf a1  len a2  cookie a3 (0 = start, else d_off of the last entry)
                                      * a4 = address for the d_off that nothing comes behind (~0: not known), or 0 -> bytes of linux_dirent64 */
    AFW_OP_READLINK = 8,             /* path a0,a1  buf a2  len a3  base a4 -> bytes */
    AFW_OP_ACCESS = 9,               /* path a0,a1  mode a2  flags a3  base a4; AFW_SOCKET_NUMBER alone: may one connect to the socket there? -> number */
    AFW_OP_MKDIR = 10,               /* path a0,a1  mode a2  base a4 */
    AFW_OP_UNLINK = 11,              /* path a0,a1  AT_REMOVEDIR a2  base a4 */
    AFW_OP_RENAME = 12,              /* from a0,a1  to a2,a3  bases a4 (low 32 from, high 32 to)  flags a5 */
    AFW_OP_SYMLINK = 13,             /* target a0,a1  path a2,a3  base a4 */
    AFW_OP_LINK = 14,                /* from a0,a1  to a2,a3  bases a4 as in RENAME  flags a5 */
    AFW_OP_CHMOD = 15,               /* path a0,a1  mode a2  base a4 */
    AFW_OP_UTIMENS = 16,             /* path a0,a1 (a1 = 0: base itself)  times a2 (two struct timespec, or 0 = now)  flags a3  base a4 */
    AFW_OP_TRUNCATE = 17,            /* handle a0  length a1 */
    AFW_OP_FSYNC = 18,               /* handle a0 */
    AFW_OP_STATFS = 19,              /* handle a0  out a1 (struct statfs, 120 bytes) */
    AFW_OP_CHDIR = 20,               /* path a0,a1  base a4 */
    AFW_OP_GETCWD = 21,              /* buf a0  len a1 -> bytes with the NUL */
    AFW_OP_FLOCK = 22,               /* handle a0  LOCK_* a1 (non-blocking always; EWOULDBLOCK) */
    AFW_OP_FCHMOD = 23,              /* handle a0  mode a1 */
    AFW_OP_FALLOCATE = 24,           /* handle a0  mode a1  offset a2  len a3 */
    AFW_OP_CHOWN = 25,               /* path a0,a1 (a1 = 0: base itself)  uid a2  gid a3  base a4  AT_* flags a5 */
    AFW_OP_MKNOD = 26,               /* path a0,a1  mode a2 (a file or a socket's name)  base a4; with AFW_SOCKET_NUMBER -> number, from 1 on, that the socket has wherever it is moved */
    AFW_OP_XATTR = 27,               /* path a0,a1 (a1 = 0: base itself)  0 set, 1 get, 2 list, 3 remove a2  AT_* flags a3  base a4: there are none */
    AFW_OP_STATX = 28,               /* path a0,a1  AT_* flags a2  out a3 (struct statx, 256 bytes)  base a4 */
    AFW_OP_LOCK = 29,                /* handle a0 (0: a file of the guest's own, open for a3)  struct flock a1  F_* a2  the description's place a4 (non-blocking always) */
    AFW_OP_SEEK = 30,                /* handle a0  offset a1  SEEK_DATA or SEEK_HOLE a2 -> where; SEEK_END: a file's size */
    AFW_OP_COPY = 31,                /* from handle a0, offset a1 to handle a2, offset a3; bytes a4; as copy_file_range() (1) or sendfile() (0) a5 -> bytes */
    /* memory */
    AFW_OP_COMMIT = 32,              /* addr a0  len a1: make the chunks that cover it usable (new memslots); ENOMEM over the limit */
    AFW_OP_MAPFILE = 33,             /* handle a0  addr a1  len a2  prot a3  MAP_PRIVATE, MAP_SHARED or MAP_SHARED_VALIDATE a4  offset a5 */
    AFW_OP_ZERO = 34,                /* addr a0  len a1: fresh zero pages, readable and writable, whatever was there
                                      * a2 = 1: of files' private mappings the file's pages again, as they were mapped; nothing else changes */
    AFW_OP_PROTECT = 35,             /* addr a0  len a1  prot a2 */
    AFW_OP_REMAP = 36,               /* addr a0  len a1  new addr a2  new len a3: one file's mapping goes there, and may grow; zero pages are left. EFAULT:
                                      * it is not one; ENOMEM: what is to be added cannot be had */
    /* flows; state lives in the I/O window */
    AFW_OP_FLOW_OPEN = 48,           /* flow a0  kind a1  family a2 (AF_INET, AF_INET6)  address a3,a4 (as in memory, 16 bytes)  port a5 (host order) */
    AFW_OP_FLOW_KICK = 49,           /* flow a0: bytes were produced or consumed, or gflags changed */
    AFW_OP_SOCKET = 50,              /* what Linux says of a socket option, or of a kind of socket (AFW_SOCKET_* a4):
                                      * level << 32 | name a0  domain | type << 16 | listening << 24 a1  length a2  16 bytes at a3 (of a set option, what
                                      * is kept of it; of another, what it is before it is set) -> length of that
                                      * KIND: domain a0  type a1  protocol a2 -> 0 */
    /* the VM */
    AFW_OP_READY = 64,               /* template: save the snapshot here; -> 0 in every VM restored from it (and 1 in the template itself) */
    AFW_OP_EXIT = 65,                /* status a0 (0..255)  signal a1 (0, or the signal that killed it) */
    AFW_OP_RANDOM = 67,              /* buf a0  len a1 -> bytes, 1 MiB at most; a0 = 0: fills ctl.random */
    AFW_OP_CPUID = 68,               /* leaf a0  subleaf a1  out a2: EAX, EBX, ECX, EDX as uint64_t each, by the table at AFW_CPUID */
    /* AFW_OP_CALL + n: system call n with its arguments, answered by the host (calls.c), by operations above where files are concerned.
     * Calls of fewer than six arguments come with the calling struct thread in a5; what opens files with where its struct stat goes in a4 */
    AFW_OP_CALL = 0x1000
};
#define AFW_SOCKET_NUMBER 0x10000    /* in modes */
#define AFW_AGAIN 513                /* -AFW_AGAIN: not yet; ask again in a while */
/* What a call that opens a file answers: O_* that the description keeps << 32 (O_TRUNC: something was changed), and below that a handle or */
#define AFW_OPENED_WHOLE 0x8000      /* + handle: and all its bytes, as many as st_size says, lie at AFW_WHOLE */
#define AFW_OPENED_DEVICE 0x10000    /* + minor number: one of the devices that the shim is itself */
#define AFW_OPENED_FD 0x20000        /* + descriptor: the same description under another number */
#define AFW_OPENED_JOB 0x30000       /* the job stream is wanted */

enum afw_socket_op {
    AFW_SOCKET_GET = 0,
    AFW_SOCKET_SET = 1,
    AFW_SOCKET_KIND = 2
};

/* ---- I/O window: a memslot shared by guest, cell and worker. Layout: struct afw_window, then the byte rings of the flows.
 * Flow i: guest-to-worker ring at data + i * 2 * AFW_RING, worker-to-guest ring AFW_RING behind it. ---- */
#define AFW_FLOWS 128
#define AFW_RING 0x10000             /* 64 KiB a direction */
#define AFW_WINDOW_DATA 0x10000
#define AFW_WINDOW_SIZE 0x1010000    /* AFW_WINDOW_DATA + AFW_FLOWS * 2 * AFW_RING */

/* Flows 0..3 are open from the start: byte streams with the worker. */
#define AFW_FLOW_STDIN 0
#define AFW_FLOW_STDOUT 1
#define AFW_FLOW_STDERR 2
#define AFW_FLOW_JOB 3               /* both ways; what open("/dev/agentfw") gives after AFW_OP_READY */
#define AFW_FLOW_FIRST 4

#define AFW_KIND_TCP 1
#define AFW_KIND_UDP 2               /* ring bytes are struct afw_dgram + payload, each way */

/* flow.gflags, guest writes */
#define AFW_G_TX_EOF 1               /* no more bytes from the guest (shutdown(SHUT_WR)) */
#define AFW_G_CLOSED 2               /* the guest has no descriptor left; the worker sends what is in the ring, then frees */
#define AFW_G_RX_OFF 4               /* the guest reads no more */
/* flow.hstate, worker writes */
#define AFW_H_FREE 0                 /* the guest may use the slot; it may set up tx_head = rx_tail = gflags = 0 only in this state */
#define AFW_H_OPENING 1              /* set by the guest's cell when it forwards FLOW_OPEN */
#define AFW_H_OPEN 2
#define AFW_H_FAILED 3               /* see error */
/* flow.hflags, worker writes */
#define AFW_HF_RX_EOF 1              /* after rx_head no more bytes come */
#define AFW_HF_RESET 2               /* connection is gone: reads and writes give error */

struct afw_flow {
    /* guest's line */
    uint32_t tx_head;                /* bytes produced by the guest, free-running */
    uint32_t rx_tail;                /* bytes consumed by the guest, free-running */
    uint32_t gflags;
    uint32_t kind;
    uint32_t greserved[12];
    /* worker's line */
    uint32_t rx_head;                /* bytes produced by the worker, free-running */
    uint32_t tx_tail;                /* bytes consumed by the worker, free-running */
    uint32_t hstate;
    uint32_t hflags;
    int32_t error;                   /* positive errno */
    uint32_t local_port;             /* what getsockname shows */
    uint32_t hreserved[10];
};
struct afw_window {
    struct afw_flow flow[AFW_FLOWS];
    uint64_t ready[2];               /* bit i: the worker changed flow i (atomic or); the guest swaps it to 0 and looks */
};

struct afw_dgram {
    uint16_t len;                    /* payload bytes that follow */
    uint16_t port;                   /* host order; peer's */
    uint16_t family;                 /* AF_INET or AF_INET6 */
    uint16_t error;                  /* to the guest, len 0: errno that what it sent there met with; else 0 */
    uint8_t addr[16];                /* IPv4 in the first four bytes */
};
#endif
