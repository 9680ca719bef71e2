"""Copies of running agents: each goes on from where the one stood, as itself."""

import asyncio
from pathlib import Path

import pytest

from .forks import forks

pytestmark = pytest.mark.kvm

COUNTER = """
import os, sys, time
n = 0
while True:
    n += 1
    if n % 100 == 0:
        print(n, os.getpid(), flush=True)
"""


def test_a_counter_goes_on_in_each_copy(agentfw_environment: dict[str, str]) -> None:
    async def main() -> None:
        async with forks(agentfw_environment) as every:
            agent = await every.start(COUNTER)
            for _ in range(20):
                await agent.line()
            saved = await agent.save()
            own = (await agent.line()).split()[1]
            children = await every.go_on(saved, 3)
            saved.close()
            for child in children:
                await child.line()  # it may have stood in the middle of writing that
            first = [(await child.line()).split() for child in children]
            assert len({pid for _, pid in first} | {own}) == 4
            counts = [int(count) for count, _ in first]
            assert max(counts) - min(counts) <= 100 and min(counts) > 2000
            for child in children:
                numbers = [int((await child.line()).split()[0]) for _ in range(5)]
                assert numbers == list(range(numbers[0], numbers[0] + 500, 100))
            numbers = [int((await agent.line()).split()[0]) for _ in range(50)]
            assert numbers == list(range(numbers[0], numbers[0] + 5000, 100))

    asyncio.run(main())


def check(environment: dict[str, str], code: str, children: int = 2, wait: str = "ready") -> list[list[str]]:
    """Runs `code` up to the line `wait`, forks it then; -> the further lines of it and of its copies, which all must end well.
    Its standard input ends when that is done."""

    async def main() -> list[list[str]]:
        async with forks(environment) as every:
            agent = await every.start(code)
            await agent.until(wait)
            await asyncio.sleep(0.05)
            saved = await agent.save()
            agents = [agent, *await every.go_on(saved, children)]
            saved.close()
            found = []
            for each in agents:
                each.cell.stream(each.vm, 0).send_eof()
                lines = []
                while (line := await each.line()) != "end":
                    lines.append(line)
                found.append(lines)
                report = await each.end()
                assert (report.kind, report.code) == ("code", 0), report
            return found

    return asyncio.run(main())


def test_what_is_random_differs(agentfw_environment: dict[str, str]) -> None:
    code = """
import os, random, secrets, ssl, sys, tempfile, time, uuid
random.seed(1); random.gauss(0, 1)
list(zip(range(3), tempfile._get_candidate_names()))
uuid.uuid1()
context = ssl.create_default_context()
boot = open("/proc/sys/kernel/random/boot_id").read()
def hello():
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        data = outgoing.read()
        return data[11:43].hex(), data[44:76].hex(), data.partition(b"\\0\\x1d\\0\\x20")[2][:32].hex()  # random, session, X25519
hello()
print("ready", flush=True)
sys.stdin.read()
print(random.random(), random.getrandbits(64), random.gauss(0, 1))
print(os.urandom(8).hex())
print(uuid.uuid4(), secrets.token_hex(8))
print(next(tempfile._get_candidate_names()))
print(ssl.RAND_bytes(8).hex())
print(os.getpid(), open("/proc/self/stat").read().split()[0], open("/proc/agentfw").read().strip())
print(*hello())
time = uuid.uuid1()
print(f"{time.node:x}-{time.clock_seq:x}", open("/proc/sys/kernel/random/boot_id").read().strip())
print("end", flush=True)
"""
    found = check(agentfw_environment, code)
    for kind in zip(*found, strict=False):
        values = [value for line in kind for value in line.split() if value]
        assert len(set(values)) == len(values) or kind[0].split()[0].isdigit(), kind
    assert all(len(lines) == 8 and len(lines[6].split()) == 3 for lines in found)
    assert [lines[5].split()[2:] for lines in found] == [[], ['{"index":', "0}"], ['{"index":', "1}"]]
    assert all(lines[5].split()[0] == lines[5].split()[1] for lines in found)


def test_threads_that_draw_random_numbers_differ_at_once(agentfw_environment: dict[str, str]) -> None:
    """Also while the main thread waits in one call all the time."""
    code = """
import random, threading, time
random.seed(7)
go = threading.Event()
def draw():
    go.wait(3)  # it is forked by then
    print(random.random(), flush=True)
thread = threading.Thread(target=draw)
thread.start()
print("ready", flush=True)
thread.join()
print("end", flush=True)
"""
    found = check(agentfw_environment, code, 3)
    assert len({lines[0] for lines in found}) == 4


def test_calls_that_wait_go_on_waiting(agentfw_environment: dict[str, str]) -> None:
    """Sleeps, selects and locks end when they would have; nothing is interrupted, clocks do not jump."""
    code = """
import ctypes, errno, os, queue, select, socket, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def clocks():
    while True:
        found = time.monotonic(), time.time(), time.process_time()
        if time.monotonic() - found[0] < 0.02:  # else somebody had the CPU in between
            return found
begun = clocks()
results = queue.Queue()
def sleeper():
    start = time.monotonic()
    time.sleep(2)
    results.put(("sleep", time.monotonic() - start))
def native():
    start = time.monotonic()
    r = libc.poll(None, 0, 2000)
    results.put(("poll", time.monotonic() - start if r == 0 else -ctypes.get_errno()))
def epoll():
    start = time.monotonic()
    with select.epoll() as e:
        found = e.poll(2)
    results.put(("epoll", time.monotonic() - start if not found else -1))
def condition():
    start = time.monotonic()
    c = threading.Condition()
    with c:
        c.wait(2)
    results.put(("condition", time.monotonic() - start))
def pair():
    a, b = socket.socketpair()
    t = threading.Timer(2, lambda: b.send(b"x"))
    t.start()
    start = time.monotonic()
    a.recv(1)
    results.put(("pair", time.monotonic() - start))
threads = [threading.Thread(target=t) for t in (sleeper, native, epoll, condition, pair)]
for t in threads: t.start()
print("ready", flush=True)
start = time.monotonic()
r = libc.usleep(999000) or libc.usleep(999000)
print("main", time.monotonic() - start if r == 0 else -ctypes.get_errno())
for t in threads: t.join()
while not results.empty(): print(*results.get())
now = clocks()
print("clocks", *(b - a for a, b in zip(begun, now)))
print("end", flush=True)
"""
    for lines in check(agentfw_environment, code):
        values = {name: [float(each) for each in rest] for name, *rest in (line.split() for line in lines)}
        assert set(values) == {"main", "sleep", "poll", "epoll", "condition", "pair", "clocks"}, lines
        for name, (first, *_) in values.items():
            assert 1.99 <= first < 60, (name, values)
        mono, real, cpu = values["clocks"]
        assert abs(mono - real) < 0.1 and 0 < cpu < mono


def test_connections_are_reset(agentfw_environment: dict[str, str]) -> None:
    code = """
import errno, select, socket, threading, time
def connected():
    s = socket.create_connection(("192.0.2.1", 80))
    return s
received, polled, written, udp = connected(), connected(), connected(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.connect(("192.0.2.9", 53)); udp.send(b"question")
written.setblocking(False)
try:
    while True: written.send(b"x" * 4096)
except BlockingIOError: pass
written.setblocking(True)
poller = select.poll(); poller.register(polled, select.POLLIN)
lines = []
def call(name, function, *args):
    try:
        lines.append((name, function(*args)))
    except OSError as error:
        lines.append((name, errno.errorcode.get(error.errno)))
threads = [threading.Thread(target=call, args=each) for each in (
    ("recv", received.recv, 10), ("send", written.send, b"more"), ("poll", poller.poll), ("udp", udp.recv, 10),
    ("connect", socket.create_connection, ("192.0.2.2", 80)))]
for t in threads: t.start()
time.sleep(0.2)
print("ready", flush=True)
for t in threads: t.join()
call("after poll", polled.recv, 10)
call("again", polled.recv, 10)
call("write after", polled.send, b"x")
fresh = socket.create_connection(("192.0.2.3", 80))
lines.append(("fresh", fresh.recv(10)))
udp.send(b"again")
lines.append(("udp again", udp.recv(10)))
for name, value in sorted(lines): print(name, value)
print("end", flush=True)
"""

    async def main() -> None:
        async with forks(agentfw_environment) as every:
            agent = await every.start(code)
            first = {}
            for _ in range(5):
                flow = await agent.flow()
                first[flow.address] = flow
                if flow.address == "192.0.2.1":
                    flow.opened()
            await agent.until("ready")
            saved = await agent.save()
            (child,) = await every.go_on(saved, 1)
            for _ in range(2):
                flow = await child.flow()
                if flow.kind == "udp":
                    data, *_ = await flow.receive_datagram()
                    assert data == b"again"
                    await flow.send_datagram(b"answer", "192.0.2.9", 53)
                else:
                    assert flow.address == "192.0.2.3"
                    flow.opened()
                    await flow.send(b"hello")
            lines = {}
            while (line := await child.line()) != "end":
                name, value = line.rsplit(" ", 1)
                lines[name] = value
            assert (await child.end()).code == 0
            poll = lines.pop(next(name for name in lines if name.startswith("poll")))
            assert poll.endswith(")]")
            assert lines == {
                "recv": "ECONNRESET",
                "send": "ECONNRESET",
                "udp": "ECONNRESET",
                "connect": "ECONNRESET",
                "after poll": "ECONNRESET",
                "again": "b''",
                "write after": "EPIPE",
                "fresh": "b'hello'",
                "udp again": "b'answer'",
            }
            assert agent.cell.live(0)
            assert not first["192.0.2.2"]._closed  # the agent's own are as they were

    asyncio.run(main())


def test_names_are_looked_up_again(agentfw_environment: dict[str, str]) -> None:
    """A fork in the middle of getaddrinfo() costs no time-out of the resolver."""
    code = """
import socket, time
print("ready", flush=True)
start = time.monotonic()
try:
    print(socket.gethostbyname("name.example"))
except OSError as error:
    print(error)
print(time.monotonic() - start)
print("end", flush=True)
"""

    async def main() -> None:
        async with forks(agentfw_environment) as every:
            agent = await every.start(code)
            await agent.until("ready")
            flow = await agent.flow()
            await flow.receive_datagram()
            saved = await agent.save()
            (child,) = await every.go_on(saved, 1)
            flow = await child.flow()
            query, address, port = await flow.receive_datagram()
            answer = query[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + query[12:] + b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\xcb\0\x71\7"
            await flow.send_datagram(answer, address, port)
            assert await child.line() == "203.0.113.7"
            assert float(await child.line()) < 4.5

    asyncio.run(main())


def test_files_go_on(agentfw_environment: dict[str, str]) -> None:
    """Private ones with what is in them, their names, times, offsets and locks; each copy changes its own."""
    code = """
import fcntl, hashlib, mmap, os, socket, sqlite3, stat, sys, tempfile, time
os.makedirs("/tmp/a/b"); os.chmod("/tmp/a", 0o711)
small = open("/tmp/a/small", "w+"); small.write("0123456789"); small.flush(); small.seek(4)
big = open("/tmp/a/b/big", "wb+"); big.write(bytes(range(256)) * 3000); big.flush(); big.seek(1000)
os.truncate("/tmp/a/b/big", 5 << 20)
gone = tempfile.TemporaryFile(); gone.write(b"unlinked"); gone.flush()
os.symlink("small", "/tmp/a/link"); os.link("/tmp/a/small", "/tmp/a/hard")
os.mkfifo("/tmp/pipe"); bound = socket.socket(socket.AF_UNIX); bound.bind("/tmp/socket")
os.utime("/tmp/a/small", (1000, 2000))
host = open(os.__file__); host.read(10)
listing = os.scandir("/tmp/a"); first = next(listing).name
shared = mmap.mmap(os.open("/tmp/a/map", os.O_RDWR | os.O_CREAT), 0) if 0 else None
fd = os.open("/tmp/a/map", os.O_RDWR | os.O_CREAT); os.ftruncate(fd, 8192)
shared = mmap.mmap(fd, 8192); shared[5000:5005] = b"there"
private = mmap.mmap(fd, 8192, flags=mmap.MAP_PRIVATE); private[0:3] = b"own"
fcntl.flock(small, fcntl.LOCK_EX)
db = sqlite3.connect("/tmp/db"); db.execute("pragma journal_mode=wal"); db.execute("create table t (x)")
db.execute("insert into t values (1)"); db.commit()
db.execute("insert into t values (2)")
os.chdir("/tmp/a")
print("ready", flush=True)
sys.stdin.read()
me = str(os.getpid())
print(small.read(2), big.read(2).hex(), gone.seek(0), gone.read(), host.read(5) == open(os.__file__).read(15)[10:])
print(sorted([first, *(e.name for e in listing)]), os.getcwd(), oct(os.stat(".").st_mode), os.stat("small").st_nlink, os.readlink("link"))
print(os.stat("small").st_mtime, os.stat("b/big").st_size, hashlib.sha256(open("b/big", "rb").read()).hexdigest())
print(shared[5000:5005], os.pread(fd, 5, 5000), private[0:3], os.pread(fd, 3, 0))
shared[0:4] = me.encode()[:4]
assert os.pread(fd, 4, 0) == me.encode()[:4], os.pread(fd, 4, 0)
other = open("small")
try:
    fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB); print("unlocked")
except BlockingIOError:
    print("locked")
db.execute("insert into t values (3)"); db.commit()
print(db.execute("select group_concat(x) from t").fetchone()[0], sqlite3.connect("/tmp/db").execute("pragma integrity_check").fetchone()[0])
small.seek(0); small.write(me); small.flush()
print(open("hard").read(len(me)) == me, os.statvfs("/tmp").f_bfree > 0)
print(stat.filemode(os.stat("/tmp/pipe").st_mode)[0], stat.filemode(os.stat("/tmp/socket").st_mode)[0])
print("end", flush=True)
"""
    found = check(agentfw_environment, code, 2)
    assert found[0] == found[1] == found[2]
    assert found[0][0] == "45 e8e9 0 b'unlinked' True"
    assert found[0][3:] == [
        "b'there' b'there' b'own' b'\\x00\\x00\\x00'",
        "locked",
        "1,2,3 ok",
        "True True",
        "p s",
    ]


def test_a_copy_is_forked_again(agentfw_environment: dict[str, str]) -> None:
    async def main() -> None:
        async with forks(agentfw_environment) as every:
            agents = [await every.start(COUNTER)]
            pids = set()
            last = 0
            for _ in range(4):
                agent = agents[-1]
                await agent.line()
                count, pid = (await agent.line()).split()
                assert int(count) > last
                last = int(count)
                pids.add(pid)
                with await agent.save() as saved:
                    agents += await every.go_on(saved, 1)
            assert len(pids) == 4

    asyncio.run(main())


def test_event_loops_go_on(agentfw_environment: dict[str, str]) -> None:
    """What asks for the running loop finds it; its executor's threads work on."""
    code = """
import asyncio, time
turns = 0
async def body():
    global turns
    while not stop:
        await asyncio.sleep(0.005)
        async with asyncio.timeout(5):
            assert asyncio.current_task() is not None
            await asyncio.get_running_loop().run_in_executor(None, time.time)
        turns += 1
stop = False
async def main():
    global stop
    task = asyncio.create_task(body())
    print("ready", flush=True)
    await asyncio.sleep(0.5)
    before = turns
    until = time.monotonic() + 30
    while turns == before and time.monotonic() < until:
        await asyncio.sleep(0.05)
    print(turns > before)
    stop = True
    await task
asyncio.run(main())
asyncio.run(asyncio.sleep(0))
print("end", flush=True)
"""
    assert check(agentfw_environment, code, 2) == [["True"]] * 3


# vector registers are filled from the first argument, kept until the third's word is not 0, and written to the second
KEEP_YMM = "c5fe6f3f c57e6f7f20 833a00 74fb c5fe7f3e c57e7f7e20 c5f877 c3"
KEEP_ZMM = "6261fe486f1f c57e6f7f20 833a00 74fb 6261fe487f1e c57e7f7e20 c5f877 c3"


@pytest.mark.parametrize("machine_code", [KEEP_YMM, KEEP_ZMM], ids=["ymm", "zmm"])
def test_vectors_live_on(machine_code: str, agentfw_environment: dict[str, str]) -> None:
    """In code that computes at the moment of the copy, without a call, while the main thread waits."""
    pvm = Path("/sys/module/kvm_pvm").exists()  # elsewhere guests have the baseline's registers only
    if machine_code == KEEP_ZMM and not (pvm and "avx512f" in Path("/proc/cpuinfo").read_text()):
        pytest.skip("guests have no AVX-512 here")
    code = f"""
import ctypes, mmap, sys, threading
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("{machine_code}"))
keep = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
flag = ctypes.c_int(0)
values = [bytes(range(i, i + 64)) for i in range(3)]
found = [ctypes.create_string_buffer(64) for _ in values]
threads = [threading.Thread(target=keep, args=(v, ctypes.addressof(f), ctypes.addressof(flag))) for v, f in zip(values, found)]
for thread in threads:
    thread.start()
print("ready", flush=True)
sys.stdin.read()
flag.value = 1
for thread in threads:
    thread.join()
print([f.raw[32:] == v[32:] and f.raw[:32] == v[:32] for v, f in zip(values, found)])
print("end", flush=True)
"""
    assert check(agentfw_environment, code) == [["[True, True, True]"]] * 3
