"""A pool's socket: one pool has it, nobody else's file is followed or removed, what a killed one left is no trouble."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from agentfw.pool import places
from agentfw.pool.jobs import PoolError
from agentfw.pool.places import SocketPlace


def refused(path: Path, *, bind: bool = False) -> str:
    with pytest.raises(PoolError) as caught:
        place = SocketPlace.take(path)
        try:
            if bind:
                place.bind()
        finally:
            place.close()
    assert caught.value.code == "bad_config" and caught.value.hint
    return str(caught.value)


def test_taken_bound_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "run" / "pool.sock"
    for _ in range(2):
        place = SocketPlace.take(path)
        with place.bind() as sock:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert not refusal_of_a_client(path)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
                assert sock.accept()[0].close() is None
            assert f"(pid {os.getpid()})" in refused(path)
            assert not places.wait_until_free(path, 0)
        place.close()
        place.close()
        assert list(path.parent.iterdir()) == [] and places.wait_until_free(path, 0)


def refusal_of_a_client(path: Path) -> str:
    directory = places.open_directory(path, make=False)
    try:
        places.check_socket(path, directory)
        return ""
    except PoolError as error:
        assert error.code == "unavailable"
        return str(error)
    finally:
        os.close(directory)


def test_clients_are_told_of_a_pool_that_starts(tmp_path: Path) -> None:
    place = SocketPlace.take(tmp_path / "s")
    assert f"(pid {os.getpid()}) has not started yet" in refusal_of_a_client(tmp_path / "s")
    place.close()
    assert "no pool runs" in refusal_of_a_client(tmp_path / "s")
    assert place.path == tmp_path / "s" and SocketPlace.take(tmp_path / "s").close() is None


def test_what_a_killed_pool_left(tmp_path: Path) -> None:
    path = tmp_path / "s"
    code = "import os, sys; from pathlib import Path; from agentfw.pool.places import SocketPlace\n" \
        "place = SocketPlace.take(Path(sys.argv[1])); sock = place.bind(); os.kill(os.getpid(), 9)"  # fmt: skip
    subprocess.run([sys.executable, "-c", code, path], timeout=30)
    assert path.is_socket() and Path(f"{path}.lock").exists() and places.wait_until_free(path, 0)
    place = SocketPlace.take(path)
    place.bind().close()
    place.close()
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_socket_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("file", "link"):
        assert "is no socket" in refused(tmp_path / name, bind=True)
    assert (tmp_path / "file").read_text() == "mine"


def test_directories_that_others_could_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert "is not a directory" in refused(tmp_path / "link" / "s")
    (tmp_path / "file").write_text("")
    assert "is not a directory" in refused(tmp_path / "file" / "s")
    assert "no such directory" in refused(tmp_path / "none" / "deeper" / "s")
    (tmp_path / "real").chmod(0o777)
    assert "may be written by others" in refused(tmp_path / "real" / "s")
    (tmp_path / "real").chmod(0o1777)
    SocketPlace.take(tmp_path / "real" / "s").close()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # the default one is ours alone, whatever somebody made of it
    (tmp_path / "agentfw").mkdir(0o755)
    place = SocketPlace.take(places.default_socket())
    assert stat.S_IMODE((tmp_path / "agentfw").stat().st_mode) == 0o700
    place.close()
    assert "too long" in refused(tmp_path / ("x" * 120))


def test_locks_of_others(tmp_path: Path) -> None:
    (tmp_path / "s.lock").symlink_to(tmp_path / "elsewhere")
    refused(tmp_path / "s")
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "t.lock").mkdir()
    refused(tmp_path / "t")
    os.mkfifo(tmp_path / "u.lock")
    assert "is not a file of yours" in refused(tmp_path / "u")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_belongs_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 65534, 65534)
    assert "65534" in refused(tmp_path / "theirs" / "s")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "theirs").rename(tmp_path / "agentfw")
    assert "65534" in refused(places.default_socket())
    os.chown(tmp_path, 65534, 65534)
    assert places.default_socket() == Path("/tmp/agentfw-0/pool.sock")


def test_a_client_looks_where_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "s"
    directory = places.open_directory(path, make=False)
    try:
        for make, code in ((lambda: None, "unavailable"), (lambda: path.write_text(""), "bad_config")):
            make()
            with pytest.raises(PoolError) as caught:
                places.check_socket(path, directory)
            assert caught.value.code == code
    finally:
        os.close(directory)
    with pytest.raises(PoolError) as caught:
        places.open_directory(tmp_path / "none" / "s", make=False)
    assert caught.value.code == "unavailable"


def test_logs_have_a_place_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert places.log_file(places.default_socket()) == tmp_path / "agentfw/pool.log"
    assert places.log_file(tmp_path / "a") != places.log_file(tmp_path / "b")
