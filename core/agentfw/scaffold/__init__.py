"""`agentfw plugins new NAME`: the project of a plugin, copied from `template/`, which is one (`my_plugin`) that works."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import sys
from pathlib import Path

from ..errors import PluginError
from ..plugins import RESERVED, available

TEMPLATE = Path(__file__).parent / "template"
STANDS_FOR_NAME = "my_plugin"

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
_TAKEN = frozenset({"agentfw", "test", "tests", "plugin"})


def write_project(name: str, directory: Path) -> tuple[Path, list[str]]:
    """Write it to `directory`/`name`, which must not exist: that path, and its files relative to it. PluginError, with nothing
    left behind."""
    check_name(name)
    try:
        found = directory.is_dir()
    except OSError as error:  # a name that is too long
        raise PluginError(f"`{directory}` cannot be used: {error.strerror}") from None
    if not found:
        raise PluginError(f"`{directory}` is no directory")
    project = directory / name
    try:
        project.mkdir()
    except FileExistsError:
        raise PluginError(f"`{project}` exists already") from None
    except OSError as error:
        raise PluginError(f"cannot make `{project}`: {error.strerror}") from None
    try:
        return project, [_write(file, project, name) for file in _files()]
    except OSError as error:
        shutil.rmtree(project, ignore_errors=True)
        raise PluginError(f"cannot write `{project}`: {error.strerror}") from None


def check_name(name: str) -> None:
    """PluginError unless a module, a distribution and a plugin may be called this without hiding another."""
    if not _NAME.match(name) or keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise PluginError(f"`{name}` cannot be a plugin's name: lower-case letters, digits and `_`, a letter first, 40 at most")
    if name in RESERVED or name in _TAKEN or name.startswith("agentfw_"):
        raise PluginError(f"`{name}` cannot be a plugin's name: agentfw uses it itself")
    if name in available():
        raise PluginError(f"`{name}` cannot be a plugin's name: {available()[name].origin} has a plugin of that name")
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise PluginError(f"`{name}` cannot be a plugin's name: there is a module of that name")


def _files() -> list[Path]:
    return sorted(file for file in TEMPLATE.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def _write(file: Path, project: Path, name: str) -> str:
    """One file of the template. Names of files that tools would act upon in our own tree begin with `dot.`."""
    parts = [part.replace(STANDS_FOR_NAME, name) for part in file.relative_to(TEMPLATE).parts]
    parts[-1] = parts[-1].removeprefix("dot") if parts[-1].startswith("dot.") else parts[-1]
    target = project.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(file.read_text(encoding="utf-8").replace(STANDS_FOR_NAME, name), encoding="utf-8")
    return "/".join(parts)
