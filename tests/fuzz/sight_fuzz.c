/* lib/sight.c: a cell that writes what it likes into what it tells of a VM.
 * Input: n_ops, n_files, more_files; then pieces of the record: where (u32), how many bytes, the bytes. */
#include "input.h"
#include "internal.h"

#define MOST ((1ull << 48) - 1)

static uint64_t at(const uint8_t *bytes, size_t size)
{
    uint64_t v = 0;
    memcpy(&v, bytes, size);
    return v;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    uint8_t *record = calloc(1, AFW_SIGHT_SIZE), *out = malloc(AFW_SIGHT_SIZE);   /* so that a byte too many is seen */
    struct afw_sight *s = (struct afw_sight *)record;
    s->n_ops = (uint32_t)number(&in, 4);
    s->n_files = (uint32_t)number(&in, 4);
    s->more_files = number(&in, 8);
    while (in.left) {
        uint64_t where = number(&in, 4) % AFW_SIGHT_SIZE, n = number(&in, 1), room = AFW_SIGHT_SIZE - where;
        take(&in, record + where, n < room ? n : room);
    }
    int64_t n = sight_copy(s, out);
    must(n >= 24 && n <= AFW_SIGHT_SIZE, "a copy of another size");
    uint64_t ops = at(out, 4), calls = at(out + 4, 4), files = at(out + 8, 4);
    must(ops <= AFW_SIGHT_OPS && calls <= AFW_TABLE_SIZE && files <= AFW_SIGHT_FILES && at(out + 16, 8) <= MOST, "more than there can be");
    const uint8_t *p = out + 24, *end = out + n;
    for (uint64_t i = 0; i < ops; i++, p += 24)
        must(at(p + 8, 8) <= MOST && at(p + 16, 8) <= MOST, "an operation's numbers");
    p += 8 * calls;
    for (uint64_t i = 0; i < files; i++, p += at(p, 4)) {
        must(end - p >= 24, "a file's entry is cut");
        must(at(p, 4) % 8 == 0 && (int64_t)at(p, 4) <= end - p && at(p + 12, 2) <= AFW_SIGHT_PATH && 24 + at(p + 12, 2) <= at(p, 4), "a file's entry");
    }
    must(p == end, "what is there and what is said to be there");
    free(record);
    free(out);
    return 0;
}
