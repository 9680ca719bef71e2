"""`agentfw cache`: what is kept between runs."""

from __future__ import annotations

import json
import shutil

import click

from ..snapshots import SnapshotStore, cache_directory
from .output import put


@click.group(short_help="Snapshots made on demand: where, how large.")
def cache() -> None:
    """Template snapshots and decoded system call sites, kept between runs."""


@cache.command()
def clear() -> None:
    """Remove them all; the next run makes them anew."""
    store = SnapshotStore()
    count, size = store.clear()
    shutil.rmtree(cache_directory() / "sites", ignore_errors=True)
    put(f"removed {count} snapshot{'' if count == 1 else 's'}, {size / 2**20:.0f} MiB")


@cache.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(as_json: bool) -> None:
    """Where they are and how large."""
    store = SnapshotStore()
    files = sorted(store.directory.glob("*.snapshot"))
    rows = [{"file": str(file), "bytes": file.stat().st_blocks * 512} for file in files]
    if as_json:
        click.echo(json.dumps({"version": 1, "directory": str(cache_directory()), "snapshots": rows}))
        return
    put(str(cache_directory()))
    for row in rows:
        put(f"{int(str(row['bytes'])) / 2**20:8.1f} MiB  {row['file']}")
