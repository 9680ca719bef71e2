/* lib/flow.c and the event queue of lib/worker.c: a guest that writes what it likes into its I/O window, a cell into its queues.
 * Input: steps, a byte for which and its numbers. */
#include <errno.h>
#include "input.h"
#include "internal.h"

static struct afw_worker *w;

static void fresh(void)
{
    static const uint8_t end[8];
    afw_worker_free(w);
    w = afw_worker_new(1, 1, end, sizeof end);
    must(w != 0, "the fuzzer's own worker");
    must(!afw_window_reset(w, 0, 0), "the fuzzer's own window");
}

/* A result of reading into `room` bytes */
static void result(int64_t n, uint64_t room)
{
    must(n >= 0 ? (uint64_t)n <= room : n >= -4095, "more than there was room for");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    static uint8_t fill[AFW_RING];
    struct afw_event events[16];
    char text[512];
    if (!w)
        fresh();
    must(!afw_window_reset(w, 0, 0), "the fuzzer's own window");
    struct afw_window *window = (struct afw_window *)w->windows;
    while (in.left) {
        uint8_t step = (uint8_t)number(&in, 1);
        uint32_t flow = (uint32_t)number(&in, 1) % (AFW_FLOWS + 2), n = (uint32_t)number(&in, 4);
        uint8_t *line = flow < AFW_FLOWS ? (uint8_t *)&window->flow[flow] : 0, *out;
        struct afw_dgram head = {0};
        switch (step % 16) {
        case 0:                      /* the guest: any word of any flow */
        case 1:
            if (line)
                memcpy(line + step / 16 % 16 * 4, &n, 4);
            break;
        case 2:                      /* and bytes in its ring */
            if (line) {
                uint32_t at = n % AFW_RING, len = (uint32_t)number(&in, 1);
                len = len < AFW_RING - at ? len : AFW_RING - at;
                take(&in, w->windows + AFW_WINDOW_DATA + flow * 2ull * AFW_RING + at, len);
            }
            break;
        case 3:
            out = malloc(n % 70000 + 1);
            result(afw_flow_read(w, 0, flow, out, n % 70000), n % 70000);
            free(out);
            break;
        case 4:
            result(afw_flow_write(w, 0, flow, fill, n % sizeof fill), n % sizeof fill);
            break;
        case 5:
            out = malloc(AFW_RING);
            result(afw_flow_read_datagram(w, 0, flow, &head, out), AFW_RING);
            free(out);
            break;
        case 6:
            head.len = (uint16_t)n;
            result(afw_flow_write_datagram(w, 0, flow, &head, fill), 1);
            break;
        case 7:
            result(afw_flow_pending(w, 0, flow), AFW_RING);
            result(afw_flow_unread(w, 0, flow), AFW_RING);
            break;
        case 8:
            afw_flow_discard(w, 0, flow);
            break;
        case 9:
            afw_flow_accept(w, 0, flow);
            break;
        case 10:
            afw_flow_state(w, 0, flow, n % 4, (int32_t)n, n);
            break;
        case 11:
            afw_flow_reset(w, 0, flow, (int32_t)n);
            break;
        case 12:
            afw_flow_free(w, 0, flow);
            break;
        case 13: {                   /* the cell: any byte of its queue, then the worker looks */
            uint32_t len = (uint32_t)number(&in, 1);
            uint64_t at = n % sizeof *w->queues;
            len = len < sizeof *w->queues - at ? len : (uint32_t)(sizeof *w->queues - at);
            take(&in, (uint8_t *)w->queues + at, len);
            break;
        }
        case 14: {
            int got = afw_worker_events(w, 0, events, 16, text);
            must(got <= 16, "more events than there was room for");
            for (int i = 0; i < got; i++)
                must(events[i].vm < 1, "an event of a VM that there is not");
            if (got == -EPROTO)
                fresh(), window = (struct afw_window *)w->windows;
            break;
        }
        default: {
            struct afw_vm_shm copy;
            take(&in, w->vm_shm, n % sizeof copy);
            afw_worker_vm(w, 0, &copy);
            afw_worker_command(w, 0, n, 0, n, n, n);
            afw_worker_flush(w);
            afw_worker_state(w, &n, text);
        }
        }
    }
    return 0;
}
