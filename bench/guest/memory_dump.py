"""Writes its own memory: AT_RANDOM's 16 bytes, their address (u64), malloc's mark of freed pieces (8 bytes), then pages that are
not zero, each behind its address (u64)."""

import contextlib
import ctypes
import os
import random
import struct

PAGE = 4096
SHIM_END = 0x280000  # AFW_SITES (abi.h)
TOP = 1 << 30  # reservations that are never written lie above


def put(page):
    view = memoryview(ctypes.string_at(page, PAGE))  # (a copy: write() takes no memory of the shim's)
    view = memoryview(struct.pack("<Q", page) + bytes(view))
    while view:
        view = view[os.write(1, view) :]


def readable():
    """Addresses of pages that there are: a byte of each is written to a pipe."""
    ends = os.pipe()
    write = ctypes.CDLL(None).write
    write.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
    held = 0
    for page in range(SHIM_END, TOP, PAGE):
        if write(ends[1], page, 1) == 1:
            held += 1
            if held == 50_000:
                os.read(ends[0], held)
                held = 0
            yield page


def explained():
    """The C library's own random words: AT_RANDOM's sixteen bytes, and the mark of freed pieces of memory."""
    libc = ctypes.CDLL(None)
    libc.getauxval.restype = libc.malloc.restype = ctypes.c_void_p
    libc.getauxval.argtypes = (ctypes.c_ulong,)
    libc.free.argtypes = (ctypes.c_void_p,)
    piece = libc.malloc(40)
    libc.free(piece)
    at_random = libc.getauxval(25)
    return ctypes.string_at(at_random, 16) + struct.pack("<Q", at_random) + ctypes.string_at(piece + 8, 8)


def draw():
    """Generators that notice the new process when they are used next have done so."""
    random.random()
    with contextlib.suppress(OSError):
        for function in ("RAND_bytes", "RAND_priv_bytes"):
            ctypes.CDLL("libcrypto.so.3")[function](ctypes.create_string_buffer(8), 8)


draw()
os.write(1, explained())
zeros = bytes(PAGE)
memcmp = ctypes.CDLL(None).memcmp
memcmp.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
pages = [*range(0x204000, SHIM_END, PAGE), *readable()]  # the control page, rings, shim and what it keeps; then the program's
for page in pages:
    if memcmp(page, zeros, PAGE):
        put(page)
