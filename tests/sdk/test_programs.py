"""From what a caller names to a Job: what is read and sent, what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from agentfw import Code, Limits, Module, Mounted, PoolError, Trace
from agentfw.pool.jobs import MAX_FILES, MAX_PAYLOAD, Job
from agentfw.sdk import programs
from agentfw.sdk.programs import JobOptions, load, make_job, read_files


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__slash__", "/").replace("__dot__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def job(program: Any, *args: str, **options: Any) -> Job:
    return make_job(load(program, options.get("files")), args, JobOptions(**options))


def test_a_script_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agent.py").write_text("print(1)")
    (tmp_path / "data.bin").write_bytes(b"\xff")
    made = job(tmp_path / "agent.py", "a", files={"data/x": tmp_path / "data.bin", "note": "text", "raw": b"\0"})
    assert (made.mode, made.target, made.name, made.args) == ("script", "agent.py", "agent.py", ("a",))
    assert made.files == {"agent.py": b"print(1)", "data/x": b"\xff", "note": b"text", "raw": b"\0"}
    monkeypatch.chdir(tmp_path)
    assert job("./agent.py").files == {"agent.py": b"print(1)"}
    assert job("agent.py", files=["data.bin", tmp_path / "agent.py"]).files == {"agent.py": b"print(1)", "data.bin": b"\xff"}


def test_directories_are_sent_without_what_is_hidden(tmp_path: Path) -> None:
    tree(tmp_path / "app", __main__="main").joinpath("__main__").rename(tmp_path / "app/__main__.py")
    tree(
        tmp_path / "app", lib__slash__a="a", lib__slash__b="b", __dot__env="SECRET", __dot__git__slash__config="x",
        __pycache____slash__a="cached",
    )  # fmt: skip
    os.mkfifo(tmp_path / "app/pipe")
    (tmp_path / "app/loop").symlink_to(tmp_path)
    made = job(tmp_path / "app")
    assert made.target == "app" and made.files == {"app/__main__.py": b"main", "app/lib/a": b"a", "app/lib/b": b"b"}
    assert job(Code("x"), files=[tmp_path / "app/lib"]).files == {"lib/a": b"a", "lib/b": b"b"}
    assert job(Code("x"), files={"other": tmp_path / "app/lib"}).files == {"other/a": b"a", "other/b": b"b"}
    assert job(Code("x"), files=[tmp_path / "app/.env"]).files == {".env": b"SECRET"}, "named, it is meant"
    with pytest.raises(PoolError, match="__main__"):
        job(tmp_path / "app/lib")


def test_code_modules_and_mounted_scripts() -> None:
    assert (job(Code("print()")).mode, job(Code("print()")).target, job(Code("x"), name="n").name) == ("code", "print()", "n")
    assert (job(Module("a.b")).mode, job(Module("a.b")).target, job(Module("a.b")).name) == ("module", "a.b", "a.b")
    made = job(Mounted("/data/agent.py"))
    assert (made.mode, made.target, made.files, made.name) == ("script", "/data/agent.py", {}, "agent.py")
    with pytest.raises(PoolError, match="absolute"):
        job(Mounted("agent.py"))


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.py"):
        job(tmp_path / "missing.py")
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(OSError, match="a pipe"):
        job(tmp_path / "pipe.py")
    with pytest.raises(PoolError, match="not a script") as raised:
        job("")
    assert "Code" in raised.value.hint


def test_two_files_of_one_name(tmp_path: Path) -> None:
    tree(tmp_path, a__slash__x="1", b__slash__x="2", c__slash__x="1")
    assert read_files([tmp_path / "a/x", tmp_path / "c/x"]) == {"x": b"1"}
    with pytest.raises(PoolError, match="two different files"):
        read_files([tmp_path / "a/x", tmp_path / "b/x"])
    with pytest.raises(PoolError, match="two different files"):
        job(tmp_path / "a/x", files={"x": "2"})


def test_too_much_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MAX_PAYLOAD + 1)
    with pytest.raises(PoolError, match="too large to send"):
        read_files([tmp_path / "large"])
    monkeypatch.setattr(programs, "MAX_FILES", 3)
    with pytest.raises(PoolError, match="too much to send"):
        read_files({str(n): "" for n in range(4)})
    assert MAX_FILES >= 3


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"limits": Limits(seconds=5), "timeout": 5.0}, TypeError, "one of them"),
        ({"limits": {"seconds": -1}}, PoolError, "seconds"),
        ({"limits": {"nonsense": 1}}, PoolError, "nonsense"),
        ({"strace": "summary"}, PoolError, "got `str` - at `strace`"),
        ({"strace": {"nonsense": 1}}, PoolError, "nonsense"),
        ({"strace": Trace(size=2000)}, PoolError, "size"),
        ({"limits": Limits(cpu=3)}, PoolError, "cpu"),
        ({"timeout": "soon"}, PoolError, "seconds"),
        ({"timeout": float("inf")}, PoolError, "seconds"),
        ({"tenant": "../x"}, PoolError, "Expected letters, digits, .* at `tenant`"),
        ({"retries": 99}, PoolError, "retries"),
        ({"isolation": "none"}, PoolError, "isolation"),
        ({"labels": {"tenant": "x"}}, PoolError, "field of the job"),
        ({"env": {"A=B": "x"}}, PoolError, "variables"),
        ({"env": {"A": 1}}, PoolError, "env"),
        ({"files": {"../x": "x"}}, PoolError, "bad path"),
        ({"stdin": 5}, PoolError, "stdin"),
        ({"nonsense": 5}, TypeError, "nonsense"),
        ({"name": "n" * 200}, PoolError, "name"),
    ],
)
def test_bad_options(options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make_job(load(Code("x"), options.get("files")), (), options)


def test_arguments_are_texts_and_paths(tmp_path: Path) -> None:
    assert job(Code("x"), "a", tmp_path).args == ("a", str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not one text"):
        make_job(load(Code("x"), None), "abc")
    with pytest.raises(TypeError, match="args: texts or paths, not int: 1"):
        make_job(load(Code("x"), None), [1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="no program: int"):
        load(5, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a list of paths"):
        read_files("abc")


@pytest.mark.parametrize("given", [True, Trace(), {}, MappingProxyType({"size": 32}), {"calls": ""}])
def test_traced(given: Any) -> None:
    assert job(Code("x"), strace=given).strace == Trace()
    assert job(Code("x"), strace=Trace(summary=True)).strace == Trace(summary=True)
    assert job(Code("x"), strace=False).strace is job(Code("x")).strace is None


def test_limits_of_both_kinds() -> None:
    made = job(
        Code("x"), limits={"output": 5, "cpu": 0.5}, timeout=7.5, stdin="ü", policy="p", tenant="t", template="m", retries=2
    )
    assert made.limits == Limits(output=5, cpu=0.5, seconds=7.5)
    assert (made.stdin, made.policy, made.tenant, made.template, made.retries) == ("ü".encode(), "p", "t", "m", 2)
