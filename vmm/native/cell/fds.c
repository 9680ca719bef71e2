/* The guest's descriptors for /proc and for what leads over it: calls.c's look at the shim's table, from the file system. See vfs.h. */
#include "vfs.h"

struct looking {
    struct caller caller;            /* first */
    struct vm *vm;
};

static int read_vm(struct caller *c, void *to, uint64_t gva, uint64_t n)
{
    return guest_read(((struct looking *)c)->vm, to, gva, n);
}

int guest_fd(struct vm *vm, uint64_t fd, struct guest_fd *out)
{
    struct looking l = {.caller = {.ctl = vm->ctl, .read = read_vm}, .vm = vm};
    return vm->ctl && fd < GUEST_FDS ? call_fd(&l.caller, fd, out) : -EBADF;
}

int guest_fd_next(struct vm *vm, uint32_t from, struct guest_fd *out)
{
    for (; from < GUEST_FDS; from++)
        if (!guest_fd(vm, from, out))
            return 1;
    return 0;
}
