"""Files as Python programs use them, in a directory of their own."""

import array
import csv
import dbm.dumb
import fcntl
import io
import json
import mmap
import os
import pathlib
import pickle
import shutil
import sqlite3
import stat
import tarfile
import tempfile
import zipfile


def text_and_binary(root: pathlib.Path) -> None:
    path = root / "lines"
    with path.open("w") as out:
        for number in range(20000):
            print("line", number, file=out)
    with path.open() as lines:
        print(sum(len(line) for line in lines), lines.tell())
    with path.open("a") as out:
        print(out.tell(), out.write("end"))
    with path.open("r+b") as both:
        both.seek(-3, io.SEEK_END)
        print(both.read(), both.seek(5), both.write(b"N"), both.read(3), both.truncate(1000), both.seek(0, 2))
    raw = os.open(path, os.O_RDONLY)
    print(sum(len(piece) for piece in iter(lambda: os.read(raw, 7), b"")), os.pread(raw, 5, 995), os.lseek(raw, 0, os.SEEK_CUR))
    os.close(raw)
    numbers = array.array("d", range(10000))
    with open(root / "numbers", "wb") as out:
        numbers.tofile(out)
    again = array.array("d")
    with open(root / "numbers", "rb") as source:
        again.fromfile(source, 10000)
    print(again == numbers, path.stat().st_size, stat.filemode(path.stat().st_mode))
    for buffering in (0, 1, 100):
        with open(path, "rb" if not buffering else "r", buffering=buffering) as source:
            print(len(source.read(10)), len(source.read()))


def trees(root: pathlib.Path) -> None:
    tree = root / "tree"
    for index in range(120):
        place = tree / f"{index % 7}" / f"{index % 3}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{index}.txt").write_text("x" * index)
    (tree / "link").symlink_to("0/0")
    print(len(list(tree.rglob("*.txt"))), sum(path.stat().st_size for path in tree.rglob("*.txt")))
    shutil.copytree(tree, root / "copy", symlinks=True)
    print(os.readlink(root / "copy/link"), sorted(os.listdir(root / "copy")))
    print(sum(len(files) for _, _, files in os.walk(root / "copy")), [entry.is_dir() for entry in os.scandir(root / "copy/0")])
    shutil.move(root / "copy", root / "moved")
    print((root / "copy").exists(), (root / "moved/link/0.txt").exists())
    for kind in ("zip", "gztar"):
        name = shutil.make_archive(str(root / "archive"), kind, tree)
        shutil.unpack_archive(name, root / kind)
        print(len(list((root / kind).rglob("*.txt"))))
    with zipfile.ZipFile(root / "archive.zip") as archive, tarfile.open(root / "archive.tar.gz") as tar:
        print(len(archive.namelist()) > 120, len(tar.getnames()) > 120)
    shutil.rmtree(root / "moved")
    here = os.getcwd()
    os.chdir(tree)
    print(os.path.basename(os.getcwd()), os.path.exists("0"))
    os.chdir(here)
    descriptor = os.open(tree, os.O_RDONLY)
    print(sorted(os.listdir(descriptor)), os.stat("link", dir_fd=descriptor, follow_symlinks=False).st_size)
    os.close(descriptor)
    for error in (lambda: os.rmdir(tree), lambda: os.mkdir(tree), lambda: open(tree), lambda: os.unlink(tree / "none")):
        try:
            error()
        except OSError as problem:
            print(type(problem).__name__)


def stores(root: pathlib.Path) -> None:
    with sqlite3.connect(root / "base") as base:
        base.execute("pragma journal_mode=wal")
        base.execute("create table t (a, b)")
        base.executemany("insert into t values (?, ?)", [(index, str(index)) for index in range(3000)])
        print(base.execute("select count(*), sum(a) from t").fetchone())
    with dbm.dumb.open(str(root / "dumb")) as store:
        store["key"] = "value"
    print(dbm.dumb.open(str(root / "dumb"))["key"])
    with (root / "table").open("w", newline="") as out:
        csv.writer(out).writerows([index, "a,b"] for index in range(100))
    with (root / "table").open(newline="") as source:
        print(len(list(csv.reader(source))))
    data = {"list": list(range(5000)), "text": "ü" * 5000}
    (root / "json").write_text(json.dumps(data))
    (root / "pickle").write_bytes(pickle.dumps(data))
    print(json.loads((root / "json").read_text()) == pickle.loads((root / "pickle").read_bytes()) == data)


def maps_and_locks(root: pathlib.Path) -> None:
    path = root / "mapped"
    path.write_bytes(b"a" * 10000)
    with path.open("r+b") as both, mmap.mmap(both.fileno(), 0) as view:
        view[5000:5003] = b"xyz"
        print(both.seek(4999), both.read(5), view.find(b"xyz"))
        fcntl.flock(both, fcntl.LOCK_EX)
        with path.open("rb") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                print("locked")
        fcntl.lockf(both, fcntl.LOCK_EX)
    with tempfile.NamedTemporaryFile(dir=root) as named, tempfile.TemporaryFile(dir=root) as hidden:
        print(os.path.exists(named.name), hidden.write(b"x"), hidden.seek(0), hidden.read())
    with tempfile.SpooledTemporaryFile(max_size=10, dir=root) as spooled:
        spooled.write(b"more than ten bytes")
        spooled.seek(0)
        print(spooled.read())
    print(shutil.disk_usage(root).total > 0, os.access(root, os.W_OK), os.path.ismount("/"))


with tempfile.TemporaryDirectory() as name:
    for part in (text_and_binary, trees, stores, maps_and_locks):
        part(pathlib.Path(name))
print(os.path.exists(name))
