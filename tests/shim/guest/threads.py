"""Threads, locks, queues, pools: what is printed does not depend on speed."""

import itertools
import queue
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

total = 0
lock = threading.Lock()


def add() -> None:
    global total
    for _ in range(5000):
        with lock:
            total += 1


def run(*targets) -> None:
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


run(*[add] * 8)
print("locks", total)

channel: queue.Queue = queue.Queue(10)
received = []


def produce() -> None:
    for i in range(3000):
        channel.put(i)
    channel.put(None)


def consume() -> None:
    while (item := channel.get()) is not None:
        received.append(item)


run(produce, consume)
print("queue", received == list(range(3000)))

stop = False
counts = [0] * 4


def spin(i: int) -> None:
    while not stop:
        counts[i] += 1


threads = [threading.Thread(target=spin, args=(i,)) for i in range(4)]
for thread in threads:
    thread.start()
deadline = time.monotonic() + 20  # an end, if one of them starves; how soon each has a turn is the machine's load
while not all(counts) and time.monotonic() < deadline:
    time.sleep(0.1)
stop = True
for thread in threads:
    thread.join()
print("all had their turn", all(counts))

event = threading.Event()
start = time.monotonic()
print("timed out", event.wait(0.05), time.monotonic() - start >= 0.05)
waiters = [threading.Thread(target=event.wait) for _ in range(120)]
for waiter in waiters:
    waiter.start()
print("alive", threading.active_count())
event.set()
for waiter in waiters:
    waiter.join()

condition = threading.Condition()
woken = []


def wait() -> None:
    with condition:
        condition.wait_for(lambda: ready)
        woken.append(1)


ready = False
waiters = [threading.Thread(target=wait) for _ in range(30)]
for waiter in waiters:
    waiter.start()
with condition:
    ready = True
    condition.notify_all()
for waiter in waiters:
    waiter.join()
print("woken", len(woken))

with ThreadPoolExecutor(16) as pool:
    print("pool", sum(pool.map(lambda x: x * x, range(1000))))

    def nap(_: int) -> tuple[float, float]:
        begun = time.monotonic()
        time.sleep(0.25)
        return begun, time.monotonic()

    naps = sorted(pool.map(nap, range(16)))
    print("sleeps overlap", any(later < end for (_, end), (later, _) in itertools.pairwise(naps)))

barrier = threading.Barrier(5)
order: list[int] = []


def meet() -> None:
    for round in range(20):
        barrier.wait()
        order.append(round)


run(*[meet] * 5)
print("barrier", order == sorted(order))
ids = set()
run(*[lambda: ids.add(threading.get_native_id())] * 3)
print("native ids", threading.get_native_id() not in ids, len(ids) >= 1)
local = threading.local()
local.x = 1
seen = []
run(lambda: seen.append(hasattr(local, "x")))
print("local", seen)


def deep(n: int) -> int:
    return n and 1 + deep(n - 1)


sys.setrecursionlimit(5000)
with ThreadPoolExecutor(1) as pool:
    print("recursion in a thread", pool.submit(deep, 4000).result())
