"""An agent with some state that is forked by bench/fork.py: MEGABYTES of objects, half of them in many small ones."""

import json
import random

documents = [{"id": i, "text": "x" * 200, "scores": [random.random() for _ in range(8)]} for i in range(1000 * MEGABYTES)]  # noqa: F821
block = bytearray(random.randbytes(1 << 20) * (MEGABYTES // 2))  # noqa: F821
text = json.dumps(documents)

# -- the opponent has the state only
import sys  # noqa: E402
import time  # noqa: E402

print("ready", flush=True)
while not open("/proc/agentfw").read():
    time.sleep(0.001)
print("here", flush=True)
sys.stdin.read()
time.sleep(3600)
