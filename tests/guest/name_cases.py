"""Two sockets that want one port, and unix sockets whose files are moved. For call_table.py: results as there."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import socket
import tempfile
from collections.abc import Callable
from functools import partial

REUSE, SHARE, ONLY = (
    (socket.SOL_SOCKET, socket.SO_REUSEADDR),
    (socket.SOL_SOCKET, socket.SO_REUSEPORT),
    (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY),
)
Options = tuple[tuple[int, int], ...]
PLACES: tuple[tuple[int, str, Options], ...] = (
    (socket.AF_INET, "0.0.0.0", ()),
    (socket.AF_INET, "127.0.0.1", ()),
    (socket.AF_INET, "127.0.0.2", ()),
    (socket.AF_INET6, "::", ()),
    (socket.AF_INET6, "::", (ONLY,)),
    (socket.AF_INET6, "::1", ()),
    (socket.AF_INET6, "::ffff:127.0.0.1", ()),
    (socket.AF_INET6, "::ffff:0.0.0.0", ()),
)
SHARING: dict[str, Options] = {"": (), "reuse": (REUSE,), "share": (SHARE,), "both": (REUSE, SHARE)}


def tried(act: Callable[..., object], *arguments: object) -> object:
    try:
        return act(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))


def made(kind: int, family: int, options: Options) -> socket.socket:
    one = socket.socket(family, kind)
    one.setblocking(False)
    for level, name in options:
        one.setsockopt(level, name, 1)
    return one


def two(
    kind: int, listens: bool, first: tuple[int, str, Options], second: tuple[int, str, Options], options: tuple[Options, Options]
) -> object:
    """What the second bind says and, for streams, the listens; the first one listens before that or after it. Another process may have
    the port elsewhere: what is in use must be so three times."""
    for _ in range(3):
        with made(kind, first[0], options[0] + first[2]) as one, made(kind, second[0], options[1] + second[2]) as other:
            one.bind((first[1], 0))
            told = [tried(one.listen)] if listens else []
            told.append(tried(other.bind, (second[1], one.getsockname()[1])))
            if kind == socket.SOCK_STREAM:
                told += [tried(other.listen), tried(one.listen)]
            if "EADDRINUSE" not in told[: listens + 1]:
                break
    return told


def reached(kind: int, places: tuple[tuple[int, str, Options], ...], to: tuple[int, str]) -> object:
    """Which of the sockets, all of one port, gets what is sent to an address: the first sent counts."""
    with contextlib.ExitStack() as stack:
        port, bound = 0, []
        for family, host, options in places:
            one = stack.enter_context(made(kind, family, (REUSE, *options) if kind == socket.SOCK_DGRAM else options))
            if tried(one.bind, (host, port)) is not None:
                continue
            port = one.getsockname()[1]
            bound.append((host, one))
            if kind == socket.SOCK_STREAM:
                one.listen()
        client = stack.enter_context(socket.socket(to[0], kind))
        client.settimeout(5)
        told = tried(client.connect, (to[1], port))
        if kind == socket.SOCK_DGRAM:
            tried(client.send, b"who")
        if told is None:  # somebody gets it, or the client is told that nobody does
            select.select([client, *(one for _, one in bound)], [], [], 10)
        return [
            told,
            [
                host
                for host, one in bound
                if not isinstance(tried(one.recv if kind == socket.SOCK_DGRAM else one.accept, *[9][: kind - 1]), str)
            ],
        ]


def unix(kind: int, name: str | bytes = "") -> socket.socket:
    one = socket.socket(socket.AF_UNIX, kind)
    one.setblocking(False)
    if name:
        one.bind(name)
    if name and kind != socket.SOCK_DGRAM:
        one.listen()
    return one


def files(kind: int) -> object:
    """A socket is where its file is: by relative names, links and renames; not under its old name, and not once that is removed."""
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as place:

        def connected(name: str) -> object:
            with unix(kind) as one:
                return tried(one.connect, name)

        old = stack.enter_context(unix(kind, f"{place}/name"))
        before = os.getcwd()
        os.chdir(place)
        stack.callback(os.chdir, before)
        told = [
            connected(name)
            for name in (f"{place}/name", "name", "./name", "../" + os.path.basename(place) + "/name", "none", "none/name")
        ]
        os.symlink("name", "link")
        os.mkdir("below")
        os.rename("name", "below/moved")
        told += [connected(name) for name in ("link", "name", "below/moved", "below/moved/more")]
        os.symlink("below/moved", "again")
        told += [
            connected("again"),
            tried(unix, kind, "again"),
            tried(unix, kind, "below/moved"),
            tried(unix, kind, "below"),
            tried(unix, kind, "none/name"),
        ]
        os.unlink("below/moved")
        told += [connected("again"), old.getsockname() == f"{place}/name"]
        new = stack.enter_context(unix(kind, "name"))
        told += [connected("name"), connected("link"), isinstance(tried(new.recv, 1), str), new.getsockname()]
        new.close()
        told += [connected("name"), tried(unix, kind, "name")]
        os.chmod("name", 0o400)
        with open("file", "w") as file:
            file.write("no socket")
        return [*told, connected("file"), connected("below"), tried(unix, kind, "file")]


def abstract(kind: int) -> object:
    """Names without a file, with zeros in them."""
    name = b"\0some\0%d" % os.getpid()
    with unix(kind, name) as one, unix(kind) as other:
        return [
            tried(other.connect, name[:-1]),
            tried(other.connect, name + b"\0"),
            tried(unix, kind, name),
            tried(other.connect, name),
            one.getsockname() == name,
        ]


CASES: dict[str, Callable[[], object]] = {
    **{
        f"bind {'tcp' if kind == 1 else 'udp'}{' listening' * listens} {one[1]}{' only' * bool(one[2])} {other[1]}{' only' * bool(other[2])} {a} {b}": partial(
            two, kind, listens, one, other, (SHARING[a], SHARING[b])
        )
        for kind, listens in ((1, False), (1, True), (2, False))
        for one, other in itertools.product(PLACES, repeat=2)
        for a, b in itertools.product(SHARING, repeat=2)
    },
    **{
        f"reach {'tcp' if kind == 1 else 'udp'} {' '.join(host for _, host, _ in places)} {to[1]}": partial(
            reached, kind, places, to
        )
        for kind in (1, 2)
        for places in itertools.permutations((PLACES[0], PLACES[1], PLACES[4], PLACES[3]), 2)
        for to in (
            (socket.AF_INET, "127.0.0.1"),
            (socket.AF_INET, "127.0.0.3"),
            (socket.AF_INET6, "::1"),
            (socket.AF_INET6, "::ffff:127.0.0.1"),
        )
    },
    **{f"files {kind}": partial(files, kind) for kind in (1, 2, 5)},
    **{f"abstract {kind}": partial(abstract, kind) for kind in (1, 2, 5)},
}
