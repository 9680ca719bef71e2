"""The token that clients over TCP show, as a file has it."""

from __future__ import annotations

from pathlib import Path

from ..errors import ConfigError
from ..small_files import read_small

MIN_TOKEN = 20
"""Characters."""


def read_token(path: str | Path) -> bytes:
    """The token in a file, which others may not read. ConfigError, without the token."""
    path = Path(path)
    try:
        mode = path.stat().st_mode
        token = read_small(path, 4096).strip()
    except OSError as error:
        hint = f"name the file with the pool's token; one for a new pool: {_how_to_make(path)}"
        raise ConfigError("token_file", f"cannot be read: {error.strerror}", path, hint=hint) from None
    if mode & 0o077:
        raise ConfigError("token_file", "others may read or write it", path, hint=f"chmod 600 {path}")
    if len(token) < MIN_TOKEN or not token.isascii() or any(byte <= 32 for byte in token):
        raise ConfigError("token_file", f"a token is one line of at least {MIN_TOKEN} characters", path, hint=_how_to_make(path))
    return token


def _how_to_make(path: Path) -> str:
    return f"umask 077; head -c 32 /dev/urandom | base64 > {path}"
