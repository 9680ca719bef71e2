"""What must differ between any two VMs: prints it, a name and a value a line. Names with a star are clocks."""

import concurrent.futures
import contextlib
import email.generator
import email.utils
import multiprocessing.process
import os
import random
import secrets
import ssl
import sys
import tempfile
import time
import uuid


def say(name, value):
    print(name, value, flush=True)


def hello():
    """Of a ClientHello: random, session id, and what it offers for the exchange of keys. (TLS to localhost is the guest's own.)"""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    data = outgoing.read()[11:]  # heads of record and message, version
    drawn, data = data[:32], data[32:]
    session, data = data[1 : 1 + data[0]], data[1 + data[0] :]
    data = data[2 + int.from_bytes(data[:2], "big") :]  # ciphers
    data = data[1 + data[0] + 2 :]  # compression, size of the extensions
    while data[:2] != b"\x00\x33":  # key_share
        data = data[4 + int.from_bytes(data[2:4], "big") :]
    size = int.from_bytes(data[2:4], "big")
    return drawn.hex(), session.hex(), data[10 : 4 + size].hex()


def kernel(name):
    with open("/proc/sys/kernel/random/" + name) as file:
        return file.read().strip()


say("random", random.random())
say("getrandbits", random.getrandbits(64))
say("gauss", random.gauss(0, 1))
say("SystemRandom", random.SystemRandom().getrandbits(64))
say("os.urandom", os.urandom(16).hex())
say("secrets", secrets.token_hex(16))
say("uuid1", uuid.uuid1())
say("uuid1.node-and-clock", f"{uuid.uuid1().node:x}-{uuid.uuid1().clock_seq:x}")
say("uuid4", uuid.uuid4())
say("ssl", ssl.RAND_bytes(16).hex())
with concurrent.futures.ThreadPoolExecutor(1) as pool:  # OpenSSL has a generator for each thread
    say("ssl.thread", pool.submit(ssl.RAND_bytes, 16).result().hex())
say("message-id", email.utils.make_msgid(domain="x"))
say("boundary", email.generator.Generator._make_boundary())
for name, value in zip(("random", "session", "share"), hello(), strict=True):
    say("ssl.hello." + name, value)
say("kernel.uuid", kernel("uuid"))
say("boot_id", kernel("boot_id"))
say("tempfile", next(tempfile._get_candidate_names()))
with tempfile.NamedTemporaryFile() as named:
    say("tempfile.name", named.name)
say("pid", os.getpid())
say("authkey", bytes(multiprocessing.process.current_process().authkey).hex())
if "numpy" in sys.argv:
    import numpy

    say("numpy.random", numpy.random.random())
    say("numpy.integers", numpy.random.randint(0, 1 << 62))
    say("numpy.default_rng", numpy.random.default_rng().integers(0, 1 << 62))
say("*time", time.time())
say("*monotonic", time.monotonic())
