/* File rules where paths become places: overlapping mounts, symlinks on a pattern's way, listings. See rules.h, vfs.h. */
#include <stdlib.h>
#include <string.h>
#include "vfs.h"

/* ---- the same host files under two guest paths ---- */

#define ALIASES 4096
static struct alias {
    char *path[2];                   /* "": the root */
    size_t len[2];
} *alias;
static uint32_t aliases;

int vfs_alias(const uint8_t *p, uint32_t size)
{
    uint32_t len;
    if (size < 4 || aliases == ALIASES)
        return -E2BIG;
    memcpy(&len, p, 4);
    if (len > size - 4)
        return -EINVAL;
    struct alias *grown = realloc(alias, (aliases + 1ull) * sizeof *grown);
    if (!grown)
        return -ENOMEM;
    alias = grown;
    const char *text[2] = {(const char *)p + 4, (const char *)p + 4 + len};
    size_t n[2] = {len, size - 4 - len};
    for (int i = 0; i < 2; i++) {
        if (n[i] >= PATH_MAX || (n[i] && (text[i][0] != '/' || text[i][n[i] - 1] == '/')) || memchr(text[i], 0, n[i]))
            return -EINVAL;
        alias[aliases].path[i] = strndup(text[i], n[i]);
        alias[aliases].len[i] = n[i];
        if (!alias[aliases].path[i])
            return -ENOMEM;
    }
    aliases++;
    return 0;
}

static int below(const char *path, const char *top, size_t n)        /* or top itself */
{
    return !strncmp(path, top, n) && (!path[n] || path[n] == '/');
}

/* What path is called by side !i of an alias: 1, 0: it is not there. -1: too long to have a name there */
static int other_name(const struct alias *a, int i, const char *path, char out[PATH_MAX])
{
    if (!below(path, a->path[i], a->len[i]))
        return 0;
    size_t rest = strlen(path + a->len[i]);
    if (a->len[!i] + rest >= PATH_MAX)
        return -1;
    memcpy(out, a->path[!i], a->len[!i]);
    memcpy(out + a->len[!i], path + a->len[i], rest + 1);
    return 1;
}

int path_rule(struct vfs *vfs, const char *path, int *above)
{
    struct rules *r = vfs->vm->rules;
    char other[PATH_MAX];
    *above = 0;
    if (!rules_files(r))
        return 0;                    /* calls or limits only */
    int up, action = rules_path(r, path, above);
    for (uint32_t k = 0; k < 2 * aliases; k++) {
        int is = other_name(&alias[k / 2], k & 1, path, other);
        if (!is)
            continue;
        if (is < 0) {                /* nobody can say what its rules are */
            *above = AFW_RULE_DENY;
            return action > AFW_RULE_DENY ? action : AFW_RULE_DENY;
        }
        int more = rules_path(r, other, &up);
        action = more > action ? more : action;
        *above = up > *above ? up : *above;
    }
    return action;
}

int paths_may_move(struct vfs *vfs, const char *from, const char *to)
{
    const struct rules *r = vfs->vm->rules;
    char old[PATH_MAX], new[PATH_MAX];
    if (!rules_files(r))
        return 1;
    if (!rules_may_move(r, from, to))
        return 0;
    for (uint32_t k = 0; k < 2 * aliases; k++) {
        const struct alias *a = &alias[k / 2];
        size_t n = strlen(from);
        if (a->len[k & 1] > n && below(a->path[k & 1], from, n))
            return 0;                /* what is known by two names would be known by a third one */
        int is = other_name(a, k & 1, from, old);
        if (is < 0 || (is && !rules_may_move(r, old, other_name(a, k & 1, to, new) > 0 ? new : 0)))
            return 0;
    }
    return 1;
}

/* The number of a rule that says this of a path, plus 1; 0: one that the cell itself made */
static uint16_t which(struct vm *vm, const char *path, int action)
{
    char other[PATH_MAX];
    uint32_t found = rules_which(vm->rules, path, action);
    for (uint32_t k = 0; !found && k < 2 * aliases; k++)
        if (other_name(&alias[k / 2], k & 1, path, other) > 0)
            found = rules_which(vm->rules, other, action);
    return (uint16_t)found;
}

void path_refused(struct vfs *vfs, const char *path, int action, int error)
{
    if (vfs->vm->shm)
        vfs->vm->shm->refused_paths++;
    sight_file(vfs->vm, path, (struct sight_what){.mode = vfs->opens, .action = (uint8_t)action, .error = (uint16_t)error}, which);
    vfs->told = 1;
}

/* ---- listings ---- */

/* Has the directory, or something in it, another name? */
static int has_aliases(const char *directory)
{
    size_t n = strlen(directory) == 1 ? 0 : strlen(directory);
    for (uint32_t k = 0; k < 2 * aliases; k++) {
        const char *path = alias[k / 2].path[k & 1];
        if (below(directory, path, alias[k / 2].len[k & 1]) || (!strncmp(path, directory, n) && path[n] == '/' && !strchr(path + n + 1, '/')))
            return 1;
    }
    return 0;
}

int listing_begin(struct listing *l, struct vfs *vfs, const char *directory)
{
    *l = (struct listing){.vfs = vfs, .directory = directory};
    if (!vfs->vm->rules || has_aliases(directory))
        return 0;
    l->at = rules_at(vfs->vm->rules, directory);
    return l->at ? 0 : -ENOMEM;
}

int listing_hides(const struct listing *l, const char *name)
{
    char path[PATH_MAX + NAME_MAX + 2];
    int above;
    if (l->at)
        return rules_hide(l->at, name);
    if (!l->vfs->vm->rules)
        return 0;
    size_t n = strlen(l->directory), k = strlen(name);
    n = n == 1 ? 0 : n;
    if (n + k + 2 > PATH_MAX)
        return 0;                    /* no path leads there */
    memcpy(path, l->directory, n);
    path[n] = '/';
    memcpy(path + n + 1, name, k + 1);
    return path_rule(l->vfs, path, &above) == AFW_RULE_HIDE;
}

void listing_end(struct listing *l)
{
    free(l->at);
}

/* ---- symlinks on the way ---- */

static void keep_link(struct vfs *vfs, const char *link)
{
    struct rules *r = vfs->link_rules;
    if (!vfs->link_error && !rules_path(r, link, 0))
        vfs->link_error = rules_add(r, link, UINT32_MAX, 0, AFW_RULE_READ);
}

/* Names are matched as they really are. So where the plain beginning of a pattern leads through symlinks, the place that it leads to
 * gets the rule too, and those links may not be changed. */
static int resolve(struct vfs *vfs, struct rules *r, uint32_t i, char path[PATH_MAX], uint32_t names)
{
    for (; names; names--) {
        struct place p;
        if (!walk(vfs, "/", path, WALK_FOLLOW | WALK_CREATE, &p)) {
            place_done(&p);
            return strcmp(p.path, path) ? rules_add(r, p.path, i, names, (int)rules_action(r, i)) : 0;
        }
        *strrchr(path, '/') = 0;     /* not there (yet): as far as there is something */
    }
    return 0;
}

int vfs_rules(struct vfs *vfs, struct rules *r)
{
    char path[PATH_MAX];
    uint32_t names;
    int e = 0;
    vfs->vm->rules = 0;
    vfs->link_rules = r;
    vfs->link_error = 0;
    vfs->on_link = keep_link;
    for (uint32_t i = 0; !e && rules_prefix(r, i, path, &names); i++)
        e = resolve(vfs, r, i, path, names);
    vfs->on_link = 0;
    e = e ? e : vfs->link_error;
    if (!e)
        vfs->vm->rules = r;
    return e;
}
