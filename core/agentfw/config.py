"""agentfw.toml: one table for `agentfw run`, one for all plugins, one a plugin. Every mistake names key, file and line.

The file is looked for from the working directory upward (or named with --config). Plugins declare a msgspec Struct
(`config_type`) for their table; keys that it does not have are mistakes, also without ``forbid_unknown_fields=True``. Values are
not coerced: a number in quotes is text.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from .errors import ConfigError
from .hints import did_you_mean
from .sizes import vm_memory
from .small_files import read_small
from .texts import shown

FILE_NAME = "agentfw.toml"
OWN_TABLES = frozenset({"run", "plugins", "pool"})
"""Tables of no plugin."""

MAX_FILE = 1 << 20
"""Bytes."""
MAX_ARRAY = 20_000
"""Lines in which an array's element is looked for."""

Table = TypeVar("Table", bound=msgspec.Struct)

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]*)`(?: - at `\$(?P<path>[^`]*)`)?")
_AT = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?\Z", re.DOTALL)
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?\Z")
_KEY = re.compile(r"\s*((?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*(?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_-]+))*)\s*=")


def path_beside(directory: Path, path: str) -> str:
    """A path as it is written in an agentfw.toml that lies in `directory`: a relative one begins there. (`..` is left to the
    system: behind a symlink it is no matter of text.)"""
    return path if directory == Path() or path.startswith("~") else str(directory / path)


class RunConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Table [run]: defaults of the options of `agentfw run` (which go before). What is left out is the command's own default."""

    plugins: tuple[str, ...] | None = None
    """Names or files, in calling order. Left out: dns, tls, policy, credentials, native, and each of inspect, audit,
    capture and otel that has a table; in pools that are services always inspect and dashboard, too."""
    memory: str | None = None
    """Limit of a VM, `"512M"`, `"2G"`; left out: 512M."""
    timeout: float | None = None
    """Seconds an agent may run; left out: no limit."""
    mount: tuple[str, ...] = ()
    """What agents see besides: `"HOST:GUEST[:rw]"`."""
    env: dict[str, str] = {}
    """Variables for the agents."""
    preload: tuple[str, ...] = ()
    """Modules imported before the snapshot is taken."""

    def __post_init__(self) -> None:
        check_variables(self.env, "env")
        try:
            vm_memory(self.memory)
        except ValueError as error:
            raise ConfigError("memory", f"`{self.memory}` {error}") from None

    def beside(self, directory: Path) -> RunConfig:
        """Plugins' files, and what is mounted, are where this file is, wherever it is used from."""
        plugins = self.plugins and tuple(path_beside(directory, name) if is_path(name) else name for name in self.plugins)
        mounts = [text.partition(":") for text in self.mount]
        mount = tuple(path_beside(directory, host) + colon + guest if host else colon + guest for host, colon, guest in mounts)
        return msgspec.structs.replace(self, plugins=plugins, mount=mount)


def check_variables(env: Mapping[str, str], key: str) -> None:
    """ConfigError for what the environment of no process can hold, environ(7)."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ConfigError(f"{key}.{shown(name)}", "cannot be a variable: an empty name, `=` in it, or NUL")


def is_path(name: str) -> bool:
    """Of what `plugins` has: a file, not an installed plugin."""
    return name.endswith(".py") or "/" in name


class Config:
    """A parsed file; `run` is checked at once, plugins' tables when the plugins are loaded."""

    def __init__(self, tables: Mapping[str, Any] | None = None, file: Path | None = None, text: str = "") -> None:
        self.tables: dict[str, Any] = dict(tables or {})
        self.file = file
        self._text = text
        self.changed: dict[str, dict[str, Any]] = {}
        """By table: what `with_keys()` put into it, which is not in the text."""
        self.run: RunConfig = self.plugin("run", RunConfig)

    @classmethod
    def parsed(cls, text: str, file: Path | None = None) -> Config:
        """That of a file with this text. ConfigError."""
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            line = re.search(r"at line (\d+)", str(error))
            raise ConfigError("", f"not TOML: {error}", file, int(line[1]) if line else text.count("\n") + 1) from None
        except RecursionError:
            raise ConfigError("", "not TOML that anybody would write: it is nested too deeply", file) from None
        return cls(tables, file, text)

    @property
    def text(self) -> str:
        """Of the file; "" if there is none."""
        return self._text

    def plugin(self, name: str, kind: type[Table]) -> Table:
        """The table `[name]` as `kind`; ConfigError for unknown keys, wrong types, missing ones. A `kind` that has paths in its
        texts may have a method `beside(directory)`, which returns it with the relative ones taken from there."""
        table = self.tables.get(name, {})
        try:
            found = msgspec.convert(table, kind)
            beside = getattr(found, "beside", None)
            placed = found if beside is None or self.file is None else beside(self.file.parent)
        except msgspec.ValidationError as error:
            raise self._explain(name, kind, table, error) from None
        except ConfigError as error:  # from a __post_init__
            raise self.located(name, error) from None
        if (ignored := _ignored(table, found)) is not None:
            raise self._unknown(name, kind, ignored)
        return placed

    def with_keys(self, name: str, keys: Mapping[str, Any]) -> Config:
        """The same file with other values of these keys of the table `[name]`."""
        table = self.tables.get(name, {})
        made = Config({**self.tables, name: {**table, **keys} if isinstance(table, dict) else table}, self.file, self._text)
        made.changed = {**self.changed, name: {**self.changed.get(name, {}), **keys}}
        return made

    def error(self, key: str, message: str) -> ConfigError:
        """A ConfigError about `key` (dotted; list elements by number) of this file."""
        path = [int(part) if part.isdecimal() and part.isascii() else part for part in key.split(".")]
        if len(path) > 1 and path[1] in self.changed.get(str(path[0]), {}):  # not the file's
            return ConfigError(key, message)
        return ConfigError(key, message, self.file, _find_line(self._text, path) if self._text else None)

    def located(self, name: str, error: ConfigError) -> ConfigError:
        """A plugin's error about a key of its own table `[name]`, with file and line."""
        found = self.error(f"{name}.{error.key}" if error.key else name, error.message)
        found.hint = error.hint
        return found

    def place(self, key: str) -> str:
        """Where `key` (as for `error()`) is written, for people: "agentfw.toml:12"; "" if it is not in a file."""
        if self.file is None or not self._text:
            return ""
        path = [int(part) if part.isdecimal() and part.isascii() else part for part in key.split(".")]
        line = _find_line(self._text, path)
        if line is None:
            return ""
        value = _at(self.tables, list(path))
        if isinstance(value, str) and isinstance(path[-1], int):  # an element of an array of several lines
            lines = self._text.splitlines()
            for number in range(line, min(line + MAX_ARRAY, len(lines)) + 1):
                if f'"{value}"' in lines[number - 1] or f"'{value}'" in lines[number - 1]:
                    return f"{self.file.name}:{number}"
        return f"{self.file.name}:{line}"

    def check_tables(self, known: Collection[str]) -> None:
        """ConfigError if there is anything at the top level but [run], [plugins], [pool] and tables of these plugins."""
        for name, value in self.tables.items():
            if name not in OWN_TABLES and name not in known:
                tables = sorted({*OWN_TABLES, *known})
                error = self.error(name, f"unknown table (known: {', '.join(tables)})")
                error.hint = did_you_mean(name, tables) or "if it is that of a plugin's file, name the file in `[run] plugins`"
                raise error
            if not isinstance(value, dict):
                raise self.error(name, "must be a table")

    def _explain(self, name: str, kind: type[Table], table: Any, error: msgspec.ValidationError) -> ConfigError:
        from . import config_words  # only for this: it takes its time to import

        places = _narrowed(table, kind, str(error))
        unknown = _UNKNOWN.match(str(error))
        if unknown:
            return self._unknown(name, kind, [*_steps(unknown["path"] or "", places), unknown["field"]])
        match = _AT.match(str(error))
        assert match is not None
        path = _steps(match["path"] or "", places)
        message, hint = config_words.wrong_value(kind, path, _at(table, path), match["what"])
        found = self.error(".".join(map(str, [name, *path])), message)
        found.hint = hint
        return found

    def _unknown(self, name: str, kind: type[Table], path: list[str | int]) -> ConfigError:
        from . import config_words

        message, hint = config_words.unknown_key(kind, path[:-1], str(path[-1]))
        found = self.error(".".join(map(str, [name, *path])), message)
        found.hint = hint
        return found


def load_config(path: str | Path | None = None, directory: Path | None = None, *, pipes: bool = True) -> Config:
    """Read `path`, or the nearest agentfw.toml from `directory` (default: the working directory) upward; none is an empty
    Config. `pipes`: it may be a pipe, and is waited for."""
    if path is None:
        try:
            start = (directory or Path.cwd()).absolute()
        except OSError:  # the working directory is gone
            return Config()
        file = next((place / FILE_NAME for place in (start, *start.parents) if (place / FILE_NAME).is_file()), None)
        if file is None:
            return Config()
    else:
        file = Path(path)
    try:
        data = read_small(file, MAX_FILE, pipes=pipes)
    except OSError as error:
        hint = "without a name the nearest agentfw.toml is read, from here upward" if path is not None else ""
        raise ConfigError("", f"cannot be read: {error.strerror or error}", file, hint=hint) from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("", f"not UTF-8: {error.reason}", file, data.count(b"\n", 0, error.start) + 1) from None
    return Config.parsed(text, file)


def _ignored(table: Any, made: Any) -> list[str | int] | None:
    """The way to a key that msgspec passed over, in a Struct without `forbid_unknown_fields`: what it means is not in force."""
    inner: Iterable[tuple[str | int, Any, Any]] = ()
    if isinstance(made, msgspec.Struct) and isinstance(table, dict):
        fields = dict(zip(made.__struct_encode_fields__, made.__struct_fields__, strict=True))
        strange = next((key for key in table if key not in fields and key != made.__struct_config__.tag_field), None)
        if strange is not None:
            return [strange]
        inner = ((key, value, getattr(made, fields[key], None)) for key, value in table.items() if key in fields)
    elif isinstance(made, (list, tuple)) and isinstance(table, list):
        inner = ((i, *pair) for i, pair in enumerate(zip(table, made, strict=False)))
    elif isinstance(made, dict) and isinstance(table, dict):
        inner = ((key, value, made.get(key)) for key, value in table.items())
    return next(([step, *way] for step, value, each in inner if (way := _ignored(value, each)) is not None), None)


def _steps(path: str, places: list[str | int]) -> list[str | int]:
    """msgspec's "$.rule[...].host" -> ["rule", 1, "host"]; `places` has the indices and keys that it leaves out."""
    left = list(places)
    steps: list[str | int] = []
    for name, index in re.findall(r"\.?([^.\[\]]+)|\[([^\]]*)\]", path):
        if name:
            steps.append(name)
        elif index.isdecimal():
            steps.append(int(index))
        elif left:
            steps.append(left.pop(0))
    return steps


def _narrowed(table: Any, kind: type[msgspec.Struct], message: str) -> list[str | int]:
    """Where the error is, in each list and each table with keys of the operator's on the way there: indices and keys."""
    match = re.search(r"- at `\$([^`]*)`", message)
    places: list[str | int] = []
    if match is None or not isinstance(table, dict):
        return places
    way: list[str | int] = []
    for name, index in re.findall(r"\.?([^.\[\]]+)|\[([^\]]*)\]", match[1]):
        if name or index.isdecimal():
            way.append(name or int(index))
            continue
        elements = _at(table, way)
        tried: Iterable[tuple[str | int, Any, str | int]]
        if isinstance(elements, list):
            tried = ((i, [element], 0) for i, element in enumerate(elements))
        elif isinstance(elements, dict):
            tried = ((key, {key: element}, key) for key, element in elements.items())
        else:
            break
        for place, alone, step in tried:
            candidate = _replaced(table, way, alone)
            try:
                msgspec.convert(candidate, kind)
            except msgspec.ValidationError as error:
                if str(error) == message:
                    table = candidate
                    places.append(place)
                    way.append(step)
                    break
        else:
            break
    return places


def _at(value: Any, way: list[str | int]) -> Any:
    for step in way:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _replaced(value: Any, way: list[str | int], new: Any) -> Any:
    if not way:
        return new
    copy = value.copy()
    copy[way[0]] = _replaced(value[way[0]], way[1:], new)
    return copy


def _find_line(text: str, path: list[str | int]) -> int | None:
    """Line of the key at `path`, or of the nearest thing above it that has one. Reads headers and `key =` lines only."""
    exact, above = _lines(text)
    if not path:
        return None
    found = above.get(tuple(path))
    for length in range(len(path) - 1, 0, -1):
        if found is not None:
            break
        found = exact.get(tuple(path[:length]))
    return found


@functools.lru_cache(maxsize=4)
def _lines(text: str) -> tuple[dict[tuple[str | int, ...], int], dict[tuple[str | int, ...], int]]:
    """The first line of each key and header, and of each thing that has keys or headers below it."""
    exact: dict[tuple[str | int, ...], int] = {}
    above: dict[tuple[str | int, ...], int] = {}
    table: list[str | int] = []
    counts: dict[tuple[str | int, ...], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header:
            table = _resolved(_split_key(header[2]), counts)
            if header[1] == "[[":
                counts[tuple(table)] = counts.get(tuple(table), -1) + 1
                table = [*table, counts[tuple(table)]]
            here = tuple(table)
        else:
            key = _KEY.match(line)
            if not key:
                continue
            here = (*table, *_split_key(key[1]))
        exact.setdefault(here, number)
        for length in range(1, len(here) + 1):
            above.setdefault(here[:length], number)
    return exact, above


def _split_key(key: str) -> list[str | int]:
    return [_plain_key(part.strip()) for part in re.findall(r"\"[^\"]*\"|'[^']*'|[^.]+", key)]


def _plain_key(part: str) -> str:
    if part.startswith('"') and "\\" in part:
        try:
            return str(tomllib.loads(f"key = {part}")["key"])
        except tomllib.TOMLDecodeError:
            pass
    return part.strip("\"'")


def _resolved(way: list[str | int], counts: dict[tuple[str | int, ...], int]) -> list[str | int]:
    """[a.b] under [[a]] belongs to the newest element of a."""
    done: list[str | int] = []
    for i, step in enumerate(way):
        done.append(step)
        if i < len(way) - 1 and tuple(done) in counts:
            done.append(counts[tuple(done)])
    return done
