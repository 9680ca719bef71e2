"""Every link of the documentation leads to a file that there is, and to a heading in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .pages import PAGES, ROOT, anchors, links


def broken(page: Path) -> list[str]:
    wrong = []
    for link in links(page):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_relative_to(ROOT) or not target.exists():
            wrong.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(target):
            wrong.append(f"{link}: no such heading")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert not broken(page)


def test_every_page_is_in_the_index() -> None:
    """docs/README.md leads to each page of docs/."""
    index = ROOT / "docs/README.md"
    told = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    untold = [str(page.relative_to(ROOT)) for page in PAGES if page not in told | {index, ROOT / "README.md"}]
    assert not untold


def test_what_is_broken_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.test_links.ROOT", tmp_path)
    (tmp_path / "there.md").write_text('# A `b` heading, twice\n\n# A `b` heading, twice\n\n<a id="own"></a>\n')
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#a-b-heading-twice) [c](there.md#a-b-heading-twice-1) [d](there.md#own)\n"
        "[e](gone.md) [f](there.md#gone) ![g](gone.png) [h](../x)\n\n    [i](not-a-link.md)\n"
    )
    assert [text.partition(":")[0] for text in broken(page)] == ["gone.md", "there.md#gone", "gone.png", "../x"]
