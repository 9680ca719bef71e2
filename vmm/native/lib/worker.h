/* The worker's side of the shared memory: what Python cannot do itself, namely atomics, barriers and fast copies.
 *
 * Read by C and by cffi (rules in abi.h). A handle belongs to one thread. Every index that the worker owns is kept in its own
 * memory and never read back from the shared memory, which cells and guests can write; what they own is read once, checked,
 * and used from the copy. Functions return a count >= 0 or -errno:
 *   -EAGAIN   nothing there now, or no room now
 *   -ENODATA  the guest ended its stream, nothing is left
 *   -EPIPE    the guest takes no more
 *   -EPROTO   the other side broke the protocol: hostile or damaged
 */
#ifndef AFW_WORKER_H
#define AFW_WORKER_H
#include <stdint.h>
#include "abi.h"
#include "cell.h"

struct afw_worker;

/* Makes both memfds (sealed: the other side cannot shrink them under us), maps them, writes header and configuration.
 * NULL and errno if that fails; EINVAL for numbers out of range. */
struct afw_worker *afw_worker_new(uint32_t vms, uint32_t runners, const uint8_t *config, uint64_t config_size);
void afw_worker_free(struct afw_worker *w);
int afw_worker_memory_fd(struct afw_worker *w);
int afw_worker_windows_fd(struct afw_worker *w);

/* The descriptors as the cell inherits them. The eventfds stay the caller's; the runners' are also written from here. */
void afw_worker_descriptors(struct afw_worker *w, int kvm_fd, int worker_eventfd, const int *runner_eventfd);
/* The cell's process, once there is one: flush ends the turn of a VM of it when there are commands. 0: it is gone. */
void afw_worker_process(struct afw_worker *w, int32_t pid);
/* header.state, header.jail, and header.text, always terminated. */
uint32_t afw_worker_state(struct afw_worker *w, uint32_t *jail, char text[512]);

/* Takes up to `room` events of one runner. -EPROTO: the queue's index, a type, a VM or a flow is out of range (text says which). */
int afw_worker_events(struct afw_worker *w, uint32_t runner, struct afw_event *out, uint32_t room, char text[128]);
/* Queues a command without telling the runner: afw_worker_flush does. -EAGAIN: queue full. */
int afw_worker_command(struct afw_worker *w, uint32_t runner, uint32_t type, uint32_t vm, uint64_t a, uint64_t b, uint64_t c);
/* A WAKE for every VM whose window changed since, then the runners' eventfds. 1: a queue was full, call again later. */
int afw_worker_flush(struct afw_worker *w);
/* Bytes of the windows in use, and of private files outside of the cell's own memory, `most` of them a VM's. */
uint64_t afw_worker_other_memory(struct afw_worker *w, uint64_t most);
/* A copy, its strings terminated. */
void afw_worker_vm(struct afw_worker *w, uint32_t vm, struct afw_vm_shm *out);
uint8_t *afw_worker_site_area(struct afw_worker *w, uint32_t runner);
/* Puts `size` bytes of answer there and gives the memory behind it back: code is megabytes, answers are not. -EINVAL: too large. */
int afw_worker_site_answer(struct afw_worker *w, uint32_t runner, const uint8_t *packed, uint64_t size);

/* What a VM did so far (struct afw_sight), copied into out[AFW_SIGHT_SIZE] without gaps: u32 n_ops, n_calls, n_files, 0, u64 more_files; the ops; the calls
 * that there were, as number << 48 | count; the files' entries. -> bytes. All that a cell might have written wrong in it is left out. */
int64_t afw_worker_sight(struct afw_worker *w, uint32_t vm, uint8_t *out);

/* The index-th CPU feature of needs.h: its name, and where its bit is in afw_snapshot_header.needs; must: no cell runs without it. 0: no more */
const char *afw_need(uint32_t index, uint32_t *word, uint32_t *bit, int *must);

/* Before BOOT or RESTORE, which is told the size: what the VM may not do (struct afw_rules). -EINVAL: too large. */
int afw_worker_rules(struct afw_worker *w, uint32_t vm, const uint8_t *rules, uint64_t size);

/* Before BOOT or RESTORE: an empty window, flows 0..3 open. keep: memory that it has stays, if it is not much. */
int afw_window_reset(struct afw_worker *w, uint32_t vm, int keep);

/* Flows. All of them set the window's ready bit where the guest has something to look at. */
void afw_flow_accept(struct afw_worker *w, uint32_t vm, uint32_t flow);   /* FLOW_OPEN seen: indices start at 0 */
void afw_flow_state(struct afw_worker *w, uint32_t vm, uint32_t flow, uint32_t hstate, int32_t error, uint32_t local_port);
void afw_flow_flags(struct afw_worker *w, uint32_t vm, uint32_t flow, uint32_t hflags);   /* adds them */
void afw_flow_reset(struct afw_worker *w, uint32_t vm, uint32_t flow, int32_t error);    /* AFW_HF_RESET: errno of what comes next */
void afw_flow_free(struct afw_worker *w, uint32_t vm, uint32_t flow);     /* the guest may use the slot again */
uint32_t afw_flow_gflags(struct afw_worker *w, uint32_t vm, uint32_t flow);
/* Bytes that the guest produced and nobody took; -EPROTO. */
int64_t afw_flow_pending(struct afw_worker *w, uint32_t vm, uint32_t flow);
/* Bytes given that the guest has not read; -EPROTO. */
int64_t afw_flow_unread(struct afw_worker *w, uint32_t vm, uint32_t flow);
/* Throws away what the guest produced. */
void afw_flow_discard(struct afw_worker *w, uint32_t vm, uint32_t flow);
/* Takes up to `room` bytes. */
int64_t afw_flow_read(struct afw_worker *w, uint32_t vm, uint32_t flow, uint8_t *out, uint64_t room);
/* Gives as much as fits of `size` bytes. */
int64_t afw_flow_write(struct afw_worker *w, uint32_t vm, uint32_t flow, const uint8_t *data, uint64_t size);
/* One datagram; `out` holds AFW_RING bytes. The result is the payload's size, which may be 0. */
int64_t afw_flow_read_datagram(struct afw_worker *w, uint32_t vm, uint32_t flow, struct afw_dgram *head, uint8_t *out);
/* One datagram or none of it. -EMSGSIZE: never fits. Returns 1. */
int64_t afw_flow_write_datagram(struct afw_worker *w, uint32_t vm, uint32_t flow, const struct afw_dgram *head, const uint8_t *data);

/* sites.c: marks in `bitmap` (one bit a byte of code) whatever a 32-bit relative call, jump or conditional jump could go to, if one
 * started at any byte. A superset of the true targets of that kind, which may lie anywhere in the file. */
void afw_sites_far_targets(const uint8_t *code, uint64_t size, uint8_t *bitmap);
#endif
