"""What is wrong with a token's file, and what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentfw import ConfigError
from agentfw.pool.tokens import read_token


@pytest.mark.parametrize(
    ("text", "mode", "message", "hint"),
    [
        (None, 0, "cannot be read: No such file or directory", "name the file with the pool's token; one for a new pool: umask"),
        ("0123456789-0123456789\n", 0o640, "others may read or write it", "chmod 600 "),
        ("short\n", 0o600, "a token is one line of at least 20 characters", "umask 077; head -c 32 /dev/urandom"),
    ],
)
def test_what_is_wrong_and_what_to_do(tmp_path: Path, text: str | None, mode: int, message: str, hint: str) -> None:
    path = tmp_path / "token"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(ConfigError, match=message) as caught:
        read_token(path)
    assert caught.value.hint.startswith(hint) and str(path) in str(caught.value)
