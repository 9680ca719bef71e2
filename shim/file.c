/* Files behind a ring handle: the description's place, read-ahead, and the calls on a descriptor.
 *
 * A kick costs some 25 us, a read served from here well under one. So a description keeps the struct stat that OPEN gave it, where
 * the end was seen, and (once it is read in small pieces in order) up to the next 64 KiB; the file opened last is there whole, if it is
 * small. And the cell leaves what stat() found, and will find (struct afw_kept). All of that holds for at most two milliseconds, and not
 * over a change made through this VM or news from outside: what others change on the host is seen after that.
 */
#include "io.h"

#define AHEAD 0x10000
#define FRESH 2000000                /* ns */
#define AT_END NEVER                 /* PWRITE's place: where the end is */

struct stamp {
    u64 changes, at;
};
struct ringfile {
    struct file f;
    u64 place;
    u64 end;                         /* of the last append; directories: of the listing, seen at `read` */
    u64 next;                        /* where the last read ended */
    u8 *ahead;                       /* AHEAD bytes, of them ahead_n from ahead_at on; 0: at AFW_WHOLE */
    u64 ahead_at, ahead_n;
    u64 last;                        /* 1: the file ends behind those bytes */
    struct stamp read, stat;
    struct stat st;
};
#define RING(file) ((struct ringfile *)(file))
_Static_assert(offsetof(struct ringfile, place) == AFW_FILE_PLACE, "the host looks there");

static struct ringfile *whole;       /* whose bytes are at AFW_WHOLE */
static u8 shared;                    /* a writable file was mapped: stores to it are not seen here, so nothing is kept */

static void stamp(struct stamp *s)
{
    s->changes = files_changed;
    s->at = ring_at;                 /* not when it is told: that may be much later */
}

static int fresh(struct stamp *s)
{
    return s->changes == files_changed && !shared && now_mono() - s->at < FRESH;
}

s64 fd_map_handle(int fd, u64 *handle)
{
    struct file *f = peek(fd);
    if (!f || f->flags & O_PATH)
        return -EBADF;
    *handle = f->handle;
    if (!f->handle)
        return -ENODEV;
    u32 mode = f->flags & O_ACCMODE;
    shared |= mode;
    return mode;
}

/* A ring call with the description's handle first; failure fails the call. */
static s64 handle_call(struct file *f, u64 x, u64 y, u64 z, u16 op)
{
    s64 r = ring_call(op, f->handle, x, y, z, (u64)&RING(f)->end, 0);
    if (r < 0)
        fail(r);
    return r;
}

/* The description's struct stat, not older than FRESH. */
static struct stat *stat_now(struct file *f)
{
    struct ringfile *r = RING(f);
    if (!fresh(&r->stat)) {
        handle_call(f, (u64)&r->st, 0, 0, AFW_OP_FSTAT);
        stamp(&r->stat);
    }
    return &r->st;
}

/* The bytes at AFW_WHOLE are to be others */
static void *whole_for(struct ringfile *r)
{
    if (whole)
        whole->ahead_n = whole->last = 0;
    whole = r;
    return (void *)AFW_WHOLE;
}

static s64 read_piece(struct file *f, u64 piece, u64 len, u64 at)
{
    struct ringfile *r = RING(f);
    u64 off = at - r->ahead_at, into = piece, want = len;
    s64 n;
    /* Only the whole of it, or all there is: a file's read() comes out short at the file's end, and nowhere else. */
    if (fresh(&r->read) && off < r->ahead_n + r->last && (r->last || len <= r->ahead_n - off)) {
        n = min64(len, r->ahead_n - off);
        copy_out(piece, (r->ahead ? r->ahead : (u8 *)AFW_WHOLE) + off, n);
        return n;
    }
    if (f->dev && len < AHEAD && at && at == r->next) {
        if (!r->ahead)
            r->ahead = alloc(AHEAD);
        into = (u64)r->ahead;
        if (want < at)               /* the longer it goes on, the more */
            want = min64(at, AHEAD);
    }
    r->ahead_n = r->last = 0;        /* in case the call fails */
    n = handle_call(f, into, want, at, AFW_OP_PREAD);
    if (f->dev)
        stamp(&r->read);
    r->last = (u64)n < want;
    r->ahead_at = at;
    if (into == piece)
        r->ahead_at += n;
    else {
        r->ahead_n = n;
        n = min64(n, len);
        copy_out(piece, r->ahead, n);
    }
    return n;
}

/* One piece after the other until one comes out short. */
static s64 transfer(struct file *f, struct io *io, s64 pos, int write)
{
    u64 at = write && f->flags & O_APPEND ? AT_END : pos >= 0 ? (u64)pos : RING(f)->place, len;
    s64 n;
    do {
        if (!io->left)
            break;
        u64 piece = io_piece(io, &len);
        len = min64(len, AFW_IO_MAX);            /* the host does no more at a time, and less than asked for means the end */
        n = write ? handle_call(f, piece, len, at, AFW_OP_PWRITE) : read_piece(f, piece, len, at);
        io_skip(io, n);
        PROGRESS += n;
        if (at != AT_END)
            at += n;
        if (pos < 0)
            RING(f)->place = at == AT_END ? RING(f)->end : at;
        RING(f)->next = at;
    } while ((u64)n == len);
    return PROGRESS;
}

static s64 ring_read(struct file *f, struct io *io, u32 msg UNUSED, s64 pos) { return transfer(f, io, pos, 0); }
static s64 ring_write(struct file *f, struct io *io, u32 msg UNUSED, s64 pos)
{
    files_changed++;
    return transfer(f, io, pos, 1);
}

static void ring_close(struct file *f)
{
    if (whole == RING(f))
        whole = 0;
    kfree(RING(f)->ahead);
    if ((int)f->handle > 0)          /* not AFW_LOST_HANDLE */
        ring_post(AFW_OP_CLOSE, f->handle, 0, 0, 0, 0, 0);
}

const struct ops ring_ops = {.size = sizeof(struct ringfile), .seek = 1, .read = ring_read, .write = ring_write, .close = ring_close};

/* The host's handles are those of another VM now. */
void ring_void(struct file *f)
{
    if (f->handle)
        f->handle = AFW_LOST_HANDLE;
}

/* All calls that open a file. The host says what the path means. */
PL(open)
{
    struct ringfile *r = file_new(&ring_ops, 0);
    s64 h = sys_ask(a, b, c, d, (u64)&r->st);
    if (h < 0)
        return fput(&r->f, h);
    u32 what = h, flags = h >> 32;
    files_changed += (flags & O_TRUNC) != 0;
    r->f.flags = flags & ~(O_CLOEXEC | O_TRUNC);
    r->f.dev = (u16)what;
    if (what < AFW_OPENED_DEVICE) {
        r->f.handle = what & ~AFW_OPENED_WHOLE;
        stamp(&r->stat);
        if (what & AFW_OPENED_WHOLE) {
            whole_for(r);
            r->read = r->stat;
            r->ahead_n = r->st.st_size;
            r->last = 1;
        }
        r->f.dev = S_ISREG(r->st.st_mode) && !(flags & O_ACCMODE);
    } else if (what < AFW_OPENED_FD)
        r->f.ops = &dev_ops;
    else {
        fput(&r->f, 0);
        if (what >= AFW_OPENED_JOB)
            return job_open(flags);
        r = (void *)need((u16)what); /* files that keep no place of their own need no more */
        r->f.refs++;
    }
    return fd_install(r, flags);
}

/* ---- calls on a descriptor ---- */
FD(lseek)
{
    s64 at = b, from = 0;
    if (o->flags & O_PATH)
        return -EBADF;
    if (c > SEEK_HOLE)
        return -EINVAL;
    if (!o->handle)
        return o->ops == &dev_ops ? 0 : -ESPIPE;
    if (c == SEEK_CUR)
        from = RING(o)->place;
    else if (c == SEEK_END)
        from = stat_now(o)->st_size;
    else if (c)
        at = handle_call(o, b, c, 0, AFW_OP_SEEK);
    if (__builtin_add_overflow(at, from, &at) || at < 0)
        return -EINVAL;
    return RING(o)->place = at;
}

FD(getdents64)
{
    if (!o->handle)
        return -ENOTDIR;
    struct ringfile *r = RING(o);
    if (!o->dev && r->end == r->place && fresh(&r->read))
        return 0;
    s64 n = handle_call(o, b, c, r->place, AFW_OP_READDIR), at = 0;
    stamp(&r->read);
    while (at < n) {                 /* struct linux_dirent64: ino, off, reclen, ... */
        r->place = *(u64 *)(b + at + 8);
        u16 size = *(u16 *)(b + at + 16);
        if (!size)                   /* overwritten meanwhile, by a thread or a VM that shares the memory */
            break;
        at += size;
    }
    return n;
}

FD(fstat)
{
    struct stat st = {.st_dev = 12, .st_ino = o->ino, .st_nlink = 1, .st_mode = o->ops->mode, .st_blksize = 4096};
    if (o->ops == &dev_ops)
        st.st_rdev = 0x100 | o->dev;
    return copy_out(b, o->handle ? stat_now(o) : &st, sizeof st);
}
PL(newfstatat)
{
    s64 n = user_strlen(b, PATH_MAX);
    u32 key = d;
    if ((int)a != AT_FDCWD) {
        if (!n && d & AT_EMPTY_PATH)
            return sys_fstat(need(a), c, 0, 0, 0, 0);
    } else if (n >= 0 && fresh((struct stamp *)AFW_KEPT)) {
        struct afw_kept *k = (void *)AFW_KEPT;
        struct afw_kept_stat *s = (void *)(k + 1);
        for (s64 i = 0; i < n; i++)              /* (a VM that shares the memory may write there) */
            key = key * 31 + ((u8 *)b)[i];
        for (u32 i = k->n; i; i--, s = (void *)s + s->size)
            if (s->key == key && !memcmp(s->path, (void *)b, n + 1))
                return s->result ? s->result : copy_out(c, s->st, sizeof s->st);
    }
    return sys_ask(a, b, c, d, e);
}

/* What is wrong with it the host says, and from file to file it does it all. What is read is written without waiting: nobody else has the
 * bytes in between, and others read into the same memory. */
FD(sendfile)
{
    s64 r = sys_change(*(u64 *)(kstack_top - F_SIZE + F_RDI), b, c, d, e);
    if (r != -AFW_AGAIN)
        return r;
    struct file *in = need(b);
    u32 ino = in->ino;
    struct io io;
    u64 done = 0, n;
    while ((n = min64(d - done, AFW_WHOLE_SIZE))) {
        struct chan *t;
        while ((t = o->ops == &dev_ops ? 0 : STREAM(o)->tx) && !(o->ops->poll(o) & POLLOUT))
            file_wait(o, 0, NEVER);
        if (t && !t->frames) {
            u32 room = chan_room(t);
            n = min64(n, room + !room);
        }
        if (peek(b) != in || in->ino != ino)     /* who waits for another one does not hold it */
            fail(-EBADF);
        u64 *at = c ? user_at(c, 8, 1) : &RING(in)->place;
        void *bytes = whole_for(0);
        io_kernel(&io, bytes, handle_call(in, AFW_WHOLE, n, *at, AFW_OP_PREAD));
        if (!(n = io.left))
            break;
        r = o->ops->write(o, &io, MSG_DONTWAIT, -1);
        if (r < 0)
            fail(r);
        *at += n;
        PROGRESS = done += n;
    }
    return done;
}
