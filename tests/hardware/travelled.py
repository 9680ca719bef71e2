"""Run from a snapshot that another KVM made: libraries' code that chose by CPU features, and what a new VM must have."""

import bz2
import hashlib
import json
import lzma
import os
import random
import re
import ssl
import struct
import threading
import time
import zlib
from decimal import Decimal

text = "the quick brown fox " * 5000
data = text.encode()
assert hashlib.sha256(data).hexdigest() == "8be8a1fbbe29c75e2f2374b8167b3e3485bbfc15ad0b5144c2205f20df6c335f"
assert hashlib.blake2b(data).digest() != hashlib.sha3_256(data).digest()
for packer in (zlib, bz2, lzma):
    assert packer.decompress(packer.compress(data)) == data
assert json.loads(json.dumps({"a": [1.5, None, text]}))["a"][2] == text
assert len(re.findall(r"br(o)wn", text)) == 5000 and text.find("fox") == 16 and data.count(b"o") == 10000
assert data[1:].translate(bytes.maketrans(b"t", b"T")).count(b"T") == 4999
assert Decimal(2).sqrt() ** 2 - 2 < Decimal("1e-20") and struct.unpack("<d", struct.pack("<d", 1.25)) == (1.25,)
floats = [x * 0.1 for x in range(1000)]
assert abs(sum(floats) - 49950.0) < 1e-6
context = ssl.create_default_context()
assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
numbers = []
threads = [threading.Thread(target=lambda: numbers.append(random.random())) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(set(numbers)) == 4
before = time.monotonic()
time.sleep(0.05)
assert 0.05 <= time.monotonic() - before < 30
print(f"travelled: pid {os.getpid()}, {random.random():.6f}")
