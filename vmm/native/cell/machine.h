/* The private side of vmm.h: what main, runner, vm, boot, elf, memory, ring, flow, fault, snapshot, clock share among
 * themselves. vfs.c, tmpfs.c, synth.c, fileops.c and sites.c need vmm.h only.
 */
#ifndef AFW_MACHINE_H
#define AFW_MACHINE_H
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <time.h>
#include "vmm.h"

#define PAGE 4096ull
#define HUGE_PAGE (2ull << 20)
#ifndef PAGEMAP_SCAN                             /* Linux 6.7, linux/fs.h */
struct page_region {
    uint64_t start, end, categories;
};
struct pm_scan_arg {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)
#define PAGE_IS_FILE (1 << 2)
#define PAGE_IS_PRESENT (1 << 3)
#define PAGE_IS_SWAPPED (1 << 4)
#define PAGE_IS_PFNZERO (1 << 5)
#endif
#define PAGES_IN_SPACE (AFW_SPACE_END / PAGE)
#define CHUNKS (AFW_SPACE_END / AFW_CHUNK)
#define BOOT_COMMIT (2ull * AFW_CHUNK)          /* always given, whatever the limit says */
#define STACK_SIZE (8ull << 20)
#define BRK_SIZE (16ull << 20)
#define GUARD_SIZE (64ull << 10)
#define SLOT_WINDOW 0
#define SLOT_FIRST 1

static inline uint64_t page_down(uint64_t v) { return v & ~(PAGE - 1); }
static inline uint64_t page_up(uint64_t v) { return (v + PAGE - 1) & ~(PAGE - 1); }
/* [a, a+n) lies in [lo, hi), without wrapping */
static inline bool inside(uint64_t a, uint64_t n, uint64_t lo, uint64_t hi)
{
    return a >= lo && a <= hi && n <= hi - a;
}

/* ---- main.c, config.c ---- */
struct config {
    const char *program;
    char **argv, **env;
    uint32_t argc, envc;
    uint64_t memory, slice_ns;
    int snapshot_in, snapshot_out, hot_out, save, saved;   /* -1: none */
    bool has_key;
    uint32_t recycle;                            /* pages kept in memory of a VM that ended; 0: VMs are not kept */
    uint8_t key[32];
};

/* ---- cpu.c: what guests may know of the CPU ---- */
struct cpu_model {
    uint64_t xcr0;
    uint64_t xsave_size;
    uint64_t needs[4];                           /* needs.h */
    char vendor[16];
    struct afw_cpuid_table table;
    struct {
        struct kvm_cpuid2 head;
        struct kvm_cpuid_entry2 entry[AFW_CPUID_MAX];
    } kvm;
};
int cpu_setup(struct cpu_model *cpu, int kvm_fd, char *error, size_t size);
/* Name of a feature in `needs` that this host has not, or 0 */
const char *cpu_missing(const struct cpu_model *cpu, const uint64_t needs[4]);

struct vcpu_state;
struct saved_protection;
struct saved_mapping;
struct saved_vm;
struct snapshot {                                /* restore.c: the parsed and checked file */
    struct afw_snapshot_header h;
    uint8_t *state;
    const struct vcpu_state *vcpu;
    const struct saved_protection *protection;
    const struct saved_mapping *mapping;
    const char **name;                           /* of each mapping, interned */
    struct mapping *map;                         /* of a VM of it; 0: some are private files' */
    int fd;
    const struct saved_vm *vm;                   /* of what SAVE wrote; 0: a template's snapshot */
    const struct afw_snapshot_extent *base;      /* its n_bases */
    const uint8_t *vfs;                          /* its vfs_size bytes */
};

struct cell {
    struct afw_cell_header *header;              /* written by the worker before the start; read once */
    struct afw_vm_shm *shm;
    struct afw_runner_queues *queues;
    uint8_t *site_area;
    struct config config;
    struct cpu_model cpu;
    uint32_t vms, runners;
    int kvm_fd, windows_fd, worker_eventfd;
    int pagemap_fd;                              /* of this process, for hot.c and recycle.c; -1: not needed */
    int runner_eventfd[AFW_CELL_RUNNERS];
    size_t run_size;
    uint32_t max_slots;
    uint8_t shim_sha[32];
    struct afw_shim_header shim;                 /* the blob's own, checked */
    const uint8_t *rules;                        /* AFW_RULES_SIZE bytes a VM, written by the worker */
};
extern struct cell cell;
int config_parse(const uint8_t *records, uint64_t size, char *error, size_t error_size);
/* Descriptors that the configuration names, for closing all others */
void config_fds(const uint8_t *records, uint64_t size, void (*keep)(int fd));

/* ---- blob.c ---- */
extern const uint8_t shim_blob[], shim_blob_end[];
int blob_check(struct afw_shim_header *out, char *error, size_t size);

/* ---- digest.c ---- */
uint64_t crc64(uint64_t crc, const void *data, size_t n);   /* ECMA-182, reflected; start with 0 */
void sha256(uint8_t out[32], const void *data, size_t n);

/* ---- jail.c: before the threads, after them ---- */
/* First what threads inherit (no_new_privs, Landlock), then, when all threads are there, rlimits and seccomp for all of them. */
int jail_early(char *error, size_t size);
int jail_late(char *error, size_t size);

/* ---- share.c: CPU time. Rates are millionths of a core ---- */
#define SHARE_LEAST 1000
#define SHARE_MOST (AFW_CELL_RUNNERS * 1000000)
struct credit {
    uint32_t rate;                               /* 0: no limit */
    int64_t ns;
    uint64_t at;                                 /* up to when it was reckoned */
};
struct runner;
struct machine;
void share_cell(uint64_t rate);                  /* of all VMs together; 0: no limit */
void share_limit(struct machine *m, uint64_t rate, uint64_t cpu_ns);   /* cpu_ns: from now on, in its life; 0: no limit */
void share_charge(struct runner *r, struct machine *m);   /* what the thread has used since the last call; m: for whom, 0: the cell only */
/* 0: it may run; else the time from which on it may. *now: clock_mono(), or 0 and it is looked up if there is a limit at all */
uint64_t share_wait(uint64_t *now);
uint64_t share_wait_vm(struct machine *m, uint64_t *now);
bool share_before(struct runner *r, struct machine *m, const struct machine *other);   /* m's turn comes before other's (0: none) */
void share_turn(struct runner *r, const struct machine *m);   /* m runs now */

/* ---- vm.c ---- */
enum run_state { RUN_FREE, RUN_READY, RUN_PARKED, RUN_STALLED, RUN_SAVING, RUN_KEPT };   /* KEPT: ended, recycle.c may make a new one of it */
/* Where a VM that is not running stands: whether it can be saved there (save.c) */
enum stands { STANDS_ELSEWHERE, STANDS_USER, STANDS_DOORBELL };
struct mapping {                                 /* a host file in guest memory */
    uint64_t start, end, offset;
    const char *name;                            /* interned, never freed */
    bool shared, writable;
    bool refused;                                /* shared, of a file that was not opened for writing */
    struct tnode *file;                          /* of the private /tmp: kept, and charged, while it is mapped; or 0 */
};
struct machine {
    struct vm vm;                                /* first: machine_of() */
    enum run_state state;
    bool template, restored;
    bool slice_over;                             /* look whether an upcall is due before the next entry */
    bool hot_due;                                /* hot pages of a job are not populated yet */
    bool roomy;                                  /* what is committed from now on is in huge pages */
    uint64_t code_opened;                        /* bytes of code, as far as hot.c counts them, */
    uint32_t code_sets;                          /* and sets of pages that it has for that */
    bool soon;                                   /* AFW_RESTORE_SOON: they are to be as it is restored */
    bool islands;                                /* pages with PAGE_ISLAND may be left */
    bool asleep;                                 /* AFW_RESTORE_LATER, and not entered yet: no page is populated */
    bool exit_owed;                              /* ended, but the event queue was full */
    bool ruled, rules_owed;                      /* has got its rules, or will get none; AFW_EV_RULES is due, but the queue was full */
    bool stands_owed, sight_owed;                /* so are AFW_EV_STANDS, AFW_EV_SIGHT */
    bool io_pending;                             /* last exit was KVM_EXIT_IO and KVM has not completed it yet */
    bool sites_wait, sites_given_up;             /* stalled in READY until the worker has answered, but not for ever */
    uint64_t deadline_sites;
    uint64_t deadline;                           /* of a parked VM */
    uint32_t sq_head, cq_tail;                   /* our copies; the guest's are never read back */
    uint32_t next_slot;
    uint64_t committed;                          /* bytes */
    uint8_t *prot;                               /* a byte a page: host protection ^ (PROT_READ|PROT_WRITE), and PAGE_*; sparse */
    uint32_t edges, drawn;                       /* pieces.c */
    struct mapping *map;
    uint32_t maps, maps_room;                    /* room 0: a list of the snapshot's, not this VM's own */
    uint64_t cpu_ns;                             /* used by this VM, and for it */
    uint64_t cpu_end, cpu_allowed;               /* where that ends the VM; what it was given */
    uint64_t turns_ns;                           /* cpu_ns as turns are given by it */
    struct credit credit;
    uint64_t clock_tsc_base, clock_mult, clock_mono_base, clock_real_offset;    /* as last written to ctl */
    uint64_t tsc_delta;                          /* guest TSC - host TSC */
    uint64_t command_ns;                         /* when RESTORE came, for restore_ns */
    struct afw_event owed;                       /* with exit_owed */
    bool spoiled;                                /* something is not as this struct says: never recycled */
    bool clean;                                  /* KEPT: its memory is put back already */
    uint32_t seams;                              /* pages with PAGE_SEAM */
    uint64_t reset_ns, private_pages;            /* as in struct afw_vm_shm */
    enum stands stands;
    struct saving *saving;                       /* save.c; 0: nobody has asked */
    struct tracing *tracing;                     /* tracing.c; 0: nobody has asked */
    bool forked;                                 /* restored from what SAVE wrote */
};
static inline struct machine *machine_of(struct vm *vm) { return (struct machine *)vm; }
static inline bool vm_lives(const struct machine *m) { return m->state != RUN_FREE && m->state != RUN_KEPT; }

void vm_prepare(struct runner *r);               /* before the first is opened */
int vm_open(struct machine *m);                  /* VM, vCPU, address space, window; no chunk is committed yet */
int vm_start(struct machine *m);                 /* the last step of boot and restore: segments, MSRs, cpuid */
void vm_forget(struct machine *m);               /* files, rules, sites: all that recycle.c makes anew in a VM */
void vm_close(struct machine *m);                /* everything; the machine is RUN_FREE */
void vm_run(struct machine *m);                  /* until it parks, stalls, ends, or its runner is wanted elsewhere */
void vm_end(struct machine *m, uint32_t kind, int code, int signal, const char *text, ...) __attribute__((format(printf, 5, 6)));
void vm_fail(struct machine *m, const char *text, ...) __attribute__((format(printf, 2, 3)));   /* AFW_EV_ERROR */
int vm_flush(struct machine *m);                 /* enter with immediate_exit: pending I/O is completed, registers are final */
void vm_counters(struct machine *m);
bool rip_in_shim(uint64_t rip);

/* ---- boot.c ---- */
int boot(struct machine *m);                     /* AFW_CMD_BOOT on a fresh machine */
void boot_tables(struct machine *m);
int boot_vcpu(struct machine *m, uint64_t fs_base, uint64_t gs_base);
int boot_msrs(struct machine *m);                /* and the TSC: of boot_vcpu(), what a vCPU that ran needs again */
void boot_ctl(struct machine *m, uint32_t pid);  /* fields that are new in each VM: random bytes, clock, pid */
void boot_random(struct afw_ctl *ctl);

/* ---- elf.c ---- */
struct image {
    uint64_t base, entry, phdr, phnum, lo, hi;   /* guest addresses; [lo, hi) what it takes */
    char interp[256];                            /* "" if none */
};
struct loaded {
    uint64_t entry, end;                         /* where to start, first page after all images */
    struct image image;
    uint64_t interp_base;
};
int elf_load(struct machine *m, struct loaded *out, char *error, size_t size);
int elf_stack(struct machine *m, const struct loaded *l, uint64_t lo, uint64_t hi, uint64_t *rsp);

/* ---- memory.c, guard.c ---- */
void guard_install(void);
uint64_t guarded_copy(void *to, const void *from, uint64_t n);   /* -> bytes not copied */
int memory_setup(void);
void memory_reserve(struct machine *m);
void memory_release(struct machine *m);
bool memory_committed(struct machine *m, uint64_t gva, uint64_t len);
/* Chunks [from, to), none committed yet: host memory, then one memslot. Between the two nothing walks KVM's MMU. */
int memory_back(struct machine *m, uint32_t from, uint32_t to);
int memory_slot(struct machine *m, uint32_t from, uint32_t to);
int remap_failed(struct machine *m, uint64_t gva);   /* -errno; the process ends if there is a hole now */
int host_prot(int prot);
int mapping_add(struct machine *m, const struct mapping *x);
void mapping_share(struct machine *m, const struct mapping *map, uint32_t n);   /* its mappings are these, in memory that stays as it is */
struct mapping *mapping_at(struct machine *m, uint64_t gva);   /* 0: none is there */
void mapping_cut(struct machine *m, uint64_t gva, uint64_t len);
const char *intern(const char *name);

/* ---- pieces.c ---- */
#define PAGE_EDGE 0x80                           /* in prot[]: a piece may begin at this page */
#define PAGE_NEW 0x40                            /* it has another mapping than at the restore */
#define PAGE_SEAM 0x20                           /* a piece of a former life of this VM may begin here */
#define PAGE_ISLAND 0x10                         /* the host's mapping may be read-only though the guest may write (islands.c) */
#define PAGE_PROT(byte) (((byte) & 3) ^ (PROT_READ | PROT_WRITE))
void pieces_setup(void);
/* Before the host's mapping of whole pages changes: -ENOMEM if the VM would be in too many pieces. fresh: by one new mapping */
int pieces_room(struct machine *m, uint64_t gva, uint64_t len, bool fresh);
/* After: records host protection (PROT_*) and edges */
void pieces_done(struct machine *m, uint64_t gva, uint64_t len, int prot, bool fresh);
void pieces_release(struct machine *m);
int pieces_as(struct machine *m, uint32_t edges);       /* prot[] is written, with so many edges: -ENOMEM as pieces_room() */
void pieces_reset(struct machine *m, uint32_t edges);   /* prot[] is another now, with so many edges */

/* ---- islands.c ---- */
bool islands_known(void);
int islands_protect(struct machine *m, const struct snapshot *s);   /* memory is mapped, readable and writable: as the snapshot says */
void islands_again(struct machine *m);           /* prot[] is as after that again */
int islands_open(struct machine *m, uint64_t gva, uint64_t len);   /* the host may write there now, where the guest may */
bool islands_refused(struct machine *m);         /* KVM_RUN said EFAULT: true if that may have been for an island; else it is the guest's fault */
bool islands_written(struct machine *m);         /* KVM_EXIT_MMIO: the same, and it is done */

/* ---- sight.c ---- */
uint64_t sight_op(struct machine *m, uint32_t op, int64_t result, uint64_t began);    /* one that began at that TSC is done; -> the TSC now */
void sight_calls(struct machine *m);             /* the guest's counts, for the worker */
void sight_anew(struct machine *m);

/* ---- ring.c ---- */
enum ring_result { RING_DONE, RING_STALLED, RING_ENDED };
enum ring_result ring_consume(struct machine *m);
bool ring_has_answers(struct machine *m);

/* ---- flow.c ---- */
int64_t flow_open(struct machine *m, const struct afw_sqe *e);
int64_t flow_kick(struct machine *m, const struct afw_sqe *e);

/* ---- fault.c ---- */
void fault_exception(struct machine *m);         /* AFW_PORT_EXC */
enum access { ACCESS_IO, ACCESS_NOWHERE, ACCESS_REFUSED };
void fault_access(struct machine *m, enum access how, uint64_t address);   /* a port; MMIO, with its address; KVM_RUN said EFAULT */
void fault_other(struct machine *m);             /* shutdown, internal error, unknown exit */
void upcall(struct machine *m, uint32_t kind, uint32_t signal, uint64_t code, uint64_t addr, const struct kvm_regs *at);

/* ---- operand.c ---- */
/* The address for which the instruction at RIP was refused by the host's protection of guest memory. false: it cannot be said */
bool operand_refused(struct machine *m, const struct kvm_regs *r, uint64_t *address);

/* ---- snapshot.c, restore.c ---- */
int64_t snapshot_save(struct machine *m);        /* -> bytes, -errno */
/* The parts of it, for save.c. running: keep the extended state whole, and say which mappings are shared */
int snapshot_state(struct machine *m, struct buffer *out, bool running);
/* Those in committed chunks that are not zero, and not of shared files; base: nor as in that snapshot, of which the VM was made */
int snapshot_pages(struct machine *m, uint64_t gpa, uint64_t end, struct buffer *runs, const struct snapshot *base);
int snapshot_head(struct machine *m, struct afw_snapshot_header *h, struct buffer *runs); /* all fields but sizes, offsets and checksum */
int snapshot_unlock(struct machine *m, bool on);  /* PROT_NONE pages can be read for the while; off: as it was */
int snapshot_write(int fd, const void *data, size_t n, uint64_t offset);
/* -> bytes done, a page without content counts as done; -errno */
int64_t snapshot_copy(struct machine *m, int fd, uint64_t gpa, uint64_t size, uint64_t offset);
int snapshot_restore(struct machine *m, uint32_t pid, char *error, size_t size);
int snapshot_go_on(struct machine *m, char *error, size_t size);   /* the last step of a forked VM, when it has its rules */
/* Private state in the snapshot, at vcpu_offset: this, then protections, then mappings, then names. */
struct vcpu_state {
    struct kvm_regs regs;
    uint64_t fs_base, gs_base;
    uint32_t sq_head, cq_tail;
    uint32_t n_protections, n_mappings;
    uint64_t names_size;
    uint8_t xsave[4096];
};
struct saved_protection { uint64_t start, end; uint32_t prot, reserved; };
#define SAVED_SHARED 1
#define SAVED_WRITABLE 2
#define SAVED_REFUSED 4
#define SAVED_FILE 8                             /* flags / this - 1: number of the private file that is mapped; 0: none */
struct saved_mapping { uint64_t start, end, offset; uint32_t name, flags; };
/* Behind the names in what SAVE wrote, at a multiple of 8: this, then n_bases extents of the template's snapshot, then what vfs_save() made */
#define SAVED_BASES 4096
struct saved_vm {
    uint64_t base_crc;                           /* of that snapshot: its head's crc */
    uint64_t n_bases;
    uint64_t mono;                               /* what the guest's clock said at the end */
    uint64_t data, data_size;                    /* content of private files, in the file */
    uint64_t write_bytes, creates;               /* left of what rules allow */
    uint64_t vfs_size;
};

/* ---- save.c ---- */
void save_ask(struct machine *m);                /* AFW_CMD_SAVE */
void save_look(struct machine *m);               /* between two turns: begins if the VM stands where it can */
void save_step(struct machine *m);               /* RUN_SAVING: a part of the work, a few milliseconds */
void save_drop(struct machine *m);               /* the VM ends */
bool save_tell(struct machine *m, uint64_t now, uint64_t *deadline);   /* answers, and gives up in time. -> true: *deadline is to be kept */

/* ---- recycle.c ---- */
#define RECYCLE_SEAMS 128                        /* of a VM; beyond that it is made anew */
void recycle_setup(void);                        /* before the jail */
void recycle_note(struct machine *m, const struct snapshot *s);   /* a VM just restored: what all are to be like. Called for each */
bool recycle_keep(struct machine *m);            /* instead of vm_close() at its end; false: it is no candidate */
void recycle_idle(struct machine *m);            /* KEPT for a while: shrinks to what a new one has */
/* Memory and vCPU of a KEPT one are as a new one's after the restore; -errno: they are not, only vm_close() may follow */
int recycle(struct machine *m, const struct snapshot *s);
const struct snapshot *snapshot_base(void);      /* restore.c: the template's, also if VMs go on from a saved one; 0: none that is good */
uint64_t snapshot_source(const struct snapshot *s, uint64_t gpa, uint64_t *to);   /* restore.c */
const struct snapshot *snapshot_of_cell(void);   /* restore.c; 0: none that is good */
int recycle_check(struct machine *m);            /* then: is the vCPU really as a new one's? */
int snapshot_again(struct machine *m, uint32_t pid);   /* restore.c: snapshot_restore() into a KEPT one */

/* ---- huge.c ---- */
bool huge_always(void);                          /* the host gives huge pages to whoever does not refuse them. Before the jail */
void huge_pages(struct machine *m, const struct snapshot *s);   /* before there are memslots */

/* ---- hot.c ---- */
void hot_load(int fd);                           /* before the jail */
bool hot_writes(uint64_t page, uint64_t end);    /* the rehearsal did, to some of these; true if there was none */
void hot_restored(struct machine *m, const uint64_t *chunks);   /* before there are memslots: KVM need not be told. chunks: those that are backed */
void hot_job(struct machine *m, bool certain);   /* its job is there, or looked for; or it wakes up */
void hot_parked(struct machine *m);              /* in a rehearsal: the VM waits */
void hot_record(struct machine *m);              /* and ends; before it is closed */

/* ---- tracing.c ---- */
int trace_configure(const uint8_t *record, uint32_t size);
int trace_begin(struct machine *m);              /* a VM before it runs; not one that will be a template */
void trace_end(struct machine *m);
void trace_call(struct machine *m, bool leave);  /* AFW_PORT_ENTRY, AFW_PORT_LEAVE */
void trace_delivery(struct machine *m);          /* AFW_PORT_SIGNAL */
void trace_signal(struct machine *m, int signal, uint64_t code, uint64_t a, uint64_t b);   /* nothing if the VM is not traced */
void trace_ring(struct machine *m);              /* a doorbell */

/* ---- clock.c ---- */
void clock_setup(uint32_t tsc_khz);
void clock_refresh(struct machine *m);           /* writes ctl's clock fields */
uint64_t clock_guest(const struct machine *m);   /* what the guest says by them now */
uint64_t clock_mono(void);
uint64_t clock_ticks(uint64_t ticks);            /* of the TSC: ns */

/* ---- runner.c ---- */
struct runner {
    uint32_t index;
    pthread_t thread;
    uint32_t tid;
    struct afw_runner_queues *q;
    uint32_t event_tail, command_head;
    bool notify;                                 /* events were queued since the worker was last signalled */
    timer_t timer;
    bool armed;
    uint64_t tick;                               /* clock_mono() at which the timer is due next, while it is armed */
    uint64_t slice;                              /* ns: as configured, or longer where that is too short to get anywhere */
    uint32_t turn;                               /* VM that ran last */
    uint64_t cpu_mark;                           /* the thread's CPU time that has been charged */
    uint64_t turns_ns;                           /* turns_ns of who ran last: nobody who waits has much less */
    struct machine *machine[AFW_CELL_VMS];       /* by VM id; 0: free */
    int shell[AFW_CELL_VMS];                     /* a VM of KVM's that nothing is in yet: its descriptor + 1; or 0 */
    bool quit;
};
int runner_start(struct runner *r, uint32_t index);
void runners_release(void);                      /* the jail is closed: begin */
void runners_await(void);                        /* all have done what the jail will forbid */
void runner_notify(struct runner *r);
bool runner_wanted(struct runner *r);            /* commands wait, or the slice is over */

/* ---- tick.c ---- */
void tick_handle(void);              /* of the process, before the first runner */
void tick_make(struct runner *r);
void tick_arm(struct runner *r, bool on);
void tick_turn(struct runner *r, uint64_t deadline);
void tick_by(struct runner *r, uint64_t deadline);   /* during a turn: it ends then, if it would not have before */
void tick_turn_over(struct runner *r, uint64_t began);
void ticks_let(bool on);
/* The signal handler's view: which kvm_run to make exit at once. */
extern __thread struct kvm_run *volatile runner_entered;
extern __thread volatile sig_atomic_t runner_tick;
#endif
