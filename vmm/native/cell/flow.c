/* Flows: the bytes go by the I/O window without the cell; what it forwards is that a flow is asked for, and that it changed. */
#include <errno.h>
#include <sys/socket.h>
#include "machine.h"

int64_t flow_open(struct machine *m, const struct afw_sqe *e)
{
    uint64_t index = e->a[0], kind = e->a[1], family = e->a[2], port = e->a[5];
    if (index < AFW_FLOW_FIRST || index >= AFW_FLOWS)
        return -EINVAL;
    if (kind != AFW_KIND_TCP && kind != AFW_KIND_UDP)
        return -EPROTONOSUPPORT;
    if (family != AF_INET && family != AF_INET6)
        return -EAFNOSUPPORT;
    if (port > 65535)
        return -EINVAL;
    uint32_t *state = &m->vm.window->flow[index].hstate;
    /* A courtesy to a correct shim; the worker knows for itself which slots are in use. */
    if (__atomic_load_n(state, __ATOMIC_ACQUIRE) != AFW_H_FREE)
        return -EBUSY;
    __atomic_store_n(state, AFW_H_OPENING, __ATOMIC_RELEASE);   /* before the event: the worker's OPEN must not be overwritten */
    const struct afw_event ev = {.type = AFW_EV_FLOW_OPEN, .vm = m->vm.id, .arg = (uint32_t)index,
                                 .a = kind | family << 16 | port << 32, .b = e->a[3], .c = e->a[4]};
    int r = runner_event(m->vm.runner, &ev);
    if (r)
        __atomic_store_n(state, AFW_H_FREE, __ATOMIC_RELEASE);
    return r;
}

int64_t flow_kick(struct machine *m, const struct afw_sqe *e)
{
    if (e->a[0] >= AFW_FLOWS)
        return -EINVAL;
    const struct afw_event ev = {.type = AFW_EV_FLOW, .vm = m->vm.id, .arg = (uint32_t)e->a[0]};
    return runner_event(m->vm.runner, &ev);
}
