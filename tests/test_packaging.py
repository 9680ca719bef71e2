"""The build frame: what is listed, what is built, what a wheel holds."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages() -> dict[str, Path]:
    paths = [ROOT / path for path in project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    return {path.name: path for path in paths}


def sources(package: Path) -> list[Path]:
    """Without the template of new plugins, which is a project of its own."""
    return [file for file in sorted(package.rglob("*.py")) if "template" not in file.parts]


def test_every_plugin_folder_is_named_in_all_three_places() -> None:
    config = project()
    folders = sorted(path.name for path in (ROOT / "plugins").iterdir() if any(path.glob("agentfw_*/__init__.py")))
    assert folders
    dev = config["tool"]["hatch"]["build"]["dev-mode-dirs"]
    packages = config["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    points = config["project"]["entry-points"]["agentfw.plugins"].values()
    for folder in folders:
        package = f"agentfw_{folder}"
        assert f"plugins/{folder}" in dev
        assert f"plugins/{folder}/{package}" in packages
        assert any(value.split(":")[0] == package for value in points), folder
        assert package in config["tool"]["mypy"]["packages"]


def test_nothing_is_listed_that_is_not_there() -> None:
    hatch = project()["tool"]["hatch"]["build"]
    for path in [*hatch["dev-mode-dirs"], *hatch["targets"]["wheel"]["packages"]]:
        assert (ROOT / path).is_dir(), path


def test_files_stay_readable() -> None:
    """One concern a file, at most 600 lines."""
    python = [file for package in packages().values() for file in sources(package)]
    for file in [*ROOT.glob("vmm/native/**/*.[ch]"), *ROOT.glob("shim/*.[chS]"), *python]:
        assert len(file.read_text().splitlines()) <= 600, file


def imports(file: Path) -> Iterator[str]:
    """The modules that are imported absolutely, anywhere in it: in functions, under TYPE_CHECKING, by import_module("...")."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (argument.value for argument in node.args if isinstance(argument, ast.Constant))


@pytest.mark.parametrize("name", packages())
def test_imports_go_one_way(name: str) -> None:
    """Plugins know the core, the core knows the VMs' library, and nobody knows a plugin."""
    known = {"agentfw_vmm": set(), "agentfw": {"agentfw_vmm"}}.get(name, {"agentfw"})
    files = sources(packages()[name])
    assert files
    for file in files:
        tops = {module.partition(".")[0] for module in imports(file)}
        strangers = {top for top in tops if top.startswith("agentfw") and top != name} - known
        assert not strangers, f"{file.relative_to(ROOT)} imports {strangers}"


def test_plugins_use_what_the_core_gives_away() -> None:
    """A plugin of somebody else's has the same: no module or name of the core's that begins with an underscore, no relay."""
    for name, package in packages().items():
        if name in ("agentfw", "agentfw_vmm"):
            continue
        for file in sources(package):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "agentfw":
                    names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                    assert "relay" not in names and not [each for each in names if each.startswith("_")], (file, names)


def test_dependencies_are_those_that_are_imported() -> None:
    """Each is used, and nothing is used that only comes along with another."""
    called = {"pyopenssl": "OpenSSL"}
    stated = {re.split(r"[^\w.-]", each)[0] for each in project()["project"]["dependencies"]}
    modules = {called.get(each, each.replace("-", "_")) for each in stated}
    own, otel = foreign_to(*(name for name in packages() if name != "agentfw_otel")), foreign_to("agentfw_otel")
    assert own - {"pytest", "_cffi_backend"} == modules - {"cffi"}  # that one is what the compiled library loads
    extra = {re.split(r"[^\w.-]", each)[0].partition("-")[0] for each in project()["project"]["optional-dependencies"]["otel"]}
    assert otel - modules == extra == {"opentelemetry", "requests"}


def foreign_to(*names: str) -> set[str]:
    """What these packages import of others than Python and agentfw."""
    used = {
        module.partition(".")[0]
        for name in names
        for file in sources(packages()[name])
        if "guest" not in file.parts  # they run on the guest's own standard library
        for module in imports(file)
    }
    return {name for name in used if name not in sys.stdlib_module_names and not name.startswith("agentfw")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, so that a file missing there is noticed; without the network, so without isolation."""
    out = tmp_path_factory.mktemp("dist")
    environment = {name: value for name, value in os.environ.items() if name != "AGENTFW_SANITIZE"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, env=environment, capture_output=True)
    (sdist,) = out.glob("*.tar.gz")
    source = out / "source"
    source.mkdir()
    subprocess.run(["tar", "xzf", str(sdist), "-C", str(source), "--strip-components=1"], check=True)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=source, check=True, env=environment, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.slow
def test_wheel_holds_the_project_that_new_plugins_come_from(wheel: Path) -> None:
    prefix = "agentfw/scaffold/template/"
    held = {name.removeprefix(prefix) for name in zipfile.ZipFile(wheel).namelist() if name.startswith(prefix)}
    template = ROOT / "core" / prefix
    files = [file for file in template.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert held == {str(file.relative_to(template)) for file in files}


def test_wheel_holds_the_dashboards_page(wheel: Path) -> None:
    prefix = "agentfw_dashboard/static/"
    held = {name.removeprefix(prefix) for name in zipfile.ZipFile(wheel).namelist() if name.startswith(prefix)}
    page = ROOT / "plugins" / "dashboard" / prefix
    assert "index.html" in held
    assert held == {str(path.relative_to(page)) for path in page.rglob("*") if path.is_file()}


def test_wheel_holds_the_native_parts_and_is_abi3(wheel: Path) -> None:
    assert "-cp311-abi3-linux_x86_64" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert {"agentfw_vmm/agentfw-cell", "agentfw_vmm/_vmm.abi3.so", "agentfw_vmm/py.typed", "agentfw/py.typed"} <= set(names)
    assert not [name for name in names if name.endswith((".c", ".h", ".S")) and not name.startswith("agentfw/")]


@pytest.mark.slow
def test_cell_is_executable_after_pip_install(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    command = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    where = "import importlib.util; print(importlib.util.find_spec('agentfw_vmm').submodule_search_locations[0])"
    package = subprocess.run([str(python), "-c", where], check=True, capture_output=True, text=True, cwd="/").stdout.strip()
    cell = Path(package) / "agentfw-cell"
    assert os.access(cell, os.X_OK)
    done = subprocess.run([str(cell)], capture_output=True, text=True, timeout=20, check=False)  # no descriptor: says so, ends
    assert done.returncode not in (0, -11)
