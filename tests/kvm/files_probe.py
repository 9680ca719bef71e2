"""Files by every way that Python has. Run natively and in a VM, in the directory that is named, it prints the same."""

# The calls below pathlib are what is tested.
# ruff: noqa
import _posixshmem
import errno
import fcntl
import filecmp
import glob
import hashlib
import logging
import logging.handlers
import mmap
import os
import pathlib
import random
import shelve
import shutil
import sqlite3
import stat
import sys
import tarfile
import tempfile
import threading
import zipfile

root = pathlib.Path(tempfile.mkdtemp(prefix="afw", dir=sys.argv[1]))
os.chdir(root)


def show(*a):
    print(*a, flush=True)


def err(f, *a, **k):
    try:
        f(*a, **k)
        return "ok"
    except OSError as e:
        return errno.errorcode[e.errno]


# os
os.makedirs("a/b/c")
pathlib.Path("a/b/c/f").write_text("x" * 1000)
show(sorted(os.walk("a")))
show(
    err(os.mkdir, "a"), err(os.rmdir, "a"), err(os.unlink, "a"), err(os.rmdir, "nope"), err(os.listdir, "a/b/c/f"), err(open, "a")
)
os.symlink("b/c/f", "a/l")
show(os.readlink("a/l"), pathlib.Path("a/l").resolve().relative_to(root), os.path.realpath("a/l").endswith("/a/b/c/f"))
show(os.stat("a/l").st_size, stat.filemode(os.lstat("a/l").st_mode), os.path.islink("a/l"))
os.link("a/b/c/f", "h")
show(os.stat("h").st_nlink, os.path.samefile("h", "a/l"))
os.replace("h", "h2")
show(os.path.exists("h"), os.path.exists("h2"))
show(err(os.rename, "a", "a/b/x"), err(os.rename, "a", "h2"), err(os.rename, "h2", "a"))
fd = os.open("fdtest", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
show(err(os.open, "fdtest", os.O_RDWR | os.O_CREAT | os.O_EXCL))
os.write(fd, b"0123456789")
os.lseek(fd, 3, 0)
show(os.read(fd, 4))
os.pwrite(fd, b"AB", 5)
show(os.pread(fd, 20, 0))
os.ftruncate(fd, 4)
show(os.fstat(fd).st_size, os.lseek(fd, 0, 2))
os.fsync(fd)
os.fchmod(fd, 0o640)
show(oct(os.fstat(fd).st_mode))
os.posix_fallocate(fd, 0, 9000)
show(os.fstat(fd).st_size)
os.close(fd)
show(err(os.close, fd), err(os.read, 999, 1))
os.utime("fdtest", ns=(10**18, 2 * 10**18 + 7))
s = os.stat("fdtest")
show(s.st_atime_ns, s.st_mtime_ns)
fd = os.open("a", os.O_DIRECTORY)
show(sorted(os.listdir(fd)), os.stat("b", dir_fd=fd).st_mode, sorted(e.name for e in os.scandir(fd)))
os.mkdir("viafd", dir_fd=fd)
os.rename("viafd", "viafd2", src_dir_fd=fd, dst_dir_fd=fd)
os.fchdir(fd)
show(os.getcwd()[len(str(root)) :])
os.chdir("..")
os.close(fd)
show(sorted((e.name, e.is_dir(), e.is_file(), e.is_symlink(), e.is_dir(follow_symlinks=False)) for e in os.scandir("a")))
show(
    err(os.truncate, "fdtest", 3), os.path.getsize("fdtest"), os.access("fdtest", os.R_OK | os.W_OK), os.access("fdtest", os.X_OK)
)
show(err(open, "fdtest/x"), err(open, "x" * 256), err(open, "y/" * 3000), err(os.stat, ""))
# copies
with open("big", "wb") as f:
    f.write(random.Random(1).randbytes(3_000_000))
show(hashlib.sha256(open("big", "rb").read()).hexdigest())
# a read() is short at the end of the file, and nowhere else
sizes = random.Random(7)
for most in (5, 40, 6000, 100_000):
    fd = os.open("big", os.O_RDONLY)
    show([len(os.read(fd, sizes.randint(1, most))) for _ in range(200)], os.lseek(fd, 0, os.SEEK_CUR))
    os.close(fd)
shutil.copy2("big", "big2")
show(filecmp.cmp("big", "big2", shallow=False))
with open("big", "rb") as source, open("big2", "r+b") as target:
    show(os.copy_file_range(source.fileno(), target.fileno(), 100_000, 7, 50), source.tell(), target.tell())
    show(
        os.copy_file_range(source.fileno(), target.fileno(), 1000),
        os.lseek(source.fileno(), 0, 1),
        os.lseek(target.fileno(), 0, 1),
    )
    show(
        os.sendfile(target.fileno(), source.fileno(), None, 500), os.lseek(source.fileno(), 0, 1), os.lseek(target.fileno(), 0, 1)
    )
    show(os.sendfile(target.fileno(), source.fileno(), 2_999_990, 500), os.lseek(target.fileno(), 0, 1))
    show(
        err(os.copy_file_range, target.fileno(), source.fileno(), 5), err(os.copy_file_range, source.fileno(), source.fileno(), 5)
    )
    os.ftruncate(target.fileno(), 2_000_000)
    os.ftruncate(target.fileno(), 4_000_000)
    show(os.lseek(target.fileno(), 0, os.SEEK_HOLE) >= 2_000_000, os.lseek(target.fileno(), 3_999_999, os.SEEK_HOLE))
show(hashlib.sha256(open("big2", "rb").read()).hexdigest())
shutil.copytree("a", "acopy", symlinks=True)
show(sorted(p.as_posix() for p in pathlib.Path("acopy").rglob("*")))
shutil.move("acopy", "amoved")
shutil.rmtree("amoved")
show(os.path.exists("amoved"))
show(shutil.disk_usage("/tmp").total > 0)
# buffered
with open("t", "w+") as f:
    for i in range(20000):
        f.write(f"line {i}\n")
    f.seek(0)
    show(sum(1 for _ in f))
    f.seek(100)
    show(f.readline())
with open("t", "r+b") as f:
    f.seek(5)
    f.write(b"ZZ")
    f.flush()
    f.seek(0)
    show(f.read(12))
with open("t", "ab") as f:
    f.write(b"end")
    show(f.tell())
with open("t", "rb") as f:
    f.seek(-10, 2)
    show(f.read())
# tempfile
with tempfile.TemporaryFile() as f:
    f.write(b"hey")
    f.seek(0)
    show(f.read(), os.fstat(f.fileno()).st_nlink)
with tempfile.NamedTemporaryFile(dir=".") as f:
    show(os.path.exists(f.name))
    n = f.name
show(os.path.exists(n))
with tempfile.TemporaryDirectory() as d:
    pathlib.Path(d, "x").touch()
    show(os.listdir(d))
with tempfile.SpooledTemporaryFile(max_size=10) as f:
    f.write(b"x" * 100)
    f.seek(0)
    show(len(f.read()))
# sqlite
for mode in ("delete", "wal", "truncate", "memory"):
    c = sqlite3.connect(f"db-{mode}")
    show(c.execute(f"pragma journal_mode={mode}").fetchone())
    c.execute("create table t(a, b)")
    c.executemany("insert into t values(?, ?)", ((i, "v" * (i % 100)) for i in range(3000)))
    c.commit()
    c.execute("delete from t where a % 3 = 0")
    c.commit()
    c.execute("vacuum")
    show(c.execute("select count(*), sum(length(b)) from t").fetchone(), c.execute("pragma integrity_check").fetchone())
    c2 = sqlite3.connect(f"db-{mode}")
    show(c2.execute("select max(a) from t").fetchone())
    c.close()
    c2.close()
# mmap
with open("m", "w+b") as f:
    f.truncate(20000)
    with mmap.mmap(f.fileno(), 0) as m:
        m[0:5] = b"hello"
        m[19990:20000] = b"0123456789"
        m.flush()
        show(m.find(b"9"), m.size())
        f.seek(0)
        show(f.read(5))
    with mmap.mmap(f.fileno(), 3616, access=mmap.ACCESS_READ, offset=16384) as m:
        show(m[3606:3616])
    with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY) as m:
        m[0] = 88
        f.seek(0)
        show(f.read(5), m[:5])
# a mapping that grows with its file, and moves: what was written stays, what is new is the file's
with open("grows", "w+b") as f:
    f.truncate(8192)
    with mmap.mmap(f.fileno(), 8192) as m:
        m[0:5] = b"first"
        for size in (16384, 5000, 65536, 3 << 20):
            m.resize(size)
            m[size - 3 : size] = b"end"
            f.seek(size - 3)
            show(size, len(m), m[0:5], m[4999:5002], f.read(3), os.fstat(f.fileno()).st_size)
os.unlink("grows")
with mmap.mmap(-1, 8192) as m:
    m[5000] = 7
    show(m[5000])
# archives
with zipfile.ZipFile("z.zip", "w", zipfile.ZIP_DEFLATED) as z:
    z.write("big")
    z.writestr("dir/x.txt", "y" * 10000)
with zipfile.ZipFile("z.zip") as z:
    show(z.testzip(), z.namelist())
    z.extractall("zx")
show(filecmp.cmp("zx/big", "big", shallow=False))
with tarfile.open("t.tgz", "w:gz") as t:
    t.add("a")
    t.add("t")
with tarfile.open("t.tgz") as t:
    show(sorted(t.getnames()))
    t.extractall("tx", filter="fully_trusted")
show(sorted(p.as_posix() for p in pathlib.Path("tx").rglob("*")))
sys.path.insert(0, "zi.zip")
with zipfile.ZipFile("zi.zip", "w") as z:
    z.writestr("inzip.py", "V = 42\n")
import inzip

show(inzip.V)
pathlib.Path("mod_here.py").write_text("W = 43\n")
sys.path.insert(0, str(root))
import mod_here

show(mod_here.W, os.listdir("__pycache__") != [])
# others
with shelve.open("sh", flag="n") as s:
    s["k"] = [1, 2, 3]
with shelve.open("sh") as s:
    show(s["k"])
h = logging.handlers.RotatingFileHandler("log", maxBytes=500, backupCount=2)
lg = logging.getLogger("x")
lg.addHandler(h)
for i in range(40):
    lg.warning("message %d", i)
h.close()
show(sorted(glob.glob("log*")))
with open("lk", "w") as a, open("lk", "w") as b:
    fcntl.flock(a, fcntl.LOCK_EX)
    show(err(fcntl.flock, b, fcntl.LOCK_EX | fcntl.LOCK_NB))
    fcntl.flock(a, fcntl.LOCK_UN)
    show(err(fcntl.flock, b, fcntl.LOCK_EX | fcntl.LOCK_NB))
    fcntl.lockf(a, fcntl.LOCK_EX | fcntl.LOCK_NB)
    show("lockf")


def worker(i):
    for k in range(20):
        pathlib.Path(f"w{i}-{k}").write_bytes(bytes([i]) * 5000)


ts = [threading.Thread(target=worker, args=(i,)) for i in range(8)]
[t.start() for t in ts]
[t.join() for t in ts]
show(len(glob.glob("w*")), all(pathlib.Path(f"w{i}-{k}").read_bytes() == bytes([i]) * 5000 for i in range(8) for k in range(20)))
many = [open(f"m{i}", "w+") for i in range(300)]
for i, f in enumerate(many):
    f.write(str(i))
    f.flush()
show(all(open(f"m{i}").read() == str(i) for i in range(300)))
[f.close() for f in many]
show(len(os.listdir(".")), len(list(os.scandir("."))))
q = _posixshmem.shm_open("/afwtest", os.O_CREAT | os.O_RDWR, 0o600)
os.ftruncate(q, 5000)
m1 = mmap.mmap(q, 5000)
m1[10] = 5
q2 = _posixshmem.shm_open("/afwtest", os.O_RDWR, 0)
m2 = mmap.mmap(q2, 5000)
show(m2[10])
m2[11] = 6
show(m1[11])
_posixshmem.shm_unlink("/afwtest")
show(err(_posixshmem.shm_open, "/afwtest", os.O_RDWR))
shutil.copyfileobj(open("big", "rb"), open("big3", "wb"))
show(os.path.getsize("big3"))
show(os.readlink("/proc/self/exe") == os.path.realpath(sys.executable))
show(open("/proc/self/status").readline().split()[0], len(open("/proc/self/stat").read().split()) >= 40)
os.chdir("/")
shutil.rmtree(root)
show(os.path.exists(root))
