/* Put before each of the cell's files in test builds (-include): runner.c calls this when a VM may run from now on. */
#ifndef STATE_DUMP_H
#define STATE_DUMP_H
struct machine;
void state_dump(struct machine *m);
#define AFW_STARTED state_dump
#endif
