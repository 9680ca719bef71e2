/* The border between a cell (native, jailed) and its worker (Python): one shared memfd, one eventfd a direction and runner.
 *
 * Read by C and by cffi like shim/abi.h (same rules). The worker makes the memfd, fills header and configuration, and starts
 * `agentfw-cell FD` (FD: the memfd; every other descriptor is named in the configuration). The cell reads the configuration
 * once, before it jails itself. A cell may have been taken over by a guest, so the worker treats all of this as hostile too:
 * copy, check, use.
 */
#ifndef AFW_CELL_H
#define AFW_CELL_H
#include <stdint.h>

#define AFW_CELL_MAGIC 0x4c4c4543
#define AFW_CELL_VMS 64              /* VMs a cell holds at most */
#define AFW_CELL_RUNNERS 4           /* runner threads at most */
#define AFW_QUEUE 256                /* entries of each queue; SPSC, free-running 32-bit indices, power of two */

/* runner -> worker */
enum afw_event_type {
    AFW_EV_READY = 1,                /* VM reached AFW_OP_READY (template: snapshot saved, a = its bytes, b = 0 or -errno) */
    AFW_EV_FLOW_OPEN = 2,            /* arg = flow; a = kind | family << 16 | port << 32; b, c = address bytes */
    AFW_EV_FLOW = 3,                 /* arg = flow: look at the window */
    AFW_EV_EXIT = 4,                 /* VM is gone; read vm[].exit_* */
    AFW_EV_SITES = 5,                /* runner's site area holds code to decode: arg = AFW_SITES_*, a = guest address, b = bytes, c = request id, d = AFW_SITES_LAZY: offset of the return address */
    AFW_EV_ERROR = 6,                /* the cell itself failed for this VM: vm[].text says what */
    AFW_EV_RULES = 8,                /* VM has the rules that AFW_CMD_RULES gave it: what comes from here on is under them */
    AFW_EV_SAVED = 9,                /* answer to AFW_CMD_SAVE: a = bytes of the file, b = 0 or -errno (save.c) */
    AFW_EV_STANDS = 10,              /* VM, restored with AFW_RESTORE_LATER, is ready to run */
    AFW_EV_SIGHT = 11                /* answer to AFW_CMD_SIGHT: the VM's struct afw_sight says how it stands */
};
struct afw_event {
    uint32_t type;
    uint32_t vm;
    uint32_t arg;
    uint32_t reserved;
    uint64_t a;
    uint64_t b;
    uint64_t c;
    uint64_t d;
    uint64_t e;
    uint64_t f;
};                                   /* 64 bytes */

#define AFW_RESTORE_SOON 32          /* a bit: its job comes at once, or will come to this VM before others: what a job writes is populated now */
#define AFW_RESTORE_LATER 33         /* a bit: all is made ready (answer: AFW_EV_STANDS), but it is not entered before there is something for it */

/* worker -> runner */
enum afw_command_type {
    AFW_CMD_BOOT = 1,                /* vm: boot a template from the ELF file, argv and env of the configuration; b as below */
    AFW_CMD_RESTORE = 2,             /* vm: from the configuration's snapshot; a = pid (and AFW_RESTORE_*), b = bytes of its struct afw_rules, 0: no rules */
    AFW_CMD_WAKE = 3,                /* vm: the I/O window changed */
    AFW_CMD_SIGNAL = 4,              /* vm: signal a */
    AFW_CMD_KILL = 5,                /* vm: stop now; AFW_EV_EXIT follows with exit_kind AFW_EXIT_KILLED */
    AFW_CMD_SITES = 6,               /* answer to AFW_EV_SITES: c = request id, a = number of struct afw_site in the site area,
                                      * plus 2^32 times the number of sites without a safe window */
    AFW_CMD_QUIT = 7,                /* runner: kill its VMs, end */
    AFW_CMD_RULES = 8,               /* vm: restored with b = 0, its rules come now, once; b as for RESTORE. Answer: AFW_EV_RULES, or AFW_EV_ERROR */
    AFW_CMD_DISCARD = 9,             /* vm: what is kept of it after its end (AFW_REC_RECYCLE) goes */
    AFW_CMD_SAVE = 10,               /* vm, running: as it stands into the file of AFW_REC_SAVE, and on. One at a time in a cell */
    AFW_CMD_SIGHT = 11,              /* vm: its calls into its struct afw_sight. Answer: AFW_EV_SIGHT. a = 1: all that is told there begins anew instead, no answer */
    AFW_CMD_SHARE = 16,              /* to every runner: all VMs of the cell together get a millionths of a core; 0: no limit */
    AFW_CMD_LIMIT = 17               /* vm: at most a millionths of a core, and b ns of CPU time from here on; 0: no limit */
};
struct afw_command {
    uint32_t type;
    uint32_t vm;
    uint64_t a;
    uint64_t b;
    uint64_t c;
};                                   /* 32 bytes */

#define AFW_SITES_FILE 1             /* file pages mapped executable */
#define AFW_SITES_MEMORY 2           /* anonymous memory that became executable */
#define AFW_SITES_LAZY 3             /* code around one backstop return address; only that site is wanted */
#define AFW_SITE_SYSCALL 1
#define AFW_SITE_CPUID 2
#define AFW_SITE_XGETBV 3
struct afw_site {
    uint32_t offset;                 /* of the window's first byte, from the start of the code sent */
    uint8_t length;                  /* of the window: 5..20 bytes, whole instructions, the site last */
    uint8_t kind;                    /* AFW_SITE_* */
    uint8_t site_length;             /* of the site itself: 2, xgetbv 3 */
    uint8_t reserved;
};
#define AFW_SITE_AREA 0x2000000      /* 32 MiB a runner, sparse; longer code is left to the backstop */

/* how a VM ended */
#define AFW_EXIT_CODE 1              /* exit_code: the program's */
#define AFW_EXIT_SIGNAL 2            /* exit_signal: killed by it (fault without a handler, abort, ...); fault_* if it was a fault */
#define AFW_EXIT_KILLED 3            /* by AFW_CMD_KILL or AFW_CMD_QUIT */
#define AFW_EXIT_MEMORY 4            /* the host could not, or would not, give memory that the guest had to have */
#define AFW_EXIT_INTERNAL 5          /* KVM or shim broke: text says what */
#define AFW_EXIT_HOSTILE 6           /* the ring was corrupt: text says what */

#define AFW_TEXT_CPU "CPU time: "     /* so begins the text of a VM that used all that AFW_CMD_LIMIT gave it */

#define AFW_VM_FREE 0
#define AFW_VM_STARTING 1
#define AFW_VM_RUNNING 2
#define AFW_VM_PARKED 3
#define AFW_VM_DEAD 4

/* One a VM; written by the cell, read by the worker. */
struct afw_vm_shm {
    uint32_t state;                  /* AFW_VM_* */
    uint32_t exit_kind;              /* AFW_EXIT_*, 0 while it lives */
    int32_t exit_code;
    int32_t exit_signal;
    uint64_t fault_rip;
    uint64_t fault_addr;             /* valid if fault_flags & 1 */
    uint32_t fault_flags;
    uint32_t fault_code_len;
    uint64_t fault_regs[18];         /* rax rbx rcx rdx rsi rdi rbp rsp r8..r15 rip rflags */
    uint8_t fault_code[16];          /* bytes at RIP, as far as readable */
    uint64_t fault_map_start;        /* mapping that holds RIP: start, and file offset of its start */
    uint64_t fault_map_offset;
    char fault_module[256];          /* guest path of the file mapped at RIP, or "" */
    char text[256];                  /* one line for people */
    /* counters */
    uint64_t exits;                  /* returns of KVM_RUN */
    uint64_t exits_kick;
    uint64_t exits_wait;
    uint64_t exits_signal;           /* time slices and other signals */
    uint64_t exits_fault;
    uint64_t sites;                  /* rewritten, of all kinds */
    uint64_t sites_lazy;             /* of them, after the backstop saw them twice */
    uint64_t sites_refused;          /* no safe window */
    uint64_t ring_ops;
    uint64_t cpu_ns;
    uint64_t memory_committed;       /* bytes in memslots */
    uint64_t n_local;                /* copies of the guest's own counters (struct afw_ctl) at the last exit */
    uint64_t n_ring;
    uint64_t n_backstop;
    uint64_t n_enosys;
    uint64_t n_switch;
    uint32_t last_enosys;
    uint32_t reserved32;
    uint64_t restore_ns;             /* RESTORE command to first KVM_RUN */
    uint64_t refused_paths;          /* by file rules */
    uint64_t refused_calls;          /* by syscall rules; what the shim itself refused is not counted */
    uint64_t recycled;               /* 1: this life began in the VM of the one before it (AFW_REC_RECYCLE) */
    uint64_t reset_ns;               /* that took to put back; also if it did not come to that */
    uint64_t private_pages;          /* that the life before it had left changed */
    uint64_t tmp_bytes;              /* of its private files that are memfds: not in the process's own memory. Holes counted */
    uint64_t reserved[2];
};

/* What one VM may not do: this head, then rules, then parts, then bytes, without gaps. AFW_RULES_SIZE bytes of the shared memory are
 * there for each VM; the cell copies and checks them as it obeys RESTORE, BOOT or RULES (rules.c), agentfw_vmm/rules.py writes them. */
#define AFW_RULES_SIZE 0x10000
#define AFW_RULES_MAX 512            /* rules of a VM */
#define AFW_RULES_PARTS 60           /* components of a pattern */
#define AFW_RULES_RMDIR 96           /* bit in deny and kill: AFW_OP_UNLINK with AT_REMOVEDIR; AFW_OP_UNLINK's own bit: without */
struct afw_rules {
    uint32_t size;                   /* bytes of all */
    uint32_t n_rules;
    uint32_t n_parts;
    uint32_t error;                  /* errno of calls that are refused: EPERM or ENOSYS */
    uint64_t deny[2];                /* bit n: ring operation n is refused */
    uint64_t kill[2];                /* bit n: it ends the VM with SIGSYS; goes before deny */
    uint64_t guest[8];               /* bit n: the shim refuses system call n. A courtesy to correct guests, no boundary */
    uint64_t write_bytes;            /* that may be written to host files, or added to them, in the VM's life; ~0: any number. EDQUOT */
    uint64_t creates;                /* names that may be made in host directories; ~0: any number */
};
#define AFW_RULE_READ 1              /* nothing below may be changed: EROFS */
#define AFW_RULE_DENY 2              /* as a file of somebody else with mode 000: EACCES */
#define AFW_RULE_HIDE 3              /* not there: ENOENT */
struct afw_rule {                    /* a pattern, matched against canonical guest paths; what it matches takes all below it along */
    uint32_t first;                  /* of its parts */
    uint16_t parts;                  /* 0: the root itself */
    uint16_t action;                 /* AFW_RULE_*; the highest that matches counts */
};
#define AFW_PART_NAME 1              /* this very name */
#define AFW_PART_GLOB 2              /* tokens AFW_GLOB_* */
#define AFW_PART_DEPTH 3             /* any number of components, none too */
struct afw_rule_part {
    uint32_t offset;                 /* of its bytes, from the head */
    uint16_t length;
    uint16_t kind;                   /* AFW_PART_* */
};
/* A character: a byte and the UTF-8 continuation bytes (0x80..0xbf) behind it */
#define AFW_GLOB_STAR 1              /* any bytes, none too */
#define AFW_GLOB_ANY 2               /* one character */
#define AFW_GLOB_SET 3               /* 16 bytes follow, a bit for each ASCII character: one of them */
#define AFW_GLOB_NOT 4               /* the same: one character that is none of them */
#define AFW_GLOB_TEXT 5              /* u8 length > 0, bytes: these */

struct afw_queue_index {             /* one cache line each */
    uint32_t value;
    uint32_t reserved[15];
};

struct afw_cell_header {
    uint32_t magic;                  /* AFW_CELL_MAGIC */
    uint32_t abi;                    /* AFW_ABI */
    uint32_t runners;                /* 1..AFW_CELL_RUNNERS; VM i belongs to runner i % runners */
    uint32_t vms;                    /* 1..AFW_CELL_VMS */
    uint64_t config_offset;          /* configuration records */
    uint64_t config_size;
    uint64_t vm_offset;              /* struct afw_vm_shm[vms] */
    uint64_t queue_offset;           /* struct afw_runner_queues[runners] */
    uint64_t site_offset;            /* AFW_SITE_AREA bytes a runner */
    uint64_t rules_offset;           /* AFW_RULES_SIZE bytes a VM */
    uint64_t size;                   /* of the memfd */
    uint32_t state;                  /* cell writes: 0 starting, 1 jailed and serving, 2 failed (text) */
    int32_t worker_eventfd;          /* descriptors as the cell inherited them */
    int32_t runner_eventfd[AFW_CELL_RUNNERS];
    int32_t kvm_fd;
    int32_t windows_fd;              /* memfd: VM i's I/O window at i * AFW_WINDOW_STRIDE */
    uint32_t jail;                   /* cell writes: bit 0 no_new_privs, 1 seccomp, 2 landlock, 3 rlimits, 4 dies with its parent */
    uint32_t parent_pid;             /* the worker's: the cell ends at once if that is not its parent any more */
    char text[512];
};
#define AFW_WINDOW_STRIDE 0x1200000  /* AFW_WINDOW_SIZE and AFW_SIGHT_SIZE rounded up to 2 MiB */

/* What one VM did, for people to see: behind its window (no memory of the guest's), and like that empty when a life begins. The cell only adds to it
 * (sight.c), so that the worker may read at any time; `calls` alone are as of the last AFW_CMD_SIGHT, or of its end. */
#define AFW_SIGHT_AT 0x1010000       /* AFW_WINDOW_SIZE */
#define AFW_SIGHT_SIZE 0x14000
#define AFW_SIGHT_OPS 160
#define AFW_SIGHT_OTHER 0xffff       /* op of the last one: all that came when the others were taken */
#define AFW_SIGHT_FILES 512          /* entries, from AFW_SIGHT_FILES_AT on */
#define AFW_SIGHT_FILES_AT 0x2000
#define AFW_SIGHT_PATH 255           /* bytes of a path that are kept */
#define AFW_RING_OPS 128             /* all of the ring's own operations are below */
struct afw_sight_op {                /* an operation of the ring (enum afw_op) */
    uint32_t op;
    uint32_t errors;
    uint64_t count;
    uint64_t ns;                     /* of the host for it, without the way there and back */
};
struct afw_sight {
    uint32_t n_ops;
    uint32_t n_files;
    uint64_t more_files;             /* opens of files that there was no room for */
    uint64_t reserved[30];
    struct afw_sight_op op[AFW_SIGHT_OPS];
    uint64_t calls[AFW_TABLE_SIZE];  /* as the guest counted them */
};
#define AFW_SIGHT_READ 1             /* mode: opened to be read, written; only to be named (O_PATH). 0: not opened, but looked at or changed otherwise */
#define AFW_SIGHT_WRITE 2
#define AFW_SIGHT_NAME 4
struct afw_sight_file {              /* then its path: canonical; as the program gave it where that could not be told */
    uint32_t size;                   /* of all of it, a multiple of 8 */
    uint32_t count;
    uint32_t length;                 /* of the whole path */
    uint16_t path;                   /* bytes of it that follow */
    uint16_t error;                  /* errno, or 0 */
    uint16_t rule;                   /* of struct afw_rules, the one that refused it: its number + 1; 0: none, or not known */
    uint8_t mode;                    /* AFW_SIGHT_* */
    uint8_t action;                  /* AFW_RULE_* of that rule */
    uint32_t reserved;
};

struct afw_runner_queues {
    struct afw_queue_index event_head;    /* worker consumes */
    struct afw_queue_index event_tail;    /* runner produces */
    struct afw_queue_index command_head;  /* runner consumes */
    struct afw_queue_index command_tail;  /* worker produces */
    struct afw_queue_index inside;        /* runner: its thread's id while a VM has its turn: SIGUSR1 to it ends the turn; 0: it looks by itself */
    struct afw_queue_index event_stalled; /* runner sets to 1 when the event queue is full: worker clears and signals */
    struct afw_event event[AFW_QUEUE];
    struct afw_command command[AFW_QUEUE];
};

/* Configuration: records of struct afw_record + payload, padded to 8 bytes. Numbers are little-endian. */
#define AFW_REC_END 0
#define AFW_REC_MOUNT 1              /* u32 fd (O_PATH, directory or file), u32 flags AFW_MOUNT_*, guest path */
#define AFW_MOUNT_WRITABLE 1
#define AFW_MOUNT_SYSTEM 2           /* only what "other" may read: /etc/shadow stays hidden even from a cell that runs as root */
#define AFW_REC_FILE 2               /* u32 mode, u32 path length, path, content: a synthetic read-only file */
#define AFW_REC_PROGRAM 3            /* guest path of the ELF file to boot */
#define AFW_REC_ARG 4                /* one argv string */
#define AFW_REC_ENV 5                /* one K=V string */
#define AFW_REC_MEMORY 6             /* u64 bytes a VM */
#define AFW_REC_SNAPSHOT_IN 7        /* u32 fd */
#define AFW_REC_SNAPSHOT_OUT 8       /* u32 fd, writable */
#define AFW_REC_SLICE 9              /* u64 ns a time slice (default 5 ms) */
#define AFW_REC_TRACE 10             /* u32 fd (SOCK_SEQPACKET), u32 0, struct afw_trace_copy...: system calls are told there, a struct afw_trace each */
#define AFW_REC_TMP 11               /* u64 bytes the private /tmp may hold, u64 inodes: makes /tmp, /var/tmp, /dev/shm; then, if any,
                                      * guest paths (each ended by a NUL) of further private directories, e.g. the home directory */
#define AFW_REC_SYMLINK 12           /* u32 path length, path, target: a synthetic symbolic link */
#define AFW_REC_KEY 13               /* 32 bytes: goes into the snapshot that is saved; the one to restore must carry the same */
#define AFW_REC_HOT_IN 14            /* u32 fd: pages to populate at each restore, as a rehearsal recorded them (hot.c) */
#define AFW_REC_HOT_OUT 15           /* u32 fd, writable: record them when the first restored VM ends */
#define AFW_REC_ALIAS 16             /* u32 path length, path, path: two guest paths of the same host files (mounts that overlap); for rules */
#define AFW_REC_RECYCLE 17           /* u32 pages: a restored VM that ended is kept for the next RESTORE, which puts it back (recycle.c); of the pages that
                                      * it changed at most so many stay in memory until then */
#define AFW_REC_SAVE 18              /* u32 fd, writable: for AFW_CMD_SAVE */
#define AFW_REC_SAVED 19             /* u32 fd: what a SAVE of another cell of this tenant wrote. RESTORE goes on from there, c bytes of note (/proc/agentfw) behind
                                      * the b bytes of rules */
#define AFW_NOTE_SIZE 1024           /* of a note at most */
struct afw_record {
    uint32_t type;
    uint32_t size;                   /* of the payload */
};

/* Head of a snapshot file. Page data is page-aligned; extents are mapped MAP_PRIVATE, everything else is zero. */
#define AFW_SNAPSHOT_MAGIC 0x31504e5357464141
#define AFW_SNAPSHOT_FORMAT 1
#define AFW_SAVED_MAGIC 0x3144564153574641   /* of AFW_CMD_SAVE: private state goes on behind that of a snapshot (struct saved_vm in machine.h) */
#define AFW_SNAPSHOT_EXTENTS 256
struct afw_snapshot_extent {
    uint64_t gpa;
    uint64_t size;
    uint64_t offset;                 /* in the file */
};
struct afw_snapshot_header {
    uint64_t magic;
    uint32_t format;
    uint32_t abi;                    /* AFW_ABI */
    uint64_t file_size;
    uint8_t shim_sha[32];            /* SHA-256 of the blob, computed by the cell */
    uint8_t key[32];                 /* worker's key of what the template is made of */
    char cpu_vendor[16];             /* of the machine that made it */
    uint64_t xcr0;
    uint64_t memory_limit;
    uint64_t mmap_base;
    uint64_t commit_chunks[8];       /* bitmap of committed chunks (512 chunks of 32 MiB = 16 GiB) */
    uint32_t n_extents;
    uint32_t vcpu_size;              /* bytes of the cell's private state (vCPU, protections, modules) at vcpu_offset */
    uint64_t vcpu_offset;
    uint64_t crc;                    /* of header (this field 0), vCPU state: accidental damage is refused */
    uint64_t sites;                  /* rewritten in the template */
    uint64_t sites_refused;
    uint64_t site_next;              /* next free byte of the stub area */
    uint64_t needs[4];               /* CPU features that code in the snapshot may use: bits as in needs.h */
    struct afw_snapshot_extent extent[AFW_SNAPSHOT_EXTENTS];
};

/* ---- strace (tracing.c): a message a call's beginning, one its end, one a signal that is delivered ---- */
#define AFW_TRACE_ENTRY 1
#define AFW_TRACE_LEAVE 2
#define AFW_TRACE_SIGNAL 3            /* number: the signal; result: si_code; arg: words of its siginfo, at 16 and 24 */
struct afw_trace {
    uint32_t vm;
    uint32_t kind;
    uint32_t tid;                    /* 0: not known */
    uint32_t host;                   /* LEAVE: 1 if the call went to the host by the ring */
    uint64_t number;                 /* ~0: the call was rt_sigreturn, or a thread's first steps */
    uint64_t result;
    uint64_t ns;                     /* CLOCK_MONOTONIC */
    uint64_t cpu_ns;                 /* what the VM had used when it was entered last */
    uint64_t arg[6];
    uint32_t lost;                   /* messages before this one that the worker did not take in time */
    uint32_t chunks;                 /* that follow */
};
struct afw_trace_chunk {             /* then its bytes, unpadded */
    uint16_t place;                  /* an argument's number; or AFW_TRACE_*, from which on pieces of vectors are counted */
    uint16_t error;                  /* EFAULT: what comes after these bytes cannot be read */
    uint32_t size;
};
#define AFW_TRACE_PIECES 32          /* argument n's vector: n times this (n > 0), then its pieces. sendmsg and recvmsg: n = 1 */
#define AFW_TRACE_NAME 31            /* msg_name */
/* What to copy for a call */
struct afw_trace_copy {
    uint32_t number;
    uint8_t leave;                   /* 1: when it has ended without an error; 0: when it begins */
    uint8_t kind;
    uint8_t arg;                     /* the pointer */
    uint8_t size;                    /* the argument that tells how many */
    uint32_t limit;                  /* bytes at most */
    uint32_t unit;                   /* bytes of an element, at least 1 */
};
#define AFW_COPY_TEXT 1              /* up to a NUL */
#define AFW_COPY_BYTES 2             /* limit bytes */
#define AFW_COPY_COUNTED 3           /* as many elements as argument `size` says */
#define AFW_COPY_RESULT 4            /* as the result says */
#define AFW_COPY_LENGTH 5            /* bytes as the u32 says that argument `size` points to */
#define AFW_COPY_VECTOR 6            /* struct iovec, argument `size` of them */
#define AFW_COPY_MESSAGE 7           /* struct msghdr */
#endif
