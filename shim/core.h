/* What the core half's files offer each other. */
#ifndef SHIM_CORE_H
#define SHIM_CORE_H
#include "shim.h"

typedef int32_t s32;
#define PAGE 4096ul
#define GUEST_UID 1000               /* user and group, one of each */
#define SIGSET(n) (1ull << ((n) - 1))
#define unlikely(x) __builtin_expect(!!(x), 0)
#define AT(type, address) (*(type *)(uintptr_t)(address))

enum {
    EPERM = 1, ESRCH = 3, EINTR = 4, EAGAIN = 11, ENOMEM = 12, EACCES = 13, EFAULT = 14, EEXIST = 17, EINVAL = 22,
    ENAMETOOLONG = 36, ENOSYS = 38, ECHILD = 10, ENODEV = 19, ETIMEDOUT = 110, EOPNOTSUPP = 95
};

/* User registers as the entries push them; the tail is what iretq takes. */
struct frame {
    u64 r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx;   /* in the order of struct sigcontext */
    u64 orig_rax;                    /* syscall number; NO_SYSCALL: the registers are to be taken as they are */
    u64 rip, cs, rflags, rsp, ss;
};
#define NO_SYSCALL (~0ull)

struct sigq {                        /* a pending signal's siginfo */
    struct sigq *next;
    int sig, code;
    u64 a, b;                        /* siginfo words at 16 and 24: (pid, uid) and value; or the address */
};
struct pending {
    u64 set;
    struct sigq *queue;
};

enum { READY, RUNNING, BLOCKED, GONE };
struct thread {                      /* what is used most lies in the first 128 bytes: shorter code */
    struct thread *run_next;         /* run queue */
    u64 mask, sigwait, saved_mask;
    struct pending pending;
    struct thread *sleep_next, **sleep_prev;   /* by deadline; sleep_prev = 0: not in it */
    u64 deadline;
    int result;                      /* of block() */
    u32 tid;
    u8 state;
    u8 woken;                        /* wake() came before block() */
    u8 have_saved_mask;
    u8 on_upcall;                    /* contexts of this thread that an upcall stopped, counted in ctl.preempted */
    u64 alt_sp, alt_size;
    u8 *xsave;
    u64 stack_pointer, stack_top;    /* shim stack: saved while switched away; its top (= 8 mod 16) */
    struct thread *next, **prev;     /* all threads */
    u64 fs, gs;
    u64 clear_tid, robust_list;
    u64 cpu_ns;
    char name[16];
    u64 turns;                       /* ns of the vCPU by which it is somebody's turn */
};

/* entry.S */
extern u64 kstack_top;               /* of the current thread: where the entries put the frame */
extern u32 attention;                /* not 0: syscall_slow() looks before user code goes on */
extern u32 ring_used;                /* this syscall has rung the ring */
void context_switch(u64 *save_sp, u64 new_sp);
void entry_site(void);
void thread_first(void);
void fail(s64 result) __attribute__((noreturn));      /* the current syscall ends with this, from any depth */
static inline struct frame *user_frame(void) { return (struct frame *)(kstack_top - sizeof(struct frame)); }
extern u32 xstate_mask, xstate_size;  /* what threads have of extended state, and its size in XSAVE's standard form */
static inline void xsave(void *area)
{
    __asm__ volatile("xsave64 (%0)" ::"r"(area), "a"(xstate_mask), "d"(0) : "memory");
}
static inline void xrstor(const void *area)
{
    __asm__ volatile("xrstor64 (%0)" ::"r"(area), "a"(xstate_mask), "d"(0) : "memory");
}
static inline u64 get_fs(void) { u64 v; __asm__ volatile("rdfsbase %0" : "=r"(v)); return v; }
static inline u64 get_gs(void) { u64 v; __asm__ volatile("rdgsbase %0" : "=r"(v)); return v; }
static inline void set_fs(u64 v) { __asm__ volatile("wrfsbase %0" ::"r"(v) : "memory"); }
static inline void set_gs(u64 v) { __asm__ volatile("wrgsbase %0" ::"r"(v) : "memory"); }

/* sched.c */
extern struct thread main_thread;
__attribute__((noreturn)) s64 sys_exit_group(u64 code);
#define FIRST_THREAD ((struct thread *)CTL->threads)      /* all that live */
void sched_init(void);
void interrupt(struct thread *t);    /* block() of t, if it is in one, returns -EINTR */
struct thread *find_thread(u64 tid);
void after_exit(void);               /* the vCPU came back from the host: see what is new */
u64 thread_cpu_time(struct thread *t);
void die(int sig) __attribute__((noreturn));         /* killed by it */

/* ring.c */
void ring_out_wait(u64 deadline);

/* mm.c, region.c */
void mm_init(void);
extern u32 mm_used, mm_peak;         /* pages of accessible anonymous memory handed out, and the most there was */
/* For syscalls that hold nothing: a bad pointer ends the call with EFAULT there and then (fail()). copy_out: 0 */
void copy_in(void *to, u64 from, u64 n);
s64 copy_out(u64 to, const void *from, u64 n);
s64 copy_out_word(u64 to, u64 value);                /* 8 bytes */

/* futex.c */
s64 futex_wake(u64 addr, u64 n, u32 bitset);
void futex_robust(struct thread *t);

/* signal.c */
int signals_deliver(struct frame *f, int upcall);   /* -> handlers that are to run now */
void signals_recalc(void);           /* sets attention for the current thread */
int signals_waiting(struct thread *t);   /* a deliverable signal, or one it waits for */
void signal_fault(int sig, int code, u64 addr);   /* to the current thread, by force */
void signals_from_host(void);
void signal_forked(void);
void signals_drop(struct thread *t);
u64 itimer_next(void);               /* deadline of ITIMER_REAL, NEVER */
int itimers_on(void);                /* one of any kind is */
void itimers_expire(void);

/* time.c */
void put_timeval(u64 user, u64 ns);  /* or the call ends with EFAULT */
u64 cpu_time(void);                  /* of the VM, ns */
void cpu_time_ask(void);             /* before it is told to the program: may be an exit */
void cpu_time_restart(void);         /* restored */


#endif
