"""Fills the generated parts of the documentation: what lies between `<!-- generated: WHAT -->` and `<!-- end of generated -->`.

    python docs/generate.py            # write them
    python docs/generate.py --check    # say which are stale, and exit with 1 if any is

They are made of the code: commands of click, tables of agentfw.toml of msgspec Structs, hooks of their specifications, operations
of the control API of its routes. What stands around them is written by hand. A new part is a function in `generator`.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path

import generator

DOCS = Path(__file__).parent
PART = re.compile(r"(?m)^<!-- generated: ([^\n]*?) -->\n(.*?)^<!-- end of generated -->$", re.DOTALL)
MARKER = re.compile(r"(?m)^<!-- generated: |^<!-- end of generated -->$")


def filled(text: str, seen: set[str]) -> str:
    """The page as it should be. `seen` takes up what was asked for."""

    def part(match: re.Match[str]) -> str:
        what = match[1].split()
        seen.add(" ".join(what))
        return f"<!-- generated: {match[1]} -->\n\n{generator.make(*what).strip(chr(10))}\n\n<!-- end of generated -->"

    if 2 * len(PART.findall(text)) != len(MARKER.findall(text)):
        raise SystemExit("error: a generated part without an end, or an end without a beginning")
    return PART.sub(part, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if something is stale")
    check = parser.parse_args().check
    stale, seen = 0, set[str]()
    for page in sorted(DOCS.rglob("*.md")):
        before = page.read_text()
        try:
            after = filled(before, seen)
        except generator.Unknown as error:
            raise SystemExit(f"error: {page.relative_to(DOCS.parent)}: {error}") from None
        if after == before:
            continue
        stale += 1
        if check:
            sys.stdout.writelines(
                difflib.unified_diff(before.splitlines(True), after.splitlines(True), str(page), "generated", n=1)
            )
        else:
            page.write_text(after)
            print(f"{page.relative_to(DOCS.parent)}: written")
    missing = [
        f"{where}: no part `<!-- generated: {what} -->`"
        for what, where in generator.wanted()
        if not any(f"{each} ".startswith(f"{what} ") for each in seen)
    ]
    for text in missing:
        print(text)
    if check and (stale or missing):
        print("to mend it: python docs/generate.py" + (", after the markers are there" if missing else ""))
    return 1 if missing or (check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())
