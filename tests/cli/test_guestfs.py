"""What a guest would be shown, without a guest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from agentfw import guestfs, snapshots
from agentfw.fleet import default_environment, template_environment
from agentfw.guestfs import View, add_program, base_view, exposes, find_interpreter, parse_mount
from agentfw.pool.config import TemplateConfig
from agentfw_vmm import Mount


@pytest.fixture(scope="module")
def interpreter() -> guestfs.Interpreter:
    return find_interpreter(sys.executable, default_environment())


def test_the_interpreter_is_what_runs_here(interpreter: guestfs.Interpreter) -> None:
    assert interpreter.executable == sys.executable and interpreter.version == sys.version_info[:3]
    assert interpreter.prefix == sys.prefix and any("libc.so" in name for name in interpreter.libraries)


def test_a_relative_path_of_an_interpreter_begins_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    for name in ("bin/python", "./bin/python", "bin/../bin/python"):
        assert find_interpreter(name, default_environment()).version == sys.version_info[:3]


def test_a_templates_interpreter_lies_beside_its_agentfw_toml(tmp_path: Path) -> None:
    assert TemplateConfig(python="venv/bin/python").beside(tmp_path).python == f"{tmp_path}/venv/bin/python"
    assert TemplateConfig(python="/usr/bin/python3").beside(tmp_path).python == "/usr/bin/python3"
    assert TemplateConfig(python="python3").beside(tmp_path).python == "python3"


def _resolve(view: View, path: str) -> str | None:
    """What the guest finds at `path`: the host path, with the view's links followed."""
    for _ in range(40):
        link = next((name for name in view.symlinks if path == name or path.startswith(name + "/")), None)
        if link is None:
            break
        path = os.path.normpath(os.path.join(os.path.dirname(link), view.symlinks[link], os.path.relpath(path, link)))
    for place in sorted(view.mounts, key=len, reverse=True):
        if path == place or path.startswith(place + "/"):
            return os.path.normpath(os.path.join(view.mounts[place].host_path, os.path.relpath(path, place)))
    return None


def test_all_that_the_interpreter_needs_is_shown(interpreter: guestfs.Interpreter) -> None:
    view = base_view(interpreter)
    for path in (interpreter.executable, *interpreter.libraries, f"{interpreter.stdlib}/os.py", "/lib64/ld-linux-x86-64.so.2"):
        found = _resolve(view, path)
        assert found is not None and os.path.exists(found), path
    assert not any(mount.writable for mount in view.mounts.values())
    for path in ("/etc/shadow", "/root/.bashrc", "/home", "/var/log", "/usr/bin/passwd", "/proc/1/environ"):
        assert _resolve(view, path) is None, path


def test_show_follows_links_and_only_them(tmp_path: Path) -> None:
    real = tmp_path / "real"
    (real / "inner").mkdir(parents=True)
    (real / "inner/file").write_text("x")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "away").symlink_to(real / "inner")
    view = View()
    view.show(f"{tmp_path}/link/inner/file")
    view.show(f"{tmp_path}/away")
    view.show(f"{tmp_path}/loop")
    view.show(f"{tmp_path}/missing")
    view.tidy()
    assert set(view.mounts) == {f"{real}/inner"}
    assert view.symlinks == {f"{tmp_path}/link": "real", f"{tmp_path}/away": f"{real}/inner", f"{tmp_path}/loop": "loop"}


def test_tidy_keeps_what_is_different(tmp_path: Path) -> None:
    view = View()
    view.mounts = {
        "/a": Mount("/a", "/a"),
        "/a/b": Mount("/a/b", "/a/b"),
        "/a/c": Mount("/a/c", "/elsewhere"),
        "/a/d": Mount("/a/d", "/a/d", writable=True),
    }
    view.tidy()
    assert set(view.mounts) == {"/a", "/a/c", "/a/d"}


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/etc",
        "/proc/self/root",
        "/sys",
        "/dev",
        "/run",
        "/etc/ssh",
        "~",
        "~/.ssh",
        "~/.ssh/keys",
        "~/.aws",
        "~/.config",
        "~/link",
    ],
)
def test_what_must_not_be_shown(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".ssh/keys", ".config/gcloud", "work"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(".ssh")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert exposes(os.path.expanduser(path))
    assert exposes(str(tmp_path.parent)) == f"it holds the home directory {tmp_path}"
    assert exposes(str(tmp_path / "work")) is None and exposes("/usr/lib") is None


def test_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    assert parse_mount("d:/x") == Mount("/x", f"{tmp_path}/d")
    assert parse_mount("d:/x:rw") == Mount("/x", f"{tmp_path}/d", writable=True)
    assert parse_mount("d:/x/../y:ro") == Mount("/y", f"{tmp_path}/d")
    assert parse_mount("d") == Mount(f"{tmp_path}/d", f"{tmp_path}/d")


def test_an_agents_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    (project / "sub").mkdir(parents=True)
    home.mkdir()
    for place in (project, project / "sub", home):
        (place / "x.py").touch()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(project)

    view = View()
    add_program(view, "sub/x.py", str(project))
    assert (set(view.mounts), view.cwd, view.notes) == ({f"{project}/sub"}, str(project), [])
    assert str(project) not in view.private  # it is there, as the parent of a mount

    view = View()
    add_program(view, f"{home}/x.py", str(project))
    assert set(view.mounts) == {f"{home}/x.py"} and "home directory" in view.notes[0]
    assert str(project) in view.private  # nothing of it is shown, but it can be entered

    view = View()
    add_program(view, None, str(home))
    assert not view.mounts and "home directory" in view.notes[0]


def test_which_variables_make_a_template() -> None:
    chosen = template_environment({"PYTHONHASHSEED": "0", "LC_ALL": "C", "API_KEY": "x", "TZ": "UTC"})
    start = {name: value for name, value in template_environment({}).items() if name not in default_environment()}
    assert set(start) == {"GLIBC_TUNABLES", "LD_BIND_NOW", "OPENSSL_ia32cap"} and "malloc.arena_max=1" in start["GLIBC_TUNABLES"]
    assert chosen == {**default_environment(), **start, "PYTHONHASHSEED": "0", "LC_ALL": "C"}


def test_a_key_is_of_what_matters(interpreter: guestfs.Interpreter, tmp_path: Path) -> None:
    view = base_view(interpreter)
    template = snapshots.Template(interpreter, view, default_environment())
    same = snapshots.Template(interpreter, base_view(interpreter), default_environment())
    assert template.key() == same.key() and len(template.key()) == 32
    changed = [
        replace(template, memory=1 << 30),
        replace(template, preload=("json",)),
        replace(template, environment={**default_environment(), "PYTHONHASHSEED": "0"}),
        replace(template, interpreter=replace(interpreter, full="3.99")),
        replace(template, interpreter=replace(interpreter, path=(*interpreter.path, str(tmp_path)))),
    ]
    other = base_view(interpreter)
    other.files["/etc/hosts"] = b""
    changed.append(replace(template, view=other))
    assert len({one.key() for one in [template, *changed]}) == len(changed) + 1


def test_a_preloaded_modules_source_counts(interpreter: guestfs.Interpreter, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    more = replace(interpreter, path=(*interpreter.path, str(tmp_path)))
    template = snapshots.Template(more, View(), preload=("mine",))
    before = template.key()
    (tmp_path / "mine.py").write_text("x = 22\n")
    assert template.key() != before


@pytest.mark.parametrize("place", ["/lib/mine", "/lib/mine/below"])
def test_so_does_that_of_one_that_a_mount_shows(interpreter: guestfs.Interpreter, tmp_path: Path, place: str) -> None:
    folder = tmp_path / place.removeprefix("/lib/mine").strip("/")
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text("x = 1\n")
    view = View()
    guestfs.add_mounts(view, [guestfs.parse_mount(f"{tmp_path}:/lib/mine")])
    more = replace(interpreter, path=(*interpreter.path, place))
    template = snapshots.Template(more, view, preload=("mine",))
    before = template.key()
    (folder / "mine.py").write_text("x = 22\n")
    assert template.key() != before


def test_the_store_keeps_order(tmp_path: Path) -> None:
    store = snapshots.SnapshotStore(tmp_path / "s")
    store.directory.mkdir()
    for number in range(snapshots.KEEP + 3):
        file = store.directory / f"{number:02}.snapshot"
        file.write_bytes(b"x")
        os.utime(file, (number, number))
    (store.directory / "left.999999999.part").touch()
    (store.directory / f"mine.{os.getpid()}.part").touch()
    store._sweep()
    kept = sorted(file.name for file in store.directory.iterdir())
    assert kept == sorted([*(f"{number:02}.snapshot" for number in range(4, snapshots.KEEP + 3)), f"mine.{os.getpid()}.part"])
    assert store.clear()[0] == snapshots.KEEP - 1 and not list(store.directory.iterdir())


def test_a_snapshot_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    store = snapshots.SnapshotStore(tmp_path)
    file = store.path(bytes(32))
    assert not store._usable(file)
    file.write_bytes(b"x")
    file.chmod(0o400)
    assert store._usable(file)
    file.chmod(0o422)
    assert not store._usable(file)


def test_a_python_may_look_where_names_are_no_text() -> None:
    assert find_interpreter(sys.executable, {"PYTHONPATH": "/no/\udcff"}).path[0] == "/no/\udcff"


def test_no_code_of_packages_runs_when_an_interpreter_is_asked(tmp_path: Path) -> None:
    """A venv that others can write to: its .pth files and sitecustomize are for agents' VMs. What they say of paths counts."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    packages = next((tmp_path / "venv").glob("lib/python3*/site-packages"))
    beside, modules, ran = tmp_path / "beside", tmp_path / "modules", tmp_path / "ran"
    beside.mkdir()
    modules.mkdir()
    code = f"open({str(ran)!r}, 'a').write(__name__)"
    (packages / "some.pth").write_text(f"{beside}\nimport sys; {code}\n/not/there\n")
    for place in (packages, beside, modules):
        for name in ("sitecustomize", "usercustomize", "json", "sysconfig", "site", "_ssl", "os"):
            (place / f"{name}.py").write_text(code)
    python = tmp_path / "venv/bin/python"
    environment = {**default_environment(), "PYTHONPATH": f"{modules}{os.pathsep}/no", "PYTHONWARNINGS": "error::beside.Some"}
    found = find_interpreter(str(python), environment)
    assert not ran.exists()
    assert found.path[:2] == (str(modules), "/no") and found.path[-2:] == (str(packages), str(beside))
    assert found.prefix == str(tmp_path / "venv") and found.base == sys.base_prefix
    assert found.stdlib == find_interpreter(sys.executable, default_environment()).stdlib


def test_an_interpreter_is_what_it_says_itself(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    for python in (sys.executable, os.path.realpath(sys.executable), str(tmp_path / "venv/bin/python")):
        code = "import json, sys, sysconfig; print(json.dumps([sys.prefix, sys.base_prefix, *map(sysconfig.get_path, "
        code += "('stdlib', 'platstdlib')), [p for p in sys.path if p]]))"
        command = [python, "-c", code]
        said = subprocess.run(command, env=default_environment(), cwd="/", capture_output=True, check=True).stdout
        it = find_interpreter(python, default_environment())
        assert json.loads(said) == [it.prefix, it.base, it.stdlib, it.platstdlib, list(it.path)]
