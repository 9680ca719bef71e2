"""asyncio: timers in order and never early, executors, queues, subprocess refused."""

import asyncio
import time


async def main() -> None:
    start = time.monotonic()
    await asyncio.gather(*[asyncio.sleep(0.05) for _ in range(500)])
    print("gather", 0.05 <= time.monotonic() - start < 20)  # one after the other they take 25 s

    order: list[int] = []

    async def after(delay: float, tag: int) -> None:
        await asyncio.sleep(delay)
        order.append(tag)

    await asyncio.gather(after(0.09, 3), after(0.03, 1), after(0.06, 2))
    print("order", order)

    early = []
    for ms in range(1, 20):
        start = time.monotonic()
        await asyncio.sleep(ms / 1000)
        early.append(time.monotonic() - start < ms / 1000 - 0.001)
    print("early", any(early))

    loop = asyncio.get_running_loop()
    print("executor", await loop.run_in_executor(None, lambda: (time.sleep(0.02), 5)[1]))
    print("to_thread", sum(await asyncio.gather(*[asyncio.to_thread(lambda x=x: x) for x in range(50)])))
    try:
        await asyncio.wait_for(asyncio.sleep(5), 0.03)
    except TimeoutError:
        print("time-out")

    queue: asyncio.Queue = asyncio.Queue(5)

    async def produce() -> None:
        for i in range(1000):
            await queue.put(i)

    async def consume() -> int:
        return sum([await queue.get() for _ in range(1000)])

    print("queue", (await asyncio.gather(produce(), consume()))[1])

    # a callback from another thread wakes the loop, busy or not
    done = asyncio.Event()
    loop.run_in_executor(None, lambda: (time.sleep(0.02), loop.call_soon_threadsafe(done.set)))
    await asyncio.wait_for(done.wait(), 5)
    print("woken by a thread")

    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    def spin() -> bool:
        until = time.monotonic() + 20
        while ticks < 5 and time.monotonic() < until:
            pass
        return ticks >= 5

    task = asyncio.create_task(tick())
    print("the loop runs beside a busy thread", await asyncio.to_thread(spin))
    task.cancel()


asyncio.run(main())
