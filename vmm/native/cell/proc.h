/* What the files that make /proc share: synth.c (the table), procself.c, proccpu.c. */
#ifndef AFW_PROC_H
#define AFW_PROC_H
#include <stdbool.h>
#include <stddef.h>
#include <time.h>
#include "vfs.h"

struct text {
    char *bytes;
    size_t used, size;
};
typedef void generate(struct vfs *vfs, struct text *t);

void text_bytes(struct text *t, const char *data, size_t len);
void line(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A field of the control page. The guest may have written anything there; it is told to nobody but the guest. */
#define CTL_FIELD(vfs, field) ctl_field(vfs, offsetof(struct afw_ctl, field), sizeof((struct afw_ctl *)0)->field)
uint64_t ctl_field(struct vfs *vfs, size_t offset, size_t size);
unsigned pid_of(struct vfs *vfs);
uint64_t used_of(struct vfs *vfs);   /* bytes of accessible memory */
uint64_t clock_ns(clockid_t id);

/* procself.c: of the whole process, and of the thread that the path names (vfs->proc_tid) */
generate g_maps, g_status, g_stat, g_statm, g_comm, g_limits, g_loadavg, g_task_stat, g_task_status, g_task_comm;
uint32_t proc_thread(struct vfs *vfs, unsigned i);   /* id of the i-th; 0: there are not so many */
bool proc_is_thread(struct vfs *vfs, uint32_t tid);

void proc_fdinfo_text(struct vfs *vfs, int fd, struct text *t);    /* procfd.c */
generate g_cpuinfo;                  /* proccpu.c */
#endif
