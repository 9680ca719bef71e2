"""Commands, configurations and Python in the documentation are ones that agentfw takes."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from agentfw.cli import cli
from agentfw.config import RunConfig, load_config
from agentfw.plugins.discovery import available
from agentfw.plugins.limits import PluginsConfig
from agentfw.plugins.loading import plugin_class
from agentfw.pool.config import PoolConfig

from .pages import PAGES, ROOT, Block, blocks, inline

SHELLS = {"", "sh", "bash", "console", "shell"}
SEPARATORS = re.compile(r"[;&|()<>]+")


def command_lines(text: str) -> Iterator[list[str]]:
    """The words behind `agentfw`, wherever a shell would run it."""
    text = re.sub(r"\\\n\s*", " ", text)
    for line in text.splitlines():
        line = line.strip().removeprefix("$ ")
        if "agentfw" not in line:
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        words: list[str] = []
        try:
            found = list(lexer)
        except ValueError:  # an apostrophe in a comment of prose: no shell's line
            continue
        redirected = False
        for word in [*found, ";"]:
            if SEPARATORS.fullmatch(word):
                if set(word) <= {"<", ">"}:
                    redirected = True
                    continue
                if (command := _ours(words)) is not None:
                    yield command
                words = []
            elif redirected:
                redirected = False
            else:
                words.append(word)


def _ours(words: list[str]) -> list[str] | None:
    while words and re.fullmatch(r"(\w+=.*|time|exec|nohup|env|sudo|timeout|\d+)", words[0]):
        words = words[1:]
    return words[1:] if words and words[0] in ("agentfw", ".venv/bin/agentfw") else None


def complaint(arguments: list[str], strict: bool) -> str:
    """What click says of a command line; "": it would run it. Not `strict`: that something is left out is no complaint."""
    command: click.Command = cli
    context = click.Context(cli, info_name="agentfw")
    rest = list(arguments)
    while isinstance(command, click.Group):
        if not rest or rest[0] in ("--help", "--version", "-h"):
            return ""
        inner = command.get_command(context, rest[0])
        if inner is None:
            return f"no command `{rest[0]}`"
        command, context, rest = inner, click.Context(inner, parent=context, info_name=rest[0]), rest[1:]
    if "--help" in rest or "-h" in rest:
        return ""
    try:
        command.make_context(command.name, rest, parent=context.parent, resilient_parsing=not strict)
    except click.ClickException as error:
        return error.format_message()
    return ""


def handwritten(page: Path) -> Iterator[Block]:
    """Not the usage lines of the generated reference: they are click's own."""
    made = [range(*match.span()) for match in re.finditer(r"(?s)<!-- generated: .*?<!-- end of generated -->", page.read_text())]
    starts = [0]
    for line in page.read_text().splitlines(True):
        starts.append(starts[-1] + len(line))
    for block in blocks(page):
        if not any(starts[block.line - 1] in span for span in made):
            yield block


def in_blocks() -> list[tuple[str, list[str]]]:
    return [
        (f"{block.place}: agentfw {shlex.join(words)}", words)
        for page in PAGES for block in handwritten(page) if block.language in SHELLS
        for words in command_lines(block.text) if not any("[" in word and "/" not in word for word in words)
    ]  # fmt: skip


@pytest.mark.parametrize(("where", "words"), in_blocks(), ids=lambda value: value if isinstance(value, str) else "")
def test_commands_in_blocks_are_taken(where: str, words: list[str]) -> None:
    assert not complaint(words, strict=True), where


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_sentences_are_there(page: Path) -> None:
    wrong = []
    for token in inline(page):
        if (
            token.type == "code_inline"
            and re.match(r"(\.venv/bin/)?agentfw [a-z-]", token.content)
            and not re.search(r"[\[…]", token.content)
        ):
            for words in command_lines(token.content):
                if said := complaint(words, strict=False):
                    wrong.append(f"{token.content}: {said}")
    assert not wrong


@cache
def flags() -> frozenset[str]:
    def of(command: click.Command) -> Iterator[str]:
        yield from (flag for option in command.params if isinstance(option, click.Option) for flag in option.opts)
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                inner = command.get_command(click.Context(command), name)
                assert inner is not None
                yield from of(inner)

    return frozenset(of(cli)) | {"--help", "--version"}


OTHERS = {"docs/benchmarks.md", "docs/conformance.md", "docs/internals.md"}
"""Pages whose options are benchmarks'."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_in_sentences_are_spelt_as_they_are(page: Path) -> None:
    if str(page.relative_to(ROOT)) in OTHERS:
        return
    spans = [token.content for token in inline(page) if token.type == "code_inline"]
    options = {
        flag for span in spans if re.match(r"(agentfw|--)", span) for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", span)
    }
    assert not options - flags()


TOML = re.compile(r"\A\s*(#.*\n\s*)*\[+[a-z]")


def configurations() -> list[Block]:
    found = [block for page in PAGES for block in blocks(page)]
    return [block for block in found if (block.language == "toml" or (not block.language and TOML.match(block.text)))
            and "[project" not in block.text and "[tool" not in block.text and "[sources." not in block.text]  # fmt: skip


@cache
def tables() -> dict[str, type]:
    plugins = {name: plugin_class(name)[1] for name, info in available().items() if info.origin.startswith("agentfw ")}
    return {"run": RunConfig, "pool": PoolConfig, "plugins": PluginsConfig,
            **{name: kind.config_type for name, kind in plugins.items() if hasattr(kind, "config_type")}}  # fmt: skip


@pytest.mark.parametrize("block", configurations(), ids=lambda block: block.place)
def test_configurations_are_valid(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import agentfw_policy

    for name in re.findall(r"\$\{env:(\w+)\}", block.text):
        monkeypatch.setenv(name, "sk-something-0123456789")
    file = tmp_path / "agentfw.toml"
    file.write_text(block.text)
    config = load_config(file)
    for table in tomllib.loads(block.text):
        if table not in ("mine", "my_policy", "team_header", "office_hours"):  # of plugins from files, in docs/plugins.md
            assert table in tables(), f"no table [{table}]"
            made = config.plugin(table, tables()[table])
            if table == "policy":
                agentfw_policy.Plugin(made)


STATEMENTS = re.compile(r"(?m)^\s*(import \w+$|from \w+ import |async (with|for) |\w+ = await )")


def python() -> list[Block]:
    """docs/internals.md has the outline of classes, which is no program."""
    found = [block for page in PAGES if page.name != "internals.md" for block in blocks(page)]
    return [each for each in found if each.language in ("python", "py") or (not each.language and STATEMENTS.search(each.text))]


@pytest.mark.parametrize("block", python(), ids=lambda block: block.place)
def test_python_is_python(block: Block) -> None:
    ast.parse(textwrap.dedent(block.text), block.place)


def diagrams() -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language == "mermaid"]


@pytest.mark.parametrize("block", diagrams(), ids=lambda block: block.place)
def test_diagrams_are_ones_that_mermaid_draws(block: Block) -> None:
    """As far as can be told without it: `;` ends a statement in the middle of a message, brackets and quotes come in pairs."""
    assert re.match(r"(flowchart (LR|TB)|sequenceDiagram|stateDiagram-v2)\n", block.text)
    assert ";" not in block.text
    for line in block.text.splitlines():
        assert line.count('"') % 2 == 0 and line.count("[") == line.count("]") and line.count("(") == line.count(")"), line
    assert len(re.findall(r"(?m)^\s*subgraph ", block.text)) == len(re.findall(r"(?m)^\s*end$", block.text))


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "    $ FOO=1 agentfw run --memry 1G a.py; agentfw ps -q | agentfw kil x && agentfw submit --wait b.py > out.txt\n"
    )
    (block,) = blocks(page)
    assert [complaint(words, strict=True)[:14] for words in command_lines(block.text)] == [
        "No such option",
        "",
        "no command `ki",
        "",
    ]
