"""A running agent is forked, here and on the emulated hardware KVM: copies go on counting, each as itself."""

from __future__ import annotations

import asyncio
import json

import agentfw

CODE = """
import json, os, threading
count = 0
def more():
    global count
    while True: count += 1
threading.Thread(target=more, daemon=True).start()
print("begun", flush=True)
while not (told := open("/proc/agentfw").read()): pass
print(json.dumps([count, os.getpid(), os.urandom(8).hex(), json.loads(told)["index"]]), flush=True)
os._exit(0)
"""


async def main() -> None:
    async with agentfw.Pool(size=4, idle=1) as pool:
        job = await pool.submit(agentfw.Code(CODE))
        async for piece in job.output():
            if b"begun" in piece.data:
                break
        copies = await job.fork(2)
        said = []
        for copy in copies:
            info = await copy.wait()
            text = b"".join([piece.data async for piece in copy.output()])
            print(info, text, flush=True)
            said.append(json.loads(text))
        await job.kill()
        await job.wait()
    (one, pid_one, random_one, first), (other, pid_other, random_other, second) = said
    if pid_one == pid_other or random_one == random_other or (first, second) != (0, 1) or not (one and other):
        raise SystemExit(f"error: {said}")
    print(f"forked: {one} and {other}")


if __name__ == "__main__":
    asyncio.run(main())
