"""`agentfw metrics`: what a pool counts."""

from __future__ import annotations

import json

import click

from .connect import Where, json_option, pool_options, talk
from .output import put

EXAMPLES = """Examples:

\b
  agentfw metrics | grep ^agentfw_jobs
  agentfw metrics --json | jq '.metrics["policy.denied"]'"""


@click.command(epilog=EXAMPLES)
@json_option
@pool_options
def metrics(where: Where, as_json: bool) -> None:
    """Print what a pool counts, as Prometheus reads it.

    With --json the statistics that it is made of, by their own names.
    """
    if as_json:
        click.echo(json.dumps({"version": 1, "metrics": talk(where, lambda pool: pool.metrics())}))
    else:
        put(talk(where, lambda pool: pool.prometheus()).removesuffix("\n"))
