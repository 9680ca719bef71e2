"""What must differ between any two VMs: prints it, a name and a value a line. Names with a star are clocks."""

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
