/* CPU features by name, for those who look at snapshots without a cell. */
#include <stddef.h>
#include "cell/needs.h"
#include "internal.h"

const char *afw_need(uint32_t index, uint32_t *word, uint32_t *bit, int *must)
{
    if (index >= sizeof needs_all / sizeof *needs_all)
        return 0;
    *word = needs_all[index].word;
    *bit = needs_all[index].bit;
    *must = 0;
    for (size_t i = 0; i < sizeof needs_must / sizeof *needs_must; i++)
        *must |= needs_must[i].word == *word && needs_must[i].bit == *bit;
    return needs_all[index].name;
}
