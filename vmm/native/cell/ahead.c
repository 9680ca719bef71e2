/* Statahead: which files of a directory will be looked at next, and what they are, left with the guest (kept.c) before it asks.
 *
 * Who looks at one file after the other does so in some order: as the directory was listed (scandir(), glob()), sorted, or by a number in the
 * name. Where that order foretold a stat that came here, the next ones are looked at too, twice as many each time, up to 64; where it did
 * not, none. Names are guesses only: each file is looked at as for a stat of its own, and what is not plain is left to that (probe_child()).
 *
 * The names of one listing are remembered for each VM, until it waits for something: all that it says about them is hostile, their memory is bounded.
 */
#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "modules.h"

#define NAMES_MAX 16384
#define BYTES_MAX (512u << 10)
#define FIRST 8
#define MOST 64
#define SLACK 8                      /* files of an order that nobody asked for, as when only some kinds are wanted */

enum order { LISTED, SORTED, NUMBERED, ORDERS };
struct guess {
    int64_t lo, hi;                  /* places in an order: what was asked for last, and up to where more was left with that. lo -1: none */
};
struct ahead {
    char directory[PATH_MAX];        /* canonical; "" for no listing */
    char *names;                     /* NUL-terminated each */
    uint32_t used, bytes;
    uint32_t n, room;
    uint32_t *name;                  /* in `names`, as listed */
    uint32_t *sorted;                /* numbers of names, or 0: not sorted yet */
    uint64_t cookie;                 /* where the listing goes on */
    char prefix[PATH_MAX];           /* up to the last slash, as the guest wrote it, of what it asked for last; then the name */
    char last[NAME_MAX + 1];
    struct guess guess[ORDERS];
    enum order order;                /* that foretold it last */
    uint32_t window;
    char above[PATH_MAX];            /* the directory that was asked for last, as the guest wrote it */
    struct modules modules;
};

static void forget_listing(struct ahead *a)
{
    free(a->names);
    free(a->name);
    free(a->sorted);
    a->names = 0;
    a->name = a->sorted = 0;
    a->used = a->bytes = a->n = a->room = 0;
    a->directory[0] = 0;
    a->guess[LISTED].lo = a->guess[SORTED].lo = -1;
}

void ahead_drop(struct vfs *vfs)
{
    if (!vfs->ahead)
        return;
    forget_listing(vfs->ahead);
    modules_forget(&vfs->ahead->modules);
    free(vfs->ahead);
    vfs->ahead = 0;
}

static struct ahead *ahead_of(struct vfs *vfs)
{
    if (!vfs->ahead && (vfs->ahead = calloc(1, sizeof *vfs->ahead)))
        for (int i = 0; i < ORDERS; i++)
            vfs->ahead->guess[i].lo = -1;
    return vfs->ahead;
}

/* -1: no memory, or enough names */
static int remember(struct ahead *a, const char *name)
{
    size_t size = strlen(name) + 1;
    if (a->n >= NAMES_MAX || a->used + size > BYTES_MAX)
        return -1;
    if (a->n == a->room) {
        uint32_t room = a->room ? a->room * 2 : 64, *grown = realloc(a->name, room * sizeof *grown);
        if (!grown)
            return -1;
        a->name = grown;
        a->room = room;
    }
    if (a->used + size > a->bytes) {
        uint32_t bytes = a->bytes ? a->bytes * 2 : 2048;
        char *grown = realloc(a->names, bytes);
        if (!grown)
            return -1;
        a->names = grown;
        a->bytes = bytes;
    }
    memcpy(a->names + a->used, name, size);
    a->name[a->n++] = a->used;
    a->used += (uint32_t)size;
    return 0;
}

void ahead_listed(struct vfs *vfs, const char *directory, uint64_t from, uint64_t to, const char *(*next)(void *entries), void *entries)
{
    struct ahead *a = ahead_of(vfs);
    const char *name;
    if (!a)
        return;
    if (!from) {
        forget_listing(a);
        strcpy(a->directory, directory);
    } else if (from != a->cookie || strcmp(a->directory, directory))
        return;
    free(a->sorted);
    a->sorted = 0;
    a->cookie = to;
    while ((name = next(entries)))
        if (strcmp(name, ".") && strcmp(name, "..") && remember(a, name))
            break;
}

static int compare(const struct ahead *a, uint32_t x, uint32_t y)
{
    return strcmp(a->names + a->name[x], a->names + a->name[y]);
}

/* Puts sorted[at] where it belongs among those below it in the heap of n. */
static void sift(struct ahead *a, uint32_t at, uint32_t n)
{
    uint32_t moved = a->sorted[at];
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && compare(a, a->sorted[child], a->sorted[child + 1]) < 0)
            child++;
        if (compare(a, moved, a->sorted[child]) >= 0)
            break;
        a->sorted[at] = a->sorted[child];
    }
    a->sorted[at] = moved;
}

/* Heapsort: a hostile order costs no more, and qsort() asks the system how much memory it has, which the jail kills for. */
static void sort(struct ahead *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        a->sorted[i] = i;
    for (uint32_t i = a->n / 2; i--;)
        sift(a, i, a->n);
    for (uint32_t n = a->n; n-- > 1;) {
        uint32_t last = a->sorted[n];
        a->sorted[n] = a->sorted[0];
        a->sorted[0] = last;
        sift(a, 0, n);
    }
}

static int sorted(struct ahead *a)
{
    if (!a->sorted && (a->sorted = malloc((a->n + 1) * sizeof *a->sorted)))
        sort(a);
    return a->sorted != 0;
}

/* The name's place in the listing, sorted: or -1 */
static int64_t find(struct ahead *a, const char *name)
{
    if (!sorted(a))
        return -1;
    for (uint32_t lo = 0, hi = a->n; lo < hi;) {
        uint32_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, a->names + a->name[a->sorted[mid]]);
        if (!c)
            return mid;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return -1;
}

/* A number in a name: its digits begin at `at`, `width` of them */
struct number {
    size_t at;
    int width;
    int64_t value;
};

static int number_at(const char *name, size_t at, struct number *n)
{
    n->at = at;
    n->value = n->width = 0;
    while (isdigit((unsigned char)name[at]) && n->width < 15) {
        n->value = n->value * 10 + name[at++] - '0';
        n->width++;
    }
    return n->width && !isdigit((unsigned char)name[at]);
}

/* Do the names differ in one number only? */
static int numbered(const char *last, const char *name, struct number *before, struct number *now)
{
    size_t i = 0;
    while (name[i] && name[i] == last[i])
        i++;
    while (i && isdigit((unsigned char)name[i - 1]))
        i--;
    return number_at(last, i, before) && number_at(name, i, now) && !strcmp(last + i + before->width, name + i + now->width);
}

/* The i-th name behind `name` in the order. 0: there is none */
static const char *guessed(const struct ahead *a, const char *name, const struct number *number, int64_t i, char out[2 * NAME_MAX])
{
    int64_t at = a->guess[a->order].lo + i;
    if (a->order == NUMBERED) {
        snprintf(out, 2 * NAME_MAX, "%.*s%0*lld%s", (int)number->at, name, number->width, (long long)(number->value + i), name + number->at + number->width);
        return strlen(out) <= NAME_MAX ? out : 0;
    }
    if (at >= a->n)
        return 0;
    return a->names + a->name[a->order == LISTED ? (uint64_t)at : a->sorted[at]];
}

/* How well each order foretold this one; a->order and a->window are what to do now. */
static void judge(struct ahead *a, const int64_t place[ORDERS])
{
    int64_t best = INT64_MAX;
    enum order order = a->order;
    for (int i = 0; i < ORDERS; i++) {
        int64_t over = place[i] - a->guess[i].hi, slack = i == NUMBERED ? 1 : SLACK;
        if (a->guess[i].lo < 0 || place[i] <= a->guess[i].lo || over > slack)
            continue;
        if (over < best || (over == best && i == (int)a->order)) {
            best = over;
            order = (enum order)i;
        }
    }
    if (best == INT64_MAX)
        a->window = 0;
    else if (best > 0 || order != a->order)
        a->window = !a->window ? FIRST : a->window * 2 < MOST ? a->window * 2 : MOST;
    else {                           /* what was left for it was void before it came to use it all */
        int64_t came = 2 * (place[order] - a->guess[order].lo);
        a->window = came < a->window ? (uint32_t)came : a->window;
    }
    a->order = order;
}

/* Looks at the files that are expected next. */
static void look(struct vfs *vfs, struct ahead *a, uint64_t at, const char *name, const struct number *number, int flags)
{
    struct place dir;
    struct stat st;
    char path[PATH_MAX], made[2 * NAME_MAX];
    size_t len = strlen(a->prefix);
    const char *next;
    if (walk(vfs, vfs->cwd, *a->prefix ? a->prefix : ".", WALK_FOLLOW, &dir) < 0)
        return;
    memcpy(path, a->prefix, len);
    for (uint32_t i = 1; i <= a->window && (next = guessed(a, name, number, i, made)); i++) {
        size_t n = strlen(next) + 1;
        if (len + n > sizeof path)
            break;
        memcpy(path + len, next, n);
        int r = probe_child(vfs, &dir, next, &st);
        if (r < 0 && a->order == NUMBERED)
            break;
        if (!r && kept_more(vfs, at, path, flags, &dir, &st) < 0)
            break;
        a->guess[a->order].hi++;
    }
    place_done(&dir);
}

void ahead_of_stat(struct vfs *vfs, uint64_t at, const char *path, int flags, const struct place *p)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *up = strrchr(p->path, '/');
    size_t n = (size_t)(name - path), above = up == p->path ? 1 : (size_t)(up - p->path);
    struct ahead *a = ahead_of(vfs);
    struct number before, number = {0, 0, 0};
    int64_t place[ORDERS] = {-1, -1, -1};
    if (!a || !*name || strlen(name) > NAME_MAX)
        return;
    if (strncmp(a->prefix, path, n) || a->prefix[n]) {               /* another directory: from the beginning */
        memcpy(a->prefix, path, n);
        a->prefix[n] = 0;
        a->last[0] = 0;
        a->window = 0;
        for (int i = 0; i < ORDERS; i++)
            a->guess[i].lo = -1;
    }
    if (a->last[0] && !strcmp(up + 1, name) && !strncmp(a->directory, p->path, above) && !a->directory[above]) {
        place[SORTED] = find(a, name);
        if (place[SORTED] >= 0)
            place[LISTED] = a->sorted[place[SORTED]];
    }
    if (a->last[0] && numbered(a->last, name, &before, &number)) {
        int64_t more = a->guess[NUMBERED].hi - a->guess[NUMBERED].lo;
        place[NUMBERED] = number.value;
        a->guess[NUMBERED].hi = before.value + (a->guess[NUMBERED].lo < 0 ? 0 : more);
        a->guess[NUMBERED].lo = before.value;
    } else
        a->guess[NUMBERED].lo = -1;
    judge(a, place);
    for (int i = 0; i < ORDERS; i++)
        a->guess[i].lo = a->guess[i].hi = place[i];
    strcpy(a->last, name);
    if (a->window)
        look(vfs, a, at, name, &number, flags);
    if (S_ISDIR(p->st.st_mode))
        strcpy(a->above, path);
    else if (S_ISREG(p->st.st_mode) && n > 1) {
        size_t len = strlen(a->above);
        struct modules_of *m = modules_of(&a->modules, p->path, above);
        int here = len == n - 1 && !strncmp(a->above, path, len);
        if (!m && here && !strncmp(a->directory, p->path, above) && !a->directory[above] && sorted(a))
            m = modules_listed(&a->modules, a->directory, a->names, a->name, a->sorted, a->n);
        if (m || here)
            modules_look(vfs, m, at, a->prefix, name);
    }
}

void ahead_of_package(struct vfs *vfs, uint64_t at, const char *path)
{
    struct ahead *a = ahead_of(vfs);
    if (a && modules_package(vfs, at, path))
        snprintf(a->above, sizeof a->above, "%.*s", (int)(strrchr(path, '/') - path), path);
}
