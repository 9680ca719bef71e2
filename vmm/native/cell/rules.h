/* What one VM may not do: file rules and ring operations, as cell.h's struct afw_rules brings them.
 *
 * File rules are patterns over the components of canonical guest paths (walk.c), so symlinks, `..`, directory handles and the
 * current directory are no way around them. What a pattern matches takes all below it along. A pattern is a small automaton whose
 * state is a bit set: bit i says that the components before part i have been matched.
 */
#ifndef AFW_RULES_H
#define AFW_RULES_H
#include <stddef.h>
#include <stdint.h>
#include "abi.h"
#include "cell.h"

#define RULES_ADDED 512              /* rules that the cell itself adds: where symlinks on a pattern's way lead */

struct rules;
/* A checked private copy; -EINVAL if any index, length or number in it is out of range, -ENOMEM */
int rules_parse(const uint8_t *table, uint64_t size, struct rules **out);
void rules_free(struct rules *r);

/* The highest action for a canonical path, its own or that of a directory above it; *above (if not 0): the latter alone */
int rules_path(struct rules *r, const char *path, int *above);

/* The number of a rule with this action that holds at a canonical path, plus 1; 0: none of the table */
uint32_t rules_which(struct rules *r, const char *path, int action);

/* For listings: a cursor at a directory, and whether a name in it is hidden. */
struct rules_cursor;
struct rules_cursor *rules_at(const struct rules *r, const char *directory);     /* malloc()ed; 0: no memory */
int rules_hide(const struct rules_cursor *at, const char *name);

/* Does all that is protected below `from` stay so when that directory is called `to` (0: something that no rule is about)? */
int rules_may_move(const struct rules *r, const char *from, const char *to);

/* Patterns begin with names before the first wildcard. i-th of them as a path ("/" and more) into out[PATH_MAX]; 0: no such rule.
 * *names: how many parts that were */
int rules_prefix(const struct rules *r, uint32_t i, char *out, uint32_t *names);
/* One more rule: `path`, then what follows the first `names` parts of rule i (i = UINT32_MAX: nothing). 0, -E2BIG, -ENOMEM */
int rules_add(struct rules *r, const char *path, uint32_t i, uint32_t names, int action);
uint32_t rules_action(const struct rules *r, uint32_t i);

/* Ring operations */
enum rules_verdict { RULES_OK, RULES_REFUSE, RULES_KILL };
enum rules_verdict rules_op(const struct rules *r, const struct afw_sqe *e);
int rules_error(const struct rules *r);              /* positive errno */
const char *rules_op_name(uint32_t op);              /* of the system call that it stands for */
/* Of what may be written to the host's files, in bytes, and of the names that may be made there. -> how much of `want` is granted, and taken */
uint64_t rules_take_bytes(struct rules *r, uint64_t want);
void rules_give_back(struct rules *r, uint64_t bytes);           /* granted, but not written */
int rules_take_name(struct rules *r);                            /* 0, or -EDQUOT */
void rules_give_name(struct rules *r);                           /* taken, but not made */
void rules_left(const struct rules *r, uint64_t *bytes, uint64_t *names);       /* what may still be written and made */
void rules_leave(struct rules *r, uint64_t bytes, uint64_t names);              /* not more than that */
int rules_files(const struct rules *r);              /* is there any about files? */
int rules_guest(const struct rules *r, uint32_t syscall);
#endif
