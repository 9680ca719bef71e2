/* Descriptors that travel in messages between unix sockets: SCM_RIGHTS, see unix(7) and cmsg(3). */
#include "io.h"

#define PASS_MAX 253                 /* SCM_MAX_FD */

struct pass {
    struct pass *next;
    u32 at;                          /* the chan's position that they came with */
    u32 n;
    struct file *file[];
};
struct rights {
    struct cmsghdr h;
    int fd[];
};

/* What the message that goes into c next brings along. Errors fail before anything is sent: a first round looks, a second takes. */
void pass_send(struct chan *c, struct io *io)
{
    const struct msghdr *m = user_at(io->message, sizeof *m, 0);
    struct pass *p = 0;
    u32 total = 0;
    user_at((u64)m->msg_control, m->msg_controllen, 0);
    io->message = 0;
    do {
        u64 at = (u64)m->msg_control, len;
        s64 left = m->msg_controllen;
        if (total) {
            struct pass **end = &c->passed;
            p = alloc(sizeof *p + total * sizeof *p->file);
            p->at = *c->head;
            while (*end)
                end = &(*end)->next;
            *end = p;
        }
        for (; left >= (s64)sizeof(struct cmsghdr); at += len, left -= len) {
            const struct rights *r = (void *)at;
            len = r->h.cmsg_len;
            if (len < sizeof r->h || len > (u64)left)
                fail(-EINVAL);
            u64 n = r->h.cmsg_level == SOL_SOCKET && r->h.cmsg_type == SCM_RIGHTS ? (len - sizeof r->h) / sizeof(int) : 0;
            len = (len + 7) & ~7ul;
            if (r->h.cmsg_level == SOL_SOCKET && (u32)r->h.cmsg_type - SCM_RIGHTS > 1)   /* SCM_CREDENTIALS: nobody here is somebody else */
                fail(-EINVAL);
            for (u32 i = 0; i < n; i++) {
                struct file *f = need(r->fd[i]);
                if (p) {         /* no more than the first round saw: another VM may share the memory */
                    if (p->n == total)
                        return;
                    f->refs++;
                    p->file[p->n++] = f;
                } else if (++total > PASS_MAX)
                    fail(-EINVAL);
            }
        }
    } while (total && !p);
}

/* The first of c's is gone. Its files may be sockets with more of them: those wait, else the stack would not do. */
void pass_drop(struct chan *c)
{
    static struct pass *dropped;
    static u8 dropping;
    struct pass *p = c->passed;
    c->passed = p->next;
    p->next = dropped;
    dropped = p;
    if (dropping)
        return;
    dropping = 1;
    while ((p = dropped)) {
        dropped = p->next;
        while (p->n)
            fput(p->file[--p->n], 0);
        kfree(p);
    }
    dropping = 0;
}

/* n bytes are about to be read from c: what came with them goes to who asked by recvmsg(), or nowhere. -> how many to read: not beyond
 * the next message that brings some */
u32 pass_receive(struct chan *c, struct io *io, u32 n, u32 msg)
{
    struct pass *p = c->passed;
    if (!p || (int)(p->at - *c->tail - n) >= 0)
        return n;
    if (p->next && p->next->at != p->at)
        n = min32(n, p->next->at - *c->tail);
    if (io->message) {
        const struct msghdr *m = user_at(io->message, sizeof *m, 0);
        u64 room = m->msg_controllen, fits = room < sizeof(struct rights) ? 0 : (room - sizeof(struct rights)) / sizeof(int);
        u32 i = 0;
        if (fits > p->n)
            fits = p->n;
        struct rights *out = user_at((u64)m->msg_control, fits ? CMSG_LEN(fits * sizeof(int)) : 0, 1);
        for (; i < fits; i++) {
            p->file[i]->refs++;
            s64 fd = fd_install(p->file[i], (u32)msg / (MSG_CMSG_CLOEXEC / O_CLOEXEC) & O_CLOEXEC);
            if (fd < 0)
                break;
            out->fd[i] = fd;
        }
        if (i) {
            out->h.cmsg_len = CMSG_LEN(i * sizeof(int));
            out->h.cmsg_level = SOL_SOCKET;
            out->h.cmsg_type = SCM_RIGHTS;
            io->control = min64(room, CMSG_SPACE(i * sizeof(int)));
        }
        if (i < p->n)
            io->flags |= MSG_CTRUNC;
    }
    if (!(msg & MSG_PEEK))
        pass_drop(c);
    return n;
}
