/* The I/O half's own header.
 *
 *   descriptor -> struct file (open file description, counted) -> what its ops make of it
 *
 * Every kind of file begins with struct file. Byte streams of all kinds (pipe, socketpair, loopback TCP, sockets over flows,
 * stdio) are two struct chan, one a direction, and share read, write and poll (pipe.c). A chan of a flow has its bytes and
 * indices in the I/O window; the worker moves its index at any time, and nothing it says is believed beyond the ring's size.
 *
 * Errors: fail() ends the call with a result, from any depth, and drops the file that the entry holds for it (entry.S). So
 * what can fail has no error to hand up; what holds something of its own must not call what may fail. All of this is for size.
 */
#ifndef IO_H
#define IO_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include "asm.h"
#include "shim.h"

#define UNUSED __attribute__((unused))
/* Calls by how entry.S enters them: with the file of the descriptor that comes first, held for the call; the same with a socket;
 * or with the arguments as they are. */
struct file;
struct sock;
#define FD(name) __attribute__((section(".io_fd"))) s64 sys_##name(UNUSED struct file *o, UNUSED u64 b, UNUSED u64 c, UNUSED u64 d, UNUSED u64 e, UNUSED u64 f)
#define SK(name) __attribute__((section(".io_sk"))) s64 sys_##name(UNUSED struct sock *s, UNUSED u64 b, UNUSED u64 c, UNUSED u64 d, UNUSED u64 e, UNUSED u64 f)
#define PL(name) s64 sys_##name(UNUSED u64 a, UNUSED u64 b, UNUSED u64 c, UNUSED u64 d, UNUSED u64 e, UNUSED u64 f)

#define FD_MAX 4096                  /* descriptors a VM may hold at most */
#define NOFILE CTL->rlimit[14]       /* and that it may now: RLIMIT_NOFILE */
#define CHAN_MAX 0x10000             /* bytes a pipe or a socket's direction holds */
#define FRAME sizeof(struct afw_dgram)
#define ALL_EVENTS (POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP)

/* Flags of a call that nobody knows are an error. */
#define ONLY(flags, known) do { if ((flags) & ~(u64)(known)) fail(-EINVAL); } while (0)
static inline u64 min64(u64 a, u64 b) { return a < b ? a : b; }
static inline u32 min32(u32 a, u32 b) { return a < b ? a : b; }

/* ---- entry.S ---- */
void fail(s64 result) __attribute__((noreturn, cold));
extern u64 kstack_top;               /* the running thread's shim stack, its user frame first */
/* What the call has done so far: fail(error) gives this if it is not 0. Cleared at entry. */
#define PROGRESS (*(s64 *)(kstack_top - F_SIZE - 16))

/* ---- region.c: bad pointers fail the call ---- */
void copy_in(void *to, u64 from, u64 n);
s64 copy_out(u64 to, const void *from, u64 n);       /* 0 */
void *user_at(u64 at, u64 n, int write);             /* uio.c: good until something blocks */

/* ---- uio.c: user memory as a list of pieces; EFAULT and EINVAL fail ---- */
struct io {
    const struct iovec *v;           /* pieces left; the first from `at` on */
    u64 at, left;
    struct iovec one;
    int kernel;                      /* the piece lies in the shim's memory */
    u32 flags;                       /* recvmsg(): MSG_* to tell */
    u64 message;                     /* sendmsg() between unix sockets, recvmsg(): the struct msghdr; else 0 */
    u64 many;                        /* sendmmsg(), recvmmsg(): the struct mmsghdr; else 0 */
    u64 control;                     /* bytes of its control data that were filled */
};
void io_buf(struct io *io, u64 buf, u64 len);
void io_vec(struct io *io, u64 iov, u64 n);
void io_kernel(struct io *io, void *p, u64 len);
u64 io_piece(struct io *io, u64 *len);               /* address and length of the first piece */
void io_skip(struct io *io, u64 n);                  /* at most the first piece's length */
void io_copy(struct io *io, void *p, u64 n, int to_user);   /* n <= left */
void *alloc(size_t size);                            /* zeroed; ENOMEM fails */

/* ---- fd.c ---- */
struct epitem;
struct ops {
    u16 size;                        /* of the whole object */
    u16 mode;                        /* for fstat */
    u32 seek;                        /* pread and pwrite work */
    s64 (*read)(struct file *f, struct io *io, u32 msg, s64 pos);    /* pos -1: the description's own */
    s64 (*write)(struct file *f, struct io *io, u32 msg, s64 pos);
    u32 (*poll)(struct file *f);     /* POLL* that hold now; 0: epoll refuses it, poll finds it always ready */
    s64 (*ioctl)(struct file *f, u64 cmd, u64 arg);
    void (*close)(struct file *f);
};
struct file {
    const struct ops *ops;
    u32 refs;                        /* at 8: entry.S */
    u32 flags;                       /* O_* */
    u32 ino;
    u32 dev;                         /* device files: which one; ring files: 1 if worth reading ahead */
    u32 handle;                      /* the host's; 0: not a ring file. So far it is struct afw_file */
    struct waitq wq;                 /* readers, writers and pollers alike: look again */
    struct epitem *items;            /* epoll entries that watch it */
};
/* struct file *, bit 0: FD_CLOEXEC. In the control page: the host looks descriptors up, too */
#define fd_table (*(u64 **)&CTL->fd_table)
#define fd_size CTL->fd_size
void *file_new(const struct ops *ops, u32 flags);    /* refs 1 */
struct file *peek(u64 fd);           /* 0: not open. Not counted: good until something blocks */
struct file *need(u64 fd);           /* EBADF fails */
s64 fput(struct file *f, s64 result);                /* drops a reference, returns result */
s64 fd_install(void *f, u32 flags);  /* takes the reference; O_CLOEXEC of flags counts; or EMFILE */
s64 fd_install_from(struct file *f, u64 lowest, u32 flags);
void fd_uninstall(u64 fd);
s64 fd_pair(void *first, void *second, u32 flags, u64 user);   /* takes both; numbers go to int user[2] */
/* Something about f changed: wake who waits, queue it in the epoll sets that want one of `events`. */
void file_notify(void *f, u32 events);
/* Sleep until f changes; O_NONBLOCK, MSG_DONTWAIT in msg, the deadline and signals fail. */
void file_wait(void *f, u32 msg, u64 deadline);
void file_wait_for(void *other, void *f, u32 msg, u64 deadline);         /* until another one changes */

/* ---- poll.c, event.c ---- */
int io_block(u64 deadline);          /* block(), woken for timers */
int io_wait(struct waitq *q, u64 deadline);
void epoll_forget(struct file *f);   /* f is going away */
void epoll_mark(struct epitem *items, u32 events);
extern u64 timers_next;              /* when the next timerfd expires */
void timers_run(void);

/* ---- pipe.c ---- */
struct chan {
    u8 *base;
    volatile u32 *head, *tail;       /* free-running; head: produced, tail: consumed */
    struct file *reader, *writer;    /* 0: gone */
    volatile struct afw_flow *flow;  /* 0: inside the VM */
    u32 own[2];
    u32 size;                        /* bytes at base, a power of two; local ones grow up to limit */
    u32 limit;                       /* CHAN_MAX, if F_SETPIPE_SZ does not say otherwise */
    u8 eof;                          /* no more bytes come */
    u8 dead;                         /* nobody takes bytes any more */
    u8 told;                         /* flows: that it was reset */
    u8 frames;                       /* datagrams: struct afw_dgram + payload each */
    struct pass *passed;             /* descriptors on their way */
};
struct stream {                      /* pipes, sockets, stdio */
    struct file f;
    struct chan *rx, *tx;            /* side by side: flow_open() */
    struct sock *sock;               /* 0: pipe or stdio */
};
#define STREAM(file) ((struct stream *)(file))
extern const struct ops pipe_ops;
struct chan *chan_new(void *reader, void *writer);
u32 chan_used(struct chan *c);
u32 chan_room(struct chan *c);
int chan_eof(struct chan *c);
int chan_broken(struct chan *c);     /* writing makes no sense any more */
void chan_reset(struct chan *c, int error);          /* its writer is told this error; no more bytes go in */
int stream_eof(struct stream *s);    /* nothing comes behind what is there */
void chan_copy(struct chan *c, u32 at, struct io *io, u32 n, int to_user);
void chan_raw(struct chan *c, void *p, u32 n, int out);      /* the next n bytes to the shim's own memory, or from it */
void chan_consume(struct chan *c, u32 n);
void chan_produce(struct chan *c, u32 n);
void chan_fit(struct chan *c, u32 more);             /* memory for so many bytes more */
s64 chan_read(struct file *f, struct io *io, u32 msg, s64 pos);
s64 chan_write(struct file *f, struct io *io, u32 msg, s64 pos);
s64 chan_ioctl(struct file *f, u64 cmd, u64 arg);
void stream_close(struct file *f);
s64 pipe_size(struct file *f, int set, u32 size);    /* F_SETPIPE_SZ, F_GETPIPE_SZ */
void broken_pipe(u32 msg) __attribute__((noreturn));

/* ---- pass.c ---- */
void pass_send(struct chan *c, struct io *io);
u32 pass_receive(struct chan *c, struct io *io, u32 n, u32 msg);
void pass_drop(struct chan *c);

/* ---- flow.c ---- */
struct addr;
void flow_open(void *f, struct chan **both, u32 kind, const struct addr *to);    /* both[0]: rx, [1]: tx */
void flow_leave(struct chan *rx, struct chan *tx);   /* the guest is done with the flow; frees both */
void flow_kick(volatile struct afw_flow *f);
void flow_gflags(volatile struct afw_flow *f, u32 bits);
int flow_error(volatile struct afw_flow *f, int otherwise);

/* ---- file.c, dev.c ---- */
extern const struct ops ring_ops, dev_ops;
void ring_void(struct file *f);      /* after a restore: its handle was the template's */
s64 job_open(u64 flags);             /* flow.c: /dev/agentfw */

/* ---- addr.c: socket names ---- */
struct addr {
    u16 port;
    u16 len;                         /* AF_UNIX: bytes in b, a leading NUL for abstract names */
    u32 file;                        /* AF_UNIX: the number of the file that stands for the name, once it is known; else 0 */
    union {
        u8 b[108];
        u64 ip[2];                   /* AF_INET, AF_INET6: as in memory, IPv4 as ::ffff:a.b.c.d */
    };
};
void addr_get(u32 domain, u64 user, u64 len, struct addr *out);
s64 addr_put(u32 domain, const struct addr *a, u64 user, u64 user_len);   /* user 0: nothing */
int addr_v4(const struct addr *a);
int addr_any(const struct addr *a);
int addr_local(const struct addr *a);
void addr_set(struct addr *a, int v4, const void *ip);
void *addr_ip(const struct addr *a, u32 *n);         /* the address alone: 4 or 16 bytes */

/* ---- sock.c, sockio.c, sockopt.c ---- */
enum { S_NEW, S_LISTEN, S_CONNECTING, S_CONNECTED };
struct opt {
    struct opt *next;
    u64 key, len;                    /* level << 32 | name */
    u64 data[2];
};
#define OPT(level, name) ((u64)(level) << 32 | (name))
struct sock {
    struct stream s;
    struct sock *next;               /* bound list */
    struct sock *pending;            /* accept queue: next one */
    u16 domain;                      /* with type and state one word: AFW_OP_SOCKET */
    u8 type, state, bound, shut;
    int error;
    u32 backlog, queued;
    struct sock *queue;
    struct chan *frx, *ftx;          /* datagrams: the flow */
    struct opt *opts;
    struct addr local, peer;
};
#define LATER(sock) ((sock)->s.f.flags & O_NONBLOCK)
extern const struct ops sock_ops;
void sock_close(struct file *f);
struct sock *sock_find(struct sock *from, const struct addr *a);
struct sock *sock_listener(struct sock *s, struct addr *a);      /* the same; nobody there fails */
void sock_source(struct sock *s, const struct addr *to, struct addr *out);   /* our address as `to` sees it */
void sock_autobind(struct sock *s);
void sock_progress(struct sock *s);  /* a connect over a flow may be done */
void sock_error(struct sock *s);     /* a pending error fails */
struct opt *sock_opt(struct sock *s, u64 key);
u64 sock_deadline(struct sock *s, u32 name);         /* SO_RCVTIMEO, SO_SNDTIMEO */
#endif
