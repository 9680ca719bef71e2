"""Python's signal module: handlers, timers, masks, waiting."""

import os
import select
import signal
import threading
import time

got: list[int] = []
signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
os.kill(os.getpid(), signal.SIGUSR1)
signal.raise_signal(signal.SIGUSR1)
print("raised", got == [signal.SIGUSR1] * 2)

signal.signal(signal.SIGALRM, lambda number, frame: got.append(number))
signal.setitimer(signal.ITIMER_REAL, 0.02)
start = time.monotonic()
time.sleep(0.1)
print("sleep goes on", time.monotonic() - start >= 0.1, got[-1] == signal.SIGALRM)


class Alarm(Exception):
    pass


armed = False


def alarm(number, frame):
    global armed
    if armed:
        armed = False
        raise Alarm


signal.signal(signal.SIGALRM, alarm)


def interrupted(name, function) -> None:
    """The timer repeats: a signal right before a blocking call is seen by Python only after it."""
    global armed
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.05)
        function()
        print(name, "was not interrupted")
    except Alarm:
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(name)


def spin() -> None:
    while True:
        time.monotonic()


interrupted("spin", spin)
interrupted("lock", threading.Event().wait)
interrupted("timed lock", lambda: threading.Event().wait(20))
interrupted("select", lambda: select.select([], [], [], 20))
interrupted("poll", lambda: select.poll().poll(20000))
interrupted("sleep", lambda: time.sleep(20))
read, write = os.pipe()
interrupted("pipe", lambda: os.read(read, 1))

signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
ticks = 0
while ticks < 5:
    armed = True
    try:
        spin()
    except Alarm:
        ticks += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print("ticks", ticks, signal.getitimer(signal.ITIMER_REAL))

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
print("pending", signal.sigpending())
print("wait", signal.sigwait([signal.SIGUSR1]), signal.sigtimedwait([signal.SIGUSR1], 0.01))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])

count = len(got)
main = threading.main_thread().ident
thread = threading.Thread(target=lambda: (time.sleep(0.02), signal.pthread_kill(main, signal.SIGUSR1)))
thread.start()
time.sleep(0.06)
thread.join()
print("from a thread", len(got) == count + 1)

wake, poke = os.pipe()
os.set_blocking(poke, False)
signal.set_wakeup_fd(poke)
signal.raise_signal(signal.SIGUSR1)
print("wakeup fd", os.read(wake, 10) == bytes([signal.SIGUSR1]))
