/* What importlib will look at next, left with the guest (kept.c) before it asks.
 *
 * For a module of a package it asks for the package's directory (is it as it was listed?) and for the module's file; for a package, for its
 * __init__ with each suffix that a module may have. (importlib/_bootstrap_external.py, FileFinder.find_spec()) Which module comes next nobody knows, but
 * import statements are sorted, by name or by length: the next few of both orders are looked at, of the directories that were listed last.
 *
 * Guesses only: each file is looked at under the rules for a stat of its own. Memory is bounded: 8 directories, 4,096 modules and 64 KiB of names each.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "modules.h"

#define MODULES_MAX 4096
#define BYTES_MAX (64u << 10)
#define NEXT 4                       /* of each order */

void modules_forget(struct modules *m)
{
    for (int i = 0; i < MODULES_PACKAGES; i++)
        free(m->package[i].kept);
    memset(m, 0, sizeof *m);
}

struct modules_of *modules_of(struct modules *m, const char *directory, size_t len)
{
    for (int i = 0; i < MODULES_PACKAGES; i++) {
        struct modules_of *of = &m->package[i];
        if (of->kept && !strncmp(of->directory, directory, len) && !of->directory[len]) {
            of->turn = ++m->turn;
            return of;
        }
    }
    return 0;
}

static int is_module(const char *name)
{
    size_t n = strlen(name);
    return n > 3 && !strcmp(name + n - 3, ".py");
}

static void by_length(struct modules_of *of)
{
    uint32_t before[NAME_MAX + 2] = {0};
    for (uint32_t i = 0; i < of->n; i++)
        before[strlen(of->names + of->name[i]) + 1]++;
    for (int i = 1; i <= NAME_MAX + 1; i++)
        before[i] += before[i - 1];
    for (uint32_t i = 0; i < of->n; i++) {
        uint32_t at = before[strlen(of->names + of->name[i])]++;
        of->by_length[at] = (uint16_t)i;
        of->place[i] = (uint16_t)at;
    }
}

struct modules_of *modules_listed(struct modules *m, const char *directory, const char *names, const uint32_t *name, const uint32_t *sorted, uint32_t n)
{
    struct modules_of *of = m->package;
    size_t bytes = 0, count = 0, len = strlen(directory) + 1, used = 0;
    for (uint32_t i = 0; i < n; i++) {
        const char *one = names + name[i];
        if (is_module(one)) {
            bytes += strlen(one) + 1;
            count++;
        }
    }
    if (count < 2 || count > MODULES_MAX || bytes > BYTES_MAX)
        return 0;
    size_t each = sizeof *of->kept + sizeof *of->name + sizeof *of->by_length + sizeof *of->place;
    char *all = calloc(1, count * each + len + bytes);
    if (!all)
        return 0;
    for (int i = 1; i < MODULES_PACKAGES; i++)
        of = m->package[i].turn < of->turn ? &m->package[i] : of;
    free(of->kept);
    of->kept = (void *)all;
    of->name = (void *)(of->kept + count);
    of->by_length = (void *)(of->name + count);
    of->place = of->by_length + count;
    of->directory = (void *)(of->place + count);
    of->names = of->directory + len;
    memcpy(of->directory, directory, len);
    of->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        const char *one = names + name[sorted[i]];
        if (is_module(one)) {
            of->name[of->n++] = (uint32_t)used;
            strcpy(of->names + used, one);
            used += strlen(one) + 1;
        }
    }
    by_length(of);
    of->turn = ++m->turn;
    return of;
}

static int64_t find(const struct modules_of *of, const char *name)
{
    for (uint32_t lo = 0, hi = of->n; lo < hi;) {
        uint32_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, of->names + of->name[mid]);
        if (!c)
            return mid;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return -1;
}

/* -> is there room for more? */
static int look(struct vfs *vfs, struct modules_of *of, uint32_t i, uint64_t at, char path[PATH_MAX], size_t len, const struct place *dir)
{
    struct stat st;
    const char *name = of->names + of->name[i];
    size_t n = strlen(name) + 1;
    if (of->kept[i] == vfs->kept.head.at)
        return 1;
    if (len + n > PATH_MAX)
        return 0;
    memcpy(path + len, name, n);
    if (probe_child(vfs, dir, name, &st))
        return 1;
    of->kept[i] = vfs->kept.head.at;
    return kept_more(vfs, at, path, 0, dir, &st) >= 0;
}

void modules_look(struct vfs *vfs, struct modules_of *of, uint64_t at, const char *prefix, const char *name)
{
    struct place dir;
    char path[PATH_MAX];
    size_t len = strlen(prefix);
    memcpy(path, prefix, len);
    path[len - 1] = 0;
    if (walk(vfs, vfs->cwd, path, WALK_FOLLOW, &dir) < 0)
        return;
    int more = !dir.rule && dir.kind != BACK_PROC && S_ISDIR(dir.st.st_mode) && kept_more(vfs, at, path, 0, &dir, &dir.st) >= 0;
    int64_t i = more && of ? find(of, name) : -1;
    path[len - 1] = '/';
    for (uint32_t k = 1; i >= 0 && k <= NEXT && more; k++) {
        if ((uint32_t)i + k < of->n)
            more = look(vfs, of, (uint32_t)i + k, at, path, len, &dir);
        if (more && of->place[i] + k < of->n)
            more = look(vfs, of, of->by_length[of->place[i] + k], at, path, len, &dir);
    }
    place_done(&dir);
}

int modules_package(struct vfs *vfs, uint64_t at, const char *path)
{
    static const char init[] = "__init__.";
    static const char *const suffixes[] = {"abi3.so", "so", "py", ""};       /* and the directory itself, if it is a package */
    const char *slash = strrchr(path, '/');
    struct place p;
    char other[PATH_MAX + 8];
    int package = 0;
    if (!slash || slash == path || strncmp(slash + 1, init, sizeof init - 1))
        return 0;
    for (unsigned i = 0; i < sizeof suffixes / sizeof *suffixes && (package || *suffixes[i]); i++) {
        int size = (int)(slash - path);
        snprintf(other, sizeof other, *suffixes[i] ? "%.*s/%s%s" : "%.*s", size, path, init, suffixes[i]);
        if (!strcmp(other, path) || strlen(other) >= PATH_MAX)
            continue;
        int r = walk(vfs, vfs->cwd, other, WALK_FOLLOW | WALK_LOOK, &p);
        if (r == -ENOENT && !vfs->vm->rules)
            kept_more(vfs, at, other, 0, 0, 0);
        if (r < 0)
            continue;
        if (!p.rule && p.kind != BACK_PROC && (S_ISDIR(p.st.st_mode) ? !*suffixes[i] : S_ISREG(p.st.st_mode) && !(p.st.st_mode & S_ISVTX)))
            package = kept_more(vfs, at, other, 0, &p, &p.st) >= 0;
        place_done(&p);
        if (!package)
            return 0;
        if (*suffixes[i])            /* nobody asks for those behind it */
            i = sizeof suffixes / sizeof *suffixes - 2;
    }
    return package;
}
