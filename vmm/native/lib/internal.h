/* What the library's own files share; not for cffi. */
#ifndef AFW_LIB_INTERNAL_H
#define AFW_LIB_INTERNAL_H
#include "worker.h"

#define load_acquire(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define store_release(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)

/* The worker's own indices of a flow. */
struct flow_own {
    uint32_t tx_tail;
    uint32_t rx_head;
    uint32_t hflags;
};

struct afw_worker {
    uint32_t vms, runners;
    int memory_fd, windows_fd;
    int32_t pid;                     /* of the cell; 0: there is none */
    uint8_t *memory, *windows;
    uint64_t memory_size, windows_size;
    struct afw_vm_shm *vm_shm;
    struct afw_runner_queues *queues;
    uint8_t *site_areas;
    uint8_t *rules;
    struct flow_own *flow;           /* [vms][AFW_FLOWS] */
    uint64_t dirty;                  /* VMs to WAKE */
    uint32_t tell;                   /* runners whose eventfd is due */
    uint32_t event_head[AFW_CELL_RUNNERS];
    uint32_t command_tail[AFW_CELL_RUNNERS];
    int runner_eventfd[AFW_CELL_RUNNERS];
};

struct flow_view {
    struct afw_window *window;       /* shared, hostile */
    struct afw_flow *shared;         /* shared, hostile */
    struct flow_own *own;
    uint8_t *tx, *rx;                /* shared rings of AFW_RING bytes */
};
int64_t sight_copy(const struct afw_sight *s, uint8_t *out);      /* afw_worker_sight() */
int flow_at(struct afw_worker *w, uint32_t vm, uint32_t flow, struct flow_view *v);
#endif
