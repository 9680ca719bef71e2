"""Plain TCP and WebSockets through the whole path: a program in a VM and the same one straight on the host, against servers in a
process of their own on 127.0.0.1. Medians of RUNS, the two in turn.

    python bench/native.py [--json]
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from common import in_vm, median_rows, native, parser
from websockets.asyncio.server import ServerConnection, serve

SCRIPT = Path(__file__).parent / "guest" / "sockets.py"
RUNS = 3
MEGABYTES = 256
MESSAGES = 4000
UNITS = {"download": "MB/s", "upload": "MB/s", "one by one": "messages/s", "64 at a time": "messages/s"}

CONFIG = """
[dns]
hosts = { "server.test" = "127.0.0.1" }
[policy]
allow = ["server.test"]
allow_addresses = ["127.0.0.1/32"]
"""


async def source(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    left = int.from_bytes((await reader.readexactly(9))[1:])
    piece = bytes(1 << 18)
    while left:
        writer.write(piece[:left])
        left -= min(left, len(piece))
        await writer.drain()
    writer.close()


async def sink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    total = 0
    while data := await reader.read(1 << 20):
        total += len(data)
    writer.write(total.to_bytes(8))
    await writer.drain()
    writer.close()


async def echo(ws: ServerConnection) -> None:
    async for message in ws:
        await ws.send(message)


async def servers() -> None:
    """Prints the ports, serves until its standard input ends."""
    one = await asyncio.start_server(source, "127.0.0.1", 0, limit=1 << 20)
    two = await asyncio.start_server(sink, "127.0.0.1", 0, limit=1 << 20)
    async with serve(echo, "127.0.0.1", 0, compression=None) as three:
        ports = [server.sockets[0].getsockname()[1] for server in (one, two, three)]
        print(*ports, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    one.close()
    two.close()


def main() -> None:
    options = parser(__doc__, "--json: one object instead of the table", "--serve: be the servers").parse_args()
    if options.serve:
        asyncio.run(servers())
        return
    command = [sys.executable, __file__, "--serve"]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        arguments = [*process.stdout.readline().split(), str(MEGABYTES), str(MESSAGES)]
        config = Path(folder) / "agentfw.toml"
        config.write_text(CONFIG)
        where = ("--config", str(config))
        direct, inside = [], []
        for _ in range(RUNS):
            direct.append(native(SCRIPT, "127.0.0.1", *arguments))
            inside.append(in_vm(SCRIPT, "server.test", *arguments, options=where))
        process.communicate("")
    straight, path = median_rows(direct), median_rows(inside)
    if options.json:
        print(json.dumps({"host": straight, "vm": path}))
        return
    print(f"{'':14} {'host':>12} {'VM':>12}  ratio")
    for name, unit in UNITS.items():
        print(f"{name:14} {straight[name]:12.0f} {path[name]:12.0f}  {path[name] / straight[name]:5.2f}  {unit}")


if __name__ == "__main__":
    main()
