"""`agentfw policy`: the rules looked at before an agent meets them."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec
from agentfw import Agent
from agentfw.cli.output import put, say
from agentfw.config import Config as File
from agentfw.config import load_config
from agentfw.errors import ConfigError, Denied
from agentfw.guest_rules import GuestRules
from agentfw.plugins import chosen_plugins
from agentfw.plugins.loading import known_tables

from .config import Config
from .explain import as_json, explain, lines
from .guest import described, enforcement
from .lint import lint
from .profiles import Policy

CONFIG = click.option(
    "--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="This file instead of the nearest agentfw.toml."
)
JSON = click.option("--json", "as_json_", is_flag=True, help="Print JSON.")


@click.group()
def policy() -> None:
    """What agents may do, by [policy] of agentfw.toml."""


@policy.command()
@CONFIG
@click.option("--strict", is_flag=True, help="Warnings are errors: status 1.")
@JSON
def check(file: Path | None, strict: bool, as_json_: bool) -> int:
    """Check [policy], and warn of rules without effect and of rules that allow more than anybody may have meant.

    Status 0: it is valid; 1: it is not, or with --strict, there are warnings.
    """
    loaded = load_config(file)
    error: ConfigError | None = None
    warnings: list[tuple[str, str]] = []
    profiles = rules = 0
    guests: dict[str, GuestRules] = {}
    try:
        compiled = _compiled(loaded)
        guests = {profile.key or "policy": profile.guest for profile in compiled.profiles.values() if profile.guest}
        profiles = len(compiled.config.profile)
        rules = len({rule.key for profile in compiled.profiles.values() for rule in profile.rules})
        warnings = [(loaded.place(f"policy.{warning.key}"), warning.text) for warning in lint(compiled)] + _around(loaded)
    except ConfigError as caught:
        error = caught
    if as_json_:
        document = {
            "version": 1,
            "file": str(loaded.file) if loaded.file else None,
            "valid": error is None,
            "error": None if error is None else {"key": error.key, "line": error.line, "message": error.message},
            "rules": rules,
            "profiles": profiles,
            "warnings": [{"where": where, "text": text} for where, text in warnings],
            "guests": {
                key: {"files": [msgspec.to_builtins(rule) for rule in guest.files], "syscalls": enforcement(guest)}
                for key, guest in guests.items()
            },
        }
        click.echo(json.dumps(document))
    elif error is not None:
        put(str(error))
        if error.hint:
            put(f"hint: {error.hint}")
    else:
        for where, text in warnings:
            put(f"{where}: warning: {text}" if where else f"warning: {text}")
        for key, guest in guests.items():
            for line in described(guest):
                put(f"{key}: {line}")
        name = loaded.file.name if loaded.file else "no agentfw.toml from here upward"
        put(f"{name}: {_count(rules, 'rule')}, {_count(profiles, 'profile')}, {_count(len(warnings), 'warning')}")
    return 1 if error is not None or (strict and warnings) else 0


@policy.command("explain")
@CONFIG
@click.option("--label", "labels", multiple=True, metavar="K=V", help="For an agent with this label (repeatable).")
@click.option("--agent", default="agent-1", metavar="NAME", help="For an agent of this name.  [default: agent-1]")
@click.option("--method", default="GET", metavar="METHOD", help="For requests of this method.  [default: GET]")
@JSON
@click.argument("targets", nargs=-1, required=True, metavar="HOST[:PORT][/PATH]|URL...")
def explain_(
    file: Path | None, labels: tuple[str, ...], agent: str, method: str, as_json_: bool, targets: tuple[str, ...]
) -> int:
    """Say what would happen, and by which rule.

    Without a scheme, https is meant, and http on port 80. Addresses that a name resolves to are not asked for. Status 0: all are
    allowed; 1: one is denied.
    """
    loaded = load_config(file)
    compiled = _compiled(loaded)
    who = Agent("explained", agent, dict(_label(text) for text in labels))
    if not method.isascii() or not method.replace("-", "").isalpha():
        raise click.UsageError(f"`{method}` is no method")
    try:
        found = [explain(compiled, lambda key: loaded.place(f"policy.{key}"), who, target, method) for target in targets]
    except Denied as error:  # the label names a profile that is not there
        raise click.UsageError(error.reason) from None
    if as_json_:
        click.echo(json.dumps({"version": 1, "targets": [as_json(each) for each in found]}))
    else:
        put("\n\n".join("\n".join(lines(each)) for each in found))
        if "policy" not in (loaded.run.plugins if loaded.run.plugins is not None else ("policy",)):
            say("note: the file's `run.plugins` leaves the policy plugin out")
    return 0 if all(each.allowed for each in found) else 1


def _around(loaded: File) -> list[tuple[str, str]]:
    """Warnings about what is not in [policy], but decides whether it has an effect: (place, text)."""
    found = []
    plugins = chosen_plugins(loaded)
    if "policy" in loaded.tables and "policy" not in plugins:
        text = "run.plugins: `policy` is not among them: nothing of [policy] has an effect"
        found.append((loaded.place("run.plugins"), text))
    try:
        loaded.check_tables(known_tables(plugins, loaded))
    except ConfigError as error:  # perhaps the table of a plugin that `--plugins` will name
        text = f"{error.key}: {error.message.partition(' (')[0]}" + (f" ({error.hint})" if error.hint else "")
        found.append((loaded.place(error.key), text))
    return found


def _compiled(loaded: File) -> Policy:
    config = loaded.plugin("policy", Config)
    try:
        return Policy(config)
    except ConfigError as error:
        raise loaded.error(f"policy.{error.key}", error.message) from None


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"bad label `{text}`: write `--label NAME=VALUE`")
    return name, value


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
