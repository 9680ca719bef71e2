/* A runner: one thread that serves its VMs in turn, obeys the worker's commands and wakes parked VMs.
 * How long a turn lasts: tick.c.
 */
#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "machine.h"
#include "rules.h"

/* ---- queues ---- */

int runner_event(struct runner *r, const struct afw_event *e)
{
    struct afw_runner_queues *q = r->q;
    uint32_t used = r->event_tail - __atomic_load_n(&q->event_head.value, __ATOMIC_ACQUIRE);
    if (used >= AFW_QUEUE) {
        /* Say so, then look once more: the worker may have drained the queue before it could see the mark. */
        __atomic_store_n(&q->event_stalled.value, 1, __ATOMIC_SEQ_CST);
        r->notify = true;
        used = r->event_tail - __atomic_load_n(&q->event_head.value, __ATOMIC_SEQ_CST);
        if (used >= AFW_QUEUE)
            return -EAGAIN;
    }
    q->event[r->event_tail % AFW_QUEUE] = *e;
    __atomic_store_n(&q->event_tail.value, ++r->event_tail, __ATOMIC_RELEASE);
    r->notify = true;
    return 0;
}

void runner_notify(struct runner *r)
{
    if (!r->notify)
        return;
    r->notify = false;
    uint64_t one = 1;
    ssize_t n = write(cell.worker_eventfd, &one, sizeof one);
    (void)n;                                     /* a full counter means that the worker has been told already */
}

uint8_t *runner_site_area(struct runner *r)
{
    return cell.site_area + (uint64_t)r->index * AFW_SITE_AREA;
}

static bool commands_wait(struct runner *r)
{
    return __atomic_load_n(&r->q->command_tail.value, __ATOMIC_SEQ_CST) != r->command_head;
}

bool runner_wanted(struct runner *r)
{
    runner_notify(r);
    return runner_tick || commands_wait(r);
}

/* ---- commands ---- */

static struct machine *machine_new(struct runner *r, uint32_t id)
{
    struct machine *m = r->machine[id];
    if (!m && !(m = calloc(1, sizeof *m)))
        return 0;
    struct afw_vm_shm *s = &cell.shm[id];
    memset(m, 0, sizeof *m);
    memset(s, 0, sizeof *s);
    r->machine[id] = m;
    m->vm = (struct vm){.id = id, .runner = r, .vm_fd = -1, .vcpu_fd = -1, .shm = s, .memory_limit = cell.config.memory};
    m->cpu_end = ~0ull;
    s->state = AFW_VM_STARTING;
    return m;
}

/* The next life of a VM that was kept: 0; or it is gone, and another must be made. What is not named here begins anew. */
static int machine_again(struct machine *m, uint64_t pid, uint64_t now)
{
    struct vm *vm = &m->vm;
    struct machine next = {
        .vm = {.id = vm->id, .runner = vm->runner, .vm_fd = vm->vm_fd, .vcpu_fd = vm->vcpu_fd, .run = vm->run, .mem = vm->mem, .ctl = vm->ctl,
               .window = vm->window, .shared_sight = vm->shared_sight, .shm = vm->shm, .memory_limit = cell.config.memory},
        .state = RUN_KEPT, .restored = true, .clean = m->clean, .next_slot = m->next_slot, .committed = m->committed, .prot = m->prot,
        .edges = m->edges, .drawn = m->drawn, .seams = m->seams, .map = m->map, .maps_room = m->maps_room, .command_ns = now, .cpu_end = ~0ull,
        .reset_ns = m->reset_ns, .private_pages = m->private_pages, .soon = pid >> AFW_RESTORE_SOON & 1, .asleep = pid >> AFW_RESTORE_LATER & 1};
    memcpy(next.vm.chunks, vm->chunks, sizeof vm->chunks);
    *m = next;
    struct afw_vm_shm *s = vm->shm;
    memset(s, 0, sizeof *s);
    s->state = AFW_VM_STARTING;
    vm->vfs = vfs_new(vm);
    vm->sites = sites_new(vm);
    int e = vm->vfs && vm->sites ? snapshot_again(m, (uint32_t)pid) : -ENOMEM;
    if (e)
        vm_close(m);
    s->recycled = !e;
    s->memory_committed = m->committed;
    return e;
}

/* The shim's own table of calls is guest memory: what is written there makes calls fail at once, and binds nobody. */
static int refuse_in_guest(struct machine *m, const struct rules *rules)
{
    uint64_t table = cell.shim.syscall_table;
    uint16_t refusal;
    uint32_t like = rules_error(rules) == ENOSYS ? AFW_TABLE_ENOSYS : AFW_TABLE_EPERM;
    if (!table || guest_read(&m->vm, &refusal, table + 2 * like, sizeof refusal))
        return 0;
    for (uint32_t n = 0; n < AFW_TABLE_END; n++) {
        bool gap = n >= AFW_TABLE_GAP && n < AFW_TABLE_GAP + AFW_TABLE_GAP_SIZE;
        uint32_t at = n < AFW_TABLE_GAP ? n : n - AFW_TABLE_GAP_SIZE;
        if (!gap && rules_guest(rules, n) && guest_write(&m->vm, table + 2 * at, &refusal, sizeof refusal))
            return -EFAULT;
    }
    return 0;
}

/* When the VM's memory is there: after it was booted or restored, before it runs. */
static int apply_rules(struct machine *m, uint64_t size)
{
    struct rules *rules;
    int e = rules_parse(cell.rules + (uint64_t)m->vm.id * AFW_RULES_SIZE, size, &rules);
    if (e)
        return e;
    if ((e = refuse_in_guest(m, rules)) || (e = vfs_rules(m->vm.vfs, rules)))
        rules_free(rules);
    return e;
}

/* What is told to the program of a forked VM: text behind its rules */
static int take_note(struct machine *m, uint64_t rules, uint64_t size)
{
    if (size > AFW_NOTE_SIZE || !inside(rules, size, 0, AFW_RULES_SIZE))
        return -EINVAL;
    m->vm.note = strndup((const char *)cell.rules + (uint64_t)m->vm.id * AFW_RULES_SIZE + rules, size);
    return m->vm.note ? 0 : -ENOMEM;
}

/* What the event queue had no room for, but for a VM's end */
static void tell_owed(struct runner *r, struct machine *m)
{
    if (m->rules_owed && !runner_event(r, &(struct afw_event){.type = AFW_EV_RULES, .vm = m->vm.id}))
        m->rules_owed = false;
    if (m->stands_owed && !runner_event(r, &(struct afw_event){.type = AFW_EV_STANDS, .vm = m->vm.id}))
        m->stands_owed = false;
    if (m->sight_owed && !runner_event(r, &(struct afw_event){.type = AFW_EV_SIGHT, .vm = m->vm.id}))
        m->sight_owed = false;
}

static void start_vm(struct runner *r, const struct afw_command *c)
{
    struct machine *m = r->machine[c->vm];
    bool kept = m && m->state == RUN_KEPT;
    if (m && (vm_lives(m) || m->exit_owed)) {
        fprintf(stderr, "agentfw-cell: command %u for VM %u, which is in use\n", c->type, c->vm);
        return;
    }
    uint64_t now = clock_mono(), reset_ns = 0, private_pages = 0;
    int e = 0;
    if (kept && c->type != AFW_CMD_RESTORE)
        vm_close(m);
    bool again = kept && c->type == AFW_CMD_RESTORE && !machine_again(m, c->a, now);
    if (kept) {
        reset_ns = m->reset_ns;
        private_pages = m->private_pages;
    }
    if (!again) {
        m = machine_new(r, c->vm);
        if (!m)
            abort();
        e = vm_open(m);
    }
    m->vm.shm->reset_ns = reset_ns;
    m->vm.shm->private_pages = private_pages;
    if (e) {
        vm_fail(m, "cannot make a VM: %s", strerror(-e));
        return;
    }
    if (again) {
        m->state = RUN_FREE;                     /* as a new one until it may run */
    } else if (c->type == AFW_CMD_BOOT) {
        m->template = true;
        if (boot(m))
            return;                              /* has reported */
    } else {
        char error[200];
        m->restored = true;
        m->soon = c->a >> AFW_RESTORE_SOON & 1;
        m->asleep = c->a >> AFW_RESTORE_LATER & 1 && cell.config.saved < 0;   /* a copy has its job */
        m->command_ns = now;
        if (snapshot_restore(m, (uint32_t)c->a, error, sizeof error)) {
            vm_fail(m, "%s", error);
            return;
        }
    }
    if (m->forked && c->c && (e = take_note(m, c->b, c->c))) {
        vm_fail(m, "note of %llu bytes: %s", (unsigned long long)c->c, strerror(-e));
        return;
    }
    if (c->b && (e = apply_rules(m, c->b))) {
        vm_fail(m, "rules of %llu bytes: %s", (unsigned long long)c->b, strerror(-e));
        return;
    }
    m->ruled = c->b || m->template || m->forked;
    char error[200];
    if (m->forked && snapshot_go_on(m, error, sizeof error)) {
        vm_fail(m, "%s", error);
        return;
    }
    if (!(m->template && cell.config.snapshot_out >= 0) && (e = trace_begin(m))) {
        vm_fail(m, "cannot trace the VM: %s", strerror(-e));
        return;
    }
    m->state = RUN_READY;
    if (m->asleep) {
        m->state = RUN_PARKED;
        m->deadline = ~0ull;
        m->vm.shm->state = AFW_VM_PARKED;
        m->vm.shm->restore_ns = clock_mono() - now;
        m->command_ns = 0;
        m->stands_owed = true;
        tell_owed(r, m);
    }
#ifdef AFW_STARTED
    AFW_STARTED(m);                              /* tests/native/state_dump.c */
#endif
}

/* VMs are restored before it is known whose they will be. The worker keeps the job back until it is answered, and the guest runs
 * nothing but the template's own code until it has its job. */
static void late_rules(struct machine *m, uint64_t size)
{
    if (!m->restored || m->ruled) {
        fprintf(stderr, "agentfw-cell: rules for VM %u, which has its rules\n", m->vm.id);
        return;
    }
    int e = apply_rules(m, size);
    if (e) {
        vm_fail(m, "rules of %llu bytes: %s", (unsigned long long)size, strerror(-e));
        return;
    }
    kept_void(m->vm.vfs);
    m->ruled = m->rules_owed = true;
}

static void obey(struct runner *r, const struct afw_command *c)
{
    if (c->type == AFW_CMD_QUIT) {
        r->quit = true;
        return;
    }
    if (c->type == AFW_CMD_SHARE) {
        share_cell(c->a);
        return;
    }
    if (c->vm >= cell.vms || c->vm % cell.runners != r->index) {
        fprintf(stderr, "agentfw-cell: command %u for VM %u, which is not runner %u's\n", c->type, c->vm, r->index);
        return;
    }
    if (c->type == AFW_CMD_BOOT || c->type == AFW_CMD_RESTORE) {
        ticks_let(false);
        start_vm(r, c);
        ticks_let(true);
        share_charge(r, r->machine[c->vm]);
        return;
    }
    struct machine *m = r->machine[c->vm];
    bool gone = !m || !vm_lives(m);              /* the command crossed with its end */
    if (c->type == AFW_CMD_DISCARD) {
        if (m && m->state == RUN_KEPT)
            vm_close(m);
        share_charge(r, 0);
        return;
    }
    if (c->type == AFW_CMD_SITES) {
        sites_answer(gone ? 0 : &m->vm, c->c, c->a);
        for (uint32_t i = r->index; i < cell.vms; i += cell.runners) {
            if (r->machine[i])
                r->machine[i]->sites_wait = false;   /* look again */
        }
        return;
    }
    if (gone)
        return;
    struct afw_ctl *ctl = m->vm.ctl;
    switch (c->type) {
    case AFW_CMD_SIGNAL:
        if (c->a < 1 || c->a > 64)
            return;
        ctl->sigpending |= 1ull << (c->a - 1);
        break;
    case AFW_CMD_WAKE:
        ctl->wake = 1;
        break;
    case AFW_CMD_KILL:
        vm_end(m, AFW_EXIT_KILLED, 0, 0, "killed");
        share_charge(r, 0);
        return;
    case AFW_CMD_LIMIT:
        share_limit(m, c->a, c->b);
        return;
    case AFW_CMD_SIGHT:
        if (c->a) {
            sight_anew(m);
            return;
        }
        vm_counters(m);
        sight_calls(m);
        m->sight_owed = true;
        tell_owed(r, m);
        runner_notify(r);
        return;
    case AFW_CMD_SAVE:
        save_ask(m);
        return;
    case AFW_CMD_RULES:
        late_rules(m, c->b);
        tell_owed(r, m);
        runner_notify(r);                        /* before another VM runs: a job waits for it */
        if (vm_lives(m))
            hot_job(m, true);                    /* while the worker sends that */
        share_charge(r, m);                      /* not to who has the next turn */
        return;
    default:
        fprintf(stderr, "agentfw-cell: unknown command %u\n", c->type);
        return;
    }
    m->slice_over = true;
    if (m->state == RUN_PARKED)
        m->state = RUN_READY;
}

static void commands(struct runner *r)
{
    while (!r->quit && commands_wait(r)) {
        struct afw_command c = r->q->command[r->command_head % AFW_QUEUE];
        __atomic_store_n(&r->q->command_head.value, ++r->command_head, __ATOMIC_RELEASE);
        obey(r, &c);
    }
}

/* ---- the loop ---- */

/* Wake VMs whose deadline has passed, send owed events. -> nearest deadline */
static uint64_t look_around(struct runner *r)
{
    uint64_t nearest = ~0ull, now = 0;
    bool put_back = false;
    for (uint32_t i = r->index; i < cell.vms; i += cell.runners) {
        struct machine *m = r->machine[i];
        if (!m)
            continue;
        if (m->exit_owed && !runner_event(r, &m->owed))
            m->exit_owed = false;
        tell_owed(r, m);
        if (m->saving) {
            uint64_t until;
            save_look(m);
            share_charge(r, m);
            if (m->saving && save_tell(m, now = now ? now : clock_mono(), &until))
                nearest = until < nearest ? until : nearest;
        }
        uint64_t deadline = m->state == RUN_PARKED || (m->state == RUN_KEPT && !m->clean) ? m->deadline
                            : m->state == RUN_STALLED && m->sites_wait                    ? m->deadline_sites
                                                                                          : ~0ull;
        if (deadline == ~0ull)
            continue;
        if (!now)
            now = clock_mono();
        if (deadline > now || (m->state == RUN_KEPT && put_back)) {   /* of those one at a time: others have turns between */
            nearest = deadline < nearest ? deadline : nearest;
        } else if (m->state == RUN_PARKED) {
            m->state = RUN_READY;
        } else if (m->state == RUN_KEPT) {
            recycle_idle(m);
            share_charge(r, 0);
            put_back = true;
        } else {
            m->sites_wait = false;
            m->sites_given_up = true;
        }
    }
    return nearest;
}

static void sleep_until(struct runner *r, uint64_t deadline)
{
    tick_arm(r, false);
    struct pollfd p = {.fd = cell.runner_eventfd[r->index], .events = POLLIN};
    struct timespec t, *wait = 0;
    if (deadline != ~0ull) {
        uint64_t now = clock_mono(), ns = deadline > now ? deadline - now : 0;
        t = (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
        wait = &t;
    }
    ppoll(&p, 1, wait, 0);
}

/* Whose turn it is: 0 and the time from which on that may change, ~0 if only a command or a deadline changes it. */
static struct machine *pick(struct runner *r, uint64_t *until, bool *stalled)
{
    uint64_t now = 0, held = share_wait(&now);
    struct machine *best = 0;
    *until = ~0ull;
    for (uint32_t k = 1; k <= cell.vms; k++) {
        struct machine *m = r->machine[(r->turn + k) % cell.vms];
        if (!m || (m->state != RUN_READY && m->state != RUN_SAVING && (m->state != RUN_STALLED || m->sites_wait)))
            continue;
        if (m->state == RUN_STALLED && r->event_tail - __atomic_load_n(&r->q->event_head.value, __ATOMIC_ACQUIRE) >= AFW_QUEUE) {
            *stalled = true;
            continue;
        }
        uint64_t wait = held ? held : share_wait_vm(m, &now);
        if (wait)
            *until = wait < *until ? wait : *until;
        else if (share_before(r, m, best))
            best = m;
    }
    if (best) {
        r->turn = best->vm.id;
        share_turn(r, best);
    }
    return best;
}

static sem_t set_up, released;

void runners_await(void)
{
    for (uint32_t i = 0; i < cell.runners; i++)
        while (sem_wait(&set_up))
            ;
}

void runners_release(void)
{
    for (uint32_t i = 0; i < cell.runners; i++)
        sem_post(&released);
}

static void *runner_main(void *arg)
{
    struct runner *r = arg;
    r->tid = (uint32_t)syscall(SYS_gettid);
    tick_make(r);
    sem_post(&set_up);
    while (sem_wait(&released))
        ;
    if (cell.config.snapshot_in >= 0)
        vm_prepare(r);
    share_charge(r, 0);
    while (!r->quit) {
        uint64_t drained;
        if (commands_wait(r)) {                  /* the counter is only for sleeping: reset it when something came */
            ssize_t n = read(cell.runner_eventfd[r->index], &drained, sizeof drained);
            (void)n;
        }
        commands(r);
        if (r->quit)
            break;
        uint64_t nearest = look_around(r);
        runner_tick = 0;
        bool stalled = false;
        uint64_t held;
        struct machine *next = pick(r, &held, &stalled);
        if (next) {
            if (next->state == RUN_SAVING) {
                save_step(next);
                share_charge(r, next);
                continue;
            }
            tick_turn(r, nearest);
            /* Who queues a command from here on sees that and sends the signal; what was queued before is seen here. */
            __atomic_store_n(&r->q->inside.value, r->tid, __ATOMIC_SEQ_CST);
            uint64_t began = clock_mono();
            if (!commands_wait(r))
                vm_run(next);
            __atomic_store_n(&r->q->inside.value, 0, __ATOMIC_RELEASE);
            tick_turn_over(r, began);
            runner_notify(r);
            continue;
        }
        runner_notify(r);
        if (commands_wait(r))
            continue;
        nearest = held < nearest ? held : nearest;
        /* A stalled VM goes on when the worker, having drained the queue, signals; the poll is for a worker that forgot. */
        sleep_until(r, stalled && nearest > clock_mono() + 50000000 ? clock_mono() + 50000000 : nearest);
        ssize_t n = read(cell.runner_eventfd[r->index], &drained, sizeof drained);
        (void)n;
    }
    tick_arm(r, false);
    for (uint32_t i = r->index; i < cell.vms; i += cell.runners) {
        struct machine *m = r->machine[i];
        if (m && m->state == RUN_KEPT)
            vm_close(m);
        else if (m && m->state != RUN_FREE)
            vm_end(m, AFW_EXIT_KILLED, 0, 0, "killed: the cell quits");
        free(m);
    }
    runner_notify(r);
    return 0;
}

int runner_start(struct runner *r, uint32_t index)
{
    r->index = r->turn = index;
    r->q = &cell.queues[index];
    r->event_tail = r->q->event_tail.value;
    r->command_head = r->q->command_head.value;
    if (!index && (sem_init(&set_up, 0, 0) || sem_init(&released, 0, 0)))
        return -errno;
    tick_handle();
    return -pthread_create(&r->thread, 0, runner_main, r);
}
