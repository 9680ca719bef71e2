"""The pages of the documentation, taken apart: headings, links, blocks of code."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A block of code. `language` and `name` (of the file that it is): what stands behind the fence, "" for an indented one;
    `line`: of the page, from 1."""

    page: Path
    language: str
    name: str
    text: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@cache
def tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())


def blocks(page: Path) -> Iterator[Block]:
    for token in tokens(page):
        if token.type in ("fence", "code_block") and token.map:
            language, _, name = token.info.strip().partition(" ")
            yield Block(page, language, name.strip(), token.content, token.map[0] + (2 if token.type == "fence" else 1))


def inline(page: Path) -> Iterator[Token]:
    """All that stands in running text: text, code, links, pieces of HTML."""
    for token in tokens(page):
        yield from token.children or ()


def links(page: Path) -> Iterator[str]:
    for token in inline(page):
        if token.type in ("link_open", "image"):
            yield str(token.attrs.get("href") or token.attrs.get("src"))


@cache
def anchors(page: Path) -> frozenset[str]:
    """As GitHub makes them of headings, the second of a name with `-1`; and `<a id="...">`."""
    found: dict[str, int] = {}
    names: set[str] = set()
    listed = tokens(page)
    for before, token in itertools.pairwise(listed):
        if before.type == "heading_open":
            words = "".join(part.content for part in token.children or () if part.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            number = found.get(slug, 0)
            found[slug] = number + 1
            names.add(f"{slug}-{number}" if number else slug)
    for part in (*listed, *inline(page)):
        if part.type in ("html_inline", "html_block"):
            names |= set(re.findall(r'<a id="([\w-]+)">', part.content))
    return frozenset(names)
