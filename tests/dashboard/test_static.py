"""The page's files: what is of others is what was published, and nothing in our own parses text as markup."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from .serving import STATIC

OWN = sorted(path for path in STATIC.rglob("*") if path.suffix in (".js", ".css", ".html") and "vendor" not in path.parts)


def test_files_of_others_are_as_published() -> None:
    """To the list in vendor/README.txt, in which every file of the directory is."""
    note = (STATIC / "vendor" / "README.txt").read_text()
    listed = dict(reversed(line.split()) for line in note.splitlines() if re.match(r"[0-9a-f]{64}  ", line))
    held = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (STATIC / "vendor").iterdir()}
    del held["README.txt"]
    assert held == listed
    assert "uPlot 1.6.32" in note and "(v1.6.32)" in (STATIC / "vendor" / "uPlot.iife.min.js").read_text()[:200]
    assert "Permission is hereby granted, free of charge" in (STATIC / "vendor" / "uPlot.LICENSE.txt").read_text()


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_our_own_are_readable_and_make_no_markup_of_text(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 600
    assert len(text.encode()) < 40_000
    unsafe = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|setHTML|createContextualFragment|\beval\(|new Function"
    )
    assert not re.search(unsafe, text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), "something from elsewhere"
    if path.suffix == ".html":
        assert not re.search(r"\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|<style", text), "against the page's own policy"


def test_every_module_is_used_and_there() -> None:
    modules = {path.name for path in (STATIC / "js").iterdir()}
    imported = {name for path in (STATIC / "js").iterdir() for name in re.findall(r'from "\./([\w.]+)"', path.read_text())}
    page = (STATIC / "index.html").read_text()
    asked = set(re.findall(r'(?:src|href)="((?!#)[^"]+)"', page))
    assert all((STATIC / name).is_file() for name in asked)
    assert modules == imported | {Path(name).name for name in asked if name.startswith("js/")}
