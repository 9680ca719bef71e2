/* What the cell's files offer each other.
 *
 *   main.c     arguments, configuration records, jail, runner threads
 *   jail.c     no_new_privs, rlimits, Landlock, seccomp, parent-death
 *   runner.c   a runner's loop: commands, runnable VMs in turn, parked VMs' deadlines, time slices
 *   share.c    CPU time: whom it is charged to, limits, whose turn is next
 *   vm.c       create, enter, exits, kill; boot.c: tables, segments, cpuid, MSRs; elf.c: images, stack, auxv
 *   memory.c   host backing, memslots, commit/zero/protect, checked access to guest memory
 *   ring.c     consuming the SQ, completing, dispatch to the op's file; calls.c: system calls that the shim hands on, filecalls.c: those about files
 *   flow.c     FLOW_OPEN / FLOW_KICK to events
 *   fault.c    exceptions and EFAULT to upcalls or reports
 *   snapshot.c save, restore.c check, restore; islands.c protections of a restored VM; recycle.c: a VM that ended becomes one just restored
 *   sites.c    asking for site lists, writing stubs and jumps, lazy patching
 *   sight.c    what it did, for people
 *   rules.c    what a VM may not do: ring operations, paths; filerules.c: the latter, where paths become places
 *   vfs.c      mount table, path walk, handles; tmpfs.c: private /tmp; synth.c: synthetic files, /proc, /dev; fileops.c: ring operations
 *
 * Rules: a VM is touched only by its runner. Guest memory is read and written through the functions below or by system calls that
 * answer EFAULT (preadv into guest memory); no pointer into it is kept. Every function returns 0 or -errno unless it says otherwise.
 */
#ifndef AFW_VMM_H
#define AFW_VMM_H
#include <stddef.h>
#include <stdint.h>
#include <linux/kvm.h>
#include "abi.h"
#include "cell.h"

struct runner;
struct vfs;                          /* vfs.c: one a VM */
struct sites;                        /* sites.c: one a VM */
struct rules;                        /* rules.c: what one VM may not do */
struct sight;

struct vm {
    uint32_t id;                     /* in the cell */
    struct runner *runner;
    int vm_fd, vcpu_fd;
    struct kvm_run *run;             /* mmapped; regs through KVM_CAP_SYNC_REGS */
    uint8_t *mem;                    /* host address of GPA 0; AFW_SPACE_END bytes of address space */
    uint64_t chunks[8];              /* committed chunks */
    struct afw_ctl *ctl;             /* = mem + AFW_CTL: hostile */
    struct afw_window *window;       /* hostile */
    struct afw_vm_shm *shm;          /* the worker's view of this VM */
    struct vfs *vfs;
    struct sites *sites;
    struct rules *rules;             /* 0: none */
    uint64_t memory_limit;
    char *note;                      /* /proc/agentfw of a forked VM, or 0 */
    struct afw_sight *shared_sight;  /* for the worker; 0: nobody looks */
    struct sight *sight;             /* sight.c */
};

/* memory.c */
/* Copy with bounds (committed memory only) and fault checks: 0 or -EFAULT. */
int guest_read(struct vm *vm, void *out, uint64_t gva, uint64_t len);
int guest_write(struct vm *vm, uint64_t gva, const void *data, uint64_t len);
/* Host range for a system call that answers EFAULT by itself (preadv, pwritev); 0 if not inside committed guest memory.
 * Never dereference it. */
void *guest_range(struct vm *vm, uint64_t gva, uint64_t len);
/* Copy of a ring path: NUL-terminated into out (at least 4096 bytes). -ENAMETOOLONG, -EINVAL (NUL inside), -EFAULT, -ENOENT (empty) */
int guest_path(struct vm *vm, char *out, uint64_t gva, uint64_t len);
int memory_commit(struct vm *vm, uint64_t gva, uint64_t len);       /* -ENOMEM */
int memory_zero(struct vm *vm, uint64_t gva, uint64_t len);
int memory_protect(struct vm *vm, uint64_t gva, uint64_t len, int prot);
/* Private mappings of files read as the files are now; what else is there stays */
int memory_file_again(struct vm *vm, uint64_t gva, uint64_t len);
/* One mapping of a file, [gva, gva + len), becomes one elsewhere, of new_len >= len bytes. -EFAULT: it is not one; -ENOMEM: it cannot grow */
int memory_remap(struct vm *vm, uint64_t gva, uint64_t len, uint64_t to, uint64_t new_len);
struct tnode;
/* Map a host file over guest memory (page-aligned, committed, not the system area). Remembers module path for fault reports. `file`: it is
 * one of the private /tmp's (vfs_mapped() once for each piece), or 0. */
enum map_how { MAP_OWN, MAP_READ, MAP_BOTH };    /* private; shared, and never to be written to; shared */
int memory_map_file(struct vm *vm, int host_fd, uint64_t gva, uint64_t len, int prot, enum map_how how, uint64_t offset, const char *guest_name,
                    struct tnode *file);
/* Module mapped at gva, for reports: 1 and fills the rest, or 0. */
int memory_module(struct vm *vm, uint64_t gva, char name[256], uint64_t *map_start, uint64_t *map_offset);
/* The lowest file mapping that starts at gva or above, for /proc/self/maps: 1 and fills the rest, or 0. */
int memory_module_next(struct vm *vm, uint64_t gva, char name[256], uint64_t *start, uint64_t *end, uint64_t *offset);
int memory_writable(struct vm *vm, uint64_t gva);    /* as the host protects it; for /proc/self/maps */
/* Text pages are host-read-only when the guest asked so: write them anyhow (patching). */
int memory_poke(struct vm *vm, uint64_t gva, const void *data, uint64_t len);

/* vfs.c / fileops.c */
struct vfs *vfs_new(struct vm *vm);  /* from the cell's parsed configuration (vfs_configure) */
void vfs_free(struct vfs *vfs);      /* closes every handle, drops the private /tmp */
void ahead_drop(struct vfs *vfs);    /* what is known of a directory that may be looked at further */
void kept_void(struct vfs *vfs);     /* what the guest keeps of the host's files is not good any more */
void kept_wipe(struct vm *vm);       /* and it is not there either, for whoever gets its memory */
int vfs_configure(uint32_t record_type, const uint8_t *payload, uint32_t size);   /* MOUNT, FILE, SYMLINK, TMP, ALIAS; for /proc also PROGRAM, ARG, ENV, MEMORY. Others: 0. Before the jail */
int vfs_landlock_paths(void (*allow)(int fd, int writable, void *arg), void *arg);   /* each mount, for jail.c */
int vfs_open_handles(struct vfs *vfs);                               /* number; READY refuses if not 0 */
/* AFW_OP_OPEN .. AFW_OP_COPY and AFW_OP_MAPFILE; result for the CQE */
int64_t file_op(struct vm *vm, const struct afw_sqe *sqe);
/* A piece of a private file is mapped, is mapped no more: what is mapped takes memory, named or not */
void vfs_mapped(struct vfs *vfs, struct tnode *file);
void vfs_unmapped(struct vfs *vfs, struct tnode *file);
/* Makes r the VM's rules, after adding what the symlinks of its file system make necessary; -errno: it has none. r stays the caller's */
int vfs_rules(struct vfs *vfs, struct rules *r);
/* Host descriptor (O_RDONLY, caller closes) of a guest path, for the ELF loader. -errno */
int vfs_host_open(struct vfs *vfs, const char *guest_path);

/* savefs.c: the private tree, open handles and the current directory of a VM as bytes, and back */
struct buffer {
    uint8_t *data;
    size_t size, room;
};
int buffer_add(struct buffer *b, const void *data, size_t n);        /* -ENOMEM */
int vfs_save(struct vfs *vfs, struct buffer *out, uint64_t *data_size);   /* numbers files from 0 and gives them places in the data that follows */
int vfs_file_number(const struct tnode *file);
/* Writes files' content from *at on into fd at base + their place, about `budget` bytes; *at = data_size: done */
int vfs_save_data(struct vfs *vfs, int fd, uint64_t base, uint64_t *at, uint64_t budget);
int vfs_load(struct vfs *vfs, const uint8_t *p, uint64_t size, int fd, uint64_t data, uint64_t data_size);
struct tnode *vfs_file(struct vfs *vfs, uint32_t number);            /* until vfs_loaded() */
int vfs_host_fd(struct vfs *vfs, struct tnode *file);                /* its memfd, for mmap; not to be closed */
int vfs_loaded(struct vfs *vfs);     /* when there are rules: opens the host's files again; what cannot be opened is a handle that gives EBADF */

/* sites.c */
struct sites *sites_new(struct vm *vm);
void sites_free(struct sites *sites);
/* Code became executable: by file map (kind FILE) or mprotect/mmap of anonymous memory (MEMORY). Asks the worker; never blocks. */
void sites_code(struct vm *vm, uint32_t kind, uint64_t gva, uint64_t len);
void sites_backstop(struct vm *vm);  /* at an exit: ctl.backstop_rip moved; asks for a lazy patch at the second hit */
void sites_answer(struct vm *vm, uint64_t request, uint64_t count);  /* AFW_CMD_SITES; vm = 0: that VM is gone, the area is free again */
void sites_unmapped(struct vm *vm, uint64_t gva, uint64_t len);      /* that range is something else now: forget pending requests in it */
int sites_busy(struct vm *vm);        /* 1: an answer is outstanding (a template that waits for it has its sites in the snapshot) */
int sites_files_busy(struct vm *vm);  /* the same, of files' code only */
void sites_save(struct vm *vm, struct afw_snapshot_header *h);
void sites_load(struct vm *vm, const struct afw_snapshot_header *h);

/* sight.c */
struct sight_what {
    uint8_t mode, action;            /* AFW_SIGHT_*, AFW_RULE_* */
    uint16_t error;
};
/* A file was opened, or refused; `rule` is asked which it was, if it is new */
void sight_file(struct vm *vm, const char *path, struct sight_what what, uint16_t (*rule)(struct vm *vm, const char *path, int action));
void sight_free(struct vm *vm);

/* hot.c */
void hot_opened(struct vm *vm, const char *path, uint64_t size);     /* a guest opened a file; its canonical path */

/* runner.c */
/* Space for an event? 0 if queued, -EAGAIN: the queue is full, try again after the worker drained it. */
int runner_event(struct runner *r, const struct afw_event *e);
uint8_t *runner_site_area(struct runner *r);                         /* AFW_SITE_AREA bytes */
#endif
