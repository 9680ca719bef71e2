"""The modules of this interpreter's own `test` package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SPLIT = ("test_asyncio", "test_concurrent_futures", "test_future_stmt", "test_inspect")
"""Packages whose modules are run one by one, as regrtest does."""

MISSING = """\
this Python ({executable}) has no `test` package with CPython's own tests. Distributions leave it out or have it in a package
of its own (Debian and Ubuntu: libpython3-testsuite, Fedora: python3-test); those of pyenv, of uv and of
python.org's source have it."""


class NoTests(Exception):
    """The interpreter has none; the text says where to get them."""


def directory(executable: str) -> Path:
    found = importlib.util.find_spec("test")
    for place in (found.submodule_search_locations or ()) if found else ():
        if (Path(place) / "test_os.py").is_file() or (Path(place) / "test_os").is_dir():
            return Path(place)
    raise NoTests(MISSING.format(executable=executable))


def _names(place: Path) -> list[str]:
    return sorted(
        file.stem
        for file in place.iterdir()
        if file.name.startswith("test_") and (file.suffix == ".py" or (file / "__init__.py").is_file())
    )


def every(place: Path) -> list[str]:
    return [module for name in _names(place) for module in expand(place, name)]


def expand(place: Path, name: str) -> list[str]:
    """A package that is run module by module as its modules; anything else as itself."""
    if name in SPLIT and (place / name).is_dir():
        return [f"{name}.{inner}" for inner in _names(place / name)]
    return [name]


def exists(place: Path, name: str) -> bool:
    path = place.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
