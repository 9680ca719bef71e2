"""File systems of a cell without VMs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .driver import Vfs, build

SECRET = b"the host's secret"
MakeVfs = Callable[..., Vfs]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    directory = tmp_path_factory.mktemp("harness")
    return {sanitize: build(directory, sanitize) for sanitize in (False, True)}


@pytest.fixture(params=["sanitized", "jailed"])
def make(request: pytest.FixtureRequest, programs: dict[bool, Path]) -> Iterator[MakeVfs]:
    """Makes file systems; each test runs sanitized, and in another build under a seccomp filter of the jail's file calls."""
    sanitize = request.param == "sanitized"
    made: list[Vfs] = []

    def make(**arguments: object) -> Vfs:
        made.append(Vfs(programs[sanitize], jail=not sanitize, **arguments))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for vfs in made:
        vfs.close()


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host: `secret` lies beside `shared`, which is what guests get."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_bytes(SECRET)
    shared = tmp_path / "shared"
    (shared / "lib/sub").mkdir(parents=True)
    (shared / "lib/module.py").write_text("x = 1\n")
    (shared / "lib/sub/data").write_bytes(bytes(range(256)) * 1000)
    (shared / "bin").mkdir()
    (shared / "bin/tool").write_text("#!")
    (shared / "bin/tool").chmod(0o755)
    return tmp_path
