"""An agent of bench/fleet.py with the OpenAI SDK: two calls, and it waits for a line on stdin between them."""

import time

first = time.monotonic_ns()

import json  # noqa: E402
import sys  # noqa: E402

import openai  # noqa: E402

imported = time.monotonic_ns()
client = openai.OpenAI(timeout=120)


def call():
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
    assert answer.choices[0].message.content == "echo: hello", answer


call()
print(json.dumps({"first": first, "import": imported - first, "first_call": time.monotonic_ns() - imported}), flush=True)
if sys.argv[3] == "1" and not sys.stdin.readline():
    raise SystemExit("nobody said go on")
call()
print("[]", flush=True)
