/* modules.c: what importlib will look at next. */
#pragma once
#include "vfs.h"

#define MODULES_PACKAGES 8

struct modules_of {                  /* a directory's modules */
    uint64_t *kept;                  /* of each: in which table (afw_kept.at) it was left last. All else is behind it */
    char *directory;                 /* canonical */
    char *names;
    uint32_t *name;                  /* in `names`, sorted */
    uint16_t *by_length, *place;     /* numbers of names by length, those of one length sorted; where a number is there */
    uint32_t n;
    uint64_t turn;
};
struct modules {
    struct modules_of package[MODULES_PACKAGES];
    uint64_t turn;
};

void modules_forget(struct modules *m);
struct modules_of *modules_of(struct modules *m, const char *directory, size_t len);
/* One more, of a listing: sorted[] are numbers of name[], which are places in `names`. 0: there is nothing to remember */
struct modules_of *modules_listed(struct modules *m, const char *directory, const char *names, const uint32_t *name, const uint32_t *sorted, uint32_t n);
/* A file in the directory `prefix`, with its slash, was asked for: the directory is looked at, and (`of`) modules that may come next */
void modules_look(struct vfs *vfs, struct modules_of *of, uint64_t at, const char *prefix, const char *name);
/* There is no such file: -> is it a package's __init__, which is there under another name? */
int modules_package(struct vfs *vfs, uint64_t at, const char *path);
