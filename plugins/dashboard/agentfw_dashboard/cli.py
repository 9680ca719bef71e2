"""`agentfw dashboard`: opens the page of a pool that runs, logged in."""

from __future__ import annotations

import json
import os
import sys
import webbrowser

import click
import msgspec
from agentfw.cli.connect import Where, json_option, pool_options, talk
from agentfw.cli.options import RunError
from agentfw.cli.output import put, say
from agentfw.texts import shown

EPILOG = """Examples:

\b
  agentfw dashboard
  agentfw dashboard --print-url
  curl -H "Authorization: Bearer $(agentfw dashboard --json | jq -r .token)" http://127.0.0.1:8701/metrics

\b
Exit status: 0; 125 if no pool runs, or it has no page."""


class _Address(msgspec.Struct):
    """What the pool says."""

    url: str
    token: str
    login: str
    trouble: str = ""


@click.command(epilog=EPILOG)
@click.option("--print-url", is_flag=True, help="Print a link that logs in, once and within ten minutes, instead of opening it.")
@json_option
@pool_options
def dashboard(where: Where, print_url: bool, as_json: bool) -> int:
    """Open the page that shows what a pool's agents do.

    Asks the pool, over its socket, for a link that logs in once. Where there is no browser the link is printed. From another
    machine: forward the page's port (`ssh -L 8701:127.0.0.1:8701 HOST`), and open the link of `--print-url` there.
    """
    found = talk(where, lambda pool: pool.plugin("dashboard", "address", kind=_Address))
    if not found.url:
        raise RunError("the pool has no page", found.trouble or "set [dashboard] `listen`")
    if not all(_is_link(each) for each in (found.url, found.login)):
        raise RunError(f"the pool told no link: `{shown(found.login, 200)}`")
    if as_json:
        click.echo(json.dumps({"version": 1, "url": found.url, "login": found.login, "token": found.token}))
    elif print_url or not _has_browser() or not webbrowser.open(found.login):
        put(found.login)
    else:
        say(f"opened {found.url}")
    return 0


def _is_link(text: str) -> bool:
    return text.isascii() and text.isprintable() and text.startswith(("http://", "https://"))


def _has_browser() -> bool:
    """One with windows: those of a terminal have no JavaScript."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
