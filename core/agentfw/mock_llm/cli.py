"""`agentfw mock-llm`."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import click

from ..cli.options import Range
from ..cli.output import put
from .options import MockOptions
from .server import MockLLM, stats_json, stats_text


@click.command("mock-llm")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), show_default=True, help="Port; 0 takes a free one.")
@click.option("--name", "names", multiple=True, metavar="NAME", help="A further name in the certificate (repeatable).")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="A key to accept (repeatable); none: any.")
@click.option("--ca-out", type=click.Path(dir_okay=False, path_type=Path), help="Write the authority's certificate (PEM) here.")
@click.option("--latency", default=0.0, type=Range(0), metavar="MS", help="Milliseconds to the first byte.")
@click.option("--tokens-per-second", default=0.0, type=Range(0), metavar="N", help="Speed of generation; 0: at once.")
@click.option("--reply", default="", metavar="TEXT", help="The answer's text; default: an echo of the last user message.")
@click.option("--reply-tokens", default=0, type=click.IntRange(0, 1_000_000), metavar="N", help="Repeat the text up to N tokens.")
@click.option("--idle-timeout", default=60.0, type=Range(0), metavar="S", help="Close connections idle for S seconds.")
@click.option("--max-requests", default=0, type=click.IntRange(0), metavar="N", help="Close a connection after N requests.")
@click.option("--fail-every", default=0, type=click.IntRange(0), metavar="N", help="Let each n-th model call fail.")
@click.option("--fail-status", default=429, type=click.IntRange(400, 599), show_default=True, help="... with this status.")
@click.option("--error-rate", default=0.0, type=Range(0, 1), metavar="P", help="Let model calls fail with chance P.")
@click.option("--cut-every", default=0, type=click.IntRange(0), metavar="N", help="Break each n-th streamed answer off.")
@click.option("--cache-minimum", default=1024, type=click.IntRange(0), metavar="N", help="Cache prompts of N tokens or more.")
@click.option("--json", "as_json", is_flag=True, help="Print the address and, at the end, the counters as JSON.")
def mock_llm(
    host: str,
    port: int,
    names: tuple[str, ...],
    keys: tuple[str, ...],
    ca_out: Path | None,
    latency: float,
    tokens_per_second: float,
    reply: str,
    reply_tokens: int,
    idle_timeout: float,
    max_requests: int,
    fail_every: int,
    fail_status: int,
    error_rate: float,
    cut_every: int,
    cache_minimum: int,
    as_json: bool,
) -> None:
    """A local TLS server that answers like OpenAI and Anthropic.

    It serves api.openai.com, api.anthropic.com and localhost under an authority of its own, until Ctrl-C, and then prints what it
    counted. GET /_mock/stats gives the counters while it runs.
    """
    try:
        options = MockOptions(
            host=host,
            port=port,
            names=names,
            keys=keys,
            latency=latency / 1000,
            tokens_per_second=tokens_per_second,
            reply=reply,
            reply_tokens=reply_tokens,
            idle_timeout=idle_timeout,
            max_requests=max_requests,
            fail_every=fail_every,
            fail_status=fail_status,
            error_rate=error_rate,
            cut_every=cut_every,
            cache_minimum=cache_minimum,
        )
    except ValueError as trouble:
        raise click.UsageError(str(trouble)) from None
    try:
        asyncio.run(_serve(options, ca_out, as_json))
    except OSError as trouble:
        raise click.ClickException(f"cannot serve on {host}:{port}: {trouble.strerror or trouble}") from None


async def _serve(options: MockOptions, ca_out: Path | None, as_json: bool) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with MockLLM(options) as server:
        if ca_out is not None:
            _write(ca_out, server.ca_pem)
        if as_json:
            click.echo(stats_json({"host": options.host, "port": server.port, "ca": None if ca_out is None else str(ca_out)}))
        else:
            put(f"listening on {options.host}:{server.port}")
            put("trust: " + (str(ca_out) if ca_out is not None else "(use --ca-out FILE)"))
        await ended.wait()
        stats = server.stats()
    if as_json:
        click.echo(stats_json(stats))
    else:
        put(stats_text(stats))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as trouble:
        raise click.ClickException(f"--ca-out: {path}: {trouble.strerror or trouble}") from None
