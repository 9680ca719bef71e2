"""In a VM: looks at files again and again until it hears, in the way argv[1] names, that the host has changed them; then they must be as they
are now. A line a round: what was wrong, or nothing. `kept_probe.py WAY ROUNDS`; /data is shared"""

# The calls below pathlib are what is tested.
# ruff: noqa
import fcntl
import os
import select
import sys
import threading

WAY, ROUNDS = sys.argv[1], int(sys.argv[2])
os.chdir("/data")
MANY = 50
heard = -1
sizes = [0] * MANY
result = os.open("result", os.O_RDONLY)
counter = os.open("counter", os.O_RDONLY)


def listen() -> None:
    global heard
    for line in sys.stdin:
        heard = int(line)


def told(n: int) -> bool:
    if WAY == "stream":
        return bool(select.select([0], [], [], 0)[0]) and int(os.read(0, 100)) == n
    if WAY == "thread":
        return heard == n
    if WAY == "name":
        return os.path.exists(f"told{n}")
    if WAY == "listing":
        return f"told{n}" in os.listdir(".")
    if WAY == "content":
        return int(os.pread(counter, 100, 0) or b"-1") == n
    try:
        fcntl.flock(locks[n], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def seen(n: int) -> tuple[object, ...]:
    return (
        os.stat("result").st_size,
        os.path.exists(f"new{n}"),
        os.path.exists(f"old{n}"),
        os.stat("link").st_ino == os.stat("result").st_ino,
        os.fstat(result).st_size,
        len(os.pread(result, 4096, 0)),
        len(open("result", "rb").read()),
        sum(os.stat(f"many/{name}").st_size for name in os.listdir("many")),
        [os.stat(f"many/{k}.txt").st_size for k in range(MANY)],
    )


if WAY == "thread":
    threading.Thread(target=listen, daemon=True).start()
locks = [os.open(f"lock{n}", os.O_RDWR) for n in range(ROUNDS)] if WAY == "lock" else []
print("ready", flush=True)
for n in range(ROUNDS):
    before = seen(n)
    while not told(n):
        before = seen(n)
    now = seen(n)
    sizes[n * 7 % MANY] += 1
    expected = (n + 1, True, False, n % 2 == 0, n + 1, n + 1, n + 1, n + 1, sizes)
    print("" if now == expected else f"{WAY} {n}: {before}, then {now}, not {expected}", flush=True)
