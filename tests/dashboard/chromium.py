"""Debian's Chromium without a window: the installed one, or unpacked by debian.py."""

from __future__ import annotations

from pathlib import Path

from .. import debian

NAME = "chromium-headless-shell"
ARGUMENTS = ["--disable-gpu", "--disable-smooth-scrolling"]
"""Painted by the CPU straight away: without a GPU its emulation takes twice as much."""


def program() -> debian.Program | None:
    """None, with the reason in debian.MISSING, if there is no way to it."""
    for name in ("chromium", NAME):
        if Path("/usr/lib/chromium", name).exists() and (installed := debian.program(name, name)):
            return installed
    found = debian.program(NAME, NAME)
    if found is None:
        return None
    # /usr/bin has a script that begins the program by its installed path, which is not where it was unpacked to.
    inner = Path(found.path).parents[1] / "lib" / "chromium" / NAME
    return debian.Program(str(inner), found.environment) if inner.exists() else found
