"""Home directories. There may be none: of a container's user without a name, of a service's whose HOME is not set."""

from __future__ import annotations

from pathlib import Path

from .errors import ConfigError


def home(instead: str) -> Path:
    """One's own. ConfigError; `instead`: the variable that makes it needless."""
    try:
        return Path.home()
    except RuntimeError:
        raise ConfigError("", "this user has no home directory", hint=f"set HOME, or {instead}") from None


def expanded(path: str, key: str = "") -> Path:
    """With `~` and `~USER` at its beginning replaced. ConfigError at `key`, if there is no such directory or user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        whose = "this user" if path.partition("/")[0] == "~" else f"`{path.partition('/')[0][1:]}`"
        raise ConfigError(key, f"`{path}`: {whose} has no home directory", hint="write a whole path, or set HOME") from None
