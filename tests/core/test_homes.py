"""Where a home directory is wanted and there is none: a line that says so, never a mistake of ours."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from agentfw import ConfigError, homes
from agentfw.cli.doctor import _cache
from agentfw.config import load_config
from agentfw.plugins import load_plugins
from agentfw.pool.places import log_file
from agentfw.runtime import Runtime
from agentfw.snapshots import cache_directory, data_directory

ROOT = Path(__file__).parents[2]
NOBODY = "~nobody-here-is-called-that/x"


def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a container's user that no /etc/passwd names."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)


def test_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    no_home(monkeypatch)
    for function, variable in (
        (cache_directory, "XDG_CACHE_HOME"),
        (data_directory, "XDG_DATA_HOME"),
        (lambda: log_file(Path("/x/pool.sock")), "XDG_STATE_HOME"),
    ):
        with pytest.raises(ConfigError) as caught:
            function()
        assert (str(caught.value), caught.value.hint) == ("this user has no home directory", f"set HOME, or {variable}")
        monkeypatch.setenv(variable, "/somewhere")
        assert str(function()).startswith("/somewhere/agentfw")
    monkeypatch.delenv("XDG_CACHE_HOME")
    (check,) = _cache()
    assert (check.status, check.detail) == ("fail", "this user has no home directory")


def test_in_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    assert homes.expanded("~/x") == Path.home() / "x" and homes.expanded("a/~/x") == Path("a/~/x")
    with pytest.raises(ConfigError) as caught:
        homes.expanded(NOBODY, "file")
    assert str(caught.value) == f"file: `{NOBODY}`: `nobody-here-is-called-that` has no home directory"
    no_home(monkeypatch)
    with pytest.raises(ConfigError) as caught:
        homes.expanded("~/x")
    assert str(caught.value) == "`~/x`: this user has no home directory"


def test_nobody_asks_for_it_otherwise() -> None:
    """`Path.home()` and `expanduser()` of a Path raise RuntimeError, which is nobody's answer."""
    allowed = {"core/agentfw/homes.py", "plugins/credentials/agentfw_credentials/sources.py"}
    found = {
        str(file.relative_to(ROOT))
        for part in ("core", "plugins")
        for file in (ROOT / part).rglob("*.py")
        if re.search(r"Path\.home\(|(?<!os\.path)\.expanduser\(", file.read_text())
    }
    assert found <= allowed


@pytest.mark.parametrize(
    ("table", "key"),
    [
        (f'[audit]\nfile = "{NOBODY}"', "audit.file"),
        (f'[capture]\ndirectory = "{NOBODY}"', "capture.directory"),
        (f'[tls]\nca_files = ["{NOBODY}"]', "tls.ca_files.0"),
        (f'[dns]\nhosts_files = ["{NOBODY}"]', "dns.hosts_files.0"),
    ],
)
def test_plugins_name_the_key(tmp_path: Path, table: str, key: str) -> None:
    file = tmp_path / "agentfw.toml"
    file.write_text(table + "\n")

    async def start() -> None:
        config = load_config(file)
        runtime = Runtime(asyncio.get_running_loop(), load_plugins([key.partition(".")[0]], config), config)
        try:
            await runtime.start()
        finally:
            await runtime.stop()

    with pytest.raises(ConfigError) as caught:
        asyncio.run(start())
    assert key in str(caught.value) and "has no home directory" in str(caught.value)
