"""Memory: many small objects, large blocks, growing, maps, deep recursion."""

import gc
import mmap
import sys
import tracemalloc

objects = [bytes(100) for _ in range(300_000)]
print("small", len(objects), sum(map(len, objects)))
del objects
gc.collect()
for size in (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26):
    for _ in range(3):
        block = bytearray(size)
        print(size, block.count(0) == size)
        block[:] = b"\xaa" * size
        del block
grown = bytearray()
for i in range(400):
    grown += bytes([i & 255]) * 50_000
print("grown", len(grown), all(grown[i * 50_000] == i & 255 and grown[i * 50_000 + 49_999] == i & 255 for i in range(400)))
with mmap.mmap(-1, 1 << 20) as region:
    region[:5] = b"hello"
    print("map", region[:5], region.find(b"lo"), len(region))
try:
    bytearray(1 << 45)
except MemoryError:
    print("MemoryError")


def deep(n: int) -> int:
    return n and 1 + deep(n - 1)


sys.setrecursionlimit(20_000)
print("deep", deep(15_000))
nested: list = []
for _ in range(900):
    nested = [nested]
print("nested", len(repr(nested)))
tracemalloc.start()
kept = [str(i) for i in range(10_000)]
print("traced", tracemalloc.get_traced_memory()[0] > 500_000, len(kept))
