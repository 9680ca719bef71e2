"""Writes to so many pages, half of them new ones, and tells when it ends: as late as a program can."""

import os
import sys
import time

pages = int(sys.argv[1])
fresh = bytearray(pages // 2 * 4096)
for at in range(0, len(fresh), 4096):
    fresh[at] = 1
kept = [bytes(2048) + bytes([n & 255]) for n in range(pages)]
os.write(1, b"%d" % time.monotonic_ns())
